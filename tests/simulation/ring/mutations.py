"""`python -m tests.simulation.ring.mutations`: which seed finds each bug that is put in.

A rule whose bug is not found is a rule that no scenario needs: the scenarios are too tame for it.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from tests.simulation.ring import mutations_of_raft, mutations_of_the_ring
from tests.simulation.ring.data import mutations as mutations_of_replicas
from tests.simulation.ring.groups import mutations as mutations_of_groups
from tests.simulation.ring.groups import mutations_of_steps as mutations_of_group_steps
from tests.simulation.ring.many import FORKED, tell_seed
from tests.simulation.ring.run import Outcome
from tests.simulation.ring.scenario import (
    Scenario,
    make_data_scenario,
    make_group_scenario,
    make_metadata_scenario,
    make_step_group_scenario,
    make_step_scenario,
)
from tests.simulation.ring.steps import mutations as mutations_of_steps

Mutation = Callable[[pytest.MonkeyPatch], None]

SEEDS_MAX = 400
# By bug a seed that finds it; when it does so no more, another will, and `main` says which.
# Of scenarios of the metadata alone, and of those with data.
MUTATIONS: dict[Mutation, int] = {
    mutations_of_raft.vote_not_synced: 13,
    mutations_of_raft.term_not_kept: 1,
    mutations_of_raft.own_term_commit_rule_off: 94,
    mutations_of_raft.commit_by_height_instead_of_block: 1,
    mutations_of_raft.voters_changed_at_once: 2,
    mutations_of_raft.only_next_voters_count: 10,
    mutations_of_raft.promise_from_an_uncommitted_block: 26,
    mutations_of_raft.promise_not_synced: 3,
    mutations_of_raft.leader_counts_its_unfinished_write: 14,
    mutations_of_raft.follower_answers_before_its_write: 1,
    mutations_of_raft.head_is_commit_at_restart: 3,
    mutations_of_raft.stale_leaders_accepted: 2,
    mutations_of_raft.votes_counted_by_ordinal: 49,
    mutations_of_raft.vote_compared_with_commit: 238,
    mutations_of_the_ring.reads_answered_at_once: 22,
    mutations_of_the_ring.leader_resumes_its_epoch: 1,
    mutations_of_the_ring.class_of_the_last_start_only: 10,
    mutations_of_the_ring.power_loss_stays_in_the_isr: 1,
    mutations_of_the_ring.older_process_not_fenced: 1,
    mutations_of_the_ring.commands_done_twice: 27,
    mutations_of_the_ring.leads_before_its_logs_are_recovered: 8,
    mutations_of_the_ring.stalled_data_passes_for_alive: 0,
}
DATA_MUTATIONS: dict[Mutation, int] = {
    mutations_of_replicas.wiped_replica_stays_in_the_isr: 0,
    mutations_of_replicas.pending_members_not_counted: 45,
    mutations_of_replicas.admission_at_a_stale_high_watermark: 0,
    mutations_of_replicas.admission_by_written_ends: 16,
    mutations_of_replicas.high_watermark_moves_below_min_isr: 0,
    mutations_of_replicas.counts_members_that_have_not_reported: 0,
    mutations_of_replicas.ends_counted_as_written: 0,
    mutations_of_replicas.end_reported_before_the_cut: 10,
    mutations_of_replicas.no_cut: 10,
    mutations_of_replicas.cut_at_the_end_of_the_last_epoch: 91,
    mutations_of_replicas.takeover_needs_min_isr: 0,
    mutations_of_replicas.the_floor_counts_ghosts: 7,
    mutations_of_replicas.floor_off: 0,
    mutations_of_replicas.log_start_falls_at_a_failover: 0,
    mutations_of_replicas.any_ghost_leads: 11,
    mutations_of_replicas.a_ghost_leads_beside_a_whole_member: 31,
    mutations_of_replicas.loss_is_not_recorded: 20,
    mutations_of_replicas.leader_counts_what_it_has_not_flushed: 0,
    mutations_of_replicas.leader_sends_before_its_write_and_reuses_offsets: 20,
    mutations_of_replicas.own_writes_not_waited_for: 78,
    mutations_of_replicas.leads_before_its_logs_are_idle: 21,
    mutations_of_replicas.trash_purged_by_one_replica: 8,
    mutations_of_replicas.set_aside_forgotten_by_a_crash: 55,
    mutations_of_replicas.appends_though_it_holds_appends: 0,
    mutations_of_replicas.hands_over_what_is_not_committed: 5,
    mutations_of_replicas.a_leader_is_sure_of_its_lead: 104,
}
# Of scenarios in which consumers read in groups.
GROUP_MUTATIONS: dict[Mutation, int] = {
    mutations_of_groups.commit_without_delivery_number: 0,
    mutations_of_groups.deliveries_numbered_by_each_coordinator: 0,
    mutations_of_groups.latest_re_evaluated_after_failover: 0,
    mutations_of_groups.position_moved_back_by_a_lagging_high_watermark: 1,
    mutations_of_groups.coordinates_before_the_end_is_known: 17,
    mutations_of_groups.answers_before_it_is_stored: 45,
    mutations_of_groups.joins_before_it_is_stored: 2,
    mutations_of_groups.stale_assignments_accepted: 0,
    mutations_of_groups.partitions_move_with_open_deliveries: 0,
    mutations_of_groups.lost_records_are_not_counted: 0,
    mutations_of_groups.dedup_by_last_sequence: 0,
    mutations_of_groups.duplicate_answered_above_the_high_watermark: 3,
    mutations_of_groups.late_sequences_are_new: 6,
}
# Of scenarios of rings that change their size.
STEP_MUTATIONS: dict[Mutation, int] = {
    mutations_of_steps.sealed_before_all_is_committed: 0,
    mutations_of_steps.sealed_before_it_is_flushed: 7,
    mutations_of_steps.reopened_after_an_unknown_answer: 15,
    mutations_of_steps.appends_go_on_after_an_abort_in_the_same_epoch: 2,
    mutations_of_steps.bystander_range_not_continued: 0,
    mutations_of_steps.children_begin_at_the_smallest_end: 2,
    mutations_of_steps.sealed_copy_dropped_before_enough_are_whole: 2,
    mutations_of_steps.sealed_copies_trimmed_by_the_clock_of_each_holder: 2,
}
# Of scenarios in which the ring changes its size under these.
GROUP_STEP_MUTATIONS: dict[Mutation, int] = {
    mutations_of_group_steps.child_served_before_its_second_parent: 16,
    mutations_of_group_steps.child_served_beside_its_parents: 4,
    mutations_of_group_steps.child_of_groups_answers_before_its_snapshot: 4,
    mutations_of_group_steps.groups_of_one_parent_only: 4,
    mutations_of_group_steps.coordinator_outlives_its_partition: 12,
    mutations_of_group_steps.children_begin_at_latest: 4,
}
ALL_MUTATIONS = {
    **MUTATIONS,
    **DATA_MUTATIONS,
    **GROUP_MUTATIONS,
    **STEP_MUTATIONS,
    **GROUP_STEP_MUTATIONS,
}


def maker_of(mutation: Mutation) -> Callable[[int], Scenario]:
    """Return what makes the scenarios that its seed is of."""
    if mutation in GROUP_STEP_MUTATIONS:
        return make_step_group_scenario
    if mutation in STEP_MUTATIONS:
        return make_step_scenario
    if mutation in GROUP_MUTATIONS:
        return make_group_scenario
    return make_data_scenario if mutation in DATA_MUTATIONS else make_metadata_scenario


def find(mutation: Mutation, seeds: Iterable[int]) -> Outcome | None:
    """The first scenario that fails, of those seeds in their order."""
    with FORKED.Pool() as pool:
        reported = pool.imap(partial(tell_seed, make=maker_of(mutation)), seeds)
        return next((outcome for outcome in reported if outcome.failure is not None), None)


def main(names: list[str]) -> int:
    """0 when every bug was found; `names`: of these alone."""
    missed = 0
    for mutation, seed in ALL_MUTATIONS.items():
        if names and mutation.__name__ not in names:
            continue
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            found: Outcome | None = tell_seed(seed, maker_of(mutation))
            if found is None or found.failure is None:
                found = find(mutation, range(SEEDS_MAX))
        missed += found is None
        what = f"NOT FOUND in {SEEDS_MAX}"
        if found is not None:
            what = f"{found.seed:4}" if found.seed == seed else f"{found.seed:4}, no more {seed}"
        print(f"{mutation.__name__:48} {what}  {found.failure if found else ''}"[:160], flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
