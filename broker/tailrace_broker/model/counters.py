"""Counts of the hot paths: plain numbers, read by the metrics collector when it is asked."""

from dataclasses import dataclass


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

    def add_log_write(self, error: Exception | None, duration_s: float) -> None:
        """A write to a segment has ended."""
        if error is None:
            self.log_writes += 1
            self.log_write_seconds += duration_s
        else:
            self.log_write_errors += 1
