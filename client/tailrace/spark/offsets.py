"""Plans a batch read: which offsets of which partitions, in how many tasks; pure.

Options and the broker's listings in, ranges and losses out; whether a loss ends the read is the
caller's to say (`failOnDataLoss`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.requests import PartitionOffsets
from tailrace.spark.options import (
    EARLIEST,
    LATEST,
    InvalidOptionError,
    OffsetsByPartition,
    ReadOptions,
)


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The records [start, end) of a partition; never empty."""

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end, self

    @property
    def record_count(self) -> int:
        """Offsets are dense."""
        return self.end - self.start


class Topics(NamedTuple):
    """The topics to read, and those asked for that are not there."""

    present: list[str]
    missing: list[str]


class Plan(NamedTuple):
    """What can be read, by topic and partition; a sentence for each range that cannot."""

    ranges: list[OffsetRange]
    losses: list[str]


def select_topics(options: ReadOptions, existing: Iterable[str]) -> Topics:
    """Both lists sorted by name; a pattern misses nothing."""
    names = set(existing)
    return Topics(
        sorted(filter(options.selects, names)), sorted(options.partitions_by_topic.keys() - names)
    )


def plan_ranges(options: ReadOptions, listing: Sequence[PartitionOffsets]) -> Plan:
    """The ranges of the selected partitions; `listing` has each partition of their topics once.

    InvalidOptionError when JSON in endingOffsets leaves out a selected partition,
    PartitionDamagedError when one cannot be read: whatever failOnDataLoss says, its data is there.
    """
    selected = {
        (each.topic, each.partition): each
        for each in listing
        if options.selects(each.topic, each.partition)
    }
    ranges = []
    losses = [
        f"{topic}/{partition} does not exist"
        for topic, partition in sorted(_named_partitions(options) - selected.keys())
        if any(each.topic == topic for each in listing)
    ]
    for (topic, partition), offsets in sorted(selected.items()):
        readable = offsets.readable()
        start, end = _start(options.starting_offsets, offsets), _end(options, offsets)
        kept_start, kept_end = max(start, readable.start), min(end, readable.stop)
        if end < start or start < kept_start or kept_end < end:
            losses.append(
                f"{topic}/{partition} is asked for [{start}, {end}) "
                f"and holds [{readable.start}, {readable.stop})"
            )
        if kept_start < kept_end:
            ranges.append(OffsetRange(topic, partition, kept_start, kept_end))
    return Plan(ranges, losses)


def split_ranges(
    ranges: Sequence[OffsetRange], *, range_count_min: int, range_records_max: int
) -> list[OffsetRange]:
    """The same records in order, in ranges of at most `range_records_max`, evenly cut.

    At least `range_count_min` of them when there are as many records. As in Spark's Kafka source,
    nothing is cut for the count when there are enough ranges already.
    """
    records_max = range_records_max
    if 0 < len(ranges) < range_count_min:
        record_count = sum(each.record_count for each in ranges)
        records_max = min(records_max, max(1, record_count // range_count_min))
    return [part for each in ranges for part in _cut(each, -(-each.record_count // records_max))]


def _cut(whole: OffsetRange, part_count: int) -> Iterator[OffsetRange]:
    """Parts that differ by one record at most."""
    assert 1 <= part_count <= whole.record_count, (whole, part_count)
    for index in range(part_count):
        start = whole.start + whole.record_count * index // part_count
        end = whole.start + whole.record_count * (index + 1) // part_count
        yield OffsetRange(whole.topic, whole.partition, start, end)


def _named_partitions(options: ReadOptions) -> set[tuple[str, int]]:
    """All that the options call by topic and partition."""
    named = {
        (topic, partition)
        for topic, partitions in options.partitions_by_topic.items()
        for partition in partitions or ()
    }
    for offsets in (options.starting_offsets, options.ending_offsets):
        for topic, by_partition in (offsets or {}).items():
            named.update((topic, partition) for partition in by_partition)
    return named


def _start(starting: OffsetsByPartition | None, offsets: PartitionOffsets) -> int:
    """A partition that JSON does not name is newer than that JSON: it starts where it began."""
    if starting is None:
        return offsets.readable().start
    start = starting.get(offsets.topic, {}).get(offsets.partition, offsets.first_offset)
    return offsets.readable().start if start == EARLIEST else start


def _end(options: ReadOptions, offsets: PartitionOffsets) -> int:
    """Exclusive."""
    if options.ending_offsets is None:
        return offsets.readable().stop
    end = options.ending_offsets.get(offsets.topic, {}).get(offsets.partition)
    if end is None:
        raise InvalidOptionError(
            f"endingOffsets names no end for {offsets.topic}/{offsets.partition}: "
            f"add it, {LATEST} for the latest"
        )
    return offsets.readable().stop if end == LATEST else end
