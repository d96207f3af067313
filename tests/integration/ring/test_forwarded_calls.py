"""Any broker of a ring answers reads, from its copy or as the leader does."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace.protocol.requests import Answer
from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tests.support.http.http11 import (
    Connection,
    document,
    get,
    messages,
    problem,
    records,
    request,
)
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring

BROKERS = range(3)
WAIT_MS = 20_000
LARGE_COUNT = 4_000  # events of 1 KiB: an answer of several parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """One copy of each range, so that only its leader has anything."""
    root = tmp_path_factory.mktemp("reads")
    with founded_ring(root, copies=1) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        for number in range(24):
            produce(ring, number % 3, f"k{number}", json.dumps({"number": number}).encode())
        lines = b"".join(b'{"n":%d,"x":"%s"}\n' % (n, b"x" * 1000) for n in range(LARGE_COUNT))
        for number in range(3):
            produce(ring, number, "k0", lines, content_type=NDJSON_CONTENT_TYPE)
        yield ring


def produce(ring: LocalRing, ordinal: int, key: str, body: bytes, **headers: Any) -> dict[str, Any]:
    with Connection(ring.brokers[ordinal].port) as connection:
        answer = connection.exchange(request(messages("t", partitionKey=key), body, **headers))
    assert answer.status == 200, answer
    stored: dict[str, Any] = document(answer)
    return stored


def read(ring: LocalRing, ordinal: int, target: str, **headers: Any) -> Answer:
    with Connection(ring.brokers[ordinal].port) as connection:
        return connection.exchange(get(target, **headers))


def at_all(ring: LocalRing, target: str, **headers: Any) -> Answer:
    """The answer of each broker, which is the same."""
    answers = [read(ring, ordinal, target, **headers) for ordinal in BROKERS]
    seen = {(each.status, each.headers["content-type"], each.body) for each in answers}
    assert len(seen) == 1, [(each.status, len(each.body)) for each in answers]
    return answers[0]


@pytest.mark.parametrize(
    ("query", "content_type"),
    [
        ({"offset": 0, "maxRecords": 100_000}, NDJSON_CONTENT_TYPE),
        ({"offset": 0, "maxRecords": 100_000}, JSON_CONTENT_TYPE),
        ({"offset": 0, "maxBytes": 16 * 1024 * 1024}, BATCH_CONTENT_TYPE),
        ({"offset": "-2"}, NDJSON_CONTENT_TYPE),
        ({"offset": "latest"}, JSON_CONTENT_TYPE),
        ({"timestamp": 1_700_000_000_000_000, "maxRecords": 1}, NDJSON_CONTENT_TYPE),
        ({"offset": 1, "isolation": "uncommitted"}, NDJSON_CONTENT_TYPE),
    ],
)
def test_any_broker_answers_a_read_as_the_leader_does(
    ring: LocalRing, query: dict[str, Any], content_type: str
) -> None:
    for partition in BROKERS:
        answer = at_all(ring, records("t", partition, **query), accept=content_type)
        assert answer.status == 200
        assert answer.headers["content-type"] == content_type


def test_any_broker_answers_head_as_get_without_the_body(ring: LocalRing) -> None:
    target = records("t", 1, offset=0, maxRecords=3)
    for ordinal in BROKERS:
        with Connection(ring.brokers[ordinal].port) as connection:
            connection.send(request(target, method="HEAD", content_length=None) + get("/live"))
            head, after = connection.receive(is_head_only=True), connection.receive()
        assert (head.status, head.body, after.status) == (200, b"", 200)
        assert head.headers["content-type"] == NDJSON_CONTENT_TYPE
        assert head.headers["tailrace-next-offset"] == "3"


def test_any_broker_says_what_is_wrong_with_a_read(ring: LocalRing) -> None:
    for target, expected in (
        (records("t", 1, offset=1_000_000), (416, "offset-out-of-range")),
        (records("t", 9), (404, "partition-not-found")),
        (records("t", 1, offset="soon"), (400, "invalid-parameter")),
    ):
        assert problem(at_all(ring, target)) == expected


def test_any_broker_lists_all_ends_and_the_last_records(ring: LocalRing) -> None:
    for ordinal in BROKERS:
        (listed,) = document(read(ring, ordinal, "/v1/offsets?topic=t"))["topics"]
        described = document(read(ring, ordinal, "/v1/topics/t"))["partitionDetails"]
        for row in (*listed["partitions"], *described):
            assert row["logEnd"] == row["highWatermark"] > 0
            assert ("leaderUrl" in row) is (row["leader"] != ordinal)
        assert all(row["sizeBytes"] > 0 for row in described)
    last = at_all(ring, "/v1/topic/t/records?last=70", accept=JSON_CONTENT_TYPE)
    times = [each["timestamp"] for each in document(last)]
    assert len(times) == 70
    assert times == sorted(times)


def test_a_long_poll_at_another_broker_gets_what_comes(ring: LocalRing) -> None:
    stored = produce(ring, 0, "SFO", b"1")
    partition, end = stored["partition"], stored["offset"] + 1
    for ordinal in BROKERS:
        with Connection(ring.brokers[ordinal].port) as waiting:
            waiting.send(get(records("t", partition, offset=end, waitMs=WAIT_MS)))
            ring.until(lambda: waiting_count(ring) == 1, WHOLE_S_MAX)
            produce(ring, ordinal, "SFO", b"2")
            end += 1
            assert waiting.receive().body.count(b"\n") == 1


def test_a_reader_that_goes_is_not_waited_for(ring: LocalRing) -> None:
    stored = produce(ring, 0, "SFO", b"1")
    target = records("t", stored["partition"], offset="latest", waitMs=WAIT_MS)
    for ordinal in BROKERS:
        with Connection(ring.brokers[ordinal].port) as waiting:
            waiting.send(get(target))
            ring.until(lambda: waiting_count(ring) == 1, WHOLE_S_MAX)
            waiting.reset()
        ring.until(lambda: waiting_count(ring) == 0, WHOLE_S_MAX)


def waiting_count(ring: LocalRing) -> int:
    """Reads that wait for records, at all brokers."""
    count = 0.0
    for broker in ring.brokers:
        with Connection(broker.port + 3) as connection:
            lines = connection.exchange(get("/metrics")).body.decode().splitlines()
        name = "tailrace_waiting_reads "
        count += next(float(line.removeprefix(name)) for line in lines if line.startswith(name))
    return int(count)


def test_a_slow_reader_keeps_no_other_waiting(ring: LocalRing) -> None:
    partition = produce(ring, 0, "k0", b"1")["partition"]
    other = next(ordinal for ordinal in BROKERS if ordinal != partition)
    whole = get(records("t", partition, offset=0, maxRecords=100_000))
    with Connection(ring.brokers[other].port, receive_buffer_bytes=4096) as slow:
        slow.send(whole)
        slow.socket.recv(1)
        assert read(ring, other, records("t", partition, offset="-1")).status == 200
        assert len(read(ring, other, records("t", partition, maxRecords=9_000)).body) > 9_000_000


def test_copies_serve_what_is_committed_when_the_leader_dies(tmp_path: Path) -> None:
    with founded_ring(tmp_path) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        partition = produce(ring, 0, "SFO", b"0")["partition"]
        for number in range(1, 20):
            produce(ring, number % 3, "SFO", b"%d" % number)
        others = [ordinal for ordinal in BROKERS if ordinal != partition]
        latest = get(records("t", partition, offset="latest", maxRecords=1))
        answers: list[Answer] = []

        def ask(ordinal: int) -> None:
            with Connection(ring.brokers[ordinal].port) as connection:
                answers.append(connection.exchange(latest))

        ring.kill(partition)  # each broker leads the range of its own number
        asking = [threading.Thread(target=ask, args=(ordinal,)) for ordinal in others]
        for thread in asking:
            thread.start()
        for ordinal in others:
            answer = read(ring, ordinal, records("t", partition, offset=0, maxRecords=5))
            assert [json.loads(line)["value"] for line in answer.body.splitlines()] == [*range(5)]
        for thread in asking:
            thread.join()
        assert [each.status for each in answers] == [200, 200]
        assert {each.headers["tailrace-next-offset"] for each in answers} == {"20"}


def test_a_copy_that_stood_still_hides_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """It is asked as soon as it goes on, before it has heard of what came meanwhile."""
    with founded_ring(tmp_path) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        partition = produce(ring, 0, "SFO", b"0")["partition"]
        copy, other = (each for each in BROKERS if each != partition)
        for number in range(1, 4):
            ring.wait_whole()
            ring.pause(copy)
            with Connection(ring.brokers[copy].port) as connection:
                offset = produce(ring, other, "SFO", b"%d" % number)["offset"]
                connection.send(get(records("t", partition, offset=offset)))
                ring.resume(copy)
                answer = connection.receive()
            assert answer.status == 200, answer
            assert [json.loads(line)["value"] for line in answer.body.splitlines()] == [number]


def test_a_leader_that_stood_still_gives_no_end_of_before(tmp_path: Path) -> None:
    """It is asked as soon as it goes on, before it has heard that another leads."""
    with founded_ring(tmp_path) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        partition = produce(ring, 0, "SFO", b"0")["partition"]
        for number in range(1, 4):
            ring.wait_whole()
            leader = leader_of(ring, partition)
            assert leader is not None
            ring.pause(leader)
            ring.until(partial(is_led_by_another, ring, partition, leader), WHOLE_S_MAX)
            with (
                Connection(ring.brokers[leader].port) as latest,
                Connection(ring.brokers[leader].port) as newest,
                Connection(ring.brokers[leader].port) as listed,
            ):
                for each in (b"0", b"%d" % number):
                    offset = produce(ring, (leader + 1) % 3, "SFO", each)["offset"]
                latest.send(get(records("t", partition, offset="latest")))
                newest.send(get(records("t", partition, offset=offset)))
                listed.send(get("/v1/offsets?topic=t"))
                ring.resume(leader)
                ends = document(listed.receive())["topics"][0]["partitions"]
                assert latest.receive().headers["tailrace-next-offset"] == str(offset + 1)
                answer = newest.receive()
            assert [json.loads(line)["value"] for line in answer.body.splitlines()] == [number]
            assert ends[partition]["highWatermark"] in (None, offset + 1)


def is_led_by_another(ring: LocalRing, range_id: int, leader: int) -> bool:
    return leader_of(ring, range_id) not in (leader, None)


def leader_of(ring: LocalRing, range_id: int) -> int | None:
    """As a majority knows."""
    found: int | None = next(
        (each["leader"] for each in ring.ranges() if each["id"] == range_id), None
    )
    return found
