"""The report of the main job: a line a step, and tables side by side."""

import sys
import time
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import zip_longest

TABLE_GAP = "     "


class Row:
    """A line of the report, filled by its step."""

    text = ""


@contextmanager
def row(name: str) -> Iterator[Row]:
    """Print a line with its time once the step has ended well."""
    if sys.stdout.isatty():
        print(f"· {name}", end="\r", flush=True)
    line = Row()
    started = time.perf_counter()
    yield line
    print(f"✓ {name:<13} {line.text:<90} {time.perf_counter() - started:5.1f} s", flush=True)


def leave_out(name: str, reason: str) -> None:
    """A line of the report for a step that does not run."""
    print(f"- {name:<13} left out: {reason}")


def print_side_by_side(*tables: Sequence[Sequence[str]]) -> None:
    """Tables with their titles on one line; an empty one takes no room."""
    blocks = [_aligned(table) for table in tables if table]
    for lines in zip_longest(*blocks):
        cells = [
            line if line is not None else " " * len(block[0])
            for line, block in zip(lines, blocks, strict=True)
        ]
        print("    " + TABLE_GAP.join(cells).rstrip())


def count_of(counted: Sized, noun: str) -> str:
    """Like `3 brokers`."""
    return f"{len(counted)} {noun}{'' if len(counted) == 1 else 's'}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of equal length; the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
        for first, *others in table
    ]
