"""One partition's log: appends in groups with one write in flight, reads from memory or disk.

State changes on the event loop only; blocking work runs in the I/O threads. What arrives while a
write is in flight joins the next: the busier the partition, the larger its writes.

An append is acknowledged when its write, durable, has returned. On a ring of one that also moves
the high watermark: the one in-sync replica has it.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import TypeVar

import structlog

from tailrace_broker.codec.batch import BatchBody, StoredBatch, compress_columns
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.codec.segment import find_time
from tailrace_broker.core.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.appended import Appended
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    CorruptBatchError,
    OffsetOutOfRangeError,
    ReadFailedError,
    TailraceError,
)
from tailrace_broker.storage.appends import BatchAppend, EventsAppend
from tailrace_broker.storage.batch_cache import BatchCache, RecentBatches
from tailrace_broker.storage.io_threads import IoThreads
from tailrace_broker.storage.segment_reader import (
    find_offset_of_time,
    first_of_time,
    read_batches,
)
from tailrace_broker.storage.segment_writer import LogPlace, SegmentWriter, segment_path

T = TypeVar("T")

_log = structlog.get_logger()
# Tells in a tenth of a microsecond that a line need not be built.
_levels = logging.getLogger(__name__)

# A write takes what waits up to here, or one larger append alone.
GROUP_BYTES_MAX = 4 * 1024 * 1024
# From here on LZ4 and CRC run in an I/O thread, so that the event loop stays free.
INLINE_COMPRESS_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogResources:
    """What all logs of a broker share."""

    io: IoThreads
    pool: BufferPool
    cache: BatchCache
    counters: Counters
    now_us: Callable[[], int]
    segment_bytes: int
    is_direct: bool


class PartitionLog:
    """The log of one partition, open at its end."""

    def __init__(
        self,
        place: LogPlace,
        segments: list[SegmentState],
        resources: LogResources,
        *,
        sealed_end: int | None = None,
    ) -> None:
        """`segments` as recovered; a sealed log takes no appends and is read up to its end."""
        self._place = place
        self._resources = resources
        self._writer = SegmentWriter(
            place,
            segments,
            resources.pool,
            segment_bytes=resources.segment_bytes,
            is_direct=resources.is_direct,
        )
        self._recent = RecentBatches()
        self._waiting: deque[BatchAppend | EventsAppend] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_open = sealed_end is None
        self._gone: TailraceError | None = None
        self._is_writing = False
        self._idle = asyncio.Event()
        self._is_closing = False
        self._closed = asyncio.Event()
        self.log_start = segments[0].base_offset
        self.high_watermark = segments[-1].end_offset if sealed_end is None else sealed_end

    @property
    def log_end(self) -> int:
        """End of this replica's log; equal to the high watermark on a ring of one."""
        return self.high_watermark

    @property
    def waiting_count(self) -> int:
        """How many wait for a record."""
        return len(self._waiters)

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches on disk, pads included."""
        return sum(state.position for state in self._writer.segments)

    def append_event(
        self, key: bytes | None, value: bytes, timestamp_us: int, flags: int, done: Appended
    ) -> None:
        """Append one event, in one batch with others that wait. `done` is called when durable."""
        if self._gone:
            done(-1, self._gone)
            return
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, EventsAppend) or last.size_bytes >= GROUP_BYTES_MAX:
            last = EventsAppend()
            self._waiting.append(last)
        last.add(key, value, timestamp_us, flags, done)
        self._schedule()

    def append_columns(self, columns: RecordColumns, done: Appended) -> None:
        """Append a request's records as a batch of their own. `done` is called when durable."""
        self._append(BatchAppend(columns, done))

    def append_batch(self, body: BatchBody, done: Appended) -> None:
        """Append a batch that is compressed and checked already. `done` is called when durable."""
        self._append(BatchAppend(body, done))

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Batches below the high watermark from the one that holds `offset`; none at the end.

        Up to `max_bytes`, at least one. OffsetOutOfRangeError; CorruptPartitionError.
        """
        if self._gone:
            raise self._gone
        if not self.log_start <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in [{self.log_start}, {self.high_watermark}]",
                logStart=self.log_start,
                highWatermark=self.high_watermark,
            )
        if offset == self.high_watermark:
            return []
        recent = self._recent.read(offset, max_bytes)
        return recent or await self._read_from_disk(offset, max_bytes)

    async def find_timestamp(self, timestamp_us: int) -> int | None:
        """The first committed offset whose record is of this time or later; None: there is none.

        CorruptPartitionError.
        """
        if self._gone:
            raise self._gone
        end_offset = self.high_watermark
        for state in list(self._writer.segments):
            if state.entries and state.largest_timestamp_us >= timestamp_us:
                offset = await self._find_in_segment(state, timestamp_us, end_offset)
                if offset is not None:
                    return offset
        return None

    async def wait_beyond(self, offset: int) -> None:
        """Until the high watermark is above `offset`, or the log takes no more appends."""
        while self.high_watermark <= offset and self._is_open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def give_up(self, reason: TailraceError) -> None:
        """The log is going away: answer appends and reads from now on with `reason`.

        Appends under way go on to their end: `close` waits for them.
        """
        self._gone = reason
        self._is_open = False
        self._wake_waiters()

    async def close(self) -> None:
        """Release the files once the appends under way have ended; none may come after.

        A second call, as of a stop during a deletion, waits for the first.
        """
        self._is_open = False
        self._wake_waiters()
        if self._is_writing:
            await self._idle.wait()
        if not self._is_closing:
            self._is_closing = True
            self._resources.io.submit(self._writer.finish, self._on_closed)
        await self._closed.wait()

    async def _read_from_disk(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        self._resources.counters.log_disk_reads += 1
        segments = self._writer.segments
        state = segments[bisect_right(segments, offset, key=attrgetter("base_offset")) - 1]
        return await self._blocking(
            partial(
                read_batches,
                segment_path(self._place.directory, state.base_offset),
                state,
                self._resources.pool,
                offset=offset,
                end_offset=self.high_watermark,
                max_bytes=max_bytes,
                is_direct=self._resources.is_direct,
            )
        )

    async def _find_in_segment(
        self, state: SegmentState, timestamp_us: int, end_offset: int
    ) -> int | None:
        """From memory when it reaches back far enough, else from the segment's file."""
        first_offset = state.base_offset + find_time(state.entries, timestamp_us).relative_offset
        recent = self._recent.find_time(first_offset, timestamp_us)
        if recent is not None:
            return await self._blocking(partial(first_of_time, recent, timestamp_us))
        self._resources.counters.log_disk_reads += 1
        return await self._blocking(
            partial(
                find_offset_of_time,
                segment_path(self._place.directory, state.base_offset),
                state,
                self._resources.pool,
                timestamp_us=timestamp_us,
                end_offset=end_offset,
                is_direct=self._resources.is_direct,
            )
        )

    async def _blocking(self, work: Callable[[], T]) -> T:
        """Read in an I/O thread. CorruptPartitionError; of a log that went away its reason."""
        try:
            return await self._resources.io.run(work)
        except ReadFailedError:
            if self._gone:  # its files are being moved away
                raise self._gone from None
            raise
        except CorruptBatchError as error:
            raise self._place.damaged(f"{error}. Restore the file from a copy") from error

    def _append(self, append: BatchAppend) -> None:
        if self._gone:
            append.finish(-1, self._gone)
        else:
            self._waiting.append(append)
            self._schedule()

    def _wake_waiters(self) -> None:
        """Let them look again, all in this turn of the loop."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _schedule(self) -> None:
        """Write soon: in the next turn of the loop, so that this turn's other requests join."""
        if not self._is_writing:
            self._is_writing = True
            self._idle.clear()
            self._resources.io.call_soon(self._write_group)

    def _write_group(self) -> None:
        """Start a write of what waits."""
        group = [self._waiting.popleft()]
        size_bytes = group[0].size_bytes
        while self._waiting and size_bytes + self._waiting[0].size_bytes <= GROUP_BYTES_MAX:
            size_bytes += self._waiting[0].size_bytes
            group.append(self._waiting.popleft())
        write = partial(
            self._writer.write,
            append_time_us=self._resources.now_us(),
            high_watermark=self.high_watermark,
        )
        contents = [append.contents() for append in group]
        done = partial(self._on_written, group, perf_counter())
        if size_bytes <= INLINE_COMPRESS_BYTES_MAX:
            self._resources.io.submit(partial(write, _compress(contents)), done)
        else:
            self._resources.io.submit(lambda: write(_compress(contents)), done)

    def _on_written(
        self,
        group: list[BatchAppend | EventsAppend],
        started_s: float,
        batches: list[StoredBatch] | None,
        error: TailraceError | None,
    ) -> None:
        """Publish the group, tell its producers, go on with what came meanwhile."""
        if batches is None:
            self._resources.counters.log_write_errors += 1
            for append in group:
                append.finish(-1, error)
        else:
            assert batches[0].header.base_offset == self.high_watermark
            self.high_watermark = batches[-1].header.end_offset
            self._count(batches, perf_counter() - started_s)
            for append, batch in zip(group, batches, strict=True):
                self._resources.cache.add(self._recent, batch)
                append.finish(batch.header.base_offset, None)
            if self._waiters:
                self._wake_waiters()
        if self._waiting:
            # Not at once: what this turn of the loop still receives joins (a third fewer writes).
            self._resources.io.call_soon(self._write_group)
        else:
            self._is_writing = False
            self._idle.set()

    def _on_closed(self, _: None, error: TailraceError | None) -> None:
        assert error is None, error  # recovery does without what a close could not write
        self._closed.set()

    def _count(self, batches: list[StoredBatch], duration_s: float) -> None:
        """Of a write: counters, and at DEBUG its line."""
        counters = self._resources.counters
        size_bytes = sum(batch.header.batch_bytes for batch in batches)
        counters.log_writes += 1
        counters.log_write_seconds += duration_s
        counters.log_written_batches += len(batches)
        counters.log_written_bytes += size_bytes
        if _levels.isEnabledFor(logging.DEBUG):
            _log.debug(
                "log.written",
                topic_id=str(self._place.topic_id),
                partition=self._place.partition,
                base_offset=batches[0].header.base_offset,
                end_offset=batches[-1].header.end_offset,
                batches=len(batches),
                size_bytes=size_bytes,
                duration_ms=round(duration_s * 1000, 3),
            )


def _compress(contents: list[RecordColumns | BatchBody]) -> list[BatchBody]:
    return [each if isinstance(each, BatchBody) else compress_columns(each) for each in contents]
