"""Keys and values against a plain reader: line by line, with the standard library's JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.keyed_ndjson import parse_key_path, read_keyed_lines
from tailrace_broker.model.errors import InvalidBodyError, InvalidRecordError, TailraceError

EVENTS = [
    b'{"k":"a"}',
    b'{"k":""}',
    b'{"k":"\\u0000\\n"}',
    '{"k":"ü"}'.encode(),
    b'{"x":"k","k":17}',
    b'{"k":-1.50e+3}',
    b'{"k":null}',
    b'{"k":{"k":"a"}}',
    b'{"k":"first","k":"last"}',
    b'{"k":"first","k":[]}',
    b'{"x":{"k":"no"}}',
    b"{}",
    b"[]",
    b"17",
]
PIECES = [b"{", b"}", b"[", b"]", b",", b'"', b'"k":', b'"a"', b"1", b"\xff", b'{"k":"a"', b'"\n"']
ENDS = [b"\n", b"\r\n", b"\n\n", b" ", b"", b"\r"]
bodies = st.lists(
    st.tuples(st.sampled_from([*EVENTS, *PIECES]), st.sampled_from(ENDS)).map(b"".join), max_size=8
).map(b"".join)
event_lines = st.lists(
    st.tuples(st.sampled_from(EVENTS[:6]), st.sampled_from(ENDS[:3])).map(b"".join), max_size=8
).map(b"".join)
Outcome = list[tuple[bytes, str]] | tuple[type[TailraceError], object]


class Number(str):
    """As it is written."""

    __slots__ = ()


def model(body: bytes) -> Outcome:
    """Values with their keys; or the error, with the line that it names."""
    numbered = enumerate(body.split(b"\n"), start=1)
    lines = [(number, line.removesuffix(b"\r")) for number, line in numbered]
    lines = [(number, value) for number, value in lines if value]
    if not lines:
        return InvalidBodyError, None
    events = []
    for number, value in lines:
        try:
            events.append(
                json.loads(
                    value.decode(),
                    parse_int=Number,
                    parse_float=Number,
                    parse_constant=lambda _: 1 / 0,
                )
            )
        except (ValueError, ZeroDivisionError):
            return InvalidRecordError, number
    found = []
    for (number, value), event in zip(lines, events, strict=True):
        key = event.get("k") if isinstance(event, dict) else None
        if not isinstance(key, str):
            return InvalidBodyError, number
        found.append((value, str(key)))
    return found


def outcome_of(body: bytes) -> Outcome:
    try:
        lines = read_keyed_lines(body, parse_key_path(".k"))
    except (InvalidBodyError, InvalidRecordError) as error:
        return type(error), error.members.get("line")
    values = lines.text.split(b"\n")
    assert lines.lengths.tolist() == list(map(len, values))
    return list(zip(values, lines.keys, strict=True))


@pytest.mark.parametrize("kind", [bytes, bytearray])
@given(body=bodies | event_lines)
def test_keys_and_errors_are_those_of_a_plain_reader(kind: type, body: bytes) -> None:
    assert outcome_of(kind(body)) == model(body)


@given(st.lists(st.sampled_from([b'{"k":"a"}', b"\n", b"}\n{", b'{"x":[{}', b"]", b"}", b","])))
def test_no_line_feed_within_a_text_is_taken_for_a_line_end(pieces: list[bytes]) -> None:
    body = b"".join(pieces)

    assert outcome_of(body) == model(body)
