"""Types of arguments: durations and sizes as people write them (`tailrace.settings.quantities`)."""

import argparse
import re
from collections.abc import Callable

from tailrace.cli.lib.parser import shown
from tailrace.settings.quantities import DURATION, DURATION_UNITS, SIZE, Quantity

_UNITS = "|".join(DURATION_UNITS)
_PART = re.compile(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)({_UNITS})")


def duration(
    least_ms: int, most_ms: int | None = None, *, or_none: bool = False
) -> Callable[[str], int | None]:
    """A type of arguments: "7d" -> 604,800,000; both bounds can be reached."""
    return _reader(Quantity(DURATION, least_ms, most_ms, or_none))


def size(
    least_bytes: int, most_bytes: int | None = None, *, or_none: bool = False
) -> Callable[[str], int | None]:
    """A type of arguments: "10Gi" -> 10,737,418,240; both bounds can be reached."""
    return _reader(Quantity(SIZE, least_bytes, most_bytes, or_none))


def past_duration(word: str) -> int:
    """How long ago, a type of arguments: "90s", "1h30m" and "1.5h" -> ms."""
    parts = _PART.findall(word)
    if word.startswith("-"):
        raise argparse.ArgumentTypeError(
            f"{shown(word)} is negative; it is how long ago, as {word.lstrip('-') or '1h'}"
        )
    duration_ms = round(sum(float(count) * DURATION_UNITS[unit] for count, unit in parts))
    if "".join(map("".join, parts)) != word or not duration_ms:
        raise argparse.ArgumentTypeError(
            f"{shown(word)} is not a duration of 1ms or more, like 90s, 1h30m or 1.5h; units are "
            f"{', '.join(DURATION_UNITS)}"
        )
    return duration_ms


def _reader(quantity: Quantity) -> Callable[[str], int | None]:
    def read(word: str) -> int | None:
        try:
            return quantity.read(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(word)} is {error}") from None

    return read
