"""A consumer group whose group events are stored at once, for tests that run a scenario."""

from collections.abc import Mapping
from uuid import UUID

from tailrace_broker.core.groups.group import Group
from tailrace_broker.model.group import (
    Committed,
    Confirmation,
    GroupEvent,
    Joined,
    OnNewGroup,
    Subscription,
    TopicPartition,
)
from tailrace_broker.model.topic import Partition, Topic, TopicSettings

ID = UUID(int=1)
BOOT = 7
FIRST_NUMBER = (BOOT << 40) + 2  # a registration takes one too
SESSION_MS = 1000


def topic_of(*partitions: Partition, name: str = "t", topic_id: UUID = ID) -> Topic:
    return Topic(name, topic_id, TopicSettings(), partitions)


def partition_of(
    partition: int, *parents: int, first: int = 0, sealed: int | None = None
) -> Partition:
    return Partition(partition, 0, 1, 0, 1, first, parents, sealed)


def place_of(partition: int) -> TopicPartition:
    return TopicPartition(ID, partition)


ONE = topic_of(partition_of(0))
TWO = topic_of(partition_of(0), partition_of(1))


class Tried:
    """A group whose group events are stored at once."""

    def __init__(self, topic: Topic = TWO, name: str = "g") -> None:
        self.group = Group(name, BOOT)
        self.topic = topic
        self.logs = {
            place_of(partition.partition): (partition.first_offset, partition.sealed_end or 100)
            for partition in topic.partitions
        }
        self.events: list[GroupEvent] = []
        self.now_us = 0

    def subscription(
        self,
        name: str,
        *topics: str,
        on_new_group: OnNewGroup = "startFromEarliest",
        session_ms: int = SESSION_MS,
    ) -> Subscription:
        return Subscription(name, "g", topics or ("t",), on_new_group, session_ms)

    def decide_join(self, name: str, *, on_new_group: OnNewGroup = "startFromEarliest") -> Joined:
        wanted = self.subscription(name, on_new_group=on_new_group)
        joined = self.group.join(wanted, {"t": self.topic}, self.logs, self.now_us)
        assert joined is not None
        return joined

    def join(self, *names: str, on_new_group: OnNewGroup = "startFromEarliest") -> None:
        for name in names:
            self.apply(self.decide_join(name, on_new_group=on_new_group))

    def leave(self, name: str) -> None:
        self.apply(self.group.leave(name, "goodbye"))

    def apply(self, event: GroupEvent) -> None:
        self.events.append(event)
        self.group.apply(event, self.now_us)
        self.rebalance()

    def saved(self, committed: Committed) -> None:
        self.events.append(committed)
        self.group.saved(committed)
        self.group.validate()

    def rebalance(self, *topics: Topic) -> bool:
        names = self.group.topics_of_members()
        known = {topic.name: topic for topic in topics or (self.topic,) if topic.name in names}
        has_changed = self.group.rebalance(known)
        self.group.validate()
        return has_changed

    def begin(self, name: str, delivery: int | None = 0, epoch: int | None = None) -> int:
        return self.group.begin_poll(name, Confirmation(delivery, epoch), self.now_us)

    def starts(self, name: str) -> dict[int, tuple[int, int | None]]:
        """What a poll would read, by partition."""
        fetch_ranges = self.group.fetch_ranges(name, {"t": self.topic})
        return {range_.tp.partition: (range_.start, range_.end) for range_ in fetch_ranges}

    def poll(self, name: str, delivery: int | None = 0, *, ends: Mapping[int, int]) -> int | None:
        """The number of what it gets: to these ends."""
        poll_number = self.begin(name, delivery)
        starts = self.starts(name)
        ranges = {place_of(each): (starts[each][0], end) for each, end in ends.items()}
        number = self.group.deliver(name, poll_number, ranges)
        self.group.validate()
        return number

    def position(self, partition: int) -> int:
        return self.group.position(self.topic, self.topic.partitions[partition])

    def restarted(self) -> Group:
        group = Group("g", BOOT + 1)
        for event in self.events:
            group.apply(event, self.now_us)
        return group
