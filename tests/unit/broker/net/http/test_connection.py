"""A listener's connections in the test's own process: what cannot be timed from outside."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.wire import BATCH_CONTENT_TYPE
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.net.api.routes import ROUTES
from tailrace_broker.net.http.connection import Connections, HttpConnection
from tailrace_broker.net.http.router import matcher
from tests.support.broker.brokers import open_broker, started_broker
from tests.support.http.http11 import get, records, request
from tests.support.storage.storage import MEBIBYTE, Appends, FaultyDisk
from tests.support.waits import until

pytestmark = pytest.mark.uvloop


async def test_a_connection_that_comes_when_the_broker_ends_is_closed(tmp_path: Path) -> None:
    """The kernel has accepted it before the listener was closed."""
    loop = asyncio.get_running_loop()
    connections = Connections(10, 10, 10, 10, count_max=10)
    async with open_broker(tmp_path) as broker:
        ours, theirs = socket.socketpair()
        await connections.end()
        await loop.connect_accepted_socket(
            lambda: HttpConnection(broker, matcher(ROUTES), connections, loop.create_task), ours
        )
        with theirs:
            theirs.setblocking(False)
            assert await loop.sock_recv(theirs, 1) == b""
        assert not connections.open


async def test_a_deletion_goes_to_its_end_when_the_peer_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committed change is applied, whoever waits for it."""
    disk = FaultyDisk(monkeypatch, spares_metadata=True)

    loop = asyncio.get_running_loop()
    connections = Connections(10, 10, 10, 10, count_max=10)
    serving: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        serving.append(loop.create_task(work))
        return serving[-1]

    async with started_broker(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        log = broker.hosted("t").log_of(0)
        disk.hold_writes()
        Appends(log).event(b"0")
        await disk.wait_for_held_write()
        ours, theirs = socket.socketpair()
        await loop.connect_accepted_socket(
            lambda: HttpConnection(broker, matcher(ROUTES), connections, spawn), ours
        )
        with theirs:
            theirs.sendall(request("/v1/topics/t", method="DELETE"))
            await log.wait_beyond(0)  # it takes no more appends, but still writes
            (connection,) = connections.open
            connection.abort()
            await connections.end()
        disk.let_writes_go_on()
        await asyncio.gather(*serving)
        assert (tmp_path / "data" / "trash" / str(topic.topic_id)).is_dir()


class Peer:
    """Asks for all batches of a topic, and takes of the answer what it is asked to."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._socket, self._ours = socket.socketpair()
        self._socket.setblocking(False)
        self._received = b""
        self._has_head = False

    async def ask(self, connections: Connections, *, accept: str) -> None:
        """Send the request, and let the broker answer it as far as the peer's buffer goes."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(
            lambda: HttpConnection(self._broker, matcher(ROUTES), connections, loop.create_task),
            self._ours,
        )
        self._socket.send(get(records("t", maxBytes=2 * MEBIBYTE), accept=accept))
        await until(lambda: transport.get_write_buffer_size() > 0)

    async def take(self, size_bytes: int) -> bytes:
        """So much more of the answer's body."""
        loop = asyncio.get_running_loop()
        while not self._has_head:
            self._received += await loop.sock_recv(self._socket, 1024)
            _, end, body = self._received.partition(b"\r\n\r\n")
            if end:
                self._has_head, self._received = True, body
        while len(self._received) < size_bytes:
            self._received += await loop.sock_recv(self._socket, size_bytes - len(self._received))
        taken, self._received = self._received[:size_bytes], self._received[size_bytes:]
        return taken

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def broker_with_a_mebibyte(
    root: Path, **settings: float
) -> AsyncIterator[tuple[LocalBroker, bytes]]:
    """Of incompressible events in four batches of topic `t`, and these as readers get them."""
    async with started_broker(root, **settings) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        log = broker.hosted("t").log_of(0)
        for _ in range(4):
            await Appends(log).batch([os.urandom(MEBIBYTE // 4)])
        yield broker, b"".join([each.contents() for each in await log.read(0, 2 * MEBIBYTE)])


async def until_returned(broker: LocalBroker) -> None:
    """Until no answer holds memory any more."""
    await until(lambda: broker.read_memory.used_bytes == 0)


@pytest.mark.parametrize("cache_bytes", [0, 8 * MEBIBYTE], ids=["from disk", "from memory"])
async def test_what_a_stalled_peer_has_not_taken_is_kept_and_not_used_for_another(
    tmp_path: Path, cache_bytes: int
) -> None:
    connections = Connections(10, 10, 10, 10, count_max=10)
    async with broker_with_a_mebibyte(tmp_path, cache_bytes=cache_bytes) as (broker, expected):
        stalled, other = Peer(broker), Peer(broker)
        await stalled.ask(connections, accept=BATCH_CONTENT_TYPE)
        held_bytes = broker.read_memory.used_bytes
        assert len(expected) <= held_bytes < 4 * len(expected)

        await other.ask(connections, accept=BATCH_CONTENT_TYPE)
        assert await other.take(len(expected)) == expected
        await until(lambda: broker.read_memory.used_bytes == held_bytes)
        assert await stalled.take(len(expected) - 10) == expected[:-10]
        assert await stalled.take(10) == expected[-10:]
        await until_returned(broker)
        stalled.close()
        other.close()
        await connections.end()


@pytest.mark.parametrize("accept", [BATCH_CONTENT_TYPE, "application/json"])
async def test_a_peer_that_goes_away_leaves_no_memory_behind(tmp_path: Path, accept: str) -> None:
    connections = Connections(10, 10, 10, 10, count_max=10)
    async with broker_with_a_mebibyte(tmp_path) as (broker, _):
        peer = Peer(broker)
        await peer.ask(connections, accept=accept)
        assert broker.read_memory.used_bytes >= MEBIBYTE
        peer.close()
        await until_returned(broker)
        await connections.end()


@pytest.mark.parametrize("taken_bytes", [0, MEBIBYTE // 2], ids=["nothing", "too little"])
async def test_a_peer_that_takes_too_little_of_its_answer_in_time_is_cut_off(
    tmp_path: Path, taken_bytes: int
) -> None:
    connections = Connections(10, 10, 10, 0.05, count_max=10)
    async with broker_with_a_mebibyte(tmp_path) as (broker, _):
        peer = Peer(broker)
        await peer.ask(connections, accept=BATCH_CONTENT_TYPE)
        await peer.take(taken_bytes)
        await until_returned(broker)
        assert broker.counters.slow_readers_dropped == 1
        assert not connections.open
        peer.close()
