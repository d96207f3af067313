from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.core.replication.events import (
    Advance,
    Applied,
    AskProof,
    Feed,
    Flushed,
    GiveUpEpoch,
    HeardFollower,
    LeaderEffect,
    LeaderEvent,
    LeadProven,
    LogAdded,
    LogAltered,
    LogRemoved,
    LogStartMoved,
    PeerView,
    Propose,
    RangeView,
    ReplicationTiming,
    SendFollower,
    SetLogStart,
    Suspected,
    Woken,
    WriteFailed,
    Wrote,
)
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.progress import FollowerLag
from tailrace_broker.model.commands import ChangeIsr
from tailrace_broker.model.replication import (
    Cuts,
    EpochStart,
    Heartbeat,
    LogCut,
    LogHead,
    LogKey,
    LogReport,
    LogStanding,
    Reported,
    Restart,
    Run,
    Standing,
)
from tailrace_broker.model.ring_state import RangeState, Replica

A, B, C = (Replica(each, 1) for each in range(3))
B2, C2 = Replica(1, 2), Replica(2, 2)
GHOST_B, GHOST_C = B._replace(is_ghost=True), C._replace(is_ghost=True)
KEY, OTHER = LogKey(UUID(int=1), 0), LogKey(UUID(int=2), 3)
EPOCH = 5
NEAR = 1000
TIMING = ReplicationTiming(near_bytes=NEAR)


