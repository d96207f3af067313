"""Decides what an audit says: offsets that are missing, or there more than once; pure.

Offsets of a partition are dense, so what is not there between two ends is missing.
"""

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.spark.offsets import TopicPartition
from tailrace.spark.stream_offsets import own_offsets

_NO_OFFSETS = "-"  # in place of a source's JSON


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """What was found of a partition: so many rows, with offsets from `first` to `last`."""

    rows: int
    distinct: int
    first: int
    last: int


class AuditFinding(NamedTuple):
    """What is wrong with a partition's offsets [start, end)."""

    topic_partition: TopicPartition
    start: int
    end: int
    missing: int
    repeated: int

    def __str__(self) -> str:
        topic, partition = self.topic_partition
        span = f"{topic}/{partition}, offsets [{self.start}, {self.end})"
        return f"{span}: {self.missing:,} missing, {self.repeated:,} there again"


def compare(
    counts: Mapping[TopicPartition, PartitionCount], expected: Mapping[TopicPartition, range]
) -> list[AuditFinding]:
    """A finding for each partition that is not whole.

    Rows outside of what is expected must be as dense: they are of batches before those that the
    checkpoint remembers, or of one that was under way.
    """
    findings = []
    for topic_partition in sorted(counts.keys() | expected.keys()):
        wanted = expected.get(topic_partition, range(0))
        count = counts.get(topic_partition, PartitionCount(0, 0, wanted.start, wanted.stop - 1))
        start, end = count.first, count.last + 1
        if wanted:
            start, end = min(start, wanted.start), max(end, wanted.stop)
        finding = AuditFinding(
            topic_partition, start, end, end - start - count.distinct, count.rows - count.distinct
        )
        if finding.missing or finding.repeated:
            findings.append(finding)
    return findings


def summary(record_count: int, partition_count: int, findings: Iterable[AuditFinding]) -> str:
    """The audit's line: offsets that are missing, rows that are there again."""
    missing = repeated = 0
    for finding in findings:
        missing += finding.missing
        repeated += finding.repeated
    return (
        f"audit: {record_count:,} records, {partition_count:,} partitions, "
        f"gaps={missing} duplicates={repeated}"
    )


def committed_ranges(
    log_by_batch: Mapping[int, str], committed: Set[int]
) -> dict[TopicPartition, range]:
    """What a checkpoint's committed batches have read of each partition, as far as it knows.

    `log_by_batch`: the texts of its folder `offsets`, each a version, a line of metadata, then a
    line for each source. Spark keeps the last hundred, so this may start late, but ends right.
    """
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for batch in sorted(log_by_batch.keys() & committed):
        _, _, *sources = log_by_batch[batch].splitlines()
        for source in sources:
            offsets = {} if source == _NO_OFFSETS else own_offsets(json.loads(source))
            ends.update(offsets)
            starts = {**offsets, **starts}
    return {
        topic_partition: range(min(starts[topic_partition], end), end)
        for topic_partition, end in ends.items()
    }


def since_start(
    expected: Mapping[TopicPartition, range], stored: Mapping[TopicPartition, range]
) -> dict[TopicPartition, range]:
    """The same, but all that the topic still holds up to there: for a query from the earliest."""
    return {
        topic_partition: range(min(each.start, stored.get(topic_partition, each).start), each.stop)
        for topic_partition, each in expected.items()
    }
