"""Records as JSON, and what is wrong with one of them."""

import json
from typing import Any

import pytest

from tailrace_broker.codec.records_binary import RecordHeaders
from tailrace_broker.codec.records_json import ParsedRecords, parse_json_records
from tailrace_broker.model.errors import BodyTooLargeError, InvalidBodyError

BYTES = {"base64": "/w=="}


def parsed(*records: dict[str, Any]) -> ParsedRecords:
    return parse_json_records(json.dumps({"records": records}, separators=(",", ":")).encode())


def refusal_of(body: bytes) -> InvalidBodyError:
    with pytest.raises(InvalidBodyError) as caught:
        parse_json_records(body)
    return caught.value


def test_keys_are_texts_or_bytes_or_none() -> None:
    records = parsed({"key": "Zürich"}, {"key": ""}, {"key": BYTES}, {"key": None}, {}).records

    assert records.keys == ["Zürich".encode(), b"", b"\xff", None, None]
    assert records.values == [None] * 5
    assert records.timestamps_us is None
    assert records.headers is None


def test_values_are_json_as_it_is_written_or_bytes() -> None:
    values = [b'{"a" : 1.50}', b'"x"', b"null", b'{"base64":"/w=="}']
    body = b'{"records":[%s]}' % b",".join(b'{"value":%s}' % value for value in values)
    plain = parse_json_records(body)
    encoded = parsed({"value": BYTES, "valueEncoding": "base64"}, {"value": 1})

    assert plain.records.values == [b'{"a" : 1.50}', b'"x"', None, b'{"base64":"/w=="}']
    assert plain.values_are_json
    assert encoded.records.values == [b"\xff", b"1"]
    assert not encoded.values_are_json


def test_headers_are_an_object_or_a_list() -> None:
    repeated = [{"key": "a", "value": "1"}, {"key": "a", "value": BYTES}]
    headers = parsed({"headers": {"ü": "é"}}, {}, {"headers": repeated}).records.headers

    assert isinstance(headers, RecordHeaders)
    assert headers.counts.tolist() == [1, 0, 2]
    assert headers.keys == ["ü".encode(), b"a", b"a"]
    assert headers.values == ["é".encode(), b"1", b"\xff"]


def test_times_are_left_as_they_are_written() -> None:
    times: list[int | str] = [1_764_000_000_000_000, "2025-11-24T16:00Z"]

    assert parsed(*({"timestamp": time_} for time_ in times)).timestamps == times
    assert parsed({}, {"timestamp": None}).timestamps == []


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        ({"key": 1}, "key is a number; give text or an object with base64 or null"),
        ({"key": {"base64": "?"}}, "key.base64: Invalid base64"),
        ({"key": {}}, "key.base64 is missing"),
        ({"value": 1, "valueEncoding": "utf-8"}, "valueEncoding is 'utf-8'; give base64 or text"),
        ({"value": 1, "valueEncoding": "text"}, "valueEncoding is text, but value is not text"),
        ({"value": "x", "valueEncoding": "base64"}, "valueEncoding is base64, but value is not"),
        ({"valueEncoding": "base64"}, "valueEncoding is base64, but value is not"),
        ({"headers": {"a": 1}}, "headers[...] is a number; give text or an object"),
        ({"headers": [{"key": "a"}]}, "headers[0].value is missing"),
        ({"offset": 3}, "offset is unknown; the fields are key, value, valueEncoding, headers"),
        ({"timestamp": 1.5}, "timestamp is a decimal number; give a whole number or text or null"),
        ({"timestamp": 1_764_000_000_000_000}, "give a timestamp to each record, or to none"),
    ],
)
def test_what_is_wrong_with_a_record_names_its_index(record: dict[str, Any], detail: str) -> None:
    error = refusal_of(json.dumps({"records": [{}, {}, record]}).encode())

    assert error.detail.startswith("record 2: ")
    assert detail in error.detail
    assert error.detail.endswith("; nothing was stored")
    assert error.members == {"record": 2}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"records":[]}', "the body holds no event"),
        (b"", "the body is empty; give JSON"),
        (b'{"records":[{},{}', "the JSON is cut short at byte 17"),
        (b'{"records":[{}]} {}', "trailing characters at byte 17"),
        (b"}", "invalid character at byte 0"),
        (b'{"\\ud800":1}', "\\ud800 is half of a surrogate pair at byte 2"),
        (b'{"values":[]}', "values is unknown; the fields are records"),
        (b"{}", "records is missing"),
        (b"[]", "the body is a list; give an object with records"),
        (b'{"records":[{"value":' + b"[" * 100_000, "the body is nested too deeply"),
    ],
)
def test_what_is_wrong_with_the_body_is_said(body: bytes, detail: str) -> None:
    error = refusal_of(body)

    assert detail in error.detail
    assert error.detail.endswith("; nothing was stored")
    assert error.members == {}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b'{"value":{"s":"\\ud800"}}', "\\ud800 is half of a surrogate pair at byte 61"),
        (b'{"key":"\\udc00"}', "\\udc00 is half of a surrogate pair at byte 54"),
        (b'{"value":}', "invalid character at byte 55"),
        (b'{"value":[1,', "the JSON is cut short at byte 58"),
        (b'{"key":"\xff"}', "the body is not UTF-8 at byte 54"),
    ],
)
def test_a_record_that_is_not_json_is_named_by_its_index(record: bytes, reason: str) -> None:
    before = b'{"records":[{"value":"],\\"["},{"value":[1,2]},'
    error = refusal_of(before + record + (b"" if record.endswith(b",") else b",{}]}"))

    assert error.detail == f"record 2: {reason}; nothing was stored"
    assert error.members == {"record": 2}


def test_a_value_of_encoding_text_is_the_utf8_of_the_text() -> None:
    records = parsed({"value": 'said "é"\n', "valueEncoding": "text"}, {"value": "x"})

    assert records.records.values == ['said "é"\n'.encode(), b'"x"']
    assert not records.values_are_json


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"records":[%s]}' % b",".join([b"{}"] * 500_000), "more than 500000 objects"),
        (
            b'{"records":[{"headers":{%s}}]}'
            % b",".join(b'"%d":""' % number for number in range(500_001)),
            "more than 500000 record headers",
        ),
    ],
)
def test_records_and_headers_are_bounded(body: bytes, detail: str) -> None:
    with pytest.raises(BodyTooLargeError, match=detail):
        parse_json_records(body)
