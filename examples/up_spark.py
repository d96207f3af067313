"""The main job's Spark part: stream a topic to Parquet, count, group; prints one JSON object.

    python -m examples.up_spark --url http://127.0.0.1:9250 --topic flights --dir work \\
        --group-by .origin --avg .delayMinutes --top 5 --batch-records 5000

A process of its own, so that its end is also the end of the Java virtual machine.
"""

import argparse
import json
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.spark.jobs.aggregate import aggregate
from tailrace.spark.jobs.session import read_topic, spark_session


def main() -> None:
    """Stream once to the end of the topic; what is printed is read back from the files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--group-by", required=True)
    parser.add_argument("--avg", action="append", default=[])
    parser.add_argument("--top", type=int, required=True)
    parser.add_argument("--batch-records", required=True)
    called = parser.parse_args()
    with spark_session("up") as spark:
        stream = read_topic(
            spark.readStream,
            called,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=called.batch_records,
            groupId=f"spark:{called.topic}",
        )
        micro_batches = write_all(stream, called.dir)
        events = spark.read.parquet(str(called.dir / "events"))
        counts = events.agg(
            F.count("*").alias("rows"), F.count_distinct("partition", "offset").alias("distinct")
        ).first()
        assert counts is not None  # an aggregate over everything has one row
        groups = aggregate(events, group_by=called.group_by, count=True, averages=called.avg)
        rows = [list(row) for row in groups.limit(called.top).collect()]
    print(json.dumps({"micro_batches": micro_batches, **counts.asDict(), "groups": rows}))


def write_all(stream: DataFrame, directory: Path) -> int:
    """All that the topic holds now, as Parquet; the number of micro-batches."""
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(directory / "events"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows > 0 for progress in query.recentProgress)


if __name__ == "__main__":
    main()
