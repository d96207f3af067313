"""`python -m tests.simulation.ring.mutations`: how many seeds each put in bug needs to be found.

A rule whose bug is not found is a rule that no scenario needs: the scenarios are too tame for it.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from tests.simulation.ring import mutations_of_raft, mutations_of_the_ring
from tests.simulation.ring.data import mutations as mutations_of_replicas
from tests.simulation.ring.many import FORKED, tell_seed
from tests.simulation.ring.run import Outcome
from tests.simulation.ring.scenario import make_data_scenario, make_metadata_scenario

Mutation = Callable[[pytest.MonkeyPatch], None]

SEEDS_MAX = 400
# By bug a seed that finds it; when it does so no more, another will. `main` tells the first.
# Of scenarios of the metadata alone, and of those with data.
MUTATIONS: dict[Mutation, int] = {
    mutations_of_raft.vote_not_synced: 6,
    mutations_of_raft.term_not_kept: 0,
    mutations_of_raft.own_term_commit_rule_off: 4,
    mutations_of_raft.commit_by_height_instead_of_block: 0,
    mutations_of_raft.voters_changed_at_once: 9,
    mutations_of_raft.only_next_voters_count: 41,
    mutations_of_raft.promise_from_an_uncommitted_block: 26,
    mutations_of_raft.promise_not_synced: 0,
    mutations_of_raft.leader_counts_its_unfinished_write: 8,
    mutations_of_raft.follower_answers_before_its_write: 1,
    mutations_of_raft.head_is_commit_at_restart: 8,
    mutations_of_raft.stale_leaders_accepted: 2,
    mutations_of_raft.votes_counted_by_ordinal: 29,
    mutations_of_raft.vote_compared_with_commit: 239,
    mutations_of_the_ring.reads_answered_at_once: 13,
    mutations_of_the_ring.leader_resumes_its_epoch: 0,
    mutations_of_the_ring.class_of_the_last_start_only: 10,
    mutations_of_the_ring.power_loss_stays_in_the_isr: 0,
    mutations_of_the_ring.older_process_not_fenced: 0,
    mutations_of_the_ring.commands_done_twice: 7,
    mutations_of_the_ring.leads_before_its_logs_are_recovered: 0,
    mutations_of_the_ring.stalled_data_passes_for_alive: 0,
}
DATA_MUTATIONS: dict[Mutation, int] = {
    mutations_of_replicas.wiped_replica_stays_in_the_isr: 0,
    mutations_of_replicas.pending_members_not_counted: 4,
    mutations_of_replicas.admission_at_a_stale_high_watermark: 0,
    mutations_of_replicas.admission_by_written_ends: 3,
    mutations_of_replicas.high_watermark_moves_below_min_isr: 0,
    mutations_of_replicas.counts_members_that_have_not_reported: 0,
    mutations_of_replicas.ends_counted_as_written: 0,
    mutations_of_replicas.end_reported_before_the_cut: 0,
    mutations_of_replicas.epoch_checks_off: 74,
    mutations_of_replicas.no_cut: 7,
    mutations_of_replicas.cut_at_the_end_of_the_last_epoch: 127,
    mutations_of_replicas.takeover_needs_min_isr: 0,
    mutations_of_replicas.the_floor_counts_ghosts: 1,
    mutations_of_replicas.floor_off: 0,
    mutations_of_replicas.log_start_falls_at_a_failover: 0,
    mutations_of_replicas.any_ghost_leads: 5,
    mutations_of_replicas.a_ghost_leads_beside_a_whole_member: 0,
    mutations_of_replicas.loss_is_not_recorded: 11,
    mutations_of_replicas.leader_counts_what_it_has_not_flushed: 0,
    mutations_of_replicas.leader_sends_before_its_write_and_reuses_offsets: 6,
    mutations_of_replicas.own_writes_not_waited_for: 9,
    mutations_of_replicas.leads_before_its_logs_are_idle: 21,
    mutations_of_replicas.trash_purged_by_one_replica: 8,
    mutations_of_replicas.set_aside_forgotten_by_a_crash: 38,
    mutations_of_replicas.appends_though_it_holds_appends: 0,
    mutations_of_replicas.hands_over_what_is_not_committed: 1,
}


def find(mutation: Mutation, seeds: Iterable[int]) -> Outcome | None:
    """The first scenario that fails, of those seeds in their order."""
    make = make_data_scenario if mutation in DATA_MUTATIONS else make_metadata_scenario
    with FORKED.Pool() as pool:
        reported = pool.imap(partial(tell_seed, make=make), seeds)
        return next((outcome for outcome in reported if outcome.failure is not None), None)


def main(names: list[str]) -> int:
    """0 when every bug was found; `names`: of these alone."""
    missed = 0
    for mutation in {**MUTATIONS, **DATA_MUTATIONS}:
        if names and mutation.__name__ not in names:
            continue
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            found = find(mutation, range(SEEDS_MAX))
        missed += found is None
        what = f"NOT FOUND in {SEEDS_MAX}" if found is None else f"{found.seed + 1:4}"
        print(f"{mutation.__name__:36} {what}  {found.failure if found else ''}"[:160], flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
