"""`python -m tests.simulation.ring.plants`: how many seeds each planted bug needs to be found.

A rule whose bug is not found is a rule that no story needs: the stories are too tame for it.
"""

import sys
from collections.abc import Callable, Iterable

import pytest

from tests.simulation.ring import plants_of_raft, plants_of_the_ring
from tests.simulation.ring.many import FORKED, tell_seed
from tests.simulation.ring.tale import Outcome

Plant = Callable[[pytest.MonkeyPatch], None]

SEEDS_MAX = 400
# By bug a seed that finds it; when it does so no more, another will. `main` tells the first.
PLANTS: dict[Plant, int] = {
    plants_of_raft.vote_not_synced: 81,
    plants_of_raft.term_not_kept: 0,
    plants_of_raft.own_term_commit_rule_off: 32,
    plants_of_raft.commit_by_height_instead_of_block: 3,
    plants_of_raft.voters_changed_at_once: 9,
    plants_of_raft.only_next_voters_count: 37,
    plants_of_raft.promise_from_an_uncommitted_block: 26,
    plants_of_raft.promise_not_synced: 3,
    plants_of_raft.leader_counts_its_unfinished_write: 53,
    plants_of_raft.follower_answers_before_its_write: 1,
    plants_of_raft.head_is_commit_at_restart: 28,
    plants_of_raft.stale_leaders_accepted: 24,
    plants_of_raft.votes_counted_by_ordinal: 9,
    plants_of_raft.vote_compared_with_commit: 98,
    plants_of_the_ring.reads_answered_at_once: 43,
    plants_of_the_ring.leader_resumes_its_epoch: 0,
    plants_of_the_ring.class_of_the_last_start_only: 10,
    plants_of_the_ring.power_loss_stays_in_the_isr: 3,
    plants_of_the_ring.older_process_not_fenced: 0,
    plants_of_the_ring.commands_done_twice: 43,
}


def find(seeds: Iterable[int]) -> Outcome | None:
    """The first story that fails, of those seeds in their order."""
    with FORKED.Pool() as pool:
        told = pool.imap(tell_seed, seeds)
        return next((outcome for outcome in told if outcome.failure is not None), None)


def main(names: list[str]) -> int:
    """0 when every bug was found; `names`: of these alone."""
    missed = 0
    for plant in PLANTS:
        if names and plant.__name__ not in names:
            continue
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = find(range(SEEDS_MAX))
        missed += found is None
        what = f"NOT FOUND in {SEEDS_MAX}" if found is None else f"{found.seed + 1:4}"
        print(f"{plant.__name__:36} {what}  {found.failure if found else ''}"[:160], flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
