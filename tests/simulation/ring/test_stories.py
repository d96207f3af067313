"""Stories told by hand; how they go is in tests/golden/agreement, and seeds vary the moments."""

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.ring.chronicle import Chronicle
from tests.simulation.ring.scripts import bootstraps_of_any_size, two_wiped_voters, wiped_voter
from tests.simulation.ring.story import Story
from tests.simulation.ring.tale import tell

GOLDEN = Path(__file__).parents[2] / "golden" / "agreement"
STORIES = {"two_wiped_voters_of_a_ring": two_wiped_voters, "wiped_voter_of_a_ring": wiped_voter}
SEED_COUNT = 5
BOOTSTRAP_COUNT = 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STORIES)
def test_a_story_goes_as_it_went_before(name: str, pytestconfig: pytest.Config) -> None:
    chronicle = Chronicle()
    outcome = tell(STORIES[name](), chronicle)
    told = "\n".join(chronicle.lines) + "\n"
    path = GOLDEN / f"{name}.txt"
    if pytestconfig.getoption("rewrite"):
        path.write_text(told, encoding="utf-8")

    assert outcome.failure is None
    assert told == path.read_text(encoding="utf-8")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_well_at_whatever_moments(name: str) -> None:
    stories: list[Story] = [STORIES[name](seed) for seed in range(1, 1 + SEED_COUNT)]

    assert [tell(story).failure for story in stories] == [None] * SEED_COUNT


@pytest.mark.timeout(300)
def test_of_bootstraps_of_any_size_at_once_one_comes_to_be() -> None:
    told = [tell(bootstraps_of_any_size(seed)) for seed in range(BOOTSTRAP_COUNT)]

    assert [each.failure for each in told] == [None] * BOOTSTRAP_COUNT
    rules = sum((each.rules for each in told), Counter[str]())
    assert {"bootstrap.gave_way", "bootstrap.own_first", "bootstrap.vetoed"} <= rules.keys()


@pytest.mark.timeout(300)
def test_wiped_voters_are_told_that_there_is_a_ring() -> None:
    chronicle = Chronicle()
    tell(two_wiped_voters(), chronicle)

    assert "0/1 answers: ring-exists" in chronicle.lines
    assert "1/1 answers: ring-exists" in chronicle.lines
    assert sum("ring: of 3" in line for line in chronicle.lines) == 5  # three, then two let in
