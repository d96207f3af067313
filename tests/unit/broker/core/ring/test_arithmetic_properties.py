"""The ring against its definition, built by doubling, and against rings that grow and shrink."""

from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.core.ring.arithmetic import (
    TOKEN_END,
    TOKEN_MIN,
    UNIT_TOKENS,
    UNITS,
    Range,
    broker_token,
    find_slice,
    ring_order,
    ring_ranges,
    slice_bounds,
    token,
    zone_class,
)
from tailrace_broker.core.ring.steps import Step, overlaps, plan_step
from tests.support.murmur3 import cassandra_token, plain_token

DOUBLED = [3 * 2**level for level in range(13)]  # to the largest ring, 12288
SIZES = [*range(1, 97), *(size for size in DOUBLED if 96 < size <= 3072)]
SIZES_TO_GROW = [*range(1, 97), *range(190, 195), *range(382, 387)]

# Many rings a test: on a busy machine that takes seconds.
pytestmark = pytest.mark.timeout(30)

tokens = st.integers(TOKEN_MIN, TOKEN_END - 1)
slice_counts = st.integers(1, 256)
walk_sizes = st.integers(1, 48)


@given(st.binary(max_size=100))
def test_a_token_is_plain_murmur3_for_any_key(key: bytes) -> None:
    assert token(key) == plain_token(key)


