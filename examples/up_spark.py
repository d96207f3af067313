"""The main job's Spark part: stream a topic to Parquet, count, group; prints one JSON object.

    python -m examples.up_spark --url http://127.0.0.1:9250 --topic flights --dir work \\
        --group-by .origin --avg .delayMinutes --top 5 --batch-records 5000 [--follow]

With --follow it says "streams" once a micro-batch is written, and reads on until standard input
ends. A process of its own, so that its end is also the end of the Java virtual machine.
"""

import argparse
import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.spark.jobs.aggregate import aggregate
from tailrace.spark.jobs.session import read_topic, spark_session

POLL_SECONDS = 1


def main() -> None:
    """Stream to the end of the topic; what is printed is read back from the files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--group-by", required=True)
    parser.add_argument("--avg", action="append", default=[])
    parser.add_argument("--top", type=int, required=True)
    parser.add_argument("--batch-records", required=True)
    parser.add_argument("--follow", action="store_true")
    called = parser.parse_args()
    with spark_session("up") as spark:
        stream = read_topic(
            spark.readStream,
            called,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=called.batch_records,
            groupId=f"spark:{called.topic}",
        )
        micro_batches = write_all(stream, called.dir, follows=called.follow)
        events = spark.read.parquet(str(called.dir / "events"))
        counts = events.agg(
            F.count("*").alias("rows"), F.count_distinct("partition", "offset").alias("distinct")
        ).first()
        assert counts is not None  # an aggregate over everything has one row
        groups = aggregate(events, group_by=called.group_by, count=True, averages=called.avg)
        rows = [list(row) for row in groups.limit(called.top).collect()]
    print(json.dumps({"micro_batches": micro_batches, **counts.asDict(), "groups": rows}))


def write_all(stream: DataFrame, directory: Path, *, follows: bool) -> int:
    """All that the topic holds at the end, as Parquet; the number of micro-batches."""
    writer = (
        stream.writeStream.format("parquet")
        .option("path", str(directory / "events"))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    if follows:
        query = writer.trigger(processingTime="1 second").start()
        follow(query)
    else:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    return sum(progress.numInputRows > 0 for progress in query.recentProgress)


def follow(query: StreamingQuery) -> None:
    """Until standard input ends; then all is read that the topic holds."""
    while not query.recentProgress:
        if query.awaitTermination(timeout=POLL_SECONDS):
            raise SystemExit("the query has ended")
    print("streams", flush=True)
    sys.stdin.read()
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main()
