"""A bad block or a removed file under what was acknowledged is never passed over in silence."""

from pathlib import Path

import pytest

from tests.simulation.crashes import SEEDS, Scenario


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_records_are_served_or_said_to_be_damaged(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).damage()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_records_are_served_or_said_to_be_missing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scenario(seed, tmp_path, monkeypatch).lose_files()
