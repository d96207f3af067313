"""The broker that the doors see: topics with their open logs, on this disk."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import chain
from time import time_ns
from typing import Any, TypeVar
from uuid import uuid4

import structlog

from tailrace_broker.app.hosted_topic import HostedTopic, open_topic
from tailrace_broker.app.settings import Settings
from tailrace_broker.app.trash_purger import TrashPurger
from tailrace_broker.core.metadata import Metadata
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    NotReadyError,
    ProduceMemoryFullError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace_broker.model.topic import Topic, TopicSettings, check_topic_name
from tailrace_broker.net.http_connection import Connections
from tailrace_broker.storage.batch_cache import BatchCache
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.direct_file import measure_durable_write_ms
from tailrace_broker.storage.io_threads import IoThreads
from tailrace_broker.storage.partition_log import LogResources, PartitionLog

TopicUse = Callable[[HostedTopic | None, TailraceError | None], None]
T = TypeVar("T")

_log = structlog.get_logger()


class LocalBroker:
    """One broker on one data directory. State changes on the event loop only."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.counters = Counters()
        self.max_request_bytes = settings.max_request_bytes
        self.is_ready = False
        self.cluster_id = directory.identity.cluster_id
        self.ordinal = directory.identity.ordinal
        self.incarnation = directory.identity.incarnation
        self.is_direct = directory.is_direct
        self.durable_write_ms: float | None = None
        self.started_us = self.now_us()
        self.client_view = settings.client_view
        self.connections = Connections(
            settings.header_seconds,
            settings.request_seconds,
            settings.idle_seconds,
            settings.connections_max,
        )
        self.produce_memory_used_bytes = 0
        self.produce_memory_bytes = settings.produce_memory_bytes
        self._auto_create_topics = settings.auto_create_topics
        self._directory = directory
        self._spawn = spawn
        self._metadata = Metadata()
        self._hosted: dict[str, HostedTopic] = {}
        self._creations: dict[str, list[TopicUse]] = {}
        self._metadata_lock = asyncio.Lock()
        self._cache = BatchCache(settings.cache_bytes)
        self._resources = LogResources(
            io=io,
            pool=BufferPool(settings.io_buffer_bytes),
            cache=self._cache,
            counters=self.counters,
            now_us=self.now_us,
            segment_bytes=settings.segment_bytes,
            is_direct=directory.is_direct,
        )
        self._purger = TrashPurger(
            directory.trash,
            io,
            spawn,
            self.now_us,
            retention_us=settings.delete_retention_ms * 1000,
        )

    async def start(self) -> None:
        """Recover every partition, then be ready. CorruptMetadataError."""
        directory, run = self._directory, self._resources.io.run
        measure = partial(measure_durable_write_ms, directory.path, is_direct=self.is_direct)
        self.durable_write_ms = await run(measure)
        topics = await run(directory.load_topics)
        await run(directory.begin_boot)  # before anything is appended
        living = {topic.topic_id for topic in topics}
        await run(partial(directory.trash.finish_deletions, living))
        for topic in topics:
            hosted = await open_topic(topic, self._directory, self._resources)
            self._metadata.topics[topic.name] = hosted.topic
            self._hosted[topic.name] = hosted
        self.is_ready = True
        self._purger.look()

    async def stop(self) -> None:
        """Refuse new requests, wait for the appends under way, close the logs."""
        self.is_ready = False
        self._purger.stop()
        for log in list(self._undamaged_logs()):  # a topic may just be being created
            await log.close()

    @property
    def topic_count(self) -> int:
        """Topics that are recovered."""
        return len(self._hosted)

    @property
    def partition_count(self) -> int:
        """Partitions on this broker."""
        return sum(len(hosted.logs) for hosted in self._hosted.values())

    @property
    def damaged_count(self) -> int:
        """Partitions that stand still because their data is damaged."""
        return sum(
            len(hosted.logs) - len(hosted.undamaged_logs()) for hosted in self._hosted.values()
        )

    @property
    def sealed_count(self) -> int:
        """Partitions that take no more events."""
        topics = (hosted.topic for hosted in self._hosted.values())
        return sum(partition.is_sealed for topic in topics for partition in topic.partitions)

    @property
    def stored_bytes(self) -> int:
        """Segments of all undamaged partitions."""
        return sum(log.size_bytes for log in self._undamaged_logs())

    @property
    def waiting_read_count(self) -> int:
        """Reads that wait for records."""
        return sum(log.waiting_count for log in self._undamaged_logs())

    @property
    def connection_count(self) -> int:
        """Open connections of all doors."""
        return len(self.connections.open)

    @property
    def cached_bytes(self) -> int:
        """Recent batches in memory."""
        return self._cache.cached_bytes

    def now_us(self) -> int:
        """The broker's clock, µs since the epoch."""
        return time_ns() // 1000

    def disk_bytes(self) -> tuple[int, int]:
        """Used, and all, of the file system that holds the data."""
        return self._directory.disk_bytes()

    def topics(self) -> list[HostedTopic]:
        """All topics by name. NotReadyError."""
        self._check_ready()
        return [self._hosted[name] for name in sorted(self._hosted)]

    def hosted(self, topic: str) -> HostedTopic:
        """TopicNotFoundError, InvalidTopicNameError."""
        self._check_ready()
        found = self._hosted.get(topic)
        if found is None:
            check_topic_name(topic)
            raise self._not_found(topic)
        return found

    def with_topic(self, topic: str, use: TopicUse) -> None:
        """Call `use` with the topic, at once when it is there, else when it has been created.

        Calls for a topic that is being created keep their order.
        """
        found = self._hosted.get(topic)
        if not self.is_ready:
            use(None, _not_ready())
        elif found is not None and topic not in self._creations:
            use(found, None)
        elif topic in self._creations:
            self._creations[topic].append(use)
        else:
            self._create_for(topic, use)

    async def create_topic(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """The topic, and whether it is new; durable on return.

        InvalidTopicNameError, TopicExistsError, NotReadyError, DiskFullError, StorageFailedError.
        """
        self._check_ready()
        return await self._to_its_end(self._create_topic(name, settings))

    async def alter_topic(self, name: str, settings: TopicSettings) -> Topic:
        """The topic with these settings in place of its own; durable on return.

        TopicNotFoundError, InvalidParameterError, NotReadyError, DiskFullError, StorageFailedError.
        """
        self._check_ready()
        return await self._to_its_end(self._alter_topic(name, settings))

    async def delete_topic(self, name: str) -> None:
        """Take the topic away, durably; its data moves to the trash.

        TopicNotFoundError, NotReadyError, DiskFullError, StorageFailedError.
        """
        self._check_ready()
        await self._to_its_end(self._delete_topic(name))

    def take_produce_memory(self, size_bytes: int) -> None:
        """Count a body in flight; ProduceMemoryFullError when the bound is reached."""
        if self.produce_memory_used_bytes + size_bytes > self.produce_memory_bytes:
            raise ProduceMemoryFullError(
                f"requests in flight hold {self.produce_memory_used_bytes} of "
                f"{self.produce_memory_bytes} bytes; nothing was stored, send it again"
            )
        self.produce_memory_used_bytes += size_bytes
        self.counters.produced_bytes += size_bytes

    def return_produce_memory(self, size_bytes: int) -> None:
        """The body has been answered."""
        self.produce_memory_used_bytes -= size_bytes
        assert self.produce_memory_used_bytes >= 0

    def _undamaged_logs(self) -> Iterator[PartitionLog]:
        return chain.from_iterable(hosted.undamaged_logs() for hosted in self._hosted.values())

    def _check_ready(self) -> None:
        if not self.is_ready:
            raise _not_ready()

    def _not_found(self, topic: str) -> TopicNotFoundError:
        reason = "" if self._auto_create_topics else " (autoCreateTopics is off)"
        return TopicNotFoundError(
            f'topic "{topic}" does not exist{reason}; create it with POST /v1/topics', topic=topic
        )

    async def _to_its_end(self, command: Coroutine[Any, Any, T]) -> T:
        """Run a change of the metadata, even when who asked for it does not wait any longer.

        Else the file of topics could say otherwise than what is served.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                outcome.set_result(await command)
            except TailraceError as error:
                outcome.set_exception(error)
                outcome.exception()  # nobody may be waiting

        self._spawn(run())
        return await asyncio.shield(outcome)

    async def _create_topic(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        async with self._metadata_lock:
            self._check_ready()  # before that not all topics are known, and the file holds them all
            wanted = Metadata(dict(self._metadata.topics))
            topic = wanted.create_topic(name, settings, uuid4())
            is_new = name not in self._metadata.topics
            if is_new:
                await self._save(wanted)
                hosted = await open_topic(topic, self._directory, self._resources)
                topic = wanted.topics[name] = hosted.topic
                self._metadata, self._hosted[name] = wanted, hosted
                _log.info("topic.created", topic=name, partitions=len(topic.partitions))
            return topic, is_new

    async def _alter_topic(self, name: str, settings: TopicSettings) -> Topic:
        async with self._metadata_lock:
            hosted = self.hosted(name)
            wanted = Metadata(dict(self._metadata.topics))
            topic = wanted.alter_topic(name, settings)
            if topic != hosted.topic:
                await self._save(wanted)
                self._metadata, hosted.topic = wanted, topic
                _log.info("topic.altered", topic=name, json_check=settings.json_check)
            return topic

    async def _delete_topic(self, name: str) -> None:
        trash, run = self._directory.trash, self._resources.io.run
        async with self._metadata_lock:
            hosted = self.hosted(name)
            topic = hosted.topic
            wanted = Metadata(dict(self._metadata.topics))
            wanted.delete_topic(name)
            try:
                await run(partial(trash.mark, topic, self.now_us()))
                await self._save(wanted)
            except TailraceError:
                await run(partial(trash.unmark, topic.topic_id))
                raise
            self._metadata = wanted
            del self._hosted[name]
            gone = TopicNotFoundError(f'topic "{name}" was deleted', topic=name)
            for log in hosted.undamaged_logs():
                log.give_up(gone)
            _log.info("topic.deleted", topic=name, id=str(topic.topic_id))
        for log in hosted.undamaged_logs():
            await log.close()
        await run(partial(trash.bury, topic.topic_id))
        self._purger.look()

    async def _save(self, wanted: Metadata) -> None:
        """Make the topics durable."""
        topics = list(wanted.topics.values())
        await self._resources.io.run(partial(self._directory.save_topics, topics))

    def _create_for(self, topic: str, use: TopicUse) -> None:
        """First produce to an unknown topic."""
        try:
            check_topic_name(topic)
            if not self._auto_create_topics:
                raise self._not_found(topic)
        except TailraceError as error:
            use(None, error)
        else:
            self._creations[topic] = [use]
            self._spawn(self._create(topic))

    async def _create(self, topic: str) -> None:
        error: TailraceError | None = None
        try:
            await self._create_topic(topic, TopicSettings())
        except TopicExistsError:
            pass  # created meanwhile with other settings: the one that exists is the one meant
        except TailraceError as failed:
            error = failed
        if not self.is_ready:
            error = _not_ready()  # the logs are being closed
        uses = self._creations.pop(topic)
        for use in uses:
            use(None if error else self._hosted[topic], error)


def _not_ready() -> NotReadyError:
    return NotReadyError("the broker is recovering its data, or stopping")
