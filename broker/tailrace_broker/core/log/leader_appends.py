"""The appends of a leader: admitted, gathered, stamped, acknowledged. A machine.

What arrives while a write is in flight joins the next: the busier the log, the larger its writes.
An append is acknowledged when the high watermark has reached its end, in the order of offsets. It
fails if the role ends before; then it may be in the log all the same. Each append is answered once.

A follower has `core.log.follower_appends` instead.
"""

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, assert_never

from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.core.log.appends import Append, AppendQueue, BatchAppend
from tailrace_broker.core.log.parent_windows import Inherited, ParentWindows
from tailrace_broker.core.log.producer_appends import ProducerAppends
from tailrace_broker.core.log.producers import Duplicate, Producer, ProducerWindows
from tailrace_broker.core.log.replica_tail import ReplicaTail
from tailrace_broker.core.log.tail_events import (
    ASK_SEGMENT,
    SPILL,
    STOP_LINGER,
    Acknowledge,
    Closing,
    CommitsAlone,
    CutEnded,
    CutNotBegun,
    EpochEnded,
    Fail,
    FlushBegun,
    Flushed,
    FlushFailed,
    GiveUpEpoch,
    HighWatermarkMoved,
    JournalTurn,
    LingerOver,
    Refused,
    SegmentTurn,
    SettingsAltered,
    Spilled,
    StartLinger,
    TailEffect,
    TailEvent,
    Write,
    WriteFailed,
    Written,
)
from tailrace_broker.model.append_outcome import OnAppended
from tailrace_broker.model.errors import DiskFullError, NotReadyError, TailraceError


class _Uncommitted(NamedTuple):
    """A written append that waits for the high watermark; or a retry of one, without `append`."""

    end_offset: int
    base_offset: int
    done: OnAppended
    append: Append | None


_end_offset = attrgetter("end_offset")


