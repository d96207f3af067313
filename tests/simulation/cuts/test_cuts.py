"""A follower that is killed and loses power while it appends and cuts, under many seeds."""

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.cuts.scenario import SEEDS, Scenario

HALF_OF_THE_SEEDS = SEEDS[: len(SEEDS) // 2]
# So many scenarios show that all is drawn.
SEEDS_OF_ALL_DRAWS = 40


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_was_reported_is_lost_and_nothing_that_was_cut_comes_back(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).run()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", HALF_OF_THE_SEEDS)
def test_what_has_failed_is_not_reported_and_what_was_reported_is_there(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).run_in_trouble()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", HALF_OF_THE_SEEDS)
def test_a_flipped_bit_is_never_served_and_never_taken_for_a_cut_or_an_end(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).flip_a_bit()


@pytest.mark.timeout(300)
def test_every_trouble_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS_OF_ALL_DRAWS):
        for run in (Scenario.run_in_trouble, Scenario.flip_a_bit):
            directory = tmp_path / f"{run.__name__}-{seed}"
            directory.mkdir()
            scenario = Scenario(seed, directory, monkeypatch)
            run(scenario)
            counts += scenario.counts or Counter()

    print(counts)
    assert counts.keys() >= {
        *("ENOSPC with a batch under way", "ENOSPC with a cut under way"),
        *("EIO with a batch under way", "EIO with a cut under way"),
        *("failed appends", "failed cuts", "appends after half a cut"),
        *("bits of a log file", "bits of a journal file", "bits of a idx file"),
        *("reads that met damage", "logs without their end"),
        *("cuts: LogIsCut", "cuts: CutRefused"),
    }
