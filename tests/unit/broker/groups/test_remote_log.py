"""A log that is read at its leader: a leader's answers go in, what polls see comes out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.groups import remote_log
from tailrace_broker.groups.remote_log import WAIT_MS, Fetched, RemoteLogs, Wanted
from tailrace_broker.model.errors import NoLeaderError, NotReadyError, OffsetOutOfRangeError
from tailrace_broker.model.topic import Topic, TopicSettings
from tests.support.storage.batches import Event, batch_of
from tests.support.storage.topics import new_topic
from tests.support.waits import until

TOPIC: Topic = new_topic("t", TopicSettings(), UUID(int=7))


class Leader:
    """Answers the requests of a test in their order."""

    def __init__(self) -> None:
        self.asked: list[Wanted] = []
        self._requests: asyncio.Queue[asyncio.Future[Fetched]] = asyncio.Queue()

    async def answer(
        self, start: int, high_watermark: int, *batches: bytes, is_sealed: bool = False
    ) -> None:
        request = await self._requests.get()
        stored = memoryview(b"".join(batches))
        request.set_result(Fetched(start, high_watermark, stored, is_sealed=is_sealed))

    async def is_here(self) -> None:
        request = await self._requests.get()
        request.set_result(Fetched(0, 0, memoryview(b""), is_here=True))

    async def fail(self, error: Exception) -> None:
        (await self._requests.get()).set_exception(error)

    async def given_up(self) -> None:
        assert (await self._requests.get()).cancelled()

    async def fetch(self, wanted: Wanted) -> Fetched:
        self.asked.append(wanted)
        request: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(request)
        return await request


@asynccontextmanager
async def remote_logs() -> AsyncIterator[tuple[Leader, RemoteLogs]]:
    leader = Leader()
    async with asyncio.TaskGroup() as tasks:
        logs = RemoteLogs(leader.fetch, tasks.create_task)
        yield leader, logs
        logs.close()


def three_from(offset: int) -> bytes:
    return batch_of([Event(b"0"), Event(b"1"), Event(b"2")], base_offset=offset)


async def test_who_waits_is_woken_by_the_next_record() -> None:
    async with remote_logs() as (leader, logs):
        log = logs.log_of(TOPIC, 0)
        await leader.answer(2, 5)
        await until(lambda: len(leader.asked) == 2)
        assert (log.log_start, log.high_watermark) == (2, 5)
        waiter = asyncio.get_running_loop().create_future()
        log.add_waiter(waiter)
        await leader.answer(2, 8, three_from(5))
        await waiter
        log.remove_waiter(waiter)

        assert leader.asked[:2] == [Wanted("t", 0, None, 1), Wanted("t", 0, 5, 1, WAIT_MS)]


async def test_a_new_leader_is_asked_from_where_it_is() -> None:
    """It may not know yet what the one before had committed, and must not be asked in a circle."""

    async with remote_logs() as (leader, logs):
        log = logs.log_of(TOPIC, 0)
        await leader.answer(0, 9)
        await leader.answer(0, 6)
        await until(lambda: len(leader.asked) == 3)

        assert leader.asked[2] == Wanted("t", 0, 6, 1, WAIT_MS)
        assert log.high_watermark == 9


async def test_records_are_asked_for() -> None:
    async with remote_logs() as (leader, logs):
        log = logs.log_of(TOPIC, 0)
        await leader.answer(0, 6)
        await until(lambda: len(leader.asked) == 2)
        reading = asyncio.create_task(log.read(0, 100))
        await until(lambda: len(leader.asked) == 3)
        await leader.answer(0, 6)  # of the request that waits
        await leader.answer(0, 6, three_from(0))

        assert [each.header.end_offset for each in await reading] == [3]
        assert Wanted("t", 0, 0, 100) in leader.asked


async def test_who_waits_for_a_log_that_is_here_by_now_is_woken() -> None:
    async with remote_logs() as (leader, logs):
        log = logs.log_of(TOPIC, 0)
        waiter = asyncio.get_running_loop().create_future()
        log.add_waiter(waiter)
        await leader.is_here()
        await waiter
        await until(lambda: not logs._logs)
        reading = asyncio.create_task(log.read(0, 100))
        await leader.is_here()

        with pytest.raises(NotReadyError):
            await reading


async def test_a_stop_follows_none_any_more() -> None:
    async with remote_logs() as (_, logs):
        logs.log_of(TOPIC, 0)
        logs.close()
        await until(lambda: not logs._logs)


async def test_a_topic_that_is_back_under_another_name_is_asked_for_by_that() -> None:
    """By the old one its leaders know nothing, or another topic that has it now."""
    async with remote_logs() as (leader, logs):
        old = logs.log_of(TOPIC, 0)
        await leader.answer(0, 3)
        await until(lambda: len(leader.asked) == 2)
        renamed = replace(TOPIC, name="u")
        log = logs.log_of(renamed, 0)
        await until(lambda: len(leader.asked) == 3)

        assert leader.asked[2] == Wanted("u", 0, None, 1)
        assert logs.log_of(renamed, 0) is log is not old
        assert len(logs._tasks) == 1


@pytest.mark.parametrize("error", [NoLeaderError("gone"), OffsetOutOfRangeError("trimmed")])
async def test_a_failure_is_no_end(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_log, "RETRY_SECONDS", 0)

    async with remote_logs() as (leader, logs):
        log = logs.log_of(TOPIC, 0)
        await leader.answer(0, 3)
        await leader.fail(error)
        await leader.answer(4, 9)
        await until(lambda: log.high_watermark == 9)

        assert log.log_start == 4


async def test_a_log_that_nobody_asks_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_log, "IDLE_SECONDS", 0)

    async with remote_logs() as (_, logs):
        log = logs.log_of(TOPIC, 0)
        await until(lambda: not logs._logs)

        assert logs.log_of(TOPIC, 0) is not log


async def test_of_a_sealed_log_only_the_start_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_log, "SEALED_SECONDS", 0)

    async with remote_logs() as (leader, logs):
        log = logs.log_of(TOPIC, 0)
        await leader.answer(0, 6, is_sealed=True)
        await leader.answer(4, 6, is_sealed=True)
        await until(lambda: log.log_start == 4)

        assert leader.asked[:2] == [Wanted("t", 0, None, 1)] * 2
        assert log.high_watermark == 6


async def test_a_sealed_log_is_found_with_all_of_it() -> None:
    async with remote_logs() as (leader, logs):
        for answer in (leader.answer(2, 6, is_sealed=True), leader.answer(2, 5)):
            finding = asyncio.create_task(logs.find_sealed("__groups", 3, 6))
            await answer
            if leader.asked == [Wanted("__groups", 3, None, 1)]:
                assert (await finding).log_start == 2
            else:
                with pytest.raises(NotReadyError, match="not all of"):
                    await finding
        finding = asyncio.create_task(logs.find_sealed("__groups", 3, 6))
        await leader.is_here()
        with pytest.raises(NotReadyError, match="by now"):
            await finding


async def test_what_was_heard_of_a_log_that_has_lost_its_end_is_forgotten() -> None:
    async with remote_logs() as (leader, logs):
        log = logs.log_of(TOPIC, 0)
        await leader.answer(0, 9)
        await until(lambda: len(leader.asked) == 2)
        waiter = asyncio.get_running_loop().create_future()
        log.add_waiter(waiter)

        logs.forget({UUID(int=8)})
        assert logs.log_of(TOPIC, 0) is log
        logs.forget({TOPIC.topic_id})
        await waiter
        shorter = logs.log_of(TOPIC, 0)
        await until(lambda: len(leader.asked) == 3)
        await leader.given_up()
        await leader.answer(0, 6)
        await until(lambda: shorter.is_heard)

        assert shorter is not log
        assert shorter.high_watermark == 6