class LeaderAppends:
    """A leader's appends in one epoch, over the tail of its replica."""

    __slots__ = (
        "_flying", "_has_linger", "_is_closing", "_is_given_up", "_is_linger_over",
        "_orphaned_by", "_parents", "_producers", "_queue", "_refusal", "_uncommitted", "epoch",
        "tail",
    )  # fmt: skip

    def __init__(self, tail: ReplicaTail, epoch: int, *, is_held: bool = False) -> None:
        """`epoch` is that of the role. `is_held`: see `hold`."""
        self.tail = tail
        self.epoch = epoch
        self._queue = AppendQueue()
        self._flying: list[Append] = []  # in the write that is in flight
        self._uncommitted: list[_Uncommitted] = []
        self._producers: ProducerAppends | None = None
        self._refusal: TailraceError | None = None
        self._is_closing = False
        self._has_linger = False
        self._is_linger_over = False
        self._is_given_up = is_held  # nothing is written before the next epoch
        self._parents: ParentWindows | None = None
        self._orphaned_by: TailraceError | None = None

    @property
    def is_idle(self) -> bool:
        """No append is under way."""
        return not (self._queue or self.tail.is_writing or self._uncommitted)

    def hold(self) -> None:
        """Begin no write before the next epoch: what comes waits; what is being written goes on."""
        self._is_given_up = True

    def inherit(self, parents: ParentWindows | TailraceError) -> None:
        """What the parents of the partition have is not stored again.

        An error: it is not known, and requests of producers fail with it.
        """
        if isinstance(parents, ParentWindows):
            self._parents, self._orphaned_by, self._producers = parents, None, None
        else:
            self._orphaned_by = parents

    # --- appends ---

    def append_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: OnAppended,
        producer: Producer | None,
        now_us: int,
    ) -> Sequence[TailEffect]:
        """Queue one event, which shares a batch with others. `now_us` matters with a producer."""
        tail = self.tail
        if producer is not None or self._refusal is not None or tail.stuck is not None:
            answered = self._admit(producer, 1, done, now_us)
            if answered is not None:
                return answered
        self._queue.add_event(key, value, timestamp_us, flags, done, producer)
        return () if tail.is_writing else self._go_on()

    def append_records(
        self,
        contents: RecordColumns | BatchBody,
        done: OnAppended,
        producer: Producer | None,
        now_us: int,
    ) -> Sequence[TailEffect]:
        """Queue a request's records, as a batch of their own."""
        answered = self._admit(producer, contents.record_count, done, now_us)
        if answered is not None:
            return answered
        self._queue.add_batch(BatchAppend(contents, done, producer))
        return () if self.tail.is_writing else self._go_on()

    def _admit(
        self, producer: Producer | None, record_count: int, done: OnAppended, now_us: int
    ) -> list[TailEffect] | None:
        """None: it is to be queued. Else the effects answer it, or the end of its original will."""
        if self._refusal is not None:
            return [Fail(done, self._refusal)]
        if self.tail.stuck is not None:
            return [Fail(done, self.tail.stuck), SPILL]  # a repaired disk takes appends again
        if producer is None:
            return None
        if self.tail.orphaned is not None:  # it may be what is being stored
            return [Fail(done, self.tail.orphaned)]
        if self._orphaned_by is not None:
            return [Fail(done, self._orphaned_by)]
        if self._producers is None:
            self.tail.windows = self.tail.windows or ProducerWindows()
            self._producers = ProducerAppends(self.tail.windows, self._parents)
        verdict = self._producers.admit(producer, record_count, done, now_us)
        if isinstance(verdict, Duplicate):
            return self._answer_duplicate(verdict.offset, record_count, done)
        if isinstance(verdict, Inherited):  # it is committed: its partition is sealed
            return [Acknowledge(done, verdict.offset, True, verdict.partition)]
        return verdict

    def _answer_duplicate(
        self, offset: int, record_count: int, done: OnAppended
    ) -> list[TailEffect]:
        """Acknowledge a retry of what is stored, once that is committed."""
        end_offset = offset + record_count
        if end_offset <= self.tail.high_watermark:
            return [Acknowledge(done, offset, is_duplicate=True)]
        insort(self._uncommitted, _Uncommitted(end_offset, offset, done, None), key=_end_offset)
        return []

    # --- events ---

    def step(self, event: TailEvent, now_us: int) -> list[TailEffect]:
        """Return the effects of an event; `now_us` is the append time of what is written now."""
        match event:
            case JournalTurn() | SegmentTurn():
                return self._on_turn(event, now_us)
            case Written():
                return self._on_written(event)
            case WriteFailed():
                return self._on_write_failed(event)
            case Spilled():
                return self._on_spilled(event)
            case Flushed():
                return [*self.tail.step(event), *self._committed(), *self._go_on()]
            case FlushFailed():
                return self._on_flush_failed(event.error)
            case SettingsAltered():
                return self._on_altered(event)
            case LingerOver():
                self._is_linger_over = self._has_linger
                return self._go_on()
            case Closing():
                self._is_closing = True
                return [*self._fail_given_up(), *self._go_on()]
            case Refused():
                self._refusal = event.reason
                return []
            case EpochEnded():
                return self._end_epoch(event)
            case HighWatermarkMoved() | CommitsAlone():
                return [*self.tail.step(event), *self._committed(), *self._go_on()]
            case FlushBegun() | CutNotBegun() | CutEnded():
                return self.tail.step(event)
            case _:
                assert_never(event)

    def validate(self) -> None:
        """Assert what always holds between two steps."""
        self.tail.validate()
        ends = [waiting.end_offset for waiting in self._uncommitted]
        assert ends == sorted(ends)
        assert all(self.tail.high_watermark < end <= self.tail.end.offset for end in ends)
        assert self.tail.is_writing or not self._flying
        waits = self._has_linger or self._is_given_up
        assert self.tail.is_writing or not self._queue or waits
        assert self._has_linger or not self._is_linger_over

    # --- one write after the other ---

    def _go_on(self) -> list[TailEffect]:
        """Begin to write what waits, unless a write is in flight, or it lingers."""
        tail = self.tail
        if tail.is_writing or self._is_given_up:
            return []
        if not self._queue:
            tail.owes_sync = tail.owes_sync and not self.is_idle
            return []
        settings = tail.settings
        if not self._has_linger and not settings.linger_ms:
            return [tail.ask(self._queue.size_bytes)]
        is_full = 0 < settings.linger_bytes <= self._queue.size_bytes
        must_go = self._is_linger_over or is_full or self._is_closing
        if must_go or not settings.linger_ms or not self._queue.has_only_events:
            return [*self._stop_linger(), tail.ask(self._queue.size_bytes)]
        if self._has_linger:
            return []
        self._has_linger = True
        return [StartLinger(settings.linger_ms)]

    def _stop_linger(self) -> list[TailEffect]:
        stopped: list[TailEffect] = [STOP_LINGER] if self._has_linger else []
        self._has_linger = self._is_linger_over = False
        return stopped

    def _on_turn(self, turn: JournalTurn | SegmentTurn, now_us: int) -> list[TailEffect]:
        """Take the group that is written now: all that has come until this moment."""
        tail = self.tail
        if not self._queue or self._is_given_up:  # nothing is to be written any more, or not now
            return [*tail.step(turn), *self._go_on()]
        if isinstance(turn, SegmentTurn):
            if tail.must_spill_first:
                return tail.wait_for_spill()
        elif tail.goes_to_segment(self._queue.size_bytes):
            return [ASK_SEGMENT]
        self._flying = self._queue.take_group()
        contents = [append.contents() for append in self._flying]
        return [Write(contents, tail.next_place(self.epoch, now_us), tail.is_synced)]

    def _on_written(self, written: Written) -> list[TailEffect]:
        effects = self.tail.step(written)
        flying, self._flying = self._flying, []
        for append, batch in zip(flying, written.batches, strict=bool(flying)):
            header = batch.header
            self._uncommitted.append(
                _Uncommitted(header.end_offset, header.base_offset, append.finish, append)
            )
        return [*effects, *self._committed(), *self._go_on()]

    def _on_write_failed(self, failed: WriteFailed) -> list[TailEffect]:
        """Fail the group, and give the epoch up: no offset is handed out twice in one.

        Of a full disk nothing was written, nor sent: its offsets are free.
        """
        error = failed.error
        flying, self._flying = self._flying, []
        effects = [*self.tail.step(failed), *self._fail(flying, error)]
        if flying and not isinstance(error, DiskFullError):
            self._is_given_up = True
            effects += [*self._fail_given_up(), GiveUpEpoch(self.epoch)]
        return [*effects, *self._go_on()]

    def _fail_given_up(self) -> list[TailEffect]:
        """When the log closes it waits for no other epoch."""
        effects: list[TailEffect] = []
        while self._is_given_up and self._is_closing and self._queue:
            error = NotReadyError("the log closes before its range is led in a new epoch")
            effects += self._fail(self._queue.take_group(), error)
        return effects

    def _on_spilled(self, spilled: Spilled) -> list[TailEffect]:
        was_writing = self.tail.is_writing
        effects = self.tail.step(spilled)
        if spilled.error is not None and was_writing and not self.tail.is_writing:
            # The write has waited for this. Nothing of it was written.
            group = self._queue.take_group() if self._queue else []
            return [*self._fail(group, spilled.error), *self._go_on()]
        return effects

    def _on_flush_failed(self, error: TailraceError) -> list[TailEffect]:
        """Fail what is written and not durable, which must not wait for ever."""
        return [*self._fail_uncommitted(error), *self._go_on()]

    def _on_altered(self, altered: SettingsAltered) -> list[TailEffect]:
        """Go on with other settings; what waits already gets the durability that it came for."""
        tail = self.tail
        tail.owes_sync = tail.is_synced and not self.is_idle
        effects = tail.step(altered)
        return [*effects, *self._committed(), *self._stop_linger(), *self._go_on()]

    def _end_epoch(self, ended: EpochEnded) -> list[TailEffect]:
        """Acknowledge nothing more of this epoch; append in the next one, if there is one."""
        effects = self._fail_uncommitted(ended.attempted)
        flying, self._flying = self._flying, []
        effects += self._fail(flying, ended.attempted)
        if flying:
            self.tail.orphaned = ended.attempted
        if ended.next_epoch is not None:
            self.epoch, self._is_given_up = ended.next_epoch, False
            return [*effects, *self._go_on()]
        assert ended.refusal is not None
        self._refusal = ended.refusal
        while self._queue:
            effects += self._fail(self._queue.take_group(), ended.refusal)
        return [*effects, *self._stop_linger()]

    # --- answers ---

    def _committed(self) -> list[TailEffect]:
        """Acknowledge what the high watermark has reached."""
        high_watermark, count = self.tail.high_watermark, 0
        effects: list[TailEffect] = []
        for end_offset, base_offset, done, append in self._uncommitted:
            if end_offset > high_watermark:
                break
            count += 1
            effects.append(Acknowledge(done, base_offset, is_duplicate=append is None))
            if append is not None and self._producers is not None:
                for producer, number in append.requests():
                    effects += self._producers.committed(producer, base_offset + number)
        del self._uncommitted[:count]
        return effects

    def _fail_uncommitted(self, error: TailraceError) -> list[TailEffect]:
        waiting, self._uncommitted = self._uncommitted, []
        effects: list[TailEffect] = []
        for uncommitted in waiting:
            if uncommitted.append is None:
                effects.append(Fail(uncommitted.done, error, uncommitted.end_offset))
            else:
                effects += self._fail([uncommitted.append], error, uncommitted.end_offset)
        return effects

    def _fail(
        self, appends: Sequence[Append], error: TailraceError, written_end: int | None = None
    ) -> list[TailEffect]:
        effects: list[TailEffect] = []
        for append in appends:
            effects.append(Fail(append.finish, error, written_end))
            if self._producers is not None:
                for producer, _ in append.requests():
                    effects += self._producers.failed(producer, error)
        return effects
