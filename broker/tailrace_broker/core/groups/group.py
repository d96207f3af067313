"""One consumer group: its consumers, who reads which partition, what was delivered. A machine.

What holds, whatever comes in which order:

- A partition's records go to one consumer at a time, in order, from the group's position on.
- What was delivered is delivered again until it is confirmed: by a poll or a commit that names the
  delivery, or by a poll that names none (as PolarStreams' clients do). A consumer has one delivery
  at a time.
- A partition moves to another consumer only when none has a delivery of it that is open: it ends by
  being confirmed, or with its consumer.
- A child is not read before the group has read all its parents, and theirs, to their ends.
- A position moves forward only, but for a reset, which needs a group without consumers, and a log
  that has lost its end.

Changes that must survive a restart are group events (`model.group`): a method decides on one, and
`apply` applies it once it is stored, at a restart too, or `failed` gives it up. Only positions run
ahead of what is stored: `uncommitted` says by how much.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple, assert_never
from uuid import UUID

from tailrace_broker.core.groups.assignment import assign
from tailrace_broker.core.groups.kind import check_consumer_group, check_reader_group, reader_of
from tailrace_broker.core.groups.member import (
    Assigned,
    Delivery,
    Member,
    members_of,
    new_member,
    store_confirmations,
    stored_confirmations,
    unstored_confirmations,
)
from tailrace_broker.core.groups.offsets import by_topic, partitions_in, partitions_of
from tailrace_broker.core.groups.registration import check_epoch, check_same, starts_in
from tailrace_broker.core.groups.state import is_done, readable
from tailrace_broker.core.groups.unknown import not_registered
from tailrace_broker.model.errors import GroupNotIdleError, StaleDeliveryError
from tailrace_broker.model.group import (
    Committed,
    Confirmation,
    Deleted,
    GroupEvent,
    GroupSnapshot,
    Joined,
    Left,
    Moved,
    Offsets,
    Published,
    Subscription,
    TopicPartition,
)
from tailrace_broker.model.topic import Partition, Topic

# Topics by name, as far as the group's consumers subscribe to them and they exist.
TopicByName = Mapping[str, Topic]

# A delivery's number has the coordinator's boot, so that none is used twice over a restart: 8
# million boots, each of 10^12 deliveries, are below 2^63.
_TERM_SHIFT = 40


class FetchRange(NamedTuple):
    """Records [start, end) of a partition; `end` None: as far as the reader likes."""

    topic: Topic
    partition: Partition
    tp: TopicPartition
    start: int
    end: int | None


@dataclass(slots=True)
class Group:
    """The state of one group.

    `term`: the coordinator's epoch. Its groups share `numbers`: a consumer may have come from
    another group, and name what it got there.
    """

    name: str
    term: int
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    epoch: int = 0
    source: str | None = None  # of offsets that are published by a reader that keeps them itself
    lost: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    stored: dict[TopicPartition, int] = field(default_factory=dict)  # what survives a restart
    _stored_lost: int = 0
    reads_sealed: bool = False  # to its end: then others may have something to read
    has_freed: bool = False  # something that other consumers may wait for; to be taken back
    _assigned: dict[str, list[Assigned]] = field(default_factory=dict)  # by consumer
    _ahead: set[TopicPartition] = field(default_factory=set)  # positions that may not be stored
    _holders: dict[TopicPartition, str] = field(default_factory=dict)  # whose delivery is open
    _is_moving: bool = False  # a reset is under way

    # --- what consumers ask for ---

    def join(
        self,
        wanted: Subscription,
        topics: TopicByName,
        logs: Mapping[TopicPartition, tuple[int, int]],
        now_us: int,
    ) -> Joined | None:
        """Return the event that registers a consumer; None: it is registered with these values.

        `logs`: log start and high watermark of its topics' partitions, undamaged ones.
        ConsumerExistsError, GroupKindError.
        """
        check_consumer_group(self.name, self.source)
        member = self.members.get(wanted.consumer_id)
        if member is not None:
            check_same(member.subscription, wanted)
            member.seen_us = now_us
            return None
        known = {tp.topic_id for tp in self.positions}
        new = [topics[name] for name in wanted.topics if name in topics]
        starts = starts_in([each for each in new if each.topic_id not in known], logs, wanted)
        return Joined(wanted, self.epoch + 1, by_topic(starts))

    def leave(self, consumer_id: str, reason: Literal["goodbye", "expired"]) -> Left:
        """Return the event that removes a consumer. ConsumerNotRegisteredError."""
        self._member(consumer_id)
        return Left(consumer_id, self.epoch + 1, reason)

    def seen(self, consumer_id: str, epoch: int | None, now_us: int) -> Member:
        """A member that makes a request. ConsumerNotRegisteredError; StaleAssignmentError."""
        member = self._member(consumer_id)
        check_epoch(member, epoch)
        member.seen_us = now_us
        return member

    def begin_poll(self, consumer_id: str, confirmation: Confirmation, now_us: int) -> int:
        """The number of a new poll; polls before it get nothing any more.

        What was delivered is confirmed when the poll names it, or names nothing.
        ConsumerNotRegisteredError; StaleAssignmentError.
        """
        member = self.seen(consumer_id, confirmation.epoch, now_us)
        delivery = member.delivery
        if delivery is not None and confirmation.delivery in (None, delivery.number):
            self._confirm(member, delivery)
        member.poll_number += 1
        return member.poll_number

    def touch(self, consumer_id: str, now_us: int) -> None:
        """The consumer is there: its poll waits."""
        self._member(consumer_id).seen_us = now_us

    def fetch_ranges(self, consumer_id: str, topics: TopicByName) -> list[FetchRange]:
        """What a consumer may read now: its open delivery again, or its partitions from the group's
        positions on. ConsumerNotRegisteredError.
        """
        member = self._member(consumer_id)
        if member.delivery is None:
            return [
                FetchRange(topic, partition, tp, self.positions[tp], None)
                for topic, partition, tp in self._assigned.get(consumer_id, ())
                if self._is_free(tp)
                and (not partition.parents or partition in readable(topic, self.position))
            ]
        ranges = member.delivery.ranges
        return [
            FetchRange(topic, partition, tp, *ranges[tp])
            for topic in topics.values()
            for tp, partition in zip(partitions_in(topic), topic.partitions, strict=True)
            if tp in ranges
        ]

    def deliver(
        self, consumer_id: str, poll_number: int, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> int | None:
        """Return the number of a delivery of these [start, end); None: it must not be sent.

        It is None when the consumer has polled again, was removed, or lost a partition.
        """
        member = self.members.get(consumer_id)
        if member is None or member.poll_number != poll_number or not ranges:
            return None
        if member.delivery is not None:
            return self._deliver_again(member, member.delivery, ranges)
        if any(self.owners.get(tp) != consumer_id for tp in ranges):
            return None
        if not all(map(self._is_free, ranges)):
            return None
        if any(start != self.positions[tp] for tp, (start, _) in ranges.items()):
            return None
        number = (self.term << _TERM_SHIFT) + next(self.numbers)
        member.delivery = Delivery(number, dict(ranges))
        self._holders |= dict.fromkeys(ranges, consumer_id)
        return number

    def withdraw(self, consumer_id: str, poll_number: int, number: int) -> None:
        """The answer of that poll with this delivery did not leave: the next poll must not confirm
        it. Unless that has come already: it has the delivery, or will.
        """
        member = self.members.get(consumer_id)
        delivery = (
            member.delivery if member is not None and member.poll_number == poll_number else None
        )
        if member is not None and delivery is not None and delivery.number == number:
            self._end_delivery(member)

    def confirm(self, consumer_id: str, confirmation: Confirmation, now_us: int) -> None:
        """A commit. ConsumerNotRegisteredError; StaleAssignmentError; StaleDeliveryError."""
        member = self.seen(consumer_id, confirmation.epoch, now_us)
        delivery = member.delivery
        if delivery is not None and confirmation.delivery in (None, delivery.number):
            self._confirm(member, delivery)
        elif confirmation.delivery not in (None, 0, member.confirmed):
            named = confirmation.delivery or 0
            raise StaleDeliveryError(
                f'delivery {named} is not the last one of consumer "{consumer_id}"; nothing was '
                "committed: poll, and its records come again",
                delivery=named,
                coordinatorChanged=named >> _TERM_SHIFT < self.term,
            )

    # --- what the coordinator sees ---

    def fit(self, tp: TopicPartition, log_start: int, high_watermark: int) -> None:
        """Bring the position to where there are records, or will be.

        What retention has removed is lost, and counted; it is no part of a delivery any more. A log
        that ends below the position has lost its end with a power failure: what comes now is new.
        """

        def fitting(offset: int) -> int:
            return min(max(offset, log_start), high_watermark)

        position = self.positions.get(tp, log_start)
        self._move(tp, fitting(position))
        self.lost += max(0, fitting(position) - position)
        self._narrow_at(tp, lambda start, end: (fitting(start), fitting(end)))

    def pass_over(self, tp: TopicPartition, lost: range) -> bool:
        """Move over records that are lost for good, which somebody has accepted.

        They are counted, as what retention has removed. A delivery that holds them ends before
        them, and its rest comes later. Whether anything has changed.
        """

        def passing(start: int, end: int) -> tuple[int, int]:
            if start in lost:
                return lost.stop, max(lost.stop, end)
            return start, lost.start if start < lost.start < end else end

        position = self.positions.get(tp, lost.stop)
        if position in lost:
            self._move(tp, lost.stop)
            self.lost += lost.stop - position
        return self._narrow_at(tp, passing) or position in lost

    def expired(self, now_us: int) -> list[str]:
        """Consumers that were not seen for too long."""
        return [name for name, member in self.members.items() if member.expires_us <= now_us]

    def next_expiry_us(self) -> int | None:
        """Return when the first consumer may expire; None: there is no consumer."""
        return min((member.expires_us for member in self.members.values()), default=None)

    def follow(self, topics: Iterable[Topic]) -> None:
        """Bring positions to what the ring has left of the partitions of topics.

        To be called at a start, and when one of the topics has changed, for all topics that the
        group has positions in: what it has not read is lost, whether it has consumers or not.
        """
        if reader_of(self.name, self.source) is not None:  # its positions are not kept here
            return
        known = {tp.topic_id for tp in self.positions}
        by_id = {topic.topic_id: topic for topic in topics if topic.topic_id in known}
        self._leave_gone(by_id)
        for topic in by_id.values():
            for tp, partition in zip(partitions_in(topic), topic.partitions, strict=True):
                if tp not in self.positions:
                    self._move(tp, partition.first_offset)
                end = partition.sealed_end
                if end is not None and self.positions[tp] < partition.known_start:
                    self.fit(tp, partition.known_start, end)

    def rebalance(self, topics: TopicByName) -> bool:
        """Assign the partitions again; whether anything has changed.

        To be called when all events of a start are applied, after each later event, and when a
        topic of the consumers has changed, come or gone.
        """
        self.follow(topics.values())
        self._forget_all_but({topic.topic_id: topic for topic in topics.values()})
        tps = {
            name: [
                TopicPartition(topic.topic_id, partition.partition)
                for partition in topic.partitions
                if not self._is_done(topic, partition)
            ]
            for name, topic in topics.items()
        }
        subscriptions = {
            name: frozenset(member.subscription.topics) for name, member in self.members.items()
        }
        before, self.owners = self.owners, assign(tps, subscriptions, self.owners)
        self._assigned = {name: [] for name in self.members}
        for topic in topics.values():
            for tp, partition in zip(partitions_in(topic), topic.partitions, strict=True):
                if tp not in self.positions:
                    self._move(tp, partition.first_offset)
                if tp in self.owners:
                    self._assigned[self.owners[tp]].append(Assigned(topic, partition, tp))
        self.reads_sealed = any(
            partition.is_sealed and not self._is_done(topic, partition)
            for topic in topics.values()
            for partition in topic.partitions
        )
        return before != self.owners

    def uncommitted(self) -> Committed | None:
        """Return the event that stores the positions; None: stored, or a reset is under way."""
        if self._is_moving:
            return None
        moved = {tp: self.positions[tp] for tp in self._ahead}
        confirmed = unstored_confirmations(self.members)
        if not (moved or confirmed) and self.lost == self._stored_lost:
            return None
        return Committed(by_topic(moved), self.lost, confirmed)

    def saved(self, committed: Committed) -> None:
        """Apply what `uncommitted` gave; no position moves, though it has come back meanwhile."""
        known = [tp for tp, _ in partitions_of(committed.offsets) if tp in self.positions]
        positions = [(tp, self.positions[tp]) for tp in known]
        self.apply(committed, 0)
        for tp, offset in positions:
            self._move(tp, offset)

    def reset(self, offsets: Mapping[TopicPartition, int]) -> Moved:
        """Return the event that moves the group there. GroupNotIdleError, GroupKindError."""
        check_consumer_group(self.name, self.source)
        self._begin_move()
        return Moved(by_topic(offsets))

    def publish(self, source: str, offsets: Mapping[TopicPartition, int]) -> Published:
        """Return the event of a reader's offsets. GroupNotIdleError, GroupKindError."""
        self.check_idle()
        check_reader_group(self.name, self.source, has_positions=bool(self.positions))
        self._begin_move()
        return Published(source, by_topic(offsets))

    def delete(self) -> Deleted:
        """Return the event that deletes the group. GroupNotIdleError."""
        self._begin_move()
        return Deleted()

    def snapshot(self, gone: Container[UUID] = ()) -> GroupSnapshot:
        """Return the state that survives a restart, without `gone`; no event may be under way."""
        kept = {tp: at for tp, at in self.stored.items() if tp.topic_id not in gone}
        return GroupSnapshot(
            self.epoch,
            tuple((member.subscription, member.joined_epoch) for member in self.members.values()),
            by_topic(kept),
            self._stored_lost,
            self.source,
            stored_confirmations(self.members),
        )

    def apply(self, event: GroupEvent, now_us: int) -> None:
        """Apply what is stored, in the order of the log; `rebalance` after it.

        What was decided from a state that is no more does no harm: the first of several that
        contradict each other counts.
        """
        match event:
            case Joined():
                self._apply_joined(event, now_us)
            case Left(consumer_id, epoch, _):
                self._apply_left(consumer_id, epoch)
            case Committed(offsets, lost, confirmed):
                self._apply_committed(offsets)
                store_confirmations(self.members, confirmed)
                self._stored_lost = max(self._stored_lost, lost)
                self.lost = max(self.lost, lost)
            case Moved() | Published() | Deleted():
                self._is_moving = False
                if not self.members:  # none has come meanwhile
                    self._apply_moved(event)
            case GroupSnapshot():
                self._apply_snapshot(event, now_us)
            case _:
                assert_never(event)

    def failed(self, event: GroupEvent) -> None:
        """Give up an event that was decided on: it is not stored, and will not be."""
        if isinstance(event, Moved | Published | Deleted):
            self._is_moving = False

    # --- questions ---

    def position(self, topic: Topic, partition: Partition) -> int:
        """Return where the group goes on in a partition."""
        tp = TopicPartition(topic.topic_id, partition.partition)
        return self.positions.get(tp, partition.first_offset)

    def topics_of_members(self) -> set[str]:
        """Return the topics that its consumers subscribe to, by name."""
        return {name for member in self.members.values() for name in member.subscription.topics}

    def is_owner(self, consumer_id: str) -> bool:
        """Some partition is this consumer's."""
        return bool(self._assigned.get(consumer_id))

    def check_idle(self) -> None:
        """GroupNotIdleError while it has consumers."""
        if self.members:
            raise GroupNotIdleError(
                f'group "{self.name}" has consumers: {len(self.members)}. Stop them first, or wait '
                "until their sessions have ended",
                group=self.name,
                members=len(self.members),
            )

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        deliveries = {name: one.delivery for name, one in self.members.items() if one.delivery}
        held = [(tp, name) for name, each in deliveries.items() for tp in each.ranges]
        assert len(held) == len(self._holders), "two consumers have a delivery of one partition"
        assert dict(held) == self._holders
        for name, delivery in deliveries.items():
            assert any(start < end for start, end in delivery.ranges.values()), delivery
            for tp, (start, end) in delivery.ranges.items():
                assert start == self.positions[tp], tp
                assert start <= end, tp
            assert self.members[name].confirmed != delivery.number
        assert self.owners.keys() <= self.positions.keys()
        stored = self.stored
        assert self._ahead == {at for at, to in self.positions.items() if stored.get(at) != to}
        assert {*self.owners.values()} <= self.members.keys()
        assert all(member.joined_epoch <= self.epoch for member in self.members.values())

    # --- how it is done ---

    def _member(self, consumer_id: str) -> Member:
        member = self.members.get(consumer_id)
        if member is None:
            raise not_registered(consumer_id)
        return member

    def _is_free(self, tp: TopicPartition) -> bool:
        """No delivery of it is open."""
        return tp not in self._holders

    def _is_done(self, topic: Topic, partition: Partition) -> bool:
        """It takes no more records, and the group has dealt with all of it."""
        return is_done(topic, partition, self.position)

    def _confirm(self, member: Member, delivery: Delivery) -> None:
        for tp, (_, end) in delivery.ranges.items():
            assert end >= self.positions[tp]
            self._move(tp, end)
        member.confirmed = delivery.number
        self._end_delivery(member)

    def _deliver_again(
        self, member: Member, delivery: Delivery, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> int | None:
        for tp, (start, end) in ranges.items():
            delivered_start, delivered_end = delivery.ranges.get(tp, (-1, -1))
            if start != delivered_start or end > delivered_end:
                return None
        self._narrow(member, delivery, ranges)
        return delivery.number

    def _narrow(
        self, member: Member, delivery: Delivery, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        """Leave only this of a delivery; the rest is delivered later."""
        for tp in delivery.ranges.keys() - ranges.keys():
            self._free(tp)
        delivery.ranges = dict(ranges)
        if all(start == end for start, end in ranges.values()):
            self._end_delivery(member)

    def _narrow_at(
        self, tp: TopicPartition, fitting: Callable[[int, int], tuple[int, int]]
    ) -> bool:
        """Leave what is fitting of a delivery of this partition; whether it has changed."""
        member = self.members.get(self._holders.get(tp, ""))
        delivery = member.delivery if member is not None else None
        if member is None or delivery is None:
            return False
        before = delivery.ranges[tp]
        fitted = fitting(*before)
        self._narrow(member, delivery, delivery.ranges | {tp: fitted})
        return fitted != before

    def _move(self, tp: TopicPartition, offset: int) -> None:
        """A position runs ahead of what is stored, or comes back to it."""
        self.positions[tp] = offset
        if self.stored.get(tp) == offset:
            self._ahead.discard(tp)
        else:
            self._ahead.add(tp)

    def _end_delivery(self, member: Member) -> None:
        for tp in member.delivery.ranges if member.delivery else ():
            self._free(tp)
        member.delivery = None

    def _free(self, tp: TopicPartition) -> None:
        holder = self._holders.pop(tp)
        self.has_freed = self.has_freed or self.owners.get(tp) != holder

    def _leave_gone(self, topics: Mapping[UUID, Topic]) -> None:
        """Move to the ends of partitions that are gone, and forget those that are stored there.

        What retention has removed before the group has read it is lost, and counted.
        """
        for tp, position in [*self.positions.items()]:
            topic = topics.get(tp.topic_id)
            if topic is None or topic.find(tp.partition) is not None:
                continue
            end = topic.gone_ends.get(tp.partition, position)
            if position < end:
                self._move(tp, end)
                self.lost += end - position
            elif tp not in self._ahead:
                del self.positions[tp], self.stored[tp]

    def _forget_all_but(self, topics: Mapping[UUID, Topic]) -> None:
        """Forget deliveries of topics and partitions that are gone: nobody can have them again."""
        for member in self.members.values():
            if member.delivery is not None:
                ranges = member.delivery.ranges
                kept = {
                    tp: ranges[tp]
                    for tp in ranges
                    if tp.topic_id in topics and topics[tp.topic_id].find(tp.partition) is not None
                }
                self._narrow(member, member.delivery, kept)

    def _begin_move(self) -> None:
        """Positions of now must not come behind it in the log."""
        self.check_idle()
        self._is_moving = True

    def _apply_joined(self, joined: Joined, now_us: int) -> None:
        self._is_moving = False
        known = {tp.topic_id for tp in self.positions}
        for tp, offset in partitions_of(joined.starts):
            if tp.topic_id not in known:
                self.stored[tp] = offset
                self._move(tp, offset)
        name = joined.subscription.consumer_id
        if name not in self.members:
            self.members[name] = new_member(joined.subscription, joined.epoch, now_us, self.numbers)
            self.epoch = max(self.epoch + 1, joined.epoch)
            self.source = None

    def _apply_left(self, consumer_id: str, epoch: int) -> None:
        member = self.members.get(consumer_id)
        if member is not None and member.joined_epoch < epoch:  # not one that has come back since
            self._end_delivery(member)
            del self.members[consumer_id]
            self.owners = {tp: owner for tp, owner in self.owners.items() if owner != consumer_id}
            self._assigned.pop(consumer_id, None)
            self.epoch = max(self.epoch + 1, epoch)

    def _apply_committed(self, offsets: Offsets) -> None:
        """A position that has not run ahead follows, also to where a log that lost its end ends."""
        for tp, offset in partitions_of(offsets):
            is_ahead = tp in self._ahead
            self.stored[tp] = offset
            self._move(tp, self.positions[tp] if is_ahead else offset)

    def _apply_moved(self, event: Moved | Published | Deleted) -> None:
        match event:
            case Deleted():
                self.stored, self.positions, self.source = {}, {}, None
                self._ahead.clear()
                self.lost = self._stored_lost = 0
                return
            case Published(source, _):
                self.source = source
        offsets = dict(partitions_of(event.offsets))
        self.stored |= offsets
        self.positions |= offsets
        self._ahead -= offsets.keys()

    def _apply_snapshot(self, snapshot: GroupSnapshot, now_us: int) -> None:
        """Take over a snapshot at a start; it supersedes what is before it in the log."""
        self.epoch, self.source = snapshot.epoch, snapshot.source
        self.lost = self._stored_lost = snapshot.lost
        self.members = members_of(snapshot, now_us, self.numbers)
        self.stored = dict(partitions_of(snapshot.offsets))
        self.positions = dict(self.stored)
        self._ahead.clear()
