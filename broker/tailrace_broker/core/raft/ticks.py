"""When what recurs is due: on one grid, so that a broker wakes once for all of it.

A wake-up of an idle process costs more than what it then does, and what is written to a peer in one
turn of the loop is one write, and one read there.
"""

TICK_MS = 200


def next_tick_ms(now_ms: int, interval_ms: int) -> int:
    """The next moment of the grid: after now, and at most `interval_ms` from it."""
    return (now_ms // interval_ms + 1) * interval_ms
