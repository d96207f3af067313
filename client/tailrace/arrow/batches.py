"""Batches, as a binary read answers them, to Arrow record batches (layout: `tailrace.wire`).

Owns the reader's half of the batch format: everything that a checksum, a size or an offset can show
is checked before a value is handed out. No loop over records; an uncompressed payload is used in
place, a compressed one is inflated once. Needs pyarrow, numpy and crc32c (extra `arrow`).

Columns, named and typed as those of Spark's Kafka source:

| column        | Arrow type                                        | meaning                      |
|---------------|---------------------------------------------------|------------------------------|
| key           | binary                                            | null: no key                 |
| value         | binary                                            |                              |
| topic         | string                                            |                              |
| partition     | int32                                             |                              |
| offset        | int64                                             |                              |
| timestamp     | timestamp[us, tz=UTC]                             |                              |
| timestampType | int32                                             | 0: producer's, 1: broker's   |
| headers       | list<element: struct<key: string, value: binary>> | when asked for; null: none   |
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from tailrace.errors import CorruptBatchError
from tailrace.wire import (
    BATCH_MAGIC,
    COLUMN_ALIGNMENT_BYTES,
    FORMAT_VERSION,
    HEADER,
    HEADER_BYTES,
    PRODUCER_ENTRY,
    BatchHeader,
    Codec,
    Flag,
    align_up,
)

_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", _HEADERS_TYPE))

# Joined batches stay far below the 2 GiB that i32 offsets can address, however long the values.
COALESCED_BYTES_MAX = 16 * 1024 * 1024

_INFLATERS = {Codec.LZ4: pa.Codec("lz4_raw"), Codec.ZSTD: pa.Codec("zstd")}
_FLAGS_KNOWN = sum(Flag)  # an int: ~ of a Flag forgets the bits that have no name
_INT32 = struct.Struct("<i")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class StoredBatch(NamedTuple):
    """A batch whose checksums, sizes and fill are right; its columns are not looked at yet."""

    header: BatchHeader
    payload: pa.Buffer


def decode_batches(
    answer: bytes,
    *,
    topic: str,
    start: int,
    end: int | None = None,
    include_headers: bool = False,
) -> Iterator[pa.RecordBatch]:
    """One record batch per batch, of the records with offset in [start, end); None: no end.

    `answer` is the whole answer to a binary read from `start`: empty, or batches back to back of
    which the first covers `start`. CorruptBatchError when a batch is damaged or cut short, or
    when an offset is missing between two.
    """
    expected_offset = None
    for batch in split_batches(answer):
        base_offset, end_offset = batch.header.base_offset, batch.header.end_offset
        if expected_offset is None and not base_offset <= start < end_offset:
            raise CorruptBatchError(f"batch [{base_offset}, {end_offset}) does not cover {start}")
        if expected_offset not in (None, base_offset):
            raise CorruptBatchError(f"offset {expected_offset} is missing before {base_offset}")
        expected_offset = end_offset
        first = max(start, base_offset)
        last = end_offset if end is None else min(end, end_offset)
        if first < last:
            decoded = _decode(batch, topic=topic, include_headers=include_headers)
            yield decoded.slice(first - base_offset, last - first)


def coalesce(batches: Iterable[pa.RecordBatch], *, rows: int) -> Iterator[pa.RecordBatch]:
    """Cut and join to record batches of `rows` rows; the last, and those of long values, of fewer.

    Copies only what it joins: at most `COALESCED_BYTES_MAX` and one more batch.
    """
    assert rows >= 1, rows
    pending: list[pa.RecordBatch] = []
    pending_rows = pending_bytes = 0
    for batch in batches:
        position = 0
        while position < batch.num_rows:
            piece = batch.slice(position, rows - pending_rows)
            position += piece.num_rows
            pending.append(piece)
            pending_rows += piece.num_rows
            pending_bytes += piece.nbytes
            if pending_rows >= rows or pending_bytes >= COALESCED_BYTES_MAX:
                yield _join(pending)
                pending, pending_rows, pending_bytes = [], 0, 0
    if pending:
        yield _join(pending)


def split_batches(answer: bytes) -> Iterator[StoredBatch]:
    """The batches of an answer, each verified; CorruptBatchError names the byte where one fails."""
    view = memoryview(answer)
    buffer = pa.py_buffer(answer)
    position = 0
    while position < len(view):
        header = _verify_header(view, position)
        end = position + header.batch_bytes
        if end > len(view):
            raise CorruptBatchError(
                f"batch at byte {position}: {end - len(view)} bytes are missing"
            )
        body_start = position + HEADER_BYTES
        payload_start = body_start + header.producer_table_bytes
        payload_end = payload_start + header.payload_bytes
        if crc32c(view[body_start:payload_end]) != header.payload_crc:
            raise CorruptBatchError(f"batch at byte {position}: payload checksum does not match")
        if any(view[payload_end:end]):
            raise CorruptBatchError(f"batch at byte {position}: fill is not zero")
        yield StoredBatch(header, buffer.slice(payload_start, header.payload_bytes))
        position = end


def _verify_header(view: memoryview, position: int) -> BatchHeader:
    """The header at `position`, its checksum and every bound that it alone proves checked."""
    raw = view[position : position + HEADER_BYTES]
    if len(raw) < HEADER_BYTES:
        raise CorruptBatchError(f"batch at byte {position}: the header is cut short")
    header = BatchHeader._make(HEADER.unpack(raw))
    if header.magic != BATCH_MAGIC:
        raise CorruptBatchError(f"no batch at byte {position}: magic is {header.magic:#010x}")
    if header.header_crc != crc32c(raw[12:], crc32c(raw[:8])):
        raise CorruptBatchError(f"batch at byte {position}: header checksum does not match")
    if header.version != FORMAT_VERSION or header.flags & ~_FLAGS_KNOWN:
        raise CorruptBatchError(
            f"batch at byte {position}: version {header.version}, flags {header.flags:#x} "
            "need a newer client"
        )
    in_bounds = (
        header.record_count >= 1
        and 0 <= header.base_offset <= _INT64_MAX - header.record_count
        and header.partition <= _INT32_MAX
        and header.producer_table_bytes % PRODUCER_ENTRY.size == 0
    )
    if not in_bounds:
        raise CorruptBatchError(f"batch at byte {position}: a header field is out of bounds")
    return header


def _decode(batch: StoredBatch, *, topic: str, include_headers: bool) -> pa.RecordBatch:
    """All records of a batch in `SCHEMA` or `SCHEMA_WITH_HEADERS`. CorruptBatchError."""
    header, flags = batch.header, Flag(batch.header.flags)
    count = header.record_count
    columns = _Columns(_inflate(batch))
    value_offsets = columns.take_offsets(count)
    key_offsets = columns.take_offsets(count)
    timestamps = columns.take(8 * count)
    value_validity = columns.take_bitmap(count) if Flag.NULL_VALUES in flags else None
    key_validity = columns.take_bitmap(count) if Flag.NULL_KEYS in flags else None
    header_offsets = _take_header_offsets(columns, count) if Flag.HEADERS in flags else None
    values = columns.take(value_offsets.end)
    keys = columns.take(key_offsets.end)
    headers = _take_headers(columns, count, header_offsets) if header_offsets else None
    columns.expect_end()
    arrays = [
        _array(pa.binary(), count, [key_validity, key_offsets.buffer, keys]),
        _array(pa.binary(), count, [value_validity, value_offsets.buffer, values]),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(header.partition, pa.int32()), count),
        pa.array(np.arange(header.base_offset, header.end_offset, dtype=np.int64)),
        _array(pa.timestamp("us", tz="UTC"), count, [None, timestamps]),
        pa.repeat(pa.scalar(int(Flag.BROKER_TIMESTAMPS in flags), pa.int32()), count),
    ]
    if not include_headers:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    arrays.append(pa.nulls(count, _HEADERS_TYPE) if headers is None else headers)
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITH_HEADERS)


class _Offsets(NamedTuple):
    """Where each entry of a column starts, i32[n + 1], and where the last one ends."""

    buffer: pa.Buffer
    end: int


class _HeaderOffsets(NamedTuple):
    """The three offset columns of record headers."""

    lists: _Offsets
    keys: _Offsets
    values: _Offsets


class _Columns:
    """Takes column after column off a payload; each is zero filled to a multiple of 8 bytes."""

    def __init__(self, payload: pa.Buffer) -> None:
        self._payload = payload
        self._position = 0

    def take(self, size_bytes: int) -> pa.Buffer:
        """The next column, in place."""
        start = self._position
        self._position += align_up(size_bytes, COLUMN_ALIGNMENT_BYTES)
        if self._position > self._payload.size:
            raise CorruptBatchError(f"a column of {size_bytes} bytes ends after its payload")
        return self._payload.slice(start, size_bytes)

    def take_offsets(self, count: int) -> _Offsets:
        """Offsets of `count` entries; `_array` checks those between the first and the last."""
        buffer = self.take(4 * (count + 1))
        (first,) = _INT32.unpack_from(buffer, 0)
        (end,) = _INT32.unpack_from(buffer, 4 * count)
        if first != 0 or end < 0:
            raise CorruptBatchError(f"offsets of a column go from {first} to {end}")
        return _Offsets(buffer, end)

    def take_bitmap(self, count: int) -> pa.Buffer:
        """One bit an entry."""
        return self.take(-(-count // 8))

    def expect_end(self) -> None:
        """Raise unless every byte was taken."""
        if self._position != self._payload.size:
            raise CorruptBatchError(f"columns of {self._position} bytes in {self._payload.size}")


def _take_header_offsets(columns: _Columns, count: int) -> _HeaderOffsets:
    lists = columns.take_offsets(count)
    return _HeaderOffsets(lists, columns.take_offsets(lists.end), columns.take_offsets(lists.end))


def _take_headers(columns: _Columns, count: int, offsets: _HeaderOffsets) -> pa.Array:
    """The headers of `count` records; a record without any gets null, as in Kafka's source."""
    entry_count = offsets.lists.end
    keys = _array(
        pa.string(), entry_count, [None, offsets.keys.buffer, columns.take(offsets.keys.end)]
    )
    values = _array(
        pa.binary(), entry_count, [None, offsets.values.buffer, columns.take(offsets.values.end)]
    )
    ends = np.frombuffer(offsets.lists.buffer, "<i4")
    validity = pa.py_buffer(np.packbits(ends[1:] > ends[:-1], bitorder="little"))
    entries = pa.StructArray.from_arrays([keys, values], type=_HEADERS_TYPE.value_type)
    return _array(_HEADERS_TYPE, count, [validity, offsets.lists.buffer], children=[entries])


