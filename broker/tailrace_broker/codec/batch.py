"""Batches: compress and checksum columns, stamp the header, verify stored bytes.

The layout is in `tailrace.wire`. Compression and checksum need no header, so they run once, off
the event loop when large; offsets, epochs and times are stamped later without touching them.
"""

import struct
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeVar
from uuid import UUID

import lz4.block
import msgspec
from crc32c import crc32c
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

from tailrace.wire import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_MAGIC,
    FORMAT_VERSION,
    HEADER,
    HEADER_BYTES,
    PRODUCER_ENTRY,
    BatchHeader,
    Codec,
)
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.model.errors import CorruptBatchError

# Below this the header outweighs what compression could save.
COMPRESS_BYTES_MIN = 256
# A compressed payload is kept when it saves this part: 1 byte in 12. Measured on one 2.5 GHz core:
# to write, checksum, send and receive a GiB costs 0.5 CPU s, to inflate a GiB of what LZ4 hardly
# shrinks 0.04 s, which a payload as it is saves every reader. No probe for what does not shrink:
# LZ4 gives up on random bytes at 0.07 s a GiB on its own, zstd at 0.12 s.
SAVED_PART_MIN = 12
# The fastest of zstd's usual levels; on JSON 0.6 of LZ4's bytes for twice its CPU.
ZSTD_LEVEL = 1

T = TypeVar("T")

_CRC_FIELD = slice(8, 12)
_BEFORE_CRC = struct.Struct("<IHH")
_BEHIND_CRC = struct.Struct("<" + HEADER.format.removeprefix("<IHHI"))
assert (_BEFORE_CRC.size, _BEHIND_CRC.size) == (8, HEADER_BYTES - 12)
# A batch up to here is one buffer: to copy it costs less than to handle its parts.
_JOINED_BYTES_MAX = 4096
_NONE = Codec.NONE  # an enum's member costs a dictionary access each time
# No log gets so far. What a header adds to it, fits into 64 bits with a sign.
BASE_OFFSET_MAX = 2**62
_CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
# zstd's contexts that nobody uses; see `_taken`.
_zstd_compressors: list[ZstdCompressor] = []
_zstd_decompressors: list[ZstdDecompressor] = []
_FILL = tuple(bytes(size) for size in range(BATCH_ALIGNMENT_BYTES))


class BatchBody(NamedTuple):
    """A batch without its header: compressed and checksummed, ready for any offset."""

    record_count: int
    flags: int
    codec: Codec
    payload: bytes
    uncompressed_bytes: int
    payload_crc: int
    first_timestamp_us: int
    largest_timestamp_us: int
    producer_table: bytes


