"""Streams a topic of flights to Parquet files, parsed; goes on where it stopped the last time.

    python examples/spark_stream.py --topic flights --to delays [--once]

Exactly once: the files and the offsets that they hold are one commit in `--to`. Needs Java 17 and
the extra `spark`.
"""

import argparse
import os
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

URL = os.environ.get("TAILRACE_URL", "http://127.0.0.1:9250")
FLIGHT = "departure string, origin string, destination string, delayMinutes int, distanceMiles int"


def main() -> None:
    """Run until it is stopped; with --once until all that is there now is written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--once", action="store_true")
    called = parser.parse_args()
    spark = SparkSession.builder.appName("flights").getOrCreate()
    events = (
        spark.readStream.format("tailrace")
        .option("bootstrap.servers", URL)
        .option("subscribe", called.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    flight = F.from_json(events["value"].cast("string"), FLIGHT).alias("flight")
    flights = events.select("partition", "offset", "timestamp", flight).select("*", "flight.*")
    writer = (
        flights.drop("flight")
        .writeStream.format("parquet")
        .option("path", str(called.to / "files"))
        .option("checkpointLocation", str(called.to / "checkpoint"))
    )
    if called.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="1 second")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
