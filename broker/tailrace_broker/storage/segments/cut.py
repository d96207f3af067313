"""Cuts the segments of a log. Blocks: runs in an I/O thread, by whoever has the turn to write them.

No block that holds what is left is written again: later segments are removed, and an empty one
begins at the cut. The segment before ends where that one begins, whatever stands behind it. A mark,
an empty file that is named by the cut, is there meanwhile: a start finishes what it says.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from tailrace.wire import align_up
from tailrace_broker.codec.segment import encode_index
from tailrace_broker.core.log.epochs import cut_epochs
from tailrace_broker.core.log.recovery import LogScan, SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.errors import DiskFullError, StorageFailedError
from tailrace_broker.model.topic import NO_EPOCH
from tailrace_broker.storage.files.direct_file import (
    BLOCK_BYTES,
    DirectFile,
    sync_directory,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.writes_under_way import writing
from tailrace_broker.storage.segments.open_segments import OpenSegments
from tailrace_broker.storage.segments.scan import scan_segment
from tailrace_broker.storage.segments.writer import LogPlace, index_of, segment_path

MARK_SUFFIX = ".cut"
MARK_NAME = re.compile(r"\d{20}\.cut", re.ASCII)
FILE_NAME = re.compile(r"\d{20}\.(log|idx)", re.ASCII)


def state_before(
    place: LogPlace,
    segments: Sequence[SegmentState],
    files: OpenSegments,
    pool: BufferPool,
    end_offset: int,
) -> SegmentState | None:
    """Return the segment that holds what is before `end_offset`, as if it ended there.

    None: no batch of it ends there. Reads from the index entry before. ReadFailedError.
    """
    state = segments[_count_below(segments, end_offset) - 1]
    if state.end_offset == end_offset:
        return state
    relative_offset = end_offset - state.base_offset
    count = bisect_left(state.entries, relative_offset, key=attrgetter("relative_offset"))
    if not count:
        return None
    entry = state.entries[count - 1]
    offset = state.base_offset + entry.relative_offset
    before = cut_epochs(state.epochs, offset)
    cut = SegmentState(
        state.base_offset,
        offset,
        last_epoch=before[-1].epoch if before else NO_EPOCH,
        largest_timestamp_us=entry.largest_before_us,
        position=entry.position,
        entries=state.entries[:count],
        epochs=cut_epochs(state.epochs, end_offset),
        is_behind_damage=True,  # the epoch of the batch before is not in the index
        high_watermark=min(state.high_watermark, end_offset),
    )
    scan = LogScan(place.topic_id, place.partition, cut, limit=end_offset)
    with files.use(segment_path(place.directory, state.base_offset)) as file:
        scan_segment(file, scan, pool)
    return cut if cut.end_offset == end_offset else None


def cut_segments(
    place: LogPlace,
    segments: list[SegmentState],
    files: OpenSegments,
    inventory: Inventory,
    pool: BufferPool,
    start: SegmentState,
    end_offset: int,
    *,
    is_direct: bool,
) -> None:
    """End the log at `end_offset`, which is within its segments; durable on return.

    `start`: the log when nothing is left of it. After an error it may be repeated; `segments` are
    then what a start finds, or less. DiskFullError, StorageFailedError, ReadFailedError.
    """
    count = _count_below(segments, end_offset)
    later = [segment_path(place.directory, state.base_offset) for state in segments[count:]]
    if not count:
        inventory.cut_segments(place.topic_id, place.partition, None)
        segments[:] = [start]
        files.forget(*later)
        remove_from(place.directory, end_offset, is_direct=is_direct)
        return
    cut = state_before(place, segments, files, pool, end_offset)
    assert cut is not None
    path = segment_path(place.directory, cut.base_offset)
    with files.use(path) as file:
        file.flush()  # nothing is missing before the segment that follows
    inventory.cut_segments(place.topic_id, place.partition, cut.base_offset)
    if cut is not segments[count - 1]:  # its index has batches that go
        with translated_errors(path), writing():
            path.with_suffix(".idx").unlink(missing_ok=True)
    segments[count - 1 :] = [cut, cut.follow_on(end_offset)]
    files.forget(*later, segment_path(place.directory, end_offset))
    remove_from(place.directory, end_offset, is_direct=is_direct)
    inventory.add_segments([(place.topic_id, place.partition, end_offset)])
    with suppress(DiskFullError, StorageFailedError):  # they save time and space
        write_file_atomically(path.with_suffix(".idx"), encode_index(index_of(cut)))
        with files.use(path) as file:
            file.truncate(align_up(cut.position, BLOCK_BYTES))


def remove_from(directory: Path, end_offset: int, *, is_direct: bool) -> None:
    """Remove the segments from this offset on, and begin an empty one if there are others.

    Durable on return. The mark comes first: what an earlier cut has left behind the end of a
    segment would be the log's again when the segment behind it is gone, and a start only saw that.
    """
    with translated_errors(directory), writing():
        segment_path(directory, end_offset).with_suffix(MARK_SUFFIX).touch()
    finish_cut(directory, end_offset, is_direct=is_direct)


def unfinished_cut(names: Iterable[str]) -> int | None:
    """Where a log is to end that was being cut, by the names in its directory; None: it was not."""
    return min((int(name[:-4]) for name in names if MARK_NAME.fullmatch(name)), default=None)


def finish_cut(directory: Path, end_offset: int, *, is_direct: bool) -> None:
    """Do what the mark at this offset says, whatever of it is done; then remove the mark.

    Durable first: a killed process may have made the mark alone.
    """
    with translated_errors(directory), writing():
        sync_directory(directory)
        names = sorted(path.name for path in directory.iterdir())
        for name in names:
            if FILE_NAME.fullmatch(name) and int(name[:-4]) >= end_offset:
                (directory / name).unlink()
        sync_directory(directory)
    if any(FILE_NAME.fullmatch(name) and int(name[:-4]) < end_offset for name in names):
        DirectFile.create(segment_path(directory, end_offset), is_direct=is_direct).close()
    with translated_errors(directory), writing():
        for name in names:
            if MARK_NAME.fullmatch(name):
                (directory / name).unlink()
        sync_directory(directory)


def _count_below(segments: Sequence[SegmentState], offset: int) -> int:
    """How many segments begin below."""
    return bisect_left(segments, offset, key=attrgetter("base_offset"))
