"""The partitions of topics in the replicated state."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from operator import add
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.core.ring.arithmetic import slice_bounds
from tailrace_broker.model.ring_state import RangeState, RingState, Slices, TopicState
from tailrace_broker.model.topic import Partition, Sliced, Topic

# What `slice_starts` remembers: topics of a ring share a few shapes of slices.
_SHAPES_MAX = 65_536


def topic_of(state: RingState, topic: TopicState) -> Topic:
    """The topic with its partitions one by one. O(partitions)."""
    partitions = [
        partition
        for slices in topic.slices
        for partition in _partitions(state.ranges[slices.range_id], slices)
    ]
    sliced = {
        slices.range_id: Sliced(slices.first_partition, slices.starts[0], len(slices.starts))
        for slices in topic.slices
        if slices.gone
    }
    return Topic(topic.name, topic.id, topic.settings, tuple(partitions), sliced=sliced)


def open_ranges(state: RingState) -> list[RangeState]:
    """Those that take events, in token order. O(n log n)."""
    opened = [each for each in state.ranges.values() if each.sealed_epoch is None]
    return sorted(opened, key=lambda each: each.start)


def with_partitions(topic: TopicState, ranges: Iterable[RangeState]) -> TopicState:
    """The topic with new partitions in these open ranges, which it has none in yet.

    In those of them that take part in a step it waits for its end.
    """
    slices, waits_for, partition = list(topic.slices), [], topic.next_partition
    for each in ranges:
        if each.step is not None:
            waits_for.append(each.id)
            continue
        starts = slice_starts(each.start, each.length_units, topic.settings.partitions_per_range)
        slices.append(Slices(each.id, partition, starts))
        partition += len(starts)
    return replace(
        topic, slices=tuple(slices), next_partition=partition, waits_for=tuple(waits_for)
    )


@lru_cache(_SHAPES_MAX)
def slice_starts(start: int, length_units: int, count: int) -> tuple[int, ...]:
    """Where the slices of a range start; equal ones are one object."""
    return tuple(each for each, _ in slice_bounds(start, length_units, count))


def bounds_of(slices: Slices, end: int) -> list[tuple[int, int]]:
    """`[start, end)` of each, in a range that ends at `end`."""
    return list(zip(slices.starts, chain(slices.starts[1:], (end,)), strict=True))


def ids_of(slices: Slices) -> list[int]:
    """The partitions' ids, without those that are gone."""
    first = slices.first_partition
    return [first + index for index in range(len(slices.starts)) if index not in slices.gone]


def topic_with_id(state: RingState, topic_id: UUID) -> TopicState | None:
    """Return a topic that is not deleted. O(topics)."""
    return next((each for each in state.topics.values() if each.id == topic_id), None)


def slices_in(state: RingState, range_id: int) -> dict[UUID, Slices]:
    """By topic its partitions in the range, where it has some. O(topics)."""
    return {
        topic.id: slices
        for topic in state.topics.values()
        for slices in topic.slices
        if slices.range_id == range_id
    }


def _partitions(owner: RangeState, slices: Slices) -> Iterator[Partition]:
    epoch = owner.epoch if owner.sealed_epoch is None else owner.sealed_epoch
    bounds = bounds_of(slices, owner.end)
    if not (slices.first_offsets or slices.parents or slices.sealed_ends):
        for index, (start, end) in enumerate(bounds, slices.first_partition):
            yield Partition(index, owner.id, epoch, start, end)
        return
    count = len(bounds)
    nothing: tuple[tuple[int, ...], ...] = ((),) * count
    rest = zip(
        slices.firsts,
        map(add, slices.parents or nothing, slices.inherited or nothing),
        slices.sealed_ends or (None,) * count,
        slices.children or nothing,
        slices.log_starts or (None,) * count,
        slices.cuts or nothing,
        strict=True,
    )
    gone = frozenset(slices.gone)
    for index, ((start, end), lineage) in enumerate(zip(bounds, rest, strict=True)):
        if index not in gone:
            yield Partition(slices.first_partition + index, owner.id, epoch, start, end, *lineage)
