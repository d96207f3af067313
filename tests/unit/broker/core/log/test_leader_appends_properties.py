"""A leader against a simple model: what was sent, answered and stored, in order.

Whatever happens in whatever order: the ends never fall, what is acknowledged is below the high
watermark and in the log at its offset, in the order of offsets; nothing is acknowledged after the
role has ended; a request that names its producer is stored once; and each append is answered once.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from tailrace_broker.codec.producers import decode_table
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.core.log.replica_tail import LARGE_GROUP_BYTES
from tailrace_broker.core.log.tail_events import (
    CLOSING,
    LINGER_OVER,
    EpochEnded,
    FlushFailed,
    SettingsAltered,
)
from tailrace_broker.model.append_outcome import Appended, AppendFailed
from tailrace_broker.model.errors import (
    DiskFullError,
    NoLeaderError,
    NotLeaderError,
    StorageFailedError,
)
from tailrace_broker.model.topic import TopicSettings
from tests.support.log.leader import SYNCED, WRITTEN, Leader, batches_of

SETTINGS = [SYNCED, WRITTEN, replace(SYNCED, linger_ms=5), replace(WRITTEN, flush_bytes=4096)]
producers = st.one_of(st.none(), st.integers(0, 2).map(lambda id: Producer(bytes([id] * 16), 0)))
errors = st.sampled_from([StorageFailedError("failed"), DiskFullError("full")])


class LeaderMachine(RuleBasedStateMachine):
    """What can happen to a leader, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = Leader()
        self.ends = (0, 0, 0)
        self.sequence = 0
        self.sent: list[str] = []
        self.answered_before = 0  # when the role ended last

    # --- appends ---

    @rule(producer=producers, is_retry=st.booleans())
    def append_event(self, producer: Producer | None, is_retry: bool) -> None:
        self.leader.event(self._next_name(), self._numbered(producer, is_retry))

    @rule(count=st.integers(1, 3), producer=producers, is_large=st.booleans())
    def append_batch(self, count: int, producer: Producer | None, is_large: bool) -> None:
        values = [bytes(LARGE_GROUP_BYTES if is_large else 1)] * count
        self.leader.batch(self._next_name(), values, self._numbered(producer, is_retry=False))

    # --- the disk ---

    @precondition(lambda self: self.leader.asked is not None and self.leader.write is None)
    @rule()
    def take_turn(self) -> None:
        self.leader.turn()

    @precondition(lambda self: self.leader.write is not None)
    @rule()
    def end_write(self) -> None:
        assert self.leader.write is not None
        batches = batches_of(self.leader.write[0])
        assert batches[0].header.base_offset == self.ends[0]
        assert batches[0].header.high_watermark <= min(self.ends[1:])
        self.leader.end_write()

    @precondition(lambda self: self.leader.write is not None)
    @rule(error=errors, needs_cut=st.booleans())
    def fail_write(self, error: StorageFailedError, needs_cut: bool) -> None:
        self.leader.end_write(error, needs_cut=needs_cut)

    @precondition(lambda self: self.leader.is_flush_due and self.leader.flushing_to is None)
    @rule()
    def begin_flush(self) -> None:
        self.leader.begin_flush()

    @precondition(lambda self: self.leader.flushing_to is not None)
    @rule()
    def end_flush(self) -> None:
        self.leader.end_flush()

    @precondition(lambda self: self.leader.flushing_to is not None)
    @rule(error=errors)
    def fail_flush(self, error: StorageFailedError) -> None:
        self.leader.flushing_to, self.leader.is_flush_due = None, True
        self.leader.step(FlushFailed(error))

    @precondition(lambda self: self.leader.write is None or self.leader.write[1])
    @rule(error=st.one_of(st.none(), errors))
    def end_spill(self, error: StorageFailedError | None) -> None:
        self.leader.end_spill(error)

    # --- the topic and the role ---

    @rule(settings=st.sampled_from(SETTINGS))
    def alter(self, settings: TopicSettings) -> None:
        self.leader.step(SettingsAltered(settings))

    @rule()
    def end_linger(self) -> None:
        self.leader.step(LINGER_OVER)

    @rule()
    def change_role(self) -> None:
        """This broker leads again at once, in the next epoch."""
        epoch = self.leader.appends.epoch
        answers = len(self.leader.answers)
        self.leader.step(EpochEnded(NoLeaderError("ended"), None, NotLeaderError("elsewhere")))
        self.all_failed(answers)
        self.answered_before = len(self.leader.answers)
        assert self.answered_before == len(self.sent)
        self.leader.appends = LeaderAppends(self.leader.tail, epoch + 1)

    @rule()
    def begin_epoch(self) -> None:
        """This broker leads on, in the next epoch: what waits goes on."""
        answers = len(self.leader.answers)
        next_epoch = self.leader.appends.epoch + 1
        self.leader.step(EpochEnded(NoLeaderError("ended"), next_epoch))
        self.all_failed(answers)

    # --- what holds ---

    @invariant()
    def ends_never_fall(self) -> None:
        before, self.ends = self.ends, self.leader.ends
        assert all(end >= was for end, was in zip(self.ends, before, strict=True))

    @invariant()
    def acknowledged_is_committed_in_order(self) -> None:
        offsets = []
        for outcome in (answer.outcome for answer in self.leader.answers):
            if isinstance(outcome, Appended):
                assert outcome.offset < self.leader.ends[2]
                if not outcome.is_duplicate:
                    offsets.append(outcome.offset)
        assert offsets == sorted(set(offsets))

    @invariant()
    def each_is_answered_at_most_once(self) -> None:
        names = [answer.name for answer in self.leader.answers]
        assert len(set(names)) == len(names)

    def teardown(self) -> None:
        """On a healthy disk all is answered in the end, and in the log."""
        leader = self.leader
        leader.end_spill() if leader.write is None or leader.write[1] else None
        if leader.write is not None:
            leader.end_write()
        leader.step(CLOSING)
        while leader.asked is not None or leader.is_flush_due or leader.flushing_to is not None:
            if leader.flushing_to is None and leader.is_flush_due:
                leader.begin_flush()
            if leader.flushing_to is not None:
                leader.end_flush()
            leader.write_all()
            leader.end_spill()
        assert leader.appends.is_idle
        assert sorted(answer.name for answer in leader.answers) == sorted(self.sent)
        self.acknowledged_is_committed_in_order()

        requests = [
            (entry.id, entry.sequence)
            for batch in leader.stored
            if batch.header.producer_table_bytes
            for entry in decode_table(batch.buffers[1])
        ]
        assert len(set(requests)) == len(requests)

    def all_failed(self, since: int) -> None:
        outcomes = [answer.outcome for answer in self.leader.answers[since:]]
        assert all(isinstance(outcome, AppendFailed) for outcome in outcomes)

    def _next_name(self) -> str:
        self.sent.append(f"{len(self.sent)}")
        return self.sent[-1]

    def _numbered(self, producer: Producer | None, is_retry: bool) -> Producer | None:
        if producer is None:
            return None
        self.sequence += not is_retry
        return producer._replace(sequence=self.sequence)


TestLeaderAppends = LeaderMachine.TestCase
