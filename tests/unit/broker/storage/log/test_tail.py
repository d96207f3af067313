"""What a log's tail does when settings change, disks fail, and writes overtake each other."""

import errno
import os
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace_broker.core.log import appends, replica_tail
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import DiskFullError, StorageFailedError
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log import flusher
from tailrace_broker.storage.log import tail as log_tail
from tailrace_broker.storage.log.rescued_tail import RESCUED
from tests.support.storage.storage import (
    SYNCED,
    Appends,
    FaultyDisk,
    LogFiles,
    append_large,
    open_engine_on,
    open_log,
    values_in,
)
from tests.support.waits import until

LINGERS = replace(SYNCED, linger_ms=60_000)
NOISE = Random(3)
WRITTEN = TopicSettings(partitions_per_range=1, durability="written", flush_ms=3_600_000)


async def test_a_failed_group_that_could_not_be_cut_is_not_taken_for_a_later_one(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_log(files) as log:
        await Appends(log).event(b"0")
        await log.spilled()
        disk.fail("pwritev", kept_bytes=1 << 30)  # it reaches the disk all the same
        disk.fail("ftruncate")
        with pytest.raises(StorageFailedError):
            await append_large(log)
        assert await Appends(log).event(b"1") == 1
    async with open_log(files, is_killed=True) as log:
        assert await values_in(log) == [b"0", b"1"]


async def test_a_tail_that_grew_while_the_disk_was_full_comes_in_writes_of_a_bounded_size(
    files: LogFiles, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_tail, "SPILL_BYTES", 1 << 30)
    counters = Counters()

    async with open_log(files, counters=counters) as log:
        for number in range(9):
            await Appends(log).event(NOISE.randbytes(30_000) + b"%d" % number)
        for module in (log_tail, replica_tail, appends):
            monkeypatch.setattr(module, "GROUP_BYTES_MAX", 100_000)
        disk.fail("open", errno.ENOSPC)
        with pytest.raises(DiskFullError):
            await append_large(log)
        assert (counters.log_writes, log.high_watermark) == (0, 9)
        assert await append_large(log) == 9
        # Three of 90 KB are spilled alone, the last goes with the group.
        assert (log.pending_bytes, counters.log_writes) == (0, 3)
        assert [value[-1:] for value in await values_in(log) if value][:9] == [
            b"%d" % number for number in range(9)
        ]


async def test_an_append_that_waits_for_a_flush_that_fails_fails(
    files: LogFiles, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log all the same, and committed by the flush that works."""
    monkeypatch.setattr(flusher, "RETRY_SECONDS", 0.001)

    async with open_log(files, settings=WRITTEN, is_killed=True) as log:
        await Appends(log).event(b"0")
        log.settings = SYNCED
        for _ in range(1000):  # the first may come before the append is written
            disk.fail("fdatasync")
        with pytest.raises(StorageFailedError) as failed:
            await Appends(log).event(b"1")
        disk.forget_faults()
        assert failed.value.write_attempted
        await until(lambda: log.high_watermark == 2)  # the next flush takes it along
        assert await Appends(log).event(b"2") == 2


async def test_a_log_that_cannot_be_written_stops_no_other(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the journal held of it is set aside when the ring needs the space."""
    real_open = os.open
    stuck = str(files.place_of(0).directory)
    is_repaired = False

    def open_or_fail(path: Any, *args: Any, **options: Any) -> int:
        if str(path).startswith(stuck) and str(path).endswith(".log") and not is_repaired:
            raise OSError(errno.EIO, "input/output error")
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "open", open_or_fail)

    async with open_engine_on(files, partitions=range(2), is_killed=True) as engine:
        stuck_log, other = engine.logs
        await Appends(stuck_log).event(b"0")
        for number in range(60):  # several rounds of the ring
            assert await Appends(other).event(NOISE.randbytes(30_000)) == number
        assert await values_in(stuck_log) == [b"0"]
        with pytest.raises(StorageFailedError):
            await Appends(stuck_log).event(b"refused")
        pending = [log for file in engine.replayed.files for log in file.pending]
        assert stuck_log._tail not in pending
        assert (files.place_of(0).directory / RESCUED).exists()
        is_repaired = True
        with pytest.raises(StorageFailedError):
            await Appends(stuck_log).event(b"refused, and reported that it is repaired")
        await until(lambda: not stuck_log.pending_bytes)
        assert await Appends(stuck_log).event(b"1") == 1
    async with open_engine_on(files, partitions=range(2)) as engine:
        assert await values_in(engine.logs[0]) == [b"0", b"1"]


async def test_a_shorter_linger_is_in_force_at_once(files: LogFiles) -> None:
    async with open_log(files, settings=LINGERS) as log:
        waiting = Appends(log).event(b"0")
        log.settings = replace(SYNCED, linger_ms=1)
        assert await waiting == 0


async def test_a_shorter_time_to_the_flush_is_in_force_at_once(files: LogFiles) -> None:
    async with open_log(files, settings=WRITTEN) as log:
        await Appends(log).event(b"0")
        log.settings = replace(WRITTEN, flush_ms=1)
        await until(lambda: log._tail.replica.durable_end == 1)
