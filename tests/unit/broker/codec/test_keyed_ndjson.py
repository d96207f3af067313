"""The key of each line of an NDJSON body is taken out of its JSON."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.columns import EVENTS_MAX
from tailrace_broker.codec.keyed_ndjson import (
    DEPTH_MAX,
    KeyedLines,
    parse_key_path,
    read_keyed_lines,
)
from tailrace_broker.model.errors import InvalidBodyError, InvalidRecordError, TailraceError


def keys_of(body: bytes, path: str = ".k") -> list[bytes]:
    """Of each line."""
    lines = read_keyed_lines(body, parse_key_path(path))
    assert len(lines.keys) == len(values_of(lines))
    return list(map(str.encode, lines.keys))


def values_of(lines: KeyedLines) -> list[bytes]:
    """The values, whose lengths are as they say."""
    values = lines.text.split(b"\n")
    assert lines.lengths.tolist() == list(map(len, values))
    return values


def refusal_of(body: bytes, path: str = ".k") -> TailraceError:
    with pytest.raises(TailraceError) as caught:
        keys_of(body, path)
    return caught.value


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (rb'"SFO"', b"SFO"),
        (rb'""', b""),
        (rb'"Z\u00fcrich \"4\""', 'Zürich "4"'.encode()),
        ('"Zürich"'.encode(), "Zürich".encode()),
        (rb'"\ud83d\ude00"', "😀".encode()),
        (b"17", b"17"),
        (b"-1.50e+3", b"-1.50e+3"),
        (b"12345678901234567890123", b"12345678901234567890123"),
        (b"true", b"true"),
        (b"false", b"false"),
    ],
)
def test_a_key_is_a_text_or_what_else_is_written(text: bytes, key: bytes) -> None:
    assert keys_of(b'{"a":[{}],"k":%s,"z":"k"}' % text) == [key]
    assert keys_of(b'{"k":0,"k" : %s }' % text) == [key]


def test_a_path_leads_through_objects() -> None:
    body = b'{"customer":{"name":{"id":"no"},"id":"c1"},"id":"no"}'

    assert keys_of(body, ".customer.id") == [b"c1"]


@pytest.mark.parametrize("name", ["a-b", "Zürich", "class", "field", "a b", "0"])
def test_a_field_may_have_any_name(name: str) -> None:
    assert keys_of(json.dumps({name: "x"}).encode(), f".{name}") == [b"x"]


@pytest.mark.parametrize("key", [b"1", b'"1"'])
def test_texts_must_be_lines_each_one_even_when_there_are_as_many(key: bytes) -> None:
    event = b'{"k":%s}' % key
    refused = refusal_of(event + b" " + event + b'\n{"x":[{}\n,{}],"k":%s}' % key)

    assert refused.members == {"line": 1}
    assert refusal_of(event + event + b"\n" + event).members == {"line": 1}


def test_more_texts_than_a_request_may_have_are_refused_by_their_line() -> None:
    assert refusal_of(b'{"k":""}' * (EVENTS_MAX + 1)).members == {"line": 1}
    assert refusal_of(b'{"k":""}' * (EVENTS_MAX + 1) + b'\n{"k":""}').members == {"line": 1}


@pytest.mark.parametrize(
    "body", [b'{"k":1}\n{"k":2}\n', b'{"k":1}\r\n\n {"k":2} \r\n\r\n', b'{"k":1}\n{"k":2}']
)
def test_values_are_the_lines_without_their_ends(body: bytes) -> None:
    lines = read_keyed_lines(body, parse_key_path(".k"))

    assert lines.keys == ["1", "2"]
    assert [value.strip() for value in values_of(lines)] == [b'{"k":1}', b'{"k":2}']


@pytest.mark.parametrize("body", [b"\n", b"\r\n", b"\n\r\n\n"])
def test_a_body_without_an_event_is_refused(body: bytes) -> None:
    assert isinstance(refusal_of(body), InvalidBodyError)


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b"{}", "line 3 has no .k, its key; nothing was stored"),
        (b'{"k":null}', "line 3 has no .k, its key; nothing was stored"),
        (b'[{"k":1}]', "line 3 has no .k, its key; nothing was stored"),
        (b"1", "line 3 has no .k, its key; nothing was stored"),
        (b'{"k":{"k":1}}', "line 3 has no text or number in .k, its key; nothing was stored"),
        (b'{"k":["1"]}', "line 3 has no text or number in .k, its key; nothing was stored"),
    ],
)
def test_the_first_line_without_a_key_is_named(line: bytes, detail: str) -> None:
    error = refusal_of(b'{"k":1}\r\n\r\n' + line + b'\n{"k":[]}\n{}\n{"k":null}')

    assert isinstance(error, InvalidBodyError)
    assert (error.detail, error.members) == (detail, {"line": 3})


def test_what_is_no_object_on_the_way_has_no_key() -> None:
    assert refusal_of(b'{"a":{"b":1}}\n{"a":"b"}', ".a.b").members == {"line": 2}


@pytest.mark.parametrize(
    "line",
    [
        b'{"k":}',
        b'{"k":1} {"k":2}',
        b'{"k":"1"} {"k":"2"}',
        b'{"k":"\xff"}',
        b'{"k":1,"x":"\xff"}',
        b'{"k":1,"x":tru}',
        b"{" * 9999,
    ],
)
def test_a_line_that_is_not_json_is_named_before_one_without_a_key(line: bytes) -> None:
    error = refusal_of(b'{"k":1}\n{}\n' + line)

    assert isinstance(error, InvalidRecordError)
    assert error.members == {"line": 3}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "k",
        "k.a",
        ".a..b",
        ".a.",
        '.a"b',
        ".a\\b",
        ".\x07",
        ".\udcff",
        ".a" * (DEPTH_MAX + 1),
    ],
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("a field path of at most 16 names")):
        parse_key_path(text)


def test_a_path_has_so_many_names_and_no_more() -> None:
    value: object = "deep"
    for _ in range(DEPTH_MAX):
        value = {"a": value}

    assert keys_of(json.dumps(value).encode(), ".a" * DEPTH_MAX) == [b"deep"]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("kabc"), st.text() | st.integers() | st.booleans(), min_size=1
        ),
        min_size=1,
    )
)
def test_keys_are_those_that_a_json_reader_finds(events: list[dict[str, str | int | bool]]) -> None:
    for number, event in enumerate(events):
        event.setdefault("k", number)
    body = b"\n".join(json.dumps(event).encode() for event in events)
    written = [
        event["k"] if isinstance(event["k"], str) else json.dumps(event["k"]) for event in events
    ]

    assert keys_of(body) == [key.encode() for key in written]
