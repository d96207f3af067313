"""Records to records+binary bodies, as a produce request takes them (layout: `tailrace.wire`).

`encode_records` takes Python's sequences; `tailrace.arrow.records` brings whole columns.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.wire import (
    COLUMN_ALIGNMENT_BYTES,
    FORMAT_VERSION,
    RECORDS_HEADER,
    RECORDS_MAGIC,
    RecordsFlag,
)

NULL_LENGTH = -1  # of a null key or value
_LENGTH_BYTES = 4  # i32

Column = bytes | memoryview
Header = tuple[bytes, bytes]  # a name in UTF-8 and a value; of one record, names may repeat


class ByteColumn(NamedTuple):
    """Lengths i32[n], `NULL_LENGTH` for a null, and the bytes back to back."""

    lengths: Column
    data: Column


class HeaderColumns(NamedTuple):
    """How many headers each record has, i32[n]; keys and values of all of them in order."""

    counts: Column
    keys: ByteColumn
    values: ByteColumn


def encode_records(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps_us: Sequence[int] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
) -> bytes:
    """A body of these records; None is a null key or value.

    ValueError when the sequences differ in length. O(bytes), one copy of the data.
    """
    given = [each for each in (keys, values, timestamps_us, headers) if each is not None]
    if any(len(each) != len(keys) for each in given):
        raise ValueError("keys, values, timestamps_us and headers must have one element a record")
    times = None
    if timestamps_us is not None:
        times = struct.pack(f"<{len(timestamps_us)}q", *timestamps_us)
    header_columns = None if headers is None else _header_columns(headers)
    return assemble_body(_byte_column(keys), _byte_column(values), times, header_columns)


def assemble_body(
    keys: ByteColumn,
    values: ByteColumn,
    timestamps: Column | None,
    headers: HeaderColumns | None,
) -> bytes:
    """A body of these columns, little-endian as on the wire; timestamps are µs, i64[n]."""
    flags = RecordsFlag(0)
    columns = [keys.lengths, values.lengths]
    data = [keys.data, values.data]
    header_count = 0
    if timestamps is not None:
        flags |= RecordsFlag.TIMESTAMPS
        columns.append(timestamps)
    if headers is not None:
        flags |= RecordsFlag.HEADERS
        header_count = _size_bytes(headers.keys.lengths) // _LENGTH_BYTES
        columns += [headers.counts, headers.keys.lengths, headers.values.lengths]
        data += [headers.keys.data, headers.values.data]
    record_count = _size_bytes(keys.lengths) // _LENGTH_BYTES
    key_bytes, value_bytes, *header_bytes = map(_size_bytes, data)
    sizes = (record_count, key_bytes, value_bytes, header_count, *(header_bytes or (0, 0)))
    start = RECORDS_HEADER.pack(RECORDS_MAGIC, FORMAT_VERSION, flags, *sizes)
    *filled, last = columns + data
    parts = [part for column in filled for part in (column, _fill(column))]
    return b"".join([start, *parts, last])


def _byte_column(values: Sequence[bytes | None]) -> ByteColumn:
    lengths = [NULL_LENGTH if value is None else len(value) for value in values]
    return ByteColumn(struct.pack(f"<{len(values)}i", *lengths), b"".join(filter(None, values)))


def _header_columns(headers: Sequence[Sequence[Header]]) -> HeaderColumns:
    counts = struct.pack(f"<{len(headers)}i", *map(len, headers))
    names = [name for record in headers for name, _ in record]
    values = [value for record in headers for _, value in record]
    return HeaderColumns(counts, _byte_column(names), _byte_column(values))


def _size_bytes(column: Column) -> int:
    return memoryview(column).nbytes


def _fill(column: Column) -> bytes:
    """Zeros up to the next column."""
    return bytes(-_size_bytes(column) % COLUMN_ALIGNMENT_BYTES)
