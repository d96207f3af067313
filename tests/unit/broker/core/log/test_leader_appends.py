"""What a leader does with appends: which write they join, and when and how each is answered."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tailrace_broker.core.log import appends, replica_tail
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.core.log.replica_tail import LARGE_GROUP_BYTES, SPILL_BYTES
from tailrace_broker.core.log.tail_events import (
    ASK_JOURNAL,
    ASK_SEGMENT,
    CLOSING,
    JOURNAL_TURN,
    LINGER_OVER,
    SPILL,
    STOP_LINGER,
    WAKE_READERS,
    AskSegment,
    EpochEnded,
    Flush,
    FlushFailed,
    GiveUpEpoch,
    LogEnd,
    Refused,
    SettingsAltered,
    StartLinger,
    Write,
)
from tailrace_broker.model.append_outcome import Appended, AppendFailed, AppendOutcome
from tailrace_broker.model.errors import (
    DiskFullError,
    NoLeaderError,
    NotLeaderError,
    StorageFailedError,
)
from tailrace_broker.model.topic import TopicSettings
from tests.support.log.leader import SYNCED, WRITTEN, Leader, batches_of

LARGE = bytes(LARGE_GROUP_BYTES)
LINGERS = replace(SYNCED, linger_ms=5, linger_bytes=1_000)
PRODUCER = Producer.named(b"till-7", 5)
FAILED = StorageFailedError("failed")
FULL = DiskFullError("full")
ELSEWHERE = NotLeaderError("elsewhere")
NEXT_EPOCH = EpochEnded(NoLeaderError("ended"), 2)
ENDED = EpochEnded(NoLeaderError("ended"), None, ELSEWHERE)


def in_flight(leader: Leader) -> Write:
    assert leader.write is not None
    return leader.write[0]


def test_what_comes_while_a_write_is_in_flight_joins_the_next() -> None:
    leader = Leader()
    assert leader.event("a") == [ASK_JOURNAL]
    assert leader.event("b") == []
    leader.turn()
    assert [leader.event("c"), leader.batch("d", [b"1", b"2"])] == [[], []]
    assert len(in_flight(leader).contents) == 1
    assert leader.end_write()[-1] == ASK_JOURNAL

    leader.write_all()
    assert leader.outcomes == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
    assert leader.ends == (5, 5, 5)
    assert leader.appends.is_idle


def test_each_event_of_a_batch_is_answered_with_its_offset_and_the_copies() -> None:
    queue, outcomes = appends.AppendQueue(), list[AppendOutcome]()
    for _ in range(2):
        queue.add_event(None, b"1", 0, 0, outcomes.append, None)
    [append] = queue.take_group()
    append.finish(Appended(7, copies=3))

    assert outcomes == [Appended(7, copies=3), Appended(8, copies=3)]


def test_a_batch_is_stamped_with_the_epoch_of_the_role_and_the_committed_end() -> None:
    leader = Leader(end=LogEnd(7, 2, 9_000_000_000_000_000), epoch=3)
    leader.event("a")
    leader.batch("b", [b"1"], is_compressed=True)
    leader.turn()
    first, second = [batch.header for batch in batches_of(in_flight(leader))]

    assert (first.base_offset, first.epoch, first.previous_epoch) == (7, 3, 2)
    assert (second.base_offset, second.epoch, second.previous_epoch) == (8, 3, 3)
    assert first.append_time_us == second.append_time_us == 9_000_000_000_000_000
    assert first.high_watermark == second.high_watermark == 7


def test_a_large_group_goes_to_the_segment() -> None:
    leader = Leader()
    assert leader.batch("a", [LARGE], is_compressed=False) == [ASK_SEGMENT]
    leader.write_all()
    assert leader.outcomes == [("a", 0)]


def test_a_group_that_has_become_large_leaves_the_journal_to_others() -> None:
    leader = Leader()
    assert leader.event("a") == [ASK_JOURNAL]
    leader.batch("b", [LARGE])
    assert leader.turn() == [ASK_SEGMENT]
    leader.write_all()
    assert leader.outcomes == [("a", 0), ("b", 1)]


def test_a_write_takes_what_waits_up_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends, "GROUP_BYTES_MAX", 1_000)
    leader = Leader()
    leader.event("a", value=bytes(2_000))  # alone it may be larger
    leader.event("b", value=bytes(500))
    leader.batch("c", [bytes(500)])
    leader.batch("d", [b"1"])  # with "c", and without "e"
    leader.batch("e", [bytes(500)])
    counts = []
    while leader.asked is not None:
        leader.turn()
        counts.append(len(in_flight(leader).contents))
        leader.end_write()
    assert counts == [1, 1, 2, 1]
    assert leader.outcomes == [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4)]


def test_a_failed_write_fails_its_appends_and_no_others() -> None:
    leader = Leader()
    leader.event("a")
    leader.turn()
    leader.event("b")
    assert leader.end_write(FULL) == [ASK_JOURNAL]
    leader.write_all()
    assert leader.outcomes == [("a", "full"), ("b", 0)]


def test_after_a_failed_write_that_may_stand_in_the_segment_the_next_cuts_it() -> None:
    leader = Leader()
    leader.batch("a", [LARGE])
    leader.turn()
    assert leader.end_write(FAILED, needs_cut=True) == [GiveUpEpoch(1)]
    assert leader.event("b") == []
    assert leader.step(NEXT_EPOCH) == [ASK_SEGMENT]
    leader.write_all()
    assert leader.event("c") == [ASK_JOURNAL]


def test_no_offset_is_handed_out_twice_in_an_epoch() -> None:
    """But those that a full disk has refused: nothing of them was written."""
    leader = Leader()
    leader.event("a")
    leader.turn()
    leader.end_write(FULL)
    leader.event("b")
    leader.turn()
    leader.event("c")
    leader.end_write(FAILED)
    leader.event("d")
    assert leader.asked is None
    leader.step(NEXT_EPOCH)
    leader.write_all()
    assert leader.outcomes == [("a", "full"), ("b", "failed"), ("c", 0), ("d", 1)]
    assert [batch.header.epoch for batch in leader.stored] == [2]


def test_a_write_that_an_ended_epoch_has_begun_gives_up_no_later_one() -> None:
    leader = Leader()
    leader.event("a")
    leader.turn()
    leader.step(NEXT_EPOCH)
    assert leader.end_write(FAILED) == []


@pytest.mark.parametrize("is_closing_first", [False, True])
def test_a_log_that_closes_waits_for_no_other_epoch(is_closing_first: bool) -> None:
    leader = Leader()
    leader.event("a")
    leader.turn()
    leader.event("b")
    events: list[Callable[[], object]] = [
        lambda: leader.end_write(FAILED),
        lambda: leader.step(CLOSING),
    ]
    for event in reversed(events) if is_closing_first else events:
        event()
    assert [name for name, _ in leader.outcomes] == ["a", "b"]
    assert leader.appends.is_idle


# --- durability ---


def test_a_written_topic_acknowledges_what_is_written_and_flushes_later() -> None:
    leader = Leader(WRITTEN)
    leader.event("a")
    leader.turn()
    effects = leader.end_write()
    assert effects[1:] == [Flush(1_000), WAKE_READERS]
    assert leader.outcomes == [("a", 0)]
    assert leader.ends == (1, 0, 1)
    leader.begin_flush()
    leader.event("b")
    leader.write_all()
    leader.end_flush()
    assert leader.ends == (2, 1, 2)
    assert leader.tail.committed_end == 1


def test_a_topic_that_becomes_synced_acknowledges_when_what_is_before_is_flushed() -> None:
    leader = Leader(WRITTEN)
    leader.event("a")
    leader.write_all()
    assert leader.step(SettingsAltered(SYNCED)) == [Flush(0)]
    leader.event("b")
    leader.begin_flush()
    leader.write_all()
    assert leader.outcomes == [("a", 0)]
    assert leader.end_flush() == [WAKE_READERS]
    assert leader.outcomes == [("a", 0), ("b", 1)]
    assert leader.ends == (2, 2, 2)


def test_what_came_for_a_synced_append_gets_it() -> None:
    leader = Leader()
    leader.event("a")
    leader.step(SettingsAltered(WRITTEN))
    assert leader.tail.is_synced
    leader.turn()
    assert in_flight(leader).is_durable
    leader.end_write()
    assert leader.outcomes == [("a", 0)]
    assert not leader.tail.is_synced


def test_a_flush_that_fails_fails_what_waits_for_it() -> None:
    leader = Leader(WRITTEN)
    leader.event("a")
    leader.write_all()
    leader.step(SettingsAltered(SYNCED))
    leader.event("b", PRODUCER)
    leader.write_all()
    leader.step(FlushFailed(FAILED))
    assert leader.outcomes[1:] == [("b", "failed")]
    assert leader.answers[-1].outcome == AppendFailed(FAILED, written_end=2)
    assert leader.appends.is_idle

    leader.event("retry", PRODUCER)  # it is stored, and not committed yet
    leader.step(FlushFailed(FAILED))
    leader.event("retry", PRODUCER)
    assert leader.outcomes[2:] == [("retry", "failed")]
    leader.begin_flush()
    leader.end_flush()
    assert leader.answers[-1].is_duplicate
    assert leader.outcomes[3:] == [("retry", 1)]


# --- linger ---


def test_single_events_linger_until_the_timer_ends() -> None:
    leader = Leader(LINGERS)
    assert leader.event("a") == [StartLinger(5)]
    assert leader.event("b") == []
    assert leader.step(LINGER_OVER) == [STOP_LINGER, ASK_JOURNAL]
    leader.write_all()
    assert leader.outcomes == [("a", 0), ("b", 1)]


def test_a_timer_that_is_late_ends_nothing() -> None:
    leader = Leader(LINGERS)
    leader.event("a")
    leader.event("b", value=bytes(1_000))
    assert leader.effects == [STOP_LINGER, ASK_JOURNAL]
    assert leader.step(LINGER_OVER) == []
    leader.write_all()
    assert leader.event("c") == [StartLinger(5)]


def test_what_lingers_goes_with_a_batch() -> None:
    leader = Leader(LINGERS)
    leader.event("a")
    assert leader.batch("b", [b"1"]) == [STOP_LINGER, ASK_JOURNAL]


@pytest.mark.parametrize(
    ("settings", "effects"),
    [(SYNCED, [ASK_JOURNAL]), (replace(LINGERS, linger_ms=1), [StartLinger(1)])],
)
def test_another_linger_is_in_force_at_once(settings: TopicSettings, effects: list[object]) -> None:
    leader = Leader(LINGERS)
    leader.event("a")
    assert leader.step(SettingsAltered(settings)) == [STOP_LINGER, *effects]


# --- the pending tail ---


def test_a_pending_tail_that_has_grown_is_spilled_and_not_again_at_once() -> None:
    leader = Leader(pending_bytes=SPILL_BYTES)
    for is_due in (True, False):
        leader.event("a")
        leader.turn()
        assert (SPILL in leader.end_write()) == is_due
    leader.end_spill(FAILED)
    leader.end_spill()
    assert leader.tail.pending_bytes == 0


def test_a_write_behind_a_pending_tail_that_is_too_large_waits_until_it_is_spilled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_tail, "GROUP_BYTES_MAX", 100_000)
    leader = Leader(pending_bytes=250_000)
    leader.batch("a", [LARGE])
    assert leader.turn() == [SPILL]
    leader.event("b")
    assert leader.end_spill(rest=150_000) == [ASK_SEGMENT]
    assert leader.turn() == [SPILL]
    leader.end_spill(FULL)
    assert leader.outcomes == [("a", "full"), ("b", "full")]
    leader.event("c")
    leader.end_spill()
    leader.write_all()
    assert leader.outcomes[2:] == [("c", 0)]


def test_a_spill_that_fails_goes_on_with_what_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_tail, "GROUP_BYTES_MAX", 100_000)
    monkeypatch.setattr(appends, "GROUP_BYTES_MAX", 100_000)
    leader = Leader(pending_bytes=250_000)
    leader.batch("a", [bytes(90_000)])
    leader.turn()
    leader.batch("b", [bytes(90_000)])
    assert leader.end_spill(FULL) == [ASK_SEGMENT]
    assert leader.outcomes == [("a", "full")]


def test_a_segment_that_cannot_be_written_takes_no_appends_until_it_is_repaired() -> None:
    leader = Leader(pending_bytes=1)
    leader.end_spill(FAILED)
    assert leader.event("a") == [SPILL]
    assert leader.batch("b", [b"1"]) == [SPILL]
    leader.end_spill()
    leader.event("c")
    leader.write_all()
    assert leader.outcomes == [("a", "failed"), ("b", "failed"), ("c", 0)]


# --- producers ---


def test_a_retry_of_what_is_under_way_gets_its_outcome() -> None:
    leader = Leader()
    leader.event("first", PRODUCER)
    leader.event("plain")
    leader.event("second", PRODUCER)
    assert leader.answers == []
    leader.write_all()
    assert leader.outcomes == [("first", 0), ("second", 0), ("plain", 1)] or (
        leader.outcomes == [("first", 0), ("plain", 1), ("second", 0)]
    )
    leader.event("third", PRODUCER)
    assert [answer.name for answer in leader.answers if answer.is_duplicate] == ["second", "third"]


def test_a_retry_gets_the_offset_of_its_event_in_the_batch() -> None:
    leader = Leader()
    leader.event("plain")
    leader.event("first", PRODUCER)
    leader.event("second", PRODUCER)
    leader.write_all()
    assert sorted(leader.outcomes) == [("first", 1), ("plain", 0), ("second", 1)]


def test_what_fails_fails_for_its_retries_and_the_next_is_new() -> None:
    leader = Leader()
    leader.batch("first", [b"1"], PRODUCER, is_compressed=True)
    leader.batch("second", [b"1"], PRODUCER)
    leader.turn()
    leader.end_write(FULL)
    leader.batch("third", [b"1"], PRODUCER)
    leader.batch("plain", [b"1"])
    leader.write_all()
    assert leader.outcomes[:2] == [("first", "full"), ("second", "full")]
    assert leader.outcomes[2:] == [("third", 0), ("plain", 1)]
    assert not any(answer.is_duplicate for answer in leader.answers)


def test_what_a_producer_may_not_send_is_refused_at_once() -> None:
    leader = Leader()
    leader.event("first", PRODUCER)
    leader.batch("other", [b"1", b"2"], PRODUCER)
    [(name, detail)] = leader.outcomes
    assert name == "other"
    assert str(detail).startswith("sequence 5 brought 1 events before, and now 2")


# --- the end ---


def test_what_is_refused_is_answered_at_once_and_what_is_under_way_goes_on() -> None:
    leader = Leader()
    leader.event("a")
    leader.step(Refused(ELSEWHERE))
    leader.event("b")
    leader.write_all()
    assert leader.outcomes == [("b", "elsewhere"), ("a", 0)]


def test_closing_ends_the_linger_and_drains() -> None:
    leader = Leader(LINGERS)
    leader.event("a")
    assert leader.step(CLOSING) == [STOP_LINGER, ASK_JOURNAL]
    leader.write_all()
    assert leader.appends.is_idle


def test_closing_waits_for_what_is_not_committed_yet() -> None:
    leader = Leader(WRITTEN)
    leader.event("a")
    leader.write_all()
    leader.step(SettingsAltered(SYNCED))
    leader.event("b")
    leader.write_all()
    assert leader.step(CLOSING) == []
    assert not leader.appends.is_idle
    leader.begin_flush()
    leader.end_flush()
    assert leader.appends.is_idle


def test_the_end_of_the_role_fails_all_that_is_under_way() -> None:
    leader = Leader(WRITTEN)
    leader.event("a")
    leader.write_all()
    leader.step(SettingsAltered(SYNCED))
    leader.event("uncommitted", PRODUCER)
    leader.write_all()
    leader.event("in flight")
    leader.turn()
    leader.event("waits")
    leader.step(ENDED)
    leader.event("late")
    assert leader.outcomes == [
        ("a", 0),
        ("uncommitted", "ended"),
        ("in flight", "ended"),
        ("waits", "elsewhere"),
        ("late", "elsewhere"),
    ]

    leader.end_write()
    leader.begin_flush()
    leader.end_flush()
    assert len(leader.answers) == 5
    assert leader.ends == (3, 3, 3)


def test_what_waits_goes_on_in_the_next_epoch_of_the_same_leader() -> None:
    leader = Leader()
    leader.event("in flight", PRODUCER)
    leader.turn()
    leader.event("waits")
    leader.step(EpochEnded(NoLeaderError("ended"), 2))
    leader.event("retry", PRODUCER)
    leader.end_write()
    leader.turn()
    assert in_flight(leader).first.epoch == 2
    leader.end_write()
    leader.event("later retry", PRODUCER)
    assert leader.outcomes == [
        ("in flight", "ended"),
        ("retry", "ended"),  # it is not known yet whether it is stored
        ("waits", 1),
        ("later retry", 0),
    ]


def test_what_is_held_is_not_written_in_the_epoch_and_what_is_in_flight_ends() -> None:
    leader = Leader()
    leader.event("in flight")
    leader.turn()
    leader.event("waits")
    leader.appends.hold()
    assert ASK_JOURNAL not in leader.end_write()
    assert leader.event("comes") == []
    assert leader.outcomes == [("in flight", 0)]

    leader.step(ENDED)
    assert leader.outcomes[1:] == [("waits", "elsewhere"), ("comes", "elsewhere")]


def test_a_turn_that_was_asked_for_before_appends_were_held_writes_nothing() -> None:
    leader = Leader()
    leader.event("waits")
    leader.appends.hold()
    assert leader.turn() == []
    assert not leader.tail.is_writing

    leader.step(NEXT_EPOCH)
    leader.write_all()
    assert leader.outcomes == [("waits", 0)]


def test_a_log_that_closes_waits_for_no_end_of_the_epoch_that_is_held() -> None:
    leader = Leader()
    leader.appends = LeaderAppends(leader.tail, 1, is_held=True)
    leader.event("waits")
    leader.step(CLOSING)
    assert leader.appends.is_idle
    assert [name for name, _ in leader.outcomes] == ["waits"]


def test_the_end_of_the_role_ends_the_linger() -> None:
    leader = Leader(LINGERS)
    leader.event("a")
    assert leader.step(ENDED) == [STOP_LINGER]
    assert leader.appends.is_idle


def test_a_later_leader_writes_in_the_turn_that_an_earlier_one_has_asked_for() -> None:
    leader = Leader()
    leader.event("a")
    leader.step(ENDED)
    leader.appends = LeaderAppends(leader.tail, 2)
    assert leader.event("b") == []
    leader.turn()
    assert in_flight(leader).first.epoch == 2
    leader.end_write()
    assert leader.outcomes == [("a", "elsewhere"), ("b", 0)]


def test_a_turn_that_nobody_needs_any_more_is_over() -> None:
    leader = Leader()
    leader.event("a")
    leader.step(ENDED)
    assert leader.turn() == []
    assert leader.appends.is_idle
    assert leader.appends.step(JOURNAL_TURN, 0) == []


def test_an_earlier_leaders_write_that_ends_is_not_a_later_ones() -> None:
    leader = Leader()
    leader.event("a")
    leader.turn()
    leader.step(ENDED)
    leader.appends = LeaderAppends(leader.tail, 2)
    leader.event("b")
    assert isinstance(leader.end_write()[-1], type(ASK_JOURNAL))
    assert leader.outcomes == [("a", "ended")]
    leader.write_all()
    assert leader.outcomes == [("a", "ended"), ("b", 1)]


def test_an_earlier_leaders_wait_for_a_spill_serves_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_tail, "GROUP_BYTES_MAX", 100_000)
    leader = Leader(pending_bytes=250_000)
    leader.batch("a", [LARGE])
    leader.turn()
    leader.step(ENDED)
    leader.end_spill(FULL)
    assert leader.appends.is_idle
    assert leader.outcomes == [("a", "elsewhere")]
    assert not isinstance(leader.asked, AskSegment)
