"""The appends and cuts of a follower: batches as their leader sent them. A machine.

Writes and cuts are done one after the other, in the order in which they were asked for; batches
that wait while one is under way join the next write. What does not continue the log, with all that
waits before it, is a misfit: nothing of it is written. When a write fails, all that waits behind
it fails, and the leader sends it again.

A cut that fails may have cut a part. The log takes nothing then until a cut there, or below, is
done.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.log.appends import GROUP_BYTES_MAX
from tailrace_broker.core.log.replica_tail import ReplicaTail
from tailrace_broker.core.log.tail_events import (
    ASK_SEGMENT,
    SPILL,
    Acknowledge,
    AnswerCut,
    Closing,
    CommitsAlone,
    CutEnded,
    CutLog,
    CutNotBegun,
    CutNow,
    EpochEnded,
    Fail,
    FlushBegun,
    Flushed,
    FlushFailed,
    HighWatermarkMoved,
    JournalTurn,
    LingerOver,
    LogEnd,
    Refused,
    SegmentTurn,
    SettingsAltered,
    Spilled,
    TailEffect,
    TailEvent,
    WriteFailed,
    WriteStored,
    Written,
)
from tailrace_broker.model.append_outcome import (
    CutFailed,
    CutRefused,
    LogIsCut,
    Misfit,
    MisfitReason,
    OnAppended,
)
from tailrace_broker.model.errors import NotReadyError, TailraceError


class _Append(NamedTuple):
    """Batches of one message, which is answered when all are written."""

    batches: Sequence[StoredBatch]
    size_bytes: int
    done: OnAppended


class FollowerAppends:
    """What a follower writes, over the tail of its replica."""

    __slots__ = ("_cutting", "_flying", "_half_cut", "_queue", "_refusal", "tail")

    def __init__(self, tail: ReplicaTail) -> None:
        """A write that a leader has begun here may still be in flight."""
        self.tail = tail
        self._queue: deque[_Append | CutLog] = deque()
        self._flying: list[_Append] = []  # in the write that is in flight
        self._cutting: CutLog | None = None
        self._half_cut: int | None = None  # where the cut was to end that has failed
        self._refusal: TailraceError | None = None

    @property
    def is_half_cut(self) -> bool:
        """A cut has failed, and must be repeated."""
        return self._half_cut is not None

    @property
    def may_end(self) -> bool:
        """No append or cut is under way, nor must one be repeated."""
        return not (self.tail.is_writing or self.is_half_cut)

    def append(self, batches: Sequence[StoredBatch], done: OnAppended) -> Misfit | list[TailEffect]:
        """Queue verified batches, if they continue the log."""
        misfit = self._misfit_of(batches)
        if misfit is not None:
            return misfit
        size_bytes = sum(batch.header.batch_bytes for batch in batches)
        self._queue.append(_Append(batches, size_bytes, done))
        return self._go_on()

    def cut(self, cut: CutLog) -> list[TailEffect]:
        """Queue a cut."""
        if self._refusal is not None:
            return [AnswerCut(cut.done, CutFailed(self._refusal))]
        self._queue.append(cut)
        return self._go_on()

    def step(self, event: TailEvent) -> list[TailEffect]:
        """Return the effects of an event."""
        match event:
            case JournalTurn() | SegmentTurn():
                return self._on_turn(event)
            case Written():
                return self._on_written(event)
            case WriteFailed():
                effects = self.tail.step(event)
                return [*effects, *self._fail_appends(event.error), *self._go_on()]
            case Spilled():
                return self._on_spilled(event)
            case CutNotBegun():
                return self._on_cut_not_begun(event)
            case CutEnded():
                return self._on_cut_ended(event)
            case Refused():
                self._refusal = event.reason
                return []
            case (
                FlushBegun()
                | Flushed()
                | FlushFailed()
                | SettingsAltered()
                | CommitsAlone()
                | HighWatermarkMoved()
                | EpochEnded()
                | LingerOver()
                | Closing()
            ):
                return self.tail.step(event)
            case _:
                assert_never(event)

    def validate(self) -> None:
        """Assert what always holds between two steps."""
        self.tail.validate()
        assert self.tail.is_writing or not self._queue
        assert self.tail.is_writing or not (self._flying or self._cutting)
        assert not (self._flying and self._cutting)

    # --- what fits ---

    def _misfit_of(self, batches: Sequence[StoredBatch]) -> Misfit | None:
        if self._refusal is not None:
            return Misfit(MisfitReason.CLOSED, self._refusal.detail)
        end, is_cut = self._expected_end()
        if self._half_cut is not None and not is_cut:
            return Misfit(MisfitReason.CUT_FAILED, f"at offset {self._half_cut}")
        id = self.tail.id
        for batch in batches:
            header = batch.header
            found = header.topic_id, header.range_id, header.partition
            if found != (id.topic_id.bytes, id.range_id, id.partition):
                return Misfit(MisfitReason.OTHER_LOG, f"partition {header.partition}")
            offset, before = end.offset, header.previous_epoch
            if header.base_offset != offset:
                detail = f"a batch is at offset {header.base_offset}, not at {offset}"
                return Misfit(MisfitReason.GAP, detail)
            if not end.follows(before):
                detail = f"offset {offset} follows epoch {end.epoch}, not {before}"
                return Misfit(MisfitReason.OTHER_EPOCH, detail)
            if header.epoch < before:
                detail = f"offset {offset}: epoch {header.epoch} after {before}"
                return Misfit(MisfitReason.FALLING_EPOCH, detail)
            end = LogEnd.behind(header)
        return None

    def _expected_end(self) -> tuple[LogEnd, bool]:
        """Return the end once all is done, and whether a cut is waiting."""
        is_cut = self._cutting is not None or any(isinstance(each, CutLog) for each in self._queue)
        waiting = (self._cutting, *self._flying, *self._queue)
        last = waiting[-1]
        if isinstance(last, CutLog):
            return LogEnd(last.end, last.epoch, 0), is_cut
        if isinstance(last, _Append):
            return LogEnd.behind(last.batches[-1].header), is_cut
        return self.tail.end, is_cut

    def _fits(self, append: _Append) -> bool:
        """Whether it continues what is written: a cut before it may have ended otherwise."""
        header, end = append.batches[0].header, self.tail.end
        is_next = header.base_offset == end.offset and end.follows(header.previous_epoch)
        return is_next and self._half_cut is None

    # --- one write or cut after the other ---

    def _go_on(self) -> list[TailEffect]:
        """Begin what waits, unless a write or a cut is under way."""
        tail, queue = self.tail, self._queue
        effects: list[TailEffect] = []
        while queue and not tail.is_writing:
            head = queue[0]
            if isinstance(head, CutLog):
                queue.popleft()
                effects.append(self._begin_cut(head))
            elif tail.stuck is not None:
                effects += [*self._fail_appends(tail.stuck), SPILL]
            elif self._fits(head):
                effects.append(tail.ask(self._group_bytes()))
            else:
                error = NotReadyError("what came before these batches failed: send them again")
                effects += self._fail_appends(error)
        return effects

    def _group(self) -> list[_Append]:
        """Return what the next write takes: what waits before a cut, up to `GROUP_BYTES_MAX`."""
        group: list[_Append] = []
        size_bytes = 0
        for each in self._queue:
            if isinstance(each, CutLog):
                break
            size_bytes += each.size_bytes
            if group and size_bytes > GROUP_BYTES_MAX:
                break
            group.append(each)
        return group

    def _group_bytes(self) -> int:
        return sum(each.size_bytes for each in self._group())

    def _on_turn(self, turn: JournalTurn | SegmentTurn) -> list[TailEffect]:
        tail = self.tail
        group = self._group()
        if not group:  # a leader has asked for it
            return [*tail.step(turn), *self._go_on()]
        if isinstance(turn, SegmentTurn):
            if tail.must_spill_first:
                return tail.wait_for_spill()
        elif tail.goes_to_segment(sum(each.size_bytes for each in group)):
            return [ASK_SEGMENT]
        for _ in group:
            self._queue.popleft()
        self._flying = group
        batches = [batch for append in group for batch in append.batches]
        return [WriteStored(batches)]

    def _on_written(self, written: Written) -> list[TailEffect]:
        effects = self.tail.step(written)
        flying, self._flying = self._flying, []
        for append in flying:
            effects.append(Acknowledge(append.done, append.batches[0].header.base_offset))
        return [*effects, *self._go_on()]

    def _on_spilled(self, spilled: Spilled) -> list[TailEffect]:
        was_writing = self.tail.is_writing
        effects = self.tail.step(spilled)
        if spilled.error is not None and was_writing and not self.tail.is_writing:
            # The write has waited for this. Nothing of it was written.
            return [*effects, *self._fail_appends(spilled.error), *self._go_on()]
        return effects

    def _fail_appends(self, error: TailraceError) -> list[TailEffect]:
        """Fail those in flight, and those that wait up to the next cut."""
        failed, self._flying = self._flying, []
        while self._queue and isinstance(self._queue[0], _Append):
            append = self._queue.popleft()
            assert isinstance(append, _Append)
            failed.append(append)
        return [Fail(append.done, error) for append in failed]

    # --- cuts ---

    def _begin_cut(self, cut: CutLog) -> TailEffect:
        tail = self.tail
        refusal = self._refusal_of(cut)
        if refusal is not None:
            return AnswerCut(cut.done, CutRefused(refusal))
        is_there = cut.end == tail.end.offset and not cut.is_reset and self._half_cut is None
        if is_there and not tail.has_leftovers:
            return AnswerCut(cut.done, LogIsCut(cut.end))
        tail.is_writing = True
        self._cutting = cut
        return CutNow(cut)

    def _refusal_of(self, cut: CutLog) -> str | None:
        """Say why the log must not be cut there."""
        tail = self.tail
        if cut.is_reset:
            return None
        if cut.end > tail.end.offset:
            return f"the log ends at {tail.end.offset}, before {cut.end}"
        if self._half_cut is not None and cut.end > self._half_cut:
            return f"the cut at {self._half_cut} must be done first"
        return None

    def _on_cut_not_begun(self, event: CutNotBegun) -> list[TailEffect]:
        cut, self._cutting = self._cutting, None
        assert cut is not None
        effects = self.tail.step(event)
        return [*effects, AnswerCut(cut.done, event.outcome), *self._go_on()]

    def _on_cut_ended(self, event: CutEnded) -> list[TailEffect]:
        cut, self._cutting = self._cutting, None
        assert cut is not None
        effects = self.tail.step(event)
        if event.error is None:
            assert event.end.offset == cut.end
            self._half_cut = None
            effects.append(AnswerCut(cut.done, LogIsCut(cut.end)))
        else:
            self._half_cut = cut.end
            effects.append(AnswerCut(cut.done, CutFailed(event.error)))
        return [*effects, *self._go_on()]
