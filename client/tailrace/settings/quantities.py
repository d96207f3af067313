"""Durations and sizes as people write them, "7d" and "10Gi"; for the API they are ms and bytes.

The one rule by which options and fields of resources are named otherwise than settings: a quantity
with its unit is a `--retention`, a `retention` or a `flushSize`, where the API, which has no units,
says `retentionMs` and `flushBytes`.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

NONE = "none"  # in place of a quantity: no bound
DIGITS_MAX = 19  # of a 64-bit number; longer ones are not even read

DURATION_UNITS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
# Those of Kubernetes' quantities, from a byte on.
SIZE_UNITS = {
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
_SHOWN_DURATION_UNITS = {unit: ms for unit, ms in DURATION_UNITS.items() if unit != "w"}
_SHOWN_SIZE_UNITS = {unit: size for unit, size in SIZE_UNITS.items() if size % 1000 or size == 1}
_QUANTITY = re.compile(rf"([0-9]{{1,{DIGITS_MAX}}})([A-Za-z]*)", re.ASCII)


def duration_quantity(duration_ms: int | None) -> str:
    """604,800,000 -> "7d"."""
    return _text(duration_ms, _SHOWN_DURATION_UNITS)


def size_quantity(size_bytes: int | None) -> str:
    """10,737,418,240 -> "10Gi"."""
    return _text(size_bytes, _SHOWN_SIZE_UNITS)


class Kind(NamedTuple):
    """A kind of quantity, and how one is shown."""

    name: str
    units: Mapping[str, int]
    text: Callable[[int | None], str]


DURATION = Kind("a duration", DURATION_UNITS, duration_quantity)
SIZE = Kind("a size", SIZE_UNITS, size_quantity)


class Quantity(NamedTuple):
    """What can be written somewhere, in ms or bytes; both bounds can be reached."""

    kind: Kind
    least: int
    most: int | None = None
    or_none: bool = False

    def read(self, word: str) -> int | None:
        """ "7d" -> 604,800,000, "none" -> None; ValueError: it cannot be written here."""
        if self.or_none and word == NONE:
            return None
        value = _value(word, self.kind.units)
        if value is None or value < self.least or (self.most is not None and value > self.most):
            raise ValueError(f"not {self.described}")
        return value

    @property
    def described(self) -> str:
        """As in "a duration from 1m on or none; units are ms, s, m, h, d, w"."""
        text = self.kind.text
        until = "on" if self.most is None else f"to {text(self.most)}"
        otherwise = f" or {NONE}" if self.or_none else ""
        units = ", ".join(filter(None, self.kind.units))
        return f"{self.kind.name} from {text(self.least)} {until}{otherwise}; units are {units}"


def _value(word: str, units: Mapping[str, int]) -> int | None:
    """None: not a whole number with one of the units; 0 needs none."""
    match_ = _QUANTITY.fullmatch(word)
    if word == "0":
        return 0
    return int(match_[1]) * units[match_[2]] if match_ and match_[2] in units else None


def _text(value: int | None, units: Mapping[str, int]) -> str:
    """`units` from the smallest on."""
    if not value:
        return NONE if value is None else "0"
    unit = [unit for unit, size in units.items() if value % size == 0][-1]
    return f"{value // units[unit]}{unit}"
