"""Who is to hold sealed ranges, and who need not any more."""

from itertools import count
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tailrace_broker.core.ring.arithmetic import zone_class
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.core.ring.copies import copies_to_drop, copies_to_make, others_heard
from tailrace_broker.model.commands import (
    ChangeIsr,
    Command,
    Completed,
    DeleteTopic,
    DropCopy,
    Fence,
    Lead,
    Lost,
    RestoreTopic,
    Retire,
    Stamped,
)
from tailrace_broker.model.ring_state import RangeState, RingState
from tests.support.ring.checks import check_state
from tests.support.ring.states import done, led, refusal_of, register, stepped, with_topic

LARGEST = 12
_ids = count(10**9)


def sealed_ranges(state: RingState) -> list[RangeState]:
    return [each for each in state.ranges.values() if each.is_sealed]


def complete(held: RangeState, state: RingState, ordinal: int) -> Completed:
    losses = held.losses.get(ordinal, 0)
    return Completed(held.id, ordinal, state.brokers[ordinal].number, losses)


def copied(state: RingState) -> RingState:
    """All that is to be held is, and what need not be is dropped."""
    for ordinal in state.brokers:
        for held in copies_to_make(state, ordinal):
            state = applied(state, complete(held, state, ordinal))
    for command in copies_to_drop(state):
        state = applied(state, command)
    check_state(state)
    return state


def applied(state: RingState, command: Command) -> RingState:
    """Not checked after each of many commands."""
    stamped = Stamped(next(_ids), command)
    state = apply_command(state, stamped)
    assert state.recent[stamped.id] is None, state.recent[stamped.id]
    return state


def shrunk() -> RingState:
    """A ring of five that was one of six."""
    return stepped(with_topic(led(6)), "shrink")


def test_a_ring_that_keeps_its_copies_makes_none() -> None:
    state = stepped(with_topic(led(registered=1)))

    [held] = sealed_ranges(state)
    assert held.replicas == held.complete == (0, 1, 2)
    assert list(copies_to_drop(state)) == []


def test_a_ring_below_its_factor_copies_what_is_sealed_as_it_grows() -> None:
    two = stepped(with_topic(led(1, registered=2)))
    three = stepped(copied(two))

    [first] = sealed_ranges(two)
    assert (first.replicas, first.complete) == ((0, 1), (0,))
    assert three.ranges[first.id].replicas == (0, 1, 2)
    assert copies_to_make(three, 2)[0].id == first.id
    assert {frozenset(each.complete) for each in sealed_ranges(copied(three))} == {
        frozenset({0, 1, 2})
    }


def test_another_of_its_zone_class_takes_the_place_of_who_leaves() -> None:
    state = shrunk()
    held = [each for each in sealed_ranges(state) if 5 in each.replicas]

    assert held
    for each in held:
        inside = [ordinal for ordinal in each.replicas if ordinal < 5]
        assert len({zone_class(ordinal) for ordinal in inside}) == 3, each
        assert each.replicas[-1] not in each.complete


def test_who_leaves_holds_its_copies_until_others_do() -> None:
    state = shrunk()
    held = next(each for each in sealed_ranges(state) if 5 in each.replicas)
    new = held.replicas[-1]

    assert refusal_of(state, DropCopy(held.id, 5)) == "too-few-copies"
    assert refusal_of(state, Retire(5, 1)) == "holds-ranges"
    state = done(state, complete(held, state, new))
    assert DropCopy(held.id, 5) in copies_to_drop(state)
    after = copied(state)
    assert all(5 not in each.replicas for each in sealed_ranges(after))
    assert 5 not in done(after, Retire(5, 1)).brokers


def test_copies_of_others_that_have_left_do_not_count() -> None:
    state = stepped(shrunk(), "shrink")
    held = next(each for each in sealed_ranges(state) if {4, 5} <= {*each.replicas})

    inside = [each for each in held.replicas if each < 4]
    assert len(inside) == 3
    state = done(state, *(complete(held, state, each) for each in inside[:2]))
    assert {4, 5} & {*state.ranges[held.id].complete}
    assert refusal_of(state, DropCopy(held.id, 5)) == "too-few-copies"
    assert refusal_of(state, DropCopy(held.id, 4)) == "too-few-copies"
    state = done(state, complete(held, state, inside[2]))
    assert {*copies_to_drop(state)} >= {DropCopy(held.id, 4), DropCopy(held.id, 5)}


