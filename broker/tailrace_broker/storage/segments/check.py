"""Re-reads a part of a segment and finds what of it is damaged. Blocks: runs in an I/O thread.

Behind a damaged batch whose header is right the next one is known. Behind a damaged header nothing
can be told up to the next entry of the index: readers could not pass it either.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from tailrace.wire import HEADER_BYTES
from tailrace_broker.codec.batch import read_header, verify_batch
from tailrace_broker.codec.segment import IndexEntry, read_pad
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.storage.files.direct_file import DirectFile
from tailrace_broker.storage.segments.reader import window_at


class Place(NamedTuple):
    """Where in a segment a batch or a pad starts, and the offset that is due there."""

    position: int
    offset: int


class SegmentPart(NamedTuple):
    """What of a segment is to be checked: `[start, end)`."""

    path: Path
    start: Place
    end: Place
    entries: Sequence[IndexEntry]
    base_offset: int


class Checked(NamedTuple):
    """What was found up to `end`, where the next check goes on."""

    end: Place
    damages: list[Damage]


def part_from_offset(path: Path, state: SegmentState, offset: int) -> SegmentPart:
    """From where a reader of this offset starts to the end of what is written now."""
    relative_offset = offset - state.base_offset
    count = bisect_right(state.entries, relative_offset, key=attrgetter("relative_offset"))
    start = Place(0, state.base_offset)
    if count:
        entry = state.entries[count - 1]
        start = Place(entry.position, state.base_offset + entry.relative_offset)
    end = Place(state.position, state.end_offset)
    return SegmentPart(path, start, end, state.entries, state.base_offset)


def check_part(part: SegmentPart, pool: BufferPool, *, max_bytes: int, is_direct: bool) -> Checked:
    """Verify the first `max_bytes` of a part, and the batch that goes on there. ReadFailedError."""
    found: list[Damage] = []
    place = part.start
    window_bytes = max_bytes
    file = DirectFile.open(part.path, is_direct=is_direct)
    try:
        while place.position < min(part.end.position, part.start.position + max_bytes):
            with window_at(file, pool, place.position, window_bytes) as window:
                is_cut = len(window) < min(window_bytes, part.end.position - place.position)
                place, wanted_bytes = _check_window(part, window, place, found, is_cut=is_cut)
            window_bytes = max(max_bytes, wanted_bytes)
    finally:
        file.close()
    return Checked(place, found)


def _check_window(
    part: SegmentPart, window: memoryview, start: Place, found: list[Damage], *, is_cut: bool
) -> tuple[Place, int]:
    """The place behind what stands whole in `window`, and how many bytes the next needs there.

    `is_cut`: the file ends too early, with the window.
    """
    place = start
    while place.position < part.end.position:
        rest = window[place.position - start.position :]
        pad_bytes = read_pad(rest)
        if pad_bytes:
            place = Place(place.position + pad_bytes, place.offset)
            continue
        if len(rest) < HEADER_BYTES and not is_cut:
            return place, HEADER_BYTES
        try:
            header = read_header(rest)
            if header.base_offset != place.offset:
                raise CorruptBatchError(f"offset {header.base_offset}, not {place.offset}")
            if header.batch_bytes > len(rest) and not is_cut:
                return place, header.batch_bytes
        except CorruptBatchError:
            behind = _entry_behind(part, place)
            if behind.offset > place.offset:  # else it is a pad that no reader needs
                found.append(Damage(part.path, place.position, place.offset, behind.offset))
            place = behind
            continue
        try:
            verify_batch(rest)
        except CorruptBatchError:
            found.append(Damage(part.path, place.position, place.offset, header.end_offset))
        place = Place(place.position + header.batch_bytes, header.end_offset)
    return place, HEADER_BYTES


def _entry_behind(part: SegmentPart, place: Place) -> Place:
    """Where a reader finds a batch again."""
    index = bisect_right(part.entries, place.position, key=attrgetter("position"))
    if index < len(part.entries) and part.entries[index].position < part.end.position:
        entry = part.entries[index]
        return Place(entry.position, part.base_offset + entry.relative_offset)
    return part.end
