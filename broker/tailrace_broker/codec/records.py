"""A batch's columns -> records, and records as JSON text (docs/protocol.md, "Read").

JSON answers are a view for people and scripts; consumers in a hurry take batches unchanged.
"""

from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count, pairwise
from typing import NamedTuple

import msgspec

from tailrace.wire import BatchHeader, Flag
from tailrace_broker.codec.column_reader import FEW, ColumnReader, read_few
from tailrace_broker.codec.ndjson import is_json
from tailrace_broker.model.errors import CorruptBatchError

_MICROSECONDS = 1_000_000
_LINE_ENDS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")
# Of ASCII what is in a JSON string as it is (RFC 8259, 7).
_PLAIN = bytes(set(range(0x20, 0x80)) - set(b'"\\'))
# As plain numbers: an enum's `&` costs a call each time.
_NULL_VALUES, _NULL_KEYS, _HEADERS = map(int, (Flag.NULL_VALUES, Flag.NULL_KEYS, Flag.HEADERS))
_LAYOUT_FLAGS = _NULL_VALUES | _NULL_KEYS | _HEADERS


class Record(NamedTuple):
    """One record; None is null. `headers`: (key, value) pairs in order."""

    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes]]


class CutColumns(NamedTuple):
    """The columns of some records of a batch; None is null."""

    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[bytes, bytes]]]


def cut_columns(
    header: BatchHeader, columns: memoryview, *, first: int = 0, last: int | None = None
) -> CutColumns:
    """Return records `[first, last)` of a batch, by default all, from its uncompressed payload.

    CorruptBatchError when a column is out of bounds.
    """
    record_count = header.record_count
    wanted = slice(first, record_count if last is None else last)
    assert 0 <= first <= wanted.stop <= record_count, wanted
    if wanted.stop - first == record_count <= FEW and not header.flags & _LAYOUT_FLAGS:
        return CutColumns(*read_few(columns, record_count), [[]] * record_count)
    reader = ColumnReader(columns)
    value_offsets = reader.offsets(record_count)
    key_offsets = reader.offsets(record_count)
    timestamps = reader.timestamps(record_count)
    value_validity = reader.bitmap(record_count) if header.flags & _NULL_VALUES else None
    key_validity = reader.bitmap(record_count) if header.flags & _NULL_KEYS else None
    has_headers = header.flags & _HEADERS
    if has_headers:
        list_offsets = reader.offsets(record_count)
        header_count = int(list_offsets[-1])
        header_key_offsets = reader.offsets(header_count)
        header_value_offsets = reader.offsets(header_count)
    values = reader.cut(value_offsets, value_validity, wanted)
    keys = reader.cut(key_offsets, key_validity, wanted)
    headers: list[list[tuple[bytes, bytes]]] = [[]] * len(values)
    if has_headers:
        bounds = list_offsets[wanted.start : wanted.stop + 1].tolist()
        wanted_headers = slice(bounds[0], bounds[-1])
        header_keys = reader.cut(header_key_offsets, None, wanted_headers)
        header_values = reader.cut(header_value_offsets, None, wanted_headers)
        pairs = [
            (key or b"", value or b"")
            for key, value in zip(header_keys, header_values, strict=True)
        ]
        headers = [pairs[start - bounds[0] : end - bounds[0]] for start, end in pairwise(bounds)]
    return CutColumns(timestamps[wanted].tolist(), keys, values, headers)


def unpack_columns(
    header: BatchHeader, columns: memoryview, *, first: int = 0, last: int | None = None
) -> list[Record]:
    """Records `[first, last)` of a batch, as `cut_columns`. Cost: about 0.3 µs a record."""
    timestamps, keys, values, headers = cut_columns(header, columns, first=first, last=last)
    base_offset = header.base_offset + first
    offsets = range(base_offset, base_offset + len(values))
    return list(map(Record, offsets, timestamps, keys, values, headers))


def find_record_of_time(
    header: BatchHeader, columns: memoryview, timestamp_us: int, *, first_offset: int
) -> int | None:
    """Offset of the batch's first record of this time or later, from `first_offset` on.

    None: it has one below `first_offset` alone. CorruptBatchError: it has none.
    """
    reader = ColumnReader(columns)
    record_count = header.record_count
    reader.offsets(record_count)
    reader.offsets(record_count)
    is_later = reader.timestamps(record_count) >= timestamp_us
    if not is_later.any():
        raise CorruptBatchError("the largest timestamp of the header is none of its records'")
    is_later[: max(0, first_offset - header.base_offset)] = False
    return header.base_offset + int(is_later.argmax()) if is_later.any() else None


