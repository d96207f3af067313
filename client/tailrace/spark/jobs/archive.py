"""Keep a topic as Parquet: every record once, whatever dies on the way.

    python -m tailrace.spark.jobs.archive --topic flights --path /data/flights \\
        --checkpoint /data/checkpoint

It begins with the earliest record, and where it was when it is started again; with --once it ends
when all that the topic holds now is written. Of files that a killed job has left behind Spark's
log in the folder, `_spark_metadata`, knows nothing: only Spark heeds it, so read the folder by
Spark, and check it with the job `audit`.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

import tailrace.spark
from tailrace.spark.jobs.session import job_parser, read_topic, run_job

EVERY_S_DEFAULT = 10  # a file a partition each time: rather few large ones than many small ones


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; 1 when it fails, 2 when called wrongly."""
    called = parse_arguments(arguments)
    return run_job(called, f"archive {called.topic}", archive)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Exits with 2 when they do not fit."""
    parser = job_parser("archive", __doc__)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--path", required=True, metavar="DIR", help="of the Parquet files")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="of what was read")
    parser.add_argument("--once", action="store_true", help="end when all that is there is written")
    parser.add_argument(
        "--every", type=int, default=EVERY_S_DEFAULT, metavar="SECONDS", help="between batches"
    )
    return parser.parse_args(arguments)


def archive(spark: SparkSession, called: argparse.Namespace) -> int:
    """Write micro-batches, and a line for each, until stopped or, with --once, until done."""
    events = read_topic(spark.readStream, called, startingOffsets="earliest", includeHeaders="true")
    writer = events.writeStream.format("parquet").option("path", called.path)
    writer = writer.option("checkpointLocation", called.checkpoint)
    if called.once:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=f"{called.every} seconds").start()
    tailrace.spark.watch(query)
    # In a thread: py4j logs a traceback when an interrupt finds it waiting for Java.
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(query.awaitTermination).result()
        finally:
            query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
