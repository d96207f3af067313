"""Where a scrub of all stored bytes begins: a plan from sizes and time alone, nothing is stored.

As if it went round and round at its pace for ever: however often a broker is restarted, no part
of its data is always left out, and none is always read first.
"""

from collections.abc import Sequence


def first_segment(sizes_bytes: Sequence[int], now_us: int, *, bytes_per_second: int) -> int:
    """Index of the segment where it would be now; 0 when there is nothing. O(segments)."""
    position = now_us * bytes_per_second // 1_000_000 % max(sum(sizes_bytes), 1)
    for index, size_bytes in enumerate(sizes_bytes):
        if position < size_bytes:
            return index
        position -= size_bytes
    return 0
