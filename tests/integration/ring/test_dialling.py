"""Brokers dial each other: what happens when a connection is made and its time is over at once."""

import asyncio
import socket
import time
from typing import cast

import pytest
import uvloop

from tailrace_broker.net.peers.sockets import open_connection

pytestmark = pytest.mark.integration

SECONDS_MAX = 0.2


class Dialled(asyncio.Protocol):
    """Takes longer than the whole dial may; its time is over when the loop goes on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        time.sleep(2 * SECONDS_MAX)


def test_a_connection_that_is_made_as_its_time_ends_can_be_written_to() -> None:
    async def scenario() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await reader.readexactly(1) == b"x"
            writer.close()
            heard.set()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        port, dialled = server.sockets[0].getsockname()[1], Dialled()
        async with server:
            await open_connection(loop, "127.0.0.1", port, lambda: dialled, SECONDS_MAX)
            dialled.transport.write(b"x")
            await heard.wait()
            sock: socket.socket = dialled.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            dialled.transport.abort()

    uvloop.run(scenario())


def test_an_address_that_refuses_is_reported() -> None:
    async def scenario() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            with pytest.raises(ConnectionRefusedError):
                await open_connection(
                    asyncio.get_running_loop(), "127.0.0.1", port, Dialled, SECONDS_MAX
                )

    uvloop.run(scenario())
