"""What is said of a new state, compared with the one before."""

from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.core.ring.changes import RingChange, changes
from tailrace_broker.model.commands import AbortStep
from tailrace_broker.model.ring_state import RangeState, Registration, Replica, RingState
from tests.support.ring.states import begin, done, led, sealed

A, B, C = (Replica(each, 1) for each in range(3))
BROKERS = {
    each: Registration(each, 1, UUID(int=each), 1, UUID(int=each), "clean") for each in range(3)
}
RANGE = RangeState(7, 0, 9, 1, 0, (0, 1, 2), (A, B, C), 5, 3, A)
STATE = RingState(UUID(int=9), 3, 3, BROKERS, {7: RANGE})


def texts(after: RingState, before: RingState = STATE) -> list[str]:
    return [each.text for each in changes(before, after)]


def with_range(**changed: object) -> RingState:
    return replace(STATE, ranges={7: replace(RANGE, **changed)})


def with_broker(ordinal: int, **changed: object) -> RingState:
    return replace(STATE, brokers={**BROKERS, ordinal: replace(BROKERS[ordinal], **changed)})


def test_a_state_that_is_the_same_in_these_says_nothing() -> None:
    assert changes(STATE, replace(STATE, next_step=1)) == []
    assert changes(STATE, replace(STATE, brokers=dict(BROKERS), ranges=dict(STATE.ranges))) == []
    assert changes(STATE, with_range(version=4)) == []


def test_registrations_are_named_with_what_the_disk_may_have_lost() -> None:
    again = with_broker(1, number=2, loss="power")
    fenced = with_broker(1, is_fenced=True)
    fewer = replace(STATE, brokers={0: BROKERS[0], 1: BROKERS[1]})

    assert texts(again) == ["broker 1 registered process 2 (loss class power)"]
    assert texts(STATE, fewer) == ["broker 2 registered process 1 (loss class clean)"]
    assert texts(fewer) == ["broker 2 has left the ring"]
    assert texts(fenced) == ["broker 1 is fenced: it is not heard"]
    assert texts(STATE, fenced) == ["broker 1 is heard again"]


def test_a_step_begins_and_ends() -> None:
    before = led(registered=1)
    begun = begin(before)
    cancelled = done(begun, AbortStep(0, 0, "broker 2 is far"))
    again = begin(cancelled)
    taken = done(again, sealed(again, 0))

    assert texts(begun, before) == [
        "step 0 has begun: split, 3 → 4 brokers; it seals ranges 0",
    ]
    late = "step 0 was cancelled: range 0 could not be sealed in time: broker 2 is far"
    assert texts(cancelled, begun) == texts(cancelled, before) == [late]
    assert texts(again, begun)[0] == late
    assert texts(again, begun)[1].startswith("step 1 has begun: split")
    assert texts(taken, again)[:2] == [
        "step 1 is done: split, ring of 4",
        "range 0 is sealed; whole on brokers 0,1,2",
    ]
    assert not any(each.startswith("range 0:") for each in texts(taken, again))
    assert texts(taken, taken) == []
    assert texts(replace(taken, ranges={**taken.ranges}), taken) == []


def test_a_range_has_another_leader_or_none() -> None:
    other = with_range(leader=B, epoch=6, isr=(B, C))
    none = with_range(leader=None)

    assert changes(STATE, other) == [
        RingChange("leads", 1, "range 7: broker 1 leads in epoch 6", 7, 6),
        RingChange("left", 0, "range 7: broker 0 left the ISR, now 1,2", 7, 6),
    ]
    assert changes(STATE, none) == [
        RingChange("leaderless", None, "range 7: no broker leads since epoch 5 ended", 7, 5)
    ]
    assert texts(with_range(leader=None, epoch=6), none) == []


def test_a_range_that_is_new_has_a_leader_and_an_isr() -> None:
    new = replace(STATE, ranges={7: replace(RANGE, isr=(A,))})

    assert texts(new, replace(STATE, ranges={})) == [
        "range 7: broker 0 leads in epoch 5",
        "range 7: broker 0 joined the ISR, now 0",
    ]


def test_an_in_sync_replica_becomes_a_ghost_and_is_whole_again() -> None:
    ghost = with_range(isr=(A, B, C._replace(is_ghost=True, cause="power")))
    worse = with_range(isr=(A, B, C._replace(is_ghost=True, cause="disk")))
    moved = with_range(isr=(A, B, Replica(2, 2)))

    assert texts(ghost) == ["range 7: broker 2 is a ghost in the ISR, now 0,1,2?; cause: power"]
    assert texts(worse, ghost) == [
        "range 7: broker 2 is a ghost in the ISR, now 0,1,2?; cause: disk"
    ]
    assert texts(ghost, with_range(isr=(A, B))) == texts(ghost)
    assert texts(with_range(isr=ghost.ranges[7].isr, version=4), ghost) == []
    assert texts(moved) == []
    assert texts(moved, ghost) == ["range 7: broker 2 joined the ISR, now 0,1,2"]
