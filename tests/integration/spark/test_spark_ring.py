"""Spark's source and sink where several brokers lead."""

from pathlib import Path

import pytest

from tailrace.errors import TailraceError
from tailrace.protocol.records_binary import encode_records
from tailrace.spark.connection import PatientClient
from tailrace.spark.sink import _produce
from tailrace.sync import Client
from tests.support.broker.fixtures import free_ring_port
from tests.support.ring.local_ring import founded_ring
from tests.support.spark.spark import SPARK_MARKS

pytestmark = SPARK_MARKS

KEYS = [f"k{number}".encode() for number in range(40)]


def test_a_write_to_a_ring_of_several_is_refused_and_not_repeated(tmp_path: Path) -> None:
    body = encode_records(KEYS, KEYS)
    with founded_ring(tmp_path, port=free_ring_port()) as ring:
        with Client(ring.brokers[0].url) as client:
            client.create_topic("t", json_check=False)
        patient = PatientClient([ring.brokers[0].url])
        with pytest.raises(TailraceError, match="a ring of one broker") as raised:
            _produce(patient, "t", body)
        patient.close()
        with Client(ring.brokers[2].url) as client:
            ends = [row.readable().stop for row in client.offsets(["t"])]

    assert not raised.value.retriable
    assert 0 < sum(ends[:4]) < len(KEYS)
    assert sum(ends[4:]) == 0
