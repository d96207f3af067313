"""Counts of the hot paths: plain numbers, read by the metrics collector when it is asked."""

from bisect import bisect_left
from dataclasses import dataclass, field

# Upper bounds of a histogram's buckets, in seconds: from a sync of a fast disk to a timeout.
BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Histogram:
    """How many durations each bucket has, the last one those above all bounds; and their sum."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s


@dataclass(slots=True)
class TopicCounts:
    """Of one topic on this broker, since it was opened here."""

    produced_events: int = 0
    produced_bytes: int = 0
    read_records: int = 0


@dataclass(slots=True)
class Counters:
    """Since the start of the process; each name is its metric's without prefix and suffix."""

    produce_requests: int = 0
    produce_errors: int = 0
    produce_duplicates: int = 0
    produced_events: int = 0
    produced_bytes: int = 0
    forwarded_requests: int = 0
    forwards_repeated: int = 0
    forwards_unknown: int = 0
    forwards_refused: int = 0
    read_requests: int = 0
    read_errors: int = 0
    read_bytes: int = 0
    slow_readers_dropped: int = 0
    group_polls: int = 0
    group_delivered_records: int = 0
    group_commits: int = 0
    log_writes: int = 0
    log_write_errors: int = 0
    log_write_seconds: float = 0.0
    log_appended_batches: int = 0
    log_appended_bytes: int = 0
    journal_writes: int = 0
    journal_write_seconds: float = 0.0
    journal_written_bytes: int = 0
    log_disk_reads: int = 0
    trimmed_segments: int = 0
    trimmed_bytes: int = 0
    purged_topics: int = 0
    purged_early_topics: int = 0
    purged_bytes: int = 0
    scrubbed_bytes: int = 0
    produce_seconds: Histogram = field(default_factory=Histogram)
    fetch_seconds: Histogram = field(default_factory=Histogram)

    def add_log_write(self, error: Exception | None, duration_s: float) -> None:
        """A write to a segment has ended."""
        if error is None:
            self.log_writes += 1
            self.log_write_seconds += duration_s
        else:
            self.log_write_errors += 1
