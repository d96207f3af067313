"""A leader's machines without disk and clock: a test makes each event, and sees each effect."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from tailrace_broker.codec.batch import BatchBody, StoredBatch, compress_columns, stamp_batches
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.core.log.replica_tail import LogId, ReplicaTail
from tailrace_broker.core.log.tail_events import (
    FLUSH_BEGUN,
    JOURNAL_TURN,
    SEGMENT_TURN,
    Acknowledge,
    AskJournal,
    AskSegment,
    Fail,
    Flush,
    Flushed,
    LogEnd,
    Spill,
    Spilled,
    TailEffect,
    TailEvent,
    Write,
    WriteFailed,
    Written,
)
from tailrace_broker.model.append_outcome import Appended, AppendFailed, AppendOutcome
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.topic import TopicSettings
from tests.support.storage.batches import PARTITION, TIME_US, TOPIC_ID, Event, columns_of

SYNCED = TopicSettings(partitions_per_range=1)
EMPTY = LogEnd(0, 0, 0)
WRITTEN = replace(SYNCED, durability="written", flush_ms=1_000)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an append."""

    name: str
    outcome: AppendOutcome

    @property
    def is_duplicate(self) -> bool:
        """Whether the records were stored before."""
        return isinstance(self.outcome, Appended) and self.outcome.is_duplicate


class Leader:
    """The leader of one log, and the disk below it as a test wants it."""

    def __init__(
        self,
        settings: TopicSettings = SYNCED,
        *,
        end: LogEnd = EMPTY,
        epoch: int = 1,
        pending_bytes: int = 0,
    ) -> None:
        self.tail = ReplicaTail(
            LogId(TOPIC_ID, 0, PARTITION), end, settings, pending_bytes=pending_bytes
        )
        self.appends = LeaderAppends(self.tail, epoch)
        self.answers: list[Answer] = []
        self.effects: list[TailEffect] = []  # of the last event, without the answers
        self.write: tuple[Write, bool] | None = None  # in flight; whether into the journal
        self.asked: AskJournal | AskSegment | None = None
        self.stored: list[StoredBatch] = []
        self.flushing_to: int | None = None  # the end of the flush that is under way
        self.is_flush_due = False
        self.is_spill_due = False

    # --- appends ---

    def event(
        self, name: str, producer: Producer | None = None, *, value: bytes = b"1"
    ) -> list[TailEffect]:
        """Append one event."""
        done = partial(self._answer, name)
        effects = self.appends.append_event(None, value, 0, 0, done, producer, TIME_US)
        return self._run(effects)

    def batch(
        self,
        name: str,
        values: list[bytes],
        producer: Producer | None = None,
        *,
        is_compressed: bool = False,
    ) -> list[TailEffect]:
        """Append a request's records."""
        columns = columns_of([Event(value) for value in values])
        contents = compress_columns(columns) if is_compressed else columns
        done = partial(self._answer, name)
        return self._run(self.appends.append_records(contents, done, producer, TIME_US))

    # --- events ---

    def step(self, event: TailEvent) -> list[TailEffect]:
        """Give the machine an event."""
        return self._run(self.appends.step(event, TIME_US))

    def turn(self) -> list[TailEffect]:
        """Give the turn that was asked for."""
        asked, self.asked = self.asked, None
        assert asked is not None
        is_journal = isinstance(asked, AskJournal)
        effects = self.step(JOURNAL_TURN if is_journal else SEGMENT_TURN)
        for effect in effects:
            if isinstance(effect, Write):
                self.write = effect, is_journal
        return effects

    def end_write(
        self, error: TailraceError | None = None, *, needs_cut: bool = False
    ) -> list[TailEffect]:
        """End the write in flight."""
        assert self.write is not None
        (write, is_journal), self.write = self.write, None
        if error is not None:
            return self.step(WriteFailed(error, needs_cut))
        batches = batches_of(write)
        self.stored += batches
        is_durable = write.is_durable or (not is_journal and self.tail.pending_bytes > 0)
        return self.step(Written(batches, is_journal, is_durable))

    def write_all(self) -> None:
        """Give turns, and end writes well, until nothing is left to be written."""
        while self.asked is not None:
            self.turn()
            if self.write is not None:
                self.end_write()

    def begin_flush(self) -> None:
        """Begin the flush that is due."""
        self.is_flush_due = False
        self.step(FLUSH_BEGUN)
        self.flushing_to = self.tail.end.offset

    def end_flush(self) -> list[TailEffect]:
        """End the flush that is under way."""
        end_offset, self.flushing_to = self.flushing_to, None
        assert end_offset is not None
        return self.step(Flushed(end_offset))

    def end_spill(self, error: TailraceError | None = None, *, rest: int = 0) -> list[TailEffect]:
        """End a spill of the pending tail down to `rest` bytes."""
        self.is_spill_due = False
        rest = rest if error is None else self.tail.pending_bytes
        return self.step(Spilled(error, rest, needs_cut=False))

    # --- what came of it ---

    @property
    def ends(self) -> tuple[int, int, int]:
        """The written end, the durable end and the high watermark."""
        return self.tail.end.offset, self.tail.durable_end, self.tail.high_watermark

    @property
    def outcomes(self) -> list[tuple[str, int | str]]:
        """Of each answered append, in order, its offset or its error's detail."""
        return [
            (name, outcome.offset if isinstance(outcome, Appended) else outcome.error.detail)
            for name, outcome in ((answer.name, answer.outcome) for answer in self.answers)
        ]

    def _run(self, effects: Sequence[TailEffect]) -> list[TailEffect]:
        self.appends.validate()
        self.effects = []
        for effect in effects:
            match effect:
                case Acknowledge(done, offset, is_duplicate):
                    done(Appended(offset, is_duplicate))
                    continue
                case Fail(done, error, written_end):
                    done(AppendFailed(error, written_end))
                    continue
                case AskJournal() | AskSegment():
                    assert self.asked is None
                    self.asked = effect
                case Flush():
                    self.is_flush_due = True
                case Spill():
                    self.is_spill_due = True
                case _:
                    pass
            self.effects.append(effect)
        return self.effects

    def _answer(self, name: str, outcome: AppendOutcome) -> None:
        self.answers.append(Answer(name, outcome))


def batches_of(write: Write) -> list[StoredBatch]:
    """The batches of a write."""
    bodies = [
        part if isinstance(part, BatchBody) else compress_columns(part, part.producer_table)
        for part in write.contents
    ]
    return stamp_batches(bodies, write.first)
