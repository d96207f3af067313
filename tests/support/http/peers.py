"""Brokers' transports in the test's own process, with what they were reported."""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.messages import Message, ReadAsked
from tailrace_broker.net.peers.handshake import (
    GREETING,
    NONCE_BYTES,
    PROOF_BYTES,
    Handshake,
    PeerIdentity,
    Side,
)
from tailrace_broker.net.peers.peers import Peers
from tests.support.waits import until

HOST = "127.0.0.1"
SECRET = b"of the ring"
CLUSTER = UUID(int=7)

Log = MutableMapping[str, Any]


class Mesh:
    """The brokers of a test, and where each is said to listen."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.addresses: dict[int, tuple[str, int]] = {}
        self.nodes: list[Node] = []
        self._tasks = tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        return self._tasks.create_task(work)

    async def join(
        self, ordinal: int, *, secret: bytes = SECRET, cluster: UUID | None = CLUSTER, port: int = 0
    ) -> "Node":
        """A new broker that listens."""
        node = Node(self, ordinal, secret, cluster)
        self.nodes.append(node)
        self.addresses[ordinal] = (HOST, await node.peers.listen(HOST, port))
        return node


class Node:
    """One broker. What it hears, and who is asked to be unreachable, come in order."""

    def __init__(self, mesh: Mesh, ordinal: int, secret: bytes, cluster: UUID | None) -> None:
        self.ordinal = ordinal
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.unreachable: asyncio.Queue[int] = asyncio.Queue()
        self.peers = Peers(
            ordinal,
            address_of=mesh.addresses.__getitem__,
            secret=secret,
            cluster_id=lambda: cluster,
            on_message=self.messages.put_nowait,
            on_unreachable=self.unreachable.put_nowait,
            spawn=mesh.spawn,
        )

    def message(self, number: int) -> ReadAsked:
        """One of its own."""
        return message_of(self.ordinal, number)

    async def reach(self, other: "Node", number: int = 0) -> None:
        """Send until the other one has heard this message: it may be backing off."""
        counters = self.peers.counters
        while other.messages.empty():
            dropped = counters.dropped
            self.peers.send(other.ordinal, self.message(number))
            while other.messages.empty() and counters.dropped == dropped:
                await turn()
        assert await other.messages.get() == self.message(number)

    async def dropped_more_than(self, count: int) -> None:
        """Until so many of its messages were lost."""
        await until(lambda: self.peers.counters.dropped > count)


async def turn() -> None:
    """Let all that is ready in the loop run."""
    await asyncio.sleep(0)


def message_of(ordinal: int, number: int) -> ReadAsked:
    """A small message of a broker."""
    return ReadAsked(DiskId(ordinal, UUID(int=ordinal + 1)), number)


def lines_of(logs: list[Log], event: str) -> list[Log]:
    """Those of this event."""
    return [line for line in logs if line["event"] == event]


def free_port() -> int:
    """Nobody listens there."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return int(taken.getsockname()[1])


async def dial(
    node: Node, mesh: Mesh, ordinal: int = 1
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As a broker would, up to the end of the handshake."""
    reader, writer = await asyncio.open_connection(*mesh.addresses[node.ordinal])
    handshake = Handshake(
        Side.DIALLER,
        PeerIdentity(ordinal, CLUSTER),
        secret=SECRET,
        nonce=bytes(NONCE_BYTES),
        wanted=node.ordinal,
    )
    writer.write(handshake.first_words())
    writer.write(handshake.feed(await reader.readexactly(GREETING.size + PROOF_BYTES)))
    return reader, writer


async def assert_closed(reader: asyncio.StreamReader) -> None:
    """By the other side, whichever way."""
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


@asynccontextmanager
async def open_mesh() -> AsyncIterator[Mesh]:
    """Brokers that know each other; all is closed in the end."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        mesh = Mesh(tasks)
        try:
            yield mesh
        finally:
            for node in mesh.nodes:
                await node.peers.close()
