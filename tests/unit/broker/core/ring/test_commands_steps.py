from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN
from tailrace_broker.core.ring.topics import open_ranges
from tailrace_broker.model.commands import (
    AbortStep,
    BeginStep,
    ChangeIsr,
    CreateTopic,
    DeleteTopic,
    Fence,
    Lead,
    Sealed,
)
from tailrace_broker.model.ring_state import Replica, RingState
from tailrace_broker.model.topic import TopicSettings
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

GROW, SHRINK = BeginStep("grow", 3), BeginStep("shrink", 3)


def growing(broker_count: int = 3, factor: int = 3) -> RingState:
    """A ring with a topic that a broker is to join."""
    return begin(with_topic(led(broker_count, factor, registered=1)))


# --- begin ---


def test_a_step_touches_the_range_that_is_split() -> None:
    state = growing()
    step = state.step

    assert step is not None
    assert (step.kind, step.brokers_before, step.brokers_after) == ("split", 3, 4)
    assert step.parents == (0,)
    assert [each.natural_leader for each in step.children] == [0, 3]
    assert {each.id: each.step for each in state.ranges.values()} == {0: 0, 1: None, 2: None}


def test_a_range_whose_replicas_change_is_continued_unless_it_has_too_few_copies() -> None:
    whole, single = growing(4), growing(4, factor=1)

    assert whole.step is not None
    assert single.step is not None
    assert len(whole.step.parents) == 2
    assert len(whole.step.children) == 3
    assert len(single.step.parents) == 1


def test_one_step_at_a_time_and_of_the_ring_as_it_is() -> None:
    state = led(registered=2)

    assert refusal_of(begin(state), GROW) == "step-open"
    assert refusal_of(state, BeginStep("grow", 4)) == "stale-broker-count"
    assert refusal_of(led(1), BeginStep("shrink", 1)) == "invalid-parameter"


def test_a_step_begins_when_all_replicas_of_its_ranges_have_all() -> None:
    state = led(registered=1)

    lagging = done(state, ChangeIsr(0, 1, 0, (Replica(0, 1), Replica(1, 1))))
    assert refusal_of(lagging, GROW) == "replica-not-in-isr"
    assert refusal_of(done(state, register(2, "disk")), GROW) == "replica-not-in-isr"
    assert refusal_of(done(state, register(0, "process")), GROW) == "no-leader"
    assert refusal_of(done(state, Fence(0, 1)), GROW) == "no-leader"


def test_who_joins_is_there() -> None:
    assert refusal_of(led(), GROW) == "broker-not-registered"
    assert refusal_of(done(led(registered=1), Fence(3, 1)), GROW) == "broker-not-registered"


def test_who_leaves_may_be_gone_already() -> None:
    state = done(with_topic(led(4)), Lead(3, 1, 1, 1), Fence(3, 1))
    (left,) = (each.id for each in state.ranges.values() if each.natural_leader == 3)
    state = done(state, Lead(left, state.ranges[left].epoch, 1, 1, without=(3,)))

    assert begin(state, "shrink").step is not None


# --- sealed ---


def test_the_last_ends_make_the_children_in_the_same_command() -> None:
    state = growing(4)
    assert state.step is not None
    first, second = state.step.parents

    half = done(state, sealed(state, first, 10))
    assert half.step is not None
    assert half.broker_count == 4

    after = done(half, sealed(half, second, 20))
    assert after.step is None
    assert after.broker_count == 5
    children = {each.id for each in state.step.children}
    assert children == {4, 5, 6}
    assert {each.id for each in open_ranges(after)} == {0, 1, 2, 3} - {first, second} | children


def test_children_begin_in_the_epoch_after_their_parents_led_by_whom_the_ring_says() -> None:
    after = stepped(growing_to_begin(), "grow")

    children = [after.ranges[3], after.ranges[4]]
    assert [each.epoch for each in children] == [3, 3]
    assert [each.leader for each in children] == [Replica(0, 1), Replica(3, 1)]
    assert [each.isr for each in children] == [
        tuple(Replica(ordinal, 1) for ordinal in each.replicas) for each in children
    ]