def test_a_copy_is_whole_once_however_often_it_is_said() -> None:
    state = shrunk()
    held = next(each for each in sealed_ranges(state) if 5 in each.replicas)
    command = complete(held, state, held.replicas[-1])
    once = done(state, command)

    assert once.ranges[held.id].complete == (*held.complete, held.replicas[-1])
    assert done(once, command).ranges == once.ranges


def test_what_a_broker_said_of_a_copy_holds_for_that_process_and_that_copy() -> None:
    state = shrunk()
    held = next(each for each in sealed_ranges(state) if 5 in each.replicas)
    new = held.replicas[-1]
    command = complete(held, state, new)

    assert refusal_of(done(state, register(new, "clean")), command) == "stale-registration"
    lost = done(state, Lost(held.id, new, 1, 0))
    assert refusal_of(lost, command) == "stale-registration"
    assert done(lost, replace(command, losses=1)).ranges[held.id].complete[-1] == new
    again = done(lost, register(new, "process"))
    assert again.ranges[held.id].losses == {}


def test_what_was_said_of_a_copy_does_not_hold_when_it_was_dropped_and_is_wanted_again() -> None:
    state = copied(stepped(with_topic(led(1, registered=2))))
    [held] = sealed_ranges(state)
    assert held.complete == (0, 1)
    late = Completed(held.id, 1, 1, 0)
    state = stepped(done(state, Lost(held.id, 1, 1, 0)), "shrink")
    state = done(state, DropCopy(held.id, 1))
    gone = done(copied(state), Retire(1, 1))
    assert gone.ranges[held.id].losses == {}
    state = stepped(state)
    held = state.ranges[held.id]

    assert held.replicas == (0, 1)
    assert refusal_of(state, late) == "stale-registration"
    assert done(state, complete(held, state, 1)).ranges[held.id].complete == (0, 1)


@pytest.mark.parametrize(
    ("range_id", "reason"), [(99, "range-not-found"), (0, "range-open"), (None, "not-a-replica")]
)
def test_only_replicas_of_sealed_ranges_have_copies(range_id: int | None, reason: str) -> None:
    state = stepped(with_topic(led(4, registered=1)))
    held = next(each for each in sealed_ranges(state) if 4 not in each.replicas)
    wanted = held.id if range_id is None else range_id
    assert range_id != 0 or not state.ranges[0].is_sealed
    commands: tuple[Command, ...] = (Completed(wanted, 4, 1, 0), DropCopy(wanted, 4))

    for command in commands:
        assert refusal_of(state, command) == reason
    if reason == "not-a-replica":
        assert refusal_of(state, Lost(wanted, 4, 1, 0)) == reason


def test_who_is_not_registered_has_no_copy() -> None:
    state = shrunk()
    [held, *_] = sealed_ranges(state)

    assert refusal_of(state, Completed(held.id, 11, 0, 0)) == "stale-registration"


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, LARGEST), min_size=1, max_size=2), st.integers(0, 2**32))
def test_after_any_walk_of_sizes_and_losses_who_left_may_retire(
    sizes: list[int], seed: int
) -> None:
    """Invariant 11: before it does, as many brokers of the ring hold each range as a new one."""
    chance = Random(seed)
    state = with_topic(led(chance.choice((1, 3, 6)), registered=LARGEST))
    for size in [*sizes, 3]:
        while state.broker_count != size:
            state = stepped(state, "grow" if state.broker_count < size else "shrink")
            if chance.random() < 0.6:
                state = copied(state)
            if chance.random() < 0.3:
                state = copied(failed_over(state, chance))
    state = copied(state)
    for ordinal in [each for each in state.brokers if each >= state.broker_count]:
        state = done(state, Retire(ordinal, state.brokers[ordinal].number))

    for each in sealed_ranges(state):
        assert {*each.replicas} <= {*each.complete} <= {*range(3)}
        assert len(each.complete) >= state.copies


