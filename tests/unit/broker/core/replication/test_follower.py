from collections import Counter
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.core.replication.events import (
    Advanced,
    Append,
    Applied,
    Cut,
    CutDone,
    Flushed,
    FollowerEffect,
    FollowerEvent,
    HeardLeader,
    LinkLost,
    LogAdded,
    LogAltered,
    LogRemoved,
    RangeView,
    ReplicationTiming,
    ReportLost,
    SendLeader,
    SetLogStart,
    Stopping,
    Woken,
    WriteFailed,
    Wrote,
    view_of,
)
from tailrace_broker.core.replication.follower import NEVER_MS, RangeFollower
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.model.replication import (
    Batches,
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
from tests.support.ring.states import led

A, B = Replica(0, 1), Replica(1, 1)
KEY, OTHER = LogKey(UUID(int=1), 0), LogKey(UUID(int=2), 3)
TIMING = ReplicationTiming()
SESSION_BEFORE = 3


class Replicated:
    """A follower, broker 1, of broker 0 in epoch 5, and what it did."""

    def __init__(self, **ends: Any) -> None:
        self.now_ms = 0
        self.rules: Counter[str] = Counter()
        self.follower = RangeFollower(1, TIMING, self.rules, session=SESSION_BEFORE)
        self.state = RangeState(7, 0, 9, 1, 0, (0, 1), (A, B), 5, 3, A)
        self.current = {0: A, 1: B}
        self.ends = LogEnds(**{"written": 4, "flushed": 4, "epochs": [EpochStart(4, 0)], **ends})
        self.do(LogAdded(KEY, self.ends, is_synced=True, min_isr=2))

    def do(self, event: FollowerEvent) -> list[FollowerEffect]:
        effects = self.follower.step(event, self.now_ms)
        self.follower.validate()
        return effects

    def hear(self, message: Any) -> list[FollowerEffect]:
        return self.do(HeardLeader(message))

    def apply(self, **changes: Any) -> list[FollowerEffect]:
        self.state = replace(self.state, **changes)
        return self.do(Applied(RangeView(self.state, 2, dict(self.current))))

    @property
    def session(self) -> int:
        return self.follower.session

    def cuts(self, *logs: LogCut) -> Cuts:
        return Cuts(7, self.state.epoch, self.session, logs)

    def cut(self, end: int = 4, epoch: int = 4, **changes: Any) -> LogCut:
        return LogCut(KEY, end, epoch, False, 0, 0)._replace(**changes)

    def batches(self, first: int, end: int, **changes: Any) -> Batches:
        batches = Batches(7, 5, self.session, KEY, 4, (Run(5, first, end),), 0, 0)
        return batches._replace(**changes)

    def standing(self, *logs: LogStanding) -> SendLeader:
        return SendLeader(0, Standing(7, self.state.epoch, self.session, B, logs))

    def reported(self, *logs: LogReport, is_whole: bool = False) -> SendLeader:
        message = Reported(7, self.state.epoch, self.session, B, logs, is_whole)
        return SendLeader(0, message)

    def wrote(self, end: int, flushed: int, first: int = 4, epoch: int = 5) -> list[FollowerEffect]:
        return self.do(Wrote(KEY, Run(epoch, first, end), flushed, 10))


def following(**ends: Any) -> Replicated:
    """Behind its cut, which was nothing."""
    replica = Replicated(**ends)
    replica.apply()
    replica.hear(replica.cuts(replica.cut(replica.ends.written)))
    assert replica.follower.is_following
    return replica


STANDING = LogStanding(KEY, 0, 4, (EpochStart(4, 0),))


# --- standing and cuts ---


def test_a_follower_says_where_it_stands_and_reports_after_the_cut() -> None:
    replica = Replicated()

    assert replica.apply() == [replica.standing(STANDING)]
    assert replica.hear(replica.cuts(replica.cut())) == [
        replica.reported(LogReport(KEY, 4, 4), is_whole=True)
    ]


def test_what_was_sent_to_the_follower_before_it_does_not_count() -> None:
    replica = Replicated()
    replica.apply()

    for session in range(SESSION_BEFORE + 1):
        old = Cuts(7, 5, session, (replica.cut(2),))
        assert replica.hear(old) == [replica.reported()]


def test_an_earlier_session_s_message_of_who_leads_no_more_is_not_answered() -> None:
    replica = Replicated()
    replica.apply()
    replica.apply(leader=None)

    assert replica.hear(replica.batches(4, 5)) == []


def test_a_follower_reports_when_the_cut_is_durable() -> None:
    replica = Replicated()
    replica.apply()

    assert replica.hear(replica.cuts(replica.cut(2))) == [Cut(replica.cut(2))]
    assert replica.hear(Heartbeat(7, 5, replica.session, ())) == []
    assert replica.do(Flushed(KEY, 4)) == []
    assert replica.do(CutDone(KEY)) == [replica.reported(LogReport(KEY, 2, 2), is_whole=True)]


def test_a_follower_stands_when_its_own_writes_have_ended() -> None:
    replica = Replicated(under_way=2)

    assert replica.apply() == []
    assert replica.hear(replica.cuts()) == [replica.reported()]
    assert replica.wrote(5, 4) == []
    assert replica.wrote(6, 4, first=5) == [
        replica.standing(LogStanding(KEY, 0, 6, (EpochStart(4, 0), EpochStart(5, 4))))
    ]


def test_a_follower_stands_when_its_own_write_has_failed() -> None:
    replica = Replicated(under_way=1)
    replica.apply()

    assert replica.do(WriteFailed(KEY)) == [replica.standing(STANDING)]


def test_a_follower_whose_disk_takes_long_says_again_and_again_that_it_is_there() -> None:
    replica = Replicated(under_way=1)
    replica.apply()
    for _ in range(5):
        replica.now_ms += TIMING.stand_ms - 1
        assert replica.do(Woken()) == []
        replica.now_ms += 1
        assert replica.do(Woken()) == [replica.reported()]
    replica.wrote(5, 4)
    replica.hear(replica.cuts(replica.cut()))
    for _ in range(5):
        replica.now_ms = replica.follower.wake_at_ms
        assert replica.do(Woken()) == [replica.reported()]

    assert replica.do(CutDone(KEY)) == [replica.reported(LogReport(KEY, 4, 4), is_whole=True)]
    assert replica.rules["follower.is_busy"] == 10
    assert replica.follower.wake_at_ms == replica.now_ms + TIMING.silence_ms


def test_a_cut_that_an_epoch_overtakes_ends_first() -> None:
    replica = Replicated()
    replica.apply()
    replica.hear(replica.cuts(replica.cut(2)))

    assert replica.apply(epoch=6) == []
    assert replica.do(CutDone(KEY)) == [
        replica.standing(LogStanding(KEY, 0, 2, (EpochStart(4, 0),)))
    ]


def test_a_standing_that_is_not_answered_is_sent_again() -> None:
    replica = Replicated()
    replica.apply()
    assert replica.do(Woken()) == []
    assert replica.hear(Heartbeat(7, 5, replica.session, ())) == []
    replica.now_ms = replica.follower.wake_at_ms

    assert replica.do(Woken()) == [replica.standing(STANDING)]
    assert replica.session == SESSION_BEFORE + 2


def test_a_log_with_another_past_is_emptied() -> None:
    replica = Replicated()
    replica.apply()
    cut = replica.cut(50, 3, is_reset=True, log_start=50, high_watermark=60)

    assert replica.hear(replica.cuts(cut)) == [Cut(cut)]
    assert replica.ends == LogEnds(50, 50, 50, 50, [], 3, 1)


def test_a_log_that_starts_behind_the_cut_is_emptied() -> None:
    replica = Replicated(start=3, base_epoch=4, high_watermark=3, epochs=[EpochStart(4, 3)])
    replica.apply(lossy_epochs=(5,))

    assert replica.hear(replica.cuts(replica.cut(2))) == [Cut(replica.cut(2, is_reset=True))]
    assert (replica.ends.start, replica.ends.written) == (2, 2)


def test_a_log_that_is_emptied_begins_where_the_leaders_does() -> None:
    """The loss of what was before was accepted: nobody has decided that the new records go."""
    replica = Replicated(
        start=3, base_epoch=4, high_watermark=4, written=4, flushed=4, epochs=[EpochStart(4, 3)]
    )
    replica.apply(lossy_epochs=(5,))
    replica.hear(replica.cuts(replica.cut(0, 0, is_reset=True)))
    replica.do(CutDone(KEY))
    replica.hear(replica.batches(0, 2, previous_epoch=0))
    replica.wrote(2, 2, first=0)

    heads = (LogHead(KEY, 2, 0),)
    assert replica.hear(Heartbeat(7, 5, replica.session, heads))[0] == Advanced(KEY, 2)
    assert replica.ends.start == 0


def test_an_empty_log_learns_the_epoch_before_it() -> None:
    replica = Replicated(written=0, flushed=0, epochs=[])
    replica.apply()

    replica.hear(replica.cuts(replica.cut(0, 3)))

    assert replica.ends.base_epoch == 3


def test_a_log_that_is_not_here_is_not_cut() -> None:
    replica = Replicated()
    replica.apply()

    assert replica.hear(replica.cuts(replica.cut(), replica.cut()._replace(log=OTHER))) == [
        replica.reported(LogReport(KEY, 4, 4), is_whole=True)
    ]


def test_a_cut_below_the_own_high_watermark_stops_the_log() -> None:
    replica = Replicated(high_watermark=3)
    replica.apply()

    assert replica.hear(replica.cuts(replica.cut(2))) == [
        ReportLost(KEY, 2),
        replica.reported(is_whole=True),
    ]
    assert replica.hear(replica.batches(4, 5)) == []
    assert replica.hear(Heartbeat(7, 5, replica.session, (LogHead(KEY, 4, 0),))) == [
        replica.reported()
    ]
    assert replica.do(Flushed(KEY, 4)) == []
    replica.apply(epoch=6)
    assert replica.hear(replica.cuts(replica.cut(2))) == [replica.reported(is_whole=True)]


def test_an_epoch_that_began_with_loss_lowers_the_high_watermark() -> None:
    for lossy in (5, 6):
        replica = Replicated(high_watermark=3)
        replica.apply(epoch=7, lossy_epochs=(lossy,))

        assert replica.hear(replica.cuts(replica.cut(2))) == [Cut(replica.cut(2))]
        assert replica.ends.high_watermark == 2


def test_a_loss_before_the_logs_last_epoch_allows_nothing() -> None:
    replica = Replicated(high_watermark=3)
    replica.apply(lossy_epochs=(4,))

    assert ReportLost(KEY, 2) in replica.hear(replica.cuts(replica.cut(2)))


# --- whom it follows ---


def test_nobody_is_followed_without_a_leader_or_a_registration() -> None:
    replica = Replicated()
    assert replica.apply(leader=None) == []
    assert replica.apply(leader=B, epoch=6) == []
    assert replica.follower.wake_at_ms == NEVER_MS
    replica.current = {0: A}

    assert replica.apply(leader=A, epoch=7) == []
    assert replica.do(LinkLost()) == []
    assert replica.hear(Heartbeat(7, 7, replica.session, ())) == []


def test_a_state_that_changes_neither_leader_nor_epoch_changes_nothing() -> None:
    replica = following()

    assert replica.apply(version=4) == []
    replica.current = {0: A, 1: Replica(1, 2)}
    assert len(replica.apply()) == 1


def test_frames_of_other_epochs_and_sessions_are_refused() -> None:
    replica = Replicated()
    assert replica.hear(replica.batches(4, 5)) == []
    replica.apply()
    replica.hear(replica.cuts(replica.cut()))

    assert replica.hear(replica.batches(4, 5, epoch=4)) == []
    assert replica.hear(replica.batches(4, 5, epoch=6)) == []
    assert replica.hear(replica.batches(4, 5, session=replica.session - 1)) == [replica.reported()]
    assert replica.rules["follower.refused_epoch"] == 1
    assert replica.rules["follower.ignored_epoch"] == 2
    assert replica.rules["follower.ignored_session"] == 1


# --- appends ---


def test_batches_are_appended_and_their_ends_reported() -> None:
    replica = following()
    batches = replica.batches(4, 6)

    assert replica.hear(batches) == [Append(batches)]
    assert replica.wrote(6, 4) == [replica.reported(LogReport(KEY, 6, 4))]
    assert replica.do(Flushed(KEY, 6)) == [replica.reported(LogReport(KEY, 6, 6))]


def test_batches_of_several_epochs_are_appended() -> None:
    replica = following()
    batches = replica.batches(4, 6, runs=(Run(4, 4, 6), Run(5, 6, 7)))

    assert replica.hear(batches) == [Append(batches)]
    assert replica.ends.epochs == [EpochStart(4, 0), EpochStart(5, 6)]


def test_what_is_known_already_is_not_appended() -> None:
    replica = following()

    assert replica.hear(replica.batches(3, 4, high_watermark=4)) == [Advanced(KEY, 4)]


def test_a_gap_or_another_previous_epoch_begins_a_session() -> None:
    for refused in ({"first": 5}, {"first": 4, "previous_epoch": 3}, {"first": 3}):
        replica = following()
        effects = replica.hear(replica.batches(end=6, **refused))

        assert effects == [replica.standing(STANDING)]


def test_a_failed_write_is_fetched_again() -> None:
    replica = following()
    replica.hear(replica.batches(4, 6))

    assert replica.do(WriteFailed(KEY)) == [replica.standing(STANDING)]


def test_a_broken_connection_silence_and_a_restart_begin_a_session() -> None:
    replica = following()
    assert replica.do(LinkLost()) == [replica.standing(STANDING)]
    replica.hear(replica.cuts(replica.cut()))
    replica.now_ms = replica.follower.wake_at_ms
    assert replica.do(Woken()) == [replica.standing(STANDING)]
    replica.hear(replica.cuts(replica.cut()))
    assert replica.hear(replica.cuts(replica.cut())) == []
    assert replica.hear(Restart(7, 5, replica.session)) == [replica.standing(STANDING)]
    replica.hear(replica.cuts(replica.cut(2)))

    assert replica.hear(Restart(7, 5, replica.session)) == []


# --- what the leader says ---


def test_the_high_watermark_comes_with_frames_and_heartbeats() -> None:
    replica = following()
    replica.hear(replica.batches(4, 6, high_watermark=6))
    assert replica.ends.high_watermark == 4

    assert replica.wrote(6, 6)[0] == Advanced(KEY, 6)


def test_the_log_start_is_kept() -> None:
    replica = following()
    heads = (LogHead(KEY, 3, 2), LogHead(OTHER, 3, 2))

    assert replica.hear(Heartbeat(7, 5, replica.session, heads)) == [
        Advanced(KEY, 3),
        SetLogStart(KEY, 2),
        replica.reported(),
    ]
    assert replica.ends.start == 2


def test_a_log_start_ahead_of_what_is_here_is_kept_when_those_records_are() -> None:
    replica = following()
    replica.hear(replica.batches(4, 6, high_watermark=6))
    replica.hear(Heartbeat(7, 5, replica.session, (LogHead(KEY, 6, 5),)))
    assert replica.ends.start == 4

    assert replica.wrote(6, 6)[:2] == [Advanced(KEY, 6), SetLogStart(KEY, 5)]
    assert replica.ends.start == 5


def test_the_leaders_round_is_answered_and_counts_in_its_session_alone() -> None:
    replica = following()
    [answer] = replica.hear(Heartbeat(7, 5, replica.session, (), 3))
    assert isinstance(answer, SendLeader)
    assert isinstance(answer.message, Reported)
    assert answer.message.round == 3

    replica.hear(Restart(7, 5, replica.session))
    [*_, answer] = replica.hear(replica.cuts(replica.cut(4)))
    assert isinstance(answer, SendLeader)
    assert isinstance(answer.message, Reported)
    assert answer.message.round == 0


# --- logs that come and go ---


def test_a_new_log_is_stood_with() -> None:
    replica = following()

    (effect,) = replica.do(LogAdded(OTHER, LogEnds(), is_synced=True, min_isr=2))

    assert effect == replica.standing(STANDING, LogStanding(OTHER, 0, 0, ()))
    assert replica.do(LogAltered(OTHER, is_synced=False, min_isr=1)) == []


def test_a_new_log_with_a_write_under_way_is_waited_for() -> None:
    replica = Replicated(under_way=1)
    replica.apply()
    other = LogEnds(under_way=1)
    assert replica.do(LogAdded(OTHER, other, is_synced=True, min_isr=2)) == []

    assert replica.wrote(5, 5) == []
    assert len(replica.do(LogRemoved(OTHER))) == 1


def test_a_new_log_without_a_write_is_not_waited_for() -> None:
    replica = Replicated(under_way=1)
    replica.apply()
    assert replica.do(LogAdded(OTHER, LogEnds(), is_synced=True, min_isr=2)) == []

    assert len(replica.wrote(5, 5)) == 1


def test_a_log_that_goes_is_not_waited_for() -> None:
    replica = Replicated()
    replica.apply()
    replica.hear(replica.cuts(replica.cut(2)))

    assert replica.do(LogRemoved(KEY)) == [replica.reported(is_whole=True)]
    assert replica.do(CutDone(KEY)) == []
    assert replica.wrote(5, 5) == []
    assert replica.do(Flushed(KEY, 5)) == []
    assert replica.do(WriteFailed(KEY)) == []
    assert replica.hear(replica.batches(4, 5)) == []


def test_a_log_that_nobody_waits_for_goes() -> None:
    replica = following()

    assert replica.do(LogRemoved(KEY)) == []


def test_cuts_are_reported_when_the_last_one_is_durable() -> None:
    replica = Replicated()
    other = LogEnds(0, 4, 4, 0, [EpochStart(4, 0)])
    replica.do(LogAdded(OTHER, other, is_synced=True, min_isr=2))
    replica.apply()
    replica.hear(replica.cuts(replica.cut(2), replica.cut(3)._replace(log=OTHER)))

    assert replica.do(CutDone(OTHER)) == []
    assert len(replica.do(CutDone(KEY))) == 1


def test_the_machines_see_who_the_replicas_are_now() -> None:
    view = view_of(led(), 0)

    assert view.current == {each: Replica(each, 1) for each in range(3)}
    assert view.floor == 2


def test_a_standing_that_is_not_answered_waits_twice_as_long_each_time() -> None:
    replica = Replicated()
    replica.apply()
    waits = []
    for _ in range(6):
        waits.append(replica.follower.wake_at_ms - replica.now_ms)
        replica.now_ms = replica.follower.wake_at_ms
        replica.do(Woken())

    assert waits == [300, 600, 1200, 2400, 3000, 3000]
    replica.hear(replica.cuts(replica.cut()))
    replica.do(LinkLost())
    assert replica.follower.wake_at_ms - replica.now_ms == 300


def test_a_follower_whose_process_stops_says_so_at_once_and_ever_after() -> None:
    replica = following()
    message = Reported(7, 5, replica.session, B, (), is_stopping=True)

    assert replica.do(Stopping()) == [SendLeader(0, message)]
    replica.do(LinkLost())
    assert replica.do(Stopping()) == []
    effects = replica.hear(replica.cuts(replica.cut()))
    whole = message._replace(session=replica.session, logs=(LogReport(KEY, 4, 4),), is_whole=True)
    assert effects == [SendLeader(0, whole)]
