"""The topics of this broker with their open logs: recovered, found, created, altered, deleted.

Only this changes the metadata: one change at a time, durable before anybody sees it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import chain
from typing import Any
from uuid import uuid4

import structlog

from tailrace_broker.app.hosted_topic import HostedTopic, open_topic
from tailrace_broker.app.trash_purger import TrashPurger
from tailrace_broker.core.metadata import Metadata
from tailrace_broker.model.errors import (
    NotReadyError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace_broker.model.topic import Topic, TopicSettings, check_topic_name
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.partition_log import LogResources, PartitionLog

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
        resources: LogResources,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        *,
        auto_create: bool,
        delete_retention_us: int,
    ) -> None:
        """`auto_create`: by the first produce; `delete_retention_us`: until the trash is purged."""
        self.is_ready = False
        self.by_name: dict[str, HostedTopic] = {}
        self._auto_create = auto_create
        self._directory = directory
        self._resources = resources
        self._spawn = spawn
        self._metadata = Metadata()
        self._creations: dict[str, list[TopicUse]] = {}
        self._metadata_lock = asyncio.Lock()
        self._purger = TrashPurger(
            directory.trash,
            resources.io,
            spawn,
            resources.now_us,
            retention_us=delete_retention_us,
        )

    async def open(self) -> None:
        """Recover every partition, then be ready. CorruptMetadataError."""
        directory, run = self._directory, self._resources.io.run
        topics = await run(directory.load_topics)
        await run(directory.begin_boot)  # before anything is appended
        living = {topic.topic_id for topic in topics}
        await run(partial(directory.trash.finish_deletions, living))
        for topic in topics:
            hosted = await open_topic(topic, directory, self._resources)
            self._metadata.topics[topic.name] = hosted.topic
            self.by_name[topic.name] = hosted
        self.is_ready = True
        self._purger.look()

    async def close(self) -> None:
        """Refuse what comes, wait for the appends under way, close the logs."""
        self.is_ready = False
        self._purger.stop()
        for log in list(self.undamaged_logs()):  # a topic may just be being created
            await log.close()

    def check_ready(self) -> None:
        """NotReadyError until all are recovered, and from a stop on."""
        if not self.is_ready:
            raise _not_ready()

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
        return chain.from_iterable(hosted.undamaged_logs() for hosted in self.by_name.values())

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
                await self._save(wanted)
                hosted = await open_topic(topic, self._directory, self._resources)
                topic = wanted.topics[name] = hosted.topic
                self._metadata, self.by_name[name] = wanted, hosted
                _log.info("topic.created", topic=name, partitions=len(topic.partitions))
            return topic, is_new

    async def alter(self, name: str, settings: TopicSettings) -> Topic:
        """The topic with these settings in place of its own; durable on return.

        TopicNotFoundError, InvalidParameterError, NotReadyError, DiskFullError, StorageFailedError.
        """
        async with self._metadata_lock:
            hosted = self.find(name)
            wanted = Metadata(dict(self._metadata.topics))
            topic = wanted.alter_topic(name, settings)
            if topic != hosted.topic:
                await self._save(wanted)
                self._metadata, hosted.topic = wanted, topic
                _log.info("topic.altered", topic=name, json_check=settings.json_check)
            return topic

    async def delete(self, name: str) -> None:
        """Take the topic away, durably; its data moves to the trash.

        TopicNotFoundError, NotReadyError, DiskFullError, StorageFailedError.
        """
        trash, run = self._directory.trash, self._resources.io.run
        async with self._metadata_lock:
            hosted = self.find(name)
            topic = hosted.topic
            wanted = Metadata(dict(self._metadata.topics))
            wanted.delete_topic(name)
            try:
                await run(partial(trash.mark, topic, self._resources.now_us()))
                await self._save(wanted)
            except TailraceError:
                await run(partial(trash.unmark, topic.topic_id))
                raise
            self._metadata = wanted
            del self.by_name[name]
            gone = TopicNotFoundError(f'topic "{name}" was deleted', topic=name)
            for log in hosted.undamaged_logs():
                log.give_up(gone)
            _log.info("topic.deleted", topic=name, id=str(topic.topic_id))
        for log in hosted.undamaged_logs():
            await log.close()
        await run(partial(trash.bury, topic.topic_id))
        self._purger.look()

    def _not_found(self, topic: str) -> TopicNotFoundError:
        reason = "" if self._auto_create else " (autoCreateTopics is off)"
        return TopicNotFoundError(
            f'topic "{topic}" does not exist{reason}; create it with POST /v1/topics', topic=topic
        )

    async def _save(self, wanted: Metadata) -> None:
        """Make the topics durable."""
        topics = list(wanted.topics.values())
        await self._resources.io.run(partial(self._directory.save_topics, topics))

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
            await self.create(topic, TopicSettings())
        except TopicExistsError:
            pass  # created meanwhile with other settings: the one that exists is the one meant
        except TailraceError as failed:
            error = failed
        if not self.is_ready:
            error = _not_ready()  # the logs are being closed
        uses = self._creations.pop(topic)
        for use in uses:
            use(None if error else self.by_name[topic], error)


def _not_ready() -> NotReadyError:
    return NotReadyError("the broker is recovering its data, or stopping")
