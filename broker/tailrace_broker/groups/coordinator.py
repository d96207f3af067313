"""The coordinator of the groups that one partition of `__groups` keeps, while this broker leads it.

The groups' machine decides, here are log, clock and waiting. A change is appended to the log and
applied when it is committed (`groups.writer`). With the epoch the coordinator ends: another one,
here or elsewhere, reads the log again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import structlog

from tailrace_broker.core.groups.group import Group
from tailrace_broker.core.groups.kind import check_consumer_group
from tailrace_broker.core.groups.registration import check_same
from tailrace_broker.core.groups.unknown import group_not_found, not_registered
from tailrace_broker.groups.bounds import GroupBounds
from tailrace_broker.groups.compaction import GroupCompaction
from tailrace_broker.groups.end_comparison import EndComparison, KnownEndsOf
from tailrace_broker.groups.log import GroupLog
from tailrace_broker.groups.polled_logs import (
    PolledLog,
    PolledLogs,
    fit,
    fits,
    pass_over_losses,
    wait_at,
)
from tailrace_broker.groups.sessions import GroupSessions
from tailrace_broker.groups.stored_groups import GroupsReader, read_groups
from tailrace_broker.groups.writer import GroupWriter, Waiter, end
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    ConsumerExistsError,
    NotReadyError,
    StaleDeliveryError,
    TailraceError,
)
from tailrace_broker.model.group import (
    GROUPS_TOPIC,
    Confirmation,
    Deleted,
    GroupEvent,
    Left,
    Subscription,
    TopicPartition,
)
from tailrace_broker.model.topic import Topic
from tailrace_broker.net.broker import GroupPoll, GroupView
from tailrace_broker.topics.topics import Topics

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Coordinated:
    """A group and what goes on around it."""

    group: Group
    coordinator: "PartitionCoordinator"
    writer: GroupWriter = field(init=False)
    sessions: GroupSessions = field(init=False)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by who adds a group event
    is_stored: bool = False  # some group event of it
    topics: dict[str, Topic] = field(default_factory=dict)  # of its consumers, by name
    waiters: dict[str, Waiter] = field(default_factory=dict)  # polls, by consumer


class PartitionCoordinator:
    """Groups of one partition, in one epoch. State changes on the event loop only."""

    def __init__(
        self,
        log: GroupLog,
        topics: Topics,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        clock_us: Callable[[], int],
        counters: Counters,
        *,
        by_consumer: dict[str, "Coordinated"],
        numbers: Iterator[int],
        logs: PolledLogs,
        known_ends_of: KnownEndsOf,
        bounds: GroupBounds,
        group_count: Callable[[], int],
    ) -> None:
        """`clock_us`: of sessions, which no change of the wall clock must end.

        `by_consumer`: all that are coordinated by this broker. `numbers`: of deliveries; a consumer
        may come from another group. `group_count`: of this broker.
        """
        self.by_name: dict[str, Coordinated] = {}
        self.log = log
        self._topics = topics
        self._spawn = spawn
        self._clock_us = clock_us
        self._counters = counters
        self._by_consumer = by_consumer
        self._numbers = numbers
        self._logs = logs
        self._bounds = bounds
        self._group_count = group_count
        self._compaction = GroupCompaction(log, topics, spawn, self._writers)
        self.comparison = EndComparison(
            topics, known_ends_of, spawn, self._groups, self._on_compared
        )
        self._is_closed = False

    async def load(self) -> None:
        """Read what is stored; what its parents had a new partition stores first.

        StoredDataError: this partition is damaged. OverloadError: it may be tried again.
        """
        log, topic = self.log, self._topics.internal[GROUPS_TOPIC].topic
        reader = GroupsReader(log.epoch, self._numbers, self._clock_us(), self._logs.find_sealed)
        stored = await read_groups(reader, topic, topic.at(log.partition), log, log.read_end)
        for group in stored.by_name.values():
            self._add(group).is_stored = True
        if stored.is_inherited:
            await self._compaction.append_snapshots()
            await log.append_inherited()

    async def begin(self) -> None:
        """Coordinate what was read."""
        for coordinated in list(self.by_name.values()):
            self._by_consumer.update(dict.fromkeys(coordinated.group.members, coordinated))
            self._rebalance(coordinated)
            coordinated.sessions.watch()
        await self._fit_all()
        if not self._is_closed:
            here = {tp for tp, log in self._logs.whole().items() if log.is_served}
            self.comparison.compare(self._topics.by_name, known=here)

    async def _fit_all(self) -> None:
        """Bring all positions to where the logs are.

        A log that is the only copy may have lost its end: what comes under those offsets is new.
        """
        logs = self._logs.whole()
        topics = [hosted.topic for hosted in self._topics.by_name.values()]
        for found in list(self.by_name.values()):
            group = found.group
            group.follow(topics)
            fits_here = group.positions.keys() & logs.keys()
            if any(await asyncio.gather(*(fit(group, tp, logs[tp]) for tp in fits_here))):
                _log.warning("group.moved", group=group.name, lost_records=group.lost)
            if group.uncommitted() is not None:
                with suppress(TailraceError):  # the next poll tries again
                    await found.writer.saved()

    def end(self) -> None:
        """End what waits: another broker coordinates these groups, or none."""
        self._is_closed = True
        self.comparison.end()
        for found in self.by_name.values():
            found.sessions.end()
            self._wake(found)
            for consumer_id in found.group.members:
                if self._by_consumer.get(consumer_id) is found:
                    del self._by_consumer[consumer_id]

    async def close(self) -> None:
        """End what waits, and store all positions while the log is still led."""
        self.end()
        for found in list(self.by_name.values()):
            with suppress(TailraceError):  # what is not stored is delivered again
                await found.writer.saved()

    def check_led(self) -> None:
        """NotLeaderError, NoLeaderError; NotReadyError from a stop on."""
        self.log.check_led()
        if self._is_closed:
            raise NotReadyError("the broker does not coordinate these groups any more; try again")

    async def check_surely_led(self) -> None:
        """As `check_led`; NoLeaderError: another broker may coordinate these groups by now."""
        await self.log.check_surely_led()
        self.check_led()

    # --- consumers ---

    def check_kind(self, group: str) -> None:
        """GroupKindError: it takes no consumers."""
        known = self.by_name.get(group)
        check_consumer_group(group, known.group.source if known else None)

    async def register(
        self, wanted: Subscription, ends: Mapping[TopicPartition, tuple[int, int]] | None
    ) -> int:
        """Register as `net.broker.GroupCoordinator` says.

        `ends`: see `Group.join`; None: it was a member. NotReadyError: it is none any more.
        """
        self.check_kind(wanted.group)
        async with self._changing(wanted.group, self._group) as coordinated:
            return await self._join(coordinated, wanted, ends)

    def has_member(self, wanted: Subscription) -> bool:
        """The group has this consumer."""
        known = self.by_name.get(wanted.group)
        return known is not None and wanted.consumer_id in known.group.members

    def seen(self, wanted: Subscription, epoch: int) -> None:
        """A heartbeat. ConsumerNotRegisteredError, StaleAssignmentError."""
        self._of_consumer(wanted.consumer_id).group.seen(
            wanted.consumer_id, epoch, self._clock_us()
        )

    async def poll(self, consumer_id: str, said: Confirmation, wait_ms: int) -> GroupPoll:
        """Poll as `net.broker.GroupCoordinator` says."""
        self.check_led()
        coordinated = self._of_consumer(consumer_id)
        poll_number = coordinated.group.begin_poll(consumer_id, said, self._clock_us())
        self._counters.group_polls += 1
        self._on_confirmed(coordinated)
        waiter = coordinated.waiters.pop(consumer_id, None)
        if waiter is not None:  # of a poll before, which gets nothing
            end(waiter)
        return await self._found(coordinated, consumer_id, poll_number, {}, wait_ms)

    async def poll_on(
        self, poll: GroupPoll, unreadable: Mapping[TopicPartition, TailraceError], wait_ms: int
    ) -> GroupPoll:
        """Go on with a poll as `net.broker.GroupCoordinator` says."""
        self.check_led()
        consumer_id, poll_number = poll.consumer_id, poll.poll_number
        coordinated = self._of_consumer(consumer_id)
        left = pass_over_losses(coordinated.group, unreadable)
        if len(left) < len(unreadable):
            self._on_moved(coordinated)
        member = coordinated.group.members.get(consumer_id)
        delivery = member.delivery if member is not None else None
        if delivery is not None and delivery.ranges.keys() <= left.keys():
            coordinated.group.withdraw(consumer_id, poll_number, delivery.number)
            self._wake_when_freed(coordinated)
        return await self._found(coordinated, consumer_id, poll_number, left, wait_ms)

    async def _found(
        self,
        found: Coordinated,
        consumer_id: str,
        poll_number: int,
        unreadable: Mapping[TopicPartition, TailraceError],
        wait_ms: int,
    ) -> GroupPoll:
        """Return the ranges of a poll as soon as there is something."""
        group = found.group
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_ms / 1000
        is_fitted = False
        while True:
            self.check_led()
            if consumer_id not in group.members:
                raise not_registered(consumer_id)
            is_last = group.members[consumer_id].poll_number == poll_number
            wanted = group.fetch_ranges(consumer_id, found.topics) if is_last else []
            logs, problem = self._logs.of_all(wanted, unreadable)
            unfit = [(each.tp, log) for each, log in logs if not fits(log, each.start)]
            if unfit and not is_fitted:
                await self._fit(found, unfit)
                is_fitted = True
                continue  # others may have polled meanwhile
            fetch_ranges = [
                log for log in logs if log[0].start < (log[0].end or log[1].high_watermark)
            ]
            if fetch_ranges or not is_last or loop.time() >= ends_s:
                member = group.members[consumer_id]
                first = poll_number % max(1, len(fetch_ranges))  # each partition has its turn
                return GroupPoll(
                    consumer_id,
                    poll_number,
                    [*fetch_ranges[first:], *fetch_ranges[:first]],
                    group.is_owner(consumer_id),
                    group.epoch,
                    member.confirmed,
                    problem,
                )
            await self._wait(found, consumer_id, [log for _, log in logs], ends_s)
            is_fitted = False

    async def deliver(self, poll: GroupPoll, ends: Sequence[int]) -> int | None:
        """Deliver as `net.broker.GroupCoordinator` says."""
        await self.check_surely_led()
        coordinated = self._by_consumer.get(poll.consumer_id)
        if coordinated is None:
            return None
        ranges = {
            fetch_range.tp: (fetch_range.start, end)
            for (fetch_range, _), end in zip(poll.fetch_ranges, ends, strict=True)
            if end > fetch_range.start
        }
        number = coordinated.group.deliver(poll.consumer_id, poll.poll_number, ranges)
        self._wake_when_freed(coordinated)
        if number is not None:
            self._counters.group_delivered_records += sum(
                end - start for start, end in ranges.values()
            )
        return number

    def withdraw(self, poll: GroupPoll, delivery: int) -> None:
        """Withdraw as `net.broker.GroupCoordinator` says."""
        coordinated = self._by_consumer.get(poll.consumer_id)
        if coordinated is not None:
            coordinated.group.withdraw(poll.consumer_id, poll.poll_number, delivery)
            self._wake_when_freed(coordinated)

    async def commit(self, consumer_id: str, said: Confirmation) -> None:
        """Commit as `net.broker.GroupCoordinator` says."""
        self.check_led()
        coordinated = self._of_consumer(consumer_id)
        coordinated.group.confirm(consumer_id, said, self._clock_us())
        self._counters.group_commits += 1
        self._on_confirmed(coordinated)
        if coordinated.group.uncommitted() is None:  # else an append is a proof as well
            await self.check_surely_led()
        await coordinated.writer.saved()

    async def goodbye(self, consumer_id: str, said: Confirmation, *, commits: bool) -> None:
        """Say goodbye as `net.broker.GroupCoordinator` says."""
        self.check_led()
        entry = self._of_consumer(consumer_id)
        joined_epoch = entry.group.seen(consumer_id, said.epoch, self._clock_us()).joined_epoch
        if commits:
            with suppress(StaleDeliveryError):  # what it names is not what it has: that comes again
                entry.group.confirm(consumer_id, said, self._clock_us())
            self._on_confirmed(entry)
            await entry.writer.saved()
        async with entry.changing:
            member = entry.group.members.get(consumer_id)
            if member is not None and member.joined_epoch == joined_epoch:
                await self._remove(entry, consumer_id, "goodbye")

    # --- groups ---

    def views(self) -> Iterator[GroupView]:
        """Return the views as `net.broker.GroupCoordinator` says."""
        self.check_led()
        return (self.view(name) for name in sorted(self.by_name) if self._is_stored(name))

    def view(self, group: str) -> GroupView:
        """Return the view as `net.broker.GroupCoordinator` says."""
        coordinated = self._stored(group)
        known = {tp.topic_id for tp in coordinated.group.positions}
        subscribed = coordinated.group.topics_of_members()
        topics = {
            name: hosted
            for name, hosted in self._topics.by_name.items()
            if hosted.topic.topic_id in known or name in subscribed
        }
        place, now_us = self.log.partition, self._clock_us()
        return GroupView(coordinated.group, topics, place, now_us, self._logs.heard)

    async def reset(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Reset as `net.broker.GroupCoordinator` says."""
        async with self._changing(group, self._stored) as found:
            await found.writer.store(found.group.reset(offsets))

    async def publish(self, group: str, source: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Publish as `net.broker.GroupCoordinator` says."""
        async with self._changing(group, self._group) as found:
            await found.writer.store(found.group.publish(source, offsets))

    async def delete(self, group: str) -> None:
        """Delete as `net.broker.GroupCoordinator` says."""
        async with self._changing(group, self._stored) as found:
            await found.writer.store(found.group.delete())

    # --- finding ---

    def _of_consumer(self, consumer_id: str) -> Coordinated:
        coordinated = self._by_consumer.get(consumer_id)
        if coordinated is None:
            raise not_registered(consumer_id)
        return coordinated

    def _stored(self, group: str) -> Coordinated:
        """Return the group. GroupNotFoundError."""
        self.check_led()
        if not self._is_stored(group):
            raise group_not_found(group)
        return self.by_name[group]

    def _is_stored(self, group: str) -> bool:
        return group in self.by_name and self.by_name[group].is_stored

    def _group(self, name: str) -> Coordinated:
        """The one that is there, or a new one. TooManyGroupsError."""
        self.check_led()
        if name not in self.by_name:
            self._bounds.check_groups(self._group_count())
        return self.by_name.get(name) or self._add(Group(name, self.log.epoch, self._numbers))

    def _add(self, group: Group) -> Coordinated:
        name = group.name
        coordinated = Coordinated(group, self)
        coordinated.writer = GroupWriter(
            group,
            self.log,
            self._spawn,
            self._clock_us,
            is_kept=lambda: coordinated.is_stored and self.by_name.get(name) is coordinated,
            on_stored=partial(self._on_stored, coordinated),
            on_ended=self._compaction.look,
        )
        coordinated.sessions = GroupSessions(
            group,
            self._spawn,
            self._clock_us,
            waiting=lambda: coordinated.waiters,
            remove_expired=partial(self._remove_expired, coordinated),
        )
        self.by_name[name] = coordinated
        return coordinated

    def _groups(self) -> list[Group]:
        return [each.group for each in self.by_name.values()]

    def _writers(self) -> list[GroupWriter]:
        return [each.writer for each in self.by_name.values()]

    @asynccontextmanager
    async def _changing(
        self, name: str, find: Callable[[str], Coordinated]
    ) -> AsyncIterator[Coordinated]:
        """The group, which nobody else changes or deletes meanwhile."""
        while True:
            hosted = find(name)
            async with hosted.changing:
                if self.by_name.get(name) is not hosted:
                    continue
                try:
                    hosted.writer.check_settled()
                    yield hosted
                finally:
                    if not hosted.is_stored and not hosted.writer.is_in_doubt:
                        del self.by_name[name]
                return

    def _topics_of(self, found: Coordinated) -> dict[str, Topic]:
        """Return the topics that its consumers subscribe to, as far as they exist."""
        by_name = self._topics.by_name
        names = found.group.topics_of_members()
        return {name: by_name[name].topic for name in sorted(names) if name in by_name}

    # --- reading and waiting ---

    async def _fit(
        self, found: Coordinated, unfit: Sequence[tuple[TopicPartition, PolledLog]]
    ) -> None:
        """Bring positions to where the logs are."""
        if any(await asyncio.gather(*(fit(found.group, tp, log) for tp, log in unfit))):
            self._on_moved(found)

    async def _wait(
        self, found: Coordinated, consumer_id: str, logs: Sequence[PolledLog], ends_s: float
    ) -> None:
        """Wait until there may be something, or time is up."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        found.waiters[consumer_id] = waiter
        try:
            await wait_at(logs, waiter, ends_s)
        finally:
            if found.waiters.get(consumer_id) is waiter:
                del found.waiters[consumer_id]
        if consumer_id in found.group.members:
            found.group.touch(consumer_id, self._clock_us())

    def _wake(self, found: Coordinated) -> None:
        """Its waiting polls read again."""
        for waiter in found.waiters.values():
            end(waiter)

    def _wake_when_freed(self, found: Coordinated) -> None:
        if found.group.has_freed:
            found.group.has_freed = False
            self._wake(found)

    def _on_moved(self, found: Coordinated) -> None:
        """Report that positions have moved to where there are records."""
        _log.warning("group.moved", group=found.group.name, lost_records=found.group.lost)
        self._on_confirmed(found)

    def _on_compared(self, group: Group) -> None:
        """Its positions have moved to where the logs end."""
        found = self.by_name[group.name]
        self._on_moved(found)
        self._wake(found)

    def _on_confirmed(self, found: Coordinated) -> None:
        """Reschedule when positions have moved."""
        found.writer.save_soon()
        if found.group.reads_sealed:  # children may follow
            self._rebalance(found)
        self._wake_when_freed(found)

    # --- changing ---

    async def _join(
        self,
        found: Coordinated,
        wanted: Subscription,
        ends: Mapping[TopicPartition, tuple[int, int]] | None,
    ) -> int:
        """Holding `changing`."""
        check_free(self._by_consumer, wanted)
        if ends is None and wanted.consumer_id not in found.group.members:
            raise NotReadyError("the consumer has just been removed; register it again")
        by_name = self._topics.by_name
        topics = {name: by_name[name].topic for name in wanted.topics if name in by_name}
        joined = found.group.join(wanted, topics, ends or {}, self._clock_us())
        if joined is not None:
            self._bounds.check_consumers(found.group)
            self._by_consumer[wanted.consumer_id] = found  # no other group takes it meanwhile
            try:
                await found.writer.store(joined)
            except TailraceError:
                is_here = self._by_consumer.get(wanted.consumer_id) is found
                if is_here and not found.writer.is_in_doubt:
                    del self._by_consumer[wanted.consumer_id]
                raise
            _log.info("consumer.joined", group=wanted.group, consumer=wanted.consumer_id)
        return found.group.members[wanted.consumer_id].joined_epoch

    async def _remove(
        self, found: Coordinated, consumer_id: str, reason: Literal["goodbye", "expired"]
    ) -> None:
        """Remove the consumer, holding `changing`."""
        found.writer.check_settled()
        await found.writer.store(found.group.leave(consumer_id, reason))
        _log.info("consumer.left", group=found.group.name, consumer=consumer_id, reason=reason)

    async def _remove_expired(self, found: Coordinated) -> None:
        async with found.changing:
            for consumer_id in found.group.expired(self._clock_us()):
                if consumer_id in found.group.expired(self._clock_us()):  # not seen meanwhile
                    await self._remove(found, consumer_id, "expired")

    def _on_stored(self, found: Coordinated, event: GroupEvent) -> None:
        """The group has been changed."""
        found.is_stored = True
        if isinstance(event, Left):
            if self._by_consumer.get(event.consumer_id) is found:
                del self._by_consumer[event.consumer_id]
            waiter = found.waiters.get(event.consumer_id)
            if waiter is not None:
                end(waiter)
        elif isinstance(event, Deleted):
            self.by_name.pop(found.group.name, None)
        self._rebalance(found)
        self._wake_when_freed(found)
        found.sessions.watch()

    # --- assignment ---

    def _rebalance(self, found: Coordinated) -> None:
        found.topics = self._topics_of(found)
        if found.group.rebalance(found.topics):
            self._wake(found)

    def on_topic_changed(self, topic: str) -> None:
        """It has come, or gone, or has other partitions, or less in sealed ones."""
        hosted = self._topics.by_name.get(topic)
        for found in self.by_name.values():
            if topic in found.group.topics_of_members():
                self._rebalance(found)
                self._wake(found)
            elif hosted is not None:
                found.group.follow([hosted.topic])
            if found.group.uncommitted() is not None:
                found.writer.save_soon()


def check_free(by_consumer: Mapping[str, Coordinated], wanted: Subscription) -> None:
    """ConsumerExistsError: the consumer is registered with other values."""
    found = by_consumer.get(wanted.consumer_id)
    if found is None:
        return
    if found.group.name != wanted.group:
        raise ConsumerExistsError(
            f'consumer "{wanted.consumer_id}" is registered with group '
            f'"{found.group.name}"; let it say goodbye first, or choose another consumerId',
            consumerId=wanted.consumer_id,
        )
    member = found.group.members.get(wanted.consumer_id)
    if member is not None:
        check_same(member.subscription, wanted)
