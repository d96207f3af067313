"""How far a group is in the partitions of a topic, and what may be read of them."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from tailrace_broker.model.topic import Partition, Topic

State = Literal["open", "sealed", "waiting", "done", "damaged"]
# Where a group goes on in a partition.
PositionOf = Callable[[Topic, Partition], int]


class LogBounds(NamedTuple):
    """Where the records of a partition begin and end, or where its end is lost."""

    log_start: int
    high_watermark: int
    has_lost_end: bool = False


# Nobody says now where a partition's records begin and end.
UNKNOWN = LogBounds(-1, -1)


class PartitionProgress(NamedTuple):
    """How far a group is in a partition; `lag`: records not dealt with, None: it is not known."""

    partition: Partition
    position: int
    lag: int | None
    state: State


def is_done(topic: Topic, partition: Partition, position_of: PositionOf) -> bool:
    """It takes no more records, and the group has dealt with all of it."""
    end = partition.sealed_end
    return end is not None and position_of(topic, partition) >= end


def readable(topic: Topic, position_of: PositionOf) -> list[Partition]:
    """Those whose parents, and theirs, the group has read to their ends."""
    unread: set[int] = set()
    found: list[Partition] = []
    for partition in topic.partitions:  # a parent's id is below those of its children
        has_read_parents = unread.isdisjoint(partition.parents)
        if has_read_parents:
            found.append(partition)
        if not has_read_parents or not is_done(topic, partition, position_of):
            unread.add(partition.partition)
    return found


def progress(
    topic: Topic, position_of: PositionOf, logs: Sequence[LogBounds | None]
) -> list[PartitionProgress]:
    """Return each partition's progress; a log of None is damaged, or it is `UNKNOWN`.

    Removed records are no lag.
    """
    readable_ids = {each.partition for each in readable(topic, position_of)}

    def state_of(partition: Partition) -> State:
        if is_done(topic, partition, position_of):
            return "done"
        if partition.partition not in readable_ids:
            return "waiting"
        return "sealed" if partition.is_sealed else "open"

    progresses = []
    for partition, log in zip(topic.partitions, logs, strict=True):
        position = position_of(topic, partition)
        if log is None or log.has_lost_end:
            progresses.append(PartitionProgress(partition, position, None, "damaged"))
        elif log is UNKNOWN:
            progresses.append(PartitionProgress(partition, position, None, state_of(partition)))
        else:
            lag = max(0, log.high_watermark - max(position, log.log_start))
            progresses.append(PartitionProgress(partition, position, lag, state_of(partition)))
    return progresses
