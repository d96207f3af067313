"""Topics as a ring of one makes them."""

from uuid import UUID

from tailrace_broker.core.ring.arithmetic import TOKEN_MIN, UNITS, slice_bounds
from tailrace_broker.model.topic import (
    Partition,
    Topic,
    TopicSettings,
)


def new_topic(name: str, settings: TopicSettings, topic_id: UUID) -> Topic:
    """A topic whose partitions slice the one range of a ring of one: all tokens."""
    bounds = slice_bounds(TOKEN_MIN, UNITS, settings.partitions_per_range)
    partitions = tuple(
        Partition(index, 0, 1, start, end) for index, (start, end) in enumerate(bounds)
    )
    return Topic(name, topic_id, settings, partitions)
