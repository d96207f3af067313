"""A ring in some lines of text: who leads which tokens, and the sealed ranges that were there."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.protocol.ring_values import RangeDetails, RingDetails

WIDTH = 72
FIRST_TOKEN, TOKENS = -(2**63), 2**64
# A ring of so many brokers has no place for their numbers.
BROKERS_MAX = 24
SEALED_ROWS_MAX = 6
NAME_WIDTH = 8


def ring_drawing(ring: "RingDetails") -> list[str]:
    """The tokens from left to right; nothing of a ring that is too large.

    Above, each open range with its leader; below, sealed ranges by their ids, the newest first.
    """
    opened = [each for each in ring.ranges if each.state != "sealed"]
    sealed = [each for each in ring.ranges if each.state == "sealed"]
    if not opened or len(opened) > BROKERS_MAX:
        return []
    rows = _rows(sorted(sealed, key=lambda each: -each.id))
    lines = [_line("leader", opened, "─", _leader_of)]
    for number, row in enumerate(rows[:SEALED_ROWS_MAX]):
        lines.append(_line("sealed" if number == 0 else "", row, "·", _id_of))
    if len(rows) > SEALED_ROWS_MAX:
        left = sum(map(len, rows[SEALED_ROWS_MAX:]))
        lines.append(f"{'':{NAME_WIDTH}}and {left} older ones")
    return lines


def _rows(ranges: Iterable["RangeDetails"]) -> list[list["RangeDetails"]]:
    """Ranges that do not overlap share a row, the first that has room."""
    rows: list[list[RangeDetails]] = []
    for each in ranges:
        row = next((row for row in rows if not any(_overlap(each, one) for one in row)), None)
        if row is None:
            rows.append([each])
        else:
            row.append(each)
    return [sorted(row, key=lambda each: int(each.start)) for row in rows]


def _overlap(one: "RangeDetails", other: "RangeDetails") -> bool:
    return int(one.start) < int(other.end) and int(other.start) < int(one.end)


def _line(
    name: str, ranges: Sequence["RangeDetails"], fill: str, label: Callable[["RangeDetails"], str]
) -> str:
    cells = [" "] * (WIDTH + 1)
    for each in ranges:
        start, end = _column(each.start), _column(each.end)
        cells[start : end + 1] = "├" + fill * (end - start - 1) + "┤"
    for each in ranges:
        start, end = _column(each.start), _column(each.end)
        text = label(each)[: max(end - start - 1, 0)]
        cells[start + 1 : start + 1 + len(text)] = text
        if start and cells[start - 1] != " ":
            cells[start] = "┼"
    return f"{name:{NAME_WIDTH}}{''.join(cells)}".rstrip()


def _column(token: str) -> int:
    return ((int(token) - FIRST_TOKEN) * WIDTH + TOKENS // 2) // TOKENS


def _leader_of(one: "RangeDetails") -> str:
    return "?" if one.leader is None else str(one.leader)


def _id_of(one: "RangeDetails") -> str:
    return str(one.id)
