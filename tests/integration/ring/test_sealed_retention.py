"""What retention takes of sealed ranges leaves the ring, and nobody who reads sees an error."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tailrace.consumer import Consumer
from tailrace.sync import Client
from tests.support.cli.commands import TAILRACE
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.ring_steps import TOPIC, produce_many, sealed_ranges, step_to, wait_copied

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIRST, LAST = 2, 4
EVENTS = 1000
RETENTION_MS = 60_000  # the least
KEEP_MS = 1000
GONE_S_MAX = 150.0


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[LocalRing]:
    """A ring of some brokers, with others that wait to join it."""
    settings = {"copies": 3, "sealed_keep_ms": KEEP_MS}
    with founded_ring(tmp_path, count=LAST, founders=FIRST, **settings) as ring:
        yield ring


def numbers_in(values: list[str]) -> set[int]:
    return {json.loads(each)["id"] for each in values}


def poll(url: str, group: str, is_enough: Callable[[set[int]], bool]) -> set[int]:
    """The numbers that a consumer of the group gets until they are enough. Any error ends it."""
    found: set[int] = set()
    with Client(url) as client, Consumer(client, group, TOPIC) as consumer:
        while not is_enough(found):
            found |= {json.loads(record.value or b"")["id"] for record in consumer.poll()}
            consumer.commit()
    return found


def partitions(ring: LocalRing, at: int) -> dict[int, dict[str, Any]]:
    topic = ring.call(at, "GET", f"/v1/topics/{TOPIC}")
    return {each["partition"]: each for each in topic["partitionDetails"]}


def problem_of(ring: LocalRing, at: int, path: str) -> dict[str, Any]:
    with pytest.raises(HTTPError) as caught:
        ring.call(at, "GET", path)
    with caught.value as error:
        return {"status": error.code, **json.loads(error.read())}


def stored_partitions(root: Path, topic_id: str) -> set[int]:
    """Of the topic on all disks."""
    places = root.glob(f"*/data/{topic_id}/*")
    return {int(each.name) for each in places if each.name.isdecimal()}


def test_sealed_ranges_leave_when_retention_has_taken_them(ring: LocalRing, tmp_path: Path) -> None:
    with Client(ring.brokers[0].url) as client:
        client.create_topic(TOPIC, partitions_per_range=2, retention_ms=RETENTION_MS)
    first = numbers_in(produce_many(ring, EVENTS))
    assert poll(ring.brokers[1].url, "early", lambda found: found == first) == first
    with (
        Client(ring.brokers[1].url) as client,
        Consumer(client, "away", TOPIC, max_records=10) as consumer,
    ):
        read_count = len(consumer.poll())
        consumer.commit()
    step_to(ring, LAST)
    ring.wait_ready()
    wait_copied(ring)
    later = numbers_in(produce_many(ring, EVENTS, first=EVENTS))
    before = partitions(ring, 0)
    sealed = {number for number, each in before.items() if each["state"] == "sealed"}
    assert sealed
    assert sealed_ranges(ring)
    command = [TAILRACE, "consume", TOPIC, "--from", "earliest", "-f", "--url", ring.brokers[2].url]
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as follower,
    ):
        try:
            for at in range(LAST):
                ring.until(lambda at=at: not sealed_ranges(ring, at=at), GONE_S_MAX)  # type: ignore[misc]
            assert follower.poll() is None
        finally:
            follower.kill()
    for at in range(LAST):
        assert partitions(ring, at).keys() == before.keys() - sealed
        path = f"/v1/topic/{TOPIC}/partitions/{min(sealed)}/records?offset=0"
        problem = problem_of(ring, at, path)
        assert (problem["status"], problem["retriable"]) == (404, False)
        assert "is gone" in problem["detail"]
    for at in range(LAST):  # the group had no consumers in any of the steps
        away = ring.call(at, "GET", "/v1/groups/away")
        assert away["lost"] >= len(first) - read_count
        assert away["lost"] + away["lag"] + read_count == len(first | later)
    topic_id = ring.call(0, "GET", f"/v1/topics/{TOPIC}")["id"]
    ring.until(lambda: not stored_partitions(tmp_path, topic_id) & sealed, WHOLE_S_MAX)
    last = numbers_in(produce_many(ring, EVENTS, first=2 * EVENTS))
    assert poll(ring.brokers[3].url, "early", lambda found: found >= last) <= last | later
    assert poll(ring.brokers[2].url, "late", lambda found: found >= last) <= last | later
    ring.kill(0)
    ring.brokers[0].start()
    ring.wait_ready(0)
    assert partitions(ring, 0).keys() == before.keys() - sealed
    notes = (tmp_path / "errors").read_text().splitlines()
    assert [each for each in notes if not each.startswith("note: ")] == []
