"""Plans the micro-batches of a stream: where it starts, how far each goes; pure.

Spark keeps offsets as JSON like that of its Kafka source, `{"a": {"0": 1250, "1": 980}}`: of each
partition the next offset to read. It compares them as text, so their order is canonical: topics
sorted, partitions by number; two orders for one offset were empty micro-batches for ever.

A stream keeps a key's order over the ring's steps, which seal partitions and begin others as
their children: a child joins the offsets of a batch only when the batch starts with all of its
parents at their ends. It then starts at its fixed first offset, in a replay too. A sealed
partition leaves the offsets once retention has removed it.

A query whose start depends on the moment begins at `{}`, with an empty batch that ends where the
stream starts: so Spark has that in its log, and the batch is the same when it is run again.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tailrace.spark.offsets import Listing, Plan, TopicPartition, add_range, starting_offset
from tailrace.spark.option_values import EARLIEST, LATEST, Bound
from tailrace.spark.options import ReadOptions
from tailrace.values import PartitionOffsets

Offsets = Mapping[TopicPartition, int]
OffsetsDocument = dict[str, dict[str, int]]

NO_OFFSETS: Offsets = {}
# Brokers hear of a step within milliseconds, one that was paused a little later.
OLDER_LISTINGS_MAX = 10
OLDER_LISTING_S = 0.2


class Reach(NamedTuple):
    """What a batch can read: from `start`, which has the partitions that join now, up to `end`."""

    start: Offsets
    end: Offsets
    losses: list[str]

    @property
    def record_count(self) -> int:
        """Of all partitions."""
        return sum(
            max(0, end - self.start[topic_partition]) for topic_partition, end in self.end.items()
        )


def read_offsets(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The offsets of Spark's JSON."""
    return {
        (topic, int(partition)): offset
        for topic, by_partition in document.items()
        for partition, offset in by_partition.items()
    }


def own_offsets(document: Any) -> Offsets:
    """The same of any source's JSON: none of one that is not like ours."""
    try:
        return read_offsets(document)
    except (ValueError, AttributeError):  # no number for a partition, no object
        return {}


def write_offsets(offsets: Offsets) -> OffsetsDocument:
    """Spark's JSON, in canonical order."""
    document: OffsetsDocument = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def starts_by_moment(options: ReadOptions) -> bool:
    """Whether a later call could find another start: such a query begins at `{}`."""
    if options.starting.is_time:
        return options.starts_latest_without_match
    return LATEST in options.starting.values()


def first_offsets(options: ReadOptions, listing: Listing) -> Offsets:
    """Where a new query starts; children of unread parents are left for later."""
    selected = listing.selected(options)
    offsets: dict[TopicPartition, int] = {}
    for topic_partition, row in selected.items():  # parents before children: ids grow
        if _has_ended_parents(row, offsets, selected):
            offsets[topic_partition] = starting_offset(options, row, listing)
    return offsets


def reach(options: ReadOptions, start: Offsets, listing: Listing) -> Reach:
    """All that a batch from `start` can read now. PartitionDamagedError."""
    selected = listing.selected(options)
    losses: list[str] = []
    positions: dict[TopicPartition, int] = {}
    for topic_partition, offset in start.items():
        if topic_partition in selected:
            positions[topic_partition] = offset
        elif options.selects(*topic_partition) and not _was_read(topic_partition, start, listing):
            losses.append(
                f"{topic_partition[0]}/{topic_partition[1]} is gone, and was read up to {offset}"
            )
    positions |= {
        topic_partition: row.first_offset
        for topic_partition, row in selected.items()
        if topic_partition not in start and _has_ended_parents(row, start, selected)
    }
    end = {
        topic_partition: selected[topic_partition].readable().stop for topic_partition in positions
    }
    losses += [
        f"{topic}/{partition} was read up to {positions[topic, partition]} and ends at {stop}"
        for (topic, partition), stop in end.items()
        if stop < positions[topic, partition]
    ]
    return Reach(positions, end, losses)


