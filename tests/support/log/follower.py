"""A follower's machine without disk and clock: a test makes each event, and sees each effect."""

from collections.abc import Sequence
from functools import partial

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.log.follower_appends import FollowerAppends
from tailrace_broker.core.log.producers import ProducerWindows
from tailrace_broker.core.log.replica_tail import LogId, ReplicaTail
from tailrace_broker.core.log.tail_events import (
    JOURNAL_TURN,
    SEGMENT_TURN,
    Acknowledge,
    AnswerCut,
    AskJournal,
    AskSegment,
    CutEnded,
    CutLog,
    CutNow,
    Fail,
    LogEnd,
    TailEffect,
    TailEvent,
    WriteFailed,
    WriteStored,
    Written,
)
from tailrace_broker.model.append_outcome import (
    Appended,
    AppendFailed,
    AppendOutcome,
    CutOutcome,
    Misfit,
)
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.topic import TopicSettings
from tests.support.log.leader import EMPTY, SYNCED
from tests.support.storage.batches import PARTITION, TOPIC_ID


class Follower:
    """The follower of one log, and the disk below it as a test wants it."""

    def __init__(self, settings: TopicSettings = SYNCED, *, pending_bytes: int = 0) -> None:
        self.tail = ReplicaTail(
            LogId(TOPIC_ID, 0, PARTITION),
            EMPTY,
            settings,
            pending_bytes=pending_bytes,
            committed_end=0,
        )
        self.appends = FollowerAppends(self.tail)
        self.answers: list[tuple[str, AppendOutcome | CutOutcome]] = []
        self.asked: AskJournal | AskSegment | None = None
        self.writing: Sequence[StoredBatch] = ()
        self.is_journal = False
        self.cutting: CutLog | None = None

    def append(self, name: str, *batches: StoredBatch) -> list[TailEffect] | Misfit:
        """Append what a leader sent."""
        effects = self.appends.append(batches, partial(self._answer, name))
        return effects if isinstance(effects, Misfit) else self._run(effects)

    def cut(
        self,
        name: str,
        end: int,
        epoch: int = 1,
        *,
        is_reset: bool = False,
    ) -> list[TailEffect]:
        """Cut the log."""
        done = partial(self._answer, name)
        return self._run(self.appends.cut(CutLog(end, epoch, is_reset, done)))

    def step(self, event: TailEvent) -> list[TailEffect]:
        """Give the machine an event."""
        return self._run(self.appends.step(event))

    def turn(self) -> list[TailEffect]:
        """Give the turn that was asked for."""
        asked, self.asked = self.asked, None
        assert asked is not None
        self.is_journal = isinstance(asked, AskJournal)
        return self.step(JOURNAL_TURN if self.is_journal else SEGMENT_TURN)

    def end_write(self, error: TailraceError | None = None) -> list[TailEffect]:
        """End the write in flight."""
        batches, self.writing = self.writing, ()
        assert batches
        if error is not None:
            return self.step(WriteFailed(error, needs_cut=False))
        is_durable = self.tail.is_synced
        return self.step(Written(batches, self.is_journal, is_durable))

    def write_all(self) -> None:
        """Give turns, and end writes well, until nothing is left to be written."""
        while self.asked is not None:
            self.turn()
            if self.writing:
                self.end_write()

    def end_cut(
        self,
        error: TailraceError | None = None,
        *,
        end: LogEnd | None = None,
        windows: ProducerWindows | None = None,
        pending_bytes: int = 0,
        is_durable: bool = False,
    ) -> list[TailEffect]:
        """End the cut under way, at `end` if it fails."""
        cut, self.cutting = self.cutting, None
        assert cut is not None
        return self.step(
            CutEnded(
                end or LogEnd(cut.end, cut.epoch, 0),
                windows,
                pending_bytes,
                needs_cut=False,
                is_durable=is_durable,
                is_reset=cut.is_reset and error is None,
                error=error,
            )
        )

    @property
    def ends(self) -> tuple[int, int, int]:
        """The written end, the durable end and the high watermark."""
        return self.tail.end.offset, self.tail.durable_end, self.tail.high_watermark

    @property
    def outcomes(self) -> list[tuple[str, object]]:
        """Of each answered append or cut, in order; of a failed append its error's detail."""
        return [
            (name, outcome.error.detail if isinstance(outcome, AppendFailed) else outcome)
            for name, outcome in self.answers
        ]

    def _run(self, effects: Sequence[TailEffect]) -> list[TailEffect]:
        self.appends.validate()
        rest: list[TailEffect] = []
        for effect in effects:
            match effect:
                case Acknowledge(done, offset):
                    done(Appended(offset))
                    continue
                case Fail(done, error):
                    done(AppendFailed(error))
                    continue
                case AnswerCut(answer, outcome):
                    answer(outcome)
                    continue
                case AskJournal() | AskSegment():
                    assert self.asked is None
                    self.asked = effect
                case WriteStored(batches):
                    self.writing = batches
                case CutNow(cut):
                    assert self.cutting is None
                    self.cutting = cut
                case _:
                    pass
            rest.append(effect)
        return rest

    def _answer(self, name: str, outcome: AppendOutcome | CutOutcome) -> None:
        self.answers.append((name, outcome))
