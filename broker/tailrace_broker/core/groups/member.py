"""A registered consumer of a group, and what it has open."""

from dataclasses import dataclass
from typing import NamedTuple

from tailrace_broker.model.group import Subscription, TopicPartition
from tailrace_broker.model.topic import Partition, Topic


class Assigned(NamedTuple):
    """A partition that is assigned to a consumer."""

    topic: Topic
    partition: Partition
    tp: TopicPartition


@dataclass(slots=True)
class Delivery:
    """What a consumer got and has not confirmed: [start, end) by partition."""

    number: int
    ranges: dict[TopicPartition, tuple[int, int]]


@dataclass(slots=True)
class Member:
    """A registered consumer. `poll_number`: of its last poll, which replaces those before."""

    subscription: Subscription
    joined_epoch: int
    seen_us: int
    poll_number: int
    confirmed: int = 0
    delivery: Delivery | None = None

    @property
    def expires_us(self) -> int:
        """Return when the member is removed unless it makes a request before."""
        return self.seen_us + self.subscription.session_ms * 1000
