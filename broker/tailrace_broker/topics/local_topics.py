"""The topics as this broker hosts them: brought to what the ring has agreed on.

One state of the ring after the other is applied, by one task: topics come, change and go, and
with the ranges that this broker leads their logs are opened and closed. What the state was
meanwhile is of no interest. A disk that refuses something changes nothing of what was agreed: it is
logged, and tried again.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec
import structlog

from tailrace_broker.core.node.events import Recovered
from tailrace_broker.core.ring.roles import copies_of
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    DiskFullError,
    NotInTrashError,
    NotReadyError,
    StorageFailedError,
    StoredDataError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeEnd, RangeState, RingState, TopicState
from tailrace_broker.model.topic import NO_EPOCH, Partition, Topic, is_internal
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.rescued_tail import RESCUED, save_rescued
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.healing import Healing
from tailrace_broker.topics.hosted_topic import (
    HostedTopic,
    LogOrError,
    is_damaged,
    may_be_opened_later,
    open_logs,
    set_aside,
)
from tailrace_broker.topics.next_epoch import lead_in_next_epoch
from tailrace_broker.topics.range_leaders import RangeRoles
from tailrace_broker.topics.replicas import Replicas
from tailrace_broker.topics.retention import Retention

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
    ) -> None:
        """`url_of`: the public listener of a broker."""
        self.by_name: dict[str, HostedTopic] = {}
        self.internal: dict[str, HostedTopic] = {}  # the broker's own: no listener knows them
        self.on_changed: Callable[[str], None] = lambda _: None  # a topic has come, or gone
        self.on_buried: Callable[[], None] = lambda: None
        self._by_id: dict[UUID, HostedTopic] = {}
        self._directory = directory
        self._io = io
        self._spawn = spawn
        self._now_us = now_us
        self._retention = retention
        self._ring = ring
        self._roles = RangeRoles(url_of, self._lead_again)
        ordinal = directory.identity.ordinal
        self._damaged = directory.damaged
        self._healing = Healing(ring, self._damaged, io, spawn)
        self.replicas = Replicas(
            ordinal, ring, self._roles, self._log_of, spawn, on_damaged=self._on_damaged
        )
        self._resources: LogResources | None = None
        self._state: RingState | None = None  # that has been applied
        self._wanted_count = self._applied_count = 0  # of states
        self._applied = asyncio.Event()  # of the pass under way; each has its own
        self._is_serving = self._is_running = False
        self._burials: dict[UUID, asyncio.Event] = {}
        self._to_exhume: set[UUID] = set()  # restored, and in the trash still
        self._unopened: set[UUID] = set()  # the disk has refused to open a log of these
        self._to_reopen: set[LogKey] = set()
        self._retry: asyncio.TimerHandle | None = None
        ring.on_applied.append(self._on_applied)

    def all_hosted(self) -> Iterator[HostedTopic]:
        """The broker's own topics too, whether they are all recovered or not."""
        return chain(self.by_name.values(), self.internal.values())

    def all_logs(self) -> Iterator[PartitionLog]:
        """All that are open here, of all topics."""
        return chain.from_iterable(hosted.all_logs() for hosted in self.all_hosted())

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
        living = {topic.id for topic in state.topics.values()}
        deleted = {
            each.topic.id: (topic_of(state, each.topic), each.deleted_us)
            for each in state.deleted.values()
        }
        run, trash = self._io.run, self._directory.trash
        await run(partial(_rescue_deleted, self._directory, replayed, living, deleted))
        await run(partial(trash.finish_deletions, living, deleted))
        for topic in state.topics.values():
            hosted = await self._fit(state, topic, None, replayed)
            failure = hosted.failure()
            if failure is not None:
                raise failure
        await self._set_aside_closed(replayed)
        self._reset_set_aside()
        self._state, self._applied_count = state, count

    def _recovered(self) -> Recovered:
        """By range what the logs hold, also of one without logs; where they lack committed data."""
        if self._state is None:
            return Recovered()  # this broker is in no ring yet
        ordinal = self._directory.identity.ordinal
        ends = {
            owner.id: RangeEnd(owner.id, NO_EPOCH, 0)
            for owner in self._state.ranges.values()
            if ordinal in owner.replicas and not owner.is_sealed
        }
        damaged: set[int] = set()
        for hosted in self.all_hosted():
            for partition, log in zip(hosted.topic.partitions, hosted.logs, strict=True):
                if partition.is_sealed:
                    continue
                range_id = partition.range_id
                if isinstance(log, PartitionLog):
                    known = ends[range_id]
                    last_epoch = log.end_of_epoch(partition.epoch).epoch or NO_EPOCH
                    epoch = max(known.last_epoch, last_epoch)
                    ends[range_id] = RangeEnd(range_id, epoch, known.end + log.log_end)
                key = LogKey(hosted.topic.topic_id, partition.partition)
                if is_damaged(log) or key in self._damaged.known:
                    damaged.add(range_id)
        return Recovered(tuple(ends.values()), tuple(sorted(damaged)))

    def serve(self) -> None:
        """Go on with what has been agreed since."""
        self._is_serving = True
        self._retention.watch([log for hosted in self.all_hosted() for log in hosted.whole_logs()])
        self._look()

    async def close(self) -> None:
        """Apply nothing more; what is under way ends."""
        self._is_serving = False
        if self._retry is not None:
            self._retry.cancel()
        while self._is_running:
            await self._applied.wait()
        for ended in list(self._burials.values()):
            await ended.wait()

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
        """Once the data of this deleted topic is in the trash, or could not be moved there."""
        if topic_id in self._burials:
            await self._burials[topic_id].wait()

    # --- following the ring ---

    def _on_applied(self, _: RingState | None, after: RingState) -> None:
        self._take_roles(after)
        self._wanted_count += 1
        is_idle = self._is_serving and not self._is_running
        if is_idle and not self._unopened and _says_the_same(self._state, after):
            self._state = after
            self._applied_count = self._wanted_count
        else:
            self._look()

    def _take_roles(self, state: RingState) -> None:
        """At once, whatever is under way."""
        mine = self._ring.registration
        self._roles.apply(state, mine)
        for key in self._healing.take_lost(state, mine):
            self.replicas.closed(key)
            self._to_reopen.add(key)
            self._unopened.add(key.topic_id)
        self.replicas.apply(state, mine)
        self._healing.remove_healed(state, mine)

    def _on_damaged(self, place: LogPlace) -> None:
        """Records of this log cannot be read, or are not those that were committed."""
        if not self._roles.of(place.range_id).commits_alone:
            self._healing.found(LogKey(place.topic_id, place.partition), place.range_id)

    def _log_of(self, key: LogKey) -> PartitionLog | None:
        log = _log_in(self._by_id.get(key.topic_id), key.partition)
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
        ranges = _touched(before.ranges, state.ranges)
        for topic in state.topics.values():
            is_touched = ranges and any(each.range_id in ranges for each in topic.slices)
            if topic.id not in changed_ids and (is_touched or topic.id in self._unopened):
                await self._host(before, state, topic)
        self._reset_set_aside()

    async def _host(self, before: RingState, state: RingState, topic: TopicState) -> None:
        """A topic that is new, back, or another than it was."""
        hosted, name = self._by_id.get(topic.id), topic.name
        is_restored = topic.id in before.deleted and hosted is None
        if is_restored:
            self._to_exhume.add(topic.id)
        settings = None if hosted is None else hosted.topic.settings
        has_come = hosted is None or hosted.topic.name != name  # deleted, and restored as another
        had_failed = topic.id in self._unopened
        hosted = await self._fit(state, topic, hosted, Replayed())
        self._retention.forget([log for log in hosted.all_logs() if not log.is_served])
        self._retention.watch(hosted.whole_logs())
        if has_come:
            self.on_changed(name)
        if settings is None:
            count = len(hosted.topic.partitions)
            if is_restored:
                _log.info("topic.restored", topic=name, id=str(topic.id), partitions=count)
            else:
                _log.info("topic.created", topic=name, id=str(topic.id), partitions=count)
        elif settings != topic.settings:
            changes = _changes(settings, topic.settings)
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
        assert self._resources is not None
        topic, ordinal = topic_of(state, found), self._directory.identity.ordinal
        logs: list[LogOrError] = []
        wanted, unwanted = [], []
        for partition in topic.partitions:
            old = _log_in(hosted, partition.partition)
            is_here = ordinal in copies_of(state.ranges[partition.range_id])
            key = LogKey(topic.topic_id, partition.partition)
            is_kept = is_here and key not in self._to_reopen
            self._to_reopen.discard(key)
            if is_kept and old is not None and _goes_on(old, hosted, partition):
                logs.append(old)
                continue
            if isinstance(old, PartitionLog):
                unwanted.append(old)
            if is_here:
                wanted.append(partition)
            if is_here and isinstance(old, DiskFullError | StorageFailedError):
                logs.append(old)  # until it can be opened
            else:
                logs.append(_not_open_yet(topic.name))
        if hosted is None:
            hosted = HostedTopic(topic, logs, self._roles, ordinal=ordinal)
        else:
            hosted.alter(topic, logs)
        await self._close(unwanted, hosted)
        failure = await self._brought_back(topic)
        for partition in wanted:
            if failure is not None:
                logs[partition.partition] = _of_partition(failure, topic, partition.partition)
        if failure is None:
            opened = await open_logs(
                topic, wanted, self._directory, self._resources, self._roles, replayed
            )
            for number, log in opened.items():
                logs[number] = log
        hosted.alter(topic, logs)
        news = [logs[each.partition] for each in wanted]
        self._keep(hosted, [each for each in news if isinstance(each, PartitionLog)])
        return hosted

    def _keep(self, hosted: HostedTopic, opened: Iterable[PartitionLog]) -> None:
        topic = hosted.topic
        self._by_id[topic.topic_id] = hosted
        for log in opened:
            if LogKey(topic.topic_id, log.place.partition) not in self._damaged.unreset:
                self.replicas.opened(log)
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

    async def _close(self, logs: Iterable[PartitionLog], hosted: HostedTopic) -> None:
        """This broker is no replica of their ranges, or what they are has changed."""
        closing = list(logs)
        if not closing:
            return
        self._retention.forget(closing)
        for log in closing:
            elsewhere = log.role.elsewhere
            if elsewhere is not None:
                log.give_up(elsewhere(log.place.topic, log.place.partition))
            else:
                log.give_up(_not_open_yet(log.place.topic))
        for log in closing:
            await log.close()

    async def _brought_back(self, topic: Topic) -> TailraceError | None:
        """The data of a restored topic is where it was; or why not."""
        if topic.topic_id not in self._to_exhume:
            return None
        trash, run = self._directory.trash, self._io.run
        await self.buried(topic.topic_id)
        try:
            await run(partial(trash.exhume, topic))
        except NotInTrashError as error:
            self._to_exhume.discard(topic.topic_id)
            return CorruptPartitionError(
                f"the data of the deleted topic was removed before it was restored: {error.detail}"
            )
        except (DiskFullError, StorageFailedError) as error:
            return error
        self._to_exhume.discard(topic.topic_id)
        await run(partial(trash.unmark, topic.topic_id))
        return None

    async def _set_aside_closed(self, replayed: Replayed) -> None:
        """What the journal holds for logs that are not open here: it goes on without them."""
        assert self._resources is not None
        for (id_bytes, partition), batches in replayed.replay.batches.items():
            topic_id = UUID(bytes=id_bytes)
            log = _log_in(self._by_id.get(topic_id), partition)
            if log is not None and not isinstance(log, PartitionLog | CorruptPartitionError):
                path = self._directory.partition_path(topic_id, partition)
                await set_aside(path, batches, self._resources)

    # --- deletion ---

    def _forget_name(self, name: str) -> HostedTopic:
        hosted = (self.internal if is_internal(name) else self.by_name).pop(name)
        self.on_changed(name)
        return hosted

    def _delete(self, hosted: HostedTopic, state: RingState) -> None:
        """The topic is gone at once; its data moves to the trash when appends under way end."""
        topic = hosted.topic
        del self._by_id[topic.topic_id]
        self._unopened.discard(topic.topic_id)
        self._to_exhume.discard(topic.topic_id)
        gone = TopicNotFoundError(f'topic "{topic.name}" was deleted', topic=topic.name)
        self._retention.forget(hosted.all_logs())
        for log in hosted.all_logs():
            log.give_up(gone)
        _log.info("topic.deleted", topic=topic.name, id=str(topic.topic_id))
        deleted = state.deleted.get(topic.topic_id)
        deleted_us = self._now_us() if deleted is None else deleted.deleted_us
        self._burials[topic.topic_id] = asyncio.Event()
        self._spawn(self._bury(hosted, deleted_us))

    async def _bury(self, hosted: HostedTopic, deleted_us: int) -> None:
        trash, run, topic = self._directory.trash, self._io.run, hosted.topic
        try:
            is_marked = True
            try:
                await run(partial(trash.mark, topic, deleted_us))
            except StoredDataError as error:  # the next start does all of it
                _log.warning("trash.failed", topic=topic.name, detail=error.detail)
                is_marked = False
            for log in hosted.all_logs():
                await log.close()
            if is_marked:
                await run(partial(trash.bury, topic.topic_id))
        finally:
            self._burials.pop(topic.topic_id).set()
        self.on_buried()


