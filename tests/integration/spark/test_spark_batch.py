"""Spark reads in batches what was produced: a real broker process, two local executor cores."""

import json
import re
import struct
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from tailrace.spark.plain_errors import sentence_of
from tailrace.sync import Client
from tailrace.wire import RECORDS_CONTENT_TYPE, RECORDS_HEADER, RECORDS_MAGIC, RecordsFlag
from tests.support.broker.fixtures import RunningBroker
from tests.support.spark.spark import (
    AIRPORTS,
    FLIGHT_COUNT,
    FLIGHTS,
    FLIGHTS_TOPIC,
    SPARK_MARKS,
    all_places,
    bytes_of,
    ends_of,
    places_of,
    read,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK_MARKS

TIMES_MS = [1_764_000_000_000 + 1000 * number for number in range(10)]


def task_count_of(frame: "DataFrame") -> int:
    from pyspark.sql import functions as F

    return frame.select(F.spark_partition_id()).distinct().count()


def test_rows_are_the_records_that_were_produced(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    frame = read(spark, flights_broker)
    rows = frame.collect()

    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    produced = Counter((flight.key, flight.value) for flight in FLIGHTS)
    assert Counter((bytes_of(row.key), bytes_of(row.value)) for row in rows) == produced
    assert {(row.topic, row.timestampType) for row in rows} == {(FLIGHTS_TOPIC, 1)}
    now = datetime.now(UTC)
    # The broker is the session's, which may take a while.
    assert all(now - timedelta(hours=2) < row.timestamp.astimezone(UTC) <= now for row in rows)


def test_every_offset_is_read_once_and_in_the_order_of_its_key(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    rows = read(
        spark, flights_broker, subscribe=FLIGHTS_TOPIC, fetchMaxBytes=1, coalesceRows=7
    ).collect()

    assert places_of(rows) == all_places(ends_of(flights_broker))
    values_by_key = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        values_by_key[bytes_of(row.key)].append(bytes_of(row.value))
    for key in filter(None, AIRPORTS):
        assert values_by_key[key] == [flight.value for flight in FLIGHTS if flight.key == key]


def test_offsets_bound_what_is_read(spark: "SparkSession", flights_broker: RunningBroker) -> None:
    partition = max(ends_of(flights_broker), key=ends_of(flights_broker).__getitem__)
    start, end = 150, 420

    rows = read(
        spark,
        flights_broker,
        assign=json.dumps({FLIGHTS_TOPIC: [partition]}),
        startingOffsets=json.dumps({FLIGHTS_TOPIC: {partition: start}}),
        endingOffsets=json.dumps({FLIGHTS_TOPIC: {partition: end}}),
    ).collect()

    assert [(row.partition, row.offset) for row in rows] == [
        (partition, offset) for offset in range(start, end)
    ]


@pytest.fixture(scope="module")
def timed_topic(flights_broker: RunningBroker) -> str:
    """Records of one key with a time each: offset i at TIMES_MS[i]."""
    with Client(flights_broker.url) as client:
        client.produce_records(
            "timed",
            [b"key"] * len(TIMES_MS),
            [b"%d" % number for number in range(len(TIMES_MS))],
            [1000 * time_ms for time_ms in TIMES_MS],
        )
    return "timed"


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"startingTimestamp": TIMES_MS[7]}, range(7, 10)),
        ({"startingTimestamp": TIMES_MS[2] - 1, "endingTimestamp": TIMES_MS[4] + 1}, range(2, 5)),
        ({"endingTimestamp": TIMES_MS[9] + 1}, range(10)),
    ],
)
def test_times_bound_what_is_read(
    spark: "SparkSession",
    flights_broker: RunningBroker,
    timed_topic: str,
    options: dict[str, int],
    offsets: range,
) -> None:
    latest = {"startingOffsetsByTimestampStrategy": "latest"}

    rows = read(spark, flights_broker, subscribe=timed_topic, **latest, **options).collect()

    assert [row.offset for row in rows] == list(offsets)


