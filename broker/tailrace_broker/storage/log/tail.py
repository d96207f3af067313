"""The end of a partition's log: where appends gather, are written, and become readable.

A small group goes into the broker's journal with those of other partitions; it stays in memory, the
pending tail, until it is spilled to the log's segment. A large group goes straight to the segment
behind the pending tail, in one write. What arrives while a write is in flight joins the next: the
busier the partition, the larger its writes.

An append is acknowledged when its write has returned, durable unless the topic is `written`. On a
ring of one that also moves the high watermark: the one in-sync replica has it.

State changes on the event loop only; blocking work runs in the I/O threads.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from tailrace_broker.codec.batch import BatchBody, StoredBatch, compress_columns
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.core.log.producers import Producer, ProducerWindows
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.appended import Appended
from tailrace_broker.model.errors import DiskFullError, TailraceError
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.files.turns import Turns
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.journal.spiller import SpillPart
from tailrace_broker.storage.log.appends import (
    GROUP_BYTES_MAX,
    AppendQueue,
    BatchAppend,
    EventsAppend,
    LogEnd,
    stamp,
)
from tailrace_broker.storage.log.batch_cache import RecentBatches
from tailrace_broker.storage.log.pending_tail import PendingTail
from tailrace_broker.storage.log.producer_appends import ProducerAppends
from tailrace_broker.storage.log.producer_recovery import save_checkpoint
from tailrace_broker.storage.log.rescued_tail import save_rescued
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace, SegmentWriter

# A group from here on goes straight to the segment: as one write that costs less than twice.
LARGE_GROUP_BYTES = 64 * 1024
# A pending tail of this size is brought to the segment.
SPILL_BYTES = 256 * 1024
# From here on LZ4 and CRC run in an I/O thread, so that the event loop stays free.
INLINE_COMPRESS_BYTES_MAX = 256 * 1024


class LogTail:
    """One writer: a group is in flight, or none. An idle one has no file, no timer, no task."""

    __slots__ = (
        "_durable_end", "_end", "_flying", "_gone", "_idle", "_is_appending", "_is_linger_over",
        "_linger", "_on_advanced", "_on_sealed", "_owes_sync", "_place", "_producers", "_queue",
        "_resources", "_segments", "_spill_at_bytes", "_stuck", "_unflushed_bytes",
        "_unflushed_paths", "_writer", "high_watermark", "is_open", "pending", "recent", "settings",
        "turns",
    )  # fmt: skip

    def __init__(
        self,
        place: LogPlace,
        segments: list[SegmentState],
        resources: LogResources,
        settings: TopicSettings,
        *,
        pending: Sequence[tuple[StoredBatch, JournalFile | None]],
        windows: ProducerWindows | None,
        sealed_end: int | None,
        on_advanced: Callable[[], None],
        on_sealed: Callable[[], None],
    ) -> None:
        """`on_advanced`: there is more to read; `on_sealed`: a segment was finished."""
        self._place = place
        self._segments = segments
        self._resources = resources
        self.settings = settings
        self._on_advanced = on_advanced
        self._on_sealed = on_sealed
        self._writer: SegmentWriter | None = None
        self.turns = Turns()  # of who writes segments
        self.recent: RecentBatches | None = None
        self.pending = PendingTail(self)
        state = segments[-1]
        self._end = LogEnd(state.end_offset, state.last_epoch, state.last_append_time_us)
        for batch, file in pending:
            self.pending.add([batch], file)
            self._end = LogEnd.behind(batch.header)
        self._producers: ProducerAppends | None = None
        if windows is not None:
            self._producers = ProducerAppends(windows, resources.counters, resources.now_us)
        self._queue = AppendQueue()
        self._flying: tuple[list[BatchAppend | EventsAppend], list[StoredBatch]] = ([], [])
        self._is_appending = False
        self._linger: asyncio.TimerHandle | None = None
        self._is_linger_over = False
        self.is_open = sealed_end is None
        self._idle: asyncio.Event | None = None
        self._gone: TailraceError | None = None
        self.high_watermark = self._end.offset if sealed_end is None else sealed_end
        # What a power failure cannot take.
        self._durable_end = self.high_watermark
        self._unflushed_bytes = 0
        self._unflushed_paths: set[Path] | None = None
        self._spill_at_bytes = SPILL_BYTES
        self._owes_sync = False
        # Why the segment cannot be written: what is pending waits, and nothing is added to it.
        self._stuck: TailraceError | None = None

    @property
    def last_append_time_us(self) -> int:
        """Of the last batch."""
        return self._end.append_time_us

    @property
    def is_synced(self) -> bool:
        """Appends are durable when they are acknowledged."""
        return self.settings.durability == "fsync" or self._owes_sync

    def alter(self, settings: TopicSettings) -> None:
        """Other settings from now on; what waits already gets the durability that it came for."""
        self._owes_sync = self.is_synced and bool(self._queue)
        self.settings = settings
        if self._durable_end < self.high_watermark:
            self._resources.flusher.add(self, settings.flush_ms / 1000)
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
            self._schedule()

    # --- for producers ---

    def append_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: Appended,
        producer: Producer | None = None,
    ) -> None:
        """Append one event, in one batch with others that wait. `done` is called when stored."""
        admitted = self._admit(producer, 1, done)
        if admitted is not None:
            self._queue.add_event(key, value, timestamp_us, flags, admitted, producer)
            if not self._is_appending:
                self._schedule()

    def append_records(
        self, contents: RecordColumns | BatchBody, done: Appended, producer: Producer | None
    ) -> None:
        """Append a request's records as a batch of their own. `done` is called when stored."""
        admitted = self._admit(producer, contents.record_count, done)
        if admitted is not None:
            self._queue.add_batch(BatchAppend(contents, admitted, producer))
            if not self._is_appending:
                self._schedule()

    # --- for the log ---

    def refuse(self, reason: TailraceError) -> None:
        """Answer what comes from now on with `reason`; what is under way goes on."""
        self._gone = reason
        self.is_open = False

    async def drained(self) -> None:
        """Once the appends under way have ended; none may come after."""
        self.is_open = False
        if not self._is_appending:
            self._schedule()  # what lingers does so no longer
        while self._queue or self._is_appending:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    async def spilled(self) -> TailraceError | None:
        """Once what is pending now is in the segment, and its writer idle; or why it is not."""
        end_offset = self.high_watermark
        while True:
            outcome: asyncio.Future[TailraceError | None]
            outcome = asyncio.get_running_loop().create_future()
            self.spill(partial(_tell, outcome))
            error = await outcome
            rest = self.pending.batches
            if error is not None or not rest or rest[0].header.base_offset >= end_offset:
                return error

    async def save_producers(self) -> None:
        """For the next start: what a scan of the last segment alone will not tell.

        Called with the turn to write segments.
        """
        if self._producers is not None:
            await self._resources.io.run(self._saving_producers())

    async def roll(self) -> None:
        """Finish the last segment. Called with the turn to write segments."""
        await self._resources.io.run(self._segment_writer().roll)

    def forget_unflushed(self, paths: Sequence[Path]) -> None:
        """They are being removed."""
        if self._unflushed_paths:
            self._unflushed_paths.difference_update(paths)

    # --- for the journal and the flusher ---

    def take_for_journal(self) -> Sequence[StoredBatch]:
        """The group that is appended now; nothing when it has become large: it goes its own way."""
        if self._goes_to_segment():
            self.turns.take(self._write_group)
            return ()
        group = self._queue.take_group()
        batches = self._stamp(self._compress([append.contents() for append in group]))
        self._flying = group, batches
        return batches

    def on_journaled(
        self, file: JournalFile, error: TailraceError | None, *, is_durable: bool
    ) -> None:
        """The group is in the journal's file, or it failed."""
        group, batches = self._flying
        self._flying = ([], [])
        if error is None:
            self.pending.add(batches, file)
        self._on_appended(group, batches, error, is_durable=is_durable)
        if self.pending.size_bytes >= self._spill_at_bytes:
            # Not again before as much has come: while this one is under way, or when it failed.
            self._spill_at_bytes = self.pending.size_bytes + SPILL_BYTES
            self.spill(self._on_grown_tail_spilled)

    def spill(self, done: Callable[[TailraceError | None], None]) -> None:
        """Bring the pending tail to the segment, durably."""
        self._resources.spiller.spill(self, done)

    def begin_spill(self) -> SpillPart:
        """What is pending. It has the turn to write segments."""
        batches = self.pending.first(GROUP_BYTES_MAX)
        return SpillPart(self._segment_writer(), batches, len(self._segments), perf_counter())

    def end_spill(self, part: SpillPart, error: TailraceError | None) -> None:
        """The part is in the segment, durably; or not at all."""
        if part.batches:
            self._count_write(error, part.started_s)
            self._stuck = None if isinstance(error, DiskFullError) else error
        if error is None and part.batches:
            self.pending.drop_below(part.batches[-1].header.end_offset)
        self.turns.end()
        self._tell_sealed(part.segment_count)

    def set_aside(self, done: Callable[[TailraceError | None], None]) -> None:
        """Keep the pending tail in a file of its own: the segment cannot be written."""

        def saved(_: None, error: TailraceError | None) -> None:
            if error is None:
                self.pending.release()
            done(error)

        self._resources.io.submit(self.setting_aside(), saved)

    def setting_aside(self) -> Callable[[], None]:
        """For an I/O thread."""
        contents = [batch.contents() for batch in self.pending.batches]
        write_file = self._resources.write_file
        return partial(save_rescued, self._place.directory, contents, write_file)

    def begin_flush(self) -> tuple[int, Sequence[Path]]:
        """The end of what is written, and the segments that were written since the last flush."""
        paths, self._unflushed_paths = self._unflushed_paths, None
        self._unflushed_bytes = 0
        return self.high_watermark, () if self._gone else list(paths or ())

    def on_flushed(self, end_offset: int) -> None:
        """All below is durable."""
        self._durable_end = max(self._durable_end, end_offset)
        self._schedule()

    def on_flush_failed(self, paths: Sequence[Path], error: TailraceError) -> None:
        """What waits for it must not wait for ever; it is tried again."""
        self._unflushed_paths = {*paths, *(self._unflushed_paths or ())}
        if self.is_synced and not self._is_appending:
            while self._queue:
                for append in self._queue.take_group():
                    append.finish(-1, error)
            self._schedule()

    # --- how it is done ---

    def _on_grown_tail_spilled(self, error: TailraceError | None) -> None:
        if error is None:
            self._spill_at_bytes = SPILL_BYTES

    def _admit(
        self, producer: Producer | None, record_count: int, done: Appended
    ) -> Appended | None:
        """What to call when it is appended; None: it is answered, or waits for another's answer."""
        if self._gone or self._stuck:
            done(-1, self._gone or self._stuck)
            if self._stuck:
                self.spill(lambda _: None)  # what is mended takes appends again
            return None
        if producer is None:
            return done
        if self._producers is None:
            resources = self._resources
            self._producers = ProducerAppends(
                ProducerWindows(), resources.counters, resources.now_us
            )
        return self._producers.admit(producer, record_count, done)

    def _schedule(self) -> None:
        """Write what waits soon: in the next turn of the loop, so that this turn's others join."""
        if self._is_appending:
            return
        if not self._queue:
            if self._idle is not None:
                self._idle.set()
        elif self._lingers():
            pass
        elif self._durable_end < self.high_watermark and self.is_synced:
            self._resources.flusher.add(self, 0)  # it was `written`: what is before goes first
        else:
            self._is_appending = True
            if self._goes_to_segment():
                self._resources.io.call_soon(partial(self.turns.take, self._write_group))
            else:
                self._resources.journal.add(self)

    def _goes_to_segment(self) -> bool:
        """The group is large; or a failed one may still stand in the segment, and be taken for it
        by a recovery: the write to the segment cuts that away.
        """
        writer = self._writer
        is_large = self._queue.size_bytes >= LARGE_GROUP_BYTES
        return is_large or (writer is not None and writer.needs_cut)

    def _lingers(self) -> bool:
        """Single events wait for others, if the topic says so."""
        settings, queue = self.settings, self._queue
        if not settings.linger_ms and self._linger is None:
            return False
        is_full = 0 < settings.linger_bytes <= queue.size_bytes
        must_go = self._is_linger_over or is_full or not self.is_open
        if must_go or not settings.linger_ms or not queue.has_only_events:
            if self._linger is not None:
                self._linger.cancel()
            self._linger, self._is_linger_over = None, False
            return False
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(
                settings.linger_ms / 1000, self._end_linger
            )
        return True

    def _end_linger(self) -> None:
        """They have waited long enough."""
        self._linger, self._is_linger_over = None, True
        self._schedule()

    def _write_group(self) -> None:
        """It has the turn: write the group behind what is pending to the segment."""
        if self.pending.size_bytes >= GROUP_BYTES_MAX:  # one write would be too large
            self.turns.end()
            self.spill(self._write_group_behind)
            return
        group = self._queue.take_group()
        contents = [append.contents() for append in group]
        if sum(append.size_bytes for append in group) <= INLINE_COMPRESS_BYTES_MAX:
            contents = list(self._compress(contents))
        pending = list(self.pending.batches)
        # What the journal gives up for it must be safe.
        is_durable = self.is_synced or bool(pending)
        segment_count, started_s = len(self._segments), perf_counter()
        written_paths: set[Path] = set()

        def write() -> list[StoredBatch]:
            batches = self._stamp(self._compress(contents))
            path = self._segment_writer().write([*pending, *batches], is_durable=is_durable)
            if not is_durable:
                written_paths.add(path)
            return batches

        def done(batches: list[StoredBatch] | None, error: TailraceError | None) -> None:
            self._count_write(error, started_s)
            if written_paths:  # not in the thread: a flush under way has not seen it
                self._unflushed_paths = written_paths | (self._unflushed_paths or set())
            if error is None and pending:
                self.pending.drop_below(pending[-1].header.end_offset)
            self._on_appended(group, batches or [], error, is_durable=is_durable)
            self.turns.end()
            self._tell_sealed(segment_count)

        self._resources.io.submit(write, done)

    def _write_group_behind(self, error: TailraceError | None) -> None:
        """Some of a large pending tail was spilled, or could not be."""
        if error is None:
            self.turns.take(self._write_group)
        else:
            self._on_appended(self._queue.take_group(), [], error, is_durable=False)

    def _count_write(self, error: TailraceError | None, started_s: float) -> None:
        counters = self._resources.counters
        if error is None:
            counters.log_writes += 1
            counters.log_write_seconds += perf_counter() - started_s
        else:
            counters.log_write_errors += 1

    def _tell_sealed(self, segment_count: int) -> None:
        """If there are more segments than that now."""
        if len(self._segments) > segment_count:
            self.turns.take(self._save_producers)
            self._on_sealed()

    def _save_producers(self) -> None:
        """It has the turn: a segment was finished."""
        self._resources.io.submit(self._saving_producers(), lambda *_: self.turns.end())

    def _saving_producers(self) -> Callable[[], None]:
        windows = self._producers.windows if self._producers is not None else ProducerWindows()
        checkpoint = windows.checkpoint(self.high_watermark)
        return partial(save_checkpoint, self._place.directory, checkpoint)

    def _compress(self, contents: Sequence[RecordColumns | BatchBody]) -> list[BatchBody]:
        codec = self.settings.codec
        return [
            each
            if isinstance(each, BatchBody)
            else compress_columns(each, each.producer_table, codec)
            for each in contents
        ]

    def _stamp(self, bodies: Sequence[BatchBody]) -> list[StoredBatch]:
        """Behind the end; nothing else is being appended."""
        return stamp(bodies, self._place, self._end, self._resources.now_us(), self._durable_end)

    def _segment_writer(self) -> SegmentWriter:
        if self._writer is None:
            resources = self._resources
            self._writer = SegmentWriter(
                self._place,
                self._segments,
                resources.pool,
                resources.files,
                resources.inventory,
                segment_bytes=resources.segment_bytes,
            )
        return self._writer

    def _on_appended(
        self,
        group: Sequence[BatchAppend | EventsAppend],
        batches: Sequence[StoredBatch],
        error: TailraceError | None,
        *,
        is_durable: bool,
    ) -> None:
        """Publish the group, tell its producers, go on with what came meanwhile."""
        if error is not None:
            for append in group:
                append.finish(-1, error)
        else:
            self._publish(batches, is_durable=is_durable)
            for append, batch in zip(group, batches, strict=True):
                append.finish(batch.header.base_offset, None)
            self._on_advanced()
        self._owes_sync = self._owes_sync and bool(self._queue)
        self._is_appending = False
        self._schedule()

    def _publish(self, batches: Sequence[StoredBatch], *, is_durable: bool) -> None:
        """They can be read."""
        assert batches[0].header.base_offset == self.high_watermark
        resources, settings = self._resources, self.settings
        size_bytes = sum(batch.header.batch_bytes for batch in batches)
        is_behind = self._durable_end < self.high_watermark
        self._end = LogEnd.behind(batches[-1].header)
        self.high_watermark = self._end.offset
        if self._producers is not None:
            self._producers.on_stored(batches)
        if is_durable and not is_behind:
            self._durable_end = self.high_watermark
        else:
            if not self._unflushed_bytes:
                resources.flusher.add(self, settings.flush_ms / 1000)
            self._unflushed_bytes += size_bytes
            if self._unflushed_bytes >= settings.flush_bytes:
                resources.flusher.add(self, 0)
        self.recent = self.recent or RecentBatches()
        for batch in batches:
            resources.cache.add(self.recent, batch)
        resources.counters.log_appended_batches += len(batches)
        resources.counters.log_appended_bytes += size_bytes


def _tell(outcome: "asyncio.Future[TailraceError | None]", error: TailraceError | None) -> None:
    """Unless nobody waits any more."""
    if not outcome.cancelled():
        outcome.set_result(error)
