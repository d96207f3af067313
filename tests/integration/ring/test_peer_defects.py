"""What users of other event logs meet, tried on a ring of three with three copies.

The table in CONTRIBUTING.md names the test of each such defect; these are those that no other file
has.
"""

import json
from collections.abc import Iterator
from statistics import median
from time import monotonic
from typing import Any

import pytest

from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tests.support.http.http11 import Connection, document, get, messages, records, request
from tests.support.ring.local_ring import LocalRing, founded_ring

BROKERS = range(3)
KEYS = [f"k{number}" for number in range(12)]  # of all ranges
WHOLE_S_MAX = 60.0
EVENTS = 500
PIECE = 7
WRITES = 200
# What the peer's writes wait for a broker that is down, each of them; ours take some ms.
WAIT_S = 0.5

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    root = tmp_path_factory.mktemp("defects")
    settings = {"failback_ms": 1000}
    with founded_ring(root, copies=3, **settings) as ring:
        yield ring


def create(ring: LocalRing, topic: str) -> None:
    ring.call(0, "POST", "/v1/topics", {"name": topic, "partitionsPerRange": 1})


def produce(ring: LocalRing, ordinal: int, topic: str, key: str, body: bytes) -> dict[str, Any]:
    target = messages(topic, partitionKey=key)
    with Connection(ring.brokers[ordinal].port) as connection:
        answer = connection.exchange(request(target, body, content_type=NDJSON_CONTENT_TYPE))
    assert answer.status == 200, answer
    stored: dict[str, Any] = document(answer)
    return stored


def read(
    ring: LocalRing, ordinal: int, topic: str, partition: int, **query: Any
) -> list[dict[str, Any]]:
    with Connection(ring.brokers[ordinal].port) as connection:
        answer = connection.exchange(
            get(records(topic, partition, **query), accept=JSON_CONTENT_TYPE)
        )
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = document(answer)
    return found


def ranges(ring: LocalRing) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ring.call(0, "GET", "/v1/ring?consistent=true")["ranges"]
    return found


def wait_whole(ring: LocalRing) -> None:
    """Until each range has all its copies in sync, and its natural leader again."""
    ring.wait_ready()
    ring.until(
        lambda: all(
            len(each["isr"]) == len(BROKERS) and each["leader"] == each["replicas"][0]
            for each in ranges(ring)
        ),
        WHOLE_S_MAX,
    )


def test_an_event_is_read_at_every_broker_as_soon_as_it_is_acknowledged(ring: LocalRing) -> None:
    create(ring, "soon")
    for number in range(30):
        body = b'{"number":%d}' % number
        stored = produce(ring, number % 3, "soon", KEYS[number % 12], body)
        for ordinal in BROKERS:
            (found,) = read(ring, ordinal, "soon", stored["partition"], offset=stored["offset"])
            assert found["value"] == {"number": number}


def test_no_answer_is_empty_while_its_offset_moves_on(ring: LocalRing) -> None:
    """Nor has one fewer records than were wanted and are there."""
    create(ring, "pieces")
    lines = b"\n".join(b'{"number":%d,"x":"%s"}' % (n, b"x" * 1000) for n in range(EVENTS))
    stored = produce(ring, 1, "pieces", "k", lines)
    assert stored["count"] == EVENTS
    for ordinal in BROKERS:
        offset = 0
        while offset < EVENTS:
            found = read(
                ring, ordinal, "pieces", stored["partition"], offset=offset, maxRecords=PIECE
            )
            expected = range(offset, min(offset + PIECE, EVENTS))
            assert [each["offset"] for each in found] == list(expected)
            assert [each["value"]["number"] for each in found] == list(expected)
            offset += len(found)


def test_a_killed_leader_that_returns_hides_nothing(ring: LocalRing) -> None:
    create(ring, "history")
    acknowledged: dict[int, list[int]] = {}
    for number in range(EVENTS):
        body = json.dumps({"number": number}).encode()
        stored = produce(ring, number % 3, "history", KEYS[number % 12], body)
        acknowledged.setdefault(stored["partition"], []).append(number)
    victim = 1
    ring.kill(victim)
    ring.until(lambda: all(each["leader"] != victim for each in ranges(ring)), WHOLE_S_MAX)
    ring.brokers[victim].start()
    wait_whole(ring)

    for ordinal in BROKERS:
        for partition, numbers in acknowledged.items():
            found = read(ring, ordinal, "history", partition, offset=0, maxRecords=EVENTS)
            assert [each["value"]["number"] for each in found] == numbers


def test_no_write_waits_for_a_broker_that_is_down_and_each_is_there_once(ring: LocalRing) -> None:
    create(ring, "down")
    victim = 2
    ring.kill(victim)
    ring.until(
        lambda: all(
            victim not in {each["leader"], *(member["ordinal"] for member in each["isr"])}
            for each in ranges(ring)
        ),
        WHOLE_S_MAX,
    )
    waited_s, acknowledged = [], dict[int, list[int]]()
    for number in range(WRITES):
        began_s = monotonic()
        stored = produce(ring, number % 2, "down", KEYS[number % 12], b"%d" % number)
        waited_s.append(monotonic() - began_s)
        acknowledged.setdefault(stored["partition"], []).append(number)
    ring.brokers[victim].start()
    wait_whole(ring)

    print(f"median {1000 * median(waited_s):.1f} ms, longest {1000 * max(waited_s):.1f} ms")
    assert median(waited_s) < WAIT_S
    for partition, numbers in acknowledged.items():
        found = read(ring, victim, "down", partition, offset=0, maxRecords=WRITES)
        assert [each["value"] for each in found] == numbers
