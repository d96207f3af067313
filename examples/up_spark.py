"""The main job's Spark part: count a topic's events and group them; prints one JSON object.

    python -m examples.up_spark --url http://127.0.0.1:9250 --topic flights \\
        --group-by .origin --avg .delayMinutes --top 5

A process of its own, so that its end is also the end of the Java virtual machine.
"""

import argparse
import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.spark.jobs.aggregate import aggregate


def main() -> None:
    """Read the topic once for the counts, once for the groups."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group-by", required=True)
    parser.add_argument("--avg", action="append", default=[])
    parser.add_argument("--top", type=int, required=True)
    called = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("up")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        # For seconds of work on a few MiB: less compiling (17 against 29 s of CPU), few partitions.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    events = (
        spark.read.format("tailrace")
        .option("bootstrap.servers", called.url)
        .option("subscribe", called.topic)
        .load()
    )
    counts = events.agg(
        F.count("*").alias("rows"), F.count_distinct("partition", "offset").alias("distinct")
    ).first()
    assert counts is not None  # an aggregate over everything has one row
    groups = aggregate(events, group_by=called.group_by, count=True, averages=called.avg)
    rows = [list(row) for row in groups.limit(called.top).collect()]
    print(json.dumps({**counts.asDict(), "groups": rows}))
    spark.stop()


if __name__ == "__main__":
    main()
