"""Records -> the columns of a batch's payload (layout: `tailrace.wire`).

Vector operations only: the cost is per column and per byte, not per record, except that a list of
values costs one C-level `len` each.
"""

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.wire import COLUMN_ALIGNMENT_BYTES, Flag
from tailrace_broker.model.errors import BodyTooLargeError

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Buffer = bytes | bytearray | memoryview

# Of one request: each event is an object or two while its body is parsed, about 100 bytes.
EVENTS_MAX = 500_000
# Of one request, all events together: the same objects again when they are read as JSON.
RECORD_HEADERS_MAX = 500_000
# Bound of a batch before compression: offsets, timestamps and keys are added to a body's values.
PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
# Of a record in a payload beside its key and value: their two offsets and a timestamp.
RECORD_OVERHEAD_BYTES = 16

# The offsets of one value and of one key, and a timestamp: no column needs fill.
_ONE_EVENT = struct.Struct("<iiiiq")
_FILL = tuple(bytes(size) for size in range(COLUMN_ALIGNMENT_BYTES))


class Column(NamedTuple):
    """Variable-length values: `offsets` i32[n + 1] into `data`; `validity` is None when all are."""

    data: Buffer
    offsets: Int32s
    validity: bytes | None = None


class HeaderColumns(NamedTuple):
    """Record headers: `list_offsets` i32[n + 1] of each record's entries in `keys`, `values`."""

    list_offsets: Int32s
    keys: Column
    values: Column


class RecordColumns(NamedTuple):
    """A payload before compression, with what the batch header says of it."""

    record_count: int
    flags: int
    payload: bytes
    first_timestamp_us: int
    largest_timestamp_us: int
    producer_table: bytes = b""


def check_event_count(count: int) -> None:
    """BodyTooLargeError for more events than a request may hold."""
    if count > EVENTS_MAX:
        raise BodyTooLargeError(
            f"the body holds more than {EVENTS_MAX} events; send fewer a request",
            maxEvents=EVENTS_MAX,
        )


def check_header_count(count: int) -> None:
    """BodyTooLargeError for more record headers than a request may hold."""
    if count > RECORD_HEADERS_MAX:
        raise BodyTooLargeError(
            f"the body holds more than {RECORD_HEADERS_MAX} record headers; send fewer a request",
            maxRecordHeaders=RECORD_HEADERS_MAX,
        )


def column_of_lengths(data: Buffer, lengths: Int32s) -> Column:
    """`data` cut by `lengths` (i32[n], none negative, their sum is the size of `data`)."""
    return Column(data, offsets_of_lengths(lengths))


def column_of_values(values: Sequence[bytes | memoryview | None]) -> Column:
    """One entry a value; None is null."""
    try:
        data = b"".join(values)  # type: ignore[arg-type]
    except TypeError:  # a null
        present = [b"" if value is None else value for value in values]
        validity = validity_bitmap([value is not None for value in values])
        return column_of_values(present)._replace(validity=validity)
    lengths = np.fromiter(map(len, values), np.int32, len(values))  # type: ignore[arg-type]
    return Column(data, offsets_of_lengths(lengths))


def column_of_texts(texts: Sequence[str]) -> Column:
    """One entry a text, in UTF-8."""
    joined = "\0".join(texts).encode()
    ends = np.flatnonzero(np.frombuffer(joined, np.uint8) == 0)
    count = len(texts)
    if len(ends) != count - 1:  # there is one in a text
        return column_of_values(list(map(str.encode, texts)))
    data = joined.replace(b"\0", b"")
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:-1] = ends - np.arange(count - 1)
    offsets[-1] = len(data)
    return Column(data, offsets)


