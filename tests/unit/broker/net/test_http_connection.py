"""A door's connections in the test's own process: what cannot be timed from outside."""

import asyncio
import socket
from pathlib import Path

import uvloop

from tailrace_broker.net.doors import ROUTES
from tailrace_broker.net.http_connection import Connections, HttpConnection
from tailrace_broker.net.routes import matcher
from tests.brokers import open_broker


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