@given(st.binary(min_size=1, max_size=100))
def test_cassandra_differs_where_the_tail_has_a_high_byte_but_in_the_eighth_place(
    key: bytes,
) -> None:
    tail = key[len(key) // 16 * 16 :]

    is_different = any(byte >= 0x80 for index, byte in enumerate(tail) if index != 7)

    assert (cassandra_token(key) != token(key)) == is_different


class Defined(NamedTuple):
    """Where the definition puts a broker."""

    unit: int
    zone_class: int


def defined_brokers() -> list[Defined]:
    """All brokers of the largest ring, doubling by doubling, each new one in a range's middle."""
    order = [0, 1, 2]
    brokers = [Defined(0, 0), Defined(4096, 1), Defined(8192, 2)]
    for level in range(1, 13):
        ends = [*(brokers[ordinal].unit for ordinal in order[1:]), UNITS]
        doubled = []
        for ordinal, end in zip(order, ends, strict=True):
            doubled += [ordinal, len(brokers)]
            position = len(doubled) - 1
            middle = (brokers[ordinal].unit + end) // 2
            brokers.append(Defined(middle, position * (-1) ** level % 3))
        order = doubled
    return brokers


BROKERS = defined_brokers()


def defined_order(size: int) -> list[int]:
    """The brokers of a ring by their places."""
    return sorted(range(size), key=lambda ordinal: BROKERS[ordinal].unit)


def defined_replicas(order: list[int], index: int) -> tuple[int, ...]:
    """The leader, then clockwise each broker whose class none before it has."""
    clockwise = [order[(index + steps) % len(order)] for steps in range(min(len(order), 12))]
    classes = [BROKERS[ordinal].zone_class for ordinal in clockwise]
    return tuple(
        ordinal for place, ordinal in enumerate(clockwise) if classes[place] not in classes[:place]
    )


# Rings are built once: the tests only look at them.
ring_of = cache(ring_ranges)


@cache
def growth(size: int) -> Step:
    """The step that adds a broker to a ring of this size."""
    return plan_step(before_count=size, after_count=size + 1)


def test_each_broker_sits_where_the_doublings_put_it() -> None:
    tokens_from_start = [broker_token(ordinal) - TOKEN_MIN for ordinal in range(UNITS)]

    assert tokens_from_start == [UNIT_TOKENS * broker.unit for broker in BROKERS]


def test_a_broker_has_the_class_of_its_position_in_the_ring_that_it_completes() -> None:
    assert [zone_class(ordinal) for ordinal in range(UNITS)] == [
        broker.zone_class for broker in BROKERS
    ]


def test_the_ring_is_in_the_order_of_its_tokens() -> None:
    for size in [*SIZES, UNITS]:
        assert ring_order(size) == defined_order(size)


@pytest.mark.parametrize("sizes", [SIZES, [UNITS]], ids=["most", "largest"])
def test_ranges_cover_every_token_once(sizes: list[int]) -> None:
    for size in sizes:
        ranges = ring_of(size)

        assert sorted(each.ordinal for each in ranges) == list(range(size))
        assert all(each.start == broker_token(each.ordinal) < each.end for each in ranges)
        assert all(each.end == after.start for each, after in pairwise(ranges))
        assert (ranges[0].start, ranges[-1].end) == (TOKEN_MIN, TOKEN_END)


@pytest.mark.parametrize("sizes", [SIZES, [UNITS]], ids=["most", "largest"])
def test_ranges_are_whole_units_long_but_for_the_rest_that_the_last_one_has(
    sizes: list[int],
) -> None:
    rest = 2**64 - UNITS * UNIT_TOKENS

    for size in sizes:
        ranges = ring_of(size)

        beyond = [each.end - each.start - each.length_units * UNIT_TOKENS for each in ranges]
        assert sum(each.length_units for each in ranges) == UNITS
        assert beyond == [0] * (size - 1) + [rest]


def test_replicas_are_the_next_brokers_of_classes_not_yet_used() -> None:
    for size in SIZES:
        order = defined_order(size)

        assert [each.replicas for each in ring_of(size)] == [
            defined_replicas(order, index) for index in range(size)
        ]


@pytest.mark.parametrize("sizes", [SIZES, [UNITS]], ids=["most", "largest"])
def test_replicas_lie_in_as_many_classes_as_there_can_be(sizes: list[int]) -> None:
    for size in sizes:
        copies = min(3, size)

        for each in ring_of(size):
            assert len(each.replicas) == copies
            assert len({zone_class(ordinal) for ordinal in each.replicas}) == copies


def test_replicas_are_at_most_four_brokers_on() -> None:
    for size in SIZES:
        place = {ordinal: index for index, ordinal in enumerate(ring_order(size))}

        for each in ring_of(size):
            assert (place[each.replicas[-1]] - place[each.ordinal]) % size <= 4


@pytest.mark.parametrize("size", DOUBLED)
def test_replicas_in_a_doubled_ring_are_the_next_two_brokers(size: int) -> None:
    order = ring_order(size)

    assert [each.replicas for each in ring_of(size)] == [
        *zip(order, order[1:] + order[:1], order[2:] + order[:2], strict=True)
    ]


@pytest.mark.parametrize("size", DOUBLED)
def test_ranges_of_a_doubled_ring_are_of_one_length(size: int) -> None:
    assert {each.length_units for each in ring_of(size)} == {UNITS // size}


def test_a_new_broker_splits_the_range_that_holds_its_token() -> None:
    for size in SIZES_TO_GROW:
        at = broker_token(size)

        step = growth(size)

        (parent,) = step.parents
        left, right = step.children
        assert parent.start < at < parent.end
        assert (left.ordinal, left.start, left.end) == (parent.ordinal, parent.start, at)
        assert (right.ordinal, right.start, right.end) == (size, at, parent.end)


def test_a_leaving_broker_undoes_the_step_that_added_it() -> None:
    for size in SIZES_TO_GROW:
        grown = growth(size)

        shrunk = plan_step(before_count=size + 1, after_count=size)

        assert (shrunk.parents, shrunk.children) == (grown.children, grown.parents)
        assert [*(shrunk.continued or ())] == [*reversed(grown.continued or ())]


def test_only_the_range_of_the_broker_added_before_is_continued() -> None:
    """Range 0 when the third broker makes a third copy; none in the first step of a doubling."""
    for size in SIZES_TO_GROW:
        step = growth(size)

        continued = {each.ordinal for each in step.continued or ()}
        expected = {0} if size == 2 else {size - 1}
        assert continued == (set() if size in {1, *DOUBLED} else expected)


def test_a_continued_range_takes_the_new_broker_for_its_last_replica() -> None:
    for size in SIZES_TO_GROW[2:]:
        step = growth(size)

        for before, after in [step.continued] if step.continued else []:
            assert (before.start, before.end) == (after.start, after.end)
            assert after.replicas == (*before.replicas[:2], size)


Held = dict[tuple[int, int], tuple[int, ...]]


def held(ranges: list[Range]) -> Held:
    """All that a ring remembers here: which tokens whose replicas hold, the leader first."""
    return {(each.start, each.end): each.replicas for each in ranges}


def take(step: Step, ring: Held) -> None:
    """Apply a step as a ring would that knows no sizes: what it ends must be there as it says."""
    before, after = [*step.parents], [*step.children]
    if step.continued:
        before.append(step.continued[0])
        after.append(step.continued[1])
    for each in before:
        assert ring.pop((each.start, each.end)) == each.replicas
    for each in after:
        assert not any(start < each.end and each.start < end for start, end in ring)
        ring[each.start, each.end] = each.replicas


def walk(start: int, moves: list[int]) -> list[int]:
    """Sizes from 1 to 48, each one more or one less than the last."""
    sizes = accumulate(
        moves,
        lambda size, move: size + move if 1 <= size + move <= 48 else size - move,
        initial=start,
    )
    return [*sizes]


walks = st.builds(walk, walk_sizes, st.lists(st.sampled_from([-1, 1]), max_size=60))


@given(walks)
def test_after_any_walk_of_sizes_a_ring_is_as_if_founded_with_the_last(sizes: list[int]) -> None:
    ring = held(ring_of(sizes[0]))

    for before_count, after_count in pairwise(sizes):
        take(plan_step(before_count=before_count, after_count=after_count), ring)

        assert ring == held(ring_of(after_count))


def test_a_ring_grows_from_one_to_the_last_size_and_back() -> None:
    ring = held(ring_of(1))

    for before_count, after_count in pairwise([*range(1, 49), *range(47, 0, -1)]):
        take(plan_step(before_count=before_count, after_count=after_count), ring)

        assert ring == held(ring_of(after_count))


def slices_of(ranges: tuple[Range, ...], count: int) -> list[tuple[int, int]]:
    """The slices of all these ranges, in token order."""
    return [
        bounds for each in ranges for bounds in slice_bounds(each.start, each.length_units, count)
    ]


def either_way(size: int, is_growing: bool) -> Step:
    """The step between a size and the next."""
    before, after = (size, size + 1) if is_growing else (size + 1, size)
    return plan_step(before_count=before, after_count=after)


steps = st.builds(either_way, walk_sizes, st.booleans())


@given(steps, slice_counts, slice_counts)
def test_children_cover_their_parents_and_parents_their_children(
    step: Step, before_slices: int, after_slices: int
) -> None:
    parents = slices_of(step.parents, before_slices)
    children = slices_of(step.children, after_slices)

    assert_covered(parents, children)
    assert_covered(children, parents)


@given(walk_sizes, slice_counts, slice_counts, st.data())
def test_slices_cut_again_cover_those_before(
    size: int, before_slices: int, after_slices: int, data: st.DataObject
) -> None:
    each = data.draw(st.sampled_from(ring_of(size)))

    assert_covered(slices_of((each,), before_slices), slices_of((each,), after_slices))


def assert_covered(slices: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    """Each slice shares a token with each of its overlaps, and all of its tokens with them."""
    for (start, end), indices in zip(slices, overlaps(slices, others), strict=True):
        shared = [min(end, others[i][1]) - max(start, others[i][0]) for i in indices]
        assert all(count > 0 for count in shared)
        assert sum(shared) == end - start


@given(steps, slice_counts, slice_counts, st.data())
def test_a_key_goes_to_a_child_of_the_partition_that_it_went_to_before(
    step: Step, before_slices: int, after_slices: int, data: st.DataObject
) -> None:
    parents = slices_of(step.parents, before_slices)
    children = slices_of(step.children, after_slices)
    tokens_of_one = st.sampled_from(step.parents).flatmap(
        lambda each: st.integers(each.start, each.end - 1)
    )
    key_token = data.draw(tokens_of_one)

    parent = find_slice([start for start, _ in parents], key_token)
    child = find_slice([start for start, _ in children], key_token)

    assert child in overlaps(parents, children)[parent]
    assert parent in overlaps(children, parents)[child]


@given(st.integers(2, 96), slice_counts)
def test_a_split_halves_each_slice(size: int, slices: int) -> None:
    """But for the first split, in a third and two: there a child may have two parents."""
    step = growth(size)

    edges = overlaps(slices_of(step.children, slices), slices_of(step.parents, slices))

    assert edges == [(index // 2,) for index in range(2 * slices)]


def cut(points: set[int], kept: list[bool]) -> list[tuple[int, int]]:
    """Disjoint intervals between the points, some of them left out."""
    between = pairwise(sorted(points))
    return [bounds for bounds, is_kept in zip(between, kept, strict=False) if is_kept]


intervals = st.builds(
    cut, st.sets(st.integers(0, 20), max_size=10), st.lists(st.booleans(), min_size=9, max_size=9)
)


@given(intervals, intervals)
def test_overlaps_are_those_of_comparing_each_with_each(
    slices: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    assert overlaps(slices, others) == [
        tuple(
            index
            for index, (start, end) in enumerate(others)
            if any(start <= value < end for value in range(*each))
        )
        for each in slices
    ]


starts_and_units = st.integers(1, UNITS).flatmap(
    lambda units: st.tuples(
        st.integers(0, UNITS - units).map(lambda first: TOKEN_MIN + UNIT_TOKENS * first),
        st.just(units),
    )
)


@given(starts_and_units, slice_counts)
def test_slices_cover_every_token_of_a_range_once(
    start_and_units: tuple[int, int], count: int
) -> None:
    start, units = start_and_units
    is_last_range = start + units * UNIT_TOKENS == TOKEN_MIN + UNITS * UNIT_TOKENS

    bounds = slice_bounds(start, units, count)

    ends = [end for _, end in bounds]
    assert len(bounds) == count
    assert [slice_start for slice_start, _ in bounds] == [start, *ends[:-1]]
    assert ends[-1] == (TOKEN_END if is_last_range else start + units * UNIT_TOKENS)
    assert all(slice_start < end for slice_start, end in bounds)


@given(starts_and_units, slice_counts)
def test_slices_of_a_range_are_equal_but_for_a_remainder(
    start_and_units: tuple[int, int], count: int
) -> None:
    start, units = start_and_units

    lengths = [end - start for start, end in slice_bounds(start, units, count)]

    # What the units leave of the token space, less than one of them, is the last slice's.
    remainder = TOKEN_END - TOKEN_MIN - UNITS * UNIT_TOKENS
    assert max(lengths[:-1], default=0) - min(lengths) <= 1
    assert lengths[-1] - min(lengths) <= 1 + remainder


@given(tokens, slice_counts)
def test_a_token_is_found_in_the_slice_that_holds_it(key_token: int, count: int) -> None:
    bounds = slice_bounds(TOKEN_MIN, UNITS, count)

    index = find_slice([start for start, _ in bounds], key_token)

    start, end = bounds[index]
    assert start <= key_token < end
