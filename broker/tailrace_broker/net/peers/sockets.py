"""Sockets between brokers: listens, dials, and ends what is open."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from tailrace_broker.model.errors import InvalidSettingError, PortInUseError
from tailrace_broker.net.peers.context import PeerContext

BACKLOG = 256
# At the stop: long enough that what was sent last leaves.
CLOSE_SECONDS_MAX = 1.0


async def listen_for_brokers(
    loop: asyncio.AbstractEventLoop,
    accepted: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
) -> asyncio.Server:
    """Listen at this address; with port 0 at any free one. PortInUseError, InvalidSettingError."""
    try:
        return await loop.create_server(accepted, host, port, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host}, for other brokers, is in use; stop what listens "
                "there, or choose another base port (TAILRACE_PORT)"
            ) from error
        raise InvalidSettingError(
            f"TAILRACE_HOST: cannot listen on {host}, port {port}: {error.strerror}"
        ) from error


def port_of(server: asyncio.Server) -> int:
    """Return the port that it listens at."""
    return int(server.sockets[0].getsockname()[1])


async def close_all(context: PeerContext) -> None:
    """End all open connections."""
    for transport in list(context.open):
        transport.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await context.all_closed()
    for transport in context.open:
        transport.abort()
    await asyncio.sleep(0)  # they close in the loop's next turn


async def open_connection(
    loop: asyncio.AbstractEventLoop,
    host: str,
    port: int,
    opened: Callable[[], asyncio.BaseProtocol],
    seconds_max: float,
) -> None:
    """Connect to the first of the name's addresses that accepts, within this time. OSError.

    The time is that of the socket alone. A `create_connection` that is cancelled behind its
    `connection_made` leaves a protocol on a closed transport: uvloop does not call
    `connection_lost`, `is_closing` is false, and the next write raises.
    """
    async with asyncio.timeout(seconds_max):
        connected = await _connected(loop, host, port)
    await loop.create_connection(opened, sock=connected)


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    *others, last = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in others:
        with suppress(OSError):
            return await _connected_to(loop, family, address)
    return await _connected_to(loop, last[0], last[4])


async def _connected_to(
    loop: asyncio.AbstractEventLoop, family: int, address: tuple[Any, ...]
) -> socket.socket:
    with ExitStack() as undone:
        dialled = undone.enter_context(socket.socket(family, socket.SOCK_STREAM))
        dialled.setblocking(False)
        await loop.sock_connect(dialled, address)
        undone.pop_all()
    return dialled


def is_refused(error: OSError) -> bool:
    """Whether the host refused. With several addresses the loop joins their errors into one."""
    return isinstance(error, ConnectionError) or f"[Errno {errno.ECONNREFUSED}]" in str(error)
