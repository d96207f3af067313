r"""`--format`: what of a record is printed, as bytes. "%k %v\n", much like kcat's."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from tailrace.cli.lib.parser import shown, text
from tailrace.protocol.records_ndjson import Record

Part = bytes | Callable[[Record], bytes]

_EPOCH = datetime.fromtimestamp(0, UTC)
_DIRECTIVES: Mapping[str, Part] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: _time(record.timestamp_us),
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "h": lambda record: b",".join(_header(*header) for header in record.headers),
    "%": b"%",
}
_ESCAPES: Mapping[str, Part] = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<directive>.?)|\\(?P<escape>.?)|[^%\\]+", re.DOTALL)


class RecordFormat:
    """A format that was read."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def render(self, record: Record) -> bytes:
        """Bytes of keys and values as they are; what a record has none of is empty."""
        return b"".join(part if isinstance(part, bytes) else part(record) for part in self._parts)


def record_format(word: str) -> RecordFormat:
    """The type of `--format`."""
    return RecordFormat([_part(token) for token in _TOKEN.finditer(text(word))])


def _part(token: "re.Match[str]") -> Part:
    """ArgumentTypeError: what follows a percent sign or a backslash is not known."""
    for sign, table, name in (
        ("%", _DIRECTIVES, token["directive"]),
        ("\\", _ESCAPES, token["escape"]),
    ):
        if name is not None and name not in table:
            known = " ".join(f"{sign}{each}" for each in table)
            raise argparse.ArgumentTypeError(f"{shown(token[0])} is none of {known}")
        if name is not None:
            return table[name]
    return token[0].encode()


def _time(timestamp_us: int) -> bytes:
    """As in JSON."""
    time = _EPOCH + timedelta(microseconds=timestamp_us)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def _header(name: str, value: bytes) -> bytes:
    return b"%s=%s" % (name.encode(errors="surrogateescape"), value)
