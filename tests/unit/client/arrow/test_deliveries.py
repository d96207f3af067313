"""Binary deliveries, of several partitions and topics, become Arrow record batches."""

from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tailrace.arrow.batches import SCHEMA, SCHEMA_WITH_HEADERS
from tailrace.arrow.deliveries import decode_delivery, topic_ids
from tailrace.errors import CorruptBatchError
from tailrace.protocol.group_values import Polled, Registered
from tailrace.sansio.consuming import Consuming, Step
from tailrace.values import TopicInfo
from tailrace_broker.codec.batch import BatchPlace, compress_columns, stamp_batch
from tailrace_broker.codec.columns import column_of_values, pack_columns

FLIGHTS, ORDERS = UUID(int=1), UUID(int=2)
NAMES = {FLIGHTS.bytes: "flights", ORDERS.bytes: "orders"}
TIME_US = 1_764_000_000_000_000

Row = tuple[str, int, int, bytes]


def batch(topic_id: UUID, partition: int, offset: int, *values: bytes) -> bytes:
    columns = pack_columns(
        column_of_values(values),
        column_of_values([None] * len(values)),
        np.full(len(values), TIME_US, np.int64),
    )
    place = BatchPlace(
        topic_id=topic_id,
        range_id=0,
        partition=partition,
        epoch=1,
        previous_epoch=1,
        base_offset=offset,
        append_time_us=TIME_US,
        high_watermark=offset,
    )
    return b"".join(stamp_batch(compress_columns(columns), place).buffers)


def rows_of(batches: list[pa.RecordBatch]) -> list[Row]:
    return [
        (row["topic"], row["partition"], row["offset"], row["value"])
        for batch in batches
        for row in batch.to_pylist()
    ]


BODY = (
    batch(FLIGHTS, 3, 10, b"a", b"b")
    + batch(FLIGHTS, 3, 12, b"c")
    + batch(FLIGHTS, 4, 0, b"d")
    + batch(ORDERS, 4, 7, b"e", b"f")
)


def test_each_partition_has_its_rows() -> None:
    batches = list(decode_delivery(BODY, topics=NAMES, start_offsets={}, end_offsets={}))

    assert [each.schema for each in batches] == [SCHEMA] * 4
    assert rows_of(batches) == [
        ("flights", 3, 10, b"a"),
        ("flights", 3, 11, b"b"),
        ("flights", 3, 12, b"c"),
        ("flights", 4, 0, b"d"),
        ("orders", 4, 7, b"e"),
        ("orders", 4, 8, b"f"),
    ]


def test_records_before_the_start_offsets_are_left_out() -> None:
    starts = {("flights", 3): 11, ("orders", 4): 8}

    rows = rows_of(list(decode_delivery(BODY, topics=NAMES, start_offsets=starts, end_offsets={})))

    assert [row[3] for row in rows] == [b"b", b"c", b"d", b"f"]


def test_records_from_the_end_offsets_on_are_left_out() -> None:
    starts, ends = {("flights", 3): 11}, {("flights", 3): 12, ("orders", 4): 8}

    decoded = decode_delivery(BODY, topics=NAMES, start_offsets=starts, end_offsets=ends)

    assert [row[3] for row in rows_of(list(decoded))] == [b"b", b"d", b"e"]


def test_headers_come_when_they_are_wanted() -> None:
    decoded = decode_delivery(
        BODY, topics=NAMES, start_offsets={}, end_offsets={}, include_headers=True
    )

    assert {each.schema for each in decoded} == {SCHEMA_WITH_HEADERS}


def test_a_topic_that_was_deleted_meanwhile_is_left_out() -> None:
    names = {ORDERS.bytes: "orders"}

    assert topic_ids(BODY) == NAMES.keys()
    rows = rows_of(list(decode_delivery(BODY, topics=names, start_offsets={}, end_offsets={})))
    assert [row[0] for row in rows] == ["orders", "orders"]


def test_an_empty_delivery_has_no_rows() -> None:
    assert topic_ids(b"") == set()
    assert list(decode_delivery(b"", topics={}, start_offsets={}, end_offsets={})) == []


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (BODY[:100], "cut short"),
        (b"<" * 200, "no batch at byte 0"),
        (BODY[:-1], "missing"),
        (batch(FLIGHTS, 3, 10, b"a") + batch(FLIGHTS, 3, 12, b"c"), "offset 11 is missing"),
    ],
)
def test_damage_is_reported(body: bytes, reported: str) -> None:
    with pytest.raises(CorruptBatchError, match=reported):
        list(decode_delivery(body, topics=NAMES, start_offsets={}, end_offsets={}))


# --- as a consumer's ------------------------------------------------------------------------------


def consumer_of(*topics: str) -> Consuming:
    """One that has registered and wants batches."""
    state = Consuming("g", topics, new_id="c1")
    state.ask("batches")
    state.registered(Registered("c1", "g", topics, "startFromEarliest", 30_000, 1))
    return state


def rows_handed_out(state: Consuming) -> list[Row]:
    batches = []
    while (taken := state.take()) is not None:
        batches.append(taken)
    return rows_of(batches)


def info(name: str, topic_id: UUID) -> TopicInfo:
    return TopicInfo(name, str(topic_id), 4, True, "fsync", 4, 1)


def test_a_consumer_of_one_topic_knows_its_name() -> None:
    state = consumer_of("flights")

    body = batch(FLIGHTS, 0, 5, b"a", b"b", b"c")
    state.polled(Polled(body, 1, 1, {("flights", 0): 6}, None, {("flights", 0): 7}))

    assert state.next_step() is None
    assert rows_handed_out(state) == [("flights", 0, 6, b"b")]
    assert state.commit_parameters() == {"delivery": 1, "assignment_epoch": 1}


def test_a_consumer_of_several_asks_for_their_names_once() -> None:
    state = consumer_of("flights", "orders")
    state.polled(Polled(BODY, 1, 1, {}, None))

    assert state.next_step() is Step.LIST_TOPICS
    assert not state.has_items()
    state.listed([info("flights", FLIGHTS), info("orders", ORDERS), info("x", UUID(int=3))])
    assert state.next_step() is None
    assert len(rows_handed_out(state)) == 6

    state.ask("batches")
    state.polled(Polled(BODY, 2, 1, {}, None))
    assert state.next_step() is None
    assert len(rows_handed_out(state)) == 6


def test_a_call_that_was_cancelled_before_the_names_came_leaves_nothing() -> None:
    state = consumer_of("flights", "orders")
    state.polled(Polled(BODY, 1, 1, {}, None))

    state.ask("records")

    assert state.next_step() is Step.POLL
    assert state.poll_parameters()["delivery"] == 0


def test_a_delivery_that_is_only_of_a_deleted_topic_is_dealt_with() -> None:
    state = consumer_of("flights", "orders")
    state.polled(Polled(batch(UUID(int=9), 0, 0, b"a"), 4, 1, {}, None))
    state.listed([info("flights", FLIGHTS)])

    assert rows_handed_out(state) == []
    state.ask("batches")
    assert state.next_step() is Step.POLL
    assert state.poll_parameters()["delivery"] == 4