class BatchPlace(NamedTuple):
    """Where and when the leader appends a batch: the header's other half."""

    topic_id: UUID
    range_id: int
    partition: int
    epoch: int
    previous_epoch: int
    base_offset: int
    append_time_us: int
    high_watermark: int


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch as it is stored: its header, and all its bytes as buffers one after the other.

    With a producer table these are header, table, payload and fill. Memory has many of them, in no
    cycle: a garbage collector that checks each of them costs as much as to make it.
    """

    header: BatchHeader
    buffers: tuple[bytes | memoryview, ...]

    def contents(self) -> memoryview:
        """All bytes in one; a copy unless they are one buffer."""
        buffers = self.buffers
        return memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))


def compress_columns(
    columns: RecordColumns, producer_table: bytes = b"", codec: Codec = Codec.LZ4
) -> BatchBody:
    """Compress (kept only when it pays) and checksum; once in a batch's life.

    `producer_table`: whole `PRODUCER_ENTRY` records, or empty. Releases the GIL while it works.
    """
    assert len(producer_table) % PRODUCER_ENTRY.size == 0, len(producer_table)
    payload = columns.payload
    if len(payload) < COMPRESS_BYTES_MIN:
        codec = _NONE
    elif codec != _NONE:
        payload = _compressed(payload, codec)
        codec = _NONE if payload is columns.payload else codec
    return BatchBody(  # keywords would cost as much as the checksum of a small payload
        columns.record_count,
        columns.flags,
        codec,
        payload,
        len(columns.payload),
        crc32c(payload, crc32c(producer_table) if producer_table else 0),
        columns.first_timestamp_us,
        columns.largest_timestamp_us,
        producer_table,
    )


def compressed(contents: Iterable[RecordColumns | BatchBody], codec: Codec) -> list[BatchBody]:
    """Compress what is not compressed yet; each with its producer table."""
    return [
        part if isinstance(part, BatchBody) else compress_columns(part, part.producer_table, codec)
        for part in contents
    ]


def stamp_batch(body: BatchBody, place: BatchPlace) -> StoredBatch:
    """Put a body at its offset: the header, and the whole batch as buffers."""
    payload, table = body.payload, body.producer_table
    before, before_crc = _before_crc(body.flags)
    fields = (
        body.payload_crc,
        len(payload),
        body.uncompressed_bytes,
        body.codec,
        body.record_count,
        place.base_offset,
        place.topic_id.bytes,
        place.range_id,
        place.partition,
        len(table),
        place.epoch,
        place.previous_epoch,
        place.append_time_us,
        body.first_timestamp_us,
        body.largest_timestamp_us,
        place.high_watermark,
    )
    behind = _BEHIND_CRC.pack(*fields)
    crc = crc32c(behind, before_crc)
    header = BatchHeader._make((BATCH_MAGIC, FORMAT_VERSION, body.flags, crc, *fields))
    size_bytes = HEADER_BYTES + len(table) + len(payload)
    fill = _FILL[-size_bytes % BATCH_ALIGNMENT_BYTES]
    raw_crc = crc.to_bytes(4, "little")
    if not table and size_bytes <= _JOINED_BYTES_MAX:
        return StoredBatch(header, (b"".join((before, raw_crc, behind, payload, fill)),))
    return StoredBatch(header, (b"".join((before, raw_crc, behind)), table, payload, fill))


@cache
def _before_crc(flags: int) -> tuple[bytes, int]:
    """Return the bytes before a header's checksum, and their checksum: few flags are in use."""
    before = _BEFORE_CRC.pack(BATCH_MAGIC, FORMAT_VERSION, flags)
    return before, crc32c(before)


def stamp_batches(bodies: Iterable[BatchBody], first: BatchPlace) -> list[StoredBatch]:
    """Put bodies at consecutive offsets; `first`: where the first goes."""
    body, *others = bodies
    batches = [stamp_batch(body, first)]
    for body in others:
        base_offset = batches[-1].header.end_offset
        place = first._replace(base_offset=base_offset, previous_epoch=first.epoch)
        batches.append(stamp_batch(body, place))
    return batches