def column_lines(
    partition: int,
    base_offset: int,
    columns: CutColumns,
    *,
    values_are_json: bool,
    topic: str | None = None,
) -> list[bytes]:
    """Each record as one line of JSON, without line end; with `topic` it begins with its name.

    Values checked at produce are embedded as they are; others are checked one by one. What the
    lines have in common is made once. Cost: about 1 µs a record.
    """
    time, times = _time_field(columns.timestamps)
    key, keys = _key_field(columns.keys)
    values = _on_one_line(_value_fields(columns.values, values_are_json=values_are_json))
    fields: list[Iterable[bytes | int | None]] = [count(base_offset), times, keys, values]
    has_headers = any(columns.headers)
    if has_headers:
        fields.append(map(_headers_field, columns.headers))
    template = b'{%s"partition":%d,"offset":%%d,"timestamp":"%s","key":%s,"value":%%s%s}' % (
        b"" if topic is None else b'"topic":"%s",' % topic.encode(),
        partition,
        time,
        key,
        b"%s" if has_headers else b"",
    )
    return [template % row for row in zip(*fields, strict=False)]


def _time_field(timestamps_us: list[int]) -> tuple[bytes, Iterable[bytes | int]]:
    """A template, and what it lacks of each; mostly all are of one second."""
    second = timestamps_us[0] // _MICROSECONDS
    start_us = second * _MICROSECONDS
    if start_us <= min(timestamps_us) and max(timestamps_us) < start_us + _MICROSECONDS:
        template = b"%s.%%06dZ" % _format_seconds(second)
        return template, [timestamp_us - start_us for timestamp_us in timestamps_us]
    return b"%s", map(format_timestamp, timestamps_us)


def _key_field(keys: list[bytes | None]) -> tuple[bytes, Iterable[bytes | None]]:
    """A template, and what it lacks of each; mostly there is nothing to escape."""
    if None not in keys and not b"".join(keys).translate(None, _PLAIN):  # type: ignore[arg-type]
        return b'"%s"', keys
    return b"%s", map(key_text, keys)


class ValueTexts(NamedTuple):
    """Values as JSON; `encoded`: indexes of those that are none, in base64.

    A JSON value can look like bytes in base64 too: only `encoded` says which are.
    """

    texts: list[bytes]
    encoded: list[int]


def value_texts(values: list[bytes | None], *, values_are_json: bool) -> ValueTexts:
    """Those checked at produce as they are, others are checked one by one."""
    texts = [b"null" if value is None else value for value in values]
    if values_are_json:
        return ValueTexts(texts, [])
    encoded = [index for index, text in enumerate(texts) if not is_json(text)]
    for index in encoded:
        texts[index] = _base64_text(texts[index])
    return ValueTexts(texts, encoded)


def _value_fields(values: list[bytes | None], *, values_are_json: bool) -> list[bytes]:
    """Return the text that follows `"value":` in a line."""
    texts, encoded = value_texts(values, values_are_json=values_are_json)
    for index in encoded:
        texts[index] += b',"valueEncoding":"base64"'
    return texts


def _on_one_line(texts: list[bytes]) -> list[bytes]:
    """A line end in a JSON text is white space between tokens."""
    text = b"".join(texts)
    if b"\n" in text or b"\r" in text:
        return [each.translate(_LINE_ENDS_TO_SPACES) for each in texts]
    return texts


def format_timestamp(timestamp_us: int) -> bytes:
    """RFC 3339 in UTC with microseconds."""
    seconds, microseconds = divmod(timestamp_us, _MICROSECONDS)
    return b"%s.%06dZ" % (_format_seconds(seconds), microseconds)


@lru_cache(maxsize=1024)
def _format_seconds(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def key_text(key: bytes | None) -> bytes:
    """Return a key as JSON."""
    return b"null" if key is None else _text_or_base64(key)


def _headers_field(headers: list[tuple[bytes, bytes]]) -> bytes:
    if not headers:
        return b""
    return b',"headers":[%s]' % b",".join(
        b'{"key":%s,"value":%s}' % (_text_or_base64(key), _text_or_base64(value))
        for key, value in headers
    )


def _text_or_base64(stored: bytes) -> bytes:
    """Return UTF-8 as a JSON string, all else as an object: nobody takes one for the other."""
    try:
        return msgspec.json.encode(stored.decode())
    except UnicodeDecodeError:
        return _base64_text(stored)


def _base64_text(value: bytes) -> bytes:
    """Return any bytes as JSON."""
    return b'{"base64":"%s"}' % b64encode(value)
