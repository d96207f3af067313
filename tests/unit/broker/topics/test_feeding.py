"""What followers are sent of real logs, and whose memory that takes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.codec.batch import StoredBatch, verified_batches
from tailrace_broker.core.replication.events import Feed
from tailrace_broker.core.replication.range_events import OfRange
from tailrace_broker.memory.pool import Quota
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.replication import Batches, Restart, ToFollower
from tailrace_broker.net.replication.link import Bytes
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.resources import Reading
from tailrace_broker.topics import feeding
from tailrace_broker.topics.feeding import LogFeeds
from tests.support.storage.storage import MEBIBYTE, LogFiles, append_large, open_engine_on
from tests.support.waits import until

FOLLOWER, EPOCH, COUNT = 1, 5, 4
# Hold all that is sent, until the test forgets it.
Sent = list[tuple[ToFollower, Sequence[Bytes]]]


class Feeding:
    """A log on the disk alone, which this process leads, and what a follower was sent of it."""

    def __init__(self, log: PartitionLog, files: LogFiles, wait_seconds: float) -> None:
        self.log, self.pool = log, files.pool
        self.key = log.place.key
        self.sent: Sent = []
        self.epoch: int | None = EPOCH
        self.room = True
        self.tasks: list[asyncio.Task[None]] = []
        memory = ReadMemory(self.pool.catch_up, wait_seconds)
        self._memory = memory
        self.feeds = LogFeeds(lambda _: log, lambda _: self.epoch, self, memory, self._spawn)

    def has_follower(self, ordinal: int) -> bool:
        return ordinal == FOLLOWER

    def has_room(self, ordinal: int) -> bool:
        return self.room

    def call_when_taken(self, ordinal: int, call: Callable[[], None]) -> None:
        pass  # the test asks for each piece

    def send_follower(
        self, ordinal: int, message: ToFollower, payload: Sequence[Bytes] = ()
    ) -> None:
        self.sent.append((message, payload))

    def feed(self, *, end: int | None) -> None:
        """From the log's first offset on."""
        feed = Feed(FOLLOWER, 1, self.key, 0, end, 0, 0)
        self.feeds.feed(OfRange(0, EPOCH, feed), feed)

    def sent_batches(self) -> list[StoredBatch]:
        """All of them, verified."""
        payloads = [b"".join(payload) for message, payload in self.sent if payload]
        return [each for payload in payloads for each in verified_batches(memoryview(payload))]

    def waits(self) -> bool:
        """A read waits for memory."""
        return self._memory._turn.locked()

    async def ended(self) -> None:
        """All that was begun has ended."""
        await asyncio.gather(*self.tasks)

    def _spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.create_task(work))


@asynccontextmanager
async def fed(
    tmp_path: Path, wait_seconds: float = 60, cache_bytes: int = 0
) -> AsyncIterator[Feeding]:
    """Batches of 128 KiB that only the disk has, unless there is a cache."""
    files = LogFiles(tmp_path)
    async with open_engine_on(files, cache_bytes=cache_bytes) as engine:
        (log,) = engine.logs
        for _ in range(COUNT):
            await append_large(log)
        yield Feeding(log, files, wait_seconds)


def exhausted(quota: Quota) -> object:
    """All of it is held as long as this is."""
    return quota.lease(quota.capacity_bytes)


@pytest.mark.parametrize("end", [None, COUNT])
async def test_replicas_are_fed_though_readers_hold_all_of_their_memory(
    tmp_path: Path, end: int | None
) -> None:
    async with fed(tmp_path) as feeding_:
        kept = exhausted(feeding_.pool.read)
        feeding_.feed(end=end)
        await feeding_.ended()
        assert [each.header.base_offset for each in feeding_.sent_batches()] == [*range(COUNT)]
        assert feeding_.pool.catch_up.used_bytes > 0
        feeding_.sent.clear()
        await until(lambda: feeding_.pool.catch_up.used_bytes == 0)
        del kept


async def test_readers_read_though_replicas_hold_all_of_theirs(tmp_path: Path) -> None:
    async with fed(tmp_path) as feeding_:
        kept: object = exhausted(feeding_.pool.catch_up)
        feeding_.feed(end=None)
        batches = await feeding_.log.read(0, MEBIBYTE)
        assert [each.header.base_offset for each in batches] == [*range(COUNT)]
        assert feeding_.sent == []
        del kept
        await feeding_.ended()
        assert len(feeding_.sent_batches()) == COUNT
        assert feeding_.feeds.catch_up_bytes == sum(each.header.batch_bytes for each in batches)


async def test_a_follower_that_cannot_be_fed_stands_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "RETRY_SECONDS", 0.0)

    async with fed(tmp_path, wait_seconds=0.001) as feeding_:
        kept = exhausted(feeding_.pool.catch_up)
        feeding_.feed(end=None)
        feeding_.feed(end=COUNT)
        await feeding_.ended()
        await until(lambda: len(feeding_.sent) == 2)
        assert {message for message, _ in feeding_.sent} == {Restart(0, EPOCH, 1)}
        del kept


@pytest.mark.parametrize("end", [None, COUNT])
async def test_nothing_is_sent_when_the_epoch_has_ended(tmp_path: Path, end: int | None) -> None:
    async with fed(tmp_path) as feeding_:
        feeding_.epoch = None
        feeding_.feed(end=end)
        await feeding_.ended()
        assert feeding_.sent == []


@pytest.mark.parametrize("has_room", [True, False])
async def test_what_memory_has_is_sent_at_once_while_the_link_has_room(
    tmp_path: Path, *, has_room: bool
) -> None:
    """As large batches are that were written a moment ago; they count as far behind."""

    async with fed(tmp_path, cache_bytes=MEBIBYTE) as feeding_:
        feeding_.room = has_room
        feeding_.feed(end=None)
        assert bool(feeding_.sent) == has_room
        await feeding_.ended()
        assert len(feeding_.sent_batches()) == COUNT
        feeding_.feed(end=None)  # the round is not taken: this one waits for the next
        await feeding_.ended()
        assert len(feeding_.sent_batches()) == (2 * COUNT if has_room else COUNT)


async def test_a_live_batch_does_not_wait_for_the_round_of_catch_up(tmp_path: Path) -> None:
    async with fed(tmp_path) as feeding_:
        feeding_.feed(end=None)
        feeding_.feed(end=None)  # in the next round, which is not due
        feeding_.feed(end=COUNT)
        await feeding_.ended()
        assert all(isinstance(message, Batches) for message, _ in feeding_.sent)
        assert len(feeding_.sent_batches()) == 2 * COUNT


async def test_catch_up_that_takes_from_readers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation of the first test: what it asks for does not come."""
    read = PartitionLog._read_from_disk

    async def take_from_readers(
        log: PartitionLog, offset: int, max_bytes: int, end_offset: int, _: Reading
    ) -> list[StoredBatch]:
        return await read(log, offset, max_bytes, end_offset, log._resources.reading)

    monkeypatch.setattr(PartitionLog, "_read_from_disk", take_from_readers)

    async with fed(tmp_path) as feeding_:
        kept = exhausted(feeding_.pool.read)
        feeding_.feed(end=None)
        feeding_.feed(end=COUNT)
        await until(feeding_.waits)
        assert feeding_.sent == []
        for task in feeding_.tasks:
            task.cancel()
        del kept
