"""From one other broker: a connection that it dialled, to send messages."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import structlog

from tailrace_broker.codec.peer import FrameReader
from tailrace_broker.model.errors import CorruptFrameError, HandshakeError
from tailrace_broker.model.messages import Message
from tailrace_broker.net.peers.context import HANDSHAKE_SECONDS, PeerContext
from tailrace_broker.net.peers.handshake import Side

# Connections whose handshake has not ended.
STRANGERS_MAX = 64

_log = structlog.get_logger()


@dataclass(slots=True)
class IncomingPeers:
    """All of them. Of a broker that dials again, only the last connection counts."""

    context: PeerContext
    on_message: Callable[[Message], None]
    on_heard: Callable[[int], None]  # a broker has connected
    on_ended: Callable[[int], None]  # by the broker, or it is gone
    by_ordinal: "dict[int, IncomingConnection]" = field(default_factory=dict)
    stranger_count: int = 0

    def established(self, ordinal: int, connection: "IncomingConnection") -> None:
        """The handshake has ended well."""
        previous = self.by_ordinal.get(ordinal)
        self.by_ordinal[ordinal] = connection
        if previous is not None:
            previous.abort()
        self.on_heard(ordinal)

    def lost(self, ordinal: int, connection: "IncomingConnection", *, is_by_peer: bool) -> None:
        """Handle the end of the connection."""
        if self.by_ordinal.get(ordinal) is not connection:
            return
        del self.by_ordinal[ordinal]
        if is_by_peer and not self.context.is_closed:
            self.context.counters.lost += 1
            self.on_ended(ordinal)


class IncomingConnection(asyncio.Protocol):
    """One that was accepted: the handshake, then frames."""

    def __init__(self, peers: IncomingPeers) -> None:
        self._peers = peers
        self._context = peers.context
        self._handshake = peers.context.handshake(Side.ACCEPTOR)
        self._reader = FrameReader()
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""
        self._ordinal: int | None = None  # who it is, when that is sure
        self._is_aborted = False

    def abort(self) -> None:
        """Close it, and take nothing more."""
        self._is_aborted = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a new connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._context.opened(self._transport)
        self._address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        self._peers.stranger_count += 1
        self._deadline = self._context.loop.call_later(HANDSHAKE_SECONDS, self._on_deadline)
        if self._peers.stranger_count > STRANGERS_MAX:
            self._refuse(
                "crowded", f"{STRANGERS_MAX} others have not shown yet that they belong to the ring"
            )

    def data_received(self, data: bytes) -> None:
        """A part of the handshake, or frames."""
        if self._is_aborted:
            return
        self._context.counters.bytes_received += len(data)
        if self._ordinal is not None:
            self._take_frames(self._ordinal, data)
            return
        try:
            answer = self._handshake.feed(data)
        except HandshakeError as error:
            self._refuse(error.reason, error.detail)
            return
        if answer:
            self._transport.write(answer)
        if self._handshake.peer is not None:
            self._establish(self._handshake.peer.ordinal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection, by whatever side."""
        self._context.closed(self._transport)
        if self._ordinal is not None:
            self._peers.lost(self._ordinal, self, is_by_peer=not self._is_aborted)
            return
        self._stop_deadline()
        # Who connects and says nothing (a probe) is not worth a line.
        if self._handshake.is_greeted and not (self._is_aborted or self._context.is_closed):
            self._refuse("closed", "it ended the handshake; its log says why")

    def _establish(self, ordinal: int) -> None:
        self._stop_deadline()
        self._ordinal = ordinal
        self._context.counters.connected += 1
        if self._context.may_log(ordinal, "incoming"):
            _log.info("peer.connected", peer=ordinal, direction="incoming", address=self._address)
        self._peers.established(ordinal, self)
        self._take_frames(ordinal, self._handshake.rest())

    def _take_frames(self, ordinal: int, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                _check_sender(message, ordinal)
                self._context.counters.frames_received += 1
                self._peers.on_message(message)
                if self._is_aborted or self._context.is_closed:
                    return
        except CorruptFrameError as error:
            self._context.counters.bad_frames += 1
            if self._context.may_log(ordinal, "frame"):
                _log.warning(
                    "frame.refused", peer=ordinal, address=self._address, detail=error.detail
                )
            self.abort()

    def _on_deadline(self) -> None:
        self._refuse("timeout", f"the handshake did not end in {HANDSHAKE_SECONDS} s")

    def _refuse(self, reason: str, detail: str) -> None:
        self._context.counters.handshakes_refused += 1
        if self._context.may_log(self._address, reason):
            _log.warning(
                "peer.refused",
                address=self._address,
                direction="incoming",
                reason=reason,
                detail=detail,
            )
        self.abort()

    def _stop_deadline(self) -> None:
        """It is no stranger any more."""
        assert self._deadline is not None
        self._deadline.cancel()
        self._peers.stranger_count -= 1


def _check_sender(message: Message, ordinal: int) -> None:
    if message.sender.ordinal != ordinal:
        raise CorruptFrameError(
            f"a message of broker {message.sender.ordinal} on the connection of broker {ordinal}"
        )
