import pytest

from tailrace_broker.core.ring.arithmetic import (
    TOKEN_END,
    TOKEN_MIN,
    UNITS,
    Range,
    broker_token,
    ring_ranges,
    slice_bounds,
)
from tailrace_broker.core.ring.steps import Step, overlaps, plan_step

END_OF_0 = broker_token(1)
MIDDLE_OF_0 = broker_token(3)


def test_a_new_broker_splits_one_range_at_its_token() -> None:
    assert plan_step(before_count=3, after_count=4) == Step(
        parents=(Range(0, TOKEN_MIN, END_OF_0, 4096, (0, 1, 2)),),
        children=(
            Range(0, TOKEN_MIN, MIDDLE_OF_0, 2048, (0, 3, 1)),
            Range(3, MIDDLE_OF_0, END_OF_0, 2048, (3, 1, 0)),
        ),
        continued=None,
    )


def test_a_range_whose_replicas_change_is_continued() -> None:
    step = plan_step(before_count=4, after_count=5)

    assert [each.ordinal for each in step.children] == [1, 4]
    assert step.continued == (
        Range(3, MIDDLE_OF_0, END_OF_0, 2048, (3, 1, 0)),
        Range(3, MIDDLE_OF_0, END_OF_0, 2048, (3, 1, 4)),
    )


def test_a_second_broker_splits_the_only_range_in_one_third_and_two() -> None:
    step = plan_step(before_count=1, after_count=2)

    assert step == Step(tuple(ring_ranges(1)), tuple(ring_ranges(2)), None)
    assert [each.length_units for each in step.children] == [4096, 8192]


def test_a_third_broker_gives_the_range_that_it_does_not_split_a_third_replica() -> None:
    step = plan_step(before_count=2, after_count=3)

    assert [each.ordinal for each in step.parents] == [1]
    assert step.continued == (
        Range(0, TOKEN_MIN, END_OF_0, 4096, (0, 1)),
        Range(0, TOKEN_MIN, END_OF_0, 4096, (0, 1, 2)),
    )


def test_a_leaving_broker_joins_its_range_to_the_one_before_it() -> None:
    assert plan_step(before_count=6, after_count=5) == Step(
        parents=(
            Range(2, broker_token(2), broker_token(5), 2048, (2, 5, 0)),
            Range(5, broker_token(5), TOKEN_END, 2048, (5, 0, 3)),
        ),
        children=(Range(2, broker_token(2), TOKEN_END, 4096, (2, 0, 1)),),
        continued=(
            Range(4, broker_token(4), broker_token(2), 2048, (4, 2, 5)),
            Range(4, broker_token(4), broker_token(2), 2048, (4, 2, 1)),
        ),
    )


@pytest.mark.parametrize("after_count", [1, 3, 5])
def test_a_step_of_no_broker_or_of_two_is_our_bug(after_count: int) -> None:
    with pytest.raises(AssertionError, match=rf"^\(3, {after_count}\)"):
        plan_step(before_count=3, after_count=after_count)


@pytest.mark.parametrize("counts", [(1, 0), (0, 1)])
def test_a_step_from_or_to_a_ring_of_none_is_our_bug(counts: tuple[int, int]) -> None:
    with pytest.raises(AssertionError):
        plan_step(before_count=counts[0], after_count=counts[1])


@pytest.mark.parametrize(
    ("slices", "others", "expected"),
    [
        ([(0, 4), (4, 8)], [(0, 8)], [(0,), (0,)]),
        ([(0, 8)], [(0, 4), (4, 8)], [(0, 1)]),
        ([(0, 4), (4, 8)], [(0, 4), (4, 8)], [(0,), (1,)]),
        ([(0, 4), (4, 8)], [(0, 3), (3, 6), (6, 8)], [(0, 1), (1, 2)]),
        ([(0, 3), (3, 6), (6, 8)], [(0, 4), (4, 8)], [(0,), (0, 1), (1,)]),
        ([(0, 2), (6, 8)], [(0, 1), (1, 2), (6, 8)], [(0, 1), (2,)]),
        ([(2, 6)], [(0, 2), (6, 8)], [()]),
        ([], [(0, 8)], []),
        ([(0, 8)], [], [()]),
    ],
    ids=["split", "join", "same", "more", "fewer", "gap", "none in the gap", "no slices", "none"],
)
def test_slices_overlap_where_they_share_a_token(
    slices: list[tuple[int, int]], others: list[tuple[int, int]], expected: list[tuple[int, ...]]
) -> None:
    assert overlaps(slices, others) == expected


def test_a_topic_of_three_slices_cut_into_four_has_six_edges() -> None:
    before, after = slice_bounds(TOKEN_MIN, UNITS, 3), slice_bounds(TOKEN_MIN, UNITS, 4)

    assert overlaps(after, before) == [(0,), (0, 1), (1, 2), (2,)]
    assert overlaps(before, after) == [(0, 1), (1, 2), (2, 3)]
