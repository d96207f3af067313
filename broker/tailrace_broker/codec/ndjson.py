"""An NDJSON body -> values and their lengths, checked to be one JSON text a line.

https://github.com/ndjson/ndjson-spec: lines end with LF or CRLF, blank lines are skipped, the last
line end is optional; values are stored without their line end.
"""

from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from tailrace_broker.codec.columns import EVENTS_MAX, Int32s, check_event_count
from tailrace_broker.codec.json_syntax import is_blank, syntax_fault
from tailrace_broker.model.errors import InvalidBodyError, InvalidRecordError

_RAW = msgspec.json.Decoder(msgspec.Raw)
_LINE_FEED = 10
_PART_BYTES = EVENTS_MAX  # it holds no more texts than a request may

T = TypeVar("T")


class Lines(NamedTuple):
    """The values of a body back to back, and the length of each: i32[n], n >= 1."""

    values: bytes
    lengths: Int32s


def split_lines(body: bytes | bytearray, *, json_check: bool) -> Lines:
    """Cut a body into values, without a loop over them when all is well.

    InvalidBodyError when there is no value, BodyTooLargeError when there are too many; with
    `json_check`, InvalidRecordError names the first line that is not exactly one JSON text.
    Cost: 0.5 CPU s/GiB checked, 0.25 unchecked.
    """
    unix = with_unix_line_ends(body)
    if json_check:
        lines = _split_json_texts(unix)
        if lines is not None:
            return lines
        check_lines(bytes(body))
    return _split_at_line_feeds(unix)


def split_values(body: bytes | bytearray) -> list[bytes]:
    """Cut a body into values that are not checked yet.

    InvalidBodyError when there is no value, BodyTooLargeError when there are too many.
    """
    values = bytes(with_unix_line_ends(body)).split(b"\n")
    if not values[-1]:  # behind the last line end
        values.pop()
    if not all(values):  # a blank line
        values = [value for value in values if value]
    if not values:
        raise _no_event()
    return values


def check_json(value: bytes | bytearray, *, line: int = 1, body_position: int = 0) -> None:
    """InvalidRecordError unless `value` is one JSON text in UTF-8 (RFC 8259).

    `line` and `body_position` (bytes before the value) only make the error exact.
    """
    try:
        _RAW.decode(value)
        value.isascii() or value.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {body_position + error.start}"
    except RecursionError:
        reason = "nested too deeply"
    except msgspec.DecodeError as error:
        fault = syntax_fault(value, str(error))
        reason = f"{fault.reason} at byte {body_position + fault.byte}"
        if is_blank(value):
            reason = "the line has no value"
    else:
        return
    raise InvalidRecordError(f"{reason}; nothing was stored", line=line)


def decode_texts(unix: bytes | bytearray, decoder: msgspec.json.Decoder[T]) -> list[T] | None:
    """The JSON texts of a body; None when they are more than its lines can be. DecodeError.

    `decode_lines` takes any JSON texts, with or without white space between them. It gets parts of
    whole lines, so that lines of many texts are found before there is an object for each text.
    """
    texts: list[T] = []
    view, start = memoryview(unix), 0
    while start < len(unix):
        end = unix.rfind(b"\n", start, start + _PART_BYTES) + 1
        if end:
            texts += decoder.decode_lines(view[start:end])
            if len(texts) > EVENTS_MAX:  # there are fewer lines
                return None
        else:  # one line, the last or a long one
            end = unix.find(b"\n", start) + 1 or len(unix)
            texts.append(decoder.decode(view[start:end]))
        start = end
    return texts


def is_json(value: bytes) -> bool:
    """Return whether `value` is one JSON text in UTF-8."""
    try:
        check_json(value)
    except InvalidRecordError:
        return False
    return True


def _split_json_texts(unix: bytes | bytearray) -> Lines | None:
    """Check and cut in a few C calls; None when a line is not exactly one JSON text, or not bare.

    When no text holds a line feed and one line feed, nothing else, follows each, then each
    line is one text.
    """
    try:
        texts = decode_texts(unix, _RAW)
        if texts is None:
            return None
        values = b"".join(texts)
        values.isascii() or values.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    count = len(texts)
    lengths = np.fromiter(map(len, texts), np.int32, count)
    has_last_line_feed = unix.endswith(b"\n")
    if len(unix) != len(values) + count - (not has_last_line_feed) or b"\n" in values:
        return None
    text_ends = np.cumsum(lengths, dtype=np.int64) + np.arange(count)
    behind = np.frombuffer(unix, np.uint8)[text_ends if has_last_line_feed else text_ends[:-1]]
    return Lines(values, lengths) if (behind == _LINE_FEED).all() else None


def _split_at_line_feeds(unix: bytes | bytearray) -> Lines:
    """Cut at line feeds, without the blank lines. InvalidBodyError when nothing is left."""
    line_feeds = np.flatnonzero(np.frombuffer(unix, np.uint8) == _LINE_FEED)
    ends = line_feeds if unix.endswith(b"\n") else np.append(line_feeds, len(unix))
    lengths = np.diff(ends, prepend=-1).astype(np.int32) - np.int32(1)
    lengths = lengths[lengths > 0]
    if not len(lengths):
        raise _no_event()
    return Lines(bytes(unix.replace(b"\n", b"")), lengths)


def check_lines(body: bytes) -> None:
    """The exact check, for bodies with white space around values and for naming the bad line.

    InvalidRecordError.
    """
    position = 0
    for number, line in enumerate(body.split(b"\n"), start=1):
        value = line.removesuffix(b"\r")
        if value:
            check_json(value, line=number, body_position=position)
        position += len(line) + 1


def with_unix_line_ends(body: bytes | bytearray) -> bytes | bytearray:
    """The body with LF for CRLF. BodyTooLargeError when there are too many lines."""
    if len(body) > EVENTS_MAX:  # smaller bodies cannot hold too many
        line_feeds = np.frombuffer(body, np.uint8) == _LINE_FEED
        check_event_count(int(np.count_nonzero(line_feeds)))
    # A carriage return that ends the body is the last line's, its line feed left out.
    return body.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in body else body


def _no_event() -> InvalidBodyError:
    return InvalidBodyError("the body holds no event; nothing was stored")
