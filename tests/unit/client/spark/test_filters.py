from dataclasses import dataclass
from typing import Any

import pytest

from tailrace.spark.filters import Condition, conditions_of, narrow
from tailrace.spark.offsets import OffsetRange

RANGES = [OffsetRange("a", 0, 0, 100), OffsetRange("a", 1, 50, 60), OffsetRange("b", 0, 0, 10)]


@dataclass(frozen=True)
class EqualTo:
    """As Spark's, which only Java brings."""

    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class In:
    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class IsNotNull:
    attribute: tuple[str, ...]
    value: Any = None


def test_filters_on_topic_partition_and_offset_spare_reading() -> None:
    filters = [EqualTo(("topic",), "a"), In(("partition",), (1, 2)), EqualTo(("offset",), 55)]

    assert conditions_of(filters) == [
        Condition("topic", "EqualTo", "a"),
        Condition("partition", "In", (1, 2)),
        Condition("offset", "EqualTo", 55),
    ]


@pytest.mark.parametrize(
    "useless",
    [
        EqualTo(("key",), b"a"),
        EqualTo(("partition",), "1"),
        EqualTo(("offset",), True),
        In(("offset",), ()),
        In(("offset",), (1, None)),
        IsNotNull(("offset",)),
    ],
)
def test_other_filters_are_left_to_spark(useless: object) -> None:
    assert conditions_of([useless]) == []


@pytest.mark.parametrize(
    ("relation", "value", "expected"),
    [
        ("EqualTo", 55, [("a", 0, 55, 56), ("a", 1, 55, 56)]),
        ("LessThan", 55, [("a", 0, 0, 55), ("a", 1, 50, 55), ("b", 0, 0, 10)]),
        ("LessThanOrEqual", 5, [("a", 0, 0, 6), ("b", 0, 0, 6)]),
        ("GreaterThan", 58, [("a", 0, 59, 100), ("a", 1, 59, 60)]),
        ("GreaterThanOrEqual", 9, [("a", 0, 9, 100), ("a", 1, 50, 60), ("b", 0, 9, 10)]),
        ("In", (5, 51), [("a", 0, 5, 52), ("a", 1, 50, 52), ("b", 0, 5, 10)]),
        ("LessThan", -3, []),
    ],
)
def test_a_condition_on_offsets_clips_ranges(
    relation: str, value: Any, expected: list[tuple[str, int, int, int]]
) -> None:
    kept = narrow(RANGES, [Condition("offset", relation, value)])

    assert [(each.topic, each.partition, each.start, each.end) for each in kept] == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Condition("topic", "EqualTo", "b"), RANGES[2:]),
        (Condition("topic", "In", ("a", "c")), RANGES[:2]),
        (Condition("partition", "LessThan", 1), [RANGES[0], RANGES[2]]),
        (Condition("partition", "GreaterThan", 1), []),
        (Condition("partition", "LessThanOrEqual", 1), RANGES),
        (Condition("partition", "GreaterThanOrEqual", 1), RANGES[1:2]),
    ],
)
def test_a_condition_on_topic_or_partition_drops_ranges(
    condition: Condition, expected: list[OffsetRange]
) -> None:
    assert narrow(RANGES, [condition]) == expected


def test_conditions_add_up() -> None:
    conditions = [Condition("partition", "EqualTo", 0), Condition("offset", "LessThan", 5)]

    assert narrow(RANGES, conditions) == [OffsetRange("a", 0, 0, 5), OffsetRange("b", 0, 0, 5)]
