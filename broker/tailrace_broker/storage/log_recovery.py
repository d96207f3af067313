"""Finds where a partition's log ends after any kind of stop, and makes that end clean.

Blocks: runs in an I/O thread before the partition takes anything. The rules are in
`core.recovery`; this reads, cuts and rebuilds index files.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import structlog

from tailrace.wire import HEADER_BYTES, align_up
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.codec.segment import SegmentIndex, decode_index, encode_index, encode_pad
from tailrace_broker.core.journal_replay import JournaledBatch
from tailrace_broker.core.producers import ProducerWindows
from tailrace_broker.core.recovery import (
    LogScan,
    SegmentState,
    durable_end_behind,
    follow_journal,
)
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptMetadataError,
    DiskFullError,
    ReadFailedError,
    StorageFailedError,
)
from tailrace_broker.model.topic import NO_EPOCH
from tailrace_broker.storage.direct_file import (
    BLOCK_BYTES,
    DirectFile,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.log_trim import load_log_start, remove_segments
from tailrace_broker.storage.producer_recovery import ProducerRecovery
from tailrace_broker.storage.segment_reader import window_at
from tailrace_broker.storage.segment_writer import LogPlace, index_of, segment_path

SCAN_WINDOW_BYTES = 1024 * 1024

# Other files in the directory are not ours.
_SEGMENT_NAME = re.compile(r"\d{20}\.log", re.ASCII)
_INDEX_NAME = re.compile(r"\d{20}\.idx", re.ASCII)

_log = structlog.get_logger()


class RecoveredLog(NamedTuple):
    """A partition's segments in order, the last ready for writes; what the journal adds to them."""

    segments: list[SegmentState]
    pending: list[JournaledBatch]
    windows: ProducerWindows | None = None  # None: no producer is known


def recover_log(
    place: LogPlace,
    first_offset: int,
    pool: BufferPool,
    *,
    is_direct: bool,
    journaled: Sequence[JournaledBatch] = (),
    durable_end: int = 0,
    has_segments: bool = False,
    now_us: int = 0,
) -> RecoveredLog:
    """On disk nothing follows the segments afterwards.

    `journaled`: the partition's batches in the journal; `durable_end`: the log reached at least so
    far, as the journal or a clean stop says; `has_segments`: as the inventory says.
    CorruptPartitionError when records are damaged that were acknowledged: nothing is changed then.
    """
    try:
        moved_start = load_log_start(place.directory)
    except CorruptMetadataError as error:
        raise place.damaged(f"{place.directory}: {error.detail}") from error
    start = moved_start or LogStart(first_offset, NO_EPOCH, 0)
    kept, left = _base_offsets(place, start.log_start)
    if has_segments and not kept and moved_start is None:
        raise place.damaged(
            f"{place.directory} has lost its segments: the inventory lists the partition. Nothing "
            "was changed; restore the directory from a copy"
        )
    state = SegmentState(
        start.log_start, start.log_start, start.epoch_before, start.append_time_before_us
    )
    segments = []
    for base_offset, next_offset in zip(kept, [*kept[1:], None], strict=False):
        if base_offset != state.end_offset:
            raise place.damaged(
                f"{place.directory}: no segment holds the offsets from {state.end_offset} to "
                f"{base_offset}. Nothing was changed; restore the file"
            )
        state = SegmentState(base_offset, base_offset, state.last_epoch, state.last_append_time_us)
        if next_offset is not None:
            path = segment_path(place.directory, base_offset)
            _recover_finished(place, path, state, pool, is_direct, next_offset=next_offset)
        segments.append(state)
    has_file = bool(segments)
    segments = segments or [state]
    producers = ProducerRecovery(place.directory, pool, is_direct=is_direct, now_us=now_us)
    producers.begin(segments)
    scan = LogScan(place.topic_id, place.partition, segments[-1], windows=producers.windows)
    pending = _recover_end(place, scan, pool, is_direct, journaled, durable_end, has_file=has_file)
    windows = producers.end(segments, pending)
    with suppress(StorageFailedError):  # the next start tries again
        remove_segments(segment_path(place.directory, base_offset) for base_offset in left)
    return RecoveredLog(segments, pending, windows)


