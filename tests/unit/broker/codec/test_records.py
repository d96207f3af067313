import json
import struct

import pytest

from tailrace.wire import BatchHeader, Flag
from tailrace_broker.codec.batch import decompress_payload, verify_batch
from tailrace_broker.codec.records import (
    Record,
    _time_field,
    find_record_of_time,
    format_timestamp,
    unpack_columns,
)
from tailrace_broker.model.errors import CorruptBatchError
from tests.support.storage.batches import (
    TIME_US,
    Event,
    batch_of,
    json_lines,
    read_by_broker,
    records_of,
)


def header_of(record_count: int, flags: int = 0) -> BatchHeader:
    return verify_batch(memoryview(batch_of([Event(b"")])))._replace(
        record_count=record_count, flags=flags
    )


def line_of(record: Record, *, values_are_json: bool = False) -> bytes:
    (line,) = json_lines(3, [record], values_are_json=values_are_json)
    return line


def record_of(
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Record:
    return Record(7, TIME_US, key, value, headers or [])


def test_records_come_back_in_order_with_dense_offsets() -> None:
    headers = [(b"trace", b"\x00\xff"), (b"trace", b"")]
    events = [
        Event(b"1", key=b"SFO", timestamp_us=TIME_US + 2),
        Event(None, key=None, timestamp_us=TIME_US),
        Event(b"", key=b"", timestamp_us=TIME_US + 1, headers=headers),
    ]

    records = read_by_broker(batch_of(events, base_offset=1702))

    assert records == [
        Record(1702, TIME_US + 2, b"SFO", b"1", []),
        Record(1703, TIME_US, None, None, []),
        Record(1704, TIME_US + 1, b"", b"", headers),
    ]


def test_some_records_come_back_as_they_do_with_all() -> None:
    many = [Event(b"%d" % n, headers=[(b"%d" % n, b"h")] * (n % 3)) for n in range(9)]
    batch = memoryview(batch_of(many))
    header = verify_batch(batch)
    columns = decompress_payload(header, batch)
    for first in range(10):
        for last in range(first, 10):
            records = unpack_columns(header, columns, first=first, last=last)

            assert records == records_of(many, 0)[first:last]


def test_the_first_record_of_a_time_or_later_is_found_in_its_batch() -> None:
    batch = memoryview(batch_of([Event(b"", timestamp_us=time) for time in (5, 3, 7, 7, 1)]))
    header = verify_batch(batch)._replace(base_offset=100)
    columns = decompress_payload(header, batch)

    def found(time: int, first_offset: int = 0) -> int | None:
        return find_record_of_time(header, columns, time, first_offset=first_offset)

    assert [found(time) for time in range(1, 8)] == [*[100] * 5, 102, 102]
    with pytest.raises(CorruptBatchError, match="none of its records'"):
        found(8)

    assert [found(6, first_offset=each) for each in (0, 103, 104)] == [102, 103, None]


@pytest.mark.parametrize("count", [7, 8, 9, 100])
def test_nulls_are_kept_apart_from_empty_values_in_a_batch_of_any_length(count: int) -> None:
    some_of_each = [Event(value, key=key) for value in (None, b"", b"1") for key in (b"", None)]
    events = (some_of_each * count)[:count]

    assert read_by_broker(batch_of(events)) == records_of(events, 0)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        pytest.param(b"", "ends behind its payload", id="no columns"),
        pytest.param(bytes(8), "ends behind its payload", id="no second column"),
        pytest.param(struct.pack("<2i2iq2s", 0, 3, 0, 0, 0, b"ab"), "ends behind", id="few values"),
        pytest.param(struct.pack("<2i2iq", 1, 1, 0, 0, 0), "do not ascend from 0", id="not from 0"),
        pytest.param(struct.pack("<2i2iq", 0, -1, 0, 0, 0), "do not ascend", id="below 0"),
    ],
)
def test_a_column_out_of_bounds_is_damage(columns: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        unpack_columns(header_of(1), memoryview(columns))


@pytest.mark.parametrize("offsets", [(0, 2, 1), (0, 2**31 - 1, -(2**31))], ids=["by 1", "by 2^32"])
def test_offsets_that_fall_are_damage(offsets: tuple[int, int, int]) -> None:
    columns = struct.pack("<3i4x3i4x2q", *offsets, 0, 0, 0, 0, 0)

    with pytest.raises(CorruptBatchError, match="do not ascend"):
        unpack_columns(header_of(2), memoryview(columns))


def test_a_line_says_where_and_when_the_record_is() -> None:
    assert line_of(record_of(b'{"origin":"SFO"}', key=b"SFO")) == (
        b'{"partition":3,"offset":7,"timestamp":"2025-11-24T16:00:00.000000Z",'
        b'"key":"SFO","value":{"origin":"SFO"}}'
    )


def test_a_line_can_begin_with_its_topic() -> None:
    record = record_of(b"1", key=b"SFO")
    (line,) = json_lines(3, [record], values_are_json=True, topic="flights")

    assert line == b'{"topic":"flights",' + line_of(record).removeprefix(b"{")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (b"null", None),
        (b' {"a": [1]} ', {"a": [1]}),
        (b"[1,\n2]", [1, 2]),
        (b"[1,\r\n2]", [1, 2]),
        (b"[1,\r2]", [1, 2]),
        (b"", {"base64": ""}),
        (b"plain text", {"base64": "cGxhaW4gdGV4dA=="}),
        (b'"\xff"', {"base64": "Iv8i"}),
    ],
)
def test_a_value_is_shown_as_json_or_base64(value: bytes | None, shown: object) -> None:
    line = line_of(record_of(value))

    assert json.loads(line)["value"] == shown
    assert line.splitlines() == [line]


