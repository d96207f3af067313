"""Lines made column by column are those made record by record, and damage is found in both ways."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire import BatchHeader, Flag
from tailrace_broker.codec.batch import decompress_payload, verify_batch
from tailrace_broker.codec.column_reader import FEW, ColumnReader, read_few
from tailrace_broker.codec.records import column_lines, cut_columns
from tailrace_broker.model.errors import CorruptBatchError
from tests.support.storage.batches import TIME_US, Event, batch_of, json_lines, records_of

keys = st.none() | st.binary(max_size=4) | st.text(max_size=4).map(str.encode)
values = st.none() | st.sampled_from([b"1", b"[1,\n2]", b"[1,\r2]", b'"%d%%s"', b"\xff", b""])
headers = st.lists(st.tuples(st.just(b"trace"), st.binary(max_size=2)), max_size=2)
events = st.builds(
    Event,
    value=values,
    key=keys,
    timestamp_us=st.integers(TIME_US, TIME_US + 1_500_000),
    headers=st.just([]) | headers,
)


def columns_of(events: list[Event]) -> tuple[BatchHeader, memoryview]:
    batch = memoryview(batch_of(events, base_offset=1702))
    header = verify_batch(batch)
    return header, decompress_payload(header, batch)


@given(st.lists(events, min_size=1, max_size=6), st.booleans(), st.sampled_from([None, "flights"]))
def test_records_become_the_same_lines_together_as_one_by_one(
    given_events: list[Event], values_are_json: bool, topic: str | None
) -> None:
    columns = cut_columns(*columns_of(given_events))
    records = records_of(given_events, 1702)

    lines = column_lines(3, 1702, columns, values_are_json=values_are_json, topic=topic)

    assert lines == list(json_lines(3, records, values_are_json=values_are_json, topic=topic))


def test_any_ascii_character_of_a_key_is_shown_as_json_shows_it() -> None:
    shown = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
    shown |= {0x22: '\\"', 0x5C: "\\\\"}
    for code in range(0x80):
        records = records_of([Event(b"1", key=bytes([code]))], 0)
        (line,) = json_lines(3, records, values_are_json=True)

        expected = shown.get(code, f"\\u{code:04x}" if code < 0x20 else chr(code))
        assert b'"key":"%s",' % expected.encode() in line


@pytest.mark.parametrize("count", [1, 2, FEW - 1, FEW, FEW + 1, 3 * FEW])
def test_a_batch_of_few_records_is_read_as_one_of_many(count: int) -> None:
    given_events = [
        Event(b"%d" % (number * 7919), key=b"k" * (number % 3), timestamp_us=TIME_US - number)
        for number in range(count)
    ]

    columns = cut_columns(*columns_of(given_events))

    assert columns.values == [event.value for event in given_events]
    assert columns.keys == [event.key for event in given_events]
    assert columns.timestamps == [event.timestamp_us for event in given_events]
    assert columns.headers == [[]] * count


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        pytest.param(struct.pack("<4i4i2q", 0, 0, 0, 1, *[0] * 6), "fill", id="behind values"),
        pytest.param(struct.pack("<4i4i2q", *[0] * 7, 1, 0, 0), "fill", id="behind keys"),
        pytest.param(struct.pack("<4i4i2q", 0, 0, -1, *[0] * 7), "ascend", id="values' offsets"),
        pytest.param(struct.pack("<4i4iq", *[0] * 9), "ends behind", id="no last timestamp"),
        pytest.param(struct.pack("<4i4i2q", *[0] * 6, 1, *[0] * 3), "ends behind", id="no keys"),
    ],
)
def test_damage_is_found_in_a_batch_of_few_records_as_of_many(columns: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        read_few(memoryview(columns), 2)
    with pytest.raises(CorruptBatchError, match=reason):
        read_by_columns(columns, 2)


def read_by_columns(columns: bytes, count: int) -> None:
    reader = ColumnReader(memoryview(columns))
    value_offsets, key_offsets = reader.offsets(count), reader.offsets(count)
    reader.timestamps(count)
    reader.take(int(value_offsets[-1]))
    reader.take(int(key_offsets[-1]))


def test_damage_is_found_in_a_batch_of_many_records() -> None:
    header, columns = columns_of([Event(b"1", key=b"k")] * (FEW + 1))
    damaged = bytearray(columns)
    damaged[0] = 1

    for flags in (header.flags, header.flags | Flag.NULL_KEYS):
        with pytest.raises(CorruptBatchError, match="do not ascend from 0"):
            cut_columns(header._replace(flags=flags), memoryview(damaged))
