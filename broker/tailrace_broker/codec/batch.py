"""Batches: compress and checksum columns, stamp the header, verify stored bytes.

The layout is in `tailrace.wire`. Compression and checksum need no header, so they run once, off
the event loop when large; offsets, epochs and times are stamped later without touching them.
"""

from typing import NamedTuple
from uuid import UUID

import lz4.block
from crc32c import crc32c

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

_CRC_FIELD = slice(8, 12)
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


class StoredBatch(NamedTuple):
    """A batch as it is stored: its header, and all its bytes as buffers one after the other."""

    header: BatchHeader
    buffers: tuple[bytes, ...]


def compress_columns(columns: RecordColumns, producer_table: bytes = b"") -> BatchBody:
    """Compress (LZ4, kept only when smaller) and checksum; once in a batch's life.

    `producer_table`: whole `PRODUCER_ENTRY` records, or empty. Releases the GIL while it works.
    """
    assert len(producer_table) % PRODUCER_ENTRY.size == 0, len(producer_table)
    codec, payload = Codec.NONE, columns.payload
    if len(payload) >= COMPRESS_BYTES_MIN:
        compressed = lz4.block.compress(payload, store_size=False)
        if len(compressed) < len(payload):
            codec, payload = Codec.LZ4, compressed
    return BatchBody(
        record_count=columns.record_count,
        flags=columns.flags,
        codec=codec,
        payload=payload,
        uncompressed_bytes=len(columns.payload),
        payload_crc=crc32c(payload, crc32c(producer_table)),
        first_timestamp_us=columns.first_timestamp_us,
        largest_timestamp_us=columns.largest_timestamp_us,
        producer_table=producer_table,
    )


def encode_header(body: BatchBody, place: BatchPlace) -> bytes:
    """The 128 bytes that put a body at its offset."""
    header = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        header,
        0,
        BATCH_MAGIC,
        FORMAT_VERSION,
        body.flags,
        0,
        body.payload_crc,
        len(body.payload),
        body.uncompressed_bytes,
        body.codec,
        body.record_count,
        place.base_offset,
        place.topic_id.bytes,
        place.range_id,
        place.partition,
        len(body.producer_table),
        place.epoch,
        place.previous_epoch,
        place.append_time_us,
        body.first_timestamp_us,
        body.largest_timestamp_us,
        place.high_watermark,
    )
    header[_CRC_FIELD] = _header_crc(header).to_bytes(4, "little")
    return bytes(header)


def batch_parts(body: BatchBody, place: BatchPlace) -> tuple[bytes, ...]:
    """The whole batch as buffers to be written or sent one after the other."""
    size_bytes = HEADER_BYTES + len(body.producer_table) + len(body.payload)
    fill = _FILL[-size_bytes % BATCH_ALIGNMENT_BYTES]
    return encode_header(body, place), body.producer_table, body.payload, fill


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
    if header.codec not in (Codec.NONE, Codec.LZ4) or header.record_count < 1:
        raise CorruptBatchError(f"batch at {position}: codec or record count is out of bounds")
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


def decompress_payload(header: BatchHeader, stored: memoryview, position: int = 0) -> memoryview:
    """The payload's columns; a view of `stored` when the codec is none. CorruptBatchError."""
    start = position + HEADER_BYTES + header.producer_table_bytes
    payload = stored[start : start + header.payload_bytes]
    if header.codec == Codec.NONE:
        columns = payload
    else:
        try:
            inflated = lz4.block.decompress(payload, uncompressed_size=header.uncompressed_bytes)
        except (lz4.block.LZ4BlockError, OverflowError) as error:  # the size may be over an int
            raise CorruptBatchError(f"batch at {position}: LZ4 fails: {error}") from error
        columns = memoryview(inflated)
    if len(columns) != header.uncompressed_bytes:
        raise CorruptBatchError(f"batch at {position}: {len(columns)} bytes inflated")
    return columns


def _header_crc(header: bytearray | memoryview) -> int:
    """Over all of the header but the checksum itself."""
    return int(crc32c(header[_CRC_FIELD.stop :], crc32c(header[: _CRC_FIELD.start])))
