"""A door's connections in the test's own process: what cannot be timed from outside."""

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.net.doors import ROUTES
from tailrace_broker.net.http_connection import Connections, HttpConnection
from tailrace_broker.net.routes import matcher
from tests.brokers import open_broker, started_broker
from tests.http11 import request
from tests.storage import Appends, FaultyDisk


def test_a_connection_that_comes_when_the_broker_ends_is_closed(tmp_path: Path) -> None:
    """The kernel has accepted it before the door was closed."""

    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        connections = Connections(10, 10, 10, count_max=10)
        async with open_broker(tmp_path) as broker:
            ours, theirs = socket.socketpair()
            await connections.end()
            await loop.connect_accepted_socket(
                lambda: HttpConnection(broker, matcher(ROUTES), connections, loop.create_task), ours
            )
            with theirs:
                theirs.setblocking(False)
                received = await loop.sock_recv(theirs, 1)
            assert not connections.open
            return received

    assert uvloop.run(scenario()) == b""


def test_a_deletion_goes_to_its_end_when_the_peer_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the file of topics could say otherwise than what is served."""
    disk = FaultyDisk(monkeypatch)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        connections = Connections(10, 10, 10, count_max=10)
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

    asyncio.run(scenario())
