import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tailrace_broker.model.errors import DiskFullError, StorageFailedError, TailraceError
from tailrace_broker.storage.files.direct_file import write_file_atomically
from tailrace_broker.storage.files.io_share import Io, IoShare
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.writes_under_way import writing
from tests.support.waits import until

WAIT_S = 5.0


@asynccontextmanager
async def threads(count: int, bugs: list[BaseException]) -> AsyncIterator[IoThreads]:
    io = IoThreads(count, bugs.append)
    io.start()
    try:
        yield io
    finally:
        io.stop()


async def test_work_runs_in_threads_and_its_result_arrives_on_the_loop() -> None:
    async with threads(2, []) as io:
        arrived: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        def done(worked_in: str, error: TailraceError | None) -> None:
            assert error is None
            arrived.set_result((worked_in, threading.current_thread().name))

        io.submit(lambda: threading.current_thread().name, done)
        worked_in, arrived_in = await arrived

        assert worked_in.startswith("io-")
        assert arrived_in == threading.current_thread().name


async def test_our_errors_are_results_too() -> None:
    def work() -> None:
        raise DiskFullError("no space")

    async with threads(1, []) as io:
        with pytest.raises(DiskFullError):
            await io.run(work)
        assert await io.run(lambda: 5) == 5


@pytest.mark.parametrize(
    "taking", [lambda io: io, lambda io: IoShare(io, 1)], ids=["threads", "a share of them"]
)
def test_an_error_keeps_nothing_once_it_is_handled(taking: Callable[[IoThreads], Io]) -> None:
    """Without the collector of garbage: what its traceback sees may hold memory of readers."""

    class Held:
        pass

    async def scenario() -> None:
        async def fail() -> "weakref.ref[Held]":
            held = Held()
            with suppress(DiskFullError):
                await fail_with(held)
            return weakref.ref(held)

        async def fail_with(held: Held) -> None:
            await taking(io).run(raise_full)

        def raise_full() -> None:
            raise DiskFullError("no space")

        async with threads(1, []) as io:
            held = await fail()
            await io.run(int)  # the thread has done with the job before it

            assert held() is None

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


async def test_what_comes_too_late_for_the_threads_fails() -> None:
    """While the last of them ends its work, and afterwards."""

    io, began, may_end = IoThreads(1, lambda _: None), threading.Event(), threading.Event()
    io.start()

    def work() -> None:
        began.set()
        assert may_end.wait(WAIT_S)

    under_way = asyncio.create_task(io.run(work))
    assert await asyncio.to_thread(began.wait, WAIT_S)
    stopping = asyncio.create_task(asyncio.to_thread(io.stop))
    await until(lambda: io._work.qsize() == 1)  # what ends the thread
    late = asyncio.create_task(io.run(lambda: None))
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(under_way, stopping)
    for each in (late, io.run(lambda: None)):
        with pytest.raises(StorageFailedError, match="stopping"):
            await asyncio.wait_for(each, WAIT_S)


async def test_any_other_error_is_handed_over_as_a_bug() -> None:
    bugs: list[BaseException] = []
    handed_over = asyncio.Event()

    def on_bug(bug: BaseException) -> None:
        bugs.append(bug)
        handed_over.set()

    io = IoThreads(1, on_bug)
    io.start()
    io.submit(lambda: next(iter(())), lambda *_: None)
    await asyncio.wait_for(handed_over.wait(), WAIT_S)
    io.stop()

    assert [type(bug) for bug in bugs] == [StopIteration]


async def test_no_completion_is_missed_among_many() -> None:
    async with threads(4, []) as io:
        results = await asyncio.gather(
            *(io.run(lambda number=number: number) for number in range(5_000))  # type: ignore[misc]
        )
        assert results == list(range(5_000))


async def test_completions_that_come_together_wake_the_loop_once() -> None:
    loop = asyncio.get_running_loop()
    wake_up = loop.call_soon_threadsafe
    wake_ups: list[object] = []

    def count_wake_up(*args: Any) -> asyncio.Handle:
        wake_ups.append(args)
        return wake_up(*args)

    loop.call_soon_threadsafe = count_wake_up  # type: ignore[method-assign, assignment]
    worked = threading.Event()
    async with threads(1, []) as io:
        for _ in range(100):
            io.submit(lambda: None, lambda *_: None)
        last = asyncio.ensure_future(io.run(worked.set))
        await asyncio.sleep(0)
        assert worked.wait(WAIT_S)  # the loop is blocked until all has been done
        await last
    assert len(wake_ups) <= 2


async def test_one_thread_keeps_the_order_of_its_work() -> None:
    worked: list[int] = []
    async with threads(1, []) as io:
        for number in range(100):
            io.submit(lambda number=number: worked.append(number), lambda *_: None)  # type: ignore[misc]
    assert worked == list(range(100))


async def test_a_caller_that_gave_up_gets_nothing() -> None:
    bugs: list[BaseException] = []
    may_end = threading.Event()
    async with threads(1, bugs) as io:
        waiting = asyncio.create_task(io.run(lambda: may_end.wait(WAIT_S)))
        await asyncio.sleep(0)
        waiting.cancel()
        may_end.set()
        assert await io.run(lambda: "next") == "next"
        assert waiting.cancelled()
    assert bugs == []


async def test_an_action_runs_after_what_this_turn_still_brings() -> None:
    seen: list[str] = []
    async with threads(1, []) as io:
        io.call_soon(lambda: seen.append("action"))
        seen.append("this turn")
        await asyncio.sleep(0)
    assert seen == ["this turn", "action"]


def since_s(io: IoThreads) -> float | None:
    return io.writes_since_s


async def test_the_oldest_write_under_way_is_known(tmp_path: Path) -> None:
    """Of threads that write; one that does something else has none."""
    path = tmp_path / "f"

    begun, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with writing():
            begun.set()
            assert go_on.wait(WAIT_S)

    async with threads(2, []) as io:
        assert since_s(io) is None
        before_s = monotonic()
        under_way = asyncio.ensure_future(io.run(write))
        await asyncio.to_thread(begun.wait, WAIT_S)
        first_s = since_s(io)
        assert first_s is not None
        assert before_s <= first_s <= monotonic()
        await io.run(partial(write_file_atomically, path, b"later, and done before"))
        assert since_s(io) == first_s
        go_on.set()
        await under_way
        assert since_s(io) is None


async def test_a_write_that_fails_is_not_under_way_any_more(tmp_path: Path) -> None:
    async with threads(1, []) as io:
        with pytest.raises(StorageFailedError):
            await io.run(partial(write_file_atomically, tmp_path / "none" / "f", b""))
        assert since_s(io) is None
        assert io.full_at_s is None


async def test_a_disk_that_had_no_room_is_known() -> None:
    def work() -> None:
        raise DiskFullError("no space")

    async with threads(1, []) as io:
        with pytest.raises(DiskFullError):
            await io.run(work)
        assert io.full_at_s is not None
