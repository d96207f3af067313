"""Finds where a partition's log ends after any kind of stop, and makes that end clean.

Blocks: runs in an I/O thread before the partition takes anything. The rules are in
`core.recovery`; this reads, cuts and rebuilds index files.
"""

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import structlog

from tailrace.wire import HEADER_BYTES, align_up
from tailrace_broker.codec.segment import SegmentIndex, decode_index, encode_index, encode_pad
from tailrace_broker.core.recovery import LogScan, SegmentState, proves_damage
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.errors import (
    CorruptBatchError,
    DiskFullError,
    StorageFailedError,
)
from tailrace_broker.storage.direct_file import (
    BLOCK_BYTES,
    DirectFile,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.segment_reader import window_at
from tailrace_broker.storage.segment_writer import LogPlace, index_of, segment_path

SCAN_WINDOW_BYTES = 1024 * 1024

# Other files in the directory are not ours.
_SEGMENT_NAME = re.compile(r"\d{20}\.log", re.ASCII)
_INDEX_NAME = re.compile(r"\d{20}\.idx", re.ASCII)

_log = structlog.get_logger()


def recover_log(
    place: LogPlace, first_offset: int, pool: BufferPool, *, is_direct: bool
) -> list[SegmentState]:
    """The partition's segments in order, the last ready for appends; on disk nothing follows it.

    CorruptPartitionError when records are damaged that were acknowledged: nothing is changed then.
    """
    base_offsets = _base_offsets(place)
    state = SegmentState(first_offset, first_offset)
    if not base_offsets:
        return [state]
    if base_offsets[0] != first_offset:
        raise place.damaged(
            f"{place.directory}: the log starts at {base_offsets[0]}, not at {first_offset}"
        )
    segments: list[SegmentState] = []
    for base_offset, next_offset in zip(base_offsets, [*base_offsets[1:], None], strict=True):
        path = segment_path(place.directory, base_offset)
        before = segments[-1] if segments else state
        state = SegmentState(
            base_offset, base_offset, before.last_epoch, before.last_append_time_us
        )
        if next_offset is None:
            segments.append(_recover_last(place, path, state, pool, is_direct))
        else:
            segments.append(
                _recover_finished(place, path, state, pool, is_direct, next_offset=next_offset)
            )
    return segments


def _base_offsets(place: LogPlace) -> list[int]:
    directory = place.directory
    with translated_errors(directory):
        if not directory.exists():
            return []
        names = {path.name for path in directory.iterdir()}
    segments = {name[:-4] for name in names if _SEGMENT_NAME.fullmatch(name)}
    for name in sorted(names):
        if _INDEX_NAME.fullmatch(name) and name[:-4] not in segments:
            raise place.damaged(
                f"{directory / name} has lost its segment, the .log file. Restore it"
            )
    return sorted(map(int, segments))


def _recover_finished(
    place: LogPlace,
    path: Path,
    state: SegmentState,
    pool: BufferPool,
    is_direct: bool,
    *,
    next_offset: int,
) -> SegmentState:
    """A segment that another follows: from its index file, or from a scan that must end there."""
    index_path = path.with_suffix(".idx")
    index = _read_index(index_path)
    with translated_errors(path):
        size_bytes = path.stat().st_size
    if index is not None and (index.end_offset, index.segment_bytes) == (next_offset, size_bytes):
        state.end_offset = index.end_offset
        state.last_epoch = index.last_epoch
        state.last_append_time_us = index.last_append_time_us
        state.largest_timestamp_us = index.largest_timestamp_us
        state.position = index.segment_bytes
        state.entries = index.entries
        return state
    file = DirectFile.open(path, is_direct=is_direct)
    try:
        _scan(file, LogScan(place.topic_id, place.partition, state), pool)
    finally:
        file.close()
    if state.end_offset != next_offset:
        raise place.damaged(
            f"{path} is damaged at byte {state.position}: it ends at offset {state.end_offset}, "
            f"the next segment starts at {next_offset}. Nothing was changed; restore the file"
        )
    with suppress(DiskFullError, StorageFailedError):  # the next start scans again
        write_file_atomically(index_path, encode_index(index_of(state)))
    return state


def _read_index(path: Path) -> SegmentIndex | None:
    with translated_errors(path), suppress(FileNotFoundError, CorruptBatchError):
        return decode_index(path.read_bytes())
    return None


def _recover_last(
    place: LogPlace, path: Path, state: SegmentState, pool: BufferPool, is_direct: bool
) -> SegmentState:
    """The segment that takes writes: scanned whole, then cut behind the last batch of the log.

    An index beside it tells where the log ended at the last clean stop: never before that.
    """
    index = _read_index(path.with_suffix(".idx"))
    file = DirectFile.open(path, is_direct=is_direct, is_writable=True)
    try:
        scan = LogScan(place.topic_id, place.partition, state)
        _scan(file, scan, pool)
        is_damaged, torn_bytes = _look_behind(file, scan, pool)
        if is_damaged or (index is not None and index.end_offset > state.end_offset):
            raise place.damaged(
                f"{path} is damaged at byte {state.position}: offsets from {state.end_offset} on "
                "were acknowledged and are missing. Nothing was changed; restore the file"
            )
        if torn_bytes:
            _log.warning(
                "log.cut", file=str(path), end_offset=state.end_offset, torn_bytes=torn_bytes
            )
        _make_end_clean(file, state, pool)
    finally:
        file.close()
    return state


def _scan(file: DirectFile, scan: LogScan, pool: BufferPool) -> None:
    """Follow the log through a segment; afterwards `scan.state` is at its end."""
    size_bytes = file.size_bytes()
    wanted_bytes = HEADER_BYTES
    while not scan.ended:
        start = scan.state.position
        window_bytes = max(wanted_bytes, SCAN_WINDOW_BYTES)
        with window_at(file, pool, start, window_bytes) as window:
            is_last = start + len(window) >= size_bytes
            wanted_bytes = scan.feed(window, is_last=is_last)


def _look_behind(file: DirectFile, scan: LogScan, pool: BufferPool) -> tuple[bool, int]:
    """Whether what stands behind the log's end proves damage, and how much of it is not zero."""
    position = align_up(scan.state.position, BLOCK_BYTES)
    torn_bytes = 0
    while position < file.size_bytes():
        with window_at(file, pool, position, SCAN_WINDOW_BYTES) as window:
            if proves_damage(scan, window):
                return True, 0
            torn_bytes += int(np.count_nonzero(np.frombuffer(window, np.uint8)))
            position += SCAN_WINDOW_BYTES
    return False, torn_bytes


def _make_end_clean(file: DirectFile, state: SegmentState, pool: BufferPool) -> None:
    """End the log on a block boundary with nothing behind it, durably.

    When a torn write left batches but not its pad, their last block gets one. It is the only time
    that a block is written again: its write was never acknowledged as a whole. The sync is needed
    even when nothing is cut: what a killed broker wrote last need not be on the disk yet.
    """
    block_start = state.position // BLOCK_BYTES * BLOCK_BYTES
    used_bytes = state.position - block_start
    if used_bytes:
        with pool.lend(BLOCK_BYTES) as block:
            file.read(block[:BLOCK_BYTES], block_start)
            block[used_bytes:BLOCK_BYTES] = encode_pad(BLOCK_BYTES - used_bytes)
            file.write(block[:BLOCK_BYTES], block_start)
        state.position = block_start + BLOCK_BYTES
    file.truncate(state.position)
