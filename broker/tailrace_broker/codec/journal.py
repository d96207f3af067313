"""Journal files: small appends of all partitions, in the order in which they were written.

A file is blocks of 4 KiB, zero-written once and then used in rounds. Its first block starts with
the file header; frames follow, each from a block's start, what is left of its last block is zeros.

File header, 40 bytes, little-endian: magic u32 `TRLK`, version u16, 2 zero bytes, CRC-32C u32 of
all else of it, boot u32 (grows with each start that writes here), journal id u64, sequence u64 of
the first frame of this round, size u64 of the file: one that is shorter has been cut.

Frame: a header of 48 bytes and entries, each a whole batch (`tailrace.wire`) or a cut, of any
partitions. Header: magic u32 `TRLJ`, version u16, 2 zero bytes, CRC-32C u32 of all else of it,
frame bytes u32 (this header included), journal id u64, sequence u64 (grows by one with each frame),
durable sequence u64 (all frames below it were durable when this was written), entry count u32,
4 zero bytes.

Cut, 48 bytes: magic u32 `TRLC`, CRC-32C u32 of the 40 bytes behind it, topic id 16 B, partition
u32, 4 zero bytes, end offset i64, 8 zero bytes. Of this partition's batches in earlier frames those
that end above the end offset are in its log no more.

The journal id is random and sent to nobody, so that no event's value can pass for a frame. A frame
of an older round has a sequence below the file's first, and is not looked at.
"""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from tailrace.wire import (
    JOURNAL_BLOCK_BYTES,
    JOURNAL_CUT,
    JOURNAL_CUT_MAGIC,
    JOURNAL_FILE_HEADER,
    JOURNAL_FILE_MAGIC,
    JOURNAL_FRAME_HEADER,
    JOURNAL_FRAME_MAGIC,
    JOURNAL_VERSION,
    BatchHeader,
    align_up,
)
from tailrace_broker.codec.batch import read_header, verify_batch
from tailrace_broker.model.errors import CorruptBatchError

FRAME_HEADER_BYTES = JOURNAL_FRAME_HEADER.size
_CRC_FIELD = slice(8, 12)
_CUT_BYTES_BEFORE_CRC_END = 8


class JournalFileHeader(NamedTuple):
    """What a file's first block says."""

    boot: int
    journal_id: int
    first_sequence: int
    size_bytes: int


class JournalCut(NamedTuple):
    """A log was cut: of what was journaled before, nothing above `end_offset` is in it any more."""

    topic_id: bytes
    partition: int
    end_offset: int

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """The entry's bytes, as a batch has them."""
        return (encode_cut(self),)


class JournalFrame(NamedTuple):
    """A frame as it was read; `batches` are whole, of `damaged` only the headers are.

    A frame has either batches of a log or a cut of it. `is_broken_off`: behind these the head of an
    entry is damaged, and nobody can say what follows. `is_walked`: its own header is damaged, and
    its entries were read by theirs.
    """

    sequence: int
    durable_sequence: int
    batches: list[tuple[BatchHeader, memoryview]]
    damaged: list[BatchHeader]
    is_broken_off: bool = False
    is_walked: bool = False
    position: int = 0
    size_bytes: int = 0
    cuts: tuple[JournalCut, ...] = ()


def encode_file_header(header: JournalFileHeader) -> bytes:
    """The 40 bytes that begin a round of a file."""
    return _with_crc(
        JOURNAL_FILE_HEADER.pack(JOURNAL_FILE_MAGIC, JOURNAL_VERSION, 0, *header),
    )


def read_file_header(stored: memoryview) -> JournalFileHeader | None:
    """None when it is not whole: never written, or damaged."""
    raw = stored[: JOURNAL_FILE_HEADER.size]
    if len(raw) < JOURNAL_FILE_HEADER.size:
        return None
    magic, version, crc, *known = JOURNAL_FILE_HEADER.unpack(raw)
    is_whole = (magic, version, crc) == (JOURNAL_FILE_MAGIC, JOURNAL_VERSION, _crc(raw))
    return JournalFileHeader._make(known) if is_whole else None


