"""Types of arguments: durations and sizes as people write them (`tailrace.settings.quantities`)."""

import argparse
from collections.abc import Callable

from tailrace.cli.lib.parser import shown
from tailrace.settings.quantities import DURATION, SIZE, Quantity


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


def _reader(quantity: Quantity) -> Callable[[str], int | None]:
    def read(word: str) -> int | None:
        try:
            return quantity.read(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(word)} is {error}") from None

    return read
