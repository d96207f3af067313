"""Whole topics as tables and as records, from a real broker."""

import importlib.util
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tailrace.arrow.batches import SCHEMA, SCHEMA_WITH_HEADERS
from tailrace.errors import TailraceError, TopicNotFoundError
from tailrace.reading import ReadingParameters
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.stored import split

pytestmark = pytest.mark.integration

TIME = datetime(2026, 1, 1, tzinfo=UTC)
COUNT = 200
needs_pandas = pytest.mark.skipif(
    importlib.util.find_spec("pandas") is None, reason="no pandas installed"
)
needs_polars = pytest.mark.skipif(
    importlib.util.find_spec("polars") is None, reason="no polars installed"
)


@pytest.fixture(scope="module")
def client(shared_broker: RunningBroker) -> Iterator[Client]:
    """With a topic "t" of COUNT records, one a second from TIME on, over four partitions."""
    with Client(shared_broker.url) as opened:
        for batch in range(4):
            numbers = range(50 * batch, 50 * batch + 50)
            opened.produce_records(
                "t",
                [b"%d" % (n % 50) for n in numbers],
                [b"%d" % n for n in numbers],
                [int((TIME.timestamp() + n) * 1_000_000) for n in numbers],
            )
        yield opened


def rows(client: Client, parameters: ReadingParameters) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value, as a table; and that records are the same."""
    table = client.read("t", **parameters).to_arrow()
    assert table.schema == SCHEMA
    found = list(
        zip(*(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
    )
    records = client.read("t", **parameters)
    assert [(record.partition, record.offset, record.value) for record in records] == found
    batches = list(client.read("t", **parameters).batches())
    assert sum(batch.num_rows for batch in batches) == len(found)
    return found


def test_a_topic_is_read_partition_by_partition(client: Client) -> None:
    found = rows(client, {})

    assert sorted(int(value) for _, _, value in found) == list(range(COUNT))
    assert found == sorted(found)


def test_the_last_are_the_newest_of_all_partitions(client: Client) -> None:
    assert [int(value) for _, _, value in rows(client, {"last": 7})] == list(range(193, COUNT))
    assert len(rows(client, {"last": 10_000})) == COUNT


def test_times_bound_a_reading(client: Client) -> None:
    def within(start: int, end: int) -> list[tuple[int, int, bytes]]:
        start_time, end_time = TIME + timedelta(seconds=start), TIME + timedelta(seconds=end)
        return rows(client, {"start": start_time, "end": end_time})

    assert within(-10, COUNT + 10) == rows(client, {})
    assert within(-10, 0) == within(COUNT, COUNT + 1) == []
    assert {int(value) for _, _, value in within(30, 170)} == set(range(30, 170))


def test_offsets_bound_a_reading(client: Client) -> None:
    partitions = {partition for partition, _, _ in rows(client, {})}
    found = rows(client, {"start": 3, "end": 5})
    tail = rows(client, {"start": -2})
    some = rows(client, {"start": {0: 4}, "end": {0: 6}, "partitions": [0]})

    assert [(partition, offset) for partition, offset, _ in found] == [
        (partition, offset) for partition in sorted(partitions) for offset in (3, 4)
    ]
    assert len(tail) == 2 * len(partitions)
    assert [(partition, offset) for partition, offset, _ in some] == [(0, 4), (0, 5)]


def test_headers_are_a_column_when_they_are_wanted(client: Client) -> None:
    table = client.read("t", last=1, include_headers=True).to_arrow()

    assert table.schema == SCHEMA_WITH_HEADERS
    assert table["headers"].to_pylist() == [None]


def test_a_reading_is_used_again_and_sees_what_has_come(client: Client) -> None:
    client.produce("growing", b"1", key="k")
    reading = client.read("growing")
    before = reading.to_arrow().num_rows
    client.produce("growing", b"2", key="k")

    assert (before, reading.to_arrow().num_rows) == (1, 2)


def test_an_empty_topic_is_an_empty_table(client: Client) -> None:
    client.create_topic("empty")

    assert client.read("empty").to_arrow().schema == SCHEMA
    assert client.read("empty", last=5).to_arrow().num_rows == 0
    assert list(client.read("empty")) == []


def test_what_is_not_there_is_reported_when_it_is_used(client: Client) -> None:
    with pytest.raises(TopicNotFoundError):
        client.read("nosuch").to_arrow()
    with pytest.raises(TailraceError, match=r'topic "t" has no partition 7, but 0 to 3'):
        client.read("t", partitions=[0, 7]).to_arrow()


def test_a_split_topic_is_read_whole(broker: RunningBroker) -> None:
    values = split(broker, "t")
    with Client(broker.url) as client:
        table = client.read("t").to_arrow()

    assert len(table) >= len(values)
    assert table["value"].to_pylist()[: len(values)] == values


@needs_pandas
def test_a_topic_is_a_pandas_frame(client: Client) -> None:
    frame = client.read("t", last=3).to_pandas()

    assert list(frame.columns) == SCHEMA.names
    assert list(frame["value"]) == [b"197", b"198", b"199"]


@needs_polars
def test_a_topic_is_a_polars_frame(client: Client) -> None:
    frame = client.read("t", last=3).to_polars()

    assert frame.columns == SCHEMA.names
    assert frame["value"].to_list() == [b"197", b"198", b"199"]
