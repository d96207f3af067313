"""A records+binary produce body -> its columns (layout: `tailrace.wire`)."""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from tailrace.wire import (
    COLUMN_ALIGNMENT_BYTES,
    FORMAT_VERSION,
    RECORDS_HEADER,
    RECORDS_MAGIC,
    RecordsFlag,
    align_up,
)
from tailrace_broker.codec.columns import (
    Int32s,
    Int64s,
    check_event_count,
    check_header_count,
)
from tailrace_broker.model.errors import InvalidBodyError

_NULL = -1


class RecordHeaders(NamedTuple):
    """Headers of all records: how many each has, then keys and values in order."""

    counts: Int32s
    keys: list[bytes]
    values: list[bytes]


@dataclass(frozen=True, slots=True)
class ProducedRecords:
    """The records of one request, in its order; a None key or value is null."""

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps_us: Int64s | None
    headers: RecordHeaders | None


def parse_records(body: bytes | bytearray | memoryview) -> ProducedRecords:
    """Read a body; InvalidBodyError names what does not fit, BodyTooLargeError."""
    reader = _Reader(memoryview(body))
    magic, version, flags, count, *sizes = reader.header()
    key_bytes, value_bytes, header_count, header_key_bytes, header_value_bytes = sizes
    if magic != RECORDS_MAGIC or version != FORMAT_VERSION:
        raise InvalidBodyError("the body does not start as records+binary version 1")
    if flags & ~int(RecordsFlag.TIMESTAMPS | RecordsFlag.HEADERS):
        raise InvalidBodyError(f"records+binary flags {flags:#x} are not known")
    if any(sizes[2:]) and not flags & RecordsFlag.HEADERS:
        raise InvalidBodyError("records+binary: header sizes are given, the flag is not")
    if not count:
        raise InvalidBodyError("the body holds no event; nothing was stored")
    check_event_count(count)
    key_lengths = reader.int32s("key lengths", count, null_allowed=True)
    value_lengths = reader.int32s("value lengths", count, null_allowed=True)
    timestamps_us = reader.int64s("timestamps", count) if flags & RecordsFlag.TIMESTAMPS else None
    header_columns = None
    if flags & RecordsFlag.HEADERS:
        counts = reader.int32s("header counts", count)
        if int(counts.sum(dtype=np.int64)) != header_count:
            raise InvalidBodyError("header counts do not add up to the header count")
        check_header_count(header_count)
        header_columns = (
            counts,
            reader.int32s("header key lengths", header_count),
            reader.int32s("header value lengths", header_count),
        )
    keys = reader.values("keys", key_lengths, key_bytes)
    values = reader.values("values", value_lengths, value_bytes)
    headers = None
    if header_columns:
        counts, header_key_lengths, header_value_lengths = header_columns
        header_keys = reader.values("header keys", header_key_lengths, header_key_bytes)
        header_values = reader.values("header values", header_value_lengths, header_value_bytes)
        _check_utf8("header keys", header_keys)
        headers = RecordHeaders(counts, _present(header_keys), _present(header_values))
    reader.expect_end()
    return ProducedRecords(keys, values, timestamps_us, headers)


class _Reader:
    """Takes column after column off a body; every column starts at a multiple of 8 bytes."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._position = 0

    def header(self) -> tuple[int, ...]:
        return RECORDS_HEADER.unpack(self._take("header", RECORDS_HEADER.size))

    def int32s(self, name: str, count: int, *, null_allowed: bool = False) -> Int32s:
        column = np.frombuffer(self._take(name, count * 4), "<i4").astype(np.int32, copy=False)
        if count and column.min() < (_NULL if null_allowed else 0):
            raise InvalidBodyError(f"records+binary {name}: a length is negative")
        return column

    def int64s(self, name: str, count: int) -> Int64s:
        column = np.frombuffer(self._take(name, count * 8), "<i8").astype(np.int64, copy=False)
        if column.min() < 0:
            raise InvalidBodyError(f"records+binary {name}: a time is before 1970")
        return column

    def values(self, name: str, lengths: Int32s, size_bytes: int) -> list[bytes | None]:
        data = bytes(self._take(name, size_bytes))
        ends = list(accumulate(np.maximum(lengths, 0).tolist()))
        if (ends[-1] if ends else 0) != size_bytes:
            raise InvalidBodyError(f"records+binary {name}: lengths do not add up to their bytes")
        # mypy cannot see that map over slices of bytes gives bytes.
        cut: list[bytes | None] = list(map(data.__getitem__, map(slice, [0, *ends], ends)))
        for index in np.flatnonzero(lengths == _NULL).tolist():
            cut[index] = None
        return cut

    def expect_end(self) -> None:
        if self._position < len(self._body):
            extra_bytes = len(self._body) - self._position
            raise InvalidBodyError(f"records+binary: {extra_bytes} bytes behind the last column")

    def _take(self, name: str, size_bytes: int) -> memoryview:
        start = align_up(self._position, COLUMN_ALIGNMENT_BYTES)
        end = start + size_bytes
        if end > len(self._body) or any(self._body[self._position : start]):
            raise InvalidBodyError(
                f"records+binary {name}: the body ends early or fill is not zero"
            )
        self._position = end
        return self._body[start:end]


def _present(values: list[bytes | None]) -> list[bytes]:
    """Header entries are never null in version 1."""
    return [value for value in values if value is not None]


def _check_utf8(name: str, values: list[bytes | None]) -> None:
    try:
        for value in _present(values):
            value.decode()
    except UnicodeDecodeError as error:
        raise InvalidBodyError(f"records+binary {name}: not UTF-8: {error}") from error