def growing_to_begin() -> RingState:
    """A ring with a topic and one broker more, whose range 0 is in epoch 2."""
    return done(with_topic(led(registered=1)), Lead(0, 1, 0, 1))


def test_a_sealed_range_keeps_its_copies_and_its_last_epoch() -> None:
    after = stepped(growing_to_begin())
    parent = after.ranges[0]

    assert parent.is_sealed
    assert parent.sealed_epoch == 2
    assert parent.replicas == parent.complete == (0, 1, 2)
    assert (parent.isr, parent.leader) == ((), None)
    assert {partitions(after)[each].epoch for each in (0, 1)} == {2}


def test_partitions_of_a_split_range_go_on_in_those_over_their_tokens() -> None:
    after = partitions(stepped(with_topic(led(registered=1))))

    assert (after[0].sealed_end, after[1].sealed_end) == (100, 101)
    assert (after[0].children, after[1].children) == ((6, 7), (8, 9))
    assert [after[each].parents for each in (6, 7, 8, 9)] == [(0,), (0,), (1,), (1,)]
    assert [after[each].first_offset for each in (6, 7, 8, 9)] == [100, 100, 101, 101]
    assert [after[each].range_id for each in (6, 7, 8, 9)] == [3, 3, 4, 4]


def test_topics_with_as_many_slices_are_split_alike() -> None:
    after = stepped(with_topic(with_topic(led(registered=1)), "flights"))

    links = [
        [(each.parents, each.children) for each in partitions(after, name).values()]
        for name in ("orders", "flights")
    ]
    assert links[0] == links[1]


def test_a_joined_partition_begins_at_the_largest_end_of_its_parents() -> None:
    grown = stepped(with_topic(led(registered=1)))
    after = stepped(grown, "shrink")

    assert after.broker_count == 3
    joined = [each for each in partitions(after).values() if len(each.parents) > 1]
    assert joined
    for each in joined:
        ends = [partitions(after)[parent].sealed_end for parent in each.parents]
        assert each.first_offset == max(end for end in ends if end is not None)
    assert after.ranges[5].epoch == 3


def test_a_ring_grows_from_one_to_six_and_shrinks_again() -> None:
    state = with_topic(led(1, registered=5), partitions=3)
    for kind, count in (("grow", 5), ("shrink", 5)):
        for _ in range(count):
            state = done(
                state,
                *(
                    Lead(each.id, each.epoch, each.natural_leader, 1)
                    for each in open_ranges(state)
                    if each.leader is None
                ),
            )
            state = stepped(state, kind)

    (whole,) = open_ranges(state)
    assert (whole.start, whole.end, state.broker_count) == (TOKEN_MIN, TOKEN_END, 1)
    assert [*partitions(state)] == [*range(state.topics["orders"].next_partition)]
    check_state(state)


def test_what_is_notified_of_another_step_range_or_epoch_is_refused() -> None:
    state = growing()
    right = sealed(state, 0)

    assert refusal_of(state, replace(right, step=7)) == "step-not-open"
    assert refusal_of(led(), right) == "step-not-open"
    assert refusal_of(state, replace(right, range_id=1)) == "range-not-found"
    assert refusal_of(state, replace(right, epoch=2)) == "stale-epoch"


def test_the_ends_are_exactly_those_of_the_ranges_partitions() -> None:
    state = growing()
    right = sealed(state, 0)
    ((topic_id, ends),) = right.ends.items()

    assert refusal_of(state, replace(right, ends={})) == "wrong-partitions"
    assert refusal_of(state, replace(right, ends={topic_id: ends[:1]})) == "wrong-partitions"
    more = {topic_id: ends, UUID(int=9): (0,)}
    assert refusal_of(state, replace(right, ends=more)) == "wrong-partitions"
    assert refusal_of(state, replace(right, ends={topic_id: (-1, 0)})) == "invalid-parameter"


