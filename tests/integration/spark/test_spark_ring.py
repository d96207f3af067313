"""Spark's source and sink where several brokers lead, and one of them is away."""

from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.sync import Client
from tests.support.ring.local_ring import founded_ring
from tests.support.spark.spark import SPARK_MARKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK_MARKS

ROWS = 200
KEYS = 40


def test_rows_are_written_and_read_at_any_broker_of_a_ring(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with founded_ring(tmp_path, copies=3) as ring:
        urls = [broker.url for broker in ring.brokers]

        def write(start: int, given: str) -> None:
            rows = spark.range(start, start + ROWS, numPartitions=2).selectExpr(
                f"concat('k', id % {KEYS}) AS key", "CAST(id AS STRING) AS value"
            )
            options = {"bootstrap.servers": given, "topic": "t"}
            rows.write.format("tailrace").options(**options).mode("append").save()

        with Client(urls[0]) as client:
            client.create_topic("t")
        write(0, urls[2])
        ring.kill(0)
        write(ROWS, ",".join(urls))
        options = {"bootstrap.servers": ",".join(urls), "subscribe": "t"}
        found = spark.read.format("tailrace").options(**options).load()
        records = found.select("partition", "offset", "key", "value").collect()
        with Client(urls[1]) as client:
            ends = [row.readable().stop for row in client.offsets(["t"])]

    assert {int(record.value) for record in records} == set(range(2 * ROWS))
    assert len(records) == sum(ends)
    assert all(ends), "each broker leads partitions that got some"
    partitions: dict[bytes, set[int]] = {}
    for record in records:
        partitions.setdefault(bytes(record.key), set()).add(record.partition)
    assert len(partitions) == KEYS
    assert all(len(found) == 1 for found in partitions.values())
