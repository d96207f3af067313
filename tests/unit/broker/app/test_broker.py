import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.app.broker import HostedTopic, LocalBroker
from tailrace_broker.app.settings import Settings
from tailrace_broker.model.errors import (
    DiskFullError,
    NotReadyError,
    ProduceMemoryFullError,
    TailraceError,
    TopicExistsError,
)
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.io_threads import IoThreads
from tests.storage import MEBIBYTE, FaultyDisk

Work = Coroutine[Any, Any, None]


class Uses:
    """Callers of `with_topic`, and what each got, in the order in which they got it."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

    def __call__(self, name: str) -> Callable[[HostedTopic | None, TailraceError | None], None]:
        def use(hosted: HostedTopic | None, error: TailraceError | None) -> None:
            self.got.append((name, hosted.topic.name if hosted else type(error).__name__))

        return use


@asynccontextmanager
async def open_broker(root: Path, spawned: list[Work]) -> AsyncIterator[LocalBroker]:
    """A broker that is not started; what it spawns is the test's to run."""
    directory = DataDirectory(root)
    io = IoThreads(1, on_bug=lambda bug: None)
    io.start()
    try:
        yield LocalBroker(Settings(data_dir=root), directory, io, spawned.append)
    finally:
        io.stop()
        directory.close()


async def run_all(spawned: list[Work]) -> None:
    while spawned:
        await spawned.pop(0)


def test_no_topic_is_created_before_all_are_known(tmp_path: Path) -> None:
    """The file of topics is written as a whole: those not read yet would be gone."""

    async def scenario() -> None:
        async with open_broker(tmp_path, []) as broker:
            with pytest.raises(NotReadyError):
                await broker.create_topic("new", TopicSettings())
            await broker.start()
            await broker.create_topic("old", TopicSettings())
            await broker.stop()
        async with open_broker(tmp_path, []) as broker:
            with pytest.raises(NotReadyError):
                await broker.create_topic("new", TopicSettings())
            await broker.start()
            assert [hosted.topic.name for hosted in broker.topics()] == ["old"]
            await broker.stop()

    asyncio.run(scenario())


def test_calls_for_a_topic_that_is_being_created_wait_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        spawned: list[Work] = []
        uses = Uses()
        async with open_broker(tmp_path, spawned) as broker:
            await broker.start()
            broker.with_topic("t", uses("first"))
            broker.with_topic("t", uses("second"))
            broker.with_topic("other", uses("third"))
            assert (uses.got, len(spawned)) == ([], 2)

            await run_all(spawned)
            broker.with_topic("t", uses("fourth"))
            assert uses.got == [
                ("first", "t"),
                ("second", "t"),
                ("third", "other"),
                ("fourth", "t"),
            ]
            await broker.stop()

    asyncio.run(scenario())


def test_a_topic_that_cannot_be_saved_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        spawned: list[Work] = []
        uses = Uses()
        async with open_broker(tmp_path, spawned) as broker:
            await broker.start()
            disk = FaultyDisk(monkeypatch)
            disk.fail("replace", errno.ENOSPC)
            broker.with_topic("t", uses("first"))
            broker.with_topic("t", uses("second"))
            await run_all(spawned)
            assert uses.got == [("first", "DiskFullError"), ("second", "DiskFullError")]
            assert broker.topic_count == 0
            disk.fail("fsync", errno.ENOSPC)
            with pytest.raises(DiskFullError):
                await broker.create_topic("t", TopicSettings())

            broker.with_topic("t", uses("third"))
            await run_all(spawned)
            assert uses.got[2:] == [("third", "t")]
            await broker.stop()

    asyncio.run(scenario())


def test_a_first_produce_takes_a_topic_that_was_created_meanwhile_with_other_settings(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        spawned: list[Work] = []
        uses = Uses()
        async with open_broker(tmp_path, spawned) as broker:
            await broker.start()
            broker.with_topic("t", uses("first"))
            await broker.create_topic("t", TopicSettings(partitions_per_range=2))
            await run_all(spawned)
            assert uses.got == [("first", "t")]
            with pytest.raises(TopicExistsError):
                await broker.create_topic("t", TopicSettings())
            await broker.stop()

    asyncio.run(scenario())


def test_a_topic_that_is_being_created_at_a_stop_takes_nothing(tmp_path: Path) -> None:
    """Nobody would wait for its appends."""

    async def scenario() -> None:
        spawned: list[Work] = []
        uses = Uses()
        async with open_broker(tmp_path, spawned) as broker:
            await broker.start()
            broker.with_topic("t", uses("first"))
            await broker.stop()
            broker.with_topic("t", uses("second"))
            await run_all(spawned)
            assert uses.got == [("second", "NotReadyError"), ("first", "NotReadyError")]

    asyncio.run(scenario())


def test_produce_memory_is_given_until_it_is_used_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_broker(tmp_path, []) as broker:
            broker.take_produce_memory(64 * MEBIBYTE)
            with pytest.raises(ProduceMemoryFullError, match="67108864 of 67108864 bytes"):
                broker.take_produce_memory(1)
            broker.return_produce_memory(64 * MEBIBYTE)
            broker.take_produce_memory(1)
            assert broker.produce_memory_used_bytes == 1

    asyncio.run(scenario())
