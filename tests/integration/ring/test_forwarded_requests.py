"""What brokers forward: every content type, in order, and what becomes of it without a leader."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import Answer
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_JSON_CONTENT_TYPE,
)
from tests.support.http.http11 import (
    Connection,
    document,
    get,
    messages,
    problem,
    records,
    request,
    settle,
)
from tests.support.ring.local_ring import LocalRing, founded_ring
from tests.support.storage.batches import Event, batch_of

BROKERS = range(3)
KEY = "SFO"  # of partition 1, which broker 1 leads
LED, OTHER = 1, 0
FORWARD_S = 1.0
LARGE_BYTES = 600_000  # compressed in an I/O thread
PRODUCER: dict[str, Any] = {"tailrace_producer_id": "p", "tailrace_sequence": 1}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """One copy of each range, and a partition for each broker."""
    with one_copy(tmp_path_factory.mktemp("forwarded")) as ring:
        yield ring


def one_copy(root: Path, **settings: Any) -> Any:
    return founded_ring(root, copies=1, **settings)


def create(ring: LocalRing, topic: str) -> None:
    ring.call(0, "POST", "/v1/topics", {"name": topic, "partitionsPerRange": 1})


def send(ring: LocalRing, ordinal: int, whole: bytes) -> Answer:
    with Connection(ring.brokers[ordinal].port) as connection:
        return connection.exchange(whole)


def values_of(ring: LocalRing, topic: str) -> list[Any]:
    """All that is stored, at the leaders."""
    values = []
    for partition in BROKERS:
        answer = send(ring, partition, get(records(topic, partition, maxRecords=100_000)))
        values += [json.loads(line)["value"] for line in answer.body.splitlines()]
    return values


@pytest.mark.parametrize(
    ("content_type", "query", "body", "count"),
    [
        (JSON_CONTENT_TYPE, {"partitionKey": KEY}, b"1", 1),
        (JSON_CONTENT_TYPE, {}, b"1", 1),
        (NDJSON_CONTENT_TYPE, {"partitionKey": KEY}, b"1\n2\n", 2),
        (NDJSON_CONTENT_TYPE, {"key": ".k"}, b'{"k":"a"}\n{"k":"b"}\n{"k":"SFO"}\n', 3),
        (RECORDS_CONTENT_TYPE, {}, encode_records([b"1", b"2"], [b"SFO", None]), 2),
        (RECORDS_JSON_CONTENT_TYPE, {}, b'{"records":[{"key":"SFO","value":1}]}', 1),
        (BATCH_CONTENT_TYPE, {"partition": LED}, batch_of([Event(b"1", b"k", 7)]), 1),
    ],
)
def test_any_broker_takes_any_content_type(
    ring: LocalRing, content_type: str, query: dict[str, Any], body: bytes, count: int
) -> None:
    topic = f"{content_type.rpartition('/')[2].replace('+', '-')}-{len(query)}-{count}"
    create(ring, topic)
    for ordinal in BROKERS:
        answer = send(
            ring, ordinal, request(messages(topic, **query), body, content_type=content_type)
        )
        assert answer.status == 200, answer
        stored = document(answer)
        parts = stored if isinstance(stored, list) else [stored]
        assert sum(part["count"] for part in parts) == count
    assert len(values_of(ring, topic)) == 3 * count


def test_requests_of_one_connection_keep_their_order_whatever_their_sizes(ring: LocalRing) -> None:
    create(ring, "sizes")
    target = messages("sizes", partitionKey=KEY)
    large = b"".join(b'"%s"\n' % (b"%06d" % number * 100) for number in range(LARGE_BYTES // 600))
    bodies = [(b"1", None), (large, NDJSON_CONTENT_TYPE), (b'"%s"' % (b"x" * 100_000), None)]
    bodies += [(b"2", None), (large, NDJSON_CONTENT_TYPE), (b"3", None)]
    wholes = [
        request(target, body, **({} if kind is None else {"content_type": kind}))
        for body, kind in bodies
    ]
    with Connection(ring.brokers[OTHER].port) as connection:
        connection.send(b"".join(wholes))
        stored = [document(connection.receive()) for _ in wholes]

    offsets = [each["offset"] for each in stored]
    assert offsets == sorted(offsets)
    assert offsets[-1] + 1 == sum(each["count"] for each in stored)


def test_what_is_wrong_at_the_leader_is_answered_by_the_other(ring: LocalRing) -> None:
    create(ring, "reused")
    target = messages("reused", partitionKey=KEY)
    first = request(target, b"1", **PRODUCER)
    again = request(target, b"1\n2\n", content_type=NDJSON_CONTENT_TYPE, **PRODUCER)

    assert document(send(ring, OTHER, first))["offset"] == 0
    assert document(send(ring, 2, first))["duplicate"] is True
    assert problem(send(ring, OTHER, again)) == (409, "sequence-reused")


def test_a_leader_that_is_silent_leaves_the_outcome_open(tmp_path: Path) -> None:
    with one_copy(tmp_path, forward_seconds=FORWARD_S) as ring:
        create(ring, "t")
        target = messages("t", partitionKey=KEY)
        assert send(ring, OTHER, request(target, b"1")).status == 200
        ring.pause(LED)
        no_headers: dict[str, Any] = {}
        for headers in (no_headers, PRODUCER):
            answer = send(ring, OTHER, request(target, b"2", **headers))
            assert answer.status == 503
            assert document(answer)["retriable"] is True
            if not headers:  # the link has ended since, and the next waits for another one
                assert problem(answer) == (503, "outcome-unknown")
                assert document(answer)["writeAttempted"] is True
        log_path = ring.brokers[OTHER].log_path
        assert log_path is not None
        ring.until(lambda: "leader.silent" in log_path.read_text(), 30)
        rows = document(send(ring, OTHER, get("/v1/offsets?topic=t")))["topics"][0]["partitions"]
        assert [row["logEnd"] is None for row in rows] == [False, True, False]
        late = send(ring, OTHER, get(records("t", LED, offset="latest")))
        assert problem(late) == (503, "no-leader")
        ring.resume(LED)

        ring.until(lambda: send(ring, OTHER, request(target, b"2", **PRODUCER)).status == 200, 30)
        assert values_of(ring, "t").count(2) in {1, 2}  # the one without a producer may be there


def test_what_waits_for_a_leader_ends_with_its_topic(tmp_path: Path) -> None:
    with one_copy(tmp_path, forward_seconds=60) as ring:
        create(ring, "t")
        event = request(messages("t", partitionKey=KEY), b"1")
        assert send(ring, OTHER, event).status == 200
        ring.kill(LED)
        ring.until(lambda: not ring.ring(OTHER)["registrations"][LED]["alive"], 30)
        with Connection(ring.brokers[OTHER].port) as waiting:
            waiting.send(event)
            settle(ring.brokers[OTHER].port)
            ring.until(lambda: ring.is_answered(OTHER, "DELETE", "/v1/topics/t"), 30)
            assert problem(waiting.receive()) == (404, "topic-not-found")


def test_a_read_whose_leader_dies_is_cut_off_and_not_shortened(tmp_path: Path) -> None:
    with one_copy(tmp_path) as ring:
        create(ring, "t")
        lines = b"".join(b'"%s"\n' % (b"%06d" % number * 170) for number in range(8_000))
        target = messages("t", partitionKey=KEY)
        stored = send(ring, OTHER, request(target, lines, content_type=NDJSON_CONTENT_TYPE))
        assert document(stored)["count"] == 8_000
        with Connection(ring.brokers[OTHER].port, receive_buffer_bytes=4096) as slow:
            slow.send(get(records("t", LED, maxRecords=100_000)))
            slow.socket.recv(1)
            ring.kill(LED)
            received = received_until_end(slow)
        assert len(received) < 8_000 * 1_000
        assert not received.endswith(b"0\r\n\r\n")  # as a whole body in chunks does


def received_until_end(connection: Connection) -> bytes:
    """All that comes, however it ends."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.socket.recv(1 << 20):
            received += piece
    return received


def test_a_stopping_broker_answers_what_it_has_forwarded(tmp_path: Path) -> None:
    with one_copy(tmp_path) as own:
        create(own, "t")
        event = request(messages("t", partitionKey=KEY), b"1")
        answers: list[Answer] = []
        stop = threading.Event()

        def produce() -> None:
            with Connection(own.brokers[OTHER].port) as connection:
                while not stop.is_set():
                    connection.send(event * 16)
                    for _ in range(16):
                        answers.append(connection.receive())
                        if answers[-1].status != 200:
                            return

        thread = threading.Thread(target=produce)
        thread.start()
        own.until(lambda: len(answers) > 200, 60)
        own.brokers[OTHER].stop()
        stop.set()
        thread.join()
        assert len(values_of_partition(own)) == sum(each.status == 200 for each in answers)


def values_of_partition(ring: LocalRing) -> list[bytes]:
    return send(ring, LED, get(records("t", LED, maxRecords=100_000))).body.splitlines()
