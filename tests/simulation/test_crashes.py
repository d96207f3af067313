"""Killed processes and losses of power under many seeds: every promise is kept."""

from pathlib import Path

import pytest

from tests.simulation.crashes import SEEDS, Scenario


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_is_kept(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).run()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_is_kept_though_writes_fail(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).fail_writes()


@pytest.mark.timeout(300)
def test_a_seed_runs_the_same_scenario_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = []
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        scenario = Scenario(3, directory, monkeypatch)
        scenario.run()
        traces.append(scenario.trace)

    assert traces[0] == traces[1]
