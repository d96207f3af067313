"""Mutations of what cuts a log, one at a time: the simulation finds each, by the check for it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace_broker.model.errors import TailraceError
from tests.simulation.cuts import mutations
from tests.simulation.cuts.mutations import Mutation
from tests.simulation.cuts.scenario import Scenario
from tests.support.docs.mutations import seeds_in_the_docs

SEED_COUNT = 60

# What the checks say.
STALE = "should not be there"
LOST = "it ends at"
START = "it starts at"
DAMAGED = "is called damaged"
SEGMENTS = "begins below offset"
PRODUCERS = "producers are known by"
NOT_THERE = "was acknowledged"
MEMORY = "14: "
SERVED = "a flipped bit is served"
END = "a flipped bit is its end"

in_trouble, with_a_flip = Scenario.run_in_trouble, Scenario.flip_a_bit


class Planted(NamedTuple):
    """A mutation, a seed that finds it, and what the check says that belongs to it.

    The seed saves time: where it does not find it any more, those after it may.
    """

    mutation: Mutation
    seed: int
    says: str
    run: Callable[[Scenario], None] = Scenario.run


PLANTED = [
    Planted(mutations.cut_not_in_the_journal, 0, STALE),
    Planted(mutations.cut_without_a_successor_erases_nothing, 0, STALE),
    Planted(mutations.segment_read_beyond_the_next_one, 0, SEGMENTS),
    Planted(mutations.cut_answered_before_it_is_durable, 4, STALE),
    Planted(mutations.cut_answered_before_its_entry_is_written, 0, STALE),
    Planted(mutations.removal_of_segments_not_synced, 17, STALE),
    Planted(mutations.segments_removed_without_a_mark, 29, DAMAGED),
    Planted(mutations.stale_end_of_a_segment_comes_back, 91, STALE),
    Planted(mutations.cut_before_its_segment_is_flushed, 3, DAMAGED),
    Planted(mutations.window_kept_after_a_cut, 0, PRODUCERS),
    Planted(mutations.checkpoint_kept_after_a_cut, 10, PRODUCERS),
    Planted(mutations.windows_learn_what_was_cut, 35, PRODUCERS),
    Planted(mutations.end_reported_with_a_write_in_flight, 0, LOST),
    Planted(mutations.flush_counts_what_was_written_since, 162, LOST),
    Planted(mutations.header_proves_after_a_loss_of_power, 19, DAMAGED),
    Planted(mutations.given_up_in_the_journal_proves_later, 206, DAMAGED),
    Planted(mutations.given_up_stays_unless_it_proves_a_loss, 1111, STALE),
    Planted(mutations.log_start_falls, 3, START),
    Planted(mutations.cut_batches_count_as_pending, 0, MEMORY),
    Planted(mutations.failed_write_acknowledged, 0, NOT_THERE, in_trouble),
    Planted(mutations.leftovers_of_a_failed_write_kept, 26, STALE, in_trouble),
    Planted(mutations.failed_write_left_behind_a_cut, 159, STALE, in_trouble),
    Planted(mutations.failed_cut_reported, 0, STALE, in_trouble),
    Planted(mutations.appends_taken_after_half_a_cut, 26, STALE, in_trouble),
    Planted(mutations.failed_write_keeps_its_buffer, 1, MEMORY, in_trouble),
    Planted(mutations.damage_taken_for_the_end, 4, END, with_a_flip),
    Planted(mutations.payloads_not_verified, 3, SERVED, with_a_flip),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.mutation.__name__)
def test_a_mutation_is_found_by_the_check_for_it(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.mutation(monkeypatch)
    for seed in range(planted.seed, planted.seed + SEED_COUNT):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            planted.run(Scenario(seed, directory, monkeypatch))
        except (AssertionError, TailraceError) as error:
            print(f"seed {seed}: {error}")
            if planted.says in str(error):
                return
    pytest.fail(f"{planted.mutation.__name__} was not found in {SEED_COUNT} seeds")


def test_the_docs_name_each_mutation_with_its_seed() -> None:
    planted = {each.mutation.__name__: str(each.seed) for each in PLANTED}

    assert seeds_in_the_docs("Cuts") == planted
