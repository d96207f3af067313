"""A body of records as JSON -> the records, each named by its index when it is wrong.

    {"records": [{"key": "SFO", "value": {"n": 1}, "headers": {"trace": "7f"}, "timestamp": …}, …]}

Members are those of records as reads answer them: bytes that are no text are `{"base64": "…"}`, and
beside such a value is `"valueEncoding": "base64"`, since it could be JSON as well. Beside a
text that is not JSON is `"valueEncoding": "text"`, as `tailrace consume` prints it.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from tailrace_broker.codec.columns import EVENTS_MAX, check_header_count
from tailrace_broker.codec.json_body import NOT_JSON, UnfitBodyError, decode_body
from tailrace_broker.codec.records_binary import ProducedRecords, RecordHeaders
from tailrace_broker.model.errors import BodyTooLargeError, InvalidBodyError

_RECORD_PATH = re.compile(r"records\[([0-9]+)\]\.?")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NULL = b"null"
_COMMA = ord(",")
_LIST_DEPTH = 2  # {"records": [ … ]}
_DEPTHS = np.zeros(256, np.int8)
_DEPTHS[list(b"{[")] = 1
_DEPTHS[list(b"}]")] = -1


class JsonBytes(msgspec.Struct, forbid_unknown_fields=True):
    """Any bytes; base64 in the JSON."""

    base64: bytes


class JsonHeader(msgspec.Struct, forbid_unknown_fields=True):
    """One of several headers, whose keys may be the same."""

    key: str
    value: str | JsonBytes


class JsonRecord(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """One record; without `value`, or with null, it has a null value."""

    key: Annotated[str | JsonBytes | None, Meta(description="Null: no key.")] = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_encoding: Annotated[
        Literal["base64", "text"] | msgspec.UnsetType,
        Meta(description="When the value is not JSON: bytes, or the UTF-8 of a text."),
    ] = msgspec.UNSET
    headers: Annotated[
        list[JsonHeader] | dict[str, str | JsonBytes] | msgspec.UnsetType,
        Meta(description="By name, or a list when names repeat."),
    ] = msgspec.UNSET
    timestamp: Annotated[
        int | str | None, Meta(description="As the parameter; of all records, or of none.")
    ] = None


class JsonRecords(msgspec.Struct, forbid_unknown_fields=True):
    """A whole body."""

    records: list[JsonRecord]


class ParsedRecords(NamedTuple):
    """The records without their times, and these as they were written; none: of no record."""

    records: ProducedRecords
    timestamps: list[int | str]
    values_are_json: bool


# What a value of this encoding is.
_ENCODINGS: dict[str, tuple[type[str | JsonBytes], str]] = {
    "base64": (JsonBytes, '{"base64": "…"}'),
    "text": (str, "text"),
}


def parse_json_records(body: bytes | bytearray) -> ParsedRecords:
    """Read a body; InvalidBodyError names the record, BodyTooLargeError."""
    if body.count(b"{") > EVENTS_MAX:  # each record is an object or more while it is read
        raise BodyTooLargeError(
            f"the body holds more than {EVENTS_MAX} objects; send fewer records a request",
            maxEvents=EVENTS_MAX,
        )
    records = _decoded(body).records
    if not records:
        raise InvalidBodyError("the body holds no event; nothing was stored")
    values = [_value(record, index) for index, record in enumerate(records)]
    keys = [None if record.key is None else _bytes_of(record.key) for record in records]
    return ParsedRecords(
        ProducedRecords(keys, values, None, _headers(records)),
        list(_timestamps(records)),
        values_are_json=all(record.value_encoding is msgspec.UNSET for record in records),
    )


def bad_record(index: int, detail: str) -> InvalidBodyError:
    """Return the error of the record at this index."""
    return InvalidBodyError(f"record {index}: {detail}; nothing was stored", record=index)


def _decoded(body: bytes | bytearray) -> JsonRecords:
    try:
        return decode_body(body, JsonRecords)
    except UnfitBodyError as error:
        raise _refused(body, error) from error


def _refused(body: bytes | bytearray, error: UnfitBodyError) -> InvalidBodyError:
    index = None if error.byte is None else _index_at(body, error.byte)
    if index is not None:
        return bad_record(index, error.detail.removeprefix(NOT_JSON))
    path = _RECORD_PATH.match(error.path)
    if path:
        return bad_record(int(path[1]), error.detail.removeprefix(path[0]).lstrip())
    return InvalidBodyError(f"{error.detail}; nothing was stored")


def _index_at(body: bytes | bytearray, byte: int) -> int | None:
    """Return which record the byte is in; None: in none.

    Up to the byte the body is JSON whose only member is `records`, so commas right in that list
    separate the records.
    """
    marks = np.frombuffer(_STRING.sub(b"", body[:byte]), np.uint8)
    depths = np.cumsum(_DEPTHS[marks], dtype=np.int32)
    if not len(depths) or depths[-1] <= _LIST_DEPTH:
        return None
    return int(np.count_nonzero((marks == _COMMA) & (depths == _LIST_DEPTH)))


def _value(record: JsonRecord, index: int) -> bytes | None:
    text = _NULL if isinstance(record.value, msgspec.UnsetType) else bytes(record.value)
    if isinstance(record.value_encoding, msgspec.UnsetType):
        return None if text == _NULL else text
    kind, wanted = _ENCODINGS[record.value_encoding]
    try:
        return _bytes_of(msgspec.json.decode(text, type=kind))
    except msgspec.DecodeError as error:
        detail = f"valueEncoding is {record.value_encoding}, but value is not {wanted}"
        raise bad_record(index, detail) from error


def _headers(records: Sequence[JsonRecord]) -> RecordHeaders | None:
    """None: no record has one."""
    pairs = [list(_pairs(record)) for record in records]
    counts = np.array([len(pair) for pair in pairs], np.int32)
    if not counts.any():
        return None
    check_header_count(int(counts.sum()))
    keys = [key.encode() for pair in pairs for key, _ in pair]
    values = [_bytes_of(value) for pair in pairs for _, value in pair]
    return RecordHeaders(counts, keys, values)


def _pairs(record: JsonRecord) -> Iterator[tuple[str, str | JsonBytes]]:
    if isinstance(record.headers, dict):
        yield from record.headers.items()
    elif record.headers is not msgspec.UNSET:
        yield from ((header.key, header.value) for header in record.headers)


def _timestamps(records: Sequence[JsonRecord]) -> Iterator[int | str]:
    """A batch has the times of its producer or that of the broker: all of the records, or none."""
    has_timestamps = records[0].timestamp is not None
    for index, record in enumerate(records):
        if (record.timestamp is not None) != has_timestamps:
            raise bad_record(index, "give a timestamp to each record, or to none")
        if record.timestamp is not None:
            yield record.timestamp


def _bytes_of(text: str | JsonBytes) -> bytes:
    return text.encode() if isinstance(text, str) else text.base64
