"""Killed processes and losses of power under many seeds: every promise is kept."""

from pathlib import Path

import pytest

from tests.simulation.crashes import SEEDS, Story


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_is_kept(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Story(seed, tmp_path, monkeypatch).tell()


@pytest.mark.timeout(300)
def test_a_seed_tells_the_same_story_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        story = Story(3, directory, monkeypatch)
        story.tell()
        traces.append(story.trace)

    assert traces[0] == traces[1]
