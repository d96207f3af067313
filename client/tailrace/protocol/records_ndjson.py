"""NDJSON, as reads and polls answer it, to records (docs/protocol.md, "Read").

Values are cut out of their lines, not parsed, so that they are as they were produced.
"""

import json
import re
from base64 import b64decode
from calendar import timegm
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from time import strptime
from typing import Any, NamedTuple

from tailrace.errors import UnexpectedAnswerError

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_BASE64 = rb'\{"base64":"[A-Za-z0-9+/]*=*"\}'
_TEXT_OR_BASE64 = rb"(?:%s|%s)" % (_STRING, _BASE64)  # of keys and of headers
# What comes before the value; stateless reads name no topic.
_HEAD = re.compile(
    rb'\{(?:"topic":(?P<topic>%s),)?"partition":(?P<partition>[0-9]+),"offset":(?P<offset>[0-9]+),'
    rb'"timestamp":"(?P<seconds>[-0-9]+T[0-9:]+)\.(?P<microseconds>[0-9]{6})Z",'
    rb'"key":(?P<key>null|%s),"value":' % (_STRING, _TEXT_OR_BASE64)
)
# All of the end of a line. No value ends so: where a quote begins a string, no backslash is before.
_HEADERS_START = b',"headers":['
_PAIR = rb'\{"key":(%s),"value":(%s)\}' % (_TEXT_OR_BASE64, _TEXT_OR_BASE64)
_HEADERS = re.compile(rb',"headers":\[(?:%s,?)+\]\}' % _PAIR)
_HEADER = re.compile(_PAIR)
# A value that is not JSON. No JSON value ends so: what is behind the comma is no part of one.
_ENCODED_VALUE = re.compile(rb'(%s),"valueEncoding":"base64"' % _BASE64)


class Record(NamedTuple):
    """One record. `key` None: it has none. `timestamp_us`: since the epoch.

    `value` is the JSON text as it was produced, byte by byte; but a line end between its tokens is
    a space. None is a record without value, or the JSON text `null`. What is not JSON (a topic with
    `json_check` off, records+binary, Spark) is there as its bytes.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    def json(self) -> Any:
        """The value, parsed; ValueError when it is not JSON."""
        return None if self.value is None else json.loads(self.value)


def decode_lines(body: bytes, topic: str = "") -> Iterator[Record]:
    """A record a line; `topic`: of lines that do not name theirs. UnexpectedAnswerError."""
    for line in BytesIO(body):  # by LF alone: a carriage return may be inside of a value
        try:
            yield _record(line.rstrip(b"\n"), topic)
        except ValueError as error:
            raise UnexpectedAnswerError(
                f"the broker sent a line that is no record ({error}): {line[:80]!r}"
            ) from error


def _record(line: bytes, topic: str) -> Record:
    head = _HEAD.match(line)
    if head is None or not line.endswith(b"}"):
        raise ValueError("docs/protocol.md has its form")
    end, headers = _headers(line, head.end())
    named, partition, offset, seconds, microseconds, key = head.groups()
    return Record(
        topic if named is None else _text(named),
        int(partition),
        int(offset),
        _seconds(seconds) * 1_000_000 + int(microseconds),
        None if key == b"null" else _stored(key),
        _value(line[head.end() : end]),
        headers,
    )


def _headers(line: bytes, value_start: int) -> tuple[int, tuple[tuple[str, bytes], ...]]:
    """Where the value ends, and the record's headers behind it."""
    if line.endswith(b"]}"):
        start = line.rfind(_HEADERS_START, value_start)
        if start >= 0 and _HEADERS.fullmatch(line, start):
            pairs = _HEADER.findall(line, start)
            return start, tuple(
                (_stored(key).decode(errors="surrogateescape"), _stored(value))
                for key, value in pairs
            )
    return len(line) - 1, ()


def _stored(text: bytes) -> bytes:
    """A JSON string's UTF-8, or bytes in base64."""
    if text.startswith(b"{"):
        return _unbase64(text)
    return text[1:-1] if b"\\" not in text else str(json.loads(text)).encode()


def _value(text: bytes) -> bytes | None:
    if text == b"null":
        return None
    encoded = _ENCODED_VALUE.fullmatch(text)
    return text if encoded is None else _unbase64(encoded[1])


def _unbase64(text: bytes) -> bytes:
    """Of `{"base64":"…"}`."""
    return b64decode(text[len(b'{"base64":"') : -len(b'"}')], validate=True)


@lru_cache(maxsize=1024)
def _text(text: bytes) -> str:
    """Of a JSON string."""
    return str(json.loads(text))


@lru_cache(maxsize=1024)
def _seconds(text: bytes) -> int:
    """Since the epoch; of the many records of a second it is found once."""
    return timegm(strptime(text.decode(), "%Y-%m-%dT%H:%M:%S"))
