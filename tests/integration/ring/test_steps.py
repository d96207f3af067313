"""A ring takes steps under load: nothing is lost, doubled or out of order over lineage.

`RING_RUNS=10` repeats each test with other seeds.
"""

import threading
from pathlib import Path

import pytest

from tests.support.ring.seeds import RUNS, seed_of
from tests.support.ring.stepped_ring import SteppedRing, segments_of, stepped_ring

REQUESTS_MAX = 150  # between two steps
SEGMENTS = 4
KILL_S_MAX = 0.15  # after a step was asked for: most take less

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("run", range(RUNS)),
]


def test_a_ring_grows_from_one_to_six_and_back_under_load(tmp_path: Path, run: int) -> None:
    """No request fails: what comes during a step waits."""
    with stepped_ring(tmp_path, seed_of(run), first=1, most=6) as subject:
        for kind in ["grow"] * 5 + ["shrink"] * 5:
            subject.step(kind)
            print(subject.last_step)
            subject.wait_for_requests(REQUESTS_MAX)
            subject.wait_whole()
        assert [each.retries for each in subject.producers() if each.retries] == []


def test_a_split_leaves_what_is_stored_where_it_is(tmp_path: Path, run: int) -> None:
    """Segments only grow, by what was in the journal."""
    with stepped_ring(tmp_path, seed_of(run), first=3, most=4) as subject:
        subject.ring.until(lambda: len(segments_of(subject, tmp_path)) >= SEGMENTS, 30.0)
        before = segments_of(subject, tmp_path)
        subject.step("grow")
        subject.wait_for_requests(REQUESTS_MAX)
        subject.ring.kill(0)
        subject.ring.brokers[0].start()
        subject.ring.wait_ready()
        subject.wait_whole()
        after = segments_of(subject, tmp_path)
        assert all(after[path].startswith(stored) for path, stored in before.items())


@pytest.mark.parametrize("role", ["leader", "joining", "metadata", "any"])
def test_a_participant_that_is_killed_in_a_step_loses_nothing(
    tmp_path: Path, run: int, role: str
) -> None:
    """The step is done or cancelled, and asked for again; events go on."""
    with stepped_ring(tmp_path, seed_of(run), first=3, most=5) as subject:
        while subject.size < 5:
            victim = victim_of(subject, role)
            asking = threading.Thread(target=subject.ask, args=("grow",), kwargs={"at": 1})
            asking.start()
            threading.Event().wait(subject.random.uniform(0, KILL_S_MAX))
            subject.ring.kill(victim)
            asking.join()
            subject.wait_for_requests(20)
            subject.ring.brokers[victim].start()
            subject.step("grow")
            subject.wait_for_requests(REQUESTS_MAX)
            subject.wait_whole()


def victim_of(subject: SteppedRing, role: str) -> int:
    """A broker that takes part in the next step, other than broker 1."""
    if role == "joining":
        return subject.size
    if role == "metadata":
        leader = subject.ring.metadata_leader()
        return leader if leader != 1 else 0
    if role == "leader":  # the ring grows at the ranges of these
        return {3: 0, 4: 2}[subject.size]
    return subject.random.choice([0, 2, subject.size])
