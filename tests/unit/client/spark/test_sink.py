"""How a task's rows become requests that the broker takes."""

import pyarrow as pa
import pytest

from tailrace.errors import ProblemError, problem_error
from tailrace.protocol.records_binary import encode_records
from tailrace.spark import connection
from tailrace.spark.options import WriteOptions
from tailrace.spark.sink import TailraceWriter, Written

VALUES = [b"%d" % number for number in range(7)]
ROWS = pa.record_batch({"value": pa.array(VALUES, pa.binary())})


def body_of(*values: bytes) -> bytes:
    return encode_records([None] * len(values), values)


def stored_below(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int, *, write_attempted: bool = False
) -> list[bytes]:
    """The bodies that a broker with this bound gets, and stores."""
    stored: list[bytes] = []

    class Broker:
        def __init__(self, url: str, **_: object) -> None:
            self.url = url

        def produce_encoded(self, topic: str, body: bytes) -> None:
            if len(body) > bytes_max:
                document = {"type": "/v1/problems/body-too-large"}
                raise problem_error(413, {**document, "writeAttempted": write_attempted})
            stored.append(body)

        def close(self) -> None:
            pass

    monkeypatch.setattr(connection, "Client", Broker)
    return stored


def test_a_request_that_is_too_large_for_the_broker_is_cut_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = stored_below(monkeypatch, len(body_of(*VALUES[:2])))

    written = TailraceWriter(WriteOptions(urls=("http://a:9250",), topic="t")).write(iter([ROWS]))

    assert stored == [
        body_of(*VALUES[start:end]) for start, end in ((0, 1), (1, 3), (3, 5), (5, 7))
    ]
    assert written == Written(7)


@pytest.mark.parametrize("write_attempted", [False, True])
def test_what_cannot_be_cut_is_refused(
    monkeypatch: pytest.MonkeyPatch, write_attempted: bool
) -> None:
    stored = stored_below(monkeypatch, 1, write_attempted=write_attempted)

    with pytest.raises(ProblemError):
        TailraceWriter(WriteOptions(urls=("http://a:9250",), topic="t")).write(iter([ROWS]))
    assert stored == []
