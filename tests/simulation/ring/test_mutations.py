"""Mutations of the agreement, one at a time: the simulator finds each."""

from collections.abc import Callable

import pytest

from tests.simulation.ring.data.isolation import (
    all_cut_from_each_other,
    frames_of_a_dead_leader,
    isolated_broker,
    others_recover,
    others_write_slowly,
)
from tests.simulation.ring.data.mutations import (
    an_isolated_leader_is_not_let_go,
    an_isolated_leader_stays,
    busy_followers_say_nothing,
    epoch_checks_off,
    isolated_brokers_pass_for_fit,
    recovering_brokers_pass_for_heard,
)
from tests.simulation.ring.groups.mutations import (
    delivers_without_a_proof,
    registration_lets_go_when_cancelled,
    router_repeats_blindly,
)
from tests.simulation.ring.groups.mutations_of_steps import (
    windows_not_handed_to_children,
    windows_of_one_parent_only,
)
from tests.simulation.ring.groups.scripts import (
    cut_off_coordinators,
    lost_answers,
    lost_answers_over_steps,
    lost_registrations,
)
from tests.simulation.ring.many import tell_seed
from tests.simulation.ring.mutations import (
    ALL_MUTATIONS,
    SEEDS_MAX,
    Mutation,
    find,
    maker_of,
)
from tests.simulation.ring.mutations_of_the_ring import (
    a_reset_alone_deposes,
    bootstrap_by_majority,
    bootstrap_decided_by_its_founder,
    damping_per_range,
    suspicion_right_after_the_own_start,
)
from tests.simulation.ring.run import run
from tests.simulation.ring.scenario import Scenario
from tests.simulation.ring.scripts import (
    bootstraps_of_any_size,
    death_of_two_ranges,
    resets_alone,
    restarts_of_one,
    two_wiped_voters,
)
from tests.simulation.ring.steps.mutations import (
    copies_lack_a_restored_topic,
    ends_of_a_wrong_epoch_accepted,
    late_commit_after_reopen,
)
from tests.simulation.ring.steps.scripts import (
    late_ends_of_a_dead_leader,
    late_ends_of_an_aborted_step,
    restored_during_a_copy,
)
from tests.support.docs.mutations import seeds_in_the_docs

BOOTSTRAP_COUNT = 100
SCENARIO_COUNT = 20
# By a mutation the scenario that finds it, and what its violation says.
BY_HAND: list[tuple[Mutation, Callable[[int], Scenario], str]] = [
    (a_reset_alone_deposes, resets_alone, "and all was well"),
    (suspicion_right_after_the_own_start, restarts_of_one, "and all was well"),
    (damping_per_range, death_of_two_ranges, "counts as 2"),
    (epoch_checks_off, frames_of_a_dead_leader, "2: "),
    (an_isolated_leader_stays, isolated_broker, "which nobody hears"),
    (an_isolated_leader_is_not_let_go, isolated_broker, "which nobody hears"),
    (recovering_brokers_pass_for_heard, others_recover, "another broker came to lead"),
    (busy_followers_say_nothing, others_write_slowly, "another broker came to lead"),
    (isolated_brokers_pass_for_fit, all_cut_from_each_other, "another broker came to lead"),
    (ends_of_a_wrong_epoch_accepted, late_ends_of_a_dead_leader, "9: "),
    (late_commit_after_reopen, late_ends_of_an_aborted_step, "9: "),
    (copies_lack_a_restored_topic, restored_during_a_copy, "9: "),
    (router_repeats_blindly, lost_answers, "it has dealt with"),
    (windows_not_handed_to_children, lost_answers_over_steps, "10: "),
    (windows_of_one_parent_only, lost_answers_over_steps, "10: "),
    (registration_lets_go_when_cancelled, lost_registrations, "7: a snapshot"),
    (delivers_without_a_proof, cut_off_coordinators, "was committed"),
]


def test_the_docs_name_each_mutation_with_its_seed() -> None:
    named = seeds_in_the_docs()
    listed = {each.__name__: str(seed) for each, seed in ALL_MUTATIONS.items()}

    assert {name: named[name] for name in listed if name in named} == listed
    for mutation, _, _ in BY_HAND:
        assert "script" in named[mutation.__name__], mutation


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutation", "seed"),
    ALL_MUTATIONS.items(),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_mutation_is_found(
    mutation: Mutation, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)

    is_found = tell_seed(seed, maker_of(mutation)).failure is not None

    assert is_found or find(mutation, range(SEEDS_MAX)) is not None


@pytest.mark.timeout(300)
def test_a_bootstrap_by_majority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap_by_majority(monkeypatch)

    assert "two rings were founded" in str(run(two_wiped_voters()).failure)


@pytest.mark.timeout(300)
def test_a_bootstrap_that_its_founder_decides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap_decided_by_its_founder(monkeypatch)
    failures = (run(bootstraps_of_any_size(seed)).failure for seed in range(BOOTSTRAP_COUNT))

    assert any("two rings were founded" in str(failure) for failure in failures)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutation", "scenario", "what"),
    BY_HAND,
)
def test_a_mutation_is_found_in_a_scenario_written_by_hand(
    mutation: Mutation,
    scenario: Callable[[int], Scenario],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    failures = (run(scenario(seed)).failure for seed in range(SCENARIO_COUNT))

    assert any(what in str(failure) for failure in failures)