def test_an_end_is_not_below_the_first_offset() -> None:
    state = begin(stepped(with_topic(led(registered=2))))
    assert state.step is not None
    child = next(each for each in state.step.parents if each > 2)

    assert refusal_of(state, sealed(state, child, 99)) == "invalid-parameter"


def test_ends_are_reported_once() -> None:
    state = growing(4)
    assert state.step is not None
    first = state.step.parents[0]
    reported = done(state, sealed(state, first))

    assert refusal_of(reported, sealed(reported, first, 999)) == "already-sealed"


def test_a_late_end_does_not_seal_what_was_opened_again() -> None:
    """A seals at 500, does not hear the answer, goes on to 520; then its end of 500 arrives."""
    state = growing()
    late = sealed(state, 0, 500)

    aborted = done(state, AbortStep(0))
    assert refusal_of(aborted, late) == "step-not-open"
    again = begin(aborted)
    assert refusal_of(again, late) == "step-not-open"
    led_again = done(begin(aborted), Lead(0, 1, 0, 1))
    assert refusal_of(led_again, late) == "step-not-open"


def test_who_has_reported_its_ends_changes_its_isr_no_more() -> None:
    state = growing(4)
    assert state.step is not None
    first = state.step.parents[0]
    reported = done(state, sealed(state, first))
    range_ = reported.ranges[first]
    fewer = tuple(each for each in range_.isr if each in (range_.leader, range_.isr[1]))

    assert refusal_of(reported, ChangeIsr(first, 1, 0, fewer)) == "range-sealed"
    assert done(state, ChangeIsr(first, 1, 0, fewer)).step is not None


# --- who holds the children ---


def test_children_are_held_by_those_that_were_prepared() -> None:
    state = growing()

    after = done(state, sealed(state, 0, prepared=(1, 3)))

    assert after.ranges[3].isr == after.ranges[4].isr == (Replica(3, 1), Replica(1, 1))
    assert after.ranges[4].leader == Replica(3, 1)


def test_a_child_without_its_natural_leader_is_led_by_its_parents_or_by_nobody_yet() -> None:
    state = growing()

    by_parents = done(state, sealed(state, 0, prepared=(0, 1)))
    assert by_parents.ranges[4].leader == Replica(0, 1)

    nobody = done(state, sealed(state, 0, prepared=(1, 3))).ranges[3]
    assert (nobody.leader, nobody.epoch) == (None, 1)

    fenced = done(state, Fence(3, 1))
    assert done(fenced, sealed(fenced, 0)).ranges[4].leader == Replica(0, 1)


def test_too_few_that_are_prepared_seal_nothing() -> None:
    state = growing()

    assert refusal_of(state, sealed(state, 0, prepared=(0,))) == "not-prepared"
    assert refusal_of(state, sealed(state, 0, prepared=())) == "not-prepared"


def test_who_is_prepared_is_so_as_it_is_registered_now() -> None:
    state = growing()
    right = sealed(state, 0)

    for wrong in (Replica(3, 2), Replica(3, 1, is_ghost=True), Replica(9, 1)):
        reported = replace(right, prepared=(*right.prepared[:3], wrong))
        assert refusal_of(state, reported) == "stale-registration"


def test_a_joined_range_is_held_by_who_was_prepared_by_both_leaders() -> None:
    state = begin(stepped(with_topic(led(registered=1))), "shrink")
    assert state.step is not None
    first, second = state.step.parents

    half = done(state, sealed(state, first, 200, prepared=(0, 1)))
    assert refusal_of(half, sealed(half, second, 200, prepared=(1, 2))) == "not-prepared"
    after = done(half, sealed(half, second, 200, prepared=(0, 1, 2)))
    assert after.ranges[state.step.children[0].id].isr == (Replica(0, 1), Replica(1, 1))


