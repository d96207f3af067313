import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailrace_broker.model.errors import DiskFullError, StorageFailedError
from tailrace_broker.storage.files.io_share import IoShare
from tailrace_broker.storage.files.io_threads import IoThreads

WAIT_S = 60.0


@asynccontextmanager
async def io_threads(count: int = 2) -> AsyncIterator[IoThreads]:
    bugs: list[BaseException] = []
    io = IoThreads(count, bugs.append)
    io.start()
    try:
        yield io
    finally:
        await asyncio.to_thread(io.stop)
    assert bugs == []


@pytest.mark.parametrize("jobs_max", [1, 2])
async def test_a_share_leaves_the_other_threads_to_others(jobs_max: int) -> None:
    async with io_threads(jobs_max + 1) as io:
        share, may_end = IoShare(io, jobs_max), threading.Event()
        began = threading.Semaphore(0)

        def work() -> None:
            began.release()
            assert may_end.wait(WAIT_S)

        slow = [asyncio.create_task(share.run(work)) for _ in range(5)]
        for _ in range(jobs_max):
            assert await asyncio.to_thread(began.acquire, timeout=WAIT_S)
        assert await io.run(lambda: "at once") == "at once"
        assert not began.acquire(blocking=False)
        may_end.set()
        await asyncio.gather(*slow)


async def test_what_waits_begins_in_its_order() -> None:
    async with io_threads() as io:
        share, order = IoShare(io, 1), list[int]()

        def note(number: int) -> None:
            order.append(number)

        await asyncio.gather(*(share.run(lambda n=n: note(n)) for n in range(50)))  # type: ignore[misc]
        assert order == list(range(50))


async def test_a_job_that_fails_makes_room_too() -> None:
    async with io_threads() as io:
        share = IoShare(io, 1)

        def fail() -> None:
            raise DiskFullError("no space")

        for _ in range(2):
            with pytest.raises(DiskFullError):
                await share.run(fail)
        assert await share.run(lambda: 5) == 5


async def test_a_caller_that_gave_up_takes_no_room_for_ever() -> None:
    async with io_threads() as io:
        share, may_end = IoShare(io, 1), threading.Event()
        tasks = [asyncio.create_task(share.run(lambda: may_end.wait(WAIT_S))) for _ in range(2)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        may_end.set()
        assert await share.run(lambda: "next") == "next"
        assert all(task.cancelled() for task in tasks)


async def test_what_waits_for_a_caller_that_gave_up_is_not_done() -> None:
    async with io_threads() as io:
        share, may_end, done = IoShare(io, 1), threading.Event(), list[int]()
        under_way = asyncio.create_task(share.run(lambda: may_end.wait(WAIT_S)))
        waiting = [asyncio.create_task(share.run(lambda n=n: done.append(n))) for n in range(3)]  # type: ignore[misc]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait([waiting[1]])
        may_end.set()
        await asyncio.gather(under_way, waiting[0], waiting[2])
        assert done == [0, 2]


async def test_what_waits_when_the_threads_end_fails() -> None:
    async with io_threads() as io:
        share, may_end = IoShare(io, 1), threading.Event()
        under_way = asyncio.create_task(share.run(lambda: may_end.wait(WAIT_S)))
        waiting = [asyncio.create_task(share.run(lambda: "done")) for _ in range(3)]
        await asyncio.sleep(0)
        may_end.set()
        io.stop()  # blocks the loop, as at the end of a broker
        found = await asyncio.wait_for(
            asyncio.gather(under_way, *waiting, return_exceptions=True), WAIT_S
        )
        assert found[0] is True
        assert [type(each) for each in found[1:]] == [StorageFailedError] * 3
