"""The topics of this broker with their open logs: recovered, found, created, altered, deleted.

Only this changes the metadata: one change at a time, durable before anybody sees it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import msgspec
import structlog

from tailrace_broker.app.hosted_topic import HostedTopic, open_topic
from tailrace_broker.app.retention import Retention
from tailrace_broker.app.trash_purger import TrashPurger
from tailrace_broker.core.metadata import Metadata
from tailrace_broker.model.errors import (
    DiskFullError,
    NotReadyError,
    StorageFailedError,
    StoredDataError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace_broker.model.topic import (
    NEW_TOPIC,
    Topic,
    TopicSettings,
    check_topic_name,
    is_internal,
)
from tailrace_broker.model.trashed_topic import TrashedTopic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.direct_file import sync_file_system
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.io_threads import IoThreads
from tailrace_broker.storage.log_resources import LogResources
from tailrace_broker.storage.partition_log import PartitionLog
from tailrace_broker.storage.rescued_tail import RESCUED, save_rescued

TopicUse = Callable[[HostedTopic | None, TailraceError | None], None]

_log = structlog.get_logger()


class Topics:
    """All topics of a data directory. State changes on the event loop only.

    A change that has begun must not be cancelled: the file of topics could then say otherwise than
    what is served.
    """

    def __init__(
        self,
        directory: DataDirectory,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now_us: Callable[[], int],
        retention: Retention,
        *,
        auto_create: bool,
        delete_retention_us: int,
    ) -> None:
        """`auto_create`: by the first produce; `delete_retention_us`: until the trash is purged."""
        self.is_ready = False
        self.by_name: dict[str, HostedTopic] = {}
        self.internal: dict[str, HostedTopic] = {}  # the broker's own: no door knows them
        self.on_changed: Callable[[str], None] = lambda _: None  # a topic has come, or gone
        self._auto_create = auto_create
        self._directory = directory
        self._io = io
        self._now_us = now_us
        self._resources: LogResources | None = None
        self._spawn = spawn
        self._metadata = Metadata()
        self._creations: dict[str, list[TopicUse]] = {}
        self._metadata_lock = asyncio.Lock()
        self._deletions: set[asyncio.Event] = set()  # under way, behind the change of the metadata
        self._retention = retention
        self._delete_retention_us = delete_retention_us
        self._purger = TrashPurger(
            directory.trash,
            io,
            spawn,
            now_us,
            retention_us=delete_retention_us,
        )

    async def open(self, resources: LogResources, replayed: Replayed) -> None:
        """Recover every partition. CorruptMetadataError."""
        directory, run = self._directory, self._io.run
        self._resources = resources
        topics = await run(directory.load_topics)
        living = {topic.topic_id for topic in topics}
        await run(partial(_rescue_deleted, directory, replayed, living))
        await run(partial(directory.trash.finish_deletions, living))
        for topic in topics:
            self._keep(await open_topic(topic, directory, resources, replayed))
        # What a killed broker wrote last, found by now and not synced by it.
        await run(partial(sync_file_system, directory.path))
        await run(directory.trash.spares.fill)

    def serve(self) -> None:
        """Let the doors in."""
        self.is_ready = True
        self._purger.look()
        self._retention.watch(list(self.undamaged_logs()))

    async def close(self) -> None:
        """Refuse what comes, wait for the appends under way, close the logs."""
        self.is_ready = False
        self._purger.stop()
        self._retention.stop()
        async with self._metadata_lock:  # no change is under way, and none comes
            pass
        for ended in list(self._deletions):
            await ended.wait()
        logs = list(self.undamaged_logs())  # a topic may just be being created
        for log in logs:
            await log.drained()
        if self._resources is not None:
            await self._resources.journal.spill_all()
        for log in logs:
            await log.close()

    def check_ready(self) -> None:
        """NotReadyError until all are recovered, and from a stop on."""
        if not self.is_ready:
            raise _not_ready()

    def log_ends(self) -> dict[UUID, list[int | None]]:
        """By topic and partition id; null: damaged."""
        return {hosted.topic.topic_id: hosted.log_ends() for hosted in self.all_hosted()}

    def all(self) -> list[HostedTopic]:
        """By name. NotReadyError."""
        self.check_ready()
        return [self.by_name[name] for name in sorted(self.by_name)]

    def find(self, topic: str) -> HostedTopic:
        """TopicNotFoundError, InvalidTopicNameError, NotReadyError."""
        self.check_ready()
        found = self.by_name.get(topic)
        if found is None:
            check_topic_name(topic)
            raise self._not_found(topic)
        return found

    def undamaged_logs(self) -> Iterator[PartitionLog]:
        """Of all topics, whether they are all recovered or not."""
        return chain.from_iterable(hosted.undamaged_logs() for hosted in self.all_hosted())

    def with_topic(self, topic: str, use: TopicUse) -> None:
        """Call `use` with the topic, at once when it is there, else when it has been created.

        Calls for a topic that is being created keep their order.
        """
        found = self.by_name.get(topic)
        if not self.is_ready:
            use(None, _not_ready())
        elif found is not None and topic not in self._creations:
            use(found, None)
        elif topic in self._creations:
            self._creations[topic].append(use)
        else:
            self._create_for(topic, use)

    async def internal_topic(self, name: str, settings: TopicSettings) -> HostedTopic:
        """The broker's own topic of this name, made when it is first needed; durable on return.

        NotReadyError, DiskFullError, StorageFailedError.
        """
        async with self._metadata_lock:
            if name not in self.internal:
                self.check_ready()
                wanted = Metadata(dict(self._metadata.topics))
                topic = wanted.add_topic(name, settings, uuid4())
                if name not in self._metadata.topics:
                    await self._save(wanted, may_use_spare=False)
                await self._host(topic)
            return self.internal[name]

    async def create(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """The topic, and whether it is new; durable on return.

        InvalidTopicNameError, TopicExistsError, NotReadyError, DiskFullError, StorageFailedError.
        """
        async with self._metadata_lock:
            self.check_ready()  # before that not all topics are known, and the file holds them all
            wanted = Metadata(dict(self._metadata.topics))
            topic = wanted.create_topic(name, settings, uuid4())
            is_new = name not in self._metadata.topics
            if is_new:
                await self._save(wanted, may_use_spare=False)
            if name not in self.by_name:
                topic = await self._host(topic)
                _log.info("topic.created", topic=name, partitions=len(topic.partitions))
                self.on_changed(name)
            return topic, is_new

    async def alter(self, name: str, changes: Mapping[str, Any]) -> Topic:
        """The topic with these fields of its settings changed; durable on return.

        Changes at the same time keep each other's.

        TopicNotFoundError, InvalidParameterError, NotReadyError, DiskFullError, StorageFailedError.
        """
        async with self._metadata_lock:
            hosted = self.find(name)
            settings = msgspec.structs.replace(hosted.topic.settings, **changes)
            wanted = Metadata(dict(self._metadata.topics))
            topic = wanted.alter_topic(name, settings)
            if topic != hosted.topic:
                await self._save(wanted)
                hosted.alter(topic)
                self._retention.watch(hosted.undamaged_logs())
                _log.info("topic.altered", topic=name, changes=dict(changes))
            return topic

    async def delete(self, name: str) -> None:
        """Take the topic away, durably; its data moves to the trash.

        TopicNotFoundError, NotReadyError, DiskFullError, StorageFailedError.
        """
        trash, run = self._directory.trash, self._io.run
        async with self._metadata_lock:
            hosted = self.find(name)
            topic = hosted.topic
            wanted = Metadata(dict(self._metadata.topics))
            wanted.delete_topic(name)
            unmark = partial(trash.unmark, topic.topic_id)
            try:
                await run(partial(trash.mark, topic, self._now_us()))
            except TailraceError:
                await run(unmark)
                raise
            await self._save(wanted, undo=unmark)
            del self.by_name[name]
            self.on_changed(name)
            gone = TopicNotFoundError(f'topic "{name}" was deleted', topic=name)
            self._retention.forget(hosted.undamaged_logs())
            for log in hosted.undamaged_logs():
                log.give_up(gone)
            _log.info("topic.deleted", topic=name, id=str(topic.topic_id))
            ended = asyncio.Event()
            self._deletions.add(ended)
        try:
            for log in hosted.undamaged_logs():
                await log.close()
            await run(partial(trash.bury, topic.topic_id))
        finally:
            self._deletions.remove(ended)
            ended.set()
        self._purger.look()

    async def trashed(self) -> list[TrashedTopic]:
        """Deleted topics that are still there, the latest deletion first. NotReadyError."""
        self.check_ready()

        def listed() -> list[TrashedTopic]:
            return [
                TrashedTopic(
                    each.deleted.topic,
                    each.deleted.deleted_us,
                    each.deleted.deleted_us + self._delete_retention_us,
                    each.size_bytes(),
                )
                for each in self._directory.trash.buried()
            ]

        return await self._io.run(listed)

    async def gone(self, topic_ids: Iterable[UUID]) -> set[UUID]:
        """Those of these topics that neither are there nor can be restored any more."""
        living = {hosted.topic.topic_id for hosted in self.all_hosted()}
        dead = [topic_id for topic_id in topic_ids if topic_id not in living]
        return await self._io.run(partial(self._directory.trash.gone, dead))

    async def restore(self, wanted: str, new_name: str | None) -> Topic:
        """Bring the deleted topic of this name or id back, durably, with its records.

        NotInTrashError, InvalidParameterError, TopicExistsError, InvalidTopicNameError,
        NotReadyError, DiskFullError, StorageFailedError.
        """
        trash, run = self._directory.trash, self._io.run
        async with self._metadata_lock:
            self.check_ready()
            deleted = await run(partial(trash.find, wanted))
            topic = msgspec.structs.replace(deleted, name=new_name or deleted.name)
            before, metadata = self._metadata, Metadata(dict(self._metadata.topics))
            metadata.restore_topic(topic)
            bury = partial(trash.bury, topic.topic_id)
            await run(partial(trash.exhume, deleted))
            await self._save(metadata, undo=bury)
            try:
                topic = await self._host(topic)
            except TailraceError:
                await self._save(before)
                await run(bury)
                raise
            await run(partial(trash.unmark, topic.topic_id))
            self.on_changed(topic.name)
            _log.info("topic.restored", topic=topic.name, id=str(topic.topic_id))
            return topic

    def _not_found(self, topic: str) -> TopicNotFoundError:
        reason = "" if self._auto_create else " (autoCreateTopics is off)"
        return TopicNotFoundError(
            f'topic "{topic}" does not exist{reason}; create it with POST /v1/topics', topic=topic
        )

    async def _save(
        self,
        wanted: Metadata,
        *,
        undo: Callable[[], None] | None = None,
        may_use_spare: bool = True,
    ) -> None:
        """Make the topics durable; they are so from now on.

        When that fails, those before are made durable again, and `undo` is done. When that fails
        too, the next start goes by what the file says.
        """
        save, run = self._directory.save_topics, self._io.run
        try:
            topics = list(wanted.topics.values())
            await run(partial(save, topics, may_use_spare=may_use_spare))
        except TailraceError as error:
            with suppress(DiskFullError, StorageFailedError):
                if not isinstance(error, DiskFullError):  # the file may be replaced all the same
                    await run(partial(save, list(self._metadata.topics.values())))
                if undo is not None:
                    await run(undo)
            raise
        self._metadata = wanted

    async def _host(self, topic: Topic) -> Topic:
        """Open a topic that is durable."""
        assert self._resources is not None
        hosted = await open_topic(topic, self._directory, self._resources, Replayed())
        self._keep(hosted)
        self._retention.watch(hosted.undamaged_logs())
        return hosted.topic

    def _keep(self, hosted: HostedTopic) -> None:
        topic = hosted.topic
        self._metadata.topics[topic.name] = topic
        (self.internal if is_internal(topic.name) else self.by_name)[topic.name] = hosted

    def all_hosted(self) -> Iterator[HostedTopic]:
        """The broker's own topics too, whether they are all recovered or not."""
        return chain(self.by_name.values(), self.internal.values())

    def _create_for(self, topic: str, use: TopicUse) -> None:
        """First produce to an unknown topic."""
        try:
            check_topic_name(topic)
            if not self._auto_create:
                raise self._not_found(topic)
        except TailraceError as error:
            use(None, error)
        else:
            self._creations[topic] = [use]
            self._spawn(self._create_and_use(topic))

    async def _create_and_use(self, topic: str) -> None:
        error: TailraceError | None = None
        try:
            await self.create(topic, NEW_TOPIC)
        except TopicExistsError:
            pass  # created meanwhile with other settings: the one that exists is the one meant
        except TailraceError as failed:
            error = failed
        if not self.is_ready:
            error = _not_ready()  # the logs are being closed
        uses = self._creations.pop(topic)
        for use in uses:
            use(None if error else self.by_name[topic], error)


def _rescue_deleted(directory: DataDirectory, replayed: Replayed, living: set[UUID]) -> None:
    """Set aside what only the journal holds of topics whose deletion was interrupted. Blocks."""
    for (topic_id, partition), batches in replayed.replay.batches.items():
        path = directory.partition_path(UUID(bytes=topic_id), partition)
        if UUID(bytes=topic_id) not in living and path.parent.exists():
            try:
                stored = [batch.stored for batch in batches]
                save_rescued(path, stored, directory.trash.spares.write)
            except StoredDataError as error:
                _log.error("rescue.failed", file=str(path / RESCUED), detail=error.detail)


def _not_ready() -> NotReadyError:
    return NotReadyError("the broker is recovering its data, or stopping")
