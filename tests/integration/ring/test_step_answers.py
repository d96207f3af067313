"""What clients are answered by a ring that has just taken a step."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace.protocol.requests import Answer
from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tests.support.http.http11 import Connection, document, get, messages, records, request
from tests.support.ring.local_ring import LocalRing, founded_ring
from tests.support.ring.ring_steps import step_to
from tests.support.storage.batches import Event, batch_of

TOPIC = "stepped"
KEYS = [f"key-{number}" for number in range(24)]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[LocalRing]:
    """A ring of three with a topic, and a fourth broker that is to join."""
    with founded_ring(tmp_path, count=4, founders=3, copies=3) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": TOPIC, "partitionsPerRange": 2})
        for ordinal in range(4):
            ring.until(partial(ring.is_answered, ordinal, "GET", f"/v1/topics/{TOPIC}"), 30.0)
        yield ring


def produce(ring: LocalRing, ordinal: int, key: str, sequence: int | None = None) -> Answer:
    named: dict[str, Any] = {}
    if sequence is not None:
        named = {"tailrace_producer_id": "till", "tailrace_sequence": sequence}
    with Connection(ring.brokers[ordinal].port) as connection:
        return connection.exchange(request(messages(TOPIC, partitionKey=key), b'{"n":1}', **named))


def produce_lines(ring: LocalRing, ordinal: int, sequence: int) -> list[dict[str, Any]]:
    body = b"\n".join(b'{"k":"%s"}' % key.encode() for key in KEYS)
    whole = request(
        messages(TOPIC, key=".k"),
        body,
        content_type=NDJSON_CONTENT_TYPE,
        tailrace_producer_id="lines",
        tailrace_sequence=sequence,
    )
    with Connection(ring.brokers[ordinal].port) as connection:
        answer = connection.exchange(whole)
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = document(answer)
    assert sum(each["count"] for each in found) == len(KEYS)
    return found


def rows_of(ring: LocalRing, ordinal: int) -> dict[int, dict[str, Any]]:
    offsets = ring.call(ordinal, "GET", f"/v1/offsets?topic={TOPIC}")
    return {each["partition"]: each for each in offsets["topics"][0]["partitions"]}


def test_a_retry_after_a_step_is_answered_with_the_place_in_the_parent(ring: LocalRing) -> None:
    places = {key: document(produce(ring, 0, key, sequence)) for sequence, key in enumerate(KEYS)}
    lines = produce_lines(ring, 0, 0)
    step_to(ring, 4)
    sealed = {number for number, row in rows_of(ring, 0).items() if row["state"] == "sealed"}
    assert {each["partition"] for each in places.values()} & sealed

    for ordinal in range(4):
        for sequence, key in enumerate(KEYS):
            again = document(produce(ring, ordinal, key, sequence))
            assert again["duplicate"]
            where = places[key]["partition"], places[key]["offset"]
            assert (again["partition"], again["offset"]) == where
        again = produce_lines(ring, ordinal, 0)
        assert all(each["duplicate"] for each in again)
        assert {each["partition"] for each in again} == {each["partition"] for each in lines}
    assert sum(row["highWatermark"] - row["firstOffset"] for row in rows_of(ring, 0).values()) == (
        2 * len(KEYS)
    )

    new = {key: document(produce(ring, 3, key, len(KEYS) + at)) for at, key in enumerate(KEYS)}
    assert not any("duplicate" in each for each in new.values())
    assert not {each["partition"] for each in new.values()} & sealed


def test_a_sealed_end_is_the_same_at_each_broker(ring: LocalRing) -> None:
    for key in KEYS:
        produce(ring, 0, key)
    step_to(ring, 4)
    first = rows_of(ring, 0)
    partition, row = next((at, row) for at, row in first.items() if row["state"] == "sealed")
    children = ",".join(map(str, row["children"]))

    for ordinal in range(4):
        rows = rows_of(ring, ordinal)
        assert (rows[partition]["leader"], rows[partition]["highWatermark"]) == (
            None,
            row["logEnd"],
        )
        for each in row["children"]:
            assert (rows[each]["state"], rows[each]["parents"]) == ("open", [partition])
            assert rows[each]["firstOffset"] == row["highWatermark"]
        with Connection(ring.brokers[ordinal].port) as connection:
            for accept in (NDJSON_CONTENT_TYPE, JSON_CONTENT_TYPE, BATCH_CONTENT_TYPE):
                target = records(TOPIC, partition, offset=row["logEnd"], waitMs=60_000)
                answer = connection.exchange(get(target, accept=accept))
                assert answer.status == 200
                assert answer.headers["tailrace-sealed"] == "true"
                assert answer.headers["tailrace-children"] == children
                assert answer.body in {b"", b"[]", b"[]\n"}


def test_a_poll_that_waits_at_the_end_is_answered_when_that_is_sealed(ring: LocalRing) -> None:
    """Range 0 is led by broker 0; it is asked through another one."""
    with Connection(ring.brokers[1].port) as connection:
        connection.socket.settimeout(60)
        connection.send(get(records(TOPIC, 0, offset=0, waitMs=60_000)))
        step_to(ring, 4)
        answer = connection.receive()
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["tailrace-sealed"] == "true"


def test_appends_to_a_sealed_partition_are_answered_with_its_children(ring: LocalRing) -> None:
    step_to(ring, 4)
    rows = rows_of(ring, 0)
    partition, row = next((at, row) for at, row in rows.items() if row["state"] == "sealed")
    whole = request(
        f"/v1/topic/{TOPIC}/messages?partition={partition}",
        batch_of([Event(b"{}")]),
        content_type=BATCH_CONTENT_TYPE,
    )
    for ordinal in range(4):
        with Connection(ring.brokers[ordinal].port) as connection:
            answer = connection.exchange(whole)
        assert answer.status == 421
        problem = json.loads(answer.body)
        assert problem["children"] == row["children"]
        assert (problem["retriable"], problem["writeAttempted"]) == (True, False)
