"""Which records of a log may go: whole segments, by append time or by size.

A plan: the shell looks, trims, and looks again when the plan says. Only records below the high
watermark go. A clock that is behind the log's newest record says nothing about age.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tailrace_broker.core.log.recovery import SegmentState


class RetentionPlan(NamedTuple):
    """What to do with one log."""

    log_start: int | None
    """Where the log is to begin: the end of a segment; None: nothing goes."""
    look_at_us: int | None
    """When time may have made more of it old; None: time makes nothing old."""


def plan_retention(
    segments: Sequence[SegmentState],
    *,
    retention_ms: int | None,
    retention_bytes: int | None,
    log_start: int,
    high_watermark: int,
    now_us: int,
) -> RetentionPlan:
    """What may go now. `segments`: all of the log in order, the last takes writes.

    By time a segment goes when its last record is `retention_ms` old, also the one that takes
    writes: the log is then empty, and its offsets go on. By size the oldest finished segments go
    as long as `retention_bytes` are left. None: no such bound. O(segments).
    """
    newest_us = segments[-1].last_append_time_us
    retention_us = None if retention_ms is None else retention_ms * 1000
    # No record is old when the clock was set back, or was ahead when they were written.
    old_us = now_us - retention_us if retention_us is not None and now_us >= newest_us else None
    stored = [state for state in segments if state.end_offset > max(state.base_offset, log_start)]
    left_bytes = sum(state.position for state in stored)
    start = log_start
    kept = None
    for state, last_us in zip(stored, _last_times_us(stored, now_us), strict=True):
        left_bytes -= state.position
        is_old = old_us is not None and last_us <= old_us
        is_finished = state is not segments[-1]
        is_surplus = is_finished and retention_bytes is not None and left_bytes >= retention_bytes
        if state.end_offset > high_watermark or not (is_old or is_surplus):
            kept = state
            break
        start = state.end_offset
    return RetentionPlan(
        start if start > log_start else None, _look_at_us(kept, retention_us, now_us)
    )


def _last_times_us(segments: Sequence[SegmentState], now_us: int) -> list[int]:
    """When the last record of each was appended, at the latest.

    Of a segment of which nothing can be read that is not known: it is no older than the next one.
    """
    times_us = []
    later_us = now_us
    for state in reversed(segments):
        later_us = state.last_append_time_us or later_us
        times_us.append(later_us)
    return times_us[::-1]


def _look_at_us(oldest: SegmentState | None, retention_us: int | None, now_us: int) -> int | None:
    """Append times never fall: nothing is old before the oldest segment that is kept is."""
    if retention_us is None:
        return None
    if oldest is not None and oldest.last_append_time_us + retention_us > now_us:
        return oldest.last_append_time_us + retention_us
    # Empty: what comes is not old before that. Or the clock or the high watermark is behind.
    return now_us + retention_us
