"""Bugs that are planted into the agreement, one at a time: the simulator finds each."""

import pytest

from tests.simulation.ring.plants import PLANTS, SEEDS_MAX, Plant, find
from tests.simulation.ring.plants_of_the_ring import (
    bootstrap_by_majority,
    bootstrap_decided_by_its_founder,
)
from tests.simulation.ring.scripts import bootstraps_of_any_size, two_wiped_voters
from tests.simulation.ring.tale import tell

BOOTSTRAP_COUNT = 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_every_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    assert find([PLANTS[plant], *range(SEEDS_MAX)]) is not None


@pytest.mark.timeout(300)
def test_a_bootstrap_by_majority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap_by_majority(monkeypatch)

    assert "two rings were founded" in str(tell(two_wiped_voters()).failure)


@pytest.mark.timeout(300)
def test_a_bootstrap_that_its_founder_decides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap_decided_by_its_founder(monkeypatch)
    failures = (tell(bootstraps_of_any_size(seed)).failure for seed in range(BOOTSTRAP_COUNT))

    assert any("two rings were founded" in str(failure) for failure in failures)
