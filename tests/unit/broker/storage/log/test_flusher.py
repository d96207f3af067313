"""Topics that are only `written`: what is synced with others, what is flushed, and when."""

import asyncio
import os
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from tailrace_broker.core.log.replica_tail import LARGE_GROUP_BYTES
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.files.direct_file import DirectFile
from tests.support.storage.storage import (
    SYNCED,
    Appends,
    FaultyDisk,
    LogFiles,
    open_engine_on,
    open_log,
)
from tests.support.waits import until

NOISE = Random(3)
WRITTEN = TopicSettings(partitions_per_range=1, durability="written")
EVENT_BYTES = 50_000


def new_value(size_bytes: int = EVENT_BYTES) -> bytes:
    """Bytes that do not compress."""
    return NOISE.randbytes(size_bytes)


def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The flags of each pwritev from now on."""
    flags: list[int] = []
    real = os.pwritev

    def pwritev(fd: int, parts: list[memoryview], position: int, flag: int = 0) -> int:
        flags.append(flag)
        return real(fd, parts, position, flag)

    monkeypatch.setattr(os, "pwritev", pwritev)
    return flags


def flushed_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are flushed from now on."""
    flushed: list[Path] = []
    real = DirectFile.flush

    def flush(file: DirectFile) -> None:
        real(file)
        flushed.append(file.path)

    monkeypatch.setattr(DirectFile, "flush", flush)
    return flushed


async def test_a_frame_is_synced_when_one_of_its_logs_asks_for_it(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine_on(files, partitions=range(2), settings=WRITTEN) as engine:
        unsynced, synced = engine.logs
        synced.settings = SYNCED
        await Appends(unsynced).event(b"0")
        flags = syncs(monkeypatch)
        await Appends(unsynced).event(b"1")
        await Appends(synced).event(b"0")
        await asyncio.gather(Appends(unsynced).event(b"2"), Appends(synced).event(b"1"))
        assert flags == [0, os.RWF_DSYNC, os.RWF_DSYNC]


async def test_what_is_written_is_flushed_within_its_time(
    files: LogFiles, disk: FaultyDisk
) -> None:
    settings = replace(WRITTEN, flush_ms=1)
    async with open_log(files, settings=settings) as log:
        await Appends(log).event(b"0")
        before = disk.calls["fdatasync"]
        await until(lambda: disk.calls["fdatasync"] > before)


async def test_what_is_written_is_flushed_when_it_is_so_much(
    files: LogFiles, disk: FaultyDisk
) -> None:
    settings = replace(WRITTEN, flush_ms=3_600_000, flush_bytes=100_000)
    async with open_log(files, settings=settings) as log:
        await Appends(log).event(b"0")
        before = disk.calls["fdatasync"]
        await Appends(log).event(new_value())
        assert disk.calls["fdatasync"] == before
        await Appends(log).event(new_value())
        await until(lambda: disk.calls["fdatasync"] > before)


async def test_a_topic_that_becomes_synced_flushes_before_its_next_acknowledgement(
    files: LogFiles, disk: FaultyDisk
) -> None:
    settings = replace(WRITTEN, flush_ms=3_600_000)

    async with open_log(files, settings=settings, is_killed=True) as log:
        await Appends(log).event(new_value(LARGE_GROUP_BYTES))
        await Appends(log).event(b"0")
        before = disk.calls["fdatasync"]
        log.settings = SYNCED
        await Appends(log).event(b"1")
        assert disk.calls["fdatasync"] == before + 2  # of the journal, and of the segment
        await Appends(log).event(b"2")
        (*_, batch) = await log.read(3, 1)
        assert batch.header.high_watermark == 3


async def test_a_flush_that_fails_is_tried_again(
    files: LogFiles, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace_broker.storage.log.flusher.RETRY_SECONDS", 0.0)
    settings = replace(WRITTEN, flush_ms=3_600_000)

    async with open_engine_on(files, settings=settings) as engine:
        (log,) = engine.logs
        await Appends(log).event(new_value(LARGE_GROUP_BYTES))
        await Appends(log).event(b"0")
        for skipped in (0, 0, 1):  # of the journal, of the segment, and of that again
            disk.fail("fdatasync", skipped=skipped)
        flushed = flushed_files(monkeypatch)
        assert await engine.resources.flusher.flush_all() is False
        log.settings = SYNCED
        assert await Appends(log).event(b"1") == 2
        assert {path.suffix for path in flushed} == {".journal", ".log"}
        await Appends(log).event(b"2")
        (*_, batch) = await log.read(3, 1)
        assert batch.header.high_watermark == 3


async def test_all_of_a_log_is_flushed_what_a_process_before_wrote_too(
    files: LogFiles, disk: FaultyDisk
) -> None:
    settings = replace(WRITTEN, flush_ms=3_600_000)

    async with open_engine_on(files, settings=settings) as engine:
        await Appends(engine.logs[0]).event(new_value(LARGE_GROUP_BYTES))
    async with open_engine_on(files, settings=settings) as engine:
        disk.calls.clear()
        assert await engine.logs[0].flush_all() is True
        assert disk.calls["fdatasync"] == 1  # of the segment
        disk.fail("fdatasync")
        assert await engine.logs[0].flush_all() is False


async def test_a_segment_that_was_removed_does_not_stop_the_flushes(files: LogFiles) -> None:
    settings = replace(WRITTEN, flush_ms=3_600_000)

    async with open_engine_on(files, settings=settings, segment_bytes=4096) as engine:
        (log,) = engine.logs
        for _ in range(3):
            await Appends(log).event(new_value(LARGE_GROUP_BYTES))
        await log.trim(2)
        assert not files.segment(0).exists()
        assert await engine.resources.flusher.flush_all() is True


async def test_all_that_wait_for_a_flush_learn_of_it(files: LogFiles) -> None:
    async with open_engine_on(files, settings=WRITTEN) as engine:
        await Appends(engine.logs[0]).event(b"0")
        flusher = engine.resources.flusher
        assert await asyncio.gather(*(flusher.flush_all() for _ in range(3))) == [True] * 3
