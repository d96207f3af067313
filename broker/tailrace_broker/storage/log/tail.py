"""The end of a partition's log on this broker: runs what the machines of its tail decide.

`leader_appends`, `follower_appends` and `replica_tail` of `core.log` decide; here are the buffers,
the files, the timer and the lock of the segments. A small write goes into the broker's journal with
those of other partitions; it stays in memory, the pending tail, until it is spilled to the log's
segment. A large write goes straight to the segment, behind the pending tail, in one.

State changes on the event loop only; blocking work runs in the I/O threads.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import assert_never

from tailrace_broker.codec.batch import BatchBody, StoredBatch, compressed, stamp_batches
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.core.log.appends import GROUP_BYTES_MAX
from tailrace_broker.core.log.epochs import joined, note_epoch
from tailrace_broker.core.log.follower_appends import FollowerAppends
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.producers import Producer, ProducerWindows
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.replica_tail import LogId, ReplicaTail
from tailrace_broker.core.log.tail_events import (
    CLOSING,
    FLUSH_BEGUN,
    JOURNAL_TURN,
    LINGER_OVER,
    SEGMENT_TURN,
    Acknowledge,
    AnswerCut,
    AskJournal,
    AskSegment,
    CommitsAlone,
    CutEnded,
    CutLog,
    CutNotBegun,
    CutNow,
    EpochEnded,
    Fail,
    Flush,
    Flushed,
    FlushFailed,
    GiveUpEpoch,
    HighWatermarkMoved,
    LogEnd,
    OwnWrite,
    Publish,
    Refused,
    SettingsAltered,
    Spill,
    Spilled,
    StartLinger,
    StopLinger,
    TailEffect,
    TailEvent,
    WakeReaders,
    Write,
    WriteFailed,
    WriteStored,
    Written,
)
from tailrace_broker.model.append_outcome import (
    Appended,
    AppendFailed,
    CutRefused,
    Misfit,
    MisfitReason,
    OnAppended,
)
from tailrace_broker.model.errors import NotReadyError, TailraceError
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.files.io_share import Io
from tailrace_broker.storage.files.turns import Turns
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.journal.spiller import SpillPart
from tailrace_broker.storage.log.batch_cache import RecentBatches
from tailrace_broker.storage.log.cutting import CutParts, Cutting
from tailrace_broker.storage.log.inheritance import Inheritance
from tailrace_broker.storage.log.pending_tail import PendingTail
from tailrace_broker.storage.log.producer_recovery import save_checkpoint
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.log.rescued_tail import save_rescued
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.log.unflushed import UnflushedSegments
from tailrace_broker.storage.segments.writer import LogPlace, SegmentWriter

# From here on LZ4 and CRC run in an I/O thread, so that the event loop stays free.
INLINE_COMPRESS_BYTES_MAX = 256 * 1024


class LogTail:
    """An idle one has no file, no timer, no task."""

    __slots__ = (
        "_follower", "_frame", "_gone", "_has_own_write", "_idle", "_leader", "_linger",
        "_on_advanced", "_on_sealed", "_resources", "_role", "_segments",
        "_withheld", "_write", "_writer", "inheritance", "is_open", "on_durable", "on_own_write",
        "pending", "place", "recent", "replica", "start", "turns", "unflushed",
    )  # fmt: skip

    def __init__(
        self,
        place: LogPlace,
        segments: list[SegmentState],
        resources: LogResources,
        settings: TopicSettings,
        role: RangeRole,
        start: LogStart,
        *,
        pending: Sequence[tuple[StoredBatch, JournalFile | None]],
        windows: ProducerWindows | None,
        sealed_end: int | None,
        on_advanced: Callable[[], None],
        on_sealed: Callable[[], None],
    ) -> None:
        """`on_advanced`: there is more to read; `on_sealed`: a segment was finished."""
        self.place = place
        self._segments = segments
        self._resources = resources
        self._on_advanced = on_advanced
        self._on_sealed = on_sealed
        self._writer: SegmentWriter | None = None
        self.turns = Turns()  # of who writes segments
        self.recent: RecentBatches | None = None
        self.pending = PendingTail(self)
        state = segments[-1]
        end = LogEnd.of(state)
        epochs = joined(segment.epochs for segment in segments)
        committed_end = max(start.log_start, state.high_watermark)
        for batch, file in pending:
            self.pending.add([batch], file)
            note_epoch(epochs, batch.header.epoch, batch.header.base_offset)
            end = LogEnd.behind(batch.header)
            committed_end = max(committed_end, batch.header.high_watermark)
        self.replica = ReplicaTail(
            LogId(place.topic_id, place.range_id, place.partition),
            end,
            settings,
            windows=windows,
            pending_bytes=self.pending.size_bytes,
            sealed_end=sealed_end,
            epochs=epochs,
            committed_end=None if role.commits_alone else min(committed_end, end.offset),
        )
        self.replica.trim(start.log_start)
        self.start = start  # changed by who has the turn
        self._role = role
        self._leader: LeaderAppends | None = None  # from the first append of a role on
        self._follower: FollowerAppends | None = None  # likewise, of a role that follows
        self.on_durable: Callable[[], None] | None = None  # called when a flush has ended
        self.on_own_write: Callable[[OwnWrite], None] | None = None
        self._has_own_write = False  # in flight: of a leader, not of batches that it sent
        self._write: Write | None = None  # what the machine has decided in this turn
        self._frame: Sequence[StoredBatch] = ()  # what is being written to the journal
        self._linger: asyncio.TimerHandle | None = None
        self.inheritance: Inheritance | None = None  # of a log whose partition has parents
        self.is_open = sealed_end is None
        self._idle: asyncio.Event | None = None
        self._gone: TailraceError | None = None
        self._withheld: TailraceError | None = None
        self.unflushed = UnflushedSegments(place.directory, segments)

    @property
    def is_synced(self) -> bool:
        """Appends are durable when they are acknowledged."""
        return self.replica.is_synced

    def alter(self, settings: TopicSettings) -> None:
        """Go on with other settings."""
        self._step(SettingsAltered(settings))

    # --- for producers ---

    def append_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        """Append one event, in one batch with others that wait. `done` is called when stored."""
        leader = self._leader or self._lead(
            done, partial(self.append_event, key, value, timestamp_us, flags, done, producer)
        )
        if leader is None:
            return
        now_us = 0 if producer is None else self._resources.now_us()
        effects = leader.append_event(key, value, timestamp_us, flags, done, producer, now_us)
        if effects:
            self._execute(effects)

    def append_records(
        self, contents: RecordColumns | BatchBody, done: OnAppended, producer: Producer | None
    ) -> None:
        """Append a request's records as a batch of their own. `done` is called when stored."""
        again = self.append_records
        leader = self._leader or self._lead(done, partial(again, contents, done, producer))
        if leader is not None:
            now_us = self._resources.now_us()
            self._execute(leader.append_records(contents, done, producer, now_us))

    def _lead(self, done: OnAppended, again: Callable[[], None]) -> LeaderAppends | None:
        """Begin to take appends in this epoch; or refuse this one, or have it come `again`."""
        epoch = self._role.epoch
        refusal = self._gone or self._withheld
        if refusal is not None:
            done(AppendFailed(refusal))
        elif epoch is None:
            done(AppendFailed(self._role.refusal(self.place)))
        elif self._follower is not None and not self._follower.may_end:
            done(AppendFailed(NotReadyError("writes of the role before are under way")))
        elif (shortage := self._role.shortage(self.place, self.replica.settings)) is not None:
            done(AppendFailed(shortage))
        elif self.inheritance is None or not self.inheritance.must_wait(again):
            self._follower = None
            self._leader = LeaderAppends(self.replica, epoch, is_held=self._role.is_held)
            if self.inheritance is not None:
                self.inheritance.hand_on(self._leader)
        return self._leader

    # --- for followers ---

    def append_stored(self, batches: Sequence[StoredBatch], done: OnAppended) -> Misfit | None:
        """Append verified batches as they are. `done` is called when they are written."""
        follower = self._follow()
        if follower is None:
            return Misfit(MisfitReason.CLOSED, "this process leads the range")
        effects = follower.append(batches, done)
        if isinstance(effects, Misfit):
            return effects
        self._execute(effects)
        return None

    def cut(self, cut: CutLog) -> None:
        """Cut the log once the writes under way have ended; appends that come later wait."""
        follower = self._follow()
        if follower is None:
            cut.done(CutRefused("this process leads the range"))
        else:
            self._execute(follower.cut(cut))

    def _follow(self) -> FollowerAppends | None:
        """Begin to take batches of a leader; None: this process is one itself."""
        if self._leader is not None:
            return None
        if self._follower is None:
            self._follower = FollowerAppends(self.replica)
            if self._gone is not None:
                self._follower.step(Refused(self._gone))
        return self._follower

    def commit(self, high_watermark: int) -> None:
        """All below is committed, as the leader says."""
        self._step(HighWatermarkMoved(high_watermark))

    def _cut_now(self, cut: CutLog) -> None:
        parts = CutParts(
            self.place,
            lambda: self.start,
            self._segments,
            self._resources,
            self.turns,
            self.pending,
            self.replica.windows,
            lambda: self._needs_cut,
            is_repeated=self._follower is not None and self._follower.is_half_cut,
        )
        self.recent = None  # what is evicted of it later must not be what comes now
        Cutting(cut, parts, self._on_cut).begin()

    def _on_cut(self, event: CutNotBegun | CutEnded) -> None:
        if isinstance(event, CutEnded) and not event.needs_cut:
            self._writer = None  # the last segment may be another
        self.unflushed.keep()
        self._step(event)

    # --- for the log ---

    def on_role_changed(self) -> None:
        """Answer the appends of the epoch that has ended, in the same turn of the event loop."""
        self._answer_epoch()
        if self._role.commits_alone != self.replica.commits_alone:
            self._step(CommitsAlone(self._role.commits_alone))

    def on_shortage(self) -> None:
        """Refuse what comes and give up what waits, or take appends again."""
        if self._leader is None or self._gone is not None or self._withheld is not None:
            return
        self._step(Refused(self._role.shortage(self.place, self.replica.settings)))
        attempted = self._role.shortage(self.place, self.replica.settings, is_attempted=True)
        if attempted is not None:
            self._step(FlushFailed(attempted))

    def _answer_epoch(self) -> None:
        leader, epoch = self._leader, self._role.epoch
        if leader is None:
            if self.inheritance is not None:
                self.inheritance.try_again()
            return
        if self._role.is_held:
            leader.hold()
            return
        is_idle = leader.is_idle
        if is_idle or epoch is None:
            self._leader = None  # the next append begins with another
        if not is_idle:
            is_deposed = epoch is None
            attempted = self._role.interrupted(self.place, is_deposed=is_deposed)
            refusal = self._withheld or self._role.refusal(self.place) if is_deposed else None
            self._execute(leader.step(EpochEnded(attempted, epoch, refusal), 0))

    def refuse(self, reason: TailraceError) -> None:
        """Answer what comes from now on with `reason`; what is under way goes on."""
        self._gone = reason
        self.is_open = False
        if self.inheritance is not None:
            self.inheritance.end()
        self._step(Refused(reason))

    def seal(self, reason: TailraceError) -> None:
        """Its range takes no more: the end of the role answers what waits with `reason`."""
        self._withheld, self.is_open = reason, False

    def withhold(self, reason: TailraceError | None) -> None:
        """Answer appends of producers with `reason`; None: take them again."""
        self._withheld = reason
        if self._leader is not None:
            self._step(Refused(reason))

    async def drained(self) -> None:
        """Once the appends under way have ended; none may come after."""
        self.is_open = False
        if self.inheritance is not None:
            self.inheritance.end()
        self._step(CLOSING)
        while not self._is_idle:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    async def spilled(self) -> TailraceError | None:
        """Once what is pending now is in the segment, and its writer idle; or why it is not."""
        end_offset, pending = self.replica.end.offset, self.pending

        def is_done() -> bool:
            return not pending.batches or pending.batches[0].header.base_offset >= end_offset

        return await self._resources.spiller.spilled(self, is_done)

    async def save_producers(self) -> None:
        """For the next start: what a scan of the last segment alone will not tell.

        Called with the turn to write segments.
        """
        if self.replica.windows is not None:
            await self._resources.io.run(self._saving_producers())

    async def roll(self) -> None:
        """Finish the last segment. Called with the turn to write segments."""
        await self._resources.io.run(self._segment_writer().roll)

    # --- for the journal, the spiller and the flusher ---

    def take_for_journal(self) -> Sequence[StoredBatch]:
        """What is written now; nothing when it has become large: it goes to the segment."""
        self._step(JOURNAL_TURN, self._resources.now_us())
        write = self._taken()
        if write is not None:
            codec = self.replica.settings.codec
            self._frame = stamp_batches(compressed(write.contents, codec), write.first)
        return self._frame

    def on_journaled(
        self, file: JournalFile, error: TailraceError | None, *, is_durable: bool
    ) -> None:
        """The group is in the journal's file, or it failed."""
        batches, self._frame = self._frame, ()
        if error is None:
            self.pending.add(batches, file)
            self._end_write(Written(batches, is_journaled=True, is_durable=is_durable))
        else:
            self._end_write(WriteFailed(error, self._needs_cut))

    def begin_spill(self) -> SpillPart:
        """What is pending. It has the turn to write segments."""
        batches = self.pending.first(GROUP_BYTES_MAX)
        return SpillPart(self._segment_writer(), batches, len(self._segments), perf_counter())

    def end_spill(self, part: SpillPart, error: TailraceError | None) -> None:
        """The part is in the segment, durably; or not at all."""
        if part.batches:
            self._resources.counters.add_log_write(error, perf_counter() - part.started_s)
        if error is None and part.batches:
            self.pending.drop_below(part.batches[-1].header.end_offset)
        self.turns.end()
        self._tell_sealed(part.segment_count)
        self._step(Spilled(error, self.pending.size_bytes, self._needs_cut))

    def set_aside(self, done: Callable[[TailraceError | None], None]) -> None:
        """Keep the pending tail in a file of its own: the segment cannot be written."""

        def saved(_: None, error: TailraceError | None) -> None:
            if error is None:
                self.pending.release()
            self.turns.end()
            done(error)

        # A cut changes that file too.
        self.turns.take(lambda: self._resources.io.submit(self.setting_aside(), saved))

    def setting_aside(self) -> Callable[[], None]:
        """For an I/O thread."""
        contents = [batch.contents() for batch in self.pending.batches]
        return partial(save_rescued, self.place.directory, contents, self._resources.write_file)

    def begin_flush(self) -> tuple[int, Sequence[Path]]:
        """The end of what is written, and the segments that were written since the last flush."""
        self._step(FLUSH_BEGUN)
        paths = self.unflushed.take()
        return self.replica.end.offset, () if self._gone else paths

    def on_flushed(self, end_offset: int) -> None:
        """All below is durable."""
        self._step(Flushed(end_offset))
        if self.on_durable is not None:
            self.on_durable()

    def on_flush_failed(self, paths: Sequence[Path], error: TailraceError) -> None:
        """These segments, or the journal, could not be synced; it is tried again."""
        self.unflushed.keep(paths)
        self._step(FlushFailed(error))

    # --- the machine ---

    def _step(self, event: TailEvent, now_us: int = 0) -> None:  # `now_us`: of a turn
        if self._leader is None:
            self._execute((self._follower or self.replica).step(event))
        else:
            self._execute(self._leader.step(event, now_us))
        if self._idle is not None and self._is_idle:
            self._idle.set()

    @property
    def _is_idle(self) -> bool:
        """No append is under way, nor a write."""
        return not self.replica.is_writing if self._leader is None else self._leader.is_idle

    def _execute(self, effects: Iterable[TailEffect]) -> None:
        """Run the effects in their order. An answer may bring further appends in between."""
        resources = self._resources
        for effect in effects:
            match effect:
                case Publish():
                    self._publish(effect.batches)
                case WakeReaders():
                    self._on_advanced()
                case Acknowledge():
                    self._acknowledge(effect)
                case Fail():
                    effect.done(AppendFailed(effect.error, effect.written_end))
                case AskJournal():
                    resources.journal.add(self)
                case Write():
                    self._write = effect
                    self._has_own_write = True
                    if self.on_own_write is not None:
                        self.on_own_write(effect)
                case WriteStored():
                    self._frame = effect.batches
                case CutNow():
                    self._cut_now(effect.cut)
                case AnswerCut():
                    effect.done(effect.outcome)
                case AskSegment():
                    resources.io.call_soon(partial(self.turns.take, self._write_segment))
                case Flush():
                    within_ms = 0 if self._role.is_in_step else effect.within_ms
                    resources.flusher.add(self, within_ms / 1000)
                case GiveUpEpoch():
                    self._role.give_up(effect.epoch)
                case Spill():
                    resources.spiller.spill(self, lambda _: None)
                case StartLinger():
                    self._linger = asyncio.get_running_loop().call_later(
                        effect.after_ms / 1000, self._step, LINGER_OVER
                    )
                case StopLinger():
                    assert self._linger is not None
                    self._linger.cancel()
                case _:
                    assert_never(effect)

    def _end_write(self, event: Written | WriteFailed) -> None:
        is_own, self._has_own_write = self._has_own_write, False
        self._step(event)
        if is_own and self.on_own_write is not None:
            self.on_own_write(event)

    def _acknowledge(self, effect: Acknowledge) -> None:
        if effect.is_duplicate:
            self._resources.counters.produce_duplicates += 1
        copies = self._role.copies
        effect.done(Appended(effect.offset, effect.is_duplicate, copies, effect.partition))

    def _publish(self, batches: Sequence[StoredBatch]) -> None:
        """Keep them for readers near the end."""
        resources = self._resources
        self.recent = self.recent or RecentBatches()
        for batch in batches:
            resources.cache.add(self.recent, batch)
            resources.counters.log_appended_bytes += batch.header.batch_bytes
        resources.counters.log_appended_batches += len(batches)

    def _taken(self) -> Write | None:
        """What the machine has decided to write in this turn."""
        write, self._write = self._write, None
        return write

    # --- writes to the segment ---

    def _write_segment(self) -> None:
        """It has the turn: write a group behind what is pending."""
        self._step(SEGMENT_TURN, self._resources.now_us())
        write, stored = self._taken(), self._frame
        if write is not None:
            contents, codec = write.contents, self.replica.settings.codec
            if sum(len(part.payload) for part in contents) <= INLINE_COMPRESS_BYTES_MAX:
                contents = compressed(contents, codec)
            self._put(
                self._resources.io,
                lambda: stamp_batches(compressed(contents, codec), write.first),
                is_durable=write.is_durable,
            )
        elif stored:
            self._frame, io = (), self._resources.receiving
            self._put(io, lambda: stored, is_durable=self.replica.is_synced)
        else:
            self.turns.end()

    def _put(self, io: Io, make: Callable[[], Sequence[StoredBatch]], *, is_durable: bool) -> None:
        """Write what `make` returns, in an I/O thread, behind what is pending."""
        pending = list(self.pending.batches)
        # What the journal gives up for it must be safe.
        is_durable = is_durable or bool(pending)
        segment_count, started_s = len(self._segments), perf_counter()
        written_paths: set[Path] = set()

        def write_all() -> Sequence[StoredBatch]:
            batches = make()
            path = self._segment_writer().write([*pending, *batches], is_durable=is_durable)
            if not is_durable:
                written_paths.add(path)
            return batches

        def done(batches: Sequence[StoredBatch], error: TailraceError | None) -> None:
            self._resources.counters.add_log_write(error, perf_counter() - started_s)
            if written_paths:  # not in the thread: a flush under way has not seen it
                self.unflushed.add(written_paths)
            if error is None:
                if pending:
                    self.pending.drop_below(pending[-1].header.end_offset)
                self._end_write(Written(batches, is_journaled=False, is_durable=is_durable))
            else:
                self._end_write(WriteFailed(error, self._needs_cut))
            self.turns.end()
            self._tell_sealed(segment_count)

        io.submit(write_all, done)

    @property
    def _needs_cut(self) -> bool:
        """A failed write may still stand in the segment."""
        return self._writer is not None and self._writer.needs_cut

    def _tell_sealed(self, segment_count: int) -> None:
        """If there are more segments than that now."""
        if len(self._segments) > segment_count:
            self.turns.take(self._save_producers)
            self._on_sealed()

    def _save_producers(self) -> None:
        """It has the turn: a segment was finished."""
        self._resources.io.submit(self._saving_producers(), lambda *_: self.turns.end())

    def _saving_producers(self) -> Callable[[], None]:
        windows = self.replica.windows or ProducerWindows()
        checkpoint = windows.checkpoint(self.replica.end.offset)
        return partial(save_checkpoint, self.place.directory, checkpoint)

    def _segment_writer(self) -> SegmentWriter:
        if self._writer is None:
            self._writer = self._resources.segment_writer(self.place, self._segments)
        return self._writer
