"""Plans a batch read: which offsets of which partitions, in how many tasks; pure.

Options and the broker's listings in, ranges and losses out; whether a loss ends the read is the
caller's to say (`failOnDataLoss`). What streams add: `tailrace.spark.stream_offsets`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.settings.near_names import close_to
from tailrace.spark.option_values import EARLIEST, LATEST, Bound, InvalidOptionError
from tailrace.spark.options import ReadOptions
from tailrace.values import PartitionOffsets

TopicPartition = tuple[str, int]  # topic, partition id


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


@dataclass(frozen=True, slots=True)
class Listing:
    """What the broker says of the topics to read, maybe of others, too.

    `first_offsets`: by a time in µs, of each partition, its first record that is not older.
    """

    partitions: Sequence[PartitionOffsets]
    missing_topics: Sequence[str] = ()
    first_offsets: Mapping[int, Mapping[TopicPartition, int | None]] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """A sentence for each topic that does not exist, with the nearest name of those that do."""
        known = sorted({row.topic for row in self.partitions})
        return [
            f'topic "{name}" does not exist{close_to(name, known, end="?")}'
            for name in self.missing_topics
        ]

    def selected(self, options: ReadOptions) -> dict[TopicPartition, PartitionOffsets]:
        """The partitions that are asked for, in order."""
        return {
            (partition.topic, partition.partition): partition
            for partition in sorted(
                self.partitions, key=lambda partition: (partition.topic, partition.partition)
            )
            if options.selects(partition.topic, partition.partition)
        }


class Plan(NamedTuple):
    """What can be read, by topic and partition; a sentence for each range that cannot.

    Topics that do not exist are not in it: `Listing.missing`.
    """

    ranges: list[OffsetRange]
    losses: list[str]


def plan_ranges(options: ReadOptions, listing: Listing) -> Plan:
    """The ranges of the selected partitions.

    InvalidOptionError when JSON leaves out an end, PartitionDamagedError when a partition cannot
    be read: whatever failOnDataLoss says, its data is there.
    """
    selected = listing.selected(options)
    losses = [
        f"{topic}/{partition} does not exist"
        for topic, partition in sorted(_named_partitions(options) - selected.keys())
        if topic not in listing.missing_topics
    ]
    plan = Plan([], losses)
    for row in selected.values():
        start = starting_offset(options, row, listing)
        add_range(plan, row, start, _ending_offset(options.ending, row, listing))
    return plan


def add_range(plan: Plan, row: PartitionOffsets, start: int, end: int) -> None:
    """Add what the partition holds of [start, end), and a loss when that is not all."""
    readable = row.readable()
    kept_start, kept_end = max(start, readable.start), min(end, readable.stop)
    if end < start or start < kept_start or kept_end < end:
        plan.losses.append(
            f"{row.topic}/{row.partition} is asked for [{start}, {end}) "
            f"and holds [{readable.start}, {readable.stop})"
        )
    if kept_start < kept_end:
        plan.ranges.append(OffsetRange(row.topic, row.partition, kept_start, kept_end))


def starting_offset(options: ReadOptions, row: PartitionOffsets, listing: Listing) -> int:
    """Where to begin a partition. One that JSON does not name is newer: where it began itself.

    InvalidOptionError when a partition that goes on has no record as late as the starting time.
    """
    readable = row.readable()
    wanted = options.starting.of(row.topic, row.partition)
    if wanted is None:
        return row.first_offset
    if not options.starting.is_time:
        return {EARLIEST: readable.start, LATEST: readable.stop}.get(wanted, wanted)
    offset = listing.first_offsets[wanted].get((row.topic, row.partition))
    if offset is None and row.state == "open" and not options.starts_latest_without_match:
        raise InvalidOptionError(
            f"{options.starting.option}: no record of {row.topic}/{row.partition} is as late as "
            f"{wanted // 1000}; to start such a partition at its end, set "
            "startingOffsetsByTimestampStrategy to latest"
        )
    return readable.stop if offset is None else offset


def split_ranges(
    ranges: Sequence[OffsetRange], *, range_count_min: int, range_records_max: int
) -> list[OffsetRange]:
    """The same records in order, in ranges of at most `range_records_max`, evenly cut.

    At least `range_count_min` of them when there are as many records. As in Spark's Kafka source,
    nothing is cut for the count when there are enough ranges already.
    """
    records_max = range_records_max
    if 0 < len(ranges) < range_count_min:
        record_count = sum(range_.record_count for range_ in ranges)
        records_max = min(records_max, max(1, record_count // range_count_min))
    return [
        part for range_ in ranges for part in _cut(range_, -(-range_.record_count // records_max))
    ]


def _cut(whole: OffsetRange, part_count: int) -> Iterator[OffsetRange]:
    """Parts that differ by one record at most."""
    assert 1 <= part_count <= whole.record_count, (whole, part_count)
    for index in range(part_count):
        start = whole.start + whole.record_count * index // part_count
        end = whole.start + whole.record_count * (index + 1) // part_count
        yield OffsetRange(whole.topic, whole.partition, start, end)


def _named_partitions(options: ReadOptions) -> set[TopicPartition]:
    """All that the options call by topic and partition."""
    assigned = {
        (topic, partition)
        for topic, partitions in options.partitions_by_topic.items()
        for partition in partitions or ()
    }
    return assigned | options.starting.named() | options.ending.named()


def _ending_offset(ending: Bound, row: PartitionOffsets, listing: Listing) -> int:
    """Exclusive. Where no record is as late as an ending time, that is all."""
    stop = row.readable().stop
    wanted = ending.of(row.topic, row.partition)
    if wanted is None:
        latest = "" if ending.is_time else f", {LATEST} for the latest"
        raise InvalidOptionError(
            f"{ending.option} names no end for {row.topic}/{row.partition}: add it{latest}"
        )
    if not ending.is_time:
        return stop if wanted == LATEST else wanted
    offset = listing.first_offsets[wanted].get((row.topic, row.partition))
    return stop if offset is None else offset
