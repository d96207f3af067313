"""An NDJSON body whose lines have their keys inside -> values and keys, checked in one pass.

The pass that checks a line decodes one field of it and skips the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, cast

import msgspec

from tailrace_broker.codec.ndjson import check_lines, split_values
from tailrace_broker.model.errors import InvalidBodyError

# Objects in objects; each is a class of its own.
DEPTH_MAX = 16
_PATHS_MAX = 64
_NULL = b"null"
_NO_SCALAR = (b"{", b"[")


class KeyedLines(NamedTuple):
    """The values of a body, and the key of each."""

    values: list[bytes]
    keys: list[bytes]


class KeyPath:
    """Where in each event its key is; `names` of the fields, outermost first."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        """ValueError: a name that cannot be a field's."""
        self.text = text
        self._decode_text = _event_decoder(names, str)
        self._decode_any = _event_decoder(names, msgspec.Raw)
        self._field_of = attrgetter(".".join(["field"] * len(names)))

    def texts(self, values: Iterable[bytes]) -> list[str]:
        """The fields' texts. DecodeError: one is no JSON, or has no text there."""
        return list(map(self._field_of, map(self._decode_text, values)))

    def raw(self, value: bytes) -> bytes:
        """The field's JSON text; `null` when an event, which is JSON, has no such field."""
        try:
            return bytes(self._field_of(self._decode_any(value)))
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


def split_keyed_lines(body: bytes | bytearray, path: KeyPath) -> KeyedLines:
    """Cut a body into values and take the key out of each: the text of a string, all else as it is
    written.

    InvalidBodyError when there is no value, or for the first line without a key; else as
    `ndjson.split_lines` with its check.
    """
    values = split_values(body)
    try:
        texts = path.texts(values)
        body.isascii() or body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        check_lines(bytes(body))
        return _with_any_keys(body, values, path)
    return KeyedLines(values, list(map(str.encode, texts)))


def _with_any_keys(body: bytes | bytearray, values: list[bytes], path: KeyPath) -> KeyedLines:
    """Some are no texts, or there is none."""
    raws = list(map(path.raw, values))
    keys = list(map(_key_of, raws))
    if None in keys:
        bad = keys.index(None)
        raise _no_key(body, path, raws[bad], bad)
    return KeyedLines(values, cast(list[bytes], keys))


def _event_decoder(names: Sequence[str], kind: type) -> Callable[[bytes], object]:
    for name in reversed(names):
        kind = msgspec.defstruct(
            "Event", [("field", kind)], rename={"field": name}, frozen=True, gc=False
        )
    return msgspec.json.Decoder(kind).decode


def _key_of(raw: bytes) -> bytes | None:
    """The key that a field's JSON text is; None: none."""
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str).encode() if b"\\" in raw else raw[1:-1]
    return None if raw == _NULL or raw.startswith(_NO_SCALAR) else raw


def _no_key(body: bytes | bytearray, path: KeyPath, raw: bytes, index: int) -> InvalidBodyError:
    """Of the event at `index`, counted without blank lines."""
    lines = bytes(body).split(b"\n")
    numbers = [number for number, line in enumerate(lines, start=1) if line.removesuffix(b"\r")]
    what = "" if raw == _NULL else "text or number in "
    line = numbers[index]
    return InvalidBodyError(
        f"line {line} has no {what}{path.text}, its key; nothing was stored", line=line
    )
