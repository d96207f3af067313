"""One partition's log: appends go to its tail, reads come from memory or disk, retention trims it.

Reads look into the recent batches, then into the pending tail, then into the segments. State
changes on the event loop only; blocking work runs in the I/O threads.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from tailrace_broker.codec.batch import BatchBody, StoredBatch
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.codec.producers import Checkpoint
from tailrace_broker.codec.segment import EpochStart, find_time
from tailrace_broker.core.log.epochs import EpochEnd, cut_epochs, joined
from tailrace_broker.core.log.producers import Producer, ProducerWindows
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.tail_events import CutLog, OwnWrite
from tailrace_broker.model.append_outcome import CutOutcome, LogIsCut, Misfit, OnAppended, OnCut
from tailrace_broker.model.damage import Damage, LostEnd
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    DiskFullError,
    OffsetOutOfRangeError,
    ReadFailedError,
    StorageFailedError,
    TailraceError,
)
from tailrace_broker.model.topic import NO_EPOCH, TopicSettings
from tailrace_broker.storage.files.io_share import Io
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.log.inheritance import Inheritance
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.log.recovery import lost_end_error
from tailrace_broker.storage.log.resources import LogResources, Reading
from tailrace_broker.storage.log.tail import LogTail
from tailrace_broker.storage.log.time_search import find_by_reading
from tailrace_broker.storage.log.trimming import trim_tail
from tailrace_broker.storage.segments.reader import (
    find_offset_of_time,
    first_of_time,
    read_batches,
)
from tailrace_broker.storage.segments.writer import LogPlace, segment_path

T = TypeVar("T")


class PartitionLog:
    """The log of one partition."""

    __slots__ = (
        "_end_before", "_gone", "_resources", "_tail", "_waiters", "_withheld", "lost_end",
        "on_trimmed", "place", "role", "segments",
    )  # fmt: skip

    def __init__(
        self,
        place: LogPlace,
        segments: list[SegmentState],
        resources: LogResources,
        settings: TopicSettings,
        role: RangeRole,
        *,
        start: LogStart | None = None,
        pending: Sequence[tuple[StoredBatch, JournalFile | None]] = (),
        windows: ProducerWindows | None = None,
        sealed_end: int | None = None,
        lost_end: LostEnd | None = None,
    ) -> None:
        """`segments` to `windows` and `lost_end` as recovered; a sealed log is read up to its end.

        `start` None: it was never moved. A log without its end is read as far as it goes.
        """
        self.place = place
        self.segments = segments
        first_offset = segments[0].base_offset
        self._resources = resources
        self._tail = LogTail(
            place,
            segments,
            resources,
            settings,
            role,
            start or LogStart(first_offset, first_offset, NO_EPOCH, 0),
            pending=pending,
            windows=windows,
            sealed_end=sealed_end,
            on_advanced=self._wake_waiters,
            on_sealed=partial(resources.on_sealed, self),
        )
        self.role = role
        role.add(self)
        self.on_trimmed: Callable[[int], None] | None = None  # gets the new log start
        self._waiters: set[asyncio.Future[None]] | None = None
        self._gone: TailraceError | None = None
        self._end_before = self.log_end  # when its present role began
        self._withheld: TailraceError | None = None
        self.lost_end = lost_end
        if lost_end is not None:
            self._tail.refuse(self.lost_end_error(lost_end))

    @property
    def settings(self) -> TopicSettings:
        """Of its topic."""
        return self._tail.replica.settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._tail.alter(settings)

    @property
    def high_watermark(self) -> int:
        """The end of what is committed, and can be read."""
        return self._tail.replica.high_watermark

    @property
    def log_start(self) -> int:
        """What is below it is gone for readers, whatever the first segment holds."""
        return self._tail.start.log_start

    @property
    def log_end(self) -> int:
        """The written end of this replica's log."""
        return self._tail.replica.end.offset

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch up to this one, and where it ends in this replica's log."""
        return self._tail.replica.end_of_epoch(epoch)

    @property
    def last_append_time_us(self) -> int:
        """Of its last batch."""
        return self._tail.replica.end.append_time_us

    @property
    def waiters(self) -> Collection[asyncio.Future[None]]:
        """Who waits for a record; some wait at other logs too."""
        return self._waiters or ()

    @property
    def pending_bytes(self) -> int:
        """Of batches that the journal holds for it."""
        return self._tail.pending.size_bytes

    @property
    def quarantined(self) -> Sequence[Damage]:
        """What of it is known to be damaged, in order."""
        return self._resources.quarantine.of(self)

    def producers(self) -> Checkpoint:
        """Return what is remembered of its producers."""
        return (self._tail.replica.windows or ProducerWindows()).checkpoint(self.log_end)

    def inherit(self, inheritance: Inheritance) -> None:
        """Its partition has parents: their producers are known before its own."""
        self._tail.inheritance = inheritance

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches on disk, pads included."""
        return sum(state.position for state in self.segments) + self.pending_bytes

    @property
    def has_segments(self) -> bool:
        """Something of it has left the journal."""
        return any(state.position for state in self.segments)

    @property
    def newest_segment(self) -> int:
        """Base offset of the last segment with a batch; there is one."""
        return next(each.base_offset for each in reversed(self.segments) if each.position)

    @property
    def is_served(self) -> bool:
        """This process leads its range, or has a whole copy of a sealed one, for users."""
        return self.role.elsewhere is None and self._withheld is None

    @property
    def is_led(self) -> bool:
        """This process takes appends: not while it is about to lead."""
        return self.role.epoch is not None

    def check_served(self) -> None:
        """NotLeaderError, NoLeaderError."""
        if self.role.elsewhere is not None:
            raise self.role.elsewhere(self.place.topic, self.place.partition)

    @property
    def knows_end(self) -> bool:
        """The high watermark is no older than one that an earlier leader has given to readers."""
        has_one_copy = self.role.commits_alone or self.lost_end is not None
        return has_one_copy or self.high_watermark >= self._end_before

    async def check_led(self) -> None:
        """NotLeaderError; NoLeaderError: another may lead by now, and have committed more."""
        self.check_served()
        await self.role.check_led(self.place)

    async def check_end(self) -> None:
        """NoLeaderError: so it may be, or this one is new, and does not know all yet.

        The high watermark after the call is no lower than any was anywhere before it.
        """
        await self.check_led()
        if not self.knows_end:
            raise self.role.unknown_end(self.place)

    def on_role_changed(self) -> None:
        """Answer appends, and wake readers, of whom some may ask another broker now."""
        self._tail.on_role_changed()
        self._end_before = self.log_end
        self._wake_waiters()

    def on_shortage(self) -> None:
        """Answer appends that cannot be committed now."""
        self._tail.on_shortage()

    def flush(self) -> None:
        """Make durable what is not, at once."""
        if self.durable_end < self.log_end:
            self._resources.flusher.add(self._tail, 0)

    async def flush_all(self) -> bool:
        """Make all of it durable, what was not before it was opened too; whether that worked."""
        self._tail.unflushed.add_all()
        self._resources.flusher.add(self._tail, 0)
        return await self._resources.flusher.flush_all()

    # --- appending ---

    def append_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: OnAppended,
        producer: Producer | None = None,
    ) -> None:
        """Append one event, in one batch with others that wait. `done` is called when stored."""
        self._tail.append_event(key, value, timestamp_us, flags, done, producer)

    def append_records(
        self,
        contents: RecordColumns | BatchBody,
        done: OnAppended,
        producer: Producer | None = None,
    ) -> None:
        """Append a request's records as a batch of their own. `done` is called when stored."""
        self._tail.append_records(contents, done, producer)

    # --- following ---

    def append_stored(self, batches: Sequence[StoredBatch], done: OnAppended) -> Misfit | None:
        """Append verified batches, unchanged, as their leader sent them; or say why they misfit.

        `done` is called when they are written, in the order of the calls. They are durable then if
        the topic is `fsync`; else below `durable_end`.
        """
        return self._tail.append_stored(batches, done)

    def cut(self, end: int, epoch: int, done: OnCut, *, is_reset: bool) -> None:
        """Cut the log at the end of a batch of `epoch`; `done` is called when that is durable.

        It may be below the high watermark. `is_reset`: nothing before is kept either. Writes under
        way end first; appends that come later wait. A cut that failed must be repeated before
        anything is appended.
        """

        def on_cut(outcome: CutOutcome) -> None:
            if isinstance(outcome, LogIsCut):
                if is_reset:
                    self._tail.start = LogStart(end, end, epoch, 0)
                self._resources.quarantine.cut(self, -1 if is_reset else end)
            done(outcome)

        self._tail.cut(CutLog(end, epoch, is_reset, on_cut))

    def commit(self, high_watermark: int) -> None:
        """All below is committed, as the range's leader says; here as far as the log goes."""
        self._tail.commit(high_watermark)

    @property
    def durable_end(self) -> int:
        """No loss of power takes what is below."""
        return self._tail.replica.durable_end

    @property
    def is_writing(self) -> bool:
        """A write or a cut is under way."""
        return self._tail.replica.is_writing

    def on_durable(self, report: Callable[[], None]) -> None:
        """Call this when a flush has ended."""
        self._tail.on_durable = report

    def on_own_write(self, report: Callable[[OwnWrite], None]) -> None:
        """Call this when a write of this process as leader begins, and when it has ended."""
        self._tail.on_own_write = report

    def epochs(self) -> tuple[int, Sequence[EpochStart]]:
        """Return the epoch of the batch before the log start, and those from there on."""
        before = cut_epochs(joined(each.epochs for each in self.segments), self.log_start)
        epoch_before = before[-1].epoch if before else self._tail.start.epoch_before
        return epoch_before, self._tail.replica.epochs

    def read_recent(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """As `read`, also above the high watermark; none: they are not in memory."""
        tail = self._tail
        recent = tail.recent.read(offset, max_bytes) if tail.recent is not None else None
        return recent or tail.pending.read(offset, max_bytes)

    async def read_written(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """As `read`, also above the high watermark, for followers: from the catch-up quota."""
        if self._gone:
            raise self._gone
        if not self.log_start <= offset < self.log_end:
            raise self._out_of_range(offset)
        found, reading = self.read_recent(offset, max_bytes), self._resources.catch_up
        return found or await self._read_from_disk(offset, max_bytes, self.log_end, reading)

    # --- reading ---

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Batches below the high watermark from the one that holds `offset`; none at the end.

        Up to `max_bytes`, at least one. OffsetOutOfRangeError; CorruptPartitionError.
        """
        self._check_here()
        if self.lost_end is not None and offset >= self.high_watermark:
            raise self.lost_end_error(self.lost_end)
        self._check_range(offset)
        if offset >= self.high_watermark:
            return []
        batches = self.read_recent(offset, max_bytes)
        if not batches:
            end, reading = self.high_watermark, self._resources.reading
            return await self._read_from_disk(offset, max_bytes, end, reading)
        while batches and batches[-1].header.end_offset > self.high_watermark:
            batches.pop()
        return batches

    async def find_timestamp(self, timestamp_us: int) -> int | None:
        """The first committed offset whose record is of this time or later; None: there is none.

        CorruptPartitionError.
        """
        self._check_here()
        end_offset = self.high_watermark
        for state in list(self.segments):
            if state.entries and state.largest_timestamp_us >= timestamp_us:
                try:
                    offset = await self._find_in_segment(state, timestamp_us, end_offset)
                except ReadFailedError:
                    if state.end_offset > self.log_start:
                        raise
                    continue  # retention has removed it meanwhile
                if offset is not None and offset < self.log_start:
                    offset = await find_by_reading(
                        self, timestamp_us, state.end_offset, self._resources.io
                    )
                if offset is not None:
                    return offset
        pending = self._tail.pending.find_time(timestamp_us)
        if pending is None or pending.header.base_offset >= end_offset:
            return None
        work = partial(first_of_time, pending, timestamp_us)
        offset = await self._blocking(work, self.segments[-1], pending.header.base_offset)
        if offset is None or offset >= self.log_start:
            return offset
        return await find_by_reading(self, timestamp_us, end_offset, self._resources.io)

    async def wait_beyond(self, offset: int) -> None:
        """Until the high watermark is above `offset`, or the log takes no more appends."""
        while self.high_watermark <= offset and self._tail.is_open and self.is_served:
            waiter = asyncio.get_running_loop().create_future()
            self.add_waiter(waiter)
            try:
                await waiter
            finally:
                self.remove_waiter(waiter)

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It is done when the high watermark moves or the log closes; one may wait at many logs."""
        self._waiters = self._waiters or set()
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It does not wait any more."""
        if self._waiters is not None:
            self._waiters.discard(waiter)

    # --- its start and its end ---

    async def trim(self, log_start: int) -> None:
        """Move the log start up to there, durably, and remove the segments that end below it.

        `log_start`: any offset up to the high watermark. It stays lower while what is pending below
        it has no place in a segment: the next trim goes on. DiskFullError, StorageFailedError.
        """
        assert log_start <= self.high_watermark, (log_start, self.high_watermark)
        if log_start > self.segments[-1].end_offset:
            await self.spilled()
        async with self._tail.turns.turn():
            await trim_tail(self._tail, self.segments, self._resources, log_start, self.on_trimmed)

    async def roll(self) -> int:
        """Begin a new segment; its base offset, below which `trim` can remove all.

        DiskFullError, StorageFailedError.
        """
        failed = await self.spilled()
        if failed is not None:
            raise failed
        async with self._tail.turns.turn():
            if self.segments[-1].base_offset < self.segments[-1].end_offset:
                await self._tail.roll()
            return self.segments[-1].base_offset

    async def spilled(self) -> TailraceError | None:
        """Once what is pending now is in the segment; or why it is not.

        Of a log that has lost its end it stays out: the segment may still be restored.
        """
        return await self._tail.spilled() if self.lost_end is None else None

    def give_up(self, reason: TailraceError) -> None:
        """Answer appends and reads from now on with `reason`: it goes, when those before ended."""
        self._gone = reason
        self._tail.refuse(reason)
        self._wake_waiters()

    def withhold(self, reason: TailraceError | None) -> None:
        """Answer users, but no leader or follower, with `reason`; None: take theirs again."""
        self._withheld = reason
        self._tail.withhold(reason)
        self._wake_waiters()

    def seal(self, end_offset: int, reason: TailraceError) -> None:
        """Its range is being sealed in this turn: appends that come, or wait, fail with `reason`.

        Nothing is attempted any more: the leader has held them since before it reported the end.
        CorruptBatchError: this copy does not end there; it must not be served.
        """
        if self.log_end != end_offset and self.lost_end is None:
            raise CorruptBatchError(
                f"the log ends at {self.log_end}, and was sealed at {end_offset}"
            )
        self._tail.seal(reason)

    async def drained(self) -> None:
        """Once the appends under way have ended; none may come after."""
        self._tail.is_open = False
        self._wake_waiters()
        await self._tail.drained()

    async def close(self) -> None:
        """Bring what is pending to the segment, once the appends under way have ended.

        None may come after. What cannot be brought there (a full disk) stays in the journal; of a
        log that was given up it is set aside.
        """
        tail, resources = self._tail, self._resources
        await self.drained()
        is_spilled = await self.spilled() is None
        if self._gone is None:
            async with tail.turns.turn():
                await tail.save_producers()
        elif not is_spilled:
            with suppress(DiskFullError, StorageFailedError):
                await resources.io.run(tail.setting_aside())
            tail.pending.drop_below(tail.replica.end.offset)
        resources.files.forget(*map(self._path_of, self.segments))
        resources.quarantine.forget(self)
        self.role.remove(self)

    # --- how it is done ---

    def _wake_waiters(self) -> None:
        """Let them look again, all in this turn of the loop."""
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def _check_here(self) -> None:
        """Raise why users cannot read it."""
        refusal = self._gone or self._withheld
        if refusal is not None:
            raise refusal

    def _check_range(self, offset: int) -> None:
        """A new leader may not know yet how far its log was committed."""
        end = self.high_watermark if self.role.commits_alone else self.log_end
        if not self.log_start <= offset <= end:
            raise self._out_of_range(offset)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"offset {offset} is not in [{self.log_start}, {self.high_watermark}]",
            logStart=self.log_start,
            highWatermark=self.high_watermark,
        )

    def lost_end_error(self, lost: LostEnd) -> CorruptPartitionError:
        """The error of reads behind the end, and of appends."""
        return lost_end_error(self.place, lost, has_segments=self.has_segments)

    def _path_of(self, state: SegmentState) -> Path:
        return segment_path(self.place.directory, state.base_offset)

    async def _read_from_disk(
        self, offset: int, max_bytes: int, end_offset: int, reading: Reading
    ) -> list[StoredBatch]:
        if (lost := self._resources.quarantine.loss_error(self, offset)) is not None:
            raise lost
        self._resources.counters.log_disk_reads += 1
        state = self.segments[
            bisect_right(self.segments, offset, key=attrgetter("base_offset")) - 1
        ]
        read = partial(
            read_batches,
            self._resources.files,
            self._path_of(state),
            state,
            reading.memory,
            offset=offset,
            end_offset=min(end_offset, state.end_offset),  # behind it may be what was cut
            max_bytes=max_bytes,
        )
        try:
            return await self._blocking(read, state, offset, reading.io)
        except ReadFailedError as error:
            self._check_range(offset)  # retention may have removed the segment meanwhile
            if offset >= state.end_offset or state not in self.segments:  # a cut is under way
                raise self._out_of_range(offset) from error
            self._resources.quarantine.unreadable(self, error)
            raise

    async def _find_in_segment(
        self, state: SegmentState, timestamp_us: int, end_offset: int
    ) -> int | None:
        """From memory when it reaches back far enough, else from the segment's file."""
        first_offset = state.base_offset + find_time(state.entries, timestamp_us).relative_offset
        recent_batches = self._tail.recent
        recent = recent_batches.find_time(first_offset, timestamp_us) if recent_batches else None
        if recent is not None and recent.header.base_offset >= end_offset:
            return None
        if recent is not None:
            work = partial(first_of_time, recent, timestamp_us)
            return await self._blocking(work, state, first_offset)
        self._resources.counters.log_disk_reads += 1
        return await self._blocking(
            partial(
                find_offset_of_time,
                self._resources.files,
                self._path_of(state),
                state,
                self._resources.pool,
                timestamp_us=timestamp_us,
                end_offset=min(end_offset, state.end_offset),
            ),
            state,
            first_offset,
        )

    async def _blocking(
        self, work: Callable[[], T], state: SegmentState, offset: int, io: Io | None = None
    ) -> T:
        """Read in an I/O thread, of this segment from the batch of this offset on.

        CorruptPartitionError; of a log that went away its reason.
        """
        try:
            return await (io or self._resources.io).run(work)
        except ReadFailedError:
            if self._gone:  # its files are being moved away
                raise self._gone from None
            raise
        except CorruptBatchError as error:
            quarantine = self._resources.quarantine
            raise await quarantine.damaged(self, state, offset, error) from error