def test_ranges_are_split_into_as_many_tasks_as_asked_for(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    by_count = read(spark, flights_broker, subscribe=FLIGHTS_TOPIC, minPartitions=9)
    by_size = read(spark, flights_broker, subscribePattern="fl.*", maxRecordsPerPartition=200)

    assert task_count_of(by_count) >= 9
    assert by_count.distinct().count() == FLIGHT_COUNT
    assert task_count_of(by_size) == sum(-(-end // 200) for end in ends_of(flights_broker).values())


def test_conditions_spare_reading_when_they_may(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    partition = max(ends_of(flights_broker), key=ends_of(flights_broker).__getitem__)
    narrowed = (
        read(spark, flights_broker, subscribe=FLIGHTS_TOPIC, filterPushdown="true")
        .where(f"partition = {partition} AND offset BETWEEN 10 AND 12 AND topic = 'flights'")
        .where("value IS NOT NULL OR value IS NULL")
    )

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = narrowed.collect()
        task_count = task_count_of(narrowed)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert places_of(rows) == [(partition, 10), (partition, 11), (partition, 12)]
    assert task_count == 1


def test_an_empty_topic_reads_as_no_rows(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    with Client(flights_broker.url) as client:
        client.create_topic("empty")

    assert read(spark, flights_broker, subscribe="empty").collect() == []


def test_headers_are_read_when_asked_for(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    produce_with_header(flights_broker, "traced", value=b"{}", header=("trace", b"\x01\xff"))
    with Client(flights_broker.url) as client:
        client.produce("traced", b"{}")

    frame = read(spark, flights_broker, subscribe="traced", includeHeaders="true")

    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    headers = [
        row.headers and [(header.key, bytes(header.value)) for header in row.headers]
        for row in frame.collect()
    ]
    assert sorted(headers, key=str) == [None, [("trace", b"\x01\xff")]]


def produce_with_header(
    broker: RunningBroker, topic: str, *, value: bytes, header: tuple[str, bytes]
) -> None:
    key, header_value = header[0].encode(), header[1]
    sizes = (1, 0, len(value), 1, len(key), len(header_value))
    columns = [
        RECORDS_HEADER.pack(RECORDS_MAGIC, 1, RecordsFlag.HEADERS, *sizes),
        *[struct.pack("<i", each) for each in (-1, len(value), 1, len(key), len(header_value))],
        value,
        key,
        header_value,
    ]
    body = b"".join(column + bytes(-len(column) % 8) for column in columns[:-1]) + columns[-1]
    url = f"{broker.url}/v1/topic/{topic}/messages"
    with urlopen(Request(url, body, {"Content-Type": RECORDS_CONTENT_TYPE})) as answer:
        assert answer.status == 200


def test_a_mistyped_topic_is_named_with_the_nearest_one(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    with pytest.raises(Exception, match="MissingTopicError") as caught:
        read(spark, flights_broker, subscribe="flihgts").count()

    sentence = sentence_of(str(caught.value))
    assert sentence == (
        'topic "flihgts" does not exist; did you mean flights? Correct the name, or create the '
        "topic; those that exist: tailrace topic list"
    )


def test_a_topic_that_is_not_there_fails_unless_loss_is_allowed(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    options = {"subscribe": "flights,nosuch"}

    assert read(spark, flights_broker, **options, failOnDataLoss="false").count() == FLIGHT_COUNT
    with pytest.raises(Exception, match='topic "nosuch" does not exist'):
        read(spark, flights_broker, **options).count()


def test_an_offset_that_is_not_there_fails_unless_loss_is_allowed(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    beyond = {partition: end + 10 for partition, end in ends_of(flights_broker).items()}
    options = {"subscribe": FLIGHTS_TOPIC, "endingOffsets": json.dumps({FLIGHTS_TOPIC: beyond})}

    assert read(spark, flights_broker, **options, failOnDataLoss="false").count() == FLIGHT_COUNT
    with pytest.raises(Exception, match=r"DataLossError.*is asked for"):
        read(spark, flights_broker, **options).count()


def test_without_a_broker_the_read_fails_when_its_retries_are_used_up(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    nowhere = {"bootstrap.servers": f"http://127.0.0.1:{flights_broker.port + 9}"}
    retries = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "1"}
    reader = spark.read.format("tailrace").options(**nowhere, **retries, subscribe=FLIGHTS_TOPIC)

    with pytest.raises(Exception, match="no broker answers at http://127"):
        reader.load().count()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": FLIGHTS_TOPIC, "minPartition": "3"}, "did you mean minPartitions?"),
        ({}, "give exactly one of subscribe, assign, subscribePattern"),
    ],
)
def test_a_bad_option_is_refused_on_load(
    spark: "SparkSession", flights_broker: RunningBroker, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=re.escape(reason)):
        spark.read.format("tailrace").options(url=flights_broker.url, **options).load()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets must be earliest, or JSON"),
        ({"maxOffsetsPerTrigger": "5"}, 'a batch read has no option "maxoffsetspertrigger"'),
    ],
)
def test_what_only_a_stream_may_ask_for_is_refused(
    spark: "SparkSession", flights_broker: RunningBroker, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=re.escape(reason)):
        read(spark, flights_broker, subscribe=FLIGHTS_TOPIC, **options).count()


def test_a_schema_of_ones_own_is_refused(
    spark: "SparkSession", flights_broker: RunningBroker
) -> None:
    reader = spark.read.format("tailrace").schema("value string")

    with pytest.raises(Exception, match=re.escape("take .schema() away")):
        reader.options(url=flights_broker.url, subscribe=FLIGHTS_TOPIC).load().count()
