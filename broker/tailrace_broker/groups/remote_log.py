"""Partitions of which this broker has no replica, read at their leaders for polls.

How far such a log goes is asked by one request at a time, which waits there for the next record;
what it brings is kept for the poll that it wakes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, NamedTuple

from tailrace_broker.codec.batch import StoredBatch, verified_batches
from tailrace_broker.model.errors import OffsetOutOfRangeError, TailraceError
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.topic import Topic

# How long a request waits at the leader for the next record.
WAIT_MS = 10_000
# What one brings at most; and after a failure the pause until the next.
READ_BYTES = 1024 * 1024
RETRY_SECONDS = 0.1
# A log that nobody has asked for in this time is forgotten.
IDLE_SECONDS = 60.0


class Fetched(NamedTuple):
    """What a leader answered: whole batches from the one that holds the offset, maybe none."""

    log_start: int
    high_watermark: int
    batches: memoryview


class Wanted(NamedTuple):
    """A read. `offset` None: only how far the log goes; `wait_ms`: for a record at the offset."""

    topic: str
    partition: int
    offset: int | None
    max_bytes: int
    wait_ms: int = 0


# Reads at the leader. TailraceError.
Fetch = Callable[[Wanted], Awaitable[Fetched]]


class RemoteLog:
    """A log elsewhere, as far as this broker has heard of it."""

    # As of a log that is followed: `log_start` and `high_watermark` may be behind the leader's.
    is_served = False
    knows_end = False

    def __init__(self, topic: str, partition: int, fetch: Fetch) -> None:
        self.log_start = 0
        self.high_watermark = 0
        self.used_s = monotonic()
        self._topic = topic
        self._partition = partition
        self._fetch = fetch
        self._waiters: set[asyncio.Future[None]] = set()
        self._recent: Sequence[StoredBatch] = ()  # up to the high watermark of then

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It is done when the high watermark moves."""
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It does not wait any more."""
        self._waiters.discard(waiter)

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Committed batches from the one that holds `offset`. TailraceError of the leader."""
        recent = self._recent
        if recent and recent[0].header.base_offset <= offset < recent[-1].header.end_offset:
            return [each for each in recent if each.header.end_offset > offset]
        return self._take(await self._fetch(self._wanted(offset, max_bytes)))

    async def follow(self) -> None:
        """Learn how far the log goes, as long as somebody asks."""
        is_known = False
        while self._waiters or monotonic() - self.used_s < IDLE_SECONDS:
            wait_ms = WAIT_MS if is_known else 0
            offset = self.high_watermark if is_known else None
            try:
                self._recent = self._take(
                    await self._fetch(self._wanted(offset, READ_BYTES, wait_ms))
                )
                is_known = True
            except OffsetOutOfRangeError:  # retention was faster
                is_known = False
            except TailraceError:
                await asyncio.sleep(RETRY_SECONDS)

    def _wanted(self, offset: int | None, max_bytes: int, wait_ms: int = 0) -> Wanted:
        return Wanted(self._topic, self._partition, offset, max_bytes, wait_ms)

    def _take(self, fetched: Fetched) -> Sequence[StoredBatch]:
        batches = verified_batches(fetched.batches) if fetched.batches else ()
        end = max([fetched.high_watermark, *(each.header.end_offset for each in batches[-1:])])
        self.log_start = max(self.log_start, fetched.log_start)
        if end > self.high_watermark:
            self.high_watermark = end
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
        return batches


class RemoteLogs:
    """Those that polls have asked for lately. State changes on the event loop only."""

    def __init__(self, fetch: Fetch, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._fetch = fetch
        self._spawn = spawn
        self._logs: dict[TopicPartition, RemoteLog] = {}

    def log_of(self, topic: Topic, partition: int) -> RemoteLog:
        """The log, which is followed from now on."""
        tp = TopicPartition(topic.topic_id, partition)
        log = self._logs.get(tp)
        if log is None:
            log = self._logs[tp] = RemoteLog(topic.name, partition, self._fetch)
            self._spawn(self._follow(tp, log))
        log.used_s = monotonic()
        return log

    async def _follow(self, tp: TopicPartition, log: RemoteLog) -> None:
        try:
            await log.follow()
        finally:
            del self._logs[tp]
