"""The parts of a segment file beside batches: pad headers; and its sparse index file.

A segment is batches back to back. Each write ends on a block boundary; what is left of its last
block is a pad: `PAD_HEADER` and zeros. A hole (zeros) is thus never taken for padding.

Pad header, 16 bytes, little-endian: magic u32 `TRLP`, pad bytes u32 (this header included),
CRC-32C u32 of the first 8 bytes, zero u32.

Index file, version 3, beside a segment that takes no more writes: header of 60 bytes (magic u32
`TRLI`, version u32, segment bytes u64, end offset i64, last epoch u64, last append time i64 µs,
largest timestamp of the segment i64 µs, entry count u32, epoch count u32, CRC-32C u32 of the 56
bytes before and of all behind it), then entries of 16 bytes, in order: relative offset u32,
position u32, largest timestamp of the segment before that position i64 µs (the smallest i64 at its
start). These never fall, whatever times producers give, so both a find by offset and one by time
are binary searches. Last the epochs of its batches, of 16 bytes, in order: epoch u64, offset i64 of
its first batch in the segment. The first is that of the segment's first batch, even where it goes
on from the segment before.
"""

import struct
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import NamedTuple

from crc32c import crc32c

from tailrace.wire import (
    INDEX_ENTRY,
    INDEX_EPOCH,
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_VERSION,
    PAD_HEADER,
    PAD_MAGIC,
)
from tailrace_broker.model.errors import CorruptBatchError

# One entry a 64 KiB: a find reads at most that much more than it needs (Kafka: 4 KiB).
INDEX_INTERVAL_BYTES = 64 * 1024
# Of no record yet: before all times.
NO_TIMESTAMP_US = -(2**63)


class IndexEntry(NamedTuple):
    """Where a batch starts: offsets relative to the segment's base, position in bytes."""

    relative_offset: int
    position: int
    largest_before_us: int  # of all records of the segment before this batch


class EpochStart(NamedTuple):
    """The first batch of this epoch in a log, or in a part of it, is at `offset`."""

    epoch: int
    offset: int


class SegmentIndex(NamedTuple):
    """What is known of a segment that takes no more writes."""

    segment_bytes: int
    end_offset: int
    last_epoch: int
    last_append_time_us: int
    largest_timestamp_us: int
    entries: list[IndexEntry]
    epochs: list[EpochStart]


def encode_pad(pad_bytes: int) -> bytes:
    """A pad of this size, header included; empty for 0."""
    if pad_bytes == 0:
        return b""
    assert pad_bytes >= PAD_HEADER.size, pad_bytes
    head = struct.pack("<II", PAD_MAGIC, pad_bytes)
    return head + struct.pack("<I", crc32c(head)) + bytes(pad_bytes - 12)


def read_pad(stored: memoryview) -> int:
    """Bytes of the pad that is there, or 0 when none is (but a batch, a hole, damage)."""
    raw = stored[: PAD_HEADER.size]
    if len(raw) < PAD_HEADER.size:
        return 0
    magic, pad_bytes, crc = PAD_HEADER.unpack(raw)
    return pad_bytes if magic == PAD_MAGIC and crc == crc32c(raw[:8]) else 0


def encode_index(index: SegmentIndex) -> bytes:
    """Return the bytes of the index file."""
    *known, entries, epochs = index
    rows = b"".join(
        [
            *(INDEX_ENTRY.pack(*entry) for entry in entries),
            *(INDEX_EPOCH.pack(*start) for start in epochs),
        ]
    )
    head = INDEX_HEADER.pack(INDEX_MAGIC, INDEX_VERSION, *known, len(entries), len(epochs))
    return head + struct.pack("<I", crc32c(rows, crc32c(head))) + rows


def find_position(entries: list[IndexEntry], relative_offset: int) -> int:
    """Return where to start reading to find an offset: the last entry at or below it."""
    index = bisect_right(entries, relative_offset, key=attrgetter("relative_offset")) - 1
    return entries[index].position if index >= 0 else 0


def find_time(entries: list[IndexEntry], timestamp_us: int) -> IndexEntry:
    """Return where to start reading to find the first record of a time or later.

    Behind the next entry there is none that is first.
    """
    index = bisect_left(entries, timestamp_us, key=attrgetter("largest_before_us")) - 1
    return entries[max(index, 0)]


def decode_index(stored: bytes) -> SegmentIndex:
    """Read an index file; CorruptBatchError when it is not whole (it is then rebuilt)."""
    rows_start = INDEX_HEADER.size + 4
    if len(stored) < rows_start:
        raise CorruptBatchError("index file: too short")
    magic, version, *known, count, epoch_count = INDEX_HEADER.unpack_from(stored)
    rows = stored[rows_start:]
    (crc,) = struct.unpack_from("<I", stored, INDEX_HEADER.size)
    entries_bytes, epochs_bytes = count * INDEX_ENTRY.size, epoch_count * INDEX_EPOCH.size
    fits = len(rows) == entries_bytes + epochs_bytes
    if magic != INDEX_MAGIC or version != INDEX_VERSION or not fits:
        raise CorruptBatchError("index file: magic, version or size does not fit")
    if crc != crc32c(rows, crc32c(stored[: INDEX_HEADER.size])):
        raise CorruptBatchError("index file: checksum does not match")
    entries = [IndexEntry._make(row) for row in INDEX_ENTRY.iter_unpack(rows[:entries_bytes])]
    epochs = [EpochStart._make(row) for row in INDEX_EPOCH.iter_unpack(rows[entries_bytes:])]
    return SegmentIndex._make([*known, entries, epochs])
