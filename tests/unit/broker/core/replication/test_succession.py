from collections import Counter

import msgspec

from tailrace_broker.core.replication.events import (
    HandOver,
    HoldAppends,
    PeerView,
    RangeView,
    ReplicationTiming,
    Stopping,
)
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.progress import LedLog, Progress
from tailrace_broker.core.replication.succession import Succession
from tailrace_broker.model.ring_state import RangeState, Replica

A, B, C = (Replica(each, 1) for each in range(3))
EPOCH = 5
TIMING = ReplicationTiming()
Effects = list[HoldAppends | HandOver]


class Led:
    """A range of brokers 0, 1 and 2 that `me` leads, with one log; the others are in sync."""

    def __init__(self, me: Replica) -> None:
        self.now_ms = 0
        self.rules: Counter[str] = Counter()
        self.state = RangeState(7, 0, 9, 1, 0, (0, 1, 2), (A, B, C), EPOCH, 3, me)
        self.fenced: set[int] = set()
        self.progress = {each.ordinal: Progress(each, 0) for each in (A, B, C) if each != me}
        for each in self.progress.values():
            each.has_reported = each.is_following = each.is_member = True
        self.log = LedLog(LogEnds(), is_synced=True, min_isr=2, near_bytes_max=100)
        self.succession = Succession(me, TIMING, 0, self.rules)

    def step(self, after_ms: int = 0) -> Effects:
        self.now_ms += after_ms
        for each in self.progress.values():
            each.heard_ms = self.now_ms
        view = RangeView(self.state, 2, {}, frozenset(self.fenced))
        effects = self.succession.step(view, self.progress, [self.log], self.now_ms)
        self.succession.validate()
        return effects

    def unheard(self, after_ms: int = 0) -> Effects:
        """As `step`, and nobody has answered since."""
        self.now_ms += after_ms
        view = RangeView(self.state, 2, {}, frozenset(self.fenced))
        return self.succession.step(view, self.progress, [self.log], self.now_ms)

    def stop(self) -> Effects:
        self.succession.note(Stopping())
        return self.step()

    def note(self, able: set[int], *, can_store: bool = True) -> None:
        """The others are heard, and these of them may lead."""
        self.succession.note(PeerView(frozenset(self.progress), frozenset(able), can_store))


def test_a_leader_that_stops_hands_over_to_the_first_in_sync_replica() -> None:
    led = Led(A)
    assert led.step() == []

    assert led.stop() == [HoldAppends(EPOCH), HandOver(EPOCH, B)]
    assert led.step() == []
    assert led.step(TIMING.propose_ms) == [HandOver(EPOCH, B)]
    assert led.rules["leader.hands_over"] == 2


def test_who_seems_dead_stops_or_is_not_in_sync_is_handed_nothing() -> None:
    led = Led(A)
    b, c = led.progress[1], led.progress[2]
    b.is_suspected = c.is_stopping = True
    assert led.stop() == []
    assert led.succession.successor is None

    c.is_stopping = c.is_member = False
    assert led.step() == []
    assert [led.succession.can_hand_over] == [False]
    c.is_member, c.is_following = True, False
    assert led.step() == []
    assert [led.succession.can_hand_over] == [True]  # soon
    c.is_following = True
    assert led.step() == [HoldAppends(EPOCH), HandOver(EPOCH, C)]


def test_a_range_is_handed_over_when_all_is_committed() -> None:
    led = Led(A)
    led.log.ends.under_way = 1
    assert led.stop() == [HoldAppends(EPOCH)]

    led.log.ends.under_way = 0
    led.log.wrote(1, 10)
    assert led.step() == []
    led.log.ends.high_watermark = 1
    assert led.step() == [HandOver(EPOCH, B)]


def test_the_natural_leader_leads_again_when_it_was_in_sync_for_long() -> None:
    led = Led(B)
    assert led.step(TIMING.failback_ms - 1) == []
    led.progress[0].is_following = False  # it stands again
    assert led.step(1) == []
    led.progress[0].is_following = True

    assert led.step(TIMING.failback_ms - 1) == []
    assert led.step(1) == [HoldAppends(EPOCH), HandOver(EPOCH, A)]
    assert led.rules["leader.fails_back"] == 1


def test_a_natural_leader_and_a_range_without_it_fail_back_to_nobody() -> None:
    led, other = Led(A), Led(B)
    del other.progress[0]

    assert led.step(TIMING.failback_ms) == []
    assert other.step(TIMING.failback_ms) == []


def test_a_fenced_broker_is_handed_nothing() -> None:
    led, other = Led(B), Led(A)
    led.fenced = {0}
    other.fenced = {1}

    assert led.step(TIMING.failback_ms) == []
    assert other.stop() == [HoldAppends(EPOCH), HandOver(EPOCH, C)]


def test_a_failback_waits_until_little_is_uncommitted() -> None:
    led = Led(B)
    led.log.wrote(1, 1000)

    assert led.step(TIMING.failback_ms) == []
    led.log.ends.high_watermark = 1
    assert led.step() == [HoldAppends(EPOCH), HandOver(EPOCH, A)]


def test_appends_that_are_held_for_too_long_go_on_in_the_next_epoch() -> None:
    led = Led(B)
    led.log.wrote(1, 10)
    assert led.step(TIMING.failback_ms) == [HoldAppends(EPOCH)]
    assert led.step(TIMING.hand_over_ms - 1) == []

    assert led.step(1) == [HandOver(EPOCH, B)]
    assert led.rules["leader.leads_on"] == 1


