"""The broker that the doors see: topics with their open logs, on this disk."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from time import time_ns
from typing import Any
from uuid import uuid4

import structlog

from tailrace_broker.app.settings import Settings
from tailrace_broker.core.metadata import Metadata
from tailrace_broker.core.ring import find_slice, token
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NotReadyError,
    PartitionNotFoundError,
    ProduceMemoryFullError,
    ReadFailedError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace_broker.model.topic import Partition, Topic, TopicSettings, check_topic_name
from tailrace_broker.storage.batch_cache import BatchCache
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.io_threads import IoThreads
from tailrace_broker.storage.log_recovery import recover_log
from tailrace_broker.storage.partition_log import LogResources, PartitionLog
from tailrace_broker.storage.segment_writer import LogPlace

TopicUse = Callable[["HostedTopic | None", TailraceError | None], None]

_log = structlog.get_logger()


class HostedTopic:
    """A topic with its logs on this broker; a damaged partition has its error in place of a log."""

    def __init__(self, topic: Topic, logs: list[PartitionLog | CorruptPartitionError]) -> None:
        assert len(logs) == len(topic.partitions)
        self.topic = topic
        self.logs = logs
        self._token_starts = [partition.token_start for partition in topic.partitions]
        undamaged = [index for index, log in enumerate(logs) if isinstance(log, PartitionLog)]
        self._turns = itertools.cycle(undamaged or range(len(logs)))

    def log_of(self, partition: int) -> PartitionLog:
        """PartitionNotFoundError; CorruptPartitionError when its data is damaged."""
        if not 0 <= partition < len(self.logs):
            raise PartitionNotFoundError(
                f'topic "{self.topic.name}" has partitions 0 to {len(self.logs) - 1}',
                topic=self.topic.name,
                partition=partition,
            )
        log = self.logs[partition]
        if isinstance(log, CorruptPartitionError):
            raise CorruptPartitionError(log.detail, topic=self.topic.name, partition=partition)
        return log

    def partition_of_key(self, key: bytes | None) -> int:
        """The partition whose slice holds the key's token; with none, each undamaged in turn."""
        if key is None:
            return next(self._turns)
        return find_slice(self._token_starts, token(key))


class LocalBroker:
    """One broker on one data directory. State changes on the event loop only."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.counters = Counters()
        self.max_request_bytes = settings.max_request_bytes
        self.request_seconds = settings.request_seconds
        self.is_ready = False
        self.is_direct = directory.is_direct
        self.produce_memory_used_bytes = 0
        self._produce_memory_bytes = settings.produce_memory_bytes
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

    async def start(self) -> None:
        """Recover every partition, then be ready. CorruptMetadataError."""
        for topic in await self._resources.io.run(self._directory.load_topics):
            self._metadata.topics[topic.name] = topic
            self._hosted[topic.name] = await self._open(topic)
        self.is_ready = True

    async def stop(self) -> None:
        """Refuse new requests, wait for the appends under way, close the logs."""
        self.is_ready = False
        for hosted in list(self._hosted.values()):  # a topic may just be being created
            for log in hosted.logs:
                if isinstance(log, PartitionLog):
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
        logs = (log for hosted in self._hosted.values() for log in hosted.logs)
        return sum(isinstance(log, CorruptPartitionError) for log in logs)

    @property
    def cached_bytes(self) -> int:
        """Recent batches in memory."""
        return self._cache.cached_bytes

    def now_us(self) -> int:
        """The broker's clock, µs since the epoch."""
        return time_ns() // 1000

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
        async with self._metadata_lock:
            self._check_ready()  # before that not all topics are known, and the file holds them all
            wanted = Metadata(dict(self._metadata.topics))
            topic = wanted.create_topic(name, settings, uuid4())
            is_new = name not in self._metadata.topics
            if is_new:
                topics = list(wanted.topics.values())
                await self._resources.io.run(lambda: self._directory.save_topics(topics))
                hosted = await self._open(topic)
                self._metadata, self._hosted[name] = wanted, hosted
                _log.info("topic.created", topic=name, partitions=len(topic.partitions))
            return topic, is_new

    def take_produce_memory(self, size_bytes: int) -> None:
        """Count a body in flight; ProduceMemoryFullError when the bound is reached."""
        if self.produce_memory_used_bytes + size_bytes > self._produce_memory_bytes:
            raise ProduceMemoryFullError(
                f"requests in flight hold {self.produce_memory_used_bytes} of "
                f"{self._produce_memory_bytes} bytes; nothing was stored, send it again"
            )
        self.produce_memory_used_bytes += size_bytes
        self.counters.produced_bytes += size_bytes

    def return_produce_memory(self, size_bytes: int) -> None:
        """The body has been answered."""
        self.produce_memory_used_bytes -= size_bytes
        assert self.produce_memory_used_bytes >= 0

    def _check_ready(self) -> None:
        if not self.is_ready:
            raise _not_ready()

    def _not_found(self, topic: str) -> TopicNotFoundError:
        reason = "" if self._auto_create_topics else " (autoCreateTopics is off)"
        return TopicNotFoundError(
            f'topic "{topic}" does not exist{reason}; create it with POST /v1/topics', topic=topic
        )

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
            await self.create_topic(topic, TopicSettings())
        except TopicExistsError:
            pass  # created meanwhile with other settings: the one that exists is the one meant
        except TailraceError as failed:
            error = failed
        if not self.is_ready:
            error = _not_ready()  # the logs are being closed
        uses = self._creations.pop(topic)
        for use in uses:
            use(None if error else self._hosted[topic], error)

    async def _open(self, topic: Topic) -> HostedTopic:
        """Recover the logs of a topic's partitions."""
        async with asyncio.TaskGroup() as tasks:
            opening = [
                tasks.create_task(self._open_log(topic, partition))
                for partition in topic.partitions
            ]
        return HostedTopic(topic, [task.result() for task in opening])

    async def _open_log(
        self, topic: Topic, partition: Partition
    ) -> PartitionLog | CorruptPartitionError:
        resources = self._resources
        place = LogPlace(
            self._directory.partition_path(topic.topic_id, partition.partition),
            topic.topic_id,
            partition.partition,
            partition.range_id,
            partition.epoch,
        )
        try:
            segments = await resources.io.run(
                lambda: recover_log(
                    place, partition.first_offset, resources.pool, is_direct=resources.is_direct
                )
            )
        except (CorruptPartitionError, ReadFailedError) as error:
            _log.error(
                "partition.damaged",
                topic=topic.name,
                partition=partition.partition,
                detail=error.detail,
            )
            return CorruptPartitionError(error.detail)
        return PartitionLog(place, segments, resources)


def _not_ready() -> NotReadyError:
    return NotReadyError("the broker is recovering its data, or stopping")
