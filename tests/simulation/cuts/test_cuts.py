"""A follower that is killed and loses power while it appends and cuts, under many seeds."""

from pathlib import Path

import pytest

from tests.simulation.cuts.scenario import SEEDS, Scenario


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_was_reported_is_lost_and_nothing_that_was_cut_comes_back(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).run()
