"""An NDJSON body whose lines have their keys inside -> values and keys, checked in one pass.

The pass that checks the body decodes one field of each event and skips the rest.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from tailrace_broker.codec.columns import Int32s
from tailrace_broker.codec.ndjson import (
    check_lines,
    decode_texts,
    split_values,
    with_unix_line_ends,
)
from tailrace_broker.model.errors import InvalidBodyError

# Objects in objects; each is a class of its own.
DEPTH_MAX = 16
_PATHS_MAX = 64
_NULL = b"null"
_NO_SCALAR = (b"{", b"[")
_LINE_FEED, _OPENING, _CLOSING = b"\n{}"


class KeyedLines(NamedTuple):
    """The values of a body, a line feed between two; the length and the key of each."""

    text: bytes
    lengths: Int32s
    keys: list[str]


class KeyPath:
    """Where in each event its key is; `names` of the fields, outermost first."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        """ValueError: a name that cannot be a field's."""
        self.text = text
        self._text_decoder = _event_decoder(names, str)
        self._raw_decoder = _event_decoder(names, msgspec.Raw)
        self._field_of = attrgetter(".".join(["field"] * len(names)))

    def texts(self, body: bytes) -> list[str] | None:
        """The field's text of each event in a body; None: they are more than its lines can be.

        DecodeError: something is no JSON, or has no text there.
        """
        events = decode_texts(body, self._text_decoder)
        return None if events is None else list(map(self._field_of, events))

    def raw(self, value: bytes) -> bytes:
        """The field's JSON text; `null` when an event, which is JSON, has no such field."""
        try:
            return bytes(self._field_of(self._raw_decoder.decode(value)))
        except msgspec.DecodeError:
            return _NULL


@lru_cache(maxsize=_PATHS_MAX)
def parse_key_path(text: str) -> KeyPath:
    """ ".customer.id" -> a path. ValueError: not of that form."""
    names = text.split(".")
    try:
        if names[0] == "" and all(names[1:]) and 2 <= len(names) <= DEPTH_MAX + 1:
            return KeyPath(text, names[1:])
    except ValueError:  # a quote, a control character, or no Unicode
        pass
    raise ValueError(f"it is a field path of at most {DEPTH_MAX} names, like .customer.id")


def read_keyed_lines(body: bytes | bytearray, path: KeyPath) -> KeyedLines:
    """Cut a body into values and take the key out of each: the text of a string, all else as it is
    written.

    InvalidBodyError when there is no value, or for the first line without a key; else as
    `ndjson.split_lines` with its check.
    """
    unix = with_unix_line_ends(body)
    text = bytes(memoryview(unix)[: len(unix) - unix.endswith(b"\n")])
    lines = _split_bare_objects(text, path)
    if lines is not None:
        return lines
    values = split_values(body)
    check_lines(bytes(body))
    return _with_any_keys(body, values, path)


def _split_bare_objects(text: bytes, path: KeyPath) -> KeyedLines | None:
    """Check and cut in a few C calls; None when a line is not exactly one object, or not bare, or
    has no text for its key.

    A line feed right between `}` and `{` is in no JSON text: there a comma or a bracket would
    follow, and no string holds one. When each line feed is so, a line is one text or more; when
    there are as many texts as lines, it is one.
    """
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return None
    octets = np.frombuffer(text, np.uint8)
    line_feeds = np.flatnonzero(octets == _LINE_FEED)
    is_between = (octets[line_feeds - 1] == _CLOSING) & (octets[line_feeds + 1] == _OPENING)
    if not is_between.all():
        return None
    try:
        keys = path.texts(text)
        text.isascii() or text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if keys is None or len(keys) != len(line_feeds) + 1:
        return None
    lengths = np.append(line_feeds, len(text)).astype(np.int32)
    lengths[1:] -= line_feeds + 1  # where the line begins
    return KeyedLines(text, lengths, keys)


def _with_any_keys(body: bytes | bytearray, values: list[bytes], path: KeyPath) -> KeyedLines:
    """Some are no texts, or there is none."""
    raws = list(map(path.raw, values))
    keys = list(map(_key_of, raws))
    if None in keys:
        bad = keys.index(None)
        raise _no_key(body, path, raws[bad], bad)
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    return KeyedLines(b"\n".join(values), lengths, cast(list[str], keys))


def _event_decoder(names: Sequence[str], kind: type) -> msgspec.json.Decoder[Any]:
    for name in reversed(names):
        kind = msgspec.defstruct(
            "Event", [("field", kind)], rename={"field": name}, frozen=True, gc=False
        )
    return msgspec.json.Decoder(kind)


def _key_of(raw: bytes) -> str | None:
    """The key that a field's JSON text is; None: none."""
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    return None if raw == _NULL or raw.startswith(_NO_SCALAR) else raw.decode()


def _no_key(body: bytes | bytearray, path: KeyPath, raw: bytes, index: int) -> InvalidBodyError:
    """Return the error of the event at `index`, counted without blank lines: it has no key."""
    lines = bytes(body).split(b"\n")
    numbers = [number for number, line in enumerate(lines, start=1) if line.removesuffix(b"\r")]
    what = "" if raw == _NULL else "text or number in "
    line = numbers[index]
    return InvalidBodyError(
        f"line {line} has no {what}{path.text}, its key; nothing was stored", line=line
    )
