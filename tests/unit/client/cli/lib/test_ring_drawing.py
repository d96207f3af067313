"""A ring as it is drawn on a terminal."""

from types import SimpleNamespace
from typing import Any

from tailrace.cli.lib.ring_drawing import SEALED_ROWS_MAX, ring_drawing

TOKENS = 2**64
FIRST = -(2**63)


def part(
    range_id: int, start: int, end: int, *, leader: int | None = None, sealed: bool = False
) -> Any:
    """Twelfths of the tokens."""
    return SimpleNamespace(
        id=range_id,
        start=str(FIRST + start * TOKENS // 12),
        end=str(FIRST + end * TOKENS // 12),
        leader=leader,
        state="sealed" if sealed else "open",
    )


def drawn(*ranges: Any) -> list[str]:
    ring: Any = SimpleNamespace(ranges=ranges)
    return ring_drawing(ring)


def test_leaders_are_over_their_tokens_and_sealed_ranges_below() -> None:
    lines = drawn(
        part(3, 0, 2, leader=0),
        part(4, 2, 4, leader=3),
        part(1, 4, 8, leader=None),
        part(2, 8, 12, leader=2),
        part(0, 0, 4, sealed=True),
    )

    assert lines == [
        "leader  ├0──────────┼3──────────┼?──────────────────────┼2──────────────────────┤",
        "sealed  ├0······················┤",
    ]


def test_older_sealed_ranges_are_further_down() -> None:
    lines = drawn(
        part(9, 0, 12, leader=0),
        part(7, 0, 6, sealed=True),
        part(8, 6, 12, sealed=True),
        part(3, 0, 12, sealed=True),
    )

    assert lines[1].startswith("sealed  ├7····")
    assert "┼8····" in lines[1]
    assert lines[2].startswith("        ├3····")


def test_there_is_an_end_to_what_is_drawn() -> None:
    many = [part(each, 0, 12, sealed=True) for each in range(SEALED_ROWS_MAX + 3)]

    lines = drawn(part(99, 0, 12, leader=0), *many)
    assert len(lines) == 1 + SEALED_ROWS_MAX + 1
    assert lines[-1].strip() == "and 3 older ones"
    assert drawn(*[part(each, 0, 12, leader=each) for each in range(25)]) == []
    assert drawn() == []


def test_a_range_without_room_for_a_name_has_none() -> None:
    narrow = SimpleNamespace(
        id=1, start=str(FIRST), end=str(FIRST + TOKENS // 100), leader=7, state="open"
    )
    [line] = drawn(narrow, part(2, 6, 12, leader=1))

    assert "7" not in line
    assert "├1──" in line
