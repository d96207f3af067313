"""Pure: lines, or events given as arguments, -> records, by the options of `tailrace produce`."""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.cli.lib.json_texts import parse_json
from tailrace.protocol.records_binary import Header

# The first group is an escape of half a surrogate pair; whole pairs and other escapes are passed.
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


class BadLine(NamedTuple):
    """The first line of several that is no event; `line_index` counts from 0."""

    line_index: int
    reason: str


class LineRecords(NamedTuple):
    """Keys and values of the lines up to the first bad one, and the index of each one's line."""

    keys: list[bytes | None]
    values: list[bytes]
    line_indices: list[int]
    bad_line: BadLine | None


class Form(NamedTuple):
    """Where keys, headers and times come from.

    `key`: of all events. `key_path`: field names, outermost first. `separator`: between key and
    value. `is_lines`: line ends are no part of values, and blank lines are no events.
    """

    key: bytes | None = None
    key_path: tuple[str, ...] = ()
    separator: bytes = b""
    headers: tuple[Header, ...] = ()
    timestamp_us: int | None = None
    is_lines: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the lines can go to the broker as they are."""
        return self == Form()

    @property
    def noun(self) -> str:
        """What errors call one."""
        return "line" if self.is_lines else "event"

    def records(self, lines: Sequence[bytes], *, json_check: bool) -> LineRecords:
        """`json_check`: also a value out of which no key is taken must be JSON."""
        keys: list[bytes | None] = []
        values: list[bytes] = []
        indices: list[int] = []
        is_lines, record = self.is_lines, self._record
        for index, line in enumerate(lines):
            value = line.removesuffix(b"\n").removesuffix(b"\r") if is_lines else line
            if is_lines and not value:
                continue
            try:
                key, value = record(value, json_check)
            except ValueError as error:
                return LineRecords(keys, values, indices, BadLine(index, str(error)))
            keys.append(key)
            values.append(value)
            indices.append(index)
        return LineRecords(keys, values, indices, None)

    def _record(self, line: bytes, json_check: bool) -> tuple[bytes | None, bytes]:
        """A line's key and value. ValueError says what is wrong with it."""
        key, value = self.key, line
        if self.separator:
            key, found, value = line.partition(self.separator)
            if not found:
                raise ValueError(f"has no separator {self.separator.decode()!r} behind its key")
        if self.key_path:
            return record_key(value, self.key_path), value
        if json_check:
            read_event(value)
        return key, value


def parse_key_path(text: str) -> tuple[str, ...]:
    """ ".customer.id" -> field names, outermost first. ValueError: not of that form."""
    names = text.split(".")
    if len(names) < 2 or names[0] or not all(names[1:]):
        raise ValueError(f'"{text}" is not a field path, like .customer or .customer.id')
    return tuple(names[1:])


def record_key(value: bytes, key_path: Sequence[str]) -> bytes:
    """The field's text; a number's as written. ValueError says what is wrong with the line."""
    field = read_event(value)
    for name in key_path:
        field = field.get(name) if isinstance(field, dict) else None
    if isinstance(field, str):
        return field.encode()
    if isinstance(field, bool):
        return b"true" if field else b"false"
    path = "".join(f".{name}" for name in key_path)
    raise ValueError(f"has no {'' if field is None else 'text or number in '}{path}")


def read_event(value: bytes) -> object:
    """What the JSON text says, numbers as written. ValueError: it is none, and why."""
    try:
        event: object = parse_json(value, read_number=str)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not JSON (not UTF-8 at byte {error.start + 1})") from error
    except json.JSONDecodeError as error:
        what = f"{error.msg[0].lower()}{error.msg[1:]}".removesuffix(" at")  # as some end
        reason = f"{what} at character {error.pos + 1}"
        raise ValueError(f"is not JSON ({reason})") from error
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    if b"\\u" in value:
        half_pairs = [found[1] for found in _HALF_PAIR.finditer(value) if found[1]]
        if half_pairs:
            raise ValueError(f"is not JSON ({half_pairs[0].decode()} is half of a surrogate pair)")
    return event
