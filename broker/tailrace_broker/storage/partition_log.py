"""One partition's log: appends in groups with one write in flight, reads from memory or disk.

State changes on the event loop only; blocking work runs in the I/O threads. What arrives while a
write is in flight joins the next: the busier the partition, the larger its writes.

An append is acknowledged when its write, durable, has returned. On a ring of one that also moves
the high watermark: the one in-sync replica has it.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from tailrace_broker.codec.batch import BatchBody, compress_columns
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.core.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    OffsetOutOfRangeError,
    TailraceError,
)
from tailrace_broker.storage.appends import Appended, ColumnsAppend, EventsAppend
from tailrace_broker.storage.batch_cache import BatchCache, RecentBatches, StoredBatch
from tailrace_broker.storage.io_threads import IoThreads
from tailrace_broker.storage.segment_reader import read_batches
from tailrace_broker.storage.segment_writer import LogPlace, SegmentWriter, segment_path

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
        self, place: LogPlace, segments: list[SegmentState], resources: LogResources
    ) -> None:
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
        self._waiting: deque[ColumnsAppend | EventsAppend] = deque()
        self._is_writing = False
        self._idle = asyncio.Event()
        self.log_start = segments[0].base_offset
        self.high_watermark = segments[-1].end_offset

    @property
    def log_end(self) -> int:
        """End of this replica's log; equal to the high watermark on a ring of one."""
        return self.high_watermark

    def append_event(
        self, key: bytes | None, value: bytes, timestamp_us: int, flags: int, done: Appended
    ) -> None:
        """Append one event, in one batch with others that wait. `done` is called when durable."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, EventsAppend) or last.size_bytes >= GROUP_BYTES_MAX:
            last = EventsAppend()
            self._waiting.append(last)
        last.add(key, value, timestamp_us, flags, done)
        self._schedule()

    def append_columns(self, columns: RecordColumns, done: Appended) -> None:
        """Append a request's records as a batch of their own. `done` is called when durable."""
        self._waiting.append(ColumnsAppend(columns, done))
        self._schedule()

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Batches below the high watermark from the one that holds `offset`; none at the end.

        Up to `max_bytes`, at least one. OffsetOutOfRangeError; CorruptPartitionError.
        """
        if not self.log_start <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in [{self.log_start}, {self.high_watermark}]",
                logStart=self.log_start,
                highWatermark=self.high_watermark,
            )
        if offset == self.high_watermark:
            return []
        return self._recent.read(offset, max_bytes) or await self._read_from_disk(offset, max_bytes)

    async def close(self) -> None:
        """Release the files once the appends under way have ended; none may come after."""
        if self._is_writing:
            await self._idle.wait()
        await self._resources.io.run(self._writer.finish)

    async def _read_from_disk(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        segments = self._writer.segments
        state = segments[bisect_right(segments, offset, key=attrgetter("base_offset")) - 1]
        resources = self._resources
        work = partial(
            read_batches,
            segment_path(self._place.directory, state.base_offset),
            state,
            resources.pool,
            offset=offset,
            end_offset=self.high_watermark,
            max_bytes=max_bytes,
            is_direct=resources.is_direct,
        )
        try:
            return await resources.io.run(work)
        except CorruptBatchError as error:
            raise CorruptPartitionError(
                f"{error}. Restore the file from a copy", partition=self._place.partition
            ) from error

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
        columns = [append.columns() for append in group]
        done = partial(self._on_written, group)
        if size_bytes <= INLINE_COMPRESS_BYTES_MAX:
            self._resources.io.submit(partial(write, _compress(columns)), done)
        else:
            self._resources.io.submit(lambda: write(_compress(columns)), done)

    def _on_written(
        self,
        group: list[ColumnsAppend | EventsAppend],
        batches: list[StoredBatch] | None,
        error: TailraceError | None,
    ) -> None:
        """Publish the group, tell its producers, go on with what came meanwhile."""
        if batches is None:
            for append in group:
                append.finish(-1, error)
        else:
            assert batches[0].header.base_offset == self.high_watermark
            self.high_watermark = batches[-1].header.end_offset
            self._resources.counters.log_writes += 1
            for append, batch in zip(group, batches, strict=True):
                self._resources.cache.add(self._recent, batch)
                self._resources.counters.log_written_bytes += batch.header.batch_bytes
                append.finish(batch.header.base_offset, None)
        if self._waiting:
            # Not at once: what this turn of the loop still receives joins (a third fewer writes).
            self._resources.io.call_soon(self._write_group)
        else:
            self._is_writing = False
            self._idle.set()


def _compress(columns: list[RecordColumns]) -> list[BatchBody]:
    return [compress_columns(batch) for batch in columns]
