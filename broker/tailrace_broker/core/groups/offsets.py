"""Offsets of partitions, as groups and their events have them."""

from collections.abc import Mapping
from uuid import UUID

from tailrace_broker.model.group import Offsets, TopicPartition
from tailrace_broker.model.topic import Topic


def partitions_in(topic: Topic) -> list[TopicPartition]:
    """Return what names a topic's partitions."""
    return [TopicPartition(topic.topic_id, partition.partition) for partition in topic.partitions]


def partitions_of(offsets: Offsets) -> list[tuple[TopicPartition, int]]:
    """Return the offsets one by one."""
    return [
        (TopicPartition(topic_id, partition), offset)
        for topic_id, by_partition in offsets.items()
        for partition, offset in by_partition.items()
    ]


def by_topic(offsets: Mapping[TopicPartition, int]) -> Offsets:
    """Return the offsets as events have them."""
    found: dict[UUID, dict[int, int]] = {}
    for tp, offset in offsets.items():
        found.setdefault(tp.topic_id, {})[tp.partition] = offset
    return found