def _base_offsets(place: LogPlace, log_start: int) -> tuple[list[int], list[int]]:
    """Of the segments in order: those from the log start on, and those that retention has left."""
    directory = place.directory
    with translated_errors(directory, ReadFailedError):
        if not directory.exists():
            return [], []
        names = {path.name for path in directory.iterdir()}
    segments = {int(name[:-4]) for name in names if _SEGMENT_NAME.fullmatch(name)}
    indexes = {int(name[:-4]) for name in names if _INDEX_NAME.fullmatch(name)}
    for base_offset in sorted(indexes - segments):
        if base_offset >= log_start:
            path = segment_path(directory, base_offset).with_suffix(".idx")
            raise place.damaged(f"{path} has lost its segment, the .log file. Restore it")
    found = sorted(segments | indexes)
    kept_from = bisect_left(found, log_start)
    return found[kept_from:], found[:kept_from]


def _recover_finished(
    place: LogPlace,
    path: Path,
    state: SegmentState,
    pool: BufferPool,
    is_direct: bool,
    *,
    next_offset: int,
) -> None:
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
        return
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


def _read_index(path: Path) -> SegmentIndex | None:
    with translated_errors(path), suppress(FileNotFoundError, CorruptBatchError):
        return decode_index(path.read_bytes())
    return None


def _recover_end(
    place: LogPlace,
    scan: LogScan,
    pool: BufferPool,
    is_direct: bool,
    journaled: Sequence[JournaledBatch],
    durable_end: int,
    *,
    has_file: bool,
) -> list[JournaledBatch]:
    """Scan the segment that takes writes, follow the journal, then cut behind the last batch."""
    state = scan.state
    path = segment_path(place.directory, state.base_offset)
    file = DirectFile.open(path, is_direct=is_direct) if has_file else None
    try:
        torn_bytes = 0
        if file is not None:
            _scan(file, scan, pool)
            found_end, torn_bytes = _look_behind(file, scan, pool)
            durable_end = max(durable_end, found_end)
        pending, journal_end = follow_journal(state, journaled)
        end_offset = pending[-1].header.end_offset if pending else state.end_offset
        durable_end = max(durable_end, journal_end)
        if durable_end > end_offset:
            raise place.damaged(
                f"{path} is damaged at byte {state.position}: offsets from {end_offset} to "
                f"{durable_end - 1} were acknowledged and are missing. Nothing was changed; "
                "restore the file"
            )
        if torn_bytes:
            _log.warning(
                "log.cut", file=str(path), end_offset=state.end_offset, torn_bytes=torn_bytes
            )
        if file is not None:
            _make_end_clean(file, state, pool)
        return pending
    finally:
        if file is not None:
            file.close()


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


def _look_behind(file: DirectFile, scan: LogScan, pool: BufferPool) -> tuple[int, int]:
    """How far the log was durable by what stands behind its end; how much of that is not zero."""
    position = align_up(scan.state.position, BLOCK_BYTES)
    durable_end = torn_bytes = 0
    while position < file.size_bytes():
        with window_at(file, pool, position, SCAN_WINDOW_BYTES) as window:
            durable_end = max(durable_end, durable_end_behind(scan, window))
            torn_bytes += int(np.count_nonzero(np.frombuffer(window, np.uint8)))
            position += SCAN_WINDOW_BYTES
    return durable_end, torn_bytes


def _make_end_clean(file: DirectFile, state: SegmentState, pool: BufferPool) -> None:
    """End the log on a block boundary with nothing behind it.

    When a torn write left batches but not its pad, their last block gets one. It is the only time
    that a block is written again: its write was never acknowledged as a whole. What a killed broker
    wrote last need not be on the disk yet: who recovers the logs syncs them all at once.
    """
    block_start = state.position // BLOCK_BYTES * BLOCK_BYTES
    used_bytes = state.position - block_start
    if used_bytes:
        with pool.lend(BLOCK_BYTES) as block:
            file.read(block[:BLOCK_BYTES], block_start)
            block[used_bytes:BLOCK_BYTES] = encode_pad(BLOCK_BYTES - used_bytes)
            file.write(block[:BLOCK_BYTES], block_start)
        state.position = block_start + BLOCK_BYTES
    if file.size_bytes() > state.position:
        file.truncate(state.position)
