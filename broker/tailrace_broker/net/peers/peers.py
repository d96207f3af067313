"""The other brokers, as this one reaches them: messages to them and from them, over TCP.

For each direction between two brokers there is a connection of its own, dialled by who sends. What
cannot be sent is lost, as the machines expect it. A killed process is noticed at once: its kernel
resets what is open and refuses what is dialled; a host that has vanished is not: its silence shows
it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from tailrace_broker.codec.peer import encode_frame
from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.messages import Message
from tailrace_broker.net.peers.context import PeerContext, PeerCounters
from tailrace_broker.net.peers.incoming import IncomingConnection, IncomingPeers
from tailrace_broker.net.peers.outgoing import OutgoingPeer
from tailrace_broker.net.peers.sockets import close_all, listen_for_brokers, port_of

_log = structlog.get_logger()


class Peers:
    """The transport. To be made, and used, on the event loop."""

    def __init__(
        self,
        ordinal: int,
        *,
        address_of: Callable[[int], tuple[str, int]],
        secret: bytes,
        cluster_id: Callable[[], UUID | None],
        on_message: Callable[[Message], None],
        on_unreachable: Callable[[int], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`address_of`: host and port where another broker listens to its peers.

        `on_unreachable`: of a broker that has refused a connection, or that has ended one and does
        not take another. `spawn` runs a dial.
        """
        self._context = PeerContext(ordinal, secret, cluster_id, asyncio.get_running_loop())
        self._incoming = IncomingPeers(
            self._context, on_message, on_heard=self._heard, on_ended=self._ended
        )
        self._outgoing: dict[int, OutgoingPeer] = {}
        self._new_outgoing = partial(
            OutgoingPeer,
            self._context,
            address_of=address_of,
            on_unreachable=on_unreachable,
            spawn=spawn,
        )
        self._to_flush: dict[int, OutgoingPeer] = {}
        self._server: asyncio.Server | None = None
        # What goes to several brokers is encoded once.
        self._encoded: tuple[Message, bytes] | None = None

    @property
    def counters(self) -> PeerCounters:
        """Return counters for metrics."""
        return self._context.counters

    async def listen(self, host: str, port: int) -> int:
        """Take connections of other brokers; the port (with 0 any free one).

        PortInUseError, InvalidSettingError.
        """
        self._server = await listen_for_brokers(
            self._context.loop, partial(IncomingConnection, self._incoming), host, port
        )
        return port_of(self._server)

    def send(self, ordinal: int, message: Message) -> None:
        """Send at the end of this turn of the loop, or never. One message may go to several."""
        context = self._context
        if context.is_closed or ordinal == context.ordinal:
            context.counters.dropped += 1
            return
        peer = self._to(ordinal)
        frame = self._frame(message) if peer.takes_frames else None
        if frame is None:
            context.counters.dropped += 1
            return
        peer.push(frame)
        if not self._to_flush:
            context.loop.call_soon(self._flush)
        self._to_flush[ordinal] = peer

    async def close(self) -> None:
        """Send what waits, end all connections, take no more."""
        context = self._context
        if self._server is not None:
            self._server.close()
        self._flush()
        context.is_closed = True
        for peer in self._outgoing.values():
            await peer.stop_dialling()
        await close_all(context)

    def _flush(self) -> None:
        peers = list(self._to_flush.values())
        self._to_flush.clear()
        for peer in peers:
            peer.flush()

    def _frame(self, message: Message) -> bytes | None:
        if self._encoded is not None and self._encoded[0] is message:
            return self._encoded[1]
        try:
            frame = encode_frame(message)
        except CorruptFrameError as error:
            if self._context.may_log(None, "too-large"):
                _log.error("message.dropped", detail=error.detail)
            return None
        self._encoded = message, frame
        return frame

    def _to(self, ordinal: int) -> OutgoingPeer:
        peer = self._outgoing.get(ordinal)
        if peer is None:
            peer = self._outgoing[ordinal] = self._new_outgoing(ordinal)
        return peer

    def _ended(self, ordinal: int) -> None:
        self._to(ordinal).redial()

    def _heard(self, ordinal: int) -> None:
        peer = self._outgoing.get(ordinal)
        if peer is not None:
            peer.retry()