def test_appends_go_on_when_the_natural_leader_is_lost_meanwhile() -> None:
    led = Led(B)
    led.log.wrote(1, 10)
    led.step(TIMING.failback_ms)
    led.progress[0].is_suspected = True

    assert led.step() == [HandOver(EPOCH, B)]


def test_a_leader_that_stops_while_it_fails_back_hands_over_to_whoever_is_there() -> None:
    led = Led(B)
    led.log.wrote(1, 10)
    led.step(TIMING.failback_ms)
    led.progress[0].is_suspected = True
    led.log.ends.high_watermark = 1

    assert led.stop() == [HandOver(EPOCH, C)]


# --- a process that can write no more ---


def test_a_leader_that_can_write_no_more_hands_over_to_one_that_can() -> None:
    led = Led(A)
    led.note({2}, can_store=False)

    assert led.step() == [HoldAppends(EPOCH), HandOver(EPOCH, C)]
    assert led.rules["leader.yields"] == 1


def test_a_leader_that_can_write_no_more_goes_on_where_no_replica_can() -> None:
    led = Led(B)
    led.note({7}, can_store=False)

    assert led.step(TIMING.failback_ms) == []  # the natural leader can write no more, either
    assert not led.succession.is_holding


def test_a_leader_that_can_write_again_before_another_leads_goes_on_in_the_next_epoch() -> None:
    led = Led(A)
    led.note({1}, can_store=False)
    led.log.ends.under_way = 1
    assert led.step() == [HoldAppends(EPOCH)]

    led.note({1})
    assert led.step() == [HandOver(EPOCH, A)]
    assert led.rules["leader.leads_on"] == 1


def test_a_leader_waits_for_what_others_must_take_no_longer_than_a_failback_does() -> None:
    led = Led(A)
    led.note({1}, can_store=False)
    led.log.ends.under_way = 1
    assert led.step() == [HoldAppends(EPOCH)]

    assert led.step(TIMING.hand_over_ms - 1) == []
    assert led.step(1) == [HandOver(EPOCH, A)]


# --- a process that replication does not hear ---


def isolated(me: Replica = A) -> Led:
    """Gossip hears the others, and for long none of them has answered."""
    led = Led(me)
    led.note({0, 1, 2} - {me.ordinal})
    led.now_ms = TIMING.isolated_ms
    return led


def test_an_isolated_leader_leaves_the_range_to_the_next_member_and_holds_nothing() -> None:
    led = isolated()
    led.log.wrote(1, 10)  # nobody takes it
    assert led.unheard() == []

    assert led.unheard(1) == [HandOver(EPOCH, B, leaves=True)]
    assert led.unheard(1) == []
    assert led.unheard(TIMING.propose_ms) == [HandOver(EPOCH, B, leaves=True)]
    assert led.rules["leader.isolated"] == 2


def test_an_isolated_leader_chooses_a_member_that_is_not_isolated_nor_fenced() -> None:
    led = isolated()
    led.note({2})
    assert led.unheard(1) == [HandOver(EPOCH, C, leaves=True)]

    led = isolated()
    led.fenced = {1}
    assert led.unheard(1) == []
    led.state = msgspec.structs.replace(led.state, isr=(A, C))  # as it does soon
    assert led.unheard(1) == [HandOver(EPOCH, C, leaves=True)]

    led = isolated()
    led.progress[1].is_member = led.progress[2].is_member = False
    assert led.unheard(1) == []


def test_an_isolated_leader_leaves_the_isr_to_members_that_are_heard() -> None:
    """It has all that was acknowledged; of another nobody knows what is left."""
    led = isolated()
    led.succession.note(PeerView(frozenset({1}), frozenset({1})))
    assert led.unheard(1) == []
    assert led.rules["leader.stays_for_a_member"] == 1

    led = isolated()
    led.succession.note(PeerView(frozenset({1}), frozenset({1})))
    led.state = msgspec.structs.replace(led.state, isr=(A, B))  # it cannot leave: two are to remain
    led.progress[2].is_member = False
    assert led.unheard(1) == [HandOver(EPOCH, B, leaves=True)]

    led = isolated()
    led.progress[2] = Progress(Replica(2, 2), 0)  # the member is a process that is gone
    assert led.unheard(1) == []


def test_where_all_are_isolated_the_leader_stays() -> None:
    led = isolated()
    led.note(set())

    assert led.unheard(1) == []


def test_who_is_alone_is_not_isolated() -> None:
    """The others seem dead to gossip, too."""
    led = isolated()
    led.succession.note(PeerView())

    assert led.unheard(1) == []


def test_one_that_answers_is_enough() -> None:
    led = isolated()
    led.progress[2].heard_ms = led.now_ms

    assert led.unheard(1) == []


def test_a_leader_that_holds_appends_leads_on_before_it_leaves() -> None:
    led = isolated(B)
    led.log.ends.under_way = 1
    led.now_ms = 0
    assert led.step(TIMING.failback_ms) == [HoldAppends(EPOCH)]
    led.progress[0].is_following = False
    led.succession.is_stopping = True

    assert led.unheard(TIMING.isolated_ms + 1) == []


def test_whether_others_answer_is_known_after_a_while() -> None:
    led = isolated()

    def is_heard(at_ms: int) -> bool | None:
        return led.succession.is_heard(led.progress, at_ms)

    assert is_heard(TIMING.silence_ms) is True
    assert is_heard(TIMING.silence_ms + 1) is False
    led.progress[1].is_following = led.progress[2].is_following = False
    assert is_heard(TIMING.silence_ms) is None  # they have just been met
    led.succession.note(PeerView())
    assert is_heard(TIMING.silence_ms + 1) is None
