"""Spares reading what a query's conditions exclude: on topic, partition and offset; pure.

A narrowed read may still hold rows that are not wanted: Spark checks every condition again.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.spark.offsets import OffsetRange
from tailrace.spark.option_values import INT64_MAX

_TYPE_BY_COLUMN: Mapping[str, type] = {"topic": str, "partition": int, "offset": int}


class Condition(NamedTuple):
    """What all wanted rows fulfil; `relation` is the name of Spark's filter."""

    column: str
    relation: str
    value: Any


def conditions_of(filters: Iterable[Any]) -> list[Condition]:
    """Those of Spark's filters that spare reading; each has an attribute and mostly a value."""
    return [
        Condition(each.attribute[0], type(each).__name__, each.value)
        for each in filters
        if type(each).__name__ in _BOUNDS_BY_RELATION
        and each.attribute[0] in _TYPE_BY_COLUMN
        and _has_type(each.value, _TYPE_BY_COLUMN[each.attribute[0]])
    ]


def narrow(ranges: Iterable[OffsetRange], conditions: Iterable[Condition]) -> list[OffsetRange]:
    """The ranges, without records that a condition excludes."""
    kept = list(ranges)
    for column, relation, value in conditions:
        if column == "offset":
            kept = list(_clip(kept, *_BOUNDS_BY_RELATION[relation](value)))
        else:
            holds = _TEST_BY_RELATION[relation]
            kept = [each for each in kept if holds(getattr(each, column), value)]
    return kept


def _has_type(value: Any, wanted: type) -> bool:
    """Whether a value, or all of an In's, can be compared with the column as they are."""
    values = value if isinstance(value, tuple) else (value,)
    return bool(values) and all(type(each) is wanted for each in values)


def _clip(ranges: Iterable[OffsetRange], start: int, end: int) -> Iterator[OffsetRange]:
    for range_ in ranges:
        kept_start, kept_end = max(range_.start, start), min(range_.end, end)
        if kept_start < kept_end:
            yield OffsetRange(range_.topic, range_.partition, kept_start, kept_end)


# The offsets [start, end) that fulfil a condition, or a few more.
_BOUNDS_BY_RELATION: Mapping[str, Callable[[Any], tuple[int, int]]] = {
    "EqualTo": lambda value: (value, value + 1),
    "LessThan": lambda value: (0, value),
    "LessThanOrEqual": lambda value: (0, value + 1),
    "GreaterThan": lambda value: (value + 1, INT64_MAX),
    "GreaterThanOrEqual": lambda value: (value, INT64_MAX),
    "In": lambda values: (min(values), max(values) + 1),
}
_TEST_BY_RELATION: Mapping[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "In": lambda member, values: member in values,
}
assert _BOUNDS_BY_RELATION.keys() == _TEST_BY_RELATION.keys()
