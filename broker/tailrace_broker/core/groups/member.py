"""A registered consumer of a group, and what it has open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailrace_broker.model.group import GroupSnapshot, Subscription, TopicPartition
from tailrace_broker.model.topic import Partition, Topic

_POLLS_SHIFT = 40


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
    """A registered consumer. `poll_number`: of its last poll, which replaces those before.

    `confirmed`: the delivery that it has confirmed last; `stored`: the one that survives a restart.
    """

    subscription: Subscription
    joined_epoch: int
    seen_us: int
    poll_number: int
    confirmed: int
    stored: int
    delivery: Delivery | None = None

    @property
    def expires_us(self) -> int:
        """Return when the member is removed unless it makes a request before."""
        return self.seen_us + self.subscription.session_ms * 1000


def new_member(
    subscription: Subscription,
    joined_epoch: int,
    now_us: int,
    numbers: Iterator[int],
    confirmed: int = 0,
) -> Member:
    """Return a consumer whose polls are none of one that had its id before: by `numbers`."""
    poll_number = next(numbers) << _POLLS_SHIFT
    return Member(subscription, joined_epoch, now_us, poll_number, confirmed, confirmed)


def members_of(snapshot: GroupSnapshot, now_us: int, numbers: Iterator[int]) -> dict[str, Member]:
    """Return the consumers by their ids."""
    return {
        each.consumer_id: new_member(
            each, joined_epoch, now_us, numbers, snapshot.confirmed.get(each.consumer_id, 0)
        )
        for each, joined_epoch in snapshot.members
    }


def unstored_confirmations(members: Mapping[str, Member]) -> dict[str, int]:
    """By consumer the delivery that it has confirmed, where a restart would not know it."""
    return {name: each.confirmed for name, each in members.items() if each.confirmed != each.stored}


def stored_confirmations(members: Mapping[str, Member]) -> dict[str, int]:
    """Likewise, as a restart knows it."""
    return {name: each.stored for name, each in members.items() if each.stored}


def store_confirmations(members: Mapping[str, Member], confirmed: Mapping[str, int]) -> None:
    """They are stored, those of consumers that have left meanwhile are of nobody."""
    for name in confirmed.keys() & members.keys():
        member = members[name]
        member.stored = confirmed[name]
        member.confirmed = max(member.confirmed, confirmed[name])
