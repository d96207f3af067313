"""What lies here of deleted topics: how it is kept, how it comes back, and how it goes.

A topic of which other brokers have copies too is *kept*: its directory is marked and stays where it
is, and its logs stay open, so that its replicas follow each other until the ring forgets it. The
logs of any other are closed, and its directory moves to the trash.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from tailrace_broker.core.ring.roles import is_replicated
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    DiskFullError,
    NotInTrashError,
    StorageFailedError,
    StoredDataError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.ring_state import DeletedTopic, RingState
from tailrace_broker.model.topic import Topic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.log.rescued_tail import RESCUED, save_rescued
from tailrace_broker.topics.hosted_topic import HostedTopic

_log = structlog.get_logger()


class DeletedTopics:
    """State changes on the event loop only. `kept`: by id, with their logs."""

    def __init__(
        self,
        directory: DataDirectory,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now_us: Callable[[], int],
        no_copies_of: Callable[[Topic], AbstractAsyncContextManager[None]],
    ) -> None:
        """`no_copies_of`: meanwhile no log of the topic is copied; its directory moves."""
        self.kept: dict[UUID, HostedTopic] = {}
        self.on_buried: Callable[[], None] = lambda: None
        self._directory = directory
        self._io = io
        self._spawn = spawn
        self._now_us = now_us
        self._no_copies_of = no_copies_of
        self._burials: dict[UUID, asyncio.Event] = {}
        self._to_bring_back: set[UUID] = set()

    def keeps(self, state: RingState, deleted: DeletedTopic) -> bool:
        """Whether other brokers have copies of what this one has of the topic."""
        owners = [state.ranges[slices.range_id] for slices in deleted.topic.slices]
        ordinal = self._directory.identity.ordinal
        return any(ordinal in each.replicas and is_replicated(each) for each in owners)

    async def finish(self, state: RingState, replayed: Replayed) -> None:
        """At a start: do what was interrupted, or committed meanwhile. StorageFailedError."""
        living = {topic.id for topic in state.topics.values()}
        kept = {key for key, each in state.deleted.items() if self.keeps(state, each)}
        deleted = {
            key: (topic_of(state, each.topic), each.deleted_us)
            for key, each in state.deleted.items()
            if key not in kept
        }
        run, trash = self._io.run, self._directory.trash
        await run(partial(_rescue, self._directory, replayed, living | kept, deleted))
        await run(partial(trash.finish_deletions, living, deleted, kept))

    async def mark(self, state: RingState, deleted: DeletedTopic) -> None:
        """What is kept is known for deleted. DiskFullError, StorageFailedError."""
        topic = topic_of(state, deleted.topic)
        await self._io.run(partial(self._directory.trash.mark, topic, deleted.deleted_us))

    def keep(self, hosted: HostedTopic) -> None:
        """The topic is deleted, and its logs are open: they follow, and serve nobody else."""
        self.kept[hosted.topic.topic_id] = hosted
        for log in hosted.all_logs():
            log.withhold(_gone(hosted.topic))

    def delete(self, hosted: HostedTopic, state: RingState) -> None:
        """The topic is gone at once; what is stored of it is kept, or moves to the trash."""
        topic = hosted.topic
        deleted = state.deleted.get(topic.topic_id)
        self._to_bring_back.discard(topic.topic_id)
        _log.info("topic.deleted", topic=topic.name, id=str(topic.topic_id))
        self._burials[topic.topic_id] = asyncio.Event()
        if deleted is not None and self.keeps(state, deleted):
            self.keep(hosted)
            self._spawn(self._mark(state, deleted))
            return
        for log in hosted.all_logs():
            log.give_up(_gone(topic))
        deleted_us = self._now_us() if deleted is None else deleted.deleted_us
        self._spawn(self._bury(hosted, deleted_us))

    def take_forgotten(self, state: RingState) -> Iterator[UUID]:
        """Remove those that the ring has forgotten: nobody can restore them any more."""
        living = {topic.id for topic in state.topics.values()}
        for topic_id in [*self.kept.keys() - state.deleted.keys() - living]:
            self._spawn(self._discard(self.kept.pop(topic_id)))
            yield topic_id

    def bring_back(self, topic_id: UUID) -> HostedTopic | None:
        """The topic is restored: `brought_back` does it. Return its logs, if they are open."""
        self._to_bring_back.add(topic_id)
        return self.kept.pop(topic_id, None)

    async def brought_back(self, topic: Topic) -> TailraceError | None:
        """The data of a restored topic is where it was; or why not."""
        if topic.topic_id not in self._to_bring_back:
            return None
        trash, run = self._directory.trash, self._io.run
        await self.buried(topic.topic_id)
        try:
            await run(partial(trash.exhume, topic))
        except NotInTrashError as error:
            self._to_bring_back.discard(topic.topic_id)
            return CorruptPartitionError(
                f"the data of the deleted topic was removed before it was restored: {error.detail}"
            )
        except (DiskFullError, StorageFailedError) as error:
            return error
        self._to_bring_back.discard(topic.topic_id)
        await run(partial(trash.unmark, topic.topic_id))
        return None

    async def buried(self, topic_id: UUID) -> None:
        """Once the data of this deleted topic is marked or in the trash, or could not be."""
        if topic_id in self._burials:
            await self._burials[topic_id].wait()

    async def all_buried(self) -> None:
        """Likewise of all topics."""
        for ended in list(self._burials.values()):
            await ended.wait()

    async def _mark(self, state: RingState, deleted: DeletedTopic) -> None:
        try:
            await self.mark(state, deleted)
        except StoredDataError as error:  # the next start does it
            _log.warning("trash.failed", topic=deleted.topic.name, detail=error.detail)
        finally:
            self._burials.pop(deleted.topic.id).set()
        self.on_buried()

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
                async with self._no_copies_of(topic):
                    await run(partial(trash.bury, topic.topic_id))
        finally:
            self._burials.pop(topic.topic_id).set()
        self.on_buried()

    async def _discard(self, hosted: HostedTopic) -> None:
        for log in hosted.all_logs():
            log.give_up(_gone(hosted.topic))
        for log in hosted.all_logs():
            await log.close()
        await self.buried(hosted.topic.topic_id)  # else its mark may come behind
        async with self._no_copies_of(hosted.topic):
            await self._io.run(partial(self._directory.trash.discard, hosted.topic))


def _gone(topic: Topic) -> TopicNotFoundError:
    return TopicNotFoundError(f'topic "{topic.name}" was deleted', topic=topic.name)


def _rescue(
    directory: DataDirectory,
    replayed: Replayed,
    opened: Collection[UUID],
    deleted: Collection[UUID],
) -> None:
    """Set aside what only the journal holds of topics whose deletion was interrupted. Blocks."""
    for (id_bytes, partition), batches in replayed.replay.batches.items():
        topic_id = UUID(bytes=id_bytes)
        path = directory.partition_path(topic_id, partition)
        is_unburied = topic_id in deleted and directory.trash.gone([topic_id])
        if topic_id not in opened and (is_unburied or path.parent.exists()):
            try:
                stored = [batch.stored for batch in batches]
                save_rescued(path, stored, directory.trash.spares.write)
            except StoredDataError as error:
                _log.error("rescue.failed", file=str(path / RESCUED), detail=error.detail)
