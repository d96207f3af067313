"""Spark writes rows as records, and a broker that is killed meanwhile does not lose them."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.spark.spark import (
    FLIGHT_COUNT,
    FLIGHTS_TOPIC,
    SPARK_MARKS,
    bytes_of,
    ends_of,
    read,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK_MARKS

WAIT_S_MAX = 30


def write(frame: "DataFrame", broker: RunningBroker, **options: str) -> None:
    frame.write.format("tailrace").options(url=broker.url, **options).mode("append").save()


def test_a_copy_of_a_topic_has_the_same_records_in_the_same_order(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str
) -> None:
    columns = ["key", "value", "timestamp", "headers"]
    original = read(spark, flights_broker, subscribe=FLIGHTS_TOPIC, includeHeaders="true")

    write(original.select(columns), flights_broker, topic=topic)

    copy = read(spark, flights_broker, subscribe=topic, includeHeaders="true")
    assert copy.count() == FLIGHT_COUNT
    assert original.select(columns).exceptAll(copy.select(columns)).count() == 0
    keyed = ["partition", "key", "value"]
    in_order = [frame.where("key = 'SFO'").select(keyed).collect() for frame in (original, copy)]
    assert in_order[0] == in_order[1]
    assert {row.timestampType for row in copy.collect()} == {0}


def test_rows_may_name_their_topics_and_be_texts_with_headers(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str
) -> None:
    frame = spark.sql(
        f"""
        SELECT * FROM VALUES
          ('{topic}-a', 'k1', 'v1', array(named_struct('key', 'h', 'value', X'01'))),
          ('{topic}-b', NULL, 'v2', NULL),
          ('{topic}-a', 'k1', NULL, array())
        AS t(topic, key, value, headers)
        """
    )

    before = datetime.now(UTC) - timedelta(seconds=1)
    write(frame.coalesce(1), flights_broker)

    rows = read(spark, flights_broker, subscribePattern=f"{topic}-.", includeHeaders="true")
    written = [
        (
            row.topic,
            bytes_of(row.key),
            bytes_of(row.value),
            [(header.key, bytes(header.value)) for header in row.headers or []],
            row.timestampType,
        )
        for row in rows.orderBy("topic", "offset").collect()
    ]
    assert written == [
        (f"{topic}-a", b"k1", b"v1", [("h", b"\x01")], 1),
        (f"{topic}-a", b"k1", None, [], 1),
        (f"{topic}-b", None, b"v2", [], 1),
    ]
    assert all(row.timestamp.astimezone(UTC) >= before for row in rows.collect())


def test_a_write_that_is_run_again_writes_again(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str
) -> None:
    frame = spark.range(10).selectExpr("cast(id AS string) AS value")

    write(frame, flights_broker, topic=topic)
    write(frame, flights_broker, topic=topic)

    assert sum(ends_of(flights_broker, topic).values()) == 20


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (["value", "partition"], {"topic": "t"}, 'column "partition" cannot be written; the key'),
        (["value"], {}, "name the topic to write to: option topic, or a column topic"),
        (["value"], {"topic": "t", "subscribe": "t"}, 'a write has no option "subscribe"'),
        (["null_topic AS topic", "value"], {}, "a row has a null topic: fill column topic"),
        (["value"], {"topic": "a/b"}, "Invalid topic name"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: "SparkSession",
    flights_broker: RunningBroker,
    columns: list[str],
    options: dict[str, str],
    reason: str,
) -> None:
    frame = spark.sql("SELECT 'v' AS value, 0 AS partition, cast(NULL AS string) AS null_topic")

    with pytest.raises(Exception, match=re.escape(reason)):
        write(frame.selectExpr(columns), flights_broker, **options)


def test_spark_wants_to_be_reported_that_a_write_adds(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str
) -> None:
    writer = spark.sql("SELECT 'v' AS value").write.format("tailrace")
    writer = writer.options(url=flights_broker.url, topic=topic)

    with pytest.raises(Exception, match="ErrorIfExists"):
        writer.save()
    with pytest.raises(
        Exception, match=re.escape('cannot be overwritten: write with mode("append")')
    ):
        writer.mode("overwrite").save()


def test_a_task_that_writes_outlives_a_broker_that_is_killed(
    broker: RunningBroker, topic: str
) -> None:
    import pyarrow as pa

    from tailrace.spark.options import parse_write_options
    from tailrace.spark.sink import TailraceWriter

    with Client(broker.url) as client:
        client.create_topic(topic)
    options = parse_write_options({"url": broker.url, "topic": topic}, {"value": "binary"})
    writer = TailraceWriter(options)
    batches = [pa.record_batch({"value": pa.array([b"%d" % number])}) for number in range(50)]

    broker.kill()
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(writer.write, iter(batches))
        broker.restart()  # here: it would die with the thread that starts it

    assert written.result(WAIT_S_MAX).record_count == 50
    assert sum(ends_of(broker, topic).values()) == 50