def failed_over(state: RingState, chance: Random) -> RingState:
    """A broker of the ring is there again with an empty disk, if others have what it had."""
    ordinal = chance.randrange(state.broker_count)
    if any(each.holders == (ordinal,) for each in state.ranges.values()):
        return state
    return emptied(state, ordinal)


def emptied(state: RingState, ordinal: int) -> RingState:
    """It has lost its disk, and has caught up in the open ranges."""
    number = state.brokers[ordinal].number
    state = done(state, register(ordinal, first_boot=number + 1, replaces=number))
    opened = [each for each in state.ranges.values() if not each.is_sealed]
    for led_range in [each for each in opened if ordinal in each.replicas]:
        known = state.brokers[ordinal]
        whole = [each for each in led_range.isr if each.ordinal != ordinal]
        if led_range.leader is None:
            first = whole[0]
            lead = Lead(led_range.id, led_range.epoch, first.ordinal, first.registration)
            state = done(state, lead)
        now = state.ranges[led_range.id]
        isr = (*whole, now.replica_of(known))
        state = done(state, ChangeIsr(now.id, now.epoch, now.version, isr))
    return state


def test_who_lost_its_disk_copies_again_what_is_sealed() -> None:
    state = emptied(stepped(with_topic(led(registered=1))), 0)

    [held] = sealed_ranges(state)
    assert held.complete == (1, 2)
    [again] = sealed_ranges(copied(state))
    assert {*again.complete} == {0, 1, 2}


def deleted(state: RingState) -> tuple[RingState, UUID]:
    topic_id = state.topics["orders"].id
    return applied(state, DeleteTopic("orders", deleted_us=1, topic_id=topic_id)), topic_id


def test_a_topic_is_not_restored_once_copies_were_made_without_it() -> None:
    """Nobody copies what is in the trash, so a whole copy may have nothing of it."""
    state, topic_id = deleted(shrunk())
    restored = applied(state, RestoreTopic(topic_id))
    assert "orders" in restored.topics

    state = copied(state)

    assert refusal_of(state, RestoreTopic(topic_id)) == "ring-changed"


def test_a_copy_that_a_restored_topic_may_lack_does_not_count() -> None:
    """It was made while the topic was deleted, and its broker has not heard that it is back."""
    shrinking, topic_id = deleted(shrunk())
    held, broker = next(
        (held, ordinal) for ordinal in range(5) for held in copies_to_make(shrinking, ordinal)
    )
    copy_without_it = complete(held, shrinking, broker)

    state = applied(shrinking, RestoreTopic(topic_id))

    assert refusal_of(state, copy_without_it) == "stale-registration"
    check_state(state)
    whole = applied(state, complete(state.ranges[held.id], state, broker))
    assert broker in whole.ranges[held.id].complete


def test_a_restored_topic_leaves_whole_copies_as_they_are() -> None:
    whole = copied(shrunk())
    state, topic_id = deleted(whole)

    assert applied(state, RestoreTopic(topic_id)).ranges == whole.ranges


def test_copies_of_other_ranges_leave_a_deleted_topic_as_it_is() -> None:
    shrinking = shrunk()
    held = sealed_ranges(shrinking)[0]
    slices = tuple(each for each in shrinking.topics["orders"].slices if each.range_id != held.id)
    topic = replace(shrinking.topics["orders"], slices=slices)
    state, topic_id = deleted(replace(shrinking, topics={"orders": topic}))
    [broker] = [each for each in held.replicas if each not in held.complete][:1]

    state = applied(state, complete(held, state, broker))

    assert not state.deleted[topic_id].topic.lacks_copies


def test_of_the_others_with_copies_those_are_heard_that_are_registered_and_not_fenced() -> None:
    state = led()
    first, second, third = state.ranges[0].replicas

    assert others_heard(state, state.ranges[0], first) == [second, third]
    fenced = done(state, Fence(second, state.brokers[second].number))
    assert others_heard(fenced, fenced.ranges[0], first) == [third]
    there = {each: known for each, known in state.brokers.items() if each != third}
    assert others_heard(replace(state, brokers=there), state.ranges[0], first) == [second]
