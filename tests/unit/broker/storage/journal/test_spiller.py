"""Pending tails of many logs, brought to their segments together."""

import asyncio
import errno

import pytest

from tailrace_broker.model.errors import DiskFullError, StorageFailedError, TailraceError
from tailrace_broker.storage.files import direct_file
from tailrace_broker.storage.journal import spiller
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.segments.writer import segment_path
from tests.support.storage.storage import (
    Appends,
    Engine,
    FaultyDisk,
    LogFiles,
    append_large,
    open_engine_on,
    values_in,
)

# Of the new file, and of its directory.
INVENTORY_SYNCS = 2


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> "Syncs":
    found = Syncs()
    monkeypatch.setattr(direct_file, "syncfs", found)
    return found


class Syncs:
    """Counts the syncs of the file system; the next fails when asked to."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False

    def __call__(self, fd: int) -> None:
        self.count += 1
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "input/output error")


async def spill_all(engine: Engine) -> TailraceError | None:
    ended: asyncio.Future[TailraceError | None] = asyncio.get_running_loop().create_future()
    logs = [log._tail for log in engine.logs]
    engine.resources.spiller.spill_all(logs, ended.set_result)
    return await ended


async def append_to(logs: list[PartitionLog]) -> None:
    for number, log in enumerate(logs):
        await Appends(log).event(b"%d" % number)


def pending_of(engine: Engine) -> list[bool]:
    return [log.pending_bytes > 0 for log in engine.logs]


async def test_many_logs_are_synced_at_once(
    files: LogFiles, disk: FaultyDisk, syncs: Syncs
) -> None:
    async with open_engine_on(files, partitions=range(5)) as engine:
        await append_to(engine.logs[:4])
        disk.calls.clear()
        assert await spill_all(engine) is None
        assert pending_of(engine) == [False] * 5
        assert (syncs.count, disk.calls["pwritev"]) == (1, 4)
        assert disk.calls["fsync"] == INVENTORY_SYNCS
    assert [files.place_of(each).directory.exists() for each in range(5)] == [True] * 4 + [False]


async def test_one_log_alone_is_synced_by_its_write(
    files: LogFiles, disk: FaultyDisk, syncs: Syncs
) -> None:
    """With the directories of its new file, and the inventory."""

    async with open_engine_on(files, partitions=range(2)) as engine:
        await append_to(engine.logs[:1])
        disk.calls.clear()
        assert await spill_all(engine) is None
        assert (syncs.count, disk.calls["pwritev"]) == (0, 1)
        assert disk.calls["fsync"] == 3 + INVENTORY_SYNCS


async def test_more_logs_than_a_group_takes_go_group_by_group(
    files: LogFiles, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spiller, "LOGS_MAX", 2)

    async with open_engine_on(files, partitions=range(6)) as engine:
        await append_to(engine.logs)
        first, second = await asyncio.gather(spill_all(engine), spill_all(engine))
        assert (first, second) == (None, None)
        assert pending_of(engine) == [False] * 6
        assert syncs.count == 3


async def test_what_could_not_be_synced_is_spilled_again(files: LogFiles, syncs: Syncs) -> None:
    async with open_engine_on(files, partitions=range(3)) as engine:
        await append_to(engine.logs)
        syncs.fails = True
        assert isinstance(await spill_all(engine), StorageFailedError)
        assert pending_of(engine) == [True] * 3
        assert [
            len(segment_path(files.place_of(each).directory, 0).read_bytes()) for each in range(3)
        ] == [0] * 3
        assert await spill_all(engine) is None
    async with open_engine_on(files, partitions=range(3)) as engine:
        assert [await values_in(log) for log in engine.logs] == [[b"0"], [b"1"], [b"2"]]


async def test_a_log_that_the_disk_does_not_take_keeps_nobody_else(
    files: LogFiles, disk: FaultyDisk, syncs: Syncs
) -> None:
    async with open_engine_on(files, partitions=range(3)) as engine:
        await append_to(engine.logs)
        disk.fail("pwritev", errno.ENOSPC, skipped=1)
        assert isinstance(await spill_all(engine), DiskFullError)
        assert engine.resources.io.full_at_s is not None
        assert pending_of(engine) == [False, True, False]
        assert [await values_in(log) for log in engine.logs] == [[b"0"], [b"1"], [b"2"]]


async def test_a_write_under_way_is_waited_for(
    files: LogFiles, disk: FaultyDisk, syncs: Syncs
) -> None:
    async with open_engine_on(files, partitions=range(2)) as engine:
        await append_to(engine.logs)
        disk.hold_writes()
        large = append_large(engine.logs[0])
        await disk.wait_for_held_write()
        spilled = asyncio.ensure_future(spill_all(engine))
        await asyncio.sleep(0)
        assert not spilled.done()
        disk.let_writes_go_on()
        assert await large == 1
        assert await spilled is None
        assert pending_of(engine) == [False, False]