def test_a_range_that_ends_where_a_child_begins_is_no_parent_of_it() -> None:
    state = growing(4)
    assert state.step is not None
    parents = sorted((state.ranges[each] for each in state.step.parents), key=lambda it: it.start)
    before, behind = parents
    assert before.end == behind.start
    (of_before,) = (each for each in state.step.children if each.start < before.end)
    few = of_before.replicas[:2]

    state = done(state, sealed(state, before.id, prepared=few))
    state = done(state, sealed(state, behind.id))

    assert state.step is None
    for each in open_ranges(state):
        if behind.start <= each.start < behind.end:
            assert [replica.ordinal for replica in each.isr] == list(each.replicas)


def test_a_range_that_begins_where_a_child_ends_is_no_parent_of_it() -> None:
    state = growing(4)
    assert state.step is not None
    before, behind = sorted((state.ranges[e] for e in state.step.parents), key=lambda it: it.start)
    heirs = {o for each in state.step.children if each.start >= behind.start for o in each.replicas}

    state = done(state, sealed(state, behind.id, prepared=sorted(heirs)))
    state = done(state, sealed(state, before.id))

    (child,) = (each for each in open_ranges(state) if each.start == before.start)
    assert [replica.ordinal for replica in child.isr] == list(child.replicas)


def test_a_second_copy_comes_with_the_second_broker() -> None:
    state = growing(1)

    assert refusal_of(state, sealed(state, 0, prepared=(0,))) == "not-prepared"
    after = done(state, sealed(state, 0))
    assert [len(each.isr) for each in open_ranges(after)] == [2, 2]


# --- abort ---


def test_an_aborted_step_changes_nothing_but_ids() -> None:
    before = with_topic(led(registered=1))

    after = done(begin(before), AbortStep(0))

    assert (after.ranges, after.topics, after.step) == (before.ranges, before.topics, None)
    assert after.next_range_id == before.next_range_id + 2
    assert refusal_of(after, AbortStep(0)) == "step-not-open"
    again = begin(after)
    assert again.step is not None
    assert (again.step.id, [each.id for each in again.step.children]) == (1, [5, 6])


# --- topics while a step is open ---


def created_meanwhile() -> RingState:
    two = TopicSettings(partitions_per_range=2)
    return done(growing(), CreateTopic("late", UUID(int=1), two))


def test_a_topic_created_during_a_step_waits_for_it_in_its_ranges() -> None:
    state = created_meanwhile()

    assert {each.range_id for each in partitions(state, "late").values()} == {1, 2}
    assert sealed(state, 0).ends.keys() == {state.topics["orders"].id}

    after = partitions(done(state, sealed(state, 0)), "late")
    assert [(each.range_id, each.parents) for each in after.values()] == [
        (1, ()), (1, ()), (2, ()), (2, ()), (3, ()), (3, ()), (4, ()), (4, ()),
    ]  # fmt: skip

    aborted = partitions(done(state, AbortStep(0)), "late")
    assert [each.range_id for each in aborted.values()] == [1, 1, 2, 2, 0, 0]


def test_a_topic_deleted_during_a_step_is_not_of_its_ends() -> None:
    state = growing(4)
    assert state.step is not None
    first, second = state.step.parents
    reported = done(state, sealed(state, first))

    gone = done(reported, DeleteTopic("orders", 5))
    after = done(gone, Sealed(0, second, 1, {}, sealed(reported, second).prepared))

    assert after.step is None
    assert after.broker_count == 5


@pytest.mark.parametrize("name", ["orders", "late"])
def test_partitions_never_get_another_meaning(name: str) -> None:
    state = created_meanwhile()
    before = partitions(state, name)

    after = partitions(done(state, sealed(state, 0)), name)

    for number, each in before.items():
        found = after[number]
        assert (found.range_id, found.token_start, found.token_end) == (
            each.range_id,
            each.token_start,
            each.token_end,
        )
