"""Durations and sizes as people write them, "7d" and "10Gi"; for the API they are ms and bytes.

The one rule by which options are named otherwise than settings: a quantity with its unit is a
`--retention` or a `--flush-size`, where the API, which has no units, says `retentionMs` and
`flushBytes`.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tailrace.cli.parser import DIGITS_MAX, shown

NONE = "none"  # in place of a quantity: no bound

_DURATION_UNITS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
# Those of Kubernetes' quantities, from a byte on.
_SIZE_UNITS = {
    "": 1,
    "k": 1000,
    "Ki": 2**10,
    "M": 1000**2,
    "Mi": 2**20,
    "G": 1000**3,
    "Gi": 2**30,
    "T": 1000**4,
    "Ti": 2**40,
}
# As they are shown: the largest that is whole. A week is 7d, as it is mostly written.
_SHOWN_DURATION_UNITS = {unit: ms for unit, ms in _DURATION_UNITS.items() if unit != "w"}
_SHOWN_SIZE_UNITS = {unit: size for unit, size in _SIZE_UNITS.items() if size % 1000 or size == 1}
_QUANTITY = re.compile(rf"([0-9]{{1,{DIGITS_MAX}}})([A-Za-z]*)", re.ASCII)


class _Kind(NamedTuple):
    """A kind of quantity, and how an error shows one."""

    name: str
    units: Mapping[str, int]
    text: Callable[[int | None], str]


def duration_quantity(duration_ms: int | None) -> str:
    """604,800,000 -> "7d"."""
    return _text(duration_ms, _SHOWN_DURATION_UNITS)


def size_quantity(size_bytes: int | None) -> str:
    """10,737,418,240 -> "10Gi"."""
    return _text(size_bytes, _SHOWN_SIZE_UNITS)


def duration(
    least_ms: int, most_ms: int | None = None, *, or_none: bool = False
) -> Callable[[str], int | None]:
    """A type of arguments: "7d" -> 604,800,000; both bounds can be reached."""
    return _reader(_DURATION, least_ms, most_ms, or_none)


def size(
    least_bytes: int, most_bytes: int | None = None, *, or_none: bool = False
) -> Callable[[str], int | None]:
    """A type of arguments: "10Gi" -> 10,737,418,240; both bounds can be reached."""
    return _reader(_SIZE, least_bytes, most_bytes, or_none)


_DURATION = _Kind("a duration", _DURATION_UNITS, duration_quantity)
_SIZE = _Kind("a size", _SIZE_UNITS, size_quantity)


def _reader(
    kind: _Kind, least: int, most: int | None, or_none: bool
) -> Callable[[str], int | None]:
    def read(word: str) -> int | None:
        if or_none and word == NONE:
            return None
        value = _value(word, kind.units)
        if value is not None and least <= value and (most is None or value <= most):
            return value
        until = "on" if most is None else f"to {kind.text(most)}"
        bounds = f"{kind.name} from {kind.text(least)} {until}{f' or {NONE}' if or_none else ''}"
        units = ", ".join(filter(None, kind.units))
        raise argparse.ArgumentTypeError(f"{shown(word)} is not {bounds}; units are {units}")

    return read


def _value(word: str, units: Mapping[str, int]) -> int | None:
    """None: not a whole number with one of the units; 0 needs none."""
    found = _QUANTITY.fullmatch(word)
    if word == "0":
        return 0
    return int(found[1]) * units[found[2]] if found and found[2] in units else None


def _text(value: int | None, units: Mapping[str, int]) -> str:
    """`units` from the smallest on."""
    if not value:
        return NONE if value is None else "0"
    unit = [unit for unit, size in units.items() if value % size == 0][-1]
    return f"{value // units[unit]}{unit}"
