"""When the trash is purged: by a clock that the test hands in."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.trash import Trash
from tailrace_broker.topics.trash_purger import TrashPurger
from tests.support.broker.brokers import wait_until_gone
from tests.support.storage.topics import new_topic

RETENTION_US = 3_600_000_000
FIRST, SECOND = (
    new_topic(name, TopicSettings(), UUID(int=n)) for n, name in enumerate("ab", start=1)
)


class Clock:
    """Tells these times one after the other, then the last again and again."""

    def __init__(self, *times_us: int) -> None:
        self.times_us = list(times_us)

    def __call__(self) -> int:
        return self.times_us.pop(0) if len(self.times_us) > 1 else self.times_us[0]


def delete(data: Path, topic: Topic, deleted_us: int) -> Path:
    """Where the topic lies in the trash."""
    trash = Trash(data, lambda _: None)
    trash.mark(topic, deleted_us)
    trash.bury(topic.topic_id)
    return data / "trash" / str(topic.topic_id)


@asynccontextmanager
async def purger_of(data: Path, now_us: Callable[[], int]) -> AsyncIterator[TrashPurger]:
    """A purger that has nothing to do yet; its task has ended when the block ends."""
    bugs: list[BaseException] = []
    io = IoThreads(1, bugs.append)
    io.start()
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.create_task(work)

        yield TrashPurger(Trash(data, lambda _: None), io, spawn, now_us, retention_us=RETENTION_US)
    io.stop()
    assert bugs == []


async def test_a_topic_is_purged_when_its_time_has_come(tmp_path: Path) -> None:
    buried = delete(tmp_path, FIRST, deleted_us=5)
    clock = Clock(4 + RETENTION_US, 5 + RETENTION_US)
    async with purger_of(tmp_path, clock) as purger:
        purger.look()
    assert clock.times_us == [5 + RETENTION_US], "it has slept once, for a microsecond"
    assert not buried.exists()


async def test_what_comes_while_it_sleeps_is_looked_at_and_a_stop_ends_it(tmp_path: Path) -> None:
    kept = delete(tmp_path, FIRST, deleted_us=RETENTION_US)
    async with purger_of(tmp_path, Clock(RETENTION_US)) as purger:
        purger.look()
        purged = delete(tmp_path, SECOND, deleted_us=0)
        purger.look()
        await wait_until_gone(purged)
        purger.stop()
    assert kept.is_dir()


async def test_a_trash_that_cannot_be_listed_does_not_end_the_broker(tmp_path: Path) -> None:
    (tmp_path / "trash").write_bytes(b"")
    async with purger_of(tmp_path, Clock(0)) as purger:
        purger.look()
    assert (tmp_path / "trash").is_file()
