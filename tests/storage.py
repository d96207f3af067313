"""Storage parts on real files, and a disk whose calls can be made to fail or to wait."""

import asyncio
import errno
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.codec.batch import BatchBody, StoredBatch, decompress_payload
from tailrace_broker.codec.records import Record, unpack_columns
from tailrace_broker.core.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.batch_cache import BatchCache
from tailrace_broker.storage.direct_file import has_direct_io
from tailrace_broker.storage.io_threads import IoThreads
from tailrace_broker.storage.log_recovery import recover_log
from tailrace_broker.storage.partition_log import LogResources, PartitionLog
from tailrace_broker.storage.segment_reader import read_batches
from tailrace_broker.storage.segment_writer import LogPlace, SegmentWriter, segment_path
from tests.batches import PARTITION, TIME_US, TOPIC_ID, Event, body_of, columns_of

MEBIBYTE = 1024 * 1024
# What the storage edge asks of the kernel.
DISK_CALLS = ("open", "preadv", "pwritev", "ftruncate", "fsync", "replace", "rename")
WAIT_S = 5.0


@dataclass(slots=True)
class Fault:
    """A call that shall fail: the one after `skipped` others of its name."""

    call: str
    error: int
    skipped: int
    kept_bytes: int  # of a pwritev: what reaches the disk all the same


class FaultyDisk:
    """The real disk below the storage edge, with faults; `calls` counts what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._write_began = threading.Event()
        self._writes_may_go_on = threading.Event()
        self._writes_may_go_on.set()
        for name in DISK_CALLS:
            monkeypatch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def fail(
        self, call: str, error: int = errno.EIO, *, skipped: int = 0, kept_bytes: int = 0
    ) -> None:
        """Let one call fail."""
        self._faults.append(Fault(call, error, skipped, kept_bytes))

    def forget_faults(self) -> None:
        """Those that have not come up yet."""
        self._faults.clear()

    def hold_writes(self) -> None:
        """Let writes wait until `let_writes_go_on`."""
        self._write_began.clear()
        self._writes_may_go_on.clear()

    def let_writes_go_on(self) -> None:
        """End `hold_writes`."""
        self._writes_may_go_on.set()

    async def wait_for_held_write(self) -> None:
        """Until a write waits."""
        assert await asyncio.to_thread(self._write_began.wait, WAIT_S)

    def _call(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.calls[name] += 1
        if name == "pwritev":
            self._write_began.set()
            assert self._writes_may_go_on.wait(WAIT_S)
        for fault in [fault for fault in self._faults if fault.call == name]:
            if not fault.skipped:
                self._faults.remove(fault)
                if fault.kept_bytes:
                    fd, (buffer,), *rest = args
                    real(fd, [buffer[: fault.kept_bytes]], *rest)
                raise OSError(fault.error, os.strerror(fault.error))
            fault.skipped -= 1
        return real(*args, **options)


class LogFiles:
    """The files of one partition's log; knows how to recover, write and read them."""

    def __init__(self, directory: Path, *, pool_bytes: int = 64 * MEBIBYTE) -> None:
        self.place = LogPlace(
            directory / "topic" / "3", "topic", TOPIC_ID, PARTITION, range_id=0, epoch=1
        )
        self.pool = BufferPool(pool_bytes)
        self.is_direct = has_direct_io(directory)

    def segment(self, base_offset: int = 0) -> Path:
        """A segment's file."""
        return segment_path(self.place.directory, base_offset)

    def contents(self) -> dict[str, bytes]:
        """All files with their bytes."""
        return {path.name: path.read_bytes() for path in sorted(self.place.directory.iterdir())}

    def write_segment(self, stored: bytes, base_offset: int = 0) -> None:
        """Put bytes there, as something else than a broker could leave them."""
        self.place.directory.mkdir(parents=True, exist_ok=True)
        self.segment(base_offset).write_bytes(stored)

    def recover(self, first_offset: int = 0) -> list[SegmentState]:
        """As at a broker's start."""
        return recover_log(self.place, first_offset, self.pool, is_direct=self.is_direct)

    def writer(self, *, segment_bytes: int = 64 * MEBIBYTE) -> SegmentWriter:
        """Recovered, ready to append."""
        return SegmentWriter(
            self.place,
            self.recover(),
            self.pool,
            segment_bytes=segment_bytes,
            is_direct=self.is_direct,
        )

    def read(
        self, state: SegmentState, offset: int, *, end_offset: int, max_bytes: int = MEBIBYTE
    ) -> list[StoredBatch]:
        """From one segment."""
        return read_batches(
            self.segment(state.base_offset),
            state,
            self.pool,
            offset=offset,
            end_offset=end_offset,
            max_bytes=max_bytes,
            is_direct=self.is_direct,
        )

    def values(self) -> list[bytes | None]:
        """Recover, then read every record's value; offsets must be dense."""
        segments = self.recover()
        offset, end_offset = segments[0].base_offset, segments[-1].end_offset
        records: list[Record] = []
        for state in segments:
            while offset < state.end_offset:
                batches = self.read(state, offset, end_offset=end_offset)
                records += records_of(batches)
                offset = batches[-1].header.end_offset
        assert [record.offset for record in records] == list(
            range(segments[0].base_offset, end_offset)
        )
        return [record.value for record in records]


