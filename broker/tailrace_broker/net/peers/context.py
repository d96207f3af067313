"""What all connections of a broker with other brokers share."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tailrace_broker.net.peers.handshake import (
    NONCE_BYTES,
    Handshake,
    PeerIdentity,
    Purpose,
    Side,
)

HANDSHAKE_SECONDS = 2.0
# Of one kind, about one peer.
LOG_SECONDS = 60.0
# Whoever connects from many addresses gets some lines more, and no more memory.
LOGGED_MAX = 1024
# A connection whose peer has gone without a word (power loss, a cut cable) is given up when what
# was sent is not confirmed for this long, and when a silent one does not answer the kernel's
# probes.
UNCONFIRMED_MS = 3000
PROBE_IDLE_SECONDS, PROBE_INTERVAL_SECONDS, PROBES = 10, 3, 3


@dataclass(slots=True)
class PeerCounters:
    """Since the start of the process."""

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    # Messages that were not sent: to a peer that is not there, or slower than what it is sent.
    dropped: int = 0
    connected: int = 0  # both ways
    lost: int = 0  # connections that the other side ended
    handshakes_refused: int = 0
    bad_frames: int = 0


@dataclass(slots=True)
class PeerContext:
    """`open`: all transports that are. `cluster_id`: None as long as this broker has no ring.

    `others`: for which it accepts connections beside its `purpose`.
    """

    ordinal: int
    secret: bytes
    cluster_id: Callable[[], UUID | None]
    loop: asyncio.AbstractEventLoop
    purpose: Purpose = Purpose.PEER
    others: tuple[Purpose, ...] = ()
    counters: PeerCounters = field(default_factory=PeerCounters)
    open: set[asyncio.Transport] = field(default_factory=set)
    is_closed: bool = False
    _all_closed: asyncio.Event = field(default_factory=asyncio.Event)
    _logged_s: dict[tuple[object, str], float] = field(default_factory=dict)

    def handshake(
        self, side: Side, wanted: int | None = None, purpose: Purpose | None = None
    ) -> Handshake:
        """A new one, with what is known of this broker now. `purpose`: of one that is dialled."""
        return Handshake(
            side,
            PeerIdentity(self.ordinal, self.cluster_id()),
            secret=self.secret,
            nonce=secrets.token_bytes(NONCE_BYTES),
            wanted=wanted,
            purpose=purpose or self.purpose,
            others=self.others if side is Side.ACCEPTOR else (),
        )

    def may_log(self, peer: object, reason: str) -> bool:
        """No line of this kind about this peer was logged for a minute. Call it to log one."""
        now_s = self.loop.time()
        if now_s - self._logged_s.get((peer, reason), -LOG_SECONDS) < LOG_SECONDS:
            return False
        if len(self._logged_s) >= LOGGED_MAX:
            self._logged_s.clear()
        self._logged_s[peer, reason] = now_s
        return True

    def opened(self, transport: asyncio.Transport) -> None:
        """A connection, dialled or accepted."""
        self.open.add(transport)
        self._all_closed.clear()
        _set_options(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """Forget a closed connection."""
        self.open.discard(transport)
        if not self.open:
            self._all_closed.set()

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        if self.open:
            await self._all_closed.wait()


def _set_options(transport: asyncio.Transport) -> None:
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", UNCONFIRMED_MS),
        ("TCP_KEEPIDLE", PROBE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", PROBE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
