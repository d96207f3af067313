"""Scenarios written by hand; their runs are in tests/golden/agreement, seeds vary the moments."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.ring.change_log import ChangeLog
from tests.simulation.ring.data.isolation import (
    all_cut_from_each_other,
    all_cut_one_by_one,
    frames_of_a_dead_leader,
    isolated_again_and_again,
    isolated_broker,
    others_recover,
    others_write_slowly,
    pair_cut,
)
from tests.simulation.ring.groups.scripts import (
    cut_off_coordinators,
    lost_answers,
    lost_answers_over_steps,
    lost_registrations,
)
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
from tests.simulation.ring.steps.scripts import (
    late_ends_of_a_dead_leader,
    late_ends_of_an_aborted_step,
    restored_during_a_copy,
    wiped_founder_of_a_grown_ring,
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
@pytest.mark.parametrize("scenario", [lost_answers, lost_registrations])
def test_what_is_lost_between_brokers_makes_no_group_skip_records(
    scenario: Callable[[int], Scenario],
) -> None:
    outcomes = [run(scenario(seed)) for seed in range(SEED_COUNT)]

    assert [outcome.failure for outcome in outcomes] == [None] * SEED_COUNT
    assert all(outcome.rules["groups.unknown"] for outcome in outcomes)


@pytest.mark.timeout(300)
def test_a_coordinator_that_is_cut_off_delivers_nothing_that_was_committed_elsewhere() -> None:
    outcomes = [run(cut_off_coordinators(seed)) for seed in range(SEED_COUNT)]

    assert [outcome.failure for outcome in outcomes] == [None] * SEED_COUNT


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "scenario",
    [late_ends_of_a_dead_leader, late_ends_of_an_aborted_step, restored_during_a_copy],
)
def test_what_is_committed_late_harms_no_sealed_range(scenario: Callable[[int], Scenario]) -> None:
    outcomes = [run(scenario(seed)) for seed in range(SEED_COUNT)]

    assert [outcome.failure for outcome in outcomes] == [None] * SEED_COUNT
    assert any(outcome.counts["step taken"] for outcome in outcomes)


@pytest.mark.timeout(300)
def test_who_has_lost_the_disk_that_a_ring_began_with_founds_no_other_one() -> None:
    outcomes = [run(wiped_founder_of_a_grown_ring(seed)) for seed in range(SEED_COUNT)]

    assert [outcome.failure for outcome in outcomes] == [None] * SEED_COUNT
    assert all(outcome.faults["disk wiped"] for outcome in outcomes)


@pytest.mark.timeout(300)
def test_children_answer_what_their_parents_have_stored() -> None:
    outcomes = [run(lost_answers_over_steps(seed)) for seed in range(SEED_COUNT)]

    assert [outcome.failure for outcome in outcomes] == [None] * SEED_COUNT
    assert all(outcome.rules["producers.inherited"] for outcome in outcomes)


@pytest.mark.timeout(300)
def test_what_a_dead_leader_has_sent_is_refused_by_who_follows_another() -> None:
    outcomes = [run(frames_of_a_dead_leader(seed)) for seed in range(SEED_COUNT)]

    assert [outcome.failure for outcome in outcomes] == [None] * SEED_COUNT
    assert any(outcome.rules["follower.ignored_session"] for outcome in outcomes)


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


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "scenario",
    [
        isolated_broker,
        isolated_again_and_again,
        others_recover,
        others_write_slowly,
        all_cut_from_each_other,
        all_cut_one_by_one,
        pair_cut,
    ],
)
def test_ranges_leave_a_leader_that_replication_does_not_hear(
    scenario: Callable[[int], Scenario],
) -> None:
    reported = [run(scenario(seed)) for seed in range(SEED_COUNT)]

    assert [each.failure for each in reported] == [None] * SEED_COUNT
