"""Tokens and the slices of a range: where a key belongs follows from the key alone.

A token is the first half of Murmur3 x64-128 of the key, signed. Cassandra's Murmur3Partitioner
differs for keys with bytes >= 0x80 (it sign-extends them in the tail); plain Murmur3 does not.
"""

from bisect import bisect_right
from collections.abc import Sequence

import mmh3

TOKEN_MIN = -(2**63)
TOKEN_END = 2**63
# 3 * 2**12: the largest ring. A range's nominal length is a whole number of these units.
UNITS = 12288
UNIT_TOKENS = (2**64 - 1) // UNITS


def token(key: bytes) -> int:
    """The signed 64-bit token of a partition key."""
    return mmh3.hash64(key, signed=True)[0]


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
