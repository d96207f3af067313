"""Prints in a line how a streaming query gets on, from Spark's progress report; pure.

    flights: batch 3, 61,204 rows/s, behind 0 events (0.4 s)

Behind: what the topics held at the last request and no batch has read yet. The time is the batch's.
"""

from collections.abc import Mapping
from typing import Any

from tailrace.spark.stream_offsets import Offsets, own_offsets


def progress_line(progress: Mapping[str, Any]) -> str:
    """The line for `StreamingQueryProgress.json`, parsed; topics of all Tailrace sources."""
    ends, latest = _merged(progress, "endOffset"), _merged(progress, "latestOffset")
    behind_count = sum(
        max(0, end - ends.get(topic_partition, 0)) for topic_partition, end in latest.items()
    )
    topics = ", ".join(sorted({topic for topic, _ in ends})) or "no topic yet"
    rows_per_s = progress.get("processedRowsPerSecond", 0.0)
    batch_s = progress["durationMs"].get("triggerExecution", 0) / 1000
    return (
        f"{topics}: batch {progress['batchId']}, {rows_per_s:,.0f} rows/s, "
        f"behind {behind_count:,} events ({batch_s:.1f} s)"
    )


def _merged(progress: Mapping[str, Any], name: str) -> Offsets:
    """The offsets of all sources that are Tailrace's."""
    return {
        topic_partition: offset
        for source in progress["sources"]
        for topic_partition, offset in own_offsets(source.get(name)).items()
    }
