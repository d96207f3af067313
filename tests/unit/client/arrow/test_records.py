from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.arrow.records import (
    REQUEST_BYTES_MAX,
    REQUEST_ROWS_MAX,
    InvalidRowError,
    encode_batch,
    group_by_topic,
    split_for_requests,
)
from tailrace.protocol.records_binary import encode_records
from tests.support.storage.batches import Event, records_body_of

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

events = st.lists(
    st.builds(
        Event,
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=50),
        timestamp_us=st.integers(0, 4_000_000_000_000_000),
        headers=st.lists(
            st.tuples(st.text(max_size=5).map(str.encode), st.binary(max_size=5)), max_size=2
        ),
    ),
    min_size=1,
    max_size=8,
)


def rows_of(events: list[Event], *, with_headers: bool = True) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "key": pa.array([event.key for event in events], pa.binary()),
        "value": pa.array([event.value for event in events], pa.binary()),
        "timestamp": pa.array([event.timestamp_us for event in events], TIMESTAMP_TYPE),
    }
    if with_headers:
        headers = [
            [{"key": key.decode(), "value": value} for key, value in event.headers] or None
            for event in events
        ]
        columns["headers"] = pa.array(headers, HEADERS_TYPE)
    return pa.record_batch(columns)


def batch_of(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


@given(events, st.data())
def test_a_body_is_that_of_the_same_records_one_by_one(
    events: list[Event], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(events) - 1))
    part = events[start:]

    # A slice, as Spark and `split_for_requests` make: its buffers begin before its rows.
    body = encode_batch(rows_of(events).slice(start))

    assert body == records_body_of(part, has_timestamps=True, has_headers=True)


@given(events)
def test_a_body_without_headers_is_the_clients(events: list[Event]) -> None:
    keys = [event.key for event in events]
    values = [event.value for event in events]
    timestamps_us = [event.timestamp_us for event in events]
    rows = rows_of(events, with_headers=False)

    assert encode_batch(rows) == encode_records(keys, values, timestamps_us)
    assert encode_batch(rows.select(["value", "key"])) == encode_records(keys, values)
    assert encode_batch(rows.select(["value"])) == encode_records([None] * len(keys), values)


def test_texts_are_written_as_utf8() -> None:
    rows = batch_of(key=["é", None], value=["1", "22"])

    assert encode_batch(rows) == encode_records(["é".encode(), None], [b"1", b"22"])


def test_times_of_other_units_become_microseconds() -> None:
    time = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    rows = pa.record_batch(
        {"value": pa.array([b"1"]), "timestamp": pa.array([time], pa.timestamp("ms", tz="UTC"))}
    )

    assert encode_batch(rows) == encode_records([None], [b"1"], [int(time.timestamp()) * 1_000_000])


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"timestamp": pa.array([None], TIMESTAMP_TYPE)}, "a row has a null timestamp"),
        (
            {"headers": pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE)},
            "a header has a null key or value",
        ),
        (
            {"headers": pa.array([[{"key": "k", "value": None}]], HEADERS_TYPE)},
            "a header has a null key or value",
        ),
        ({"headers": pa.array([[None]], HEADERS_TYPE)}, "a header has a null key or value"),
    ],
)
def test_what_no_record_can_hold_is_refused(column: dict[str, pa.Array], reason: str) -> None:
    with pytest.raises(InvalidRowError, match=reason):
        encode_batch(pa.record_batch({"value": pa.array([b"1"]), **column}))


def test_rows_are_grouped_by_their_topic_in_order() -> None:
    rows = batch_of(topic=["b", "a", "b"], value=[b"1", b"2", b"3"])

    groups = {name: group["value"].to_pylist() for name, group in group_by_topic(rows)}

    assert groups == {"b": [b"1", b"3"], "a": [b"2"]}


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(InvalidRowError, match="a row has a null topic"):
        list(group_by_topic(batch_of(topic=["a", None], value=[b"1", b"2"])))


@pytest.mark.parametrize(
    ("row_count", "value_bytes"), [(REQUEST_ROWS_MAX + 1, 0), (9, REQUEST_BYTES_MAX // 4), (1, 0)]
)
def test_a_request_takes_only_so_many_rows_and_bytes(row_count: int, value_bytes: int) -> None:
    rows = batch_of(value=[bytes(value_bytes)] * row_count)

    pieces = list(split_for_requests(rows))

    assert sum(piece.num_rows for piece in pieces) == row_count
    assert all(piece.num_rows <= REQUEST_ROWS_MAX for piece in pieces)
    assert all(piece.nbytes <= REQUEST_BYTES_MAX for piece in pieces)


def test_a_row_that_is_larger_than_a_request_should_be_goes_alone_and_no_rows_not_at_all() -> None:
    large = batch_of(value=[b"", bytes(REQUEST_BYTES_MAX + 1), b""])

    assert [piece.num_rows for piece in split_for_requests(large)] == [1, 1, 1]
    assert list(split_for_requests(large.slice(0, 0))) == []
