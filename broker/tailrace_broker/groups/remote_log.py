"""Partitions of which this broker has no replica in sync, read at their leaders for polls.

How far such a log goes is asked by one request at a time, which waits there for the next record. A
sealed one goes no further: of it only the log start is asked, now and then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from tailrace_broker.codec.batch import StoredBatch, verified_batches
from tailrace_broker.model.errors import NoLeaderError, NotReadyError, TailraceError
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.topic import Topic

# How long a request waits at the leader for the next record.
WAIT_MS = 10_000
# Until the log start of a sealed log is asked again.
SEALED_SECONDS = 10.0
# After a failure, until the next request.
RETRY_SECONDS = 0.1
# A log that nobody has asked for in this time is forgotten.
IDLE_SECONDS = 60.0


class Fetched(NamedTuple):
    """What a leader answered: whole batches from the one that holds the offset, maybe none.

    `is_here`: this broker leads the partition by now. `is_sealed`: nothing will follow.
    """

    log_start: int
    high_watermark: int
    batches: memoryview
    is_here: bool = False
    is_sealed: bool = False


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
        self.is_heard = False
        self.used_s = monotonic()
        self.topic = topic
        self._partition = partition
        self._fetch = fetch
        self._waiters: set[asyncio.Future[None]] = set()

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It is done when the high watermark moves, or the log is here."""
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It does not wait any more."""
        self._waiters.discard(waiter)

    async def check_end(self) -> None:
        """NoLeaderError: it is led elsewhere."""
        raise NoLeaderError("another broker leads the partition")

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Committed batches from the one that holds `offset`. TailraceError of the leader."""
        fetched = await self._fetch(Wanted(self.topic, self._partition, offset, max_bytes))
        if fetched.is_here:
            raise NotReadyError("this broker leads the partition by now; read its own log")
        self._hear(fetched)
        return verified_batches(fetched.batches) if fetched.batches else ()

    async def ask_ends(self) -> None:
        """Learn how far the log goes now. TailraceError of the leader."""
        fetched = await self._fetch(Wanted(self.topic, self._partition, None, 1))
        if fetched.is_here:
            raise NotReadyError("this broker has the log by now; read that")
        self._hear(fetched)

    async def follow(self) -> None:
        """Learn how far the log goes, as long as somebody asks, and another broker leads it."""
        offset: int | None = None
        while self._waiters or monotonic() - self.used_s < IDLE_SECONDS:
            wait_ms = 0 if offset is None else WAIT_MS
            try:
                fetched = await self._fetch(Wanted(self.topic, self._partition, offset, 1, wait_ms))
            except TailraceError:  # the leader changes, or retention was faster
                offset = None
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if fetched.is_here:
                self.wake()
                return
            self._hear(fetched)
            offset = fetched.high_watermark  # of a new leader it may be an older one
            if fetched.is_sealed:
                offset = None
                await asyncio.sleep(SEALED_SECONDS)

    def _hear(self, fetched: Fetched) -> None:
        self.is_heard = True
        self.log_start = max(self.log_start, fetched.log_start)
        if fetched.high_watermark > self.high_watermark:
            self.high_watermark = fetched.high_watermark
            self.wake()

    def wake(self) -> None:
        """End all waits."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class RemoteLogs:
    """Those that polls have asked for lately. State changes on the event loop only."""

    def __init__(
        self, fetch: Fetch, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._fetch = fetch
        self._spawn = spawn
        self._logs: dict[TopicPartition, RemoteLog] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}

    def log_of(self, topic: Topic, partition: int) -> RemoteLog:
        """The log, which is followed from now on; of a topic that was restored by its new name."""
        tp = TopicPartition(topic.topic_id, partition)
        log = self._logs.get(tp)
        if log is not None and log.topic != topic.name:
            self._tasks[tp].cancel()
            log = None
        if log is None:
            log = self._logs[tp] = RemoteLog(topic.name, partition, self._fetch)
            task = self._tasks[tp] = self._spawn(log.follow())
            task.add_done_callback(partial(self._forget, tp))
        log.used_s = monotonic()
        return log

    def forget(self, topic_ids: Container[UUID]) -> None:
        """Logs of these topics may end before what was heard of them: they are asked again."""
        for tp in [tp for tp in self._logs if tp.topic_id in topic_ids]:
            self._tasks.pop(tp).cancel()
            self._logs.pop(tp).wake()

    def unfollowed(self, topic: str, partition: int) -> RemoteLog:
        """Return a log to read, of which nothing is known."""
        return RemoteLog(topic, partition, self._fetch)

    def heard(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Return log start and high watermark of one that is followed, once they are known."""
        log = self._logs.get(tp)
        return None if log is None or not log.is_heard else (log.log_start, log.high_watermark)

    async def find_sealed(self, topic: str, partition: int, sealed_end: int) -> RemoteLog:
        """Find a sealed log where all of it is. TailraceError."""
        log = self.unfollowed(topic, partition)
        await log.ask_ends()
        if log.high_watermark < sealed_end:
            raise NotReadyError(f"not all of partition {partition} of {topic} can be read now")
        return log

    def close(self) -> None:
        """Follow none any more."""
        for task in self._tasks.values():
            task.cancel()

    def _forget(self, tp: TopicPartition, task: asyncio.Task[None]) -> None:
        if self._tasks.get(tp) is task:
            del self._logs[tp], self._tasks[tp]