def encode_cut(cut: JournalCut) -> bytes:
    """The 48 bytes of a cut in a frame."""
    raw = JOURNAL_CUT.pack(JOURNAL_CUT_MAGIC, 0, *cut)
    return raw[:4] + _cut_crc(raw).to_bytes(4, "little") + raw[_CUT_BYTES_BEFORE_CRC_END:]


def read_cut(stored: memoryview) -> JournalCut | None:
    """The cut that `stored` begins with; None: it begins with none that is whole."""
    raw = stored[: JOURNAL_CUT.size]
    if len(raw) < JOURNAL_CUT.size:
        return None
    magic, crc, *known = JOURNAL_CUT.unpack(raw)
    return JournalCut._make(known) if (magic, crc) == (JOURNAL_CUT_MAGIC, _cut_crc(raw)) else None


def encode_frame_header(
    *, frame_bytes: int, journal_id: int, sequence: int, durable_sequence: int, entry_count: int
) -> bytes:
    """The 48 bytes before the entries of a frame."""
    return _with_crc(
        JOURNAL_FRAME_HEADER.pack(
            JOURNAL_FRAME_MAGIC, JOURNAL_VERSION, 0,
            frame_bytes, journal_id, sequence, durable_sequence, entry_count,
        )
    )  # fmt: skip


