"""Brokers that keep three copies are killed, paused, wiped and restarted under load.

Every acknowledged event is there once, at its offset, in order; the replicas are the same, byte by
byte. `RING_RUNS=10` repeats each test with other seeds, `RING_PAUSE_S=30` pauses for longer.
"""

import json
import random
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from tailrace.errors import TailraceError
from tailrace.sync import Client
from tests.support.ring.local_ring import TEST_S_MAX, WHOLE_S_MAX, founded_ring
from tests.support.ring.replicated_ring import (
    REQUESTS_MAX,
    TOPIC,
    ReplicatedRing,
    replicated_ring,
)
from tests.support.ring.seeds import RUNS, seed_of
from tests.support.variables import whole_number

# Longer than any timeout between brokers; RING_PAUSE_S=30 is longer than a fenced broker's session.
PAUSE_S = whole_number("RING_PAUSE_S", 5, least=1, meaning="for how long, as in RING_PAUSE_S=30")
RESTORES = 5
EVENTS = 30  # in each partition, most likely
DELETED = "deleted"
RETENTION_MS = 1000

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(TEST_S_MAX),
    pytest.mark.parametrize("run", range(RUNS)),
]


def kill_and_start(subject: ReplicatedRing, ordinal: int) -> None:
    """Let the ring go on without the broker for a while."""
    subject.ring.kill(ordinal)
    subject.wait_for_requests(REQUESTS_MAX)
    subject.ring.brokers[ordinal].start()


def test_killed_leaders_lose_nothing(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        victim = None
        for _ in range(3):
            victim = subject.leader_of_some_range(but=victim)
            kill_and_start(subject, victim)
            if subject.random.random() < 0.5:  # else the next dies while this one comes back
                subject.ring.wait_whole()
            subject.wait_for_requests(REQUESTS_MAX)


def test_killed_brokers_lose_nothing_all_at_once(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        for _ in range(2):
            for ordinal in subject.random.sample(range(3), 3):
                subject.ring.kill(ordinal)
            subject.ring.start_all()
            subject.wait_for_requests(REQUESTS_MAX)


def test_a_paused_broker_acknowledges_nothing_that_is_not_there(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        leader = subject.leader_of_some_range()
        follower = subject.random.choice([each for each in range(3) if each != leader])
        for ordinal in leader, follower:
            subject.ring.pause(ordinal)
            Event().wait(PAUSE_S)
            subject.ring.resume(ordinal)
            subject.wait_for_requests(REQUESTS_MAX)
            subject.ring.wait_whole()


def test_a_wiped_broker_is_filled_again(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        ordinal = subject.random.randrange(3)
        subject.ring.kill(ordinal)
        subject.ring.wipe(ordinal)
        if subject.random.random() < 0.5:  # else it is back before others suspect it
            subject.wait_for_requests(REQUESTS_MAX)
        subject.ring.brokers[ordinal].start()
        subject.wait_for_requests(REQUESTS_MAX)


def test_a_rolling_restart_loses_nothing(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        for ordinal in subject.random.sample(range(3), 3):
            subject.ring.wait_whole()
            subject.wait_for_requests(REQUESTS_MAX)
            subject.ring.brokers[ordinal].stop()
            subject.wait_for_requests(REQUESTS_MAX)
            subject.ring.brokers[ordinal].start()


def test_a_topic_that_is_restored_takes_events_again(tmp_path: Path, run: int) -> None:
    """At once: a request waits for the answer no longer than any other."""
    chosen = random.Random(seed_of(run))
    with founded_ring(tmp_path) as ring, Client(ring.brokers[0].url) as client:
        ring.call(0, "POST", "/v1/topics", {"name": TOPIC})
        for turn in range(RESTORES + 1):
            if turn:
                ordinal = chosen.randrange(3)
                ring.call(ordinal, "DELETE", f"/v1/topics/{TOPIC}")
                ring.call(ordinal, "POST", f"/v1/trash/{TOPIC}/restore")
            for number in range(EVENTS):
                client.produce(TOPIC, b"%d" % number, key=f"k{number}")

        ends = [row.high_watermark for row in client.offsets([TOPIC])]
        assert sum(end or 0 for end in ends) == EVENTS * (RESTORES + 1)


def test_a_deleted_topic_is_restored_whole_by_whoever_was_wiped(tmp_path: Path, run: int) -> None:
    """Its replicas follow each other while it can be restored."""
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        ring = subject.ring
        ring.call(0, "POST", "/v1/topics", {"name": DELETED})
        with Client(ring.brokers[0].url) as client:
            for number in range(EVENTS):
                client.produce(DELETED, b"%d" % number, key=f"k{number}")
        wiped, lost, restarted = subject.random.sample(range(3), 3)
        if subject.random.random() < 0.5:  # else it applies the deletion, and loses its data then
            ring.kill(wiped)
        ring.call(lost, "DELETE", f"/v1/topics/{DELETED}")
        ring.kill(wiped)
        ring.wipe(wiped)
        ring.brokers[wiped].start()
        subject.ring.wait_whole()
        ring.kill(restarted)
        ring.brokers[restarted].start()
        subject.ring.wait_whole()
        ring.kill(lost)

        ring.until(
            lambda: ring.is_answered(wiped, "POST", f"/v1/trash/{DELETED}/restore"), WHOLE_S_MAX
        )
        assert values_of(subject, wiped) == [*range(EVENTS)]

        ring.brokers[lost].start()
        subject.ring.wait_whole()
        ring.call(wiped, "DELETE", f"/v1/topics/{DELETED}")
        ring.call(lost, "POST", f"/v1/trash/{DELETED}/restore")
        assert values_of(subject, lost) == [*range(EVENTS)]


def test_a_deleted_topic_goes_from_all_disks_in_time(tmp_path: Path, run: int) -> None:
    """The ring forgets it first: no broker removes what can be restored."""
    with founded_ring(tmp_path, copies=3, delete_retention_ms=RETENTION_MS) as ring:
        topic_id = ring.call(0, "POST", "/v1/topics", {"name": DELETED})["id"]
        with Client(ring.brokers[0].url) as client:
            for number in range(EVENTS):
                client.produce(DELETED, b"%d" % number, key=f"k{number}")

        ring.call(seed_of(run) % 3, "DELETE", f"/v1/topics/{DELETED}")
        assert [*tmp_path.glob(f"*/data/{topic_id}")]
        ring.until(lambda: is_gone(tmp_path, topic_id), WHOLE_S_MAX)
        assert ring.call(0, "GET", "/v1/trash") == {"topics": []}


def values_of(subject: ReplicatedRing, ordinal: int) -> list[int]:
    """Return all values of the topic in their order, once all are committed."""
    found: list[int] = []

    def is_read() -> bool:
        try:
            with Client(subject.ring.brokers[ordinal].url) as client:
                bodies = [
                    client.read_lines(DELETED, row.partition, 0, max_records=EVENTS).body
                    for row in client.offsets([DELETED])
                ]
        except TailraceError:
            return False
        lines = b"".join(bodies).splitlines()
        found[:] = sorted(json.loads(line)["value"] for line in lines)
        return len(found) == EVENTS

    subject.ring.until(is_read, WHOLE_S_MAX)
    return found


def is_gone(root: Path, topic_id: str) -> bool:
    """Whether no broker has a file of the topic; False too while some are being removed."""
    with suppress(FileNotFoundError):
        return not [*root.glob(f"*/data/**/{topic_id}*")]
    return False
