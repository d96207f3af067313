"""Of the I/O threads, what is done for other brokers leaves something to producers."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.model.append_outcome import LogIsCut
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.resources import Reading
from tests.support.storage.followers import Follower, follow, stored_batch
from tests.support.storage.storage import (
    MEBIBYTE,
    FaultyDisk,
    LogFiles,
    append_large,
    open_engine_on,
)

THREADS = 2
LOGS = 20
WAIT_S = 60.0


class HeldReads:
    """Reads that have begun wait until `may_end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Semaphore(0)
        self.may_end = threading.Event()
        preadv = os.preadv

        def read(*args: Any) -> int:
            self.began.release()
            assert self.may_end.wait(WAIT_S)
            return preadv(*args)

        monkeypatch.setattr(os, "preadv", read)

    async def have_begun(self, count: int) -> None:
        """So many have."""
        for _ in range(count):
            assert await asyncio.to_thread(self.began.acquire, timeout=WAIT_S)


class OwnJobs:
    """Of a producer: always one is with the threads, or has just ended."""

    def __init__(self, io: IoThreads) -> None:
        self._io = io
        self._jobs = self._at_own = 0  # that have begun; when the last own one did
        self._waited_for: list[int] = []
        self._is_over = False
        io.with_room = self._counted
        self._submit()

    async def end(self) -> int:
        """Return how many jobs of others began, at most, between two of them."""
        self._is_over = True
        await self._io.run(lambda: None)
        return max(self._waited_for)

    def _counted(self, work: Callable[[], Any]) -> Any:
        self._jobs += 1
        return work()

    def _submit(self) -> None:
        if not self._is_over:
            self._io.submit(self._work, lambda *_: self._submit())

    def _work(self) -> None:
        self._waited_for.append(self._jobs - self._at_own)
        self._at_own = self._jobs


def of_log(batch: StoredBatch, log: PartitionLog) -> StoredBatch:
    """As if it were a batch of this log."""
    return replace(batch, header=batch.header._replace(partition=log.place.partition))


def read_on_disk(log: PartitionLog, count: int) -> "list[asyncio.Task[Any]]":
    """As for followers that lack much."""
    return [asyncio.create_task(log.read_written(0, MEBIBYTE)) for _ in range(count)]


async def test_writes_of_producers_begin_while_old_segments_are_read_for_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine_on(LogFiles(tmp_path), partitions=range(2), cache_bytes=0) as engine:
        old, new = engine.logs
        assert engine.resources.io.count == THREADS
        await append_large(old)
        reads = HeldReads(monkeypatch)
        reading = read_on_disk(old, 5)
        await reads.have_begun(THREADS - 1)
        assert await append_large(new) == 0
        assert not any(task.done() for task in reading)
        reads.may_end.set()
        await asyncio.gather(*reading)


async def test_without_shares_they_wait_for_all_of_these_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation of the test before."""

    async with open_engine_on(LogFiles(tmp_path), partitions=range(2), cache_bytes=0) as engine:
        old, new = engine.logs
        resources = engine.resources
        all_threads = Reading(resources.pool.catch_up, resources.io)
        object.__setattr__(resources, "catch_up", all_threads)
        await append_large(old)
        reads = HeldReads(monkeypatch)
        reading = read_on_disk(old, 5)
        await reads.have_begun(THREADS)
        writing = append_large(new)
        await asyncio.sleep(0)
        assert not writing.done()
        reads.may_end.set()
        await asyncio.gather(*reading, writing)


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_write_of_a_producer_does_not_wait_for_all_that_a_follower_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """Without shares it does."""
    disk = FaultyDisk(monkeypatch)

    async with follow(LogFiles(tmp_path), partitions=range(LOGS)) as engine:
        resources = engine.resources
        if not is_shared:
            object.__setattr__(resources, "receiving", resources.io)
        batch = stored_batch([os.urandom(100_000)], 0)
        disk.hold_writes()
        disk.calls.clear()
        received = [Follower(log).begin_append(of_log(batch, log)) for log in engine.logs]
        await disk.wait_for_held_write()
        own = asyncio.create_task(resources.io.run(lambda: disk.calls["pwritev"]))
        await asyncio.sleep(0)
        disk.let_writes_go_on()
        assert (await own <= 2 * THREADS) == is_shared
        await asyncio.gather(*received)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_write_of_a_producer_does_not_wait_for_the_cuts_of_all_logs(
    tmp_path: Path, is_shared: bool
) -> None:
    """Without shares it does."""
    async with follow(LogFiles(tmp_path), partitions=range(2 * LOGS)) as engine:
        resources, followers = engine.resources, [Follower(log) for log in engine.logs]
        if not is_shared:
            object.__setattr__(resources, "receiving", resources.io)
        batch = stored_batch([os.urandom(100_000)], 0)
        await asyncio.gather(*(each.write(of_log(batch, each.log)) for each in followers))
        own = OwnJobs(resources.io)
        cuts = await asyncio.gather(*(each.begin_cut(0) for each in followers))
        assert all(isinstance(each, LogIsCut) for each in cuts)
        # What was queued when one began, and what came before it was known to have ended.
        assert (await own.end() <= 2 * 2 * THREADS + THREADS) == is_shared
