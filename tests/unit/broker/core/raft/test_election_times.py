"""After a leader's death another one leads soon, whatever the schedule; in virtual time."""

import pytest

from tailrace_broker.core.raft.state import RaftState
from tests.support.raft.election_race import Death, Race
from tests.support.raft.raft_world import TIMING

SCHEDULE_COUNT = 60
SOON_MS = 500
SLOW_WRITE_US = (200_000, 400_000)

DEATHS = [
    pytest.param(Death(), id="of three"),
    pytest.param(Death(5), id="of five"),
    pytest.param(Death(is_early=True), id="as soon as it leads"),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("death", DEATHS)
def test_another_one_leads_soon(death: Death) -> None:
    slow = {seed: ms for seed in range(SCHEDULE_COUNT) if (ms := Race(seed, death).run()) > SOON_MS}

    assert slow == {}


@pytest.mark.timeout(20)
def test_a_voter_that_does_not_notice_it_is_waited_for_once() -> None:
    death = Death(is_asked_to_all=False)
    times_ms = [Race(seed, death).run() for seed in range(SCHEDULE_COUNT)]

    assert max(times_ms) <= TIMING.election_ms + SOON_MS
    assert max(times_ms) > SOON_MS  # nobody votes while it may hear a leader


@pytest.mark.timeout(20)
@pytest.mark.parametrize("voter_count", [3, 5])
def test_disks_that_are_slower_than_candidates_ask_again_cost_time_not_terms(
    voter_count: int,
) -> None:
    """A refusal comes before the votes that are being written: they are waited for as long."""
    death = Death(voter_count, write_us=SLOW_WRITE_US)
    races = [Race(seed, death) for seed in range(SCHEDULE_COUNT)]

    assert max(race.run() for race in races) <= 2 * TIMING.election_ms + SOON_MS
    assert max(race.term for race in races) <= 4


@pytest.mark.timeout(20)
def test_asking_only_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked first did so while the other one heard the leader, and then lets that one lose."""
    monkeypatch.setattr(RaftState, "retry_soon", lambda self, least_ms=0: None)

    assert any(Race(seed, Death()).run() > SOON_MS for seed in range(SCHEDULE_COUNT))