def _array(
    arrow_type: pa.DataType,
    count: int,
    buffers: list[pa.Buffer | None],
    children: list[pa.Array] | None = None,
) -> pa.Array:
    """An array over `buffers`: offsets monotonic and inside, strings UTF-8. CorruptBatchError."""
    try:
        array = pa.Array.from_buffers(arrow_type, count, buffers, children=children)
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptBatchError(f"a {arrow_type} column: {error}") from error
    return array


def _inflate(batch: StoredBatch) -> pa.Buffer:
    """The columns of a payload, of exactly the size that the header has. CorruptBatchError.

    A block that inflates to less is not noticed, since pyarrow does not say so; behind two right
    checksums that takes a faulty writer, not damage.
    """
    header = batch.header
    if header.codec == Codec.NONE:
        if header.payload_bytes != header.uncompressed_bytes:
            raise CorruptBatchError(
                f"{header.payload_bytes} bytes, not {header.uncompressed_bytes}"
            )
        return batch.payload
    if header.codec not in _INFLATERS:
        raise CorruptBatchError(f"codec {header.codec} needs a newer client")
    try:
        return _INFLATERS[Codec(header.codec)].decompress(
            batch.payload, decompressed_size=header.uncompressed_bytes
        )
    except OSError as error:  # what pyarrow raises when a block does not inflate
        raise CorruptBatchError(f"{Codec(header.codec).name}: {error}") from error


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One record batch of all rows, copied unless it is one already."""
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