class Range:
    """A leader, broker 0, of a range in epoch 5, and what it did."""

    def __init__(self, isr: tuple[Replica, ...] = (A, B, C), **ends: Any) -> None:
        self.now_ms = 0
        self.rules: Counter[str] = Counter()
        self.state = RangeState(7, 0, 9, 1, 0, (0, 1, 2), isr, EPOCH, 3, A)
        self.current = {0: A, 1: B, 2: C}
        self.leader = RangeLeader(A, self._view(), TIMING, 0, self.rules)
        self.ends = LogEnds(**ends)
        self.add(KEY, self.ends)

    def _view(self) -> RangeView:
        return RangeView(self.state, 2, dict(self.current))

    def add(self, key: LogKey, ends: LogEnds, **options: Any) -> list[LeaderEffect]:
        options = {"is_synced": True, "min_isr": 2, **options}
        return self.do(LogAdded(key, ends, **options))

    def do(self, event: LeaderEvent) -> list[LeaderEffect]:
        effects = self.leader.step(event, self.now_ms)
        self.leader.validate()
        return effects

    def apply(self, *isr: Replica, version: int | None = None) -> list[LeaderEffect]:
        changed = self.state.version + (isr != self.state.isr)
        self.state = replace(self.state, isr=isr, version=version or changed)
        return self.do(Applied(self._view()))

    def register(self, replica: Replica, *isr: Replica) -> list[LeaderEffect]:
        self.current[replica.ordinal] = replica
        return self.apply(*(isr or self.state.isr))

    def write(self, size_bytes: int = 10, key: LogKey = KEY) -> list[LeaderEffect]:
        ends = self.leader._logs[key].ends
        ends.under_way += 1
        end = ends.written + 1
        return self.do(Wrote(key, Run(EPOCH, ends.written, end), end, size_bytes))

    def stand(
        self, who: Replica, *logs: LogStanding, session: int = 1, epoch: int = EPOCH
    ) -> list[LeaderEffect]:
        return self.do(HeardFollower(Standing(7, epoch, session, who, logs)))

    def report(
        self,
        who: Replica,
        written: int,
        flushed: int | None = None,
        *,
        key: LogKey = KEY,
        session: int = 1,
        is_whole: bool = False,
    ) -> list[LeaderEffect]:
        logs = (LogReport(key, written, written if flushed is None else flushed),)
        return self.do(HeardFollower(Reported(7, EPOCH, session, who, logs, is_whole)))

    def answer(
        self, who: Replica, session: int = 1, *, is_stopping: bool = False
    ) -> list[LeaderEffect]:
        report = Reported(7, EPOCH, session, who, (), is_stopping=is_stopping)
        return self.do(HeardFollower(report))

    def hear_round(self, who: Replica, number: int, session: int = 1) -> list[LeaderEffect]:
        report = Reported(7, EPOCH, session, who, (), round=number)
        return self.do(HeardFollower(report))

    def join(self, who: Replica, end: int = 0, session: int = 1) -> list[LeaderEffect]:
        effects = self.stand(who, session=session)
        return [*effects, *self.report(who, end, session=session, is_whole=True)]

    def wake(self, after_ms: int = TIMING.heartbeat_ms) -> list[LeaderEffect]:
        self.now_ms += after_ms
        return self.do(Woken())

    def wait(self, ms: int, *answering: Replica) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for _ in range(ms // TIMING.heartbeat_ms):
            effects += self.wake()
            for each in answering:
                effects += self.answer(each)
        return effects

    def change(self, *isr: Replica) -> Propose:
        return Propose(ChangeIsr(7, EPOCH, self.state.version, isr))


def of_kind(effects: list[LeaderEffect], *kinds: type) -> list[LeaderEffect]:
    return [each for each in effects if isinstance(each, kinds)]


def proposed(effects: list[LeaderEffect]) -> list[LeaderEffect]:
    return of_kind(effects, Propose)


# --- committing ---


def test_the_high_watermark_is_the_smallest_end_of_the_isr() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.write()

    assert led.report(B, 2) == []
    assert led.report(C, 1) == [Advance(KEY, 1)]
    assert led.report(C, 2) == [Advance(KEY, 2)]


def test_followers_count_when_they_have_reported_in_this_epoch() -> None:
    led = Range(written=4, flushed=4, epochs=[EpochStart(4, 0)])
    led.stand(B, LogStanding(KEY, 0, 4, (EpochStart(4, 0),)))
    assert led.report(B, 4) == []  # of an earlier session, or overtaken

    led.report(B, 4, is_whole=True)
    assert led.ends.high_watermark == 0

    led.stand(C)
    assert led.report(C, 4, is_whole=True) == [Advance(KEY, 4)]


def test_the_own_end_counts_when_it_is_flushed() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.ends.under_way += 1
    led.do(Wrote(KEY, Run(EPOCH, 0, 1), 0, 10))
    led.report(B, 1)
    assert led.report(C, 1) == []

    assert led.do(Flushed(KEY, 1)) == [Advance(KEY, 1)]


def test_a_written_topic_counts_what_is_written() -> None:
    led = Range()
    led.do(LogAltered(KEY, is_synced=False, min_isr=2))
    led.join(B)
    led.join(C)
    led.write()
    led.report(B, 1, 0)

    assert led.report(C, 1, 0) == [Advance(KEY, 1)]


def test_the_high_watermark_stands_still_below_min_isr() -> None:
    led = Range((A,))

    assert of_kind(led.write(), Advance) == []
    assert led.do(LogAltered(KEY, is_synced=True, min_isr=1)) == [Advance(KEY, 1)]


def test_nobody_commits_without_a_ghost() -> None:
    led = Range((A, GHOST_B, C))
    led.join(C)
    led.write()

    assert of_kind(led.report(C, 1), Advance) == []


def test_reports_of_others_than_the_registered_process_do_not_count() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.report(C, 1)

    assert led.report(B2, 1) == []
    assert led.report(B, 1, session=9) == []
    assert led.stand(B2) == []
    assert led.stand(B, session=2, epoch=4) == []
    assert led.stand(B, session=1) == []
    assert led.rules["leader.refused_sender"] == 3


def test_a_report_that_is_overtaken_takes_nothing_back() -> None:
    led = Range()
    led.join(B)
    led.write()
    led.report(B, 1)
    led.report(B, 0)
    led.join(C)

    assert led.report(C, 1) == [Advance(KEY, 1)]


def test_an_ended_process_is_counted_until_another_registers() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.report(B, 1)
    led.report(C, 1)
    led.register(B2, A, B2, C)
    led.write()
    assert led.report(C, 2) == []

    assert of_kind(led.join(B2, 2), Advance) == [Advance(KEY, 2)]


# --- feeding ---


def test_only_what_the_own_write_has_completed_is_sent() -> None:
    led = Range()
    led.join(B)

    assert led.write() == [Feed(1, 1, KEY, 0, 1, 0, 0)]
    assert led.write() == [Feed(1, 1, KEY, 1, 2, 0, 0)]


def test_who_is_far_behind_gets_a_piece_at_a_time() -> None:
    led = Range(written=4, flushed=4, epochs=[EpochStart(4, 0)])

    assert led.join(B, 1)[-1] == Feed(1, 1, KEY, 1, None, 0, 0)
    assert led.write() == []
    assert led.report(B, 1, 1) == []
    assert led.report(B, 3, 3) == [Feed(1, 1, KEY, 3, None, 0, 0)]
    assert led.report(B, 4, 4) == [Feed(1, 1, KEY, 4, 5, 0, 0)]


def test_what_is_near_is_what_the_last_bytes_hold() -> None:
    led = Range()
    for _ in range(3):
        led.write(NEAR // 2)

    assert led.join(B, 0)[-1] == Feed(1, 1, KEY, 0, None, 0, 0)
    assert led.report(B, 1) == [Feed(1, 1, KEY, 1, 3, 0, 0)]


def test_who_lacks_what_retention_has_removed_stands_again() -> None:
    led = Range((A, B), written=4, flushed=4, epochs=[EpochStart(4, 0)])
    led.join(B, 1)
    led.ends.high_watermark = 3

    assert led.do(LogStartMoved(KEY, 3)) == []
    assert led.report(B, 2) == [SendFollower(1, Restart(7, EPOCH, 1))]
    assert led.report(B, 2) == []


def test_heartbeats_carry_what_has_changed() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.report(B, 1)
    led.report(C, 1)

    heads = (LogHead(KEY, 1, 0),)
    assert led.wake() == [SendFollower(o, Heartbeat(7, EPOCH, 1, heads)) for o in (1, 2)]
    assert led.wake() == [SendFollower(o, Heartbeat(7, EPOCH, 1, ())) for o in (1, 2)]
    assert led.do(Woken()) == []


def test_followers_hear_soon_what_is_committed() -> None:
    """Those who read there would else wait for the next heartbeat."""
    led = Range()
    led.join(B)
    led.join(C)
    led.wake(TIMING.heartbeat_ms // 2)
    led.wake(TIMING.heartbeat_ms // 2)
    led.write()
    led.report(B, 1)
    led.report(C, 1)

    assert led.leader.wake_at_ms == led.now_ms + TIMING.heads_ms
    heads = (LogHead(KEY, 1, 0),)
    assert led.wake(TIMING.heads_ms) == [
        SendFollower(o, Heartbeat(7, EPOCH, 1, heads)) for o in (1, 2)
    ]
    assert led.leader.wake_at_ms == led.now_ms + TIMING.heartbeat_ms - TIMING.heads_ms


def test_what_goes_with_the_next_batches_is_not_said_again() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.report(B, 1)
    led.report(C, 1)
    fed = [each for each in led.write() if isinstance(each, Feed)]

    assert [each.high_watermark for each in fed] == [1, 1]
    assert led.wake() == [SendFollower(o, Heartbeat(7, EPOCH, 1, ())) for o in (1, 2)]


# --- cuts ---


def cut_of(led: Range, standing: LogStanding) -> LogCut:
    (effect,) = led.stand(B, standing)
    assert isinstance(effect, SendFollower)
    assert isinstance(effect.message, Cuts)
    (cut,) = effect.message.logs
    return cut


def test_a_follower_is_cut_where_its_log_parts_from_the_leaders() -> None:
    led = Range(written=8, flushed=8, high_watermark=4, epochs=[EpochStart(1, 0), EpochStart(4, 6)])

    parted = LogStanding(KEY, 0, 9, (EpochStart(1, 0), EpochStart(2, 5)))
    assert cut_of(led, parted) == LogCut(KEY, 5, 1, False, 4, 0)


def test_an_empty_log_needs_no_cut() -> None:
    led = Range(written=8, flushed=8, epochs=[EpochStart(1, 0)])

    assert cut_of(led, LogStanding(KEY, 0, 0, ())) == LogCut(KEY, 0, 0, False, 0, 0)


def test_a_follower_behind_the_log_start_begins_there() -> None:
    ends: dict[str, Any] = {
        "start": 5,
        "written": 8,
        "flushed": 8,
        "high_watermark": 8,
        "base_epoch": 1,
    }
    led = Range(**ends, epochs=[EpochStart(4, 5)])

    short = LogStanding(KEY, 0, 2, (EpochStart(1, 0),))
    assert cut_of(led, short) == LogCut(KEY, 5, 1, True, 8, 5)


def test_a_follower_with_nothing_in_common_begins_again() -> None:
    led = Range(written=8, flushed=8, epochs=[EpochStart(4, 0)])

    assert cut_of(led, LogStanding(KEY, 0, 2, (EpochStart(3, 0),))) == LogCut(KEY, 0, 0, True, 0, 0)


@pytest.mark.parametrize(
    ("written", "epochs"), [(0, []), (2, [EpochStart(4, 0)])], ids=["a new disk", "less of it"]
)
def test_the_log_start_of_a_past_that_was_given_up_is_not_taken(
    written: int, epochs: list[EpochStart]
) -> None:
    """A loss was accepted; then a broker comes back that had more, of which retention left some."""
    led = Range(isr=(A, B), written=written, flushed=written, epochs=epochs)
    led.stand(B, LogStanding(KEY, 100, 200, (EpochStart(4, 100),)))
    led.report(B, written, is_whole=True)
    led.write()

    assert led.report(B, written + 1) == [Advance(KEY, written + 1)]
    assert led.ends.start == 0


def test_the_log_start_that_a_follower_knows_is_kept() -> None:
    led = Range((A, B), written=8, flushed=8, high_watermark=4, epochs=[EpochStart(1, 0)])
    standing = LogStanding(KEY, 6, 8, (EpochStart(1, 6),))

    assert led.stand(B, standing)[0] == SetLogStart(KEY, 4)
    assert led.report(B, 8, is_whole=True)[:2] == [Advance(KEY, 8), SetLogStart(KEY, 6)]
    assert led.wake() == [SendFollower(1, Heartbeat(7, EPOCH, 1, (LogHead(KEY, 8, 6),)))]


def test_a_log_that_the_leader_does_not_know_is_not_cut() -> None:
    led = Range()

    (effect,) = led.stand(B, LogStanding(OTHER, 0, 2, (EpochStart(3, 0),)))

    assert effect == SendFollower(1, Cuts(7, EPOCH, 1, ()))


# --- admission ---


def test_who_has_caught_up_is_proposed() -> None:
    led = Range((A, B))
    led.join(B)

    assert proposed(led.join(C)) == [led.change(A, B, C)]
    led.apply(A, B, C)
    assert led.rules["leader.admitted"] == 1
    assert len(led.leader.proposed) == 0


def test_a_candidate_is_counted_before_it_is_proposed() -> None:
    led = Range((A, B))
    led.join(B)
    led.write()
    led.report(B, 1)
    led.write()
    assert led.ends.high_watermark == 1
    led.join(C)

    assert led.report(B, 2) == []
    assert proposed(led.report(C, 1)) == [led.change(A, B, C)]
    assert led.ends.high_watermark == 1
    assert of_kind(led.report(C, 2), Advance) == [Advance(KEY, 2)]


def test_a_candidate_must_have_the_leaders_end_at_the_start_of_the_epoch() -> None:
    led = Range((A, B), written=4, flushed=4, epochs=[EpochStart(4, 0)])

    assert proposed(led.join(C, 3)) == []
    assert proposed(led.report(C, 4, 3)) == []
    assert proposed(led.report(C, 4)) == [led.change(A, B, C)]


def test_a_candidate_must_have_every_log() -> None:
    led = Range((A, B))
    led.add(OTHER, LogEnds(0, 3, 3, 0, [EpochStart(4, 0)]))
    led.join(B)
    assert proposed(led.join(C)) == []

    led.report(C, 3, 2, key=OTHER)
    assert led.rules["leader.counts_candidate"] == 1
    assert proposed(led.report(C, 3, 3, key=OTHER)) == [led.change(A, B, C)]


def test_who_falls_back_before_it_is_counted_is_no_candidate() -> None:
    led = Range((A, B))
    led.add(OTHER, LogEnds(0, 3, 3, 0, [EpochStart(4, 0)]))
    led.join(C)
    for _ in range(3):
        led.write(NEAR)

    led.report(C, 3, key=OTHER)
    assert led.rules["leader.counts_candidate"] == 0
    led.report(C, 2)
    assert led.rules["leader.counts_candidate"] == 1


def test_a_log_that_is_gone_keeps_nobody_out() -> None:
    led = Range((A, B))
    led.add(OTHER, LogEnds(0, 3, 3, 0, [EpochStart(4, 0)]))
    led.join(C)

    assert proposed(led.do(LogRemoved(OTHER))) == [led.change(A, B, C)]
    assert led.report(C, 9, key=OTHER) == []


def test_a_new_log_is_fed_at_once_and_counts_for_candidates() -> None:
    led = Range((A, B), written=1, flushed=1, epochs=[EpochStart(4, 0)])
    led.join(C, 1, session=1)
    led.apply(A, B, version=9)
    led.do(LogAltered(KEY, is_synced=True, min_isr=2))
    led.add(OTHER, LogEnds(4, 4, 4, 4))

    assert led.write(key=OTHER) == [Feed(2, 1, OTHER, 4, 5, 4, 4)]
    assert led.leader._progress[2].lacking == {OTHER}


def test_a_candidate_must_flush_what_it_has_when_its_topic_becomes_synced() -> None:
    led = Range((A,))
    led.do(LogAltered(KEY, is_synced=False, min_isr=1))
    led.write()
    led.join(B, 1)  # it is proposed, and C waits
    led.stand(C)
    led.report(C, 1, 0, is_whole=True)
    led.do(LogAltered(KEY, is_synced=True, min_isr=1))

    assert proposed(led.apply(A, B)) == []
    assert proposed(led.report(C, 1, 1)) == [led.change(A, B, C)]


def test_who_stood_with_a_log_before_it_was_open_here_stands_again() -> None:
    """Its end says nothing before it was compared: the log may differ."""
    led = Range((A, B), written=0)
    led.stand(B, LogStanding(OTHER, 0, 9, (EpochStart(2, 0),)))
    led.report(B, 9, key=OTHER, is_whole=True)

    effects = led.add(OTHER, LogEnds(0, 9, 9, 0, [EpochStart(4, 0)]))

    assert effects == [SendFollower(1, Restart(7, EPOCH, 1))]
    assert led.report(B, 9, key=OTHER) == []
    (answer,) = led.stand(B, LogStanding(OTHER, 0, 9, (EpochStart(2, 0),)), session=2)
    assert isinstance(answer, SendFollower)
    assert isinstance(answer.message, Cuts)
    assert of_kind(led.report(B, 0, key=OTHER, session=2, is_whole=True), Advance) == []
    assert Advance(OTHER, 9) in led.report(B, 9, key=OTHER, session=2)


def test_a_candidate_that_is_not_proposed_in_time_is_dropped() -> None:
    led = Range((A, B), written=4, flushed=4, epochs=[EpochStart(4, 0)])
    led.join(B, 4)
    led.join(C, 4, session=1)
    assert led.leader.proposed == (C,)
    slow = Range((A, B), written=4, flushed=4, epochs=[EpochStart(4, 0)])
    slow.join(B, 4)
    slow.stand(C)
    slow.report(C, 4, 3, is_whole=True)
    slow.wait(TIMING.lag_ms, B, C)
    assert slow.rules["leader.dropped_candidate"] == 0

    slow.wait(TIMING.heartbeat_ms, B, C)
    assert slow.rules["leader.dropped_candidate"] == 1
    assert slow.report(C, 4, 3) == []
    assert proposed(slow.wait(TIMING.lag_ms, B)) == []
    assert proposed(slow.report(C, 4)) == [slow.change(A, B, C)]


def test_a_dead_replica_does_not_become_a_candidate() -> None:
    led = Range((A, B))
    led.add(OTHER, LogEnds(0, 3, 3, 0, [EpochStart(4, 0)]))
    led.join(B)
    led.join(C)
    led.wait(2 * TIMING.silence_ms, B)

    led.do(LogRemoved(OTHER))

    assert led.rules["leader.counts_candidate"] == 0


def test_a_suspected_candidate_is_dropped_unless_it_is_proposed() -> None:
    led = Range((A, B), written=4, flushed=4, epochs=[EpochStart(4, 0)])
    led.stand(C)
    led.report(C, 4, 3, is_whole=True)
    led.do(Suspected(2))
    assert led.rules["leader.dropped_candidate"] == 1
    ready = Range((A, B))
    ready.join(C)

    assert ready.do(Suspected(2)) == []
    assert ready.leader.proposed == (C,)
    assert ready.do(Suspected(9)) == []


def test_who_is_proposed_is_counted_until_the_proposal_can_never_commit() -> None:
    led = Range((A, B))
    led.join(B)
    led.join(C)
    led.write()
    assert of_kind(led.report(B, 1), Advance) == []
    led.wait(2 * TIMING.lag_ms, B)
    assert led.ends.high_watermark == 0

    assert of_kind(led.register(C2), Advance) == [Advance(KEY, 1)]
    assert led.rules["leader.proposal_outlived"] == 1


def test_what_was_proposed_is_proposed_again() -> None:
    led = Range((A, B))
    led.join(B)
    led.join(C)

    again = proposed(led.wait(2 * TIMING.propose_ms, B, C))

    assert again == [led.change(A, B, C)] * 2


def test_a_candidate_is_proposed_again_for_the_next_version() -> None:
    led = Range((A, B))
    led.join(B)
    led.join(C)

    assert led.apply(A, B, version=7) == [led.change(A, B, C)]


def test_a_ghost_is_replaced_by_its_next_registration() -> None:
    led = Range((A, GHOST_B))
    led.register(B2)

    assert proposed(led.join(B2)) == [led.change(A, B2)]


# --- leaving ---


def test_a_member_that_lags_leaves() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.report(B, 1)
    led.wait(TIMING.lag_ms, B, C)
    assert led.leader._proposal is None

    assert proposed(led.wait(2 * TIMING.heartbeat_ms, B, C)) == [led.change(A, B)]
    assert led.apply(A, B) == [Advance(KEY, 1)]


def test_a_member_that_is_silent_leaves() -> None:
    led = Range()
    led.join(B)
    led.join(C)

    assert proposed(led.wait(TIMING.lag_ms + 200, B)) == [led.change(A, B)]


def test_a_member_that_does_not_catch_up_after_a_failover_leaves() -> None:
    led = Range(written=4, flushed=4, epochs=[EpochStart(4, 0)])
    led.join(B, 4)
    led.join(C, 2)

    assert proposed(led.wait(TIMING.lag_ms + 200, B, C)) == [led.change(A, B)]


def test_a_suspected_member_leaves_at_once() -> None:
    led = Range()
    led.join(B)
    led.join(C)

    assert led.do(Suspected(2)) == [led.change(A, B)]
    led.answer(C)
    assert led.do(Suspected(1)) == []


def test_members_are_replaced_not_removed() -> None:
    led = Range((A, B))
    led.join(B)
    assert led.do(Suspected(1)) == []

    assert proposed(led.join(C)) == [led.change(A, C)]


def test_a_ghost_leaves_when_enough_others_have_all() -> None:
    led = Range((A, B, GHOST_C))
    led.join(B)

    assert proposed(led.wake()) == [led.change(A, B)]


def test_nobody_lags_because_the_leader_stood_still() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()

    assert proposed(led.wake(60_000)) == []
    assert led.rules["leader.stood_still"] == 1


def test_a_member_that_has_left_owes_nothing() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.apply(A, B)

    assert not led.leader._progress[2].owed


# --- the end of the epoch ---


def test_after_a_failed_write_the_epoch_is_given_up() -> None:
    led = Range()
    led.join(B)
    led.join(C)
    led.write()
    led.ends.under_way += 2

    assert led.do(WriteFailed(KEY)) == [GiveUpEpoch(EPOCH)]
    assert led.do(WriteFailed(KEY)) == []
    led.report(B, 1)
    assert led.report(C, 1) == []
    assert led.wake()[-1] == GiveUpEpoch(EPOCH)
    assert led.do(Suspected(1)) == []


def test_a_log_that_is_removed_is_forgotten_of_everybody() -> None:
    led = Range()
    led.add(OTHER, LogEnds())
    led.join(B)
    led.write(key=OTHER)
    led.write()

    led.do(LogRemoved(OTHER))

    assert [each[1] for each in led.leader._progress[1].owed] == [KEY]
    assert led.leader._progress[1].sent == {KEY: 1}


def test_a_proposal_outlives_a_state_that_does_not_concern_it() -> None:
    led = Range((A, B))
    led.join(C)

    led.apply(A, B)

    assert led.leader.proposed == (C,)


# --- how far followers are behind -----------------------------------------------------------------


def test_a_follower_that_has_not_reported_is_behind_by_nobody_knows_how_much() -> None:
    led = Range()
    led.join(B)

    assert led.leader.lags(led.now_ms) == [FollowerLag(1, 0, 0), FollowerLag(2, None, None)]


def test_a_member_owes_what_it_has_not_acknowledged_since_that_was_written() -> None:
    led = Range()
    led.join(B)
    led.write()
    led.now_ms += 40
    led.write()
    led.now_ms += 5

    assert led.leader.lags(led.now_ms)[0] == FollowerLag(1, 2, 45)
    led.report(B, 1)
    assert led.leader.lags(led.now_ms)[0] == FollowerLag(1, 1, 5)
    led.report(B, 2)
    assert led.leader.lags(led.now_ms)[0] == FollowerLag(1, 0, 0)


def test_a_replica_that_is_not_in_sync_lacks_records_of_all_logs_and_owes_none() -> None:
    led = Range((A, B), written=3, flushed=3)
    led.add(OTHER, LogEnds(written=4, flushed=4))
    led.join(C, 1)

    assert led.leader.lags(led.now_ms)[1] == FollowerLag(2, 6, None)


# --- followers that stop ---


def test_a_member_that_stops_leaves_while_it_still_acknowledges() -> None:
    led = Range()
    led.join(B)
    led.join(C)

    assert led.answer(C, is_stopping=True) == [led.change(A, B)]
    assert led.answer(C, is_stopping=True) == []
    led.apply(A, B)
    led.write()
    assert led.report(B, 1)[0] == Advance(KEY, 1)
    assert proposed(led.wait(TIMING.silence_ms, B, C)) == []
    assert led.rules["leader.follower_stops"] == 1


def test_a_member_that_stops_stays_where_nobody_can_replace_it() -> None:
    led = Range((A, B))
    led.join(B)

    assert led.answer(B, is_stopping=True) == []


def test_a_candidate_that_stops_is_dropped() -> None:
    led = Range((A, B), written=5, flushed=5)
    led.join(B, 5)
    led.join(C, 3)
    led.report(C, 4)

    led.answer(C, is_stopping=True)

    assert led.rules["leader.dropped_candidate"] == led.rules["leader.counts_candidate"]


def test_a_leader_that_another_answers_still_led_when_it_was_asked() -> None:
    led = Range()
    led.join(B)

    assert led.do(AskProof()) == [SendFollower(1, Heartbeat(7, EPOCH, 1, (), 1))]
    assert led.answer(B) == []  # to a frame that left before
    assert led.hear_round(B, 1) == [LeadProven(EPOCH)]
    assert led.hear_round(B, 1) == []


def test_the_follower_heard_last_is_asked_and_the_other_with_the_next_heartbeat() -> None:
    """No more answers are needed, and one that does not come is not waited for."""
    led = Range()
    led.join(B)
    led.wake(1)
    led.join(C)
    assert led.do(AskProof()) == [SendFollower(2, Heartbeat(7, EPOCH, 1, (), 1))]
    led.wake(1)
    led.answer(B)
    assert led.do(AskProof()) == [SendFollower(1, Heartbeat(7, EPOCH, 1, (), 2))]

    heartbeat = Heartbeat(7, EPOCH, 1, (), 2)
    sent = of_kind(led.wake(), SendFollower)
    assert sent == [SendFollower(1, heartbeat), SendFollower(2, heartbeat)]
    assert led.hear_round(C, 2) == [LeadProven(EPOCH)]


def test_a_round_goes_on_with_the_heartbeats() -> None:
    led = Range()
    led.do(AskProof())
    led.join(B)
    [heartbeat] = [each for each in led.wake() if isinstance(each, SendFollower)]

    assert heartbeat == SendFollower(1, Heartbeat(7, EPOCH, 1, (), 1))
    assert led.hear_round(B, 1) == [LeadProven(EPOCH)]


def test_a_leader_that_has_given_up_proves_nothing() -> None:
    led = Range()
    led.join(B)
    led.leader._logs[KEY].ends.under_way += 1
    led.do(WriteFailed(KEY))
    led.do(AskProof())

    assert led.hear_round(B, 1) == []


def test_the_first_standing_of_an_epoch_counts_as_heard_and_a_repeated_one_does_not() -> None:
    """Who stands again hears no answer: nothing that this leader sends may reach it."""
    led = Range()
    led.do(PeerView(frozenset({1, 2})))
    led.wait(TIMING.silence_ms)
    led.stand(B)
    led.wait(TIMING.silence_ms)
    assert led.leader.is_heard(led.now_ms) is None
    led.stand(B, session=2)
    assert led.leader.is_heard(led.now_ms + 1) is False

    led.answer(B, session=2)  # its disk takes long
    assert led.leader.is_heard(led.now_ms + 1) is None
