"""Reads batches back from segment files. Blocks: runs in I/O threads, any number at a time.

What is read for an answer stays where direct I/O has put it: batches are views of the buffer, and
the buffer is pinned until the last of them is gone, when they are sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.wire import HEADER_BYTES, BatchHeader, align_up
from tailrace_broker.codec.batch import StoredBatch, decompress_payload, read_header, verify_batch
from tailrace_broker.codec.records import find_record_of_time
from tailrace_broker.codec.segment import (
    INDEX_INTERVAL_BYTES,
    find_position,
    find_time,
    read_pad,
)
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool, Quota
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES, DirectFile
from tailrace_broker.storage.segments.open_segments import OpenSegments


def read_batches(
    files: OpenSegments,
    path: Path,
    state: SegmentState,
    memory: Quota,
    *,
    offset: int,
    end_offset: int,
    max_bytes: int,
) -> list[StoredBatch]:
    """Batches of one segment from the one that holds `offset`, none at or above `end_offset`.

    Up to `max_bytes`, at least one. Every batch is verified; CorruptBatchError names the place.
    ReadMemoryFullError.
    """
    position = find_position(state.entries, offset - state.base_offset)
    window_bytes = INDEX_INTERVAL_BYTES + max_bytes
    try:
        with files.use(path) as file:
            while True:
                batches, skipped_bytes, wanted_bytes = _take(
                    _pinned_window_at(file, memory, position, window_bytes),
                    offset,
                    end_offset,
                    max_bytes,
                )
                if batches:
                    return batches
                position += skipped_bytes
                window_bytes = max(wanted_bytes, window_bytes)
                if position + wanted_bytes > file.size_bytes():
                    raise CorruptBatchError(f"no batch holds offset {offset}")
    except CorruptBatchError as error:
        # Without the traceback, which would keep the buffer pinned.
        cause = error.with_traceback(None)
        raise CorruptBatchError(f"{path}, from byte {position}: {error}") from cause


def find_offset_of_time(
    files: OpenSegments,
    path: Path,
    state: SegmentState,
    pool: BufferPool,
    *,
    timestamp_us: int,
    end_offset: int,
) -> int | None:
    """The segment's first offset below `end_offset` whose record is of this time or later.

    Reads headers from the index's entry on, then one batch; CorruptBatchError names the place.
    ReadMemoryFullError.
    """
    position = find_time(state.entries, timestamp_us).position
    try:
        with files.use(path) as file:
            header = None
            while header is None:
                with window_at(file, pool, position, INDEX_INTERVAL_BYTES) as window:
                    header, passed_bytes = _pass_earlier(window, timestamp_us, end_offset)
                if header is None and not passed_bytes:
                    raise CorruptBatchError(f"no batch holds a record of {timestamp_us} or later")
                position += passed_bytes
    except CorruptBatchError as error:
        raise CorruptBatchError(f"{path}, from byte {position}: {error}") from error
    if header.largest_timestamp_us < timestamp_us or header.base_offset >= end_offset:
        return None
    offset = header.base_offset
    (batch,) = read_batches(
        files, path, state, pool.read, offset=offset, end_offset=offset + 1, max_bytes=1
    )
    return first_of_time(batch, timestamp_us)


def first_of_time(batch: StoredBatch, timestamp_us: int, *, first_offset: int = 0) -> int | None:
    """Offset of the batch's first record of this time or later, which it has.

    None: it has it below `first_offset` alone.
    """
    columns = decompress_payload(batch.header, batch.contents())
    return find_record_of_time(batch.header, columns, timestamp_us, first_offset=first_offset)


@contextmanager
def window_at(
    file: DirectFile, pool: BufferPool, position: int, size_bytes: int
) -> Iterator[memoryview]:
    """The file's bytes from `position`: at least `size_bytes`, fewer only at the file's end."""
    start, wanted_bytes = _blocks_around(position, size_bytes)
    with pool.lend(wanted_bytes) as buffer:
        read_bytes = file.read(buffer[:wanted_bytes], start)
        yield buffer[position - start : read_bytes]


def _pinned_window_at(
    file: DirectFile, memory: Quota, position: int, size_bytes: int
) -> memoryview:
    """As `window_at`, pinned until the last view of it is gone. ReadMemoryFullError."""
    start, wanted_bytes = _blocks_around(position, size_bytes)
    buffer = memory.pin(wanted_bytes)
    read_bytes = file.read(buffer[:wanted_bytes], start)
    return buffer[position - start : read_bytes]


def _blocks_around(position: int, size_bytes: int) -> tuple[int, int]:
    """Where the first block begins, and the bytes of all."""
    start = position // BLOCK_BYTES * BLOCK_BYTES
    return start, align_up(position - start + size_bytes, BLOCK_BYTES)


def _take(
    window: memoryview, offset: int, end_offset: int, max_bytes: int
) -> tuple[list[StoredBatch], int, int]:
    """Batches that stand whole in `window`, bytes passed, and bytes needed to go on from there."""
    batches: list[StoredBatch] = []
    position = taken_bytes = 0
    while True:
        rest = window[position:]
        pad_bytes = read_pad(rest)
        if pad_bytes:
            position += pad_bytes
            continue
        if len(rest) < HEADER_BYTES:
            return batches, position, HEADER_BYTES
        try:
            header = read_header(rest)
            if header.batch_bytes > len(rest) or (
                batches and taken_bytes + header.batch_bytes > max_bytes
            ):
                return batches, position, header.batch_bytes
            if header.end_offset > offset:
                verify_batch(rest)
                due = batches[-1].header.end_offset if batches else offset
                if header.base_offset > due:  # what is between is lost
                    raise CorruptBatchError(f"no batch holds offset {due}")
        except CorruptBatchError:
            if batches:
                return batches, position, 0  # what stands before the damage is good
            raise
        position += header.batch_bytes
        if header.end_offset > offset:
            batches.append(StoredBatch(header, (rest[: header.batch_bytes],)))
            taken_bytes += header.batch_bytes
            if header.end_offset >= end_offset:
                return batches, position, 0


def _pass_earlier(
    window: memoryview, timestamp_us: int, end_offset: int
) -> tuple[BatchHeader | None, int]:
    """The first header of this time or later, or at the end, and the bytes before it.

    None when `window` has no such header; the bytes may then go beyond it.
    """
    position = 0
    while True:
        rest = window[position:]
        pad_bytes = read_pad(rest)
        if pad_bytes:
            position += pad_bytes
            continue
        if len(rest) < HEADER_BYTES:
            return None, position
        try:
            header = read_header(rest)
        except CorruptBatchError:
            if position:
                return None, position  # the next window starts at the damage, and names its place
            raise
        if header.largest_timestamp_us >= timestamp_us or header.end_offset >= end_offset:
            return header, position
        position += header.batch_bytes
