"""To one other broker: a connection that is dialled when there is something to send."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import structlog

from tailrace_broker.model.errors import HandshakeError
from tailrace_broker.net.peers.context import HANDSHAKE_SECONDS, PeerContext
from tailrace_broker.net.peers.handshake import Side
from tailrace_broker.net.peers.sockets import is_refused, open_connection

CONNECT_SECONDS = 1.0
# After a connection has ended: a broker that is there takes another one within this time.
REDIAL_SECONDS = 0.1
BACKOFF_SECONDS_MIN = 0.02
BACKOFF_SECONDS_MAX = 1.0
# What waits for one peer; beyond that the oldest is dropped: messages may be lost.
QUEUED_FRAMES_MAX = 256
QUEUED_BYTES_MAX = 4 * 1024 * 1024
# What the transport holds is no more dropped: above this, the rest waits here.
WRITE_BUFFER_BYTES = 256 * 1024

_log = structlog.get_logger()


class OutgoingPeer:
    """Frames on their way to the broker `ordinal`. Dials when needed; after a failure not at once.

    A connection that ends says little: it is dialled again, and the broker is unreachable when
    that is refused, or unanswered for `REDIAL_SECONDS`.
    """

    def __init__(
        self,
        context: PeerContext,
        ordinal: int,
        address_of: Callable[[int], tuple[str, int]],
        on_unreachable: Callable[[int], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.ordinal = ordinal
        self._context = context
        self._address_of = address_of
        self._on_unreachable = on_unreachable
        self._spawn = spawn
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dial: asyncio.Task[None] | None = None
        self._is_dialled = False  # a dial is under way, or a connection is open
        self._established: asyncio.Transport | None = None
        self._established_s = 0.0
        self._is_paused = False
        self._backoff_s = 0.0
        self._retry_s = 0.0
        self._redials: list[asyncio.TimerHandle] = []  # the next dial, and when it must be answered

    @property
    def takes_frames(self) -> bool:
        """There is a connection, or one may be tried; else what is sent is lost."""
        return self._is_dialled or self._context.loop.time() >= self._retry_s

    def push(self, frame: bytes) -> None:
        """To be sent with the next `flush`, or when a connection is there."""
        self._dial_unless_dialled()
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        while len(self._frames) > QUEUED_FRAMES_MAX or self._queued_bytes > QUEUED_BYTES_MAX:
            self._queued_bytes -= len(self._frames.popleft())
            self._context.counters.dropped += 1

    def flush(self) -> None:
        """Send what waits, in one write, if there is a connection that takes it."""
        if self._established is None or self._is_paused or not self._frames:
            return
        counters = self._context.counters
        counters.frames_sent += len(self._frames)
        counters.bytes_sent += self._queued_bytes
        frames = b"".join(self._frames)
        self._frames.clear()
        self._queued_bytes = 0
        self._established.write(frames)

    def retry(self) -> None:
        """It was heard from: it is there, the next frame may dial."""
        self._backoff_s = self._retry_s = 0.0

    async def stop_dialling(self) -> None:
        """Give up a dial that is under way, or to come."""
        self._end_redial()
        if self._dial is not None:
            self._dial.cancel()
            await asyncio.wait([self._dial])

    # --- the connection ---

    def established(self, transport: asyncio.Transport) -> None:
        """The handshake has ended well."""
        self._end_redial()
        self._established = transport
        self._established_s = self._context.loop.time()
        self._is_paused = False
        self.flush()

    def pause(self, is_paused: bool) -> None:
        """The transport holds more than enough; or takes more again."""
        self._is_paused = is_paused
        self.flush()

    def lost(self, error: Exception | None) -> None:
        """The connection is closed, however far it was."""
        was_established = self._established is not None
        lived_s = self._context.loop.time() - self._established_s
        self._established = None
        if was_established and lived_s >= BACKOFF_SECONDS_MAX:
            self._backoff_s = 0.0
        self._back_off()
        if was_established and not self._context.is_closed:
            self._context.counters.lost += 1
            if self._context.may_log(self.ordinal, "lost"):
                _log.warning("peer.lost", peer=self.ordinal, error=str(error or "closed by it"))
            # What ends young is not dialled at once: two processes of one broker take turns so.
            self.redial(after_s=0.0 if lived_s >= BACKOFF_SECONDS_MAX else self._backoff_s)

    def redial(self, *, after_s: float = 0.0) -> None:
        """A connection of the broker has ended: find out whether the broker is there."""
        context = self._context
        if context.is_closed or self._established is not None or self._redials:
            return
        self._redials = [
            context.loop.call_later(after_s, self._dial_unless_dialled),
            context.loop.call_later(REDIAL_SECONDS, self._unanswered),
        ]

    def _dial_unless_dialled(self) -> None:
        if not self._is_dialled:
            self._is_dialled = True
            self._spawn(self._connect())

    def _unanswered(self) -> None:
        self._end_redial()
        self._on_unreachable(self.ordinal)

    def _end_redial(self) -> None:
        for each in self._redials:
            each.cancel()
        self._redials.clear()

    async def _connect(self) -> None:
        if self._context.is_closed:
            return
        self._dial = asyncio.current_task()
        host, port = self._address_of(self.ordinal)
        try:
            opened = partial(_OutgoingConnection, self._context, self)
            await open_connection(self._context.loop, host, port, opened, CONNECT_SECONDS)
        except OSError as error:  # a timeout as well
            self._back_off()
            if self._context.may_log(self.ordinal, "unreachable"):
                reason = str(error) or f"no answer in {CONNECT_SECONDS} s"
                _log.warning(
                    "peer.unreachable", peer=self.ordinal, host=host, port=port, error=reason
                )
            if is_refused(error):
                self._end_redial()
                self._on_unreachable(self.ordinal)
        finally:
            self._dial = None

    def _back_off(self) -> None:
        self._is_dialled = False
        self._context.counters.dropped += len(self._frames)
        self._frames.clear()
        self._queued_bytes = 0
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_SECONDS_MIN), BACKOFF_SECONDS_MAX)
        self._retry_s = self._context.loop.time() + self._backoff_s


class _OutgoingConnection(asyncio.Protocol):
    """One that was dialled: the handshake; then nothing comes back any more."""

    def __init__(self, context: PeerContext, peer: OutgoingPeer) -> None:
        self._context = context
        self._peer = peer
        self._handshake = context.handshake(Side.DIALLER, wanted=peer.ordinal)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_refused = False  # by this side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._context.opened(self._transport)
        self._transport.write(self._handshake.first_words())
        self._deadline = self._context.loop.call_later(HANDSHAKE_SECONDS, self._on_deadline)

    def data_received(self, data: bytes) -> None:
        """A part of the handshake."""
        if self._handshake.peer is not None:
            self._refuse("protocol", "it sends where it should only take; run the same version")
            return
        try:
            answer = self._handshake.feed(data)
        except HandshakeError as error:
            self._refuse(error.reason, error.detail)
            return
        if answer:
            self._stop_deadline()
            self._transport.write(answer)
            self._context.counters.connected += 1
            if self._context.may_log(self._peer.ordinal, "connected"):
                _log.info("peer.connected", peer=self._peer.ordinal, direction="outgoing")
            self._peer.established(self._transport)

    def pause_writing(self) -> None:
        """The peer is slower than what it is sent."""
        self._peer.pause(True)

    def resume_writing(self) -> None:
        """Go on: the peer has caught up."""
        self._peer.pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection, by whatever side."""
        self._stop_deadline()
        self._context.closed(self._transport)
        if self._handshake.peer is None and not (self._is_refused or self._context.is_closed):
            self._refuse("closed", "it ended the handshake; its log says why")
        self._peer.lost(exc)

    def _on_deadline(self) -> None:
        self._refuse("timeout", f"the handshake did not end in {HANDSHAKE_SECONDS} s")

    def _refuse(self, reason: str, detail: str) -> None:
        self._is_refused = True
        self._context.counters.handshakes_refused += 1
        if self._context.may_log(self._peer.ordinal, reason):
            _log.warning(
                "peer.refused",
                peer=self._peer.ordinal,
                direction="outgoing",
                reason=reason,
                detail=detail,
            )
        self._transport.abort()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
