"""Cuts of logs in the journal at the end of a recovery."""

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest

from tailrace_broker.codec.journal import JournalCut
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import StorageFailedError
from tailrace_broker.storage.files import room
from tailrace_broker.storage.files.room import when_there_is_room
from tailrace_broker.storage.journal.cuts import CUTS_OF_A_FRAME_MAX, write_cuts
from tests.support.storage.batches import TOPIC_ID
from tests.support.storage.storage import (
    WAIT_S,
    Appends,
    FaultyDisk,
    LogFiles,
    open_engine_on,
    values_in,
)


def cuts_at(end: int, partition_count: int) -> list[JournalCut]:
    return [JournalCut(TOPIC_ID.bytes, partition, end) for partition in range(partition_count)]


@pytest.mark.parametrize("count", [2, CUTS_OF_A_FRAME_MAX, CUTS_OF_A_FRAME_MAX + 1])
async def test_what_was_cut_is_not_replayed(tmp_path: Path, count: int) -> None:
    files, counters = LogFiles(tmp_path), Counters()

    async with open_engine_on(files, partitions=range(2), is_killed=True) as engine:
        for log in engine.logs:
            await Appends(log).event(b"0")
            await Appends(log).event(b"1")
    async with open_engine_on(files, counters=counters, is_killed=True) as engine:
        await write_cuts(engine.resources.journal, cuts_at(1, count))
        assert counters.journal_writes == (1 if count <= CUTS_OF_A_FRAME_MAX else 2)
    async with open_engine_on(files, partitions=range(2)) as engine:
        assert [await values_in(log) for log in engine.logs] == [[b"0"]] * 2


async def test_no_cuts_write_nothing(tmp_path: Path) -> None:
    counters = Counters()

    async with open_engine_on(LogFiles(tmp_path), counters=counters) as engine:
        await write_cuts(engine.resources.journal, [])
        assert counters.journal_writes == 0


@pytest.mark.parametrize("failing", [1, 2])
async def test_a_cut_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    disk = FaultyDisk(monkeypatch)

    async with open_engine_on(LogFiles(tmp_path)) as engine:
        await Appends(engine.logs[0]).event(b"0")
        disk.fail("pwritev", skipped=failing - 1)
        with pytest.raises(StorageFailedError):
            await write_cuts(engine.resources.journal, cuts_at(9, CUTS_OF_A_FRAME_MAX + 1))


async def test_cuts_of_a_start_that_a_full_disk_refuses_are_all_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of them a second time."""
    monkeypatch.setattr(room, "RETRY_SECONDS", 0)
    files, disk, counters = LogFiles(tmp_path), FaultyDisk(monkeypatch), Counters()
    partitions = [0, CUTS_OF_A_FRAME_MAX]

    async with open_engine_on(files, partitions=partitions, is_killed=True) as engine:
        for log in engine.logs:
            await Appends(log).event(b"0")
            await Appends(log).event(b"1")
    async with open_engine_on(files, counters=counters, is_killed=True) as engine:
        await write_cuts(engine.resources.journal, cuts_at(9, 1))  # a round has begun
        writes = counters.journal_writes
        disk.fail("pwritev", errno.ENOSPC, skipped=1)
        owed = cuts_at(1, CUTS_OF_A_FRAME_MAX + 1)
        await when_there_is_room(partial(write_cuts, engine.resources.journal, owed))
        assert counters.journal_writes == writes + 3
    async with open_engine_on(files, partitions=partitions) as engine:
        assert [await values_in(log) for log in engine.logs] == [[b"0"]] * 2


async def test_the_journal_goes_on_when_nobody_waits_for_a_cut_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a start is ended by a signal."""
    disk = FaultyDisk(monkeypatch)

    async with open_engine_on(LogFiles(tmp_path)) as engine:
        await Appends(engine.logs[0]).event(b"0")
        disk.hold_writes()
        cutting = asyncio.create_task(write_cuts(engine.resources.journal, cuts_at(9, 1)))
        await disk.wait_for_held_write()
        cutting.cancel()
        await asyncio.wait([cutting])
        disk.let_writes_go_on()
        assert await asyncio.wait_for(Appends(engine.logs[0]).event(b"1"), WAIT_S) == 1
