"""A topic's partitions per range change under load: nothing is lost, doubled or out of order.

`RING_RUNS=10` repeats each test with other seeds.
"""

import threading
from pathlib import Path

import pytest

from tests.support.ring.seeds import RUNS, seed_of
from tests.support.ring.stepped_ring import TOPIC, SteppedRing, stepped_ring

REQUESTS_MAX = 100  # between two changes
SLICED_S_MAX = 60.0
KILL_S_MAX = 0.6  # after a change was asked for: the first step begins within a tick

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("run", range(RUNS)),
]


def alter(subject: SteppedRing, count: int, *, at: int = 0) -> None:
    body = {"partitionsPerRange": count}
    subject.ring.call(at, "PATCH", f"/v1/topics/{TOPIC}", body)


def wait_sliced(subject: SteppedRing, count: int, *, at: int = 0) -> None:
    """Until the topic has so many partitions that take events in each range."""

    def is_sliced() -> bool:
        if not subject.ring.is_answered(at, "GET", f"/v1/topics/{TOPIC}"):
            return False
        topic = subject.ring.call(at, "GET", f"/v1/topics/{TOPIC}")
        opened = sum(each["state"] != "sealed" for each in topic["partitionDetails"])
        return bool(topic["rangesToSlice"] == 0 and opened == count * subject.size)

    subject.ring.until(is_sliced, SLICED_S_MAX)


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_topic_gets_more_and_fewer_partitions_under_load(
    tmp_path: Path, run: int, brokers: int
) -> None:
    """No request is refused: what comes during a step waits."""
    with stepped_ring(tmp_path, seed_of(run), first=brokers, most=brokers) as subject:
        for count in (4, 8, 2):
            alter(subject, count)
            wait_sliced(subject, count)
            subject.wait_for_requests(REQUESTS_MAX)
        refusals = {why for each in subject.producers() for why in each.retries} - {"no answer"}
        assert refusals == set()  # a busy machine may take long


@pytest.mark.parametrize("role", ["metadata", "any"])
def test_a_broker_that_is_killed_meanwhile_delays_it(tmp_path: Path, run: int, role: str) -> None:
    """Nobody asks again: what is wanted is in the topic's settings."""
    with stepped_ring(tmp_path, seed_of(run), first=3, most=3) as subject:
        for count in (4, 8, 2):
            victim = (
                subject.ring.metadata_leader()
                if role == "metadata"
                else subject.random.choice([0, 1, 2])
            )
            alter(subject, count, at=(victim + 1) % 3)
            threading.Event().wait(subject.random.uniform(0, KILL_S_MAX))
            subject.ring.kill(victim)
            subject.wait_for_requests(20)
            subject.ring.brokers[victim].start()
            wait_sliced(subject, count, at=(victim + 1) % 3)
            subject.wait_whole()
            subject.wait_for_requests(REQUESTS_MAX)


def test_a_change_of_mind_and_a_ring_that_grows_meanwhile(tmp_path: Path, run: int) -> None:
    """Whichever step comes first; what is wanted last is what there is."""
    with stepped_ring(tmp_path, seed_of(run), first=3, most=4) as subject:
        for count in (8, 1, 3):
            alter(subject, count)
            subject.wait_for_requests(REQUESTS_MAX // 5)
        subject.step("grow")
        wait_sliced(subject, 3)
        alter(subject, 5)
        subject.step("shrink")
        wait_sliced(subject, 5)
        subject.wait_whole()
