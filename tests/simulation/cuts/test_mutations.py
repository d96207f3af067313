"""Mutations of what cuts a log, one at a time: the simulation finds each, by the check for it."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace_broker.model.errors import TailraceError
from tests.simulation.cuts import mutations
from tests.simulation.cuts.mutations import Mutation
from tests.simulation.cuts.scenario import Scenario

DOCS = Path(__file__).parents[3] / "docs" / "simulation.md"
SEED_COUNT = 60

# What the checks say.
STALE = "should not be there"
LOST = "it ends at"
START = "it starts at"
DAMAGED = "is called damaged"
SEGMENTS = "begins below offset"
PRODUCERS = "producers are known by"


class Planted(NamedTuple):
    """A mutation, a seed that finds it, and what the check says that belongs to it.

    The seed saves time: where it does not find it any more, those after it may.
    """

    mutation: Mutation
    seed: int
    says: str


PLANTED = [
    Planted(mutations.cut_not_in_the_journal, 0, STALE),
    Planted(mutations.cut_without_a_successor_erases_nothing, 0, STALE),
    Planted(mutations.segment_read_beyond_the_next_one, 3, SEGMENTS),
    Planted(mutations.cut_answered_before_it_is_durable, 2, STALE),
    Planted(mutations.cut_answered_before_its_entry_is_written, 0, STALE),
    Planted(mutations.removal_of_segments_not_synced, 17, STALE),
    Planted(mutations.segments_removed_without_a_mark, 13, STALE),
    Planted(mutations.stale_end_of_a_segment_comes_back, 13, STALE),
    Planted(mutations.cut_before_its_segment_is_flushed, 10, DAMAGED),
    Planted(mutations.window_kept_after_a_cut, 0, PRODUCERS),
    Planted(mutations.checkpoint_kept_after_a_cut, 13, PRODUCERS),
    Planted(mutations.windows_learn_what_was_cut, 36, PRODUCERS),
    Planted(mutations.end_reported_with_a_write_in_flight, 0, LOST),
    Planted(mutations.flush_counts_what_was_written_since, 6, LOST),
    Planted(mutations.header_proves_after_a_loss_of_power, 40, DAMAGED),
    Planted(mutations.given_up_in_the_journal_proves_later, 458, DAMAGED),
    Planted(mutations.given_up_stays_unless_it_proves_a_loss, 297, STALE),
    Planted(mutations.log_start_falls, 5, START),
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
            Scenario(seed, directory, monkeypatch).run()
        except (AssertionError, TailraceError) as error:
            print(f"seed {seed}: {error}")
            if planted.says in str(error):
                return
    pytest.fail(f"{planted.mutation.__name__} was not found in {SEED_COUNT} seeds")


def test_the_docs_name_each_mutation_with_its_seed() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("\n## Cuts\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines()]
    named = [
        (name, seed.strip())
        for row in rows
        if len(row) == len(("", "rule", "check", "mutation", "seed", ""))
        for name, seed in zip(re.findall(r"`(\w+)`", row[3]), row[4].split(","), strict=False)
    ]

    assert sorted(named) == sorted((each.mutation.__name__, str(each.seed)) for each in PLANTED)