def read_header(stored: memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`, its own checksum verified; CorruptBatchError names what is wrong.

    The payload is not looked at: `verify_batch` does that.
    """
    raw = stored[position : position + HEADER_BYTES]
    if len(raw) < HEADER_BYTES:
        raise CorruptBatchError(f"{len(raw)} bytes at {position}: too short for a batch header")
    header = BatchHeader._make(HEADER.unpack(raw))
    if header.magic != BATCH_MAGIC:
        raise CorruptBatchError(f"no batch at {position}: magic is {header.magic:#010x}")
    if header.header_crc != _header_crc(raw):
        raise CorruptBatchError(f"batch header at {position}: checksum does not match")
    if header.version != FORMAT_VERSION:
        raise CorruptBatchError(f"batch at {position}: version {header.version} is not known")
    if header.codec not in _CODECS or header.record_count < 1:
        raise CorruptBatchError(f"batch at {position}: codec or record count is out of bounds")
    if header.base_offset > BASE_OFFSET_MAX:
        raise CorruptBatchError(
            f"batch at {position}: offset {header.base_offset} is out of bounds"
        )
    if header.producer_table_bytes % PRODUCER_ENTRY.size:
        raise CorruptBatchError(f"batch at {position}: its producer table is none")
    return header


def verify_batch(stored: memoryview, position: int = 0) -> BatchHeader:
    """The header at `position` of a batch that is whole and undamaged, else CorruptBatchError."""
    header = read_header(stored, position)
    end = position + header.batch_bytes
    if end > len(stored):
        raise CorruptBatchError(f"batch at {position}: ends {end - len(stored)} bytes too late")
    body_start = position + HEADER_BYTES
    body_end = body_start + header.producer_table_bytes + header.payload_bytes
    if crc32c(stored[body_start:body_end]) != header.payload_crc:
        raise CorruptBatchError(f"batch at {position}: payload checksum does not match")
    if any(stored[body_end:end]):
        raise CorruptBatchError(f"batch at {position}: fill is not zero")
    return header


def verified_batches(stored: memoryview) -> list[StoredBatch]:
    """Whole batches, back to back, as views of `stored`. CorruptBatchError."""
    batches: list[StoredBatch] = []
    position = 0
    while position < len(stored):
        header = verify_batch(stored, position)
        table_end = position + HEADER_BYTES + header.producer_table_bytes
        end = position + header.batch_bytes
        parts = (position, position + HEADER_BYTES, table_end, end)
        buffers = tuple(stored[start:stop] for start, stop in pairwise(parts))
        batches.append(StoredBatch(header, buffers))
        position = end
    return batches


def decompress_payload(header: BatchHeader, stored: memoryview) -> memoryview:
    """The payload's columns; a view of `stored` when the codec is none. CorruptBatchError."""
    start = HEADER_BYTES + header.producer_table_bytes
    payload = stored[start : start + header.payload_bytes]
    if header.codec == Codec.NONE:
        columns = payload
    else:
        inflate = _inflated_zstd if header.codec == Codec.ZSTD else _inflated_lz4
        try:
            columns = memoryview(inflate(payload, header.uncompressed_bytes))
        except (lz4.block.LZ4BlockError, OverflowError, ZstdError) as error:
            # OverflowError: the size may be over an int.
            name = Codec(header.codec).name
            raise CorruptBatchError(f"{name} fails: {error}") from error
    if len(columns) != header.uncompressed_bytes:
        raise CorruptBatchError(f"{len(columns)} bytes inflated")
    return columns


def _compressed(payload: bytes, codec: Codec) -> bytes:
    """The payload compressed, or itself when that does not pay."""
    if codec == Codec.ZSTD:
        compressor = _taken(_zstd_compressors, _new_zstd_compressor)
        compressed = compressor.compress(payload)
        _zstd_compressors.append(compressor)
    else:
        assert codec == Codec.LZ4, codec
        compressed = lz4.block.compress(payload, store_size=False)
    saved_bytes = len(payload) - len(compressed)
    return compressed if saved_bytes * SAVED_PART_MIN >= len(payload) else payload


def _inflated_lz4(payload: memoryview, size_bytes: int) -> bytes:
    """Decompress one LZ4 block. LZ4BlockError, OverflowError."""
    inflated: bytes = lz4.block.decompress(payload, uncompressed_size=size_bytes)
    return inflated


def _inflated_zstd(payload: memoryview, size_bytes: int) -> bytes:
    """Decompress one frame with nothing behind it; ZstdError: before memory is allocated."""
    stated_bytes = frame_content_size(payload)  # -1: it does not say
    if stated_bytes != size_bytes:
        raise ZstdError(f"a frame that states {stated_bytes} bytes, not {size_bytes}")
    decompressor = _taken(_zstd_decompressors, ZstdDecompressor)
    inflated = decompressor.decompress(payload, allow_extra_data=False)
    _zstd_decompressors.append(decompressor)
    return inflated


def _taken(free: list[T], make: Callable[[], T]) -> T:
    """One that nobody uses: zstd's contexts serve one thread at a time, and to make one costs 8 µs.

    Who took it puts it back; after an error nobody does. There are never more than threads.
    """
    try:
        return free.pop()
    except IndexError:
        return make()


def _new_zstd_compressor() -> ZstdCompressor:
    return ZstdCompressor(level=ZSTD_LEVEL)


def _header_crc(header: bytes | memoryview) -> int:
    """Over all of the header but the checksum itself."""
    return int(crc32c(header[_CRC_FIELD.stop :], crc32c(header[: _CRC_FIELD.start])))
