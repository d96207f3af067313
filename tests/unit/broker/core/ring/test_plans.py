"""The steps of a ring to another size, planned, and as they are taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.core.ring.plans import PlannedCopy, plan_ring
from tailrace_broker.model.commands import AlterTopic, Reslice
from tailrace_broker.model.ring_state import RangeState, RingState
from tests.support.ring.states import done, led, sealed, stepped, with_topic


def tokens(ranges: tuple[RangeState, ...]) -> list[tuple[int, int, int, tuple[int, ...]]]:
    return [(each.id, each.start, each.end, each.replicas) for each in ranges]


def test_a_doubling_splits_each_range_and_continues_two() -> None:
    """As docs/ring.md shows it."""
    state = with_topic(led(), partitions=4)
    steps = list(plan_ring(state, 6, {}))

    assert [(each.kind, each.brokers_before, each.brokers_after) for each in steps] == [
        ("split", 3, 4),
        ("split", 4, 5),
        ("split", 5, 6),
    ]
    assert [each.new_partitions for each in steps] == [8, 12, 12]
    assert [each.sealed_partitions for each in steps] == [4, 8, 8]
    continued = [each.continued for each in steps]
    assert continued[0] is None
    assert continued[1] is not None
    before, after = continued[1]
    assert (before.replicas, after.replicas) == ((3, 1, 0), (3, 1, 4))
    assert [each.copies for each in steps] == [(), (), ()]


def test_there_is_nothing_to_do_for_the_present_size() -> None:
    assert list(plan_ring(led(), 3, {})) == []


def test_a_ring_of_one_copy_continues_no_range() -> None:
    assert [each.continued for each in plan_ring(led(3, 1), 6, {})] == [None] * 3


def test_who_copies_what_is_named_with_what_that_is_now() -> None:
    state = with_topic(led(1))
    first, second = plan_ring(state, 3, {0: 700})
    [shrunk] = plan_ring(led(4), 3, {each: 10 * each for each in range(3)})

    assert first.copies == (PlannedCopy(0, 1, 700),)
    assert second.copies == (PlannedCopy(0, 2, 700), PlannedCopy(1, 2, 0), PlannedCopy(2, 2, 0))
    sizes = {each.id: 10 * each.id for each in shrunk.parents}
    left = [each.id for each in shrunk.parents if 3 in each.replicas]
    assert {each.range_id for each in shrunk.copies} <= {*left}
    assert all(each.bytes in (sizes[each.range_id], None) for each in shrunk.copies)
    assert {each.bytes for each in plan_copies(led(4), 3)} <= {None}


def test_what_is_sealed_is_counted_as_it_is_while_a_topic_is_resliced() -> None:
    """What follows a range has the wanted number in any case."""
    altered = done(with_topic(led()), AlterTopic("orders", {"partitionsPerRange": 3}))
    begun = done(altered, Reslice(1))
    half = done(begun, sealed(begun, 1, 100))
    before, meanwhile = (list(plan_ring(state, 5, {})) for state in (altered, half))

    assert [each.sealed_partitions for each in before] == [2, 2 + 3]
    assert [each.sealed_partitions for each in meanwhile] == [2, 3 + 3]
    assert [each.new_partitions for each in meanwhile] == [2 * 3, 3 * 3]


def plan_copies(state: RingState, brokers: int) -> list[PlannedCopy]:
    return [copy for step in plan_ring(state, brokers, {}) for copy in step.copies]


@pytest.mark.parametrize("factor", [1, 2, 3])
@given(size=st.integers(1, 9), wanted=st.integers(1, 9))
def test_the_ring_becomes_what_was_planned(factor: int, size: int, wanted: int) -> None:
    state = with_topic(led(size, factor, registered=9))
    planned = list(plan_ring(state, wanted, {}))
    for step in planned:
        before = state
        state = stepped(state, "grow" if step.kind == "split" else "shrink")
        sealed = [each for each in state.ranges.values() if each.is_sealed]
        old = {each.id for each in before.ranges.values() if each.is_sealed}
        new = {each.id for each in sealed} - old
        assert {each.id for each in step.parents} == new
        made = tuple(each for each in state.ranges.values() if each.id not in before.ranges)
        assert tokens(step.children) == tokens(made)
        asked = {(each.range_id, each.ordinal) for each in step.copies}
        assert asked == {
            (each.id, ordinal)
            for each in sealed
            for ordinal in {*each.replicas} - {*before.ranges[each.id].replicas}
        }

    assert state.broker_count == wanted
