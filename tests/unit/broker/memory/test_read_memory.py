import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tailrace_broker.memory.pool import SMALLEST_BYTES, BufferPool, Lease
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.errors import ReadMemoryFullError

CAPACITY_BYTES = 4 * SMALLEST_BYTES
LONG_S = 60.0


class Readers:
    """Reads that each want some memory, and the order in which they got it."""

    def __init__(self, wait_seconds: float = LONG_S) -> None:
        self.pool = BufferPool(SMALLEST_BYTES, CAPACITY_BYTES)
        self.memory = ReadMemory(self.pool.read, wait_seconds)
        self.calls: list[str] = []
        self.served: list[str] = []

    async def read(self, name: str, size_bytes: int) -> Lease:
        async def lease() -> Lease:
            self.calls.append(name)
            return self.pool.read.lease(size_bytes)

        got = await self.memory.run(lease)
        self.served.append(name)
        return got

    async def started(self, *reads: Coroutine[Any, Any, Lease]) -> list[asyncio.Task[Lease]]:
        """Their tasks, once each has come as far as it can."""
        tasks = [asyncio.create_task(read) for read in reads]
        for _ in range(5):
            await asyncio.sleep(0)
        return tasks


async def test_who_finds_room_does_not_wait() -> None:
    readers = Readers()
    lease = await readers.read("first", CAPACITY_BYTES)
    assert readers.memory.used_bytes == lease.size_bytes == readers.memory.capacity_bytes


async def test_who_waits_gets_its_turn_in_the_order_of_arrival() -> None:
    """Else one that wants much would wait for ever behind many that want little."""

    readers = Readers()
    first = await readers.read("first", CAPACITY_BYTES)
    much, little = await readers.started(
        readers.read("much", CAPACITY_BYTES), readers.read("little", 1)
    )
    first.resize(CAPACITY_BYTES // 2)  # enough for the one that came last
    (last,) = await readers.started(readers.read("last", 1))
    assert readers.served == ["first"]

    del first
    kept = await much
    assert readers.served == ["first", "much"]
    del kept, much
    await asyncio.gather(little, last)
    assert readers.served == ["first", "much", "little", "last"]


async def test_a_reader_is_not_asked_again_before_something_has_come_back() -> None:
    readers = Readers()
    kept = await readers.read("first", CAPACITY_BYTES)
    (waiting,) = await readers.started(readers.read("second", 1))
    assert readers.calls == ["first", "second", "second"]

    kept.resize(0)
    await waiting
    assert readers.calls == ["first", "second", "second", "second"]


async def test_what_a_failed_read_gives_back_itself_is_no_reason_to_ask_it_again() -> None:
    readers = Readers()
    kept = await readers.read("first", CAPACITY_BYTES - 100)

    async def read_twice() -> list[Lease]:
        readers.calls.append("twice")
        return [readers.pool.read.lease(100), readers.pool.read.lease(100)]

    async def run() -> Lease:
        return (await readers.memory.run(read_twice))[0]

    (waiting,) = await readers.started(run())
    assert readers.calls == ["first", "twice", "twice"]

    kept.resize(CAPACITY_BYTES - 200)
    await waiting
    assert readers.calls == ["first", "twice", "twice", "twice"]


async def test_memory_that_comes_back_in_another_thread_wakes_who_waits() -> None:
    readers = Readers()
    kept = [await readers.read("first", CAPACITY_BYTES)]
    (waiting,) = await readers.started(readers.read("second", 1))
    await asyncio.to_thread(kept.clear)
    await waiting
    assert readers.served == ["first", "second"]


async def test_nobody_waits_for_ever() -> None:
    readers = Readers(wait_seconds=0.001)
    kept = await readers.read("first", CAPACITY_BYTES)
    with pytest.raises(ReadMemoryFullError, match="hold 16384 of 16384 bytes"):
        await readers.read("second", 1)
    del kept
    await readers.read("third", 1)
    assert readers.served == ["first", "third"]


async def test_an_error_of_who_waited_lets_the_next_go_on() -> None:
    readers = Readers()
    kept = await readers.read("first", CAPACITY_BYTES)

    async def fail_at_last() -> Lease:
        if readers.memory.used_bytes:
            return readers.pool.read.lease(1)
        raise OSError("disk")

    failing, waiting = await readers.started(
        readers.memory.run(fail_at_last), readers.read("second", 1)
    )
    del kept
    with pytest.raises(OSError, match="disk"):
        await failing
    await waiting
