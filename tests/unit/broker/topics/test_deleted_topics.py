"""What lies on a broker of topics that the ring deletes, and forgets."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.commands import DeleteTopic, PurgeTopics
from tailrace_broker.model.errors import NotReadyError
from tailrace_broker.model.topic import Topic
from tailrace_broker.topics.deleted_topics import DeletedTopics
from tailrace_broker.topics.hosted_topic import HostedTopic
from tests.support.ring.states import done, led, with_topic


class Disk:
    """Notes what is done to it; a mark takes until `answers` is set."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.answers = asyncio.Event()

    def mark(self, *_: object) -> None:
        self.done.append("mark")

    def bury(self, *_: object) -> None:
        self.done.append("bury")

    def discard(self, *_: object) -> None:
        self.done.append("discard")

    @asynccontextmanager
    async def no_copies_of(self, _: Topic) -> AsyncIterator[None]:
        self.done.append("end copies")
        yield
        self.done.append("copy again")

    async def run(self, work: partial[None]) -> None:
        if work.func == self.mark:
            await self.answers.wait()
        work()


def members(**given: object) -> Any:
    return SimpleNamespace(**given)


def test_a_topic_that_is_forgotten_while_it_is_marked_leaves_no_mark() -> None:
    """A mark that came behind would bring its directory back."""

    async def scenario() -> None:
        state = with_topic(led())
        found = state.topics["orders"]
        topic = topic_of(state, found)
        disk: Any = Disk()
        directory = members(trash=disk, identity=members(ordinal=0))
        roles: Any = None
        nothing = [NotReadyError("no log is here")] * len(topic.partitions)
        async with asyncio.TaskGroup() as tasks:

            def spawn(work: Coroutine[Any, Any, None]) -> None:
                tasks.create_task(work)

            subject = DeletedTopics(directory, disk, spawn, lambda: 0, disk.no_copies_of)
            state = done(state, DeleteTopic("orders", 5))
            subject.delete(HostedTopic(topic, nothing, roles, ordinal=0), state)
            state = done(state, PurgeTopics({found.id: 5}))
            assert list(subject.take_forgotten(state)) == [found.id]
            for _ in range(5):
                await asyncio.sleep(0)
            disk.answers.set()
        assert disk.done == ["mark", "end copies", "discard", "copy again"]

    asyncio.run(scenario())


def test_no_log_is_copied_while_its_directory_moves_to_the_trash() -> None:
    async def scenario() -> None:
        state = with_topic(led(1))
        topic = topic_of(state, state.topics["orders"])
        disk: Any = Disk()
        disk.answers.set()
        directory = members(trash=disk, identity=members(ordinal=0))
        roles: Any = None
        nothing = [NotReadyError("no log is here")] * len(topic.partitions)
        async with asyncio.TaskGroup() as tasks:
            subject = DeletedTopics(
                directory, disk, tasks.create_task, lambda: 0, disk.no_copies_of
            )
            state = done(state, DeleteTopic("orders", 5))
            subject.delete(HostedTopic(topic, nothing, roles, ordinal=0), state)
        assert disk.done == ["mark", "end copies", "bury", "copy again"]

    asyncio.run(scenario())
