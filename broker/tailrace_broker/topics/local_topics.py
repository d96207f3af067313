"""The topics as this broker hosts them: brought to what the ring has agreed on.

One state of the ring after the other is applied, by one task: topics come, change and go, and
with the ranges that this broker leads their logs are opened and closed. What the state was
meanwhile is of no interest. A disk that refuses something changes nothing of what was agreed: it is
logged, and tried again.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

import structlog

from tailrace_broker.core.node.events import Recovered
from tailrace_broker.core.ring.lost_copies import accepted_losses_in, accepted_since
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    DiskFullError,
    NotReadyError,
    StorageFailedError,
    StoredDataError,
    TailraceError,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import (
    DeletedTopic,
    RingState,
    TopicState,
)
from tailrace_broker.model.topic import Partition, Topic, is_internal
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.room import when_there_is_room
from tailrace_broker.storage.gone_partitions import remove_gone
from tailrace_broker.storage.journal.cuts import write_cuts
from tailrace_broker.storage.log.inheritance import Inheritance
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.deleted_topics import DeletedTopics
from tailrace_broker.topics.healing import Healing
from tailrace_broker.topics.hosted_topic import (
    HostedTopic,
    LogOrError,
    lacks_records,
    log_in,
    may_be_opened_later,
    open_logs,
    set_aside,
)
from tailrace_broker.topics.lineage import SealedRanges, follow, not_open_yet, sealed_starts
from tailrace_broker.topics.lone_sealing import LoneSealing
from tailrace_broker.topics.next_epoch import lead_in_next_epoch
from tailrace_broker.topics.parent_producers import ParentProducers
from tailrace_broker.topics.range_leaders import RangeRoles
from tailrace_broker.topics.recovered import recovered
from tailrace_broker.topics.replicas import Replicas
from tailrace_broker.topics.retention import Retention
from tailrace_broker.topics.sealed_copies import SealedCopies
from tailrace_broker.topics.state_changes import changed_settings, says_the_same, touched

# After the disk has refused to open a log; sooner when the ring agrees on something.
RETRY_SECONDS = 30.0

_log = structlog.get_logger()


class LocalTopics:
    """State changes on the event loop only."""

    def __init__(
        self,
        directory: DataDirectory,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now_us: Callable[[], int],
        retention: Retention,
        ring: RingNode,
        *,
        url_of: Callable[[int], str],
        catch_up_memory: ReadMemory,
    ) -> None:
        """`url_of`: the public listener of a broker; `catch_up_memory`: for followers' reads."""
        self.by_name: dict[str, HostedTopic] = {}
        self.internal: dict[str, HostedTopic] = {}  # the broker's own: no listener knows them
        # A topic has come, or gone, or has other partitions after a step.
        self.on_changed: Callable[[str], None] = lambda _: None
        self._by_id: dict[UUID, HostedTopic] = {}
        self._directory = directory
        self._io = io
        self._spawn = spawn
        self._retention = retention
        self._ring = ring
        self._roles = RangeRoles(
            url_of, self._lead_again, lambda range_id: self.replicas.prove_lead(range_id)
        )
        ordinal = directory.identity.ordinal
        self._deleted = DeletedTopics(directory, io, spawn, now_us, self._no_copies_of)
        self._damaged = directory.damaged
        self._healing = Healing(ring, self._damaged, io, spawn)
        self.replicas = Replicas(
            ordinal,
            ring,
            self._roles,
            self._log_of,
            spawn,
            on_damaged=self._on_damaged,
            catch_up_memory=catch_up_memory,
        )
        self.parent_producers = ParentProducers(
            ordinal, ring, self._hosted, retention.now_us, lambda log: retention.is_time_sure(log)
        )
        self.copies = SealedCopies(ring, directory, self._log_of, self.reached)
        self._lone_sealing = LoneSealing(ring, self._roles.of, self._log_of, spawn)
        self._resources: LogResources | None = None
        self._state: RingState | None = None  # that has been applied
        self._wanted_count = self._applied_count = 0  # of states
        self._applied = asyncio.Event()  # of the pass under way; each has its own
        self._is_serving = self._is_running = False
        self._unopened: set[UUID] = set()  # the disk has refused to open a log of these
        self._to_reopen: set[LogKey] = set()
        self._sealed = SealedRanges()
        self._stepped: set[UUID] = set()  # topics whose new partitions were not reported
        self._retry: asyncio.TimerHandle | None = None
        ring.on_applied.append(self._on_applied)

    def on_roles_changed(self, call: Callable[[], None]) -> None:
        """Call this when this broker may lead another set of ranges."""
        self._roles.on_changed = call

    def all_hosted(self) -> Iterator[HostedTopic]:
        """The broker's own topics too, whether they are all recovered or not."""
        return chain(self.by_name.values(), self.internal.values())

    def with_id(self, topic_id: UUID) -> HostedTopic | None:
        """A topic that is not deleted; the broker's own too."""
        return self._by_id.get(topic_id)

    def all_logs(self) -> Iterator[PartitionLog]:
        """All that are open here, of all topics, deleted ones too."""
        topics = chain(self.all_hosted(), self._deleted.kept.values())
        return chain.from_iterable(hosted.all_logs() for hosted in topics)

    # --- life ---

    async def recover(self, resources: LogResources, replayed: Replayed) -> Recovered:
        """Open the logs of all ranges of which this broker is a replica; what they hold.

        A broker that is in no ring yet has none. DiskFullError, StorageFailedError.
        """
        self._resources = resources
        resources.quarantine.on_found = self._on_damaged
        if self._ring.state is not None:
            await self._host_all(self._ring.state, replayed)
        return self._recovered()

    async def catch_up(self) -> None:
        """Host what is agreed now, before anything is served."""
        count, state = self._wanted_count, self._ring.state
        assert state is not None
        if self._state is None:
            await self._host_all(state, Replayed())
        else:
            await self._execute(state)
            self._state, self._applied_count = state, count

    async def _host_all(self, state: RingState, replayed: Replayed) -> None:
        count = self._wanted_count
        self._take_roles(state)
        await self._deleted.finish(state, replayed)
        for topic in state.topics.values():
            await when_there_is_room(partial(self._host_at_start, state, topic, replayed))
        await self._host_all_deleted(state, replayed)
        await self._set_aside_closed(replayed)
        assert self._resources is not None
        write = partial(write_cuts, self._resources.journal, replayed.cuts)
        await when_there_is_room(write)
        self._reset_set_aside()
        self._state, self._applied_count = state, count

    async def _host_at_start(self, state: RingState, topic: TopicState, replayed: Replayed) -> None:
        """Repeatable: logs that are open stay so. DiskFullError, StorageFailedError."""
        hosted = await self._fit(state, topic, self._by_id.get(topic.id), replayed)
        failure = hosted.failure()
        if failure is not None:
            raise failure

    def _recovered(self) -> Recovered:
        if self._state is None:
            return Recovered()  # this broker is in no ring yet
        topics = chain(self.all_hosted(), self._deleted.kept.values())
        ordinal = self._directory.identity.ordinal
        return recovered(self._state, ordinal, topics, self._damaged.known)

    def on_buried(self, call: Callable[[], None]) -> None:
        """Call this when the data of a deleted topic has come to the trash."""
        self._deleted.on_buried = call

    def serve(self) -> None:
        """Go on with what has been agreed since."""
        self._is_serving = True
        for hosted in self.all_hosted():
            self._retention.watch(hosted.whole_logs(), hosted.decided_starts())
        self._look()

    async def close(self) -> None:
        """Apply nothing more; what is under way ends."""
        self._is_serving = False
        if self._retry is not None:
            self._retry.cancel()
        while self._is_running:
            await self._applied.wait()
        await self._deleted.all_buried()

    async def reached(self) -> None:
        """Once what the ring has agreed on by now has been applied here. NotReadyError."""
        wanted_count = self._wanted_count
        while self._applied_count < wanted_count:
            if not self._is_serving:
                raise NotReadyError("the broker is recovering its data, or stopping")
            await self._applied.wait()

    async def reopen(self, topic_id: UUID, partition: int) -> None:
        """Close the log of a partition that is led here, and recover it again. NotReadyError."""
        self._to_reopen.add(LogKey(topic_id, partition))
        self._unopened.add(topic_id)
        self._look_again()
        await self.reached()

    async def buried(self, topic_id: UUID) -> None:
        """Once the data of this deleted topic is marked or in the trash, or could not be."""
        await self._deleted.buried(topic_id)

    @property
    def kept_deleted(self) -> Collection[UUID]:
        """Deleted topics whose data lies here until the ring forgets them."""
        return self._deleted.kept.keys()

    async def all_buried(self) -> None:
        """Likewise of all topics whose deletion has been applied here."""
        await self._deleted.all_buried()

    # --- following the ring ---

    def _on_applied(self, _: RingState | None, after: RingState) -> None:
        self._take_roles(after)
        self._wanted_count += 1
        is_idle = self._is_serving and not self._is_running
        if is_idle and not self._unopened and says_the_same(self._state, after):
            self._state = after
            self._applied_count = self._wanted_count
        else:
            self._look()

    def _take_roles(self, state: RingState) -> None:
        """At once, whatever is under way."""
        mine = self._ring.registration
        self._follow_step(state)
        self._roles.apply(state, mine)
        self._lone_sealing.apply(state)
        for key in self._healing.take_lost(state, mine):
            self.replicas.closed(key)
            self._to_reopen.add(key)
            self._unopened.add(key.topic_id)
        self.replicas.apply(state, mine)
        self._healing.remove_healed(state, mine)
        self._healing.report_found()

    def _follow_step(self, state: RingState) -> None:
        """Know the children of what this state has sealed, and seal the logs here, before roles
        change: what the logs refuse then goes on in the children.
        """
        sealed = self._sealed.take_new(state)
        if not sealed:
            return
        _log.info("ranges.sealed", ranges=sorted(sealed))
        for topic in state.topics.values():
            hosted = self._by_id.get(topic.id)
            if hosted is not None and any(each.range_id in sealed for each in topic.slices):
                self._follow(hosted, state, topic)

    def _follow(self, hosted: HostedTopic, state: RingState, topic: TopicState) -> None:
        follow(hosted, state, topic, self._directory.identity.ordinal, self._on_damaged)
        self._retention.decide(hosted.decided_starts())
        self._stepped.add(topic.id)

    def _alter(
        self, hosted: HostedTopic, found: TopicState, topic: Topic, logs: list[LogOrError]
    ) -> None:
        """A step may have ended since the state that is being applied here."""
        hosted.alter(topic, logs)
        state = self._ring.state
        latest = None if state is None else state.topics.get(found.name)
        if (
            latest is not None
            and latest.id == found.id
            and latest.next_partition > found.next_partition
        ):
            assert state is not None
            self._follow(hosted, state, latest)

    def _on_damaged(self, place: LogPlace) -> None:
        """Records of this log cannot be read, or are not those that were committed."""
        self._healing.note_damage(place.key, place.range_id)

    def _hosted(self, topic_id: UUID) -> HostedTopic | None:
        """A topic whose logs are open here, deleted or not."""
        return self._by_id.get(topic_id) or self._deleted.kept.get(topic_id)

    def _log_of(self, key: LogKey) -> PartitionLog | None:
        log = log_in(self._hosted(key.topic_id), key.partition)
        return log if isinstance(log, PartitionLog) else None

    def _look(self) -> None:
        is_due = self._applied_count < self._wanted_count
        if is_due and self._is_serving and not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    def _look_again(self) -> None:
        self._wanted_count += 1
        self._look()

    async def _run(self) -> None:
        while self._applied_count < self._wanted_count and self._is_serving:
            count, state = self._wanted_count, self._ring.state
            assert state is not None
            await self._execute(state)
            self._state, self._applied_count = state, count
            self._report_applied()
        self._is_running = False
        self._report_applied()
        if self._unopened and self._is_serving:
            if self._retry is not None:
                self._retry.cancel()
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(RETRY_SECONDS, self._look_again)

    def _report_applied(self) -> None:
        self._applied.set()
        self._applied = asyncio.Event()

    async def _execute(self, state: RingState) -> None:
        before = self._state
        assert before is not None
        changed = [
            topic for name, topic in state.topics.items() if before.topics.get(name) is not topic
        ]
        changed_ids = {topic.id for topic in changed}
        for name, old in before.topics.items():
            new = state.topics.get(name)
            if new is None or new.id != old.id:
                hosted = self._forget_name(name)
                if old.id not in changed_ids:
                    self._delete(hosted, state)
        for topic in changed:
            await self._host(before, state, topic)
        ranges = touched(before.ranges, state.ranges)
        self._to_reopen |= accepted_since(before, state)
        for topic in state.topics.values():
            is_touched = ranges and any(each.range_id in ranges for each in topic.slices)
            if topic.id not in changed_ids and (is_touched or topic.id in self._unopened):
                await self._host(before, state, topic)
        for topic_id in self._deleted.take_forgotten(state):
            self._unopened.discard(topic_id)
        await self._host_all_deleted(state, Replayed())
        self._reset_set_aside()

    async def _host_all_deleted(self, state: RingState, replayed: Replayed) -> None:
        for topic_id, deleted in state.deleted.items():
            is_open = topic_id in self._deleted.kept and topic_id not in self._unopened
            if not is_open and self._deleted.keeps(state, deleted):
                await self._host_deleted(state, deleted, replayed)

    async def _host(self, before: RingState, state: RingState, topic: TopicState) -> None:
        """A topic that is new, back, or another than it was."""
        hosted, name = self._by_id.get(topic.id), topic.name
        settings = None if hosted is None else hosted.topic.settings
        has_come = hosted is None or hosted.topic.name != name  # deleted, and restored as another
        is_restored = hosted is None and topic.id in before.deleted
        if is_restored:
            hosted = self._deleted.bring_back(topic.id)
        had_failed = topic.id in self._unopened
        starts_before = {} if hosted is None else sealed_starts(hosted.topic)
        hosted = await self._fit(state, topic, hosted, Replayed())
        if is_restored:
            for log in hosted.all_logs():
                log.withhold(None)
        self._retention.forget([log for log in hosted.all_logs() if not log.is_served])
        self._retention.watch(hosted.whole_logs(), hosted.decided_starts())
        is_trimmed = sealed_starts(hosted.topic) != starts_before
        if has_come or is_trimmed or topic.id in self._stepped:
            self._stepped.discard(topic.id)
            self.on_changed(name)
        if settings is None:
            count = len(hosted.topic.partitions)
            if is_restored:
                _log.info("topic.restored", topic=name, id=str(topic.id), partitions=count)
            else:
                _log.info("topic.created", topic=name, id=str(topic.id), partitions=count)
        elif settings != topic.settings:
            changes = changed_settings(settings, topic.settings)
            _log.info("topic.altered", topic=name, changes=changes)
        failure = hosted.failure()
        if failure is not None and not had_failed:
            _log.error("topic.unopened", topic=name, detail=failure.detail)

    def _lead_again(self, range_id: int, epoch: int) -> None:
        """Have the range led in a new epoch: by this broker, unless another is faster."""
        _log.warning("epoch.ended", range=range_id, epoch=epoch)
        role = self._roles.of(range_id)
        if role.commits_alone:  # else its replicas ask
            self._spawn(lead_in_next_epoch(self._ring, role, range_id, epoch))

    # --- logs ---

    async def _fit(
        self, state: RingState, found: TopicState, hosted: HostedTopic | None, replayed: Replayed
    ) -> HostedTopic:
        """The topic with the logs that belong here, and no others."""
        topic, ordinal = topic_of(state, found), self._directory.identity.ordinal
        logs: dict[int, LogOrError] = {}
        wanted, unwanted, reopened = [], [], set[LogKey]()
        for partition in topic.partitions:
            old = log_in(hosted, partition.partition)
            is_here = ordinal in state.ranges[partition.range_id].holders
            key = LogKey(topic.topic_id, partition.partition)
            is_kept = is_here and key not in self._to_reopen
            if key in self._to_reopen:
                reopened.add(key)
            self._to_reopen.discard(key)
            if is_kept and isinstance(old, PartitionLog | CorruptPartitionError):
                logs[partition.partition] = old
                continue
            if isinstance(old, PartitionLog):
                unwanted.append(old)
            if is_here:
                wanted.append(partition)
            if is_here and isinstance(old, DiskFullError | StorageFailedError):
                logs[partition.partition] = old  # until it can be opened
            else:
                logs[partition.partition] = not_open_yet(topic.name)
        if hosted is None:
            hosted = HostedTopic(topic, list(logs.values()), self._roles, ordinal=ordinal)
        else:
            self._alter(hosted, found, topic, list(logs.values()))
        await self._close([*unwanted, *hosted.take_leaving()])
        self._healing.forget_found(reopened)
        opening = {each.partition for each in wanted}

        def needs(topic_id: UUID, each: Partition) -> bool:
            is_gone = topic.find(each.partition) is None
            return topic_id == topic.topic_id and (each.partition in opening or is_gone)

        async with self.copies.stopped(needs):
            await self._io.run(partial(remove_gone, self._directory, topic))
            logs |= await self._opened(state, topic, wanted, replayed)
            self._alter(hosted, found, topic, list(logs.values()))
            news = [logs[each.partition] for each in wanted]
            is_living = found.id not in state.deleted
            opened_logs = [each for each in news if isinstance(each, PartitionLog)]
            self._keep(hosted, opened_logs, is_living=is_living)
        return hosted

    def _no_copies_of(self, topic: Topic) -> AbstractAsyncContextManager[None]:
        return self.copies.stopped(lambda topic_id, _: topic_id == topic.topic_id)

    async def _opened(
        self, state: RingState, topic: Topic, wanted: Sequence[Partition], replayed: Replayed
    ) -> dict[int, LogOrError]:
        """The logs of these partitions, or why they are not open."""
        assert self._resources is not None
        failure = await self._deleted.brought_back(topic)
        if failure is not None:
            return {
                each.partition: _of_partition(failure, topic, each.partition) for each in wanted
            }
        opened = await open_logs(
            topic,
            wanted,
            self._directory,
            self._resources,
            self._roles,
            replayed,
            accepted_losses_in(state),
        )
        for number, log in opened.items():
            range_id = topic.at(number).range_id
            if topic.at(number).is_sealed and lacks_records(log):
                self._healing.note_damage(LogKey(topic.topic_id, number), range_id)
        return opened

    def _keep(
        self, hosted: HostedTopic, opened: Iterable[PartitionLog], *, is_living: bool
    ) -> None:
        topic = hosted.topic
        for log in opened:
            partition = topic.find(log.place.partition)
            if partition is None:  # a later state has it no more: the next look closes the log
                continue
            if partition.parents and not partition.is_sealed:
                load = partial(self.parent_producers.load, topic.topic_id, partition.partition)
                log.inherit(Inheritance(load, self._spawn))
            if log.place.key not in self._damaged.unreset:
                self.replicas.opened(log)
        if is_living:
            self._by_id[topic.topic_id] = hosted
            (self.internal if is_internal(topic.name) else self.by_name)[topic.name] = hosted
        if hosted.failure() is None:
            self._unopened.discard(topic.topic_id)
        else:
            self._unopened.add(topic.topic_id)

    def _reset_set_aside(self) -> None:
        """All logs are open, so that the journal may be written."""
        for key in list(self._damaged.unreset):
            log = self._log_of(key)
            if log is not None:
                self.replicas.reset(log, partial(self._damaged.unreset.discard, key))

    async def _close(self, closing: list[PartitionLog]) -> None:
        """Close logs that are not to be here any more, or have another role, or are gone."""
        if not closing:
            return
        self._retention.forget(closing)
        for log in closing:
            elsewhere = log.role.elsewhere
            if elsewhere is not None:
                log.give_up(elsewhere(log.place.topic, log.place.partition))
            else:
                log.give_up(not_open_yet(log.place.topic))
        for log in closing:
            await log.close()

    async def _set_aside_closed(self, replayed: Replayed) -> None:
        """What the journal holds for logs that are not open here: it goes on without them."""
        assert self._resources is not None
        for (id_bytes, partition), batches in replayed.replay.batches.items():
            topic_id = UUID(bytes=id_bytes)
            log = log_in(self._hosted(topic_id), partition)
            if log is not None and not isinstance(log, PartitionLog | CorruptPartitionError):
                path = self._directory.partition_path(topic_id, partition)
                await set_aside(path, batches, self._resources)

    # --- deletion ---

    def _forget_name(self, name: str) -> HostedTopic:
        hosted = (self.internal if is_internal(name) else self.by_name).pop(name)
        self.on_changed(name)
        return hosted

    def _delete(self, hosted: HostedTopic, state: RingState) -> None:
        """The topic is gone at once."""
        topic_id = hosted.topic.topic_id
        del self._by_id[topic_id]
        self._unopened.discard(topic_id)
        self._retention.forget(hosted.all_logs())
        self._deleted.delete(hosted, state)

    async def _host_deleted(
        self, state: RingState, deleted: DeletedTopic, replayed: Replayed
    ) -> None:
        """Open the logs that its replicas here follow with, until the ring forgets it."""
        topic_id = deleted.topic.id
        try:
            await self._deleted.mark(state, deleted)
        except StoredDataError as error:
            _log.warning("trash.failed", topic=deleted.topic.name, detail=error.detail)
            self._unopened.add(topic_id)
            return
        hosted = self._deleted.kept.get(topic_id)
        self._deleted.keep(await self._fit(state, deleted.topic, hosted, replayed))


def _of_partition(failure: TailraceError, topic: Topic, partition: int) -> TailraceError:
    if may_be_opened_later(failure):
        return failure
    return CorruptPartitionError(failure.detail, topic=topic.name, partition=partition)
