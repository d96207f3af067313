"""The ring: where each broker sits, which range of tokens it leads, which brokers hold copies.

All of it follows from the number of brokers, and a broker's token and zone class from its ordinal
alone: nothing is stored, and adding or removing the last broker moves no other one. The first
three brokers sit at the thirds of the token space; each doubling puts the new ordinals, in ring
order, at the middles of the ranges. `docs/ring.md` shows it on an example. What changes when a
broker comes or goes: `core/ring/steps.py`.

A token is the first half of Murmur3 x64-128 of the key, signed. Cassandra's Murmur3Partitioner
gives others to the empty key and to many keys with bytes >= 0x80; `docs/ring.md` says to which.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import mmh3
import numpy as np
import numpy.typing as npt

TOKEN_MIN = -(2**63)
TOKEN_END = 2**63
# 3 * 2**12: the largest ring. A range's nominal length is a whole number of these units.
UNITS = 12288
UNIT_TOKENS = (2**64 - 1) // UNITS
# Of the ring that is doubled, 3 * 2**level after `level` doublings.
FIRST_BROKERS = 3
# A range has a replica in each.
ZONE_CLASSES = 3


@dataclass(frozen=True, slots=True)
class Range:
    """The tokens `[start, end)` from a broker's own token up to that of the next in the ring.

    The last range of the ring ends at 2**63: it is longer than nominal by what the units leave.
    """

    ordinal: int  # its natural leader
    start: int
    end: int
    length_units: int
    replicas: tuple[int, ...]  # the natural leader first, then clockwise


def token(key: bytes) -> int:
    """The signed 64-bit token of a partition key."""
    return mmh3.hash64(key, signed=True)[0]


def tokens(keys: Sequence[bytes | str]) -> npt.NDArray[np.int64]:
    """The `token` of each key, a text's in UTF-8, without a loop in Python over them."""
    digests = b"".join(map(mmh3.hash_bytes, keys))
    return np.frombuffer(digests, "<i8")[::2]  # the first half of each


def broker_token(ordinal: int) -> int:
    """The token at which a broker sits, whatever the size of its ring."""
    return TOKEN_MIN + UNIT_TOKENS * _unit(ordinal)


def zone_class(ordinal: int) -> int:
    """0, 1 or 2: brokers of one class belong in one zone, replicas of a range in three."""
    level, position = _place(ordinal)
    return (-position if level % 2 else position) % ZONE_CLASSES


def ring_order(broker_count: int) -> list[int]:
    """The ordinals of a ring in the order of their tokens. O(n): each doubling is sorted already.

    `broker_count` is 1 to UNITS, here and below.
    """
    assert broker_count >= 1, broker_count
    return sorted(range(broker_count), key=_unit)


def ring_ranges(broker_count: int) -> list[Range]:
    """The ranges of a ring, in token order; they cover every token once. O(n)."""
    order = ring_order(broker_count)
    tokens = [*map(broker_token, order), TOKEN_END]
    return [
        Range(ordinal, start, end, (end - start) // UNIT_TOKENS, _replicas(order, index))
        for index, (ordinal, (start, end)) in enumerate(zip(order, pairwise(tokens), strict=True))
    ]


def slice_bounds(start: int, length_units: int, slices: int) -> list[tuple[int, int]]:
    """The `[start, end)` of each slice of a range of `length_units`, in token order.

    The last slice of the ring ends at 2**63: the units do not divide the token space evenly.
    """
    length = UNIT_TOKENS * length_units
    starts = [start + length * index // slices for index in range(slices)]
    nominal_end = start + length
    end = TOKEN_END if nominal_end == TOKEN_MIN + UNIT_TOKENS * UNITS else nominal_end
    return list(zip(starts, [*starts[1:], end], strict=True))


def find_slice(starts: Sequence[int], key_token: int) -> int:
    """Index of the slice that holds the token; `starts` ascending, the first at or below it."""
    index = bisect_right(starts, key_token) - 1
    assert index >= 0, key_token
    return index


def _place(ordinal: int) -> tuple[int, int]:
    """The doubling that adds the broker (0: one of the first), and its position in the ring then.

    What doubling `level` adds are the odd positions of a ring of 3 * 2**level.
    """
    assert 0 <= ordinal < UNITS, ordinal
    level = (ordinal // FIRST_BROKERS).bit_length()
    if level == 0:
        return 0, ordinal
    brokers_before = FIRST_BROKERS << (level - 1)
    return level, 2 * (ordinal - brokers_before) + 1


def _unit(ordinal: int) -> int:
    """A broker's place in units from the start of the ring."""
    level, position = _place(ordinal)
    return position * (UNITS // FIRST_BROKERS >> level)


def _replicas(order: Sequence[int], leader_index: int) -> tuple[int, ...]:
    """The leader, then clockwise the next brokers of classes not yet used.

    Those are three brokers, one a class, within the next four; in a ring of one or two, all.
    """
    by_class: dict[int, int] = {}
    for index in range(leader_index, leader_index + len(order)):
        ordinal = order[index % len(order)]
        by_class.setdefault(zone_class(ordinal), ordinal)
        if len(by_class) == ZONE_CLASSES:
            break
    return tuple(by_class.values())
