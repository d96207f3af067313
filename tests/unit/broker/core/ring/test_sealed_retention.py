"""What retention leaves of sealed ranges, in the ring's state."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.codec.ring_snapshot import decode_state, encode_state
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.core.ring.copies import copies_to_drop, copies_to_make
from tailrace_broker.core.ring.sealed_retention import decider_of, decision
from tailrace_broker.core.ring.topics import slices_in, topic_of
from tailrace_broker.model.commands import (
    AlterTopic,
    Command,
    Completed,
    CreateTopic,
    DeleteTopic,
    Fence,
    InheritedAll,
    PurgeTopics,
    Register,
    Retire,
    Stamped,
    TrimSealed,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, RingState, Start
from tailrace_broker.model.topic import Partition, TopicSettings, slices_of
from tests.support.ring.checks import check_state
from tests.support.ring.states import (
    begin,
    done,
    led,
    partitions,
    refusal_of,
    register,
    sealed,
    stepped,
    with_topic,
)

# What goes on for years: 1,000 cycles show the same, in minutes.
CYCLES = 8
TOPICS = 10
RECORDS = 1_000_000  # of a partition between two steps
_ids = count(2**62)  # as long as random ones


def grown() -> RingState:
    """A ring of four that was one of three, with a topic whose two partitions of range 0 ended."""
    return stepped(with_topic(led(registered=1)))


def held_in(state: RingState, range_id: int = 0) -> RangeState:
    return state.ranges[range_id]


def test_the_place_of_a_partition_in_its_range_stays_when_others_of_it_leave() -> None:
    state = grown()
    topic = state.topics["orders"]
    before = slices_of(topic_of(state, topic))
    trimmed = left_after(state, TrimSealed(0, 0, 1, {topic.id: (100, 7)}))
    left = topic_of(trimmed, trimmed.topics["orders"])

    assert left.find(0) is None
    assert slices_of(left) == {key: each for key, each in before.items() if key != 0}
    assert slices_of(left)[1].number == 1


def overlap(one: Partition, other: Partition) -> bool:
    return one.token_start < other.token_end and other.token_start < one.token_end


def trim(state: RingState, *starts: int, range_id: int = 0, name: str = "orders") -> TrimSealed:
    """What the broker that decides asks for."""
    ordinal = decider_of(state, held_in(state, range_id))
    assert ordinal is not None
    number = state.brokers[ordinal].number
    return TrimSealed(range_id, ordinal, number, {state.topics[name].id: starts})


def left_after(state: RingState, command: TrimSealed) -> RingState:
    """What it empties leaves when it is asked for again."""
    return done(state, command, command)


def keep_all(_: LogKey) -> int:
    return 0


def decided(
    state: RingState,
    start_of: Callable[[LogKey], int | None],
    range_id: int = 0,
    *,
    may_leave: bool = True,
) -> TrimSealed | None:
    held = held_in(state, range_id)
    ordinal = decider_of(state, held)
    assert ordinal is not None
    return decision(state, held, state.brokers[ordinal], start_of, lambda _: may_leave)


# --- who decides ---


def test_the_first_whole_copy_decides_whose_broker_is_heard() -> None:
    state = grown()
    held = held_in(state)
    assert held.replicas == (0, 1, 2)

    assert decider_of(state, held) == 0
    assert decider_of(done(state, Fence(0, 1)), held) == 1
    assert decider_of(state, replace(held, complete=(2,))) == 2
    assert decider_of(state, replace(held, complete=())) is None
    assert decider_of(state, replace(held, replicas=(9, 1), complete=(9, 1))) == 1


def test_nobody_else_decides() -> None:
    state = grown()
    command = trim(state, 50, 50)

    assert refusal_of(state, replace(command, ordinal=1)) == "not-the-decider"
    assert refusal_of(done(state, Fence(0, 1)), command) == "not-the-decider"
    assert refusal_of(state, replace(command, registration=9)) == "stale-registration"
    assert refusal_of(state, replace(command, range_id=99)) == "range-not-found"
    assert refusal_of(state, replace(command, range_id=1)) == "not-the-decider"


# --- log starts ---


def test_log_starts_are_committed_and_never_fall() -> None:
    state = done(grown(), trim(grown(), 50, 0), trim(grown(), 20, 30))

    starts = [each.log_start for each in partitions(state).values() if each.is_sealed]
    assert starts == [50, 30]
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize("starts", [(1,), (101, 0), (-1, 0)], ids=["too few", "above", "below"])
def test_log_starts_are_in_their_logs(starts: tuple[int, ...]) -> None:
    assert refusal_of(grown(), trim(grown(), *starts)) == "invalid-parameter"


def test_a_topic_that_is_gone_since_is_passed_over() -> None:
    state = grown()
    command = trim(state, 50, 50)
    gone = done(state, DeleteTopic("orders", 1))

    assert done(gone, command).ranges is gone.ranges
    other = replace(command, starts={UUID(int=5): (1, 2)})
    assert partitions(done(state, other)) == partitions(state)


def test_a_decision_names_what_moves() -> None:
    state = grown()
    at = {0: 10, 1: 0}

    assert decided(state, keep_all) is None
    assert decided(state, lambda _: None) is None
    command = decided(state, lambda key: at[key.partition])
    assert command == trim(state, 10, 0)
    assert command is not None
    state = done(state, command)
    assert decided(state, lambda key: at[key.partition]) is None
    assert decided(state, lambda key: 5) == trim(state, 10, 5)


def test_a_decision_says_again_of_what_is_gone_that_it_is() -> None:
    state = left_after(grown(), trim(grown(), 100, 0))

    assert decided(state, lambda key: 7 if key.partition == 1 else None) == trim(state, 100, 7)


# --- what leaves ---


def test_an_empty_partition_stays_for_a_while_with_its_log_start_at_its_end() -> None:
    """So each coordinator sees where it ended, and counts what its groups have not read."""
    state = done(grown(), trim(grown(), 100, 0))

    assert partitions(state)[0].log_start == partitions(state)[0].sealed_end == 100
    starts = {0: 100, 1: 0}
    assert decided(state, lambda key: starts[key.partition], may_leave=False) is None
    starts = {0: 100, 1: 7}
    assert decided(state, lambda key: starts[key.partition], may_leave=False) == trim(state, 0, 7)
    later = done(state, trim(state, 0, 7))
    assert partitions(later)[0].log_start == 100
    command = decided(later, lambda key: starts[key.partition])
    assert command == trim(later, 100, 7)
    assert command is not None
    assert 0 not in partitions(done(later, command))


def test_a_partition_that_never_had_records_leaves_at_once() -> None:
    begun = begin(with_topic(led(registered=1)), "grow")
    state = done(begun, sealed(begun, 0, 0))  # the first has none, the second has one
    assert partitions(state)[0].sealed_end == 0

    command = decided(state, keep_all, may_leave=False)

    assert command is not None
    assert 0 not in partitions(done(state, command))
    assert 1 in partitions(done(state, command))


def test_a_partition_without_records_leaves_and_its_children_stand_where_it_did() -> None:
    twice = stepped(grown(), "shrink")
    middle = next(each for each in twice.ranges.values() if each.is_sealed and each.id != 0)
    slices = next(each for each in twice.topics["orders"].slices if each.range_id == middle.id)
    before = partitions(twice)

    after = left_after(twice, trim(twice, *slices.sealed_ends, range_id=middle.id))

    assert middle.id not in after.ranges
    gone = {each for each, found in before.items() if found.range_id == middle.id}
    assert partitions(after).keys() == before.keys() - gone
    news = partitions(after)
    for each in news.values():
        assert not {*each.children} & gone
        if {*before[each.partition].children} & gone:
            assert each.children
        if {*each.parents} & gone:  # which are named still
            older = {old for one in {*each.parents} & gone for old in before[one].parents}
            near = [old for old in older if overlap(news[old], each)]
            assert {*near} == {*each.parents} - gone - {*before[each.partition].parents}
    assert after.topics["orders"].next_partition == twice.topics["orders"].next_partition


def test_a_part_of_a_range_leaves_and_the_rest_stays_as_it_is() -> None:
    state = grown()
    after = left_after(state, trim(state, 100, 7))

    assert 0 not in partitions(after)
    assert partitions(after)[1] == replace(partitions(state)[1], log_start=7)
    assert [each.parents for each in partitions(after).values() if each.parents] == [
        each.parents for each in partitions(state).values() if each.parents
    ]
    [slices] = [each for each in after.topics["orders"].slices if each.range_id == 0]
    assert slices.partition_count == 1
    last = left_after(after, trim(after, 100, 101))
    assert 0 not in last.ranges
    assert decode_state(encode_state(last)) == last


def test_a_range_of_which_a_deleted_topic_has_partitions_stays_until_that_is_purged() -> None:
    state = with_topic(led(registered=1), "payments")
    state = stepped(with_topic(state))
    state = done(state, DeleteTopic("payments", 1))
    ends = (100, 101)
    state = left_after(state, trim(state, *ends))
    assert 0 in state.ranges
    assert decided(state, keep_all) is None

    state = done(state, PurgeTopics({key: each.deleted_us for key, each in state.deleted.items()}))
    command = decided(state, keep_all)

    assert command == TrimSealed(0, 0, 1, {})
    assert command is not None
    assert 0 not in done(state, command).ranges


def test_two_parents_leave_one_after_the_other() -> None:
    state = stepped(with_topic(led(4), partitions=1), "shrink")
    sealed_ids = [each.partition for each in partitions(state).values() if each.is_sealed]
    child = next(each for each in partitions(state).values() if len(each.parents) > 1)
    assert {*child.parents} <= {*sealed_ids}
    for parent in child.parents:
        found = partitions(state)[parent]
        assert found.sealed_end is not None
        state = left_after(state, trim(state, found.sealed_end, range_id=found.range_id))
        assert partitions(state)[child.partition].parents == child.parents
        assert parent not in partitions(state)


def test_what_was_decided_by_an_earlier_retention_is_not_removed() -> None:
    """It is proposed while clocks are compared, and may commit much later."""
    state = done(grown(), AlterTopic("orders", {"retentionMs": 60_000}))
    late = decided(state, lambda _: 50)
    assert late is not None
    assert late.kept == {state.topics["orders"].id: (60_000, None)}
    altered = done(state, AlterTopic("orders", {"retentionMs": None}))

    assert done(altered, late).topics == altered.topics
    assert done(state, late).topics != state.topics
    assert done(altered, trim(altered, 50, 50)).topics != altered.topics


# --- internal topics ---

GROUPS = "__groups"


def with_groups(state: RingState, per_range: int = 2) -> RingState:
    settings = TopicSettings(partitions_per_range=per_range)
    return done(state, CreateTopic(GROUPS, UUID(int=3), settings))


def test_internal_topics_are_not_trimmed_but_inherited() -> None:
    state = stepped(with_groups(led(registered=1)))
    groups = state.topics[GROUPS]
    assert decided(state, lambda _: 10**9) is None
    children = [each for each in partitions(state, GROUPS).values() if each.parents]

    half = done(state, *(InheritedAll(groups.id, each.partition) for each in children[:1]))
    assert partitions(half, GROUPS)[children[0].partition].parents == ()
    whole = done(half, *(InheritedAll(groups.id, each.partition) for each in children[1:]))

    assert not any(each.is_sealed for each in partitions(whole, GROUPS).values())
    command = decided(whole, keep_all)
    assert command == TrimSealed(0, 0, 1, {})


def test_what_a_child_never_took_over_goes_with_it() -> None:
    state = stepped(stepped(with_groups(led(registered=1), 1)), "shrink")
    groups = state.topics[GROUPS]
    last = max(partitions(state, GROUPS))

    after = done(state, InheritedAll(groups.id, last))

    assert [each for each in partitions(after, GROUPS).values() if each.is_sealed] == []
    assert done(after, InheritedAll(groups.id, last)).topics == after.topics


def test_only_internal_topics_inherit() -> None:
    state = stepped(with_groups(with_topic(led(registered=1))))
    topic_id = state.topics["orders"].id

    assert refusal_of(state, InheritedAll(topic_id, 2)) == "topic-not-found"
    assert refusal_of(state, InheritedAll(UUID(int=99), 2)) == "topic-not-found"
    assert refusal_of(state, InheritedAll(UUID(int=3), 99)) == "partition-not-found"


# --- for years ---


def applied(state: RingState, *commands: Command) -> RingState:
    """Not checked after each of many commands."""
    for command in commands:
        stamped = Stamped(next(_ids), command)
        state = apply_command(state, stamped)
        assert state.recent[stamped.id] is None, state.recent[stamped.id]
    return state


def started(state: RingState, ordinal: int) -> Register:
    """A new disk."""
    number = state.last_numbers.get(ordinal, 0)
    disk = UUID(int=(1 << 100) + next(_ids))
    return Register(ordinal, disk, 1, (Start(UUID(int=next(_ids)), "disk"),), number)


def one_step(state: RingState, kind: Any) -> RingState:
    """A step, its copies, and what goes with it: each partition got some records."""
    state = applied(state, *(() if kind == "shrink" else [started(state, state.broker_count)]))
    state = begin(state, kind)
    assert state.step is not None
    for range_id in state.step.parents:
        command = sealed(state, range_id)
        ends = {
            topic_id: tuple(first + RECORDS for first in slices.firsts)
            for topic_id, slices in slices_in(state, range_id).items()
        }
        state = applied(state, replace(command, ends=ends))
    for ordinal in state.brokers:
        for held in copies_to_make(state, ordinal):
            losses = held.losses.get(ordinal, 0)
            number = state.brokers[ordinal].number
            state = applied(state, Completed(held.id, ordinal, number, losses))
    state = applied(state, *copies_to_drop(state))
    if kind == "grow":
        return state
    leaving = state.brokers[state.broker_count]
    return applied(state, Retire(leaving.ordinal, leaving.number))


def everything(state: RingState, range_id: int, key: LogKey) -> int:
    """Retention takes all of the range."""
    slices = slices_in(state, range_id)[key.topic_id]
    return slices.sealed_ends[key.partition - slices.first_partition]


def cycle(state: RingState) -> RingState:
    """3 to 6 to 3; retention then takes what was stored before, and groups are inherited."""
    before = [each.id for each in state.ranges.values() if each.is_sealed]
    for kind in ("grow",) * 3 + ("shrink",) * 3:
        state = one_step(state, kind)
        groups = state.topics[GROUPS]
        for each in topic_of(state, groups).partitions:
            if each.parents and not each.is_sealed:
                state = applied(state, InheritedAll(groups.id, each.partition))
    for range_id in before:
        command = decided(state, partial(everything, state, range_id), range_id)
        assert command is not None
        state = applied(state, command, command)
    check_state(state)
    return state


@pytest.mark.timeout(30)
def test_a_state_is_bounded_by_what_is_stored_not_by_the_steps_of_years() -> None:
    state = with_groups(led(), 4)
    for number in range(TOPICS):
        state = with_topic(state, f"orders-{number}", partitions=4)
    state = cycle(state)
    first = size_bytes(state)
    for _ in range(CYCLES):
        state = cycle(state)

    assert size_bytes(state) <= 1.5 * first
    assert len(state.ranges) < 40
    assert state.topics["orders-0"].next_partition > 40 * CYCLES


def size_bytes(state: RingState) -> int:
    """Without the outcomes of commands, of which there are at most so many."""
    return len(encode_state(replace(state, recent={})))


def test_a_disk_that_has_left_is_remembered_for_some_time() -> None:
    state = done(led(), register(3), Retire(3, 1))

    assert len(state.retired) == 1
    assert refusal_of(state, register(3, replaces=1)) == "retired"
