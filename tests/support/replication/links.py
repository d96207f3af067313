"""Brokers' replication links in the test's own process, with what arrived on them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.model.replication import Batches, LogKey, Run, ToFollower, ToLeader
from tailrace_broker.net.replication.link import Link
from tailrace_broker.net.replication.links import ReplicationLinks
from tests.support.http.peers import CLUSTER, HOST, SECRET

KEY = LogKey(UUID(int=7), 3)


class FromLeader(NamedTuple):
    """A message, its batches, and the link on which they count as under way."""

    ordinal: int
    message: ToFollower
    payload: bytes
    link: Link


class LinkedBroker:
    """One broker. What it hears, and which links change, come in order."""

    def __init__(
        self,
        ordinal: int,
        addresses: dict[int, tuple[str, int]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        secret: bytes,
    ) -> None:
        self.ordinal = ordinal
        self.from_leaders: asyncio.Queue[FromLeader] = asyncio.Queue()
        self.from_followers: asyncio.Queue[tuple[int, ToLeader]] = asyncio.Queue()
        self.changed: asyncio.Queue[int] = asyncio.Queue()
        self.links = ReplicationLinks(
            ordinal,
            address_of=addresses.__getitem__,
            secret=secret,
            cluster_id=lambda: CLUSTER,
            user=self,
            spawn=spawn,
        )

    def on_leader(self, link: Link, ordinal: int, frame: LinkFrame) -> None:
        message: Any = frame.message
        self.from_leaders.put_nowait(FromLeader(ordinal, message, bytes(frame.payload), link))

    def on_follower(self, ordinal: int, message: ToLeader) -> None:
        self.from_followers.put_nowait((ordinal, message))

    def on_link_changed(self, ordinal: int) -> None:
        self.changed.put_nowait(ordinal)


class LinkedBrokers:
    """The brokers of a test, and where each accepts followers."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.addresses: dict[int, tuple[str, int]] = {}
        self.brokers: list[LinkedBroker] = []
        self._tasks = tasks

    async def join(self, ordinal: int, *, port: int = 0, secret: bytes = SECRET) -> LinkedBroker:
        """A new broker that accepts followers."""
        broker = LinkedBroker(ordinal, self.addresses, self._tasks.create_task, secret)
        self.brokers.append(broker)
        self.addresses[ordinal] = (HOST, await broker.links.listen(HOST, port))
        return broker

    async def linked_pair(self) -> tuple[LinkedBroker, LinkedBroker]:
        """Broker 1, a leader, and broker 2, which follows it."""
        leader, follower = await self.join(1), await self.join(2)
        follower.links.follow([1])
        assert await follower.changed.get() == 1
        return leader, follower


def batches_at(first: int) -> Batches:
    """A batch of one record."""
    return Batches(1, 5, 2, KEY, 5, (Run(5, first, first + 1),), first, 0)


@asynccontextmanager
async def linked_brokers() -> AsyncIterator[LinkedBrokers]:
    """Brokers that follow each other; all is closed in the end."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        brokers = LinkedBrokers(tasks)
        try:
            yield brokers
        finally:
            for broker in brokers.brokers:
                await broker.links.close()
