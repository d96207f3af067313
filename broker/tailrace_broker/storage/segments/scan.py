"""Follows a log through a segment's file, and through damage to it. Blocks.

The rules are in `core.recovery`; this reads.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tailrace.wire import HEADER_BYTES, align_up
from tailrace_broker.core.log.recovery import (
    LogScan,
    Resumption,
    durable_end_behind,
    largest_end_behind,
    resumption_in,
    size_at_damage,
)
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Damage
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES, DirectFile
from tailrace_broker.storage.segments.reader import window_at

SCAN_WINDOW_BYTES = 1024 * 1024


class Behind(NamedTuple):
    """What stands behind the end of a log in its segment; `torn_bytes`: that are not zero."""

    durable_end: int = 0
    largest_end: int = 0
    torn_bytes: int = 0


def scan_segment(file: DirectFile, scan: LogScan, pool: BufferPool) -> None:
    """Follow the log through a segment; afterwards `scan.state` is at its end."""
    size_bytes = file.size_bytes()
    wanted_bytes = HEADER_BYTES
    while not scan.ended:
        start = scan.state.position
        window_bytes = max(wanted_bytes, SCAN_WINDOW_BYTES)
        with window_at(file, pool, start, window_bytes) as window:
            is_last = start + len(window) >= size_bytes
            wanted_bytes = scan.feed(window, is_last=is_last)


def scan_through_damage(
    file: DirectFile, scan: LogScan, pool: BufferPool, path: Path, durable_end: int
) -> list[Damage]:
    """Go on behind each damage, while the log ends below `durable_end`; what is damaged."""
    found = []
    while scan.state.end_offset < durable_end:
        resumption = _resumption(file, scan, pool, durable_end)
        if resumption is None:
            break
        state = scan.state
        if resumption.offset > state.end_offset:  # else it is a pad, which no reader needs
            found.append(Damage(path, state.position, state.end_offset, resumption.offset))
        scan.resume(resumption)
        scan_segment(file, scan, pool)
    return found


def ends_with_damage(file: DirectFile, scan: LogScan, pool: BufferPool) -> bool:
    """Whether the damaged batch at the log's end is the last of the file, as its size says."""
    position = scan.state.position
    with window_at(file, pool, position, HEADER_BYTES) as window:
        size_bytes, _ = size_at_damage(scan, window)
    end = align_up(position + size_bytes, BLOCK_BYTES)
    return size_bytes > 0 and end == align_up(file.size_bytes(), BLOCK_BYTES)


def look_behind(file: DirectFile, scan: LogScan, pool: BufferPool) -> Behind:
    """Read the headers in the blocks behind the log's end."""
    position = align_up(scan.state.position, BLOCK_BYTES)
    found = Behind()
    while position < file.size_bytes():
        with window_at(file, pool, position, SCAN_WINDOW_BYTES) as window:
            found = Behind(
                max(found.durable_end, durable_end_behind(scan, window)),
                max(found.largest_end, largest_end_behind(scan, window)),
                found.torn_bytes + int(np.count_nonzero(np.frombuffer(window, np.uint8))),
            )
            position += SCAN_WINDOW_BYTES
    return found


def _resumption(
    file: DirectFile, scan: LogScan, pool: BufferPool, durable_end: int
) -> Resumption | None:
    """Right behind the damaged batch, when its size is known; else on the next block with a batch.

    Each write starts on a block.
    """
    damaged = scan.state.position
    with window_at(file, pool, damaged, HEADER_BYTES) as window:
        size_bytes, resumption = size_at_damage(scan, window)
    if resumption is not None and resumption.position <= file.size_bytes():
        return resumption
    resumption, position = None, damaged + size_bytes
    if damaged < position < file.size_bytes():
        with window_at(file, pool, position, HEADER_BYTES) as window:
            resumption = resumption_in(scan, window[:HEADER_BYTES], position, durable_end)
    position = align_up(damaged + 1, BLOCK_BYTES)
    while resumption is None and position < file.size_bytes():
        with window_at(file, pool, position, SCAN_WINDOW_BYTES) as window:
            resumption = resumption_in(scan, window, position, durable_end)
        position += SCAN_WINDOW_BYTES
    return resumption
