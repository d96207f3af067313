"""How a replica's log is cut if the disk refuses it at first, or the log is not what it was."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.model.replication import LogCut, LogKey
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics import replica_cuts
from tailrace_broker.topics.replica_cuts import ReplicaCuts
from tests.support.storage.followers import Follower, follow, on_a_loop, stored_batch
from tests.support.storage.storage import FaultyDisk, LogFiles
from tests.support.waits import until

RETRY_SECONDS = 0.001


class World:
    """A broker; `open` is its log of the partition in question."""

    def __init__(self, log: PartitionLog) -> None:
        self.open: PartitionLog | None = log
        self.cut: list[LogKey] = []
        self.damaged: list[LogPlace] = []
        self.cuts = ReplicaCuts(self._log_of, self.cut.append, self.damaged.append)
        self.looks = 0  # for the log that is open
        self._key = log.place.key

    def _log_of(self, _: LogKey) -> PartitionLog | None:
        self.looks += 1
        return self.open

    def begin(self, end: int) -> None:
        self.cuts.begin(LogCut(self._key, end, 1, False, 0, 0))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """A disk whose calls fail when a test wants it; a cut is tried again soon."""
    monkeypatch.setattr(replica_cuts, "RETRY_SECONDS", RETRY_SECONDS)
    return FaultyDisk(monkeypatch)


@asynccontextmanager
async def written(directory: Path) -> AsyncIterator[PartitionLog]:
    """A log of two batches, up to offset 10."""
    async with follow(_files_in(directory)) as engine:
        for offset in (0, 5):
            values = [b"%d" % each for each in range(offset, offset + 5)]
            await Follower(engine.logs[0]).write(stored_batch(values, offset))
        yield engine.logs[0]


def _files_in(directory: Path) -> LogFiles:
    directory.mkdir()
    return LogFiles(directory)


@on_a_loop
async def test_a_cut_that_the_disk_refuses_is_tried_again(tmp_path: Path, disk: FaultyDisk) -> None:
    async with written(tmp_path / "log") as log:
        world = World(log)
        disk.fail("pwritev")
        world.begin(5)
        await until(lambda: bool(world.cut))

        assert world.cut == [log.place.key]
        assert log.log_end == 5
        assert world.damaged == []


@on_a_loop
async def test_a_log_that_was_opened_since_is_not_cut_for_the_one_before(
    tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set aside and fetched again: what it has reported since counts."""
    cut, begun = PartitionLog.cut, list[PartitionLog]()

    def note(log: PartitionLog, *args: Any, **options: Any) -> None:
        begun.append(log)
        cut(log, *args, **options)

    monkeypatch.setattr(PartitionLog, "cut", note)
    async with written(tmp_path / "log") as log, written(tmp_path / "next") as following:
        world = World(log)
        disk.fail("pwritev")
        world.begin(5)
        looks = world.looks
        world.open = following
        await until(lambda: world.looks > looks)  # it would be tried again

        assert begun == [log]
        assert (log.log_end, following.log_end) == (10, 10)
        assert world.cut == []


@on_a_loop
async def test_a_log_without_a_batch_that_ends_there_is_damaged(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with written(tmp_path / "log") as log:
        world = World(log)
        world.begin(7)
        await until(lambda: bool(world.damaged))

        assert world.damaged == [log.place]
        assert (log.log_end, world.cut) == (10, [])


@on_a_loop
async def test_nothing_is_cut_of_a_log_that_is_not_open_or_at_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    async with written(tmp_path / "log") as log:
        monkeypatch.setattr(PartitionLog, "cut", lambda *args, **_: begun.append(args))
        world = World(log)
        world.open = None
        world.begin(5)
        world.open = log
        world.cuts.stop()
        world.begin(5)

        assert (begun, world.cut, world.damaged) == ([], [], [])