def column_of_one(value: bytes | None, count: int) -> Column:
    """The same value `count` times; None is null."""
    if value is None:
        return Column(b"", np.zeros(count + 1, np.int32), bytes(-(-count // 8)))
    return Column(value * count, np.arange(count + 1, dtype=np.int32) * np.int32(len(value)))


def offsets_of_lengths(lengths: Int32s) -> Int32s:
    """Arrow offsets: 0, then the running sum."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def validity_bitmap(valid: Sequence[bool] | npt.NDArray[np.bool_]) -> bytes:
    """Arrow validity: bit i, least significant first, is 1 when entry i is not null."""
    return np.packbits(np.asarray(valid, np.bool_), bitorder="little").tobytes()


def pack_columns(
    values: Column,
    keys: Column,
    timestamps_us: Int64s,
    *,
    headers: HeaderColumns | None = None,
    flags: int = 0,
) -> RecordColumns:
    """Lay the columns out as `tailrace.wire` says; `flags` adds those that describe contents.

    The flags that describe the layout (NULL_KEYS, NULL_VALUES, HEADERS) follow from the columns.
    """
    count = len(timestamps_us)
    assert count >= 1
    assert len(values.offsets) == len(keys.offsets) == count + 1
    parts: list[Buffer] = []
    _append(parts, values.offsets.data)
    _append(parts, keys.offsets.data)
    _append(parts, timestamps_us.data)
    for validity, flag in ((values.validity, Flag.NULL_VALUES), (keys.validity, Flag.NULL_KEYS)):
        if validity is not None:
            flags |= flag
            _append(parts, validity)
    if headers is not None:
        flags |= Flag.HEADERS
        _append(parts, headers.list_offsets.data)
        _append(parts, headers.keys.offsets.data)
        _append(parts, headers.values.offsets.data)
    _append(parts, values.data)
    _append(parts, keys.data)
    if headers is not None:
        _append(parts, headers.keys.data)
        _append(parts, headers.values.data)
    return RecordColumns(
        count, int(flags), b"".join(parts), int(timestamps_us[0]), int(timestamps_us.max())
    )


def pack_events(
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    timestamps_us: Sequence[int],
    *,
    flags: int,
) -> RecordColumns:
    """`pack_columns` for a few events: a vector operation costs more than their loop."""
    count = len(values)
    if count == 1 and keys[0] is not None:
        return pack_event(values[0], keys[0], timestamps_us[0], flags=flags)
    present = keys if None not in keys else [key or b"" for key in keys]
    value_offsets = accumulate(map(len, values), initial=0)
    key_offsets = accumulate(map(len, present), initial=0)  # type: ignore[arg-type]
    offsets_fill = _FILL[-4 * (count + 1) % COLUMN_ALIGNMENT_BYTES]
    value_bytes, key_bytes = b"".join(values), b"".join(present)  # type: ignore[arg-type]
    parts = [
        array("i", value_offsets).tobytes(),
        offsets_fill,
        array("i", key_offsets).tobytes(),
        offsets_fill,
        array("q", timestamps_us).tobytes(),
    ]
    if present is not keys:
        flags |= Flag.NULL_KEYS
        validity = validity_bitmap([key is not None for key in keys])
        parts += [validity, _FILL[-len(validity) % COLUMN_ALIGNMENT_BYTES]]
    for column in (value_bytes, key_bytes):
        parts += [column, _FILL[-len(column) % COLUMN_ALIGNMENT_BYTES]]
    return RecordColumns(count, int(flags), b"".join(parts), timestamps_us[0], max(timestamps_us))


def pack_event(value: bytes, key: bytes | None, timestamp_us: int, *, flags: int) -> RecordColumns:
    """`pack_events` for one: of a topic of many partitions most batches hold just one."""
    if key is None:
        return pack_events((value,), (None,), (timestamp_us,), flags=flags)
    value_bytes, key_bytes = len(value), len(key)
    parts = (
        _ONE_EVENT.pack(0, value_bytes, 0, key_bytes, timestamp_us),
        value,
        _FILL[-value_bytes % COLUMN_ALIGNMENT_BYTES],
        key,
        _FILL[-key_bytes % COLUMN_ALIGNMENT_BYTES],
    )
    return RecordColumns(1, flags, b"".join(parts), timestamp_us, timestamp_us)


def _append(parts: list[Buffer], column: Buffer) -> None:
    """Add a column with its zero fill."""
    parts.append(column)
    size_bytes = column.nbytes if isinstance(column, memoryview) else len(column)
    fill_bytes = -size_bytes % COLUMN_ALIGNMENT_BYTES
    if fill_bytes:
        parts.append(_FILL[fill_bytes])
