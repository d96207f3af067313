"""A request's records become a batch for each partition, against a plain loop."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace_broker.codec.batch import compress_columns, stamp_batch
from tailrace_broker.codec.by_partition import (
    FEW_LINES,
    FEW_RECORDS,
    PartitionRecords,
    split_keyed_lines,
    split_records,
)
from tailrace_broker.codec.columns import Int32s
from tailrace_broker.codec.keyed_ndjson import parse_key_path, read_keyed_lines
from tailrace_broker.codec.records import Record
from tailrace_broker.codec.records_binary import ProducedRecords, RecordHeaders
from tests.support.storage.batches import (
    TIME_US,
    Event,
    place_of,
    read_by_broker,
    records_of,
)

texts = st.sampled_from(["", "a", "SFO", "Zürich", "a\0b", "\n"])
partitions = st.sampled_from([0, 1, 7, 300])
headers = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=2)
events = st.builds(
    Event,
    st.none() | st.binary(max_size=9),
    st.none() | texts.map(str.encode),
    st.integers(0, 2**60),
    headers,
)
without_headers = st.builds(
    Event, st.binary(max_size=9), texts.map(str.encode), st.just(TIME_US), st.just([])
)


def split_plainly(chosen: list[int], sent: list[Event]) -> dict[int, list[Record]]:
    """By partition, in the order of the request."""
    found: dict[int, list[Event]] = {}
    for partition, event in zip(chosen, sent, strict=True):
        found.setdefault(partition, []).append(event)
    return {partition: records_of(found[partition], 0) for partition in sorted(found)}


def read(parts: list[PartitionRecords]) -> dict[int, list[Record]]:
    """What is read of each batch."""
    assert len({part.partition for part in parts}) == len(parts)
    return {
        partition: read_by_broker(
            bytes(stamp_batch(compress_columns(columns), place_of()).contents())
        )
        for partition, columns in parts
    }


def int32s(values: list[int]) -> Int32s:
    return np.array(values, np.int32)


def produced(sent: list[Event]) -> ProducedRecords:
    """As a body is read."""
    pairs = [pair for event in sent for pair in event.headers]
    counts = int32s([len(event.headers) for event in sent])
    return ProducedRecords(
        [event.key for event in sent],
        [event.value for event in sent],
        np.array([event.timestamp_us for event in sent], np.int64),
        RecordHeaders(counts, [key for key, _ in pairs], [value for _, value in pairs])
        if pairs
        else None,
    )


@example([(1, Event(b"a", headers=[(b"h", b"1")])), (0, Event(None)), (1, Event(b"b"))])
@given(st.lists(st.tuples(partitions, events | without_headers), min_size=1, max_size=20))
def test_each_record_is_in_the_batch_of_its_partition(sent: list[tuple[int, Event]]) -> None:
    chosen, records = [each for each, _ in sent], [event for _, event in sent]
    parts = split_records(produced(records), int32s(chosen), flags=0)

    assert read(parts) == split_plainly(chosen, records)


@pytest.mark.parametrize("count", [2, 2 * FEW_RECORDS + 2])
def test_many_records_are_as_few(count: int) -> None:
    sent = [Event(b"%d" % number) for number in range(count)]
    chosen = [number % 2 for number in range(len(sent))]

    assert read(split_records(produced(sent), int32s(chosen), flags=0)) == split_plainly(
        chosen, sent
    )


@example([(0, "a")] * 2, True)
@example([(0, "a"), (7, "ü")], True)
@example([(0, "a"), (7, "ü")] * (FEW_LINES + 1), True)
@given(
    st.lists(st.tuples(partitions, texts), min_size=1, max_size=20)
    | st.lists(st.tuples(st.sampled_from([0, 7]), texts), min_size=40, max_size=50),
    st.booleans(),
)
def test_each_keyed_line_is_in_the_batch_of_its_partition(
    sent: list[tuple[int, str]], is_bare: bool
) -> None:
    space = b"" if is_bare else b" "
    values = [json.dumps({"n": number, "k": key}).encode() for number, (_, key) in enumerate(sent)]
    values = [space + value for value in values]
    lines = read_keyed_lines(b"\n".join(values), parse_key_path(".k"))
    chosen = [partition for partition, _ in sent]
    parts = split_keyed_lines(lines, int32s(chosen), TIME_US, flags=0)

    events = [
        Event(value, key.encode(), TIME_US) for value, (_, key) in zip(values, sent, strict=True)
    ]
    assert read(parts) == split_plainly(chosen, events)
