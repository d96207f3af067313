"""Records come out of their lines byte by byte; the broker's own writer is the other side."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import UnexpectedAnswerError
from tailrace.protocol.records_ndjson import Record, decode_lines
from tailrace_broker.codec.ndjson import is_json
from tailrace_broker.codec.records import Record as StoredRecord
from tests.support.storage.batches import json_lines

HEAD = b'{"topic":"flights","partition":3,"offset":1702,"timestamp":"2026-11-21T10:09:23.114502Z",'
TIME_US = 1_795_255_763_114_502
# What looks like the end of a line, or like bytes in base64.
TRICKY_VALUES = [
    b'[{"a":1,"headers":[]}]',
    b'[{"a":1,"headers":[{"key":"k","value":{"base64":""}}]}]',
    b'{"a":1,"headers":[{"key":"k","value":{"base64":""}}]}',
    b'"\\",\\"headers\\":[{\\"key\\":\\"k\\",\\"value\\":{\\"base64\\":\\"\\"}}]}"',
    b'[{"a":1,"headers":[{"key":"k","value":"v"}]}]',
    b'{"a":1,"headers":[{"key":"k","value":"v"}]}',
    b'"\\",\\"headers\\":[{\\"key\\":\\"k\\",\\"value\\":\\"v\\"}]}"',
    b'{"base64":"MQ=="}',
    b'{"base64":"e30="}',
    b'{"base64":"/w=="}',
    b'{"base64":"/w==","valueEncoding":"base64"}',
    b'{"base64":"/w=="},"valueEncoding":"base64"',
    b'{"base64":""}x',
    b'{"base64": "/w=="}',
    b'{ "a" : 1.0e5 , "\xc3\xa9" : "\\u00e9\x7f" }',
    b"\xff\x00",
    b"",
    b"NaN",
    b" 1\t",
    None,
]


def lines_of(records: list[StoredRecord], *, values_are_json: bool = False) -> bytes:
    return b"".join(
        line + b"\n" for line in json_lines(3, records, values_are_json=values_are_json)
    )


@pytest.mark.parametrize(
    ("rest", "record"),
    [
        (
            b'"key":"SFO","value":{"a": 1}}',
            Record("flights", 3, 1702, TIME_US, b"SFO", b'{"a": 1}'),
        ),
        (b'"key":null,"value":null}', Record("flights", 3, 1702, TIME_US, None, None)),
        (b'"key":"","value":1}', Record("flights", 3, 1702, TIME_US, b"", b"1")),
        (
            b'"key":"\\u0000\\"\xc3\xa9","value":1}',
            Record("flights", 3, 1702, TIME_US, b'\x00"\xc3\xa9', b"1"),
        ),
        (
            b'"key":{"base64":"/w=="},"value":{"base64":"/wA="},"valueEncoding":"base64"}',
            Record("flights", 3, 1702, TIME_US, b"\xff", b"\xff\x00"),
        ),
        (
            b'"key":null,"value":{"base64":"/wA="}}',
            Record("flights", 3, 1702, TIME_US, None, b'{"base64":"/wA="}'),
        ),
        (
            b'"key":null,"value":[1],"headers":[{"key":"a","value":{"base64":"eA=="}},'
            b'{"key":{"base64":"/w=="},"value":"\\n\xc3\xa9"}]}',
            Record(
                "flights", 3, 1702, TIME_US, None, b"[1]", (("a", b"x"), ("\udcff", b"\n\xc3\xa9"))
            ),
        ),
    ],
)
def test_a_line_is_a_record(rest: bytes, record: Record) -> None:
    assert list(decode_lines(HEAD + rest + b"\n")) == [record]


def test_lines_that_name_no_topic_are_of_the_one_that_was_asked() -> None:
    body = lines_of([StoredRecord(0, TIME_US, None, b"1", [])])

    assert list(decode_lines(body, "orders")) == [Record("orders", 3, 0, TIME_US, None, b"1")]


def test_the_last_line_needs_no_end() -> None:
    assert [line.value for line in decode_lines(HEAD + b'"key":null,"value":1}')] == [b"1"]


@pytest.mark.parametrize("value", TRICKY_VALUES)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"k", b"\xff"), (b',"headers":[', b"")],
        [(b"k", b',"headers":[{"key":"k","value":""}]}'), (b"k", b'{"base64":"/w=="}')],
    ],
)
def test_values_come_back_as_they_were(
    value: bytes | None, headers: list[tuple[bytes, bytes]]
) -> None:
    stored = StoredRecord(5, TIME_US, b"\xff", value, headers)

    [record] = decode_lines(lines_of([stored]), "t")

    assert (record.value, record.key, record.offset) == (value, b"\xff", 5)
    assert [(key.encode(), value) for key, value in record.headers] == headers


stored_records = st.builds(
    StoredRecord,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**52),
    st.none() | st.binary(max_size=9) | st.text(max_size=9).map(str.encode),
    st.none()
    | st.binary(max_size=9)
    | st.sampled_from(TRICKY_VALUES)
    | st.floats(allow_nan=False).map(lambda number: repr(number).encode()),
    st.lists(st.tuples(st.text(max_size=5).map(str.encode), st.binary(max_size=5)), max_size=3),
)


@given(st.lists(stored_records, max_size=5))
def test_what_a_broker_writes_is_read(stored: list[StoredRecord]) -> None:
    records = list(decode_lines(lines_of(stored), "t"))

    assert [
        (
            record.offset,
            record.timestamp_us,
            record.key,
            record.value,
            [(key.encode(), value) for key, value in record.headers],
        )
        for record in records
    ] == [
        (each.offset, each.timestamp_us, each.key, as_read(each.value), each.headers)
        for each in stored
    ]


def as_read(value: bytes | None) -> bytes | None:
    """Line ends between tokens are spaces; `null` is no value."""
    if value is None or value == b"null":
        return None
    return value.replace(b"\n", b" ").replace(b"\r", b" ") if is_json(value) else value


def test_values_are_parsed_when_asked() -> None:
    record = Record("t", 0, 0, 0, None, b'{"a":[1]}')

    assert record.json() == {"a": [1]}
    assert record._replace(value=None).json() is None
    with pytest.raises(ValueError, match="Expecting"):
        record._replace(value=b"x").json()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b'{"partition":3}',
        HEAD + b'"key":1,"value":2}',
        HEAD + b'"key":null,"value":1',
        HEAD + b'"key":{"base64":"/"},"value":1}',
        HEAD.replace(b"11-21", b"13-21") + b'"key":null,"value":1}',
        b"<html>",
    ],
)
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(UnexpectedAnswerError, match="no record"):
        list(decode_lines(line + b"\n"))