def records_of(batches: Iterable[StoredBatch]) -> list[Record]:
    """What readers see of stored batches."""
    records = []
    for batch in batches:
        stored = memoryview(b"".join(batch.buffers))
        records += unpack_columns(batch.header, decompress_payload(batch.header, stored))
    return records


def append(writer: SegmentWriter, *batches: list[bytes]) -> list[StoredBatch]:
    """One durable write of batches of these values."""
    return writer.write(
        [body_of([Event(value) for value in values]) for values in batches],
        append_time_us=TIME_US,
        high_watermark=writer.segments[-1].end_offset,
    )


@asynccontextmanager
async def open_log(
    files: LogFiles,
    *,
    segment_bytes: int = 64 * MEBIBYTE,
    cache_bytes: int = MEBIBYTE,
    counters: Counters | None = None,
    sealed_end: int | None = None,
) -> AsyncIterator[PartitionLog]:
    """A recovered partition with I/O threads of its own; closed when the block ends."""
    bugs: list[BaseException] = []
    io = IoThreads(2, bugs.append)
    io.start()
    resources = LogResources(
        io=io,
        pool=files.pool,
        cache=BatchCache(cache_bytes),
        counters=counters or Counters(),
        now_us=lambda: TIME_US,
        segment_bytes=segment_bytes,
        is_direct=files.is_direct,
    )
    try:
        log = PartitionLog(files.place, files.recover(), resources, sealed_end=sealed_end)
        yield log
        await log.close()
    finally:
        io.stop()
        assert bugs == []


class Appends:
    """Appends to a log and what became of each, in the order of the calls."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._answers: list[asyncio.Future[int]] = []

    def event(
        self, value: bytes, key: bytes | None = b"key", flags: int = 0
    ) -> "asyncio.Future[int]":
        """Append one event; its offset, or the error."""
        answer, done = self._new_answer()
        self._log.append_event(key, value, TIME_US, flags, done)
        return answer

    def batch(self, values: list[bytes]) -> "asyncio.Future[int]":
        """Append a batch; its first offset, or the error."""
        return self.records([Event(value) for value in values])

    def records(self, events: list[Event]) -> "asyncio.Future[int]":
        """Append a batch of these; its first offset, or the error."""
        answer, done = self._new_answer()
        self._log.append_columns(columns_of(events), done)
        return answer

    def body(self, body: BatchBody) -> "asyncio.Future[int]":
        """Append a ready-made batch; its first offset, or the error."""
        answer, done = self._new_answer()
        self._log.append_batch(body, done)
        return answer

    async def outcomes(self) -> list[int | BaseException]:
        """All offsets and errors."""
        return await asyncio.gather(*self._answers, return_exceptions=True)

    def _new_answer(
        self,
    ) -> "tuple[asyncio.Future[int], Callable[[int, TailraceError | None], None]]":
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(offset: int, error: TailraceError | None) -> None:
            if error is None:
                answer.set_result(offset)
            else:
                answer.set_exception(error)

        self._answers.append(answer)
        return answer, done