def limited(reached: Reach, records_max: int) -> Offsets:
    """The end of a batch of at most so many records, in proportion to what partitions have.

    Each that has records gets one at least, which may be more than the limit by their count.
    """
    record_count = reached.record_count
    if record_count <= records_max:
        return reached.end
    limits: dict[TopicPartition, int] = {}
    for topic_partition, end in reached.end.items():
        start = reached.start[topic_partition]
        share = records_max * (end - start) // record_count
        limits[topic_partition] = min(end, start + max(1, share))
    return limits


def plan_batch(options: ReadOptions, start: Offsets, end: Offsets, listing: Listing) -> Plan:
    """The ranges of the batch [start, end); the empty batch that starts a query has none."""
    plan = Plan([], [])
    if not start:
        return plan
    selected = listing.selected(options)
    for topic_partition, stop in sorted(end.items()):
        row = selected.get(topic_partition)
        if row is None:
            if options.selects(*topic_partition) and stop > start.get(topic_partition, 0):
                plan.losses.append(
                    f"{topic_partition[0]}/{topic_partition[1]} is gone before it was read"
                )
        elif stop > start.get(topic_partition, row.first_offset):
            add_range(plan, row, start.get(topic_partition, row.first_offset), stop)
    return plan


def is_older(listing: Listing, offsets: Offsets) -> bool:
    """Whether a listing lacks partitions of these offsets that are newer than all it has.

    The broker that was asked has not heard of the ring's last step yet.
    """
    newest: dict[str, int] = {}
    for row in listing.partitions:
        newest[row.topic] = max(newest.get(row.topic, 0), row.partition)
    return any(partition > newest.get(topic, partition) for topic, partition in offsets)


def listing_with(
    offsets: Offsets, ask: Callable[[], Listing], turn: Callable[[], object]
) -> Listing:
    """A listing that is not older than these offsets; after some tries whichever there is.

    A topic that was made again has fewer partitions for ever. `turn`: to another broker.
    """
    listing = ask()
    for _ in range(OLDER_LISTINGS_MAX):
        if not is_older(listing, offsets):
            break
        turn()
        listing = ask()
    return listing


def latest_offsets(options: ReadOptions, listing: Listing) -> Offsets:
    """The ends of all partitions that can be read: what progress is measured by."""
    return {
        topic_partition: row.high_watermark
        for topic_partition, row in listing.selected(options).items()
        if row.high_watermark is not None
    }


def from_earliest(options: ReadOptions) -> ReadOptions:
    """For a query that has waited for its first topic: its records are all newer."""
    return replace(options, starting=Bound(options.starting.option, EARLIEST))


def _has_ended_parents(
    row: PartitionOffsets, offsets: Offsets, selected: Mapping[TopicPartition, PartitionOffsets]
) -> bool:
    """Whether all parents that are read at all, and are still there, are read to their ends."""
    parents = {(row.topic, parent) for parent in row.parents} & selected.keys()
    return all(
        selected[topic_partition].state == "sealed"
        and offsets.get(topic_partition, -1) >= selected[topic_partition].readable().stop
        for topic_partition in parents
    )


def _was_read(topic_partition: TopicPartition, start: Offsets, listing: Listing) -> bool:
    """Whether a partition that retention has removed had been read to its end.

    Its children say so, when one is in `start`, or begins where reading was: at the largest end
    of its parents. When they are removed, too, it is so unless somewhere a partition was begun and
    removed unread: what it left behind names a parent that nobody has read.
    """
    topic, partition = topic_partition
    rows = [row for row in listing.partitions if row.topic == topic]
    listed = {row.partition for row in rows}
    heirs = [row for row in rows if not listed.issuperset(row.parents)]
    children = [row for row in heirs if partition in row.parents]
    if children:
        return any(
            (topic, row.partition) in start or row.first_offset == start[topic_partition]
            for row in children
        )
    return bool(heirs) and all(
        (topic, row.partition) in start
        or all((topic, parent) in start for parent in row.parents if parent not in listed)
        for row in heirs
    )
