"""Scenarios written by hand; their runs are in tests/golden/agreement, seeds vary the moments."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.ring.change_log import ChangeLog
from tests.simulation.ring.run import run
from tests.simulation.ring.scenario import Scenario
from tests.simulation.ring.scripts import (
    bootstraps_of_any_size,
    death_of_two_ranges,
    resets_alone,
    restarts_of_one,
    two_wiped_voters,
    wiped_voter,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "agreement"
SCENARIOS = {"two_wiped_voters_of_a_ring": two_wiped_voters, "wiped_voter_of_a_ring": wiped_voter}
SEED_COUNT = 5
BOOTSTRAP_COUNT = 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_goes_as_it_went_before(name: str, pytestconfig: pytest.Config) -> None:
    change_log = ChangeLog()
    outcome = run(SCENARIOS[name](), change_log)
    reported = "\n".join(change_log.lines) + "\n"
    path = GOLDEN / f"{name}.txt"
    if pytestconfig.getoption("rewrite"):
        path.write_text(reported, encoding="utf-8")

    assert outcome.failure is None
    assert reported == path.read_text(encoding="utf-8")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_well_at_whatever_moments(name: str) -> None:
    scenarios: list[Scenario] = [SCENARIOS[name](seed) for seed in range(1, 1 + SEED_COUNT)]

    assert [run(scenario).failure for scenario in scenarios] == [None] * SEED_COUNT


@pytest.mark.timeout(300)
def test_of_bootstraps_of_any_size_at_once_one_comes_to_be() -> None:
    reported = [run(bootstraps_of_any_size(seed)) for seed in range(BOOTSTRAP_COUNT)]

    assert [each.failure for each in reported] == [None] * BOOTSTRAP_COUNT
    rules = sum((each.rules for each in reported), Counter[str]())
    assert {"bootstrap.gave_way", "bootstrap.own_first", "bootstrap.vetoed"} <= rules.keys()


@pytest.mark.timeout(300)
def test_wiped_voters_are_reported_that_there_is_a_ring() -> None:
    change_log = ChangeLog()
    run(two_wiped_voters(), change_log)

    assert "0/1 answers: ring-exists" in change_log.lines
    assert "1/1 answers: ring-exists" in change_log.lines
    assert sum("ring: of 3" in line for line in change_log.lines) == 5  # three, then two let in


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", [resets_alone, restarts_of_one, death_of_two_ranges])
def test_only_the_dead_are_taken_for_dead(scenario: Callable[[int], Scenario]) -> None:
    reported = [run(scenario(seed)) for seed in range(SEED_COUNT)]

    assert [each.failure for each in reported] == [None] * SEED_COUNT
