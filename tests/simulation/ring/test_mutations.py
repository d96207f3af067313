"""Mutations of the agreement, one at a time: the simulator finds each."""

from collections.abc import Callable

import pytest

from tests.simulation.ring.mutations import DATA_MUTATIONS, MUTATIONS, SEEDS_MAX, Mutation, find
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

BOOTSTRAP_COUNT = 100
SUSPICION_COUNT = 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutation", "seed"),
    [*MUTATIONS.items(), *DATA_MUTATIONS.items()],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_mutation_is_found(
    mutation: Mutation, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)

    assert find(mutation, [seed, *range(SEEDS_MAX)]) is not None


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
    [
        (a_reset_alone_deposes, resets_alone, "and all was well"),
        (suspicion_right_after_the_own_start, restarts_of_one, "and all was well"),
        (damping_per_range, death_of_two_ranges, "counts as 2"),
    ],
)
def test_a_suspicion_without_reason_is_found(
    mutation: Mutation,
    scenario: Callable[[int], Scenario],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    failures = (run(scenario(seed)).failure for seed in range(SUSPICION_COUNT))

    assert any(what in str(failure) for failure in failures)
