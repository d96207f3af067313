"""Fixtures that tests of the storage engine share."""

from pathlib import Path

import pytest

from tests.support.storage.storage import FaultyDisk, LogFiles


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """A disk whose calls fail when a test wants it."""
    return FaultyDisk(monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    """The files of partitions in a directory of this test."""
    return LogFiles(tmp_path)
