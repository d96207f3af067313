"""Pure: an NDJSON stream -> batches of lines, and a record's key out of its JSON."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase
from typing import Any, NamedTuple, Never


class Batch(NamedTuple):
    """Some lines of a stream with their line ends; `first_line` counts from 1."""

    first_line: int
    lines: list[bytes]


class BadLine(NamedTuple):
    """The first line of a batch that is no event; `line_index` counts from 0 in the batch."""

    line_index: int
    reason: str


class KeyedRecords(NamedTuple):
    """Keys and values of the lines up to the first bad one."""

    keys: list[bytes]
    values: list[bytes]
    bad_line: BadLine | None


def read_batches(stream: BufferedIOBase, batch_bytes: int) -> Iterator[Batch]:
    """Whole lines, together at least `batch_bytes` long but for the last batch."""
    first_line = 1
    while lines := stream.readlines(batch_bytes):
        yield Batch(first_line, lines)
        first_line += len(lines)


def parse_key_path(text: str) -> tuple[str, ...]:
    """ ".customer.id" -> field names, outermost first. ValueError: not of that form."""
    names = text.split(".")
    if len(names) < 2 or names[0] or not all(names[1:]):
        raise ValueError(f'"{text}" is not a field path, like .customer or .customer.id')
    return tuple(names[1:])


def keyed_records(lines: Sequence[bytes], key_path: Sequence[str]) -> KeyedRecords:
    """Take the key out of each line; blank lines are skipped, as the broker skips them."""
    keys: list[bytes] = []
    values: list[bytes] = []
    for index, line in enumerate(lines):
        value = line.removesuffix(b"\n").removesuffix(b"\r")
        if not value:
            continue
        try:
            keys.append(record_key(value, key_path))
        except ValueError as error:
            return KeyedRecords(keys, values, BadLine(index, str(error)))
        values.append(value)
    return KeyedRecords(keys, values, None)


def record_key(value: bytes, key_path: Sequence[str]) -> bytes:
    """The field's text; a number's as written. ValueError says what is wrong with the line."""
    try:
        field = parse_json(value, read_number=str)
    except ValueError as error:
        raise ValueError("is not JSON") from error
    for name in key_path:
        field = field.get(name) if isinstance(field, dict) else None
    path = "".join(f".{name}" for name in key_path)
    if field is None:
        raise ValueError(f"has no {path}")
    if isinstance(field, bool):
        return b"true" if field else b"false"
    try:
        return str.encode(field)
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"has no text or number in {path}") from error


def number_or_text(written: str) -> int | float | str:
    """A number of JSON; what neither `int` nor `float` holds stays as it is written."""
    try:
        return int(written)
    except ValueError:  # a fraction or an exponent, or more digits than Python converts
        number = float(written)
        return number if math.isfinite(number) else written


def parse_json(stored: bytes, *, read_number: Callable[[str], Any] = number_or_text) -> Any:
    """One JSON text in UTF-8. ValueError: it is none, or is nested too deeply to be read here."""
    try:
        return json.loads(
            stored.decode(),
            parse_int=read_number,
            parse_float=read_number,
            parse_constant=_refuse_constant,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse_constant(name: str) -> Never:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not a JSON value")