def _says_the_same(before: RingState | None, after: RingState) -> bool:
    return before is not None and before.topics is after.topics and before.ranges is after.ranges


def _touched(before: Mapping[int, RangeState], after: Mapping[int, RangeState]) -> set[int]:
    """Ranges whose partitions may belong elsewhere now."""
    if before is after:
        return set()
    return {
        range_id
        for range_id, new in after.items()
        if range_id not in before or _place_of(before[range_id]) != _place_of(new)
    }


def _place_of(found: RangeState) -> tuple[object, ...]:
    return found.leader, found.epoch, found.sealed_epoch, found.complete, found.replicas


def _log_in(hosted: HostedTopic | None, partition: int) -> LogOrError | None:
    if hosted is None or partition >= len(hosted.logs):
        return None
    return hosted.logs[partition]


def _goes_on(log: LogOrError, hosted: HostedTopic | None, partition: Partition) -> bool:
    """The log is as it should be; a damaged one stands still until the next start."""
    if hosted is None or not isinstance(log, PartitionLog):
        return isinstance(log, CorruptPartitionError)
    known = hosted.topic.partitions[partition.partition]
    return known.is_sealed == partition.is_sealed


def _not_open_yet(topic: str) -> NotReadyError:
    return NotReadyError(f'the broker is opening topic "{topic}"')


def _of_partition(failure: TailraceError, topic: Topic, partition: int) -> TailraceError:
    if may_be_opened_later(failure):
        return failure
    return CorruptPartitionError(failure.detail, topic=topic.name, partition=partition)


def _changes(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    before = msgspec.structs.asdict(old)
    return {
        name: value for name, value in msgspec.structs.asdict(new).items() if before[name] != value
    }


def _rescue_deleted(
    directory: DataDirectory,
    replayed: Replayed,
    living: Collection[UUID],
    deleted: Collection[UUID],
) -> None:
    """Set aside what only the journal holds of topics whose deletion was interrupted. Blocks."""
    for (id_bytes, partition), batches in replayed.replay.batches.items():
        topic_id = UUID(bytes=id_bytes)
        path = directory.partition_path(topic_id, partition)
        is_unburied = topic_id in deleted and directory.trash.gone([topic_id])
        if topic_id not in living and (is_unburied or path.parent.exists()):
            try:
                stored = [batch.stored for batch in batches]
                save_rescued(path, stored, directory.trash.spares.write)
            except StoredDataError as error:
                _log.error("rescue.failed", file=str(path / RESCUED), detail=error.detail)