def read_frames(stored: memoryview, journal_id: int, first_sequence: int) -> list[JournalFrame]:
    """The frames of a file's present round, in order; what is damaged as a whole is left out.

    Of a frame whose header alone is damaged the entries are read by their own heads. `stored`:
    the whole file. The batches are views of it, verified.
    """
    frames: list[JournalFrame] = []
    end, expected = JOURNAL_BLOCK_BYTES, first_sequence
    whole_blocks = stored[: len(stored) // JOURNAL_BLOCK_BYTES * JOURNAL_BLOCK_BYTES]
    magics = np.frombuffer(whole_blocks, "<u4")[:: JOURNAL_BLOCK_BYTES // 4]
    ids = np.frombuffer(whole_blocks, "<u8")[2 :: JOURNAL_BLOCK_BYTES // 8]
    is_frame = (magics == JOURNAL_FRAME_MAGIC) | (ids == np.uint64(journal_id))
    for block in np.flatnonzero(is_frame).tolist():
        position = block * JOURNAL_BLOCK_BYTES
        if position < end:
            continue
        parsed = _read_frame(stored[position:], journal_id, expected)
        if parsed is None and position == end:
            parsed = _walk_frame(stored[position:], journal_id, expected)
        if parsed is not None:
            frame, frame_bytes = parsed
            frames.append(frame._replace(position=position, size_bytes=frame_bytes))
            end = position + align_up(frame_bytes, JOURNAL_BLOCK_BYTES)
            expected = frame.sequence + 1
    return frames


def first_frame_id(stored: memoryview) -> int | None:
    """The journal's id by a file's first frame; None: it has none, or its header is damaged."""
    raw = stored[JOURNAL_BLOCK_BYTES:][:FRAME_HEADER_BYTES]
    if len(raw) < FRAME_HEADER_BYTES:
        return None
    magic, version, crc, _, journal_id, *_ = JOURNAL_FRAME_HEADER.unpack(raw)
    is_whole = (magic, version, crc) == (JOURNAL_FRAME_MAGIC, JOURNAL_VERSION, _crc(raw))
    return int(journal_id) if is_whole else None


def has_traces(stored: memoryview, journal_id: int, sequence: int) -> bool:
    """Return whether a file shows a frame of this sequence that cannot be read: torn, or damaged.

    Two of magic, journal id and sequence are right, and the header as a whole is not; or it is.
    """
    words = np.frombuffer(stored[: len(stored) // JOURNAL_BLOCK_BYTES * JOURNAL_BLOCK_BYTES], "<u8")
    blocks = words.reshape(-1, JOURNAL_BLOCK_BYTES // words.itemsize)
    right = (
        ((blocks[:, 0] & 0xFFFF_FFFF) == JOURNAL_FRAME_MAGIC).astype(np.int8)
        + (blocks[:, 2] == np.uint64(journal_id))
        + (blocks[:, 3] == np.uint64(sequence))
    )
    for block in np.flatnonzero(right >= 2).tolist():
        raw = stored[block * JOURNAL_BLOCK_BYTES :][:FRAME_HEADER_BYTES]
        _, version, crc, _, _, found, *_ = JOURNAL_FRAME_HEADER.unpack(raw)
        if (version, crc) != (JOURNAL_VERSION, _crc(raw)) or found == sequence:
            return True
    return False


def _read_frame(
    stored: memoryview, journal_id: int, expected_sequence: int
) -> tuple[JournalFrame, int] | None:
    """Return the frame and its size; None: not of this round, or its entries are unreadable."""
    raw = stored[:FRAME_HEADER_BYTES]
    magic, version, crc, frame_bytes, found_id, sequence, durable_sequence, count = (
        JOURNAL_FRAME_HEADER.unpack(raw)
    )
    known = JOURNAL_FRAME_MAGIC, JOURNAL_VERSION, journal_id, _crc(raw)
    if (magic, version, found_id, crc) != known:
        return None
    if sequence < expected_sequence or frame_bytes > len(stored):
        return None
    frame = JournalFrame(sequence, durable_sequence, [], [])
    cuts: list[JournalCut] = []
    position = FRAME_HEADER_BYTES
    try:
        for _ in range(count):
            position += _take_entry(frame, cuts, stored[position:frame_bytes])
    except CorruptBatchError:
        return frame._replace(is_broken_off=True, cuts=tuple(cuts)), frame_bytes
    frame = frame._replace(cuts=tuple(cuts))
    return (frame, frame_bytes) if position == frame_bytes else None


def _walk_frame(
    stored: memoryview, journal_id: int, expected_sequence: int
) -> tuple[JournalFrame, int] | None:
    """The frame of this sequence and its size, whose header alone is damaged.

    `stored` begins where the frame before ends, so no event's value is there. Two of magic,
    journal id and sequence say that it is of this round; zeros up to the next block, that no entry
    of it is missing.
    """
    raw = stored[:FRAME_HEADER_BYTES]
    magic, _, crc, _, found_id, sequence, _, _ = JOURNAL_FRAME_HEADER.unpack(raw)
    found = magic == JOURNAL_FRAME_MAGIC, found_id == journal_id, sequence == expected_sequence
    if sum(found) < len(found) - 1 or crc == _crc(raw):
        return None
    frame = JournalFrame(expected_sequence, 0, [], [], is_walked=True)
    cuts: list[JournalCut] = []
    position = FRAME_HEADER_BYTES
    with suppress(CorruptBatchError):
        while position % JOURNAL_BLOCK_BYTES:
            position += _take_entry(frame, cuts, stored[position:])
    frame = frame._replace(cuts=tuple(cuts))
    rest = stored[position : align_up(position, JOURNAL_BLOCK_BYTES)]
    is_whole = position <= len(stored) and not any(rest)
    return (frame, position) if is_whole and position > FRAME_HEADER_BYTES else None


def _take_entry(frame: JournalFrame, cuts: list[JournalCut], stored: memoryview) -> int:
    """Add the entry that `stored` begins with, and return its size. CorruptBatchError: its head is
    damaged.
    """
    cut = read_cut(stored)
    if cut is not None:
        cuts.append(cut)
        return JOURNAL_CUT.size
    header = read_header(stored)
    try:
        verify_batch(stored)
        frame.batches.append((header, stored[: header.batch_bytes]))
    except CorruptBatchError:
        frame.damaged.append(header)
    return header.batch_bytes


def _with_crc(raw: bytes) -> bytes:
    crc = _crc(raw).to_bytes(4, "little")
    return raw[: _CRC_FIELD.start] + crc + raw[_CRC_FIELD.stop :]


def _cut_crc(raw: bytes | memoryview) -> int:
    return int(crc32c(raw[_CUT_BYTES_BEFORE_CRC_END:]))


def _crc(raw: bytes | memoryview) -> int:
    """Over all of a header but the checksum itself."""
    return int(crc32c(raw[_CRC_FIELD.stop :], crc32c(raw[: _CRC_FIELD.start])))
