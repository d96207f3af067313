"""The broker behind the listeners: its topics, what it holds, and the memory of requests."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from time import time_ns
from uuid import UUID

import structlog

from tailrace_broker.app.disk_watch import DiskWatch
from tailrace_broker.app.ring_watch import RingWatch
from tailrace_broker.app.settings import LARGEST_BUFFER_BYTES, Settings
from tailrace_broker.core.ring.changes import AppliedChange
from tailrace_broker.forwarding.forwarded import ForwardedRequests
from tailrace_broker.forwarding.forwarded_calls import ForwardedCalls
from tailrace_broker.forwarding.forwarder import Forwarder
from tailrace_broker.forwarding.waiting_requests import WaitingRequests
from tailrace_broker.groups.bounds import GroupBounds
from tailrace_broker.groups.groups import Groups
from tailrace_broker.groups.remote_reads import fetch
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    DiskFullError,
    ProduceMemoryFullError,
    StorageFailedError,
    TailraceError,
)
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import LostOffsets, RangeState
from tailrace_broker.net.api.partition_ends import ends_of, known_ends_of
from tailrace_broker.net.api.routes import forwarded_matcher
from tailrace_broker.net.api.topics import url_at
from tailrace_broker.net.broker import OpenTopic
from tailrace_broker.net.http.answers import Spawn
from tailrace_broker.net.logs import Appends
from tailrace_broker.node.ring import RingNode
from tailrace_broker.node.steps import RingSteps
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import open_engine
from tailrace_broker.storage.files.direct_file import measure_durable_write_ms
from tailrace_broker.storage.files.disk_use import DiskUse
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.kernel_aio import KernelAio
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.topics.clock_watch import ClockWatch
from tailrace_broker.topics.copy_source import RemoteCopy, clock_of
from tailrace_broker.topics.hosted_topic import HostedTopic
from tailrace_broker.topics.lost_here import lost_here
from tailrace_broker.topics.retention import CautiousClock, Retention, passed_us
from tailrace_broker.topics.scrubber import Scrubber
from tailrace_broker.topics.sealed_retention import SealedRetention
from tailrace_broker.topics.topics import Topics

WATCH_SECONDS = 0.5

# One largest batch; else a round for each follower (`topics/catch_up.py`).
CATCH_UP_MEMORY_BYTES = LARGEST_BUFFER_BYTES

_log = structlog.get_logger()


def _ignore(_: BaseException) -> None:
    pass


class LocalBroker:
    """One broker on one data directory. State changes on the event loop only."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        io: IoThreads,
        metadata_io: IoThreads,
        spawn: Spawn,
        on_failed: Callable[[BaseException], None] = _ignore,
    ) -> None:
        """`metadata_io` does nothing else, so that data never delays a vote.

        `on_failed`: called with what this process cannot go on with; it must end.
        """
        self.counters = Counters()
        self.max_request_bytes = settings.max_request_bytes
        self.ordinal = directory.identity.ordinal
        self.incarnation = directory.identity.incarnation
        self.is_direct = directory.is_direct
        self.durable_write_ms: float | None = None
        self.started_us = self.now_us()
        self.client_view, self.outside = settings.client_view, settings.outside
        self.ring_secret = settings.ring_secret.get_secret_value()
        self.produce_memory_used_bytes = 0
        self.produce_memory_bytes = settings.produce_memory_bytes
        self._directory, self._io = directory, io
        self._disk_use = DiskUse(directory.path)
        directory.trash.counters = self.counters
        io.with_room = metadata_io.with_room = directory.trash.with_room
        self._settings = settings
        self._spawn = spawn
        self._scrubber: Scrubber | None = None
        self._cache = BatchCache(settings.cache_bytes)
        self._pool = _make_pool(settings)
        self.read_memory = ReadMemory(self._pool.read, settings.answer_seconds)
        self.catch_up_memory = ReadMemory(self._pool.catch_up, settings.answer_seconds)
        self._resources: LogResources | None = None
        self.restart_kind = ""
        self._disk_watch = DiskWatch(lambda: io.writes_since_s, lambda: io.full_at_s)
        self._watch_timer: asyncio.TimerHandle | None = None
        self._retention = Retention(spawn, CautiousClock(self.now_us, passed_us), self.counters)
        self.ring = RingNode(settings.ring, directory, metadata_io, spawn, on_failed)
        self.ring_watch = RingWatch(self.ring, self.ordinal, self.now_us)
        self.steps = RingSteps(self.ring)
        topics = self._topics = Topics(
            directory,
            io,
            spawn,
            self.now_us,
            self._retention,
            self.ring,
            url_of=lambda ordinal: url_at(*settings.address_of(ordinal)),
            auto_create=settings.auto_create_topics,
            delete_retention_us=settings.delete_retention_ms * 1000,
            catch_up_memory=self.catch_up_memory,
        )
        self._clocks = self._new_clocks()
        self._begin_forwarding(spawn)
        self.groups = self._new_groups(spawn)
        self.check_ready = topics.check_ready  # the listeners ask the broker; its topics answer
        self.topics = topics.all
        self.hosted, self.hosted_for_brokers = topics.find, topics.find_any
        self.present = topics.present
        self.with_topic = topics.with_topic
        self.create_topic = topics.create
        self.alter_topic = topics.alter
        self.delete_topic = topics.delete
        self.accept_loss = topics.accept_loss
        self.trashed_topics = topics.trashed
        self.restore_topic = topics.restore
        self.replication_lags = topics.local.replicas.lags

    async def start(self) -> None:
        """Vote, recover every log that belongs here, register, lead; then be ready.

        CorruptMetadataError.
        """
        directory, settings, run = self._directory, self._settings, self._io.run
        measure = partial(measure_durable_write_ms, directory.path, is_direct=self.is_direct)
        self.durable_write_ms = await run(measure)
        await run(directory.check_metadata)  # a loss is reported before anything changes
        await run(directory.check_journal)
        await self.ring.load()
        restart = await run(directory.begin_boot)  # before anything is appended
        self.restart_kind = restart.kind
        _log.info("broker.recovering", restart=restart.kind, boot=directory.identity.boot)
        await self.ring.start()
        if not settings.ring.is_alone:
            self._forwarder.begin(
                await self._topics.local.replicas.listen(
                    settings.ring, self._forwarder, self._forwarded
                )
            )
        self._watch_disk()
        await self._belong()
        self._resources, replayed = await open_engine(
            directory.path,
            self._io,
            self._pool,
            self._cache,
            directory.inventory,
            self.counters,
            now_us=self.now_us,
            on_sealed=self._retention.look,
            write_file=directory.trash.spares.write,
            segment_bytes=settings.segment_bytes,
            journal_bytes=settings.journal_bytes,
            is_direct=directory.is_direct,
            open_aio=self._open_aio,
        )
        replayed.log_ends = restart.log_ends
        await self.ring.register(await self._topics.recover(self._resources, replayed))
        await self._belong()
        await self._topics.local.catch_up()
        await self.groups.open()
        self._topics.serve()
        source_of = partial(RemoteCopy, self.forward_call)
        self._topics.local.copies.begin(self._resources, source_of, self._spawn)
        ask_time = partial(clock_of, self.forward_call)
        self._clocks.begin(ask_time, self._spawn)
        self._sealed_retention.begin(ask_time, self._spawn)
        if settings.scrub_bytes_per_second:
            self._scrubber = Scrubber(
                self._topics.local.all_logs,
                self._resources.quarantine,
                self.counters,
                self.now_us,
                bytes_per_second=settings.scrub_bytes_per_second,
            )
            self._spawn(self._scrubber.run())

    async def stop(self) -> None:
        """Have others lead, refuse new requests, wait for appends under way, close the logs.

        The directory notes that all is closed.
        """
        is_whole = self._topics.is_ready
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self.ring.set_health(self._disk_watch.health(is_stopping=True))
        await self.groups.close()  # their positions are stored before others lead
        await self._topics.local.replicas.hand_over()
        await self._clocks.close()
        await self._sealed_retention.close()
        await self._topics.local.copies.close()
        await self._forwarder.stop()
        if self._scrubber is not None:
            self._scrubber.stop()
        await self._topics.close()
        is_flushed = False
        if self._resources is not None:
            is_flushed = await self._resources.flusher.flush_all()
            self._resources.close()
        await self.ring.stop()
        if is_whole and is_flushed:
            log_ends = self._topics.log_ends()
            with suppress(DiskFullError, StorageFailedError):  # then it counts as killed
                await self._io.run(partial(self._directory.end_boot, log_ends))

    def sealed_log(self, topic_id: UUID, partition: int) -> PartitionLog:
        """A log of which this broker has a whole copy. NoLeaderError: it has not."""
        return self._topics.local.copies.whole_log(LogKey(topic_id, partition))

    async def lost_here(self, range_id: int) -> list[LostOffsets]:
        """What this broker lacks of a range, as `topics.lost_here`. NotReadyError."""
        self._topics.check_ready()
        state, resources, local = await self.ring.current(), self._resources, self._topics.local
        assert resources is not None
        async with local.copies.stopped(lambda _, each: each.range_id == range_id):
            return await lost_here(state, range_id, local.with_id, self._directory, resources)

    def _begin_forwarding(self, spawn: Spawn) -> None:
        settings, topics = self._settings, self._topics
        self._forwards = WaitingRequests(self.counters, settings.forwarded_max)
        self._forwarder = Forwarder(
            self.ordinal,
            self.ring,
            topics.local.with_id,
            self._io,
            spawn,
            self.counters,
            self._forwards,
            self.read_memory,
            seconds=settings.forward_seconds,
        )
        topics.local.parent_producers.ask = self._forwarder.reads.ask_producers
        reads = ForwardedCalls(self, forwarded_matcher, spawn, topics.local.parent_producers.answer)
        self._forwarded: ForwardedRequests = ForwardedRequests(self, reads, topics.local.with_id)
        self.read_at_leader = self._forwarder.reads.read_at_leader
        self.ask_broker = self._forwarder.reads.ask
        self.forward_call = self._forwarder.reads.forward
        self._sealed_retention = SealedRetention(
            self.ring,
            topics.local.with_id,
            self._retention.now_us,
            keep_seconds=settings.sealed_keep_ms / 1000,
        )

    def _new_clocks(self) -> ClockWatch:
        """No record, and no deleted topic, is old by a clock that differs from the others'."""
        clocks = ClockWatch(self.ring, self.ordinal, self.now_us)
        clocks.on_changed = self._retention.check_all
        self._retention.is_time_sure = lambda log: clocks.agree(log.place.range_id)
        self._topics.is_time_sure = clocks.agree_all
        return clocks

    def _new_groups(self, spawn: Spawn) -> Groups:
        settings = self._settings
        return Groups(
            self._topics,
            self.ring,
            spawn,
            self.now_us,
            self.counters,
            self._ends_of,
            self._known_ends_of,
            partial(fetch, self),
            bounds=GroupBounds(settings.groups_max, settings.group_consumers_max),
        )

    def _watch_disk(self) -> None:
        """Report the health of the disk to the ring, again and again."""
        self.ring.set_health(self._disk_watch.health())
        loop = asyncio.get_running_loop()
        self._watch_timer = loop.call_later(WATCH_SECONDS, self._watch_disk)

    def _open_aio(self) -> KernelAio | None:
        aio = KernelAio.open()
        if aio is not None:
            self._disk_watch.writers.append(lambda: aio.writes_since_s)
        return aio

    async def _belong(self) -> None:
        """The directory has the ring, and the starts that the ring does not know, if there is one.

        CorruptMetadataError: the disk belongs to a different ring.
        """
        directory, run = self._directory, self._io.run
        state, registration = self.ring.state, self.ring.registration
        if state is not None:
            await run(partial(directory.belong_to, state.cluster_id))
        if registration is not None:
            await run(partial(directory.keep_starts_from, registration.start))

    async def _ends_of(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Log start and high watermark of their partitions. NoLeaderError."""
        ends = await ends_of(self, topics)
        return {tp: (each.log_start, each.high_watermark) for tp, each in ends.items()}

    async def _known_ends_of(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Likewise, of those whose leaders say it."""
        ends = await known_ends_of(self, topics)
        return {tp: (each.log_start, each.high_watermark) for tp, each in ends.items()}

    @property
    def is_ready(self) -> bool:
        """Recovery has ended and the broker is not stopping."""
        return self._topics.is_ready

    def measured_topics(self) -> list[HostedTopic]:
        """Return the topics that have metrics of their own: the same ones on all brokers."""
        by_name = self._topics.by_name
        return [by_name[name] for name in sorted(by_name)[: self._settings.topic_metrics_max]]

    @property
    def topic_count(self) -> int:
        """Return the number of topics that are recovered."""
        return len(self._topics.by_name)

    @property
    def partition_count(self) -> int:
        """Partitions of topics on this broker."""
        logs = chain.from_iterable(each.logs.values() for each in self._topics.by_name.values())
        return sum(isinstance(log, PartitionLog | CorruptPartitionError) for log in logs)

    def address_of(self, ordinal: int) -> tuple[str, int]:
        """Host and public port at which clients reach a broker of the ring."""
        return self._settings.address_of(ordinal)

    def ring_history(self) -> list[AppliedChange]:
        """Return the last changes of the ring's state that this process has applied."""
        return list(self.ring_watch.history)

    def led_ranges(self) -> list[RangeState]:
        """Ranges that this very process leads."""
        state, mine = self.ring.state, self.ring.registration
        if state is None or mine is None:
            return []
        return [each for each in state.ranges.values() if each.leader == each.replica_of(mine)]

    @property
    def catch_up_bytes(self) -> int:
        """Bytes of batches sent to followers that were far behind."""
        return self._topics.local.replicas.catch_up_bytes

    @property
    def forwarded_max(self) -> int:
        """Return how many requests may wait for other brokers."""
        return self._settings.forwarded_max

    @property
    def forwarded_count(self) -> int:
        """Requests that wait for the leaders to which they were forwarded."""
        return self._forwards.count

    def appends_to(self, hosted: OpenTopic, partition: int, moved: TailraceError | None) -> Appends:
        """Where to append to a partition, whoever leads it. NotLeaderError: it is sealed.

        `moved`: with which an append to a parent of it was answered, that goes on here.
        """
        if self._settings.ring.is_alone:
            return hosted.open_log_of(partition)
        return self._forwarder.appends_to(hosted, partition, moved)

    @property
    def received_bytes(self) -> int:
        """Batches of leaders that are not written yet."""
        return self._topics.local.replicas.received_bytes

    @property
    def damaged_count(self) -> int:
        """Partitions that take no events because their data is damaged, of its own topics too."""
        return sum(hosted.damaged_count for hosted in self._topics.local.all_hosted())

    @property
    def quarantined_count(self) -> int:
        """Batches that are known to be damaged."""
        return self._resources.quarantine.batch_count if self._resources else 0

    @property
    def sealed_count(self) -> int:
        """Partitions that take no more events."""
        topics = (hosted.topic for hosted in self._topics.by_name.values())
        return sum(partition.is_sealed for topic in topics for partition in topic.partitions)

    @property
    def stored_bytes(self) -> int:
        """Segments of all undamaged partitions."""
        logs = chain.from_iterable(each.all_logs() for each in self._topics.local.all_hosted())
        return sum(log.size_bytes for log in logs)

    @property
    def pending_bytes(self) -> int:
        """Batches that the journal and memory hold, and the segments do not yet."""
        return sum(log.pending_bytes for log in self._topics.local.all_logs())

    @property
    def open_segment_count(self) -> int:
        """Segment files that are open."""
        return len(self._resources.files) if self._resources is not None else 0

    @property
    def waiting_read_count(self) -> int:
        """Reads that wait for records."""
        waiters = (log.waiters for log in self._topics.local.all_logs())
        return len(set(chain.from_iterable(waiters)))

    @property
    def cached_bytes(self) -> int:
        """Return the size of the recent batches in memory."""
        return self._cache.cached_bytes

    def now_us(self) -> int:
        """The broker's clock, µs since the epoch."""
        return time_ns() // 1000

    async def data_bytes(self) -> int | None:
        """Return the size of this broker's data on disk; None: the disk does not answer."""
        other_bytes = await self._io.run(self._disk_use.other_bytes)
        if other_bytes is None:
            return None
        return self.stored_bytes - self.pending_bytes + other_bytes

    async def disk_bytes(self) -> tuple[int, int] | None:
        """Used, and all, of the file system that holds the data; None: it does not answer."""
        return await self._io.run(self._directory.disk_bytes)

    def check_produce_memory(self, size_bytes: int) -> None:
        """ProduceMemoryFullError when there is no room for so much now."""
        if self.produce_memory_used_bytes + size_bytes > self.produce_memory_bytes:
            raise ProduceMemoryFullError(
                f"requests in flight hold {self.produce_memory_used_bytes} of "
                f"{self.produce_memory_bytes} bytes; nothing was stored, send it again"
            )

    def take_produce_memory(self, size_bytes: int) -> None:
        """Count bytes of a body; ProduceMemoryFullError when the bound is reached."""
        self.check_produce_memory(size_bytes)
        self.produce_memory_used_bytes += size_bytes

    def return_produce_memory(self, size_bytes: int) -> None:
        """The body has been answered."""
        self.produce_memory_used_bytes -= size_bytes
        assert self.produce_memory_used_bytes >= 0


def _make_pool(settings: Settings) -> BufferPool:
    read_bytes = settings.read_memory_bytes
    return BufferPool(settings.io_buffer_bytes, read_bytes, CATCH_UP_MEMORY_BYTES)
