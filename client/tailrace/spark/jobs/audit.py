"""Prove that a topic, or an archive of it, is whole: no offset is missing, none is there twice.

    python -m tailrace.spark.jobs.audit --topic flights
    python -m tailrace.spark.jobs.audit --topic flights \\
        --parquet /data/flights --checkpoint /data/checkpoint
    audit: 1,200,000 records, 4 partitions, gaps=0 duplicates=0 unordered_keys=0

Exit code 0 when that is so, 1 with the findings when not. A topic is compared with the broker's
offsets; Parquet with the checkpoint of the query that writes it, which says where it must end, and
with the topic, where it must begin: without --topic a partition begins with its first row.
Columns topic, partition and offset must be there. A key is unordered when its records lie in
partitions whose offsets overlap, since nothing says which came first; without a column key that
is left out.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tailrace.errors import TailraceError
from tailrace.spark.audits import (
    PartitionCount,
    committed_ranges,
    compare,
    since_start,
    summary,
)
from tailrace.spark.jobs.session import job_parser, read_topic, run_job
from tailrace.spark.offsets import TopicPartition
from tailrace.spark.stream_offsets import write_offsets
from tailrace.sync import Client

FINDINGS_MAX = 20
FIRST_ROWS_NOTE = (
    "note: a checkpoint does not say where a query began, so each partition was checked from its "
    "first row on; give --topic, too, to check from the topic's first record"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; 1 when it finds something or fails, 2 when called wrongly."""
    called = parse_arguments(arguments)
    return run_job(called, f"audit {called.topic or called.parquet}", audit)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Exits with 2 when they do not fit."""
    parser = job_parser("audit", __doc__)
    parser.add_argument("--topic", help="to audit, or to compare with")
    parser.add_argument("--parquet", metavar="DIR", help="what a streaming query has written")
    parser.add_argument("--checkpoint", metavar="DIR", help="of that query")
    called = parser.parse_args(arguments)
    if called.topic is None and called.parquet is None:
        parser.error("nothing to audit: give --topic, or --parquet with --checkpoint")
    if (called.parquet is None) != (called.checkpoint is None):
        parser.error("--parquet and --checkpoint go together")
    return called


def audit(spark: SparkSession, called: argparse.Namespace) -> int:
    """Print the summary and what was found; 0 when nothing was."""
    stored = _topic_ranges(called) if called.topic is not None else {}
    if called.parquet is None:
        expected = stored
        rows = _read_ranges(spark, called, stored)
    else:
        expected = since_start(_checkpoint_ranges(spark, called.checkpoint), stored)
        rows = _read_parquet(spark, called.parquet)
    counts = _count_partitions(rows)
    findings = compare(counts, expected)
    line = summary(
        sum(count.rows for count in counts.values()), len(counts.keys() | expected.keys()), findings
    )
    unordered_count = _count_unordered_keys(rows) if "key" in rows.columns else None
    print(line if unordered_count is None else f"{line} unordered_keys={unordered_count}")
    for finding in findings[:FINDINGS_MAX]:
        print(f"  {finding}")
    if len(findings) > FINDINGS_MAX:
        print(f"  and {len(findings) - FINDINGS_MAX:,} partitions more")
    if called.topic is None:
        print(FIRST_ROWS_NOTE, file=sys.stderr)
    return 1 if findings or unordered_count else 0


def _topic_ranges(called: argparse.Namespace) -> dict[TopicPartition, range]:
    """What the broker says that it holds."""
    with Client(called.url) as client:
        listing = client.offsets([called.topic])
    return {(each.topic, each.partition): each.readable() for each in listing}


def _read_ranges(
    spark: SparkSession, called: argparse.Namespace, ranges: Mapping[TopicPartition, range]
) -> DataFrame:
    """Exactly these records, whatever is produced meanwhile."""
    starts = {topic_partition: offsets.start for topic_partition, offsets in ranges.items()}
    ends = {topic_partition: offsets.stop for topic_partition, offsets in ranges.items()}
    return read_topic(
        spark.read,
        called,
        startingOffsets=json.dumps(write_offsets(starts)),
        endingOffsets=json.dumps(write_offsets(ends)),
    )


def _read_parquet(spark: SparkSession, path: str) -> DataFrame:
    """As Spark's log in the folder says, if there is one. TailraceError without our columns."""
    rows = spark.read.parquet(path)
    missing = {"topic", "partition", "offset"} - set(rows.columns)
    if missing:
        raise TailraceError(
            f"{path} cannot be audited without column {', '.join(sorted(missing))}: "
            "write topic, partition and offset, too"
        )
    return rows


def _checkpoint_ranges(spark: SparkSession, path: str) -> dict[TopicPartition, range]:
    """What the query has committed; by Spark, so that the folder can be wherever Spark writes."""
    offsets = _read_log(spark, f"{path}/offsets")
    commits = _read_log(spark, f"{path}/commits")
    return committed_ranges(offsets, commits.keys())


def _read_log(spark: SparkSession, path: str) -> dict[int, str]:
    """The texts of a checkpoint's folder by their number, which is a batch's."""
    files = spark.read.text(path, wholetext=True).select("value", F.input_file_name())
    return {
        int(match_[1]): text
        for text, name in files.collect()
        if (match_ := re.search(r"/(\d+)$", name))
    }


def _count_partitions(rows: DataFrame) -> dict[TopicPartition, PartitionCount]:
    counted = rows.groupBy("topic", "partition").agg(
        F.count("*"), F.count_distinct("offset"), F.min("offset"), F.max("offset")
    )
    return {
        (topic, partition): PartitionCount(*measures)
        for topic, partition, *measures in counted.collect()
    }


def _count_unordered_keys(rows: DataFrame) -> int:
    """Keys in partitions that overlap; after a step of the ring a child's offsets are all later."""
    spans = (
        rows.where("key IS NOT NULL")
        .groupBy("topic", "key", "partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    )
    by_key = Window.partitionBy("topic", "key").orderBy("first")
    overlaps = spans.withColumn("last_before", F.lag("last").over(by_key)).where(
        "first <= last_before"
    )
    return overlaps.select("topic", "key").distinct().count()


if __name__ == "__main__":
    sys.exit(main())
