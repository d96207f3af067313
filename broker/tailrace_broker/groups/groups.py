"""The consumer groups of this broker: a coordinator for each partition of `__groups` that it leads.

A group's name decides the partition. When this process begins to lead one, its coordinator reads
what the log holds; when the epoch ends, the coordinator ends with it, in the same turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic_ns
from typing import Any

import structlog

from tailrace_broker.core.groups.unknown import group_not_found, not_registered
from tailrace_broker.core.ring.topics import ids_of
from tailrace_broker.groups.bounds import GroupBounds
from tailrace_broker.groups.coordinator import (
    Coordinated,
    PartitionCoordinator,
    check_free,
)
from tailrace_broker.groups.end_comparison import KnownEndsOf
from tailrace_broker.groups.log import GroupLog
from tailrace_broker.groups.polled_logs import PolledLogs
from tailrace_broker.groups.remote_log import Fetch, RemoteLog, RemoteLogs
from tailrace_broker.model.commands import InheritedAll
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NotReadyError,
    RingRefusedError,
    StoredDataError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.group import GROUPS_TOPIC, Confirmation, Subscription, TopicPartition
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import Topic, TopicSettings, check_topic_name
from tailrace_broker.net.broker import GroupPoll, GroupView
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.hosted_topic import may_be_opened_later
from tailrace_broker.topics.topics import Topics

# How long a request waits for a coordinator that reads its log.
LOAD_SECONDS = 5.0
# After a log could not be read, until it is tried again if it is led still.
RETRY_SECONDS = 0.1
# Consumers of other coordinators that are remembered.
KNOWN_MAX = 10_000
# How long a stop waits for positions to be stored; what is not is delivered again.
CLOSE_SECONDS = 1.0

# Log start and high watermark of all partitions of some topics, as their leaders say.
EndsOf = Callable[[Sequence[str]], Awaitable[Mapping[TopicPartition, tuple[int, int]]]]

_log = structlog.get_logger()


def monotonic_us() -> int:
    """A clock that nobody sets."""
    return monotonic_ns() // 1000


class Groups:
    """All groups that this broker coordinates. State changes on the event loop only."""

    def __init__(
        self,
        topics: Topics,
        ring: RingNode,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        now_us: Callable[[], int],
        counters: Counters,
        ends_of: EndsOf,
        known_ends_of: KnownEndsOf,
        fetch: Fetch,
        *,
        bounds: GroupBounds,
        clock_us: Callable[[], int] = monotonic_us,
    ) -> None:
        """`clock_us`: of sessions, which no change of the wall clock must end."""
        self._topics = topics
        self._ring = ring
        self._spawn = spawn
        self._now_us = now_us
        self._clock_us = clock_us
        self._counters = counters
        self._ends_of = ends_of
        self._known_ends_of = known_ends_of
        self._bounds = bounds
        self._remote_logs = RemoteLogs(fetch, spawn)
        self._logs_to_poll = PolledLogs(topics, ring, self._remote_logs)
        self._by_partition: dict[int, PartitionCoordinator] = {}
        self._loading: dict[int, asyncio.Future[None]] = {}
        self._damaged: dict[int, CorruptPartitionError] = {}  # as this process found them
        self._by_consumer: dict[str, Coordinated] = {}
        self._numbers = count(1)  # of deliveries
        self._known: dict[str, int] = {}  # who coordinates a consumer elsewhere; the latest last
        self.is_open = False

    async def open(self) -> None:
        """Coordinate what is led here, before anything is appended to the only copy of a topic."""
        self.is_open = True
        self._topics.local.on_changed = self._on_topic_changed
        self._topics.local.on_roles_changed(self._look)
        self._ring.on_applied.append(self._on_applied)
        self._look()
        state = self._ring.state
        if state is not None and state.broker_count == 1:
            await self._loaded()

    async def close(self) -> None:
        """End what waits, and store all positions while the logs are still led."""
        self.is_open = False
        self._remote_logs.close()
        coordinators, self._by_partition = self._by_partition, {}
        closing = [each.close() for each in coordinators.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*closing)

    # --- consumers ---

    async def register(
        self, wanted: Subscription, epoch: int | None = None, *, creates_topics: bool = False
    ) -> int:
        """Register as `net.broker.GroupCoordinator` says."""
        self._topics.check_ready()
        if epoch is None:
            check_free(self._by_consumer, wanted)
        if GROUPS_TOPIC in self._topics.internal:  # who coordinates it also creates its topics
            (await self._of_group(wanted.group)).check_kind(wanted.group)
        if epoch is None:
            await self._need_topics(wanted, creates=creates_topics)
        else:
            (await self._of_consumer(wanted.consumer_id)).seen(wanted, epoch)
        await self._topics.internal_topic(GROUPS_TOPIC, TopicSettings())
        coordinator = await self._of_group(wanted.group)
        is_member = coordinator.has_member(wanted)
        ends = None if is_member else await self._ends_of(wanted.topics)
        return await coordinator.register(wanted, ends)

    async def poll(self, consumer_id: str, said: Confirmation, wait_ms: int) -> GroupPoll:
        """Poll as `net.broker.GroupCoordinator` says."""
        coordinator = await self._of_consumer(consumer_id)
        return await coordinator.poll(consumer_id, said, wait_ms)

    async def poll_on(
        self, poll: GroupPoll, unreadable: Mapping[TopicPartition, TailraceError], wait_ms: int
    ) -> GroupPoll:
        """Go on with a poll as `net.broker.GroupCoordinator` says."""
        coordinator = await self._of_consumer(poll.consumer_id)
        return await coordinator.poll_on(poll, unreadable, wait_ms)

    async def deliver(self, poll: GroupPoll, ends: Sequence[int]) -> int | None:
        """Deliver as `net.broker.GroupCoordinator` says."""
        found = self._by_consumer.get(poll.consumer_id)
        return None if found is None else await found.coordinator.deliver(poll, ends)

    def withdraw(self, poll: GroupPoll, delivery: int) -> None:
        """Withdraw as `net.broker.GroupCoordinator` says."""
        found = self._by_consumer.get(poll.consumer_id)
        if found is not None:
            found.coordinator.withdraw(poll, delivery)

    async def commit(self, consumer_id: str, said: Confirmation) -> None:
        """Commit as `net.broker.GroupCoordinator` says."""
        await (await self._of_consumer(consumer_id)).commit(consumer_id, said)

    async def goodbye(self, consumer_id: str, said: Confirmation, *, commits: bool) -> None:
        """Say goodbye as `net.broker.GroupCoordinator` says."""
        coordinator = await self._of_consumer(consumer_id)
        await coordinator.goodbye(consumer_id, said, commits=commits)

    @property
    def generation(self) -> int:
        """Return a number that grows when groups go on in other partitions."""
        state = self._ring.state
        topic = None if state is None else state.topics.get(GROUPS_TOPIC)
        return 0 if topic is None else topic.next_partition

    def leader_of(self, group: str) -> int | None:
        """Return the broker that coordinates this group; None: there is none, or none is known."""
        hosted, state = self._topics.internal.get(GROUPS_TOPIC), self._ring.state
        if hosted is None or state is None:
            return None
        partition = hosted.topic.at(hosted.partition_of_key(group.encode()))
        leader = state.ranges[partition.range_id].leader
        return None if leader is None else leader.ordinal

    def coordinator_of(self, consumer_id: str) -> int | None:
        """Return the broker that coordinated this consumer last; None: it is not known."""
        return self._known.get(consumer_id)

    def note_coordinator(self, consumer_id: str, ordinal: int) -> None:
        """That broker has answered a request of this consumer."""
        self._known.pop(consumer_id, None)
        self._known[consumer_id] = ordinal
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    # --- groups ---

    def check_loaded(self) -> None:
        """As `net.broker.GroupCoordinator` says."""
        if self._lacks_some():
            raise _still_loading()

    async def check_surely_led(self, group: str | None = None) -> None:
        """As `net.broker.GroupCoordinator` says."""
        self._topics.check_ready()
        if group is not None:
            found = [self._present(self._partition_of(group))]
        else:
            found = [each for each in self._by_partition.values() if each.log.is_led]
        of_ranges = {each.log.range_id: each for each in found}.values()
        await asyncio.gather(*(each.check_surely_led() for each in of_ranges))

    def views(self) -> Iterator[GroupView]:
        """Return the views as `net.broker.GroupCoordinator` says."""
        self._topics.check_ready()
        found = [each for each in self._by_partition.values() if each.log.is_led]
        views = [view for coordinator in found for view in coordinator.views()]
        return iter(sorted(views, key=lambda view: view.group.name))

    def view(self, group: str) -> GroupView:
        """Return the view as `net.broker.GroupCoordinator` says."""
        self._topics.check_ready()
        partition = self._partition_of(group)
        return self._present(partition).view(group)

    def log_elsewhere(self, topic: Topic, partition: int) -> RemoteLog:
        """Return the log as `net.broker.GroupCoordinator` says."""
        return self._remote_logs.unfollowed(topic.name, partition)

    async def reset(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Reset as `net.broker.GroupCoordinator` says."""
        await (await self._of_stored(group)).reset(group, offsets)

    async def publish(self, group: str, source: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Publish as `net.broker.GroupCoordinator` says."""
        self._topics.check_ready()
        await self._topics.internal_topic(GROUPS_TOPIC, TopicSettings())
        await (await self._of_group(group)).publish(group, source, offsets)

    async def delete(self, group: str) -> None:
        """Delete as `net.broker.GroupCoordinator` says."""
        await (await self._of_stored(group)).delete(group)

    # --- finding ---

    def _partition_of(self, group: str) -> int:
        """Return the partition that keeps a group. GroupNotFoundError: none keeps any."""
        hosted = self._topics.internal.get(GROUPS_TOPIC)
        if hosted is None:
            raise group_not_found(group)
        return hosted.partition_of_key(group.encode())

    async def _of_group(self, group: str) -> PartitionCoordinator:
        """NotLeaderError, NoLeaderError, NotReadyError, CorruptPartitionError."""
        return await self._at(self._partition_of(group))

    async def _of_stored(self, group: str) -> PartitionCoordinator:
        """As `_of_group`; GroupNotFoundError."""
        self._topics.check_ready()
        return await self._of_group(group)

    async def _of_consumer(self, consumer_id: str) -> PartitionCoordinator:
        """ConsumerNotRegisteredError; NotReadyError while it may still be read."""
        self._topics.check_ready()
        self._look()
        if consumer_id not in self._by_consumer:
            await self._loaded()
        found = self._by_consumer.get(consumer_id)
        if found is None:
            self.check_loaded()
            raise not_registered(consumer_id)
        found.coordinator.check_led()
        return found.coordinator

    async def _at(self, partition: int) -> PartitionCoordinator:
        self._look()
        if partition in self._loading:
            await self._loaded(partition)
        return self._present(partition)

    def _present(self, partition: int) -> PartitionCoordinator:
        """NotLeaderError, NoLeaderError; NotReadyError; CorruptPartitionError."""
        found = self._by_partition.get(partition)
        if found is not None and found.log.is_led:
            return found
        if partition in self._damaged:
            raise self._damaged[partition].with_traceback(None)
        hosted = self._topics.internal[GROUPS_TOPIC]
        if hosted.topic.find(partition) is not None:  # else its children have the group by now
            hosted.log_of(partition)
        raise _still_loading()

    def _lacks_some(self) -> bool:
        """This broker leads groups that it has not read, or coordinates no more."""
        known = self._by_partition.keys() | self._damaged.keys()
        return any(partition not in known for partition in self._led())

    def _led(self) -> Iterator[int]:
        """Partitions that this broker leads, as it is committed; their logs may not be open yet."""
        state, mine = self._ring.state, self._ring.registration
        topic = None if state is None else state.topics.get(GROUPS_TOPIC)
        if state is None or mine is None or topic is None:
            return
        for slices in topic.slices:
            leader = state.ranges[slices.range_id].leader
            if leader is not None and leader.ordinal == mine.ordinal:
                yield from ids_of(slices)

    def _logs(self) -> list[PartitionLog]:
        hosted = self._topics.internal.get(GROUPS_TOPIC)
        return [] if hosted is None else hosted.all_logs()

    # --- coordinating ---

    def _look(self) -> None:
        """End the coordinators whose epoch has ended; have those begin that are due."""
        for partition, coordinator in list(self._by_partition.items()):
            if not coordinator.log.is_led:
                del self._by_partition[partition]
                coordinator.end()
                _log.info("groups.released", partition=partition)
        for log in self._logs() if self.is_open else ():
            partition, epoch = log.place.partition, log.role.epoch
            is_known = partition in self._by_partition or partition in self._damaged
            if log.is_served and epoch is not None and partition not in self._loading:
                if not is_known:
                    self._loading[partition] = asyncio.get_running_loop().create_future()
                    self._spawn(self._load(partition, log, epoch))
            elif not log.is_served:
                self._damaged.pop(partition, None)  # another leader may read it

    async def _load(self, partition: int, log: PartitionLog, epoch: int) -> None:
        group_log = GroupLog(log, epoch, self._now_us)
        coordinator = PartitionCoordinator(
            group_log,
            self._topics,
            self._spawn,
            self._clock_us,
            self._counters,
            by_consumer=self._by_consumer,
            numbers=self._numbers,
            logs=self._logs_to_poll,
            known_ends_of=self._known_ends_of,
            bounds=self._bounds,
            group_count=lambda: sum(len(each.by_name) for each in self._by_partition.values()),
        )
        try:
            if await group_log.knows_end():
                await coordinator.load()
                if group_log.is_led and self.is_open:
                    self._by_partition[partition] = coordinator
                    await coordinator.begin()
                    _log.info("groups.loaded", partition=partition, groups=len(coordinator.by_name))
                    self._spawn(self._report_inherited(log, group_log))
        except TailraceError as error:
            if isinstance(error, StoredDataError) and not may_be_opened_later(error):
                self._damaged[partition] = CorruptPartitionError(
                    error.detail, topic=GROUPS_TOPIC, partition=partition
                )
                _log.error("groups.damaged", partition=partition, detail=error.detail)
            else:  # it is led no more, or not here for a moment, or the disk stores nothing now
                _log.info("groups.unread", partition=partition, detail=error.detail)
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._loading.pop(partition).set_result(None)
            self._look()

    async def _report_inherited(self, log: PartitionLog, group_log: GroupLog) -> None:
        """All that the parents of a partition have is stored in it: the ring need not keep them."""
        topic = self._topics.internal[GROUPS_TOPIC].topic
        found = topic.find(log.place.partition)
        while self.is_open and group_log.is_led and found is not None and found.parents:
            try:
                await self._ring.change(InheritedAll(topic.topic_id, found.partition))
            except RingRefusedError as error:
                _log.info("groups.unreported", partition=found.partition, detail=error.detail)
                return
            except TailraceError:  # nobody leads the ring's metadata for now
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _loaded(self, partition: int | None = None) -> None:
        """Once what is being read has been, or after `LOAD_SECONDS`."""
        loading = [each for number, each in self._loading.items() if partition in (None, number)]
        if loading:
            await asyncio.wait(loading, timeout=LOAD_SECONDS)

    def _on_topic_changed(self, topic: str) -> None:
        """It has come, or gone, or has more partitions."""
        if topic == GROUPS_TOPIC:
            self._look()
        for coordinator in self._by_partition.values():
            coordinator.on_topic_changed(topic)

    def _on_applied(self, before: RingState | None, after: RingState) -> None:
        """Where a range has begun an epoch with loss, its logs may end before positions."""
        known = {} if before is None else before.ranges
        lossy = {
            each.id
            for each in after.ranges.values()
            if each.id in known and each.lossy_epochs != known[each.id].lossy_epochs
        }
        topics = [
            topic
            for topic in after.topics.values()
            if not lossy.isdisjoint(slices.range_id for slices in topic.slices)
        ]
        if topics:
            self._remote_logs.forget({topic.id for topic in topics})
            for coordinator in self._by_partition.values():
                coordinator.comparison.compare(topic.name for topic in topics)

    # --- registering ---

    async def _need_topics(self, wanted: Subscription, *, creates: bool) -> None:
        """Those that are missing are TopicNotFoundError, or created. InvalidTopicNameError."""
        if creates:
            for name in wanted.topics:
                check_topic_name(name)
        need = self._topics.find_or_create if creates else self._topics.find_committed
        for name in wanted.topics:
            try:
                await need(name)
            except TopicNotFoundError as error:
                if creates or not self._topics.auto_create:
                    raise
                remedy = f"{error.detail}, or register with createTopics=true"
                raise TopicNotFoundError(remedy, topic=name) from error


def _still_loading() -> NotReadyError:
    return NotReadyError("the broker is reading the groups that it coordinates; try again")