def test_bytes_in_base64_are_distinguished_from_json_that_looks_like_them() -> None:
    of_bytes = json.loads(line_of(record_of(b"\xff", headers=[(b"a", b"")])))
    of_json = json.loads(line_of(record_of(b'{"base64":"/w=="}')))

    assert of_bytes["value"] == of_json["value"] == {"base64": "/w=="}
    assert of_bytes["valueEncoding"] == "base64"
    assert "valueEncoding" not in of_json


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, None),
        (b"", ""),
        ('Zü"rich\n'.encode(), 'Zü"rich\n'),
        (b"\xff\x00", {"base64": "/wA="}),
    ],
)
def test_a_key_is_shown_as_text_or_base64(key: bytes | None, shown: object) -> None:
    assert json.loads(line_of(record_of(b"1", key=key)))["key"] == shown


def test_values_checked_at_produce_are_not_looked_at_again() -> None:
    assert line_of(record_of(b"1 2"), values_are_json=True).endswith(b'"value":1 2}')


def test_headers_are_shown_when_there_are_some() -> None:
    headers = [(b"trace", b"\xff"), (b"trace", b""), (b"source", '"wéb"'.encode())]

    assert json.loads(line_of(record_of(b"1", headers=headers)))["headers"] == [
        {"key": "trace", "value": {"base64": "/w=="}},
        {"key": "trace", "value": ""},
        {"key": "source", "value": '"wéb"'},
    ]
    assert "headers" not in json.loads(line_of(record_of(b"1")))


def test_each_record_is_a_line_of_its_own() -> None:
    records = [record_of(b"%d" % number) for number in range(3)]

    lines = list(json_lines(0, records, values_are_json=True))

    assert [json.loads(line)["value"] for line in lines] == [0, 1, 2]


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, b"1970-01-01T00:00:00.000000Z"),
        (999_999, b"1970-01-01T00:00:00.999999Z"),
        (1_795_255_763_114_502, b"2026-11-21T10:09:23.114502Z"),
        (-1, b"1969-12-31T23:59:59.999999Z"),
        (253_402_300_799_999_999, b"9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_timestamp_is_shown_in_utc_with_microseconds(time_us: int, text: bytes) -> None:
    assert format_timestamp(time_us) == text


def test_flags_ask_for_the_columns_that_they_name() -> None:
    without_them = batch_of([Event(b"1", key=b"k")])
    header = verify_batch(memoryview(without_them))

    for flag in (Flag.NULL_VALUES, Flag.NULL_KEYS, Flag.HEADERS):
        with pytest.raises(CorruptBatchError):
            unpack_columns(
                header._replace(flags=flag), decompress_payload(header, memoryview(without_them))
            )


def test_times_of_several_seconds_are_written_whole_in_any_order() -> None:
    for times_us in ([1_500_000, 900_000], [900_000, 1_500_000], [1_500_000, 1_000_000]):
        template, fields = _time_field(times_us)
        assert [template % each for each in fields] == list(map(format_timestamp, times_us))
