"""Mutations of what cuts a log, one at a time: the simulation finds each."""

from pathlib import Path

import pytest

from tailrace_broker.model.errors import TailraceError
from tests.simulation.cuts import mutations
from tests.simulation.cuts.mutations import Mutation
from tests.simulation.cuts.scenario import Scenario

SEED_COUNT = 60

# Each with a seed that finds it, to save time: where it does not any more, those after it may.
PLANTED: list[tuple[Mutation, int]] = [
    (mutations.cut_not_in_the_journal, 0),
    (mutations.cut_without_a_successor_erases_nothing, 0),
    (mutations.segment_read_beyond_the_next_one, 0),
    (mutations.cut_answered_before_it_is_durable, 0),
    (mutations.cut_answered_before_its_entry_is_written, 0),
    (mutations.removal_of_segments_not_synced, 0),
    (mutations.segments_removed_without_a_mark, 51),
    (mutations.stale_end_of_a_segment_comes_back, 0),
    (mutations.cut_before_its_segment_is_flushed, 0),
    (mutations.window_kept_after_a_cut, 0),
    (mutations.checkpoint_kept_after_a_cut, 26),
    (mutations.windows_learn_what_was_cut, 82),
    (mutations.end_reported_with_a_write_in_flight, 0),
    (mutations.header_proves_after_a_loss_of_power, 0),
    (mutations.given_up_in_the_journal_proves_later, 348),
    (mutations.given_up_stays_unless_it_proves_a_loss, 79),
    (mutations.log_start_falls, 0),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutation", "first_seed"), PLANTED, ids=[mutation.__name__ for mutation, _ in PLANTED]
)
def test_a_mutation_is_found(
    mutation: Mutation, first_seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(first_seed, first_seed + SEED_COUNT):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            Scenario(seed, directory, monkeypatch).run()
        except (AssertionError, TailraceError) as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{mutation.__name__} was not found in {SEED_COUNT} seeds")
