"""One connection between two brokers on port 9256: the handshake, then frames both ways.

Batches need credit: the follower takes `WINDOW_BYTES` of them, and more when it has written them. A
batch larger than what is left is sent when nothing else is under way. So a link needs at most the
window, or one largest batch, of the follower's memory. Messages without batches need no credit and
pass batches that wait: machines take them in any order.

What waits is bounded as well: a follower that is so slow loses the connection, and begins again
from its disk's end.

A link that forwards requests takes payloads both ways. Requests leave in the order in which they
were sent, with a payload or without; what waits is bounded by who sends it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import structlog

from tailrace_broker.codec.replication import FrameParser, LinkFrame, Message, encode_head
from tailrace_broker.model.errors import CorruptFrameError, HandshakeError
from tailrace_broker.model.forwarding import ForwardedEvents
from tailrace_broker.model.replication import Credit
from tailrace_broker.net.peers.context import HANDSHAKE_SECONDS, PeerContext
from tailrace_broker.net.peers.handshake import Purpose, Side

WINDOW_BYTES = 4 * 1024 * 1024
# Of batches that wait for credit, beyond the one that is next.
QUEUED_BYTES_MAX = 16 * 1024 * 1024
# Above this the transport takes no batches; it holds what it has until it is sent.
WRITE_BUFFER_BYTES = 1024 * 1024

Bytes = bytes | memoryview

_log = structlog.get_logger()


class LinkOwner(Protocol):
    """Gets what happens on a link, on the event loop."""

    def established(self, link: "Link", ordinal: int) -> None:
        """The handshake has ended well; `ordinal` is the broker at the other end."""

    def received(self, link: "Link", frame: LinkFrame) -> None:
        """A frame has arrived. The batches of it count as under way until `link.consumed`."""

    def lost(self, link: "Link", error: Exception | None) -> None:
        """The connection is closed, by whatever side and however far it was."""


class _Queued(NamedTuple):
    """A frame that waits for credit, or behind one that does. `number`: of its last request."""

    head: bytes
    payload: Sequence[Bytes]
    size_bytes: int
    number: int


class Link(asyncio.BufferedProtocol):
    """The follower, or who forwards, dials (`Side.DIALLER`); the leader accepts."""

    def __init__(
        self,
        context: PeerContext,
        side: Side,
        owner: LinkOwner,
        wanted: int | None = None,
        purpose: Purpose | None = None,
    ) -> None:
        """`wanted`: the ordinal of the leader that is dialled, `purpose`: what for."""
        self.ordinal: int | None = None  # of the other side, when that is sure
        self._context = context
        self._side = side
        self._owner = owner
        self._wanted = wanted
        self._handshake = context.handshake(side, wanted, purpose)
        self.handed_over = 0  # the last request that may have reached the other side
        self._greeting = memoryview(bytearray(1024))
        self._reader = FrameParser()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._is_paused = False
        self._is_flush_due = False
        self._control: list[bytes] = []
        self._batches: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._credit_bytes = 0  # that the other side takes now
        self._granted_bytes = 0  # that it has ever taken, less what came back
        self._under_way_bytes = 0  # received, and not consumed
        self._consumed_bytes = 0  # and not granted again
        self._accepted_bytes = 0  # of batches, by `send`
        self._taken_bytes = 0  # of these, by the other side
        self._awaited: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_closed(self) -> bool:
        """Nothing is sent or taken any more."""
        return self._transport.is_closing()

    @property
    def forwards(self) -> bool:
        """Requests are forwarded on it."""
        return self._handshake.purpose is Purpose.FORWARDING

    @property
    def has_room(self) -> bool:
        """No more batches wait for credit than the other side takes at once."""
        return self._queued_bytes < WINDOW_BYTES

    @property
    def under_way_bytes(self) -> int:
        """Batches that have been received, and are not written yet."""
        return self._under_way_bytes

    def abort(self) -> None:
        """Close it at once."""
        self._transport.abort()

    # --- sending ---

    def send(self, message: Message, payload: Sequence[Bytes] = (), *, number: int = 0) -> None:
        """Send at the end of this turn of the loop; batches when there is credit for them.

        `number`: of the last request in it.
        """
        if self.ordinal is None or self.is_closed:
            self._context.counters.dropped += 1
            return
        size_bytes = sum(map(len, payload))
        head = encode_head(message, size_bytes)
        if not (size_bytes or isinstance(message, ForwardedEvents)):
            self._control.append(head)
        elif (
            self._batches
            and self._queued_bytes + size_bytes > QUEUED_BYTES_MAX
            and not self.forwards
        ):
            self._refuse("slow", f"it takes no batches; {self._queued_bytes} bytes wait for it")
            return
        else:
            self._batches.append(_Queued(head, payload, size_bytes, number))
            self._queued_bytes += size_bytes
            self._accepted_bytes += size_bytes
        self._flush_soon()

    def call_when_taken(self, call: Callable[[], None]) -> None:
        """`call` when the other side has taken what was sent so far, or the link is lost."""
        if self.is_closed or self._taken_bytes == self._accepted_bytes:
            self._context.loop.call_soon(call)
        else:
            self._awaited.append((self._accepted_bytes, call))

    def consumed(self, size_bytes: int) -> None:
        """So many bytes of received batches are written, or of no use: take more."""
        self._under_way_bytes -= size_bytes
        assert self._under_way_bytes >= 0
        self._consumed_bytes += size_bytes
        if self._consumed_bytes >= WINDOW_BYTES // 4 or not self._under_way_bytes:
            self.send(Credit(self._consumed_bytes))
            self._consumed_bytes = 0

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._context.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand the transport what may be sent, as one write."""
        self._is_flush_due = False
        if self.is_closed:
            return
        buffers: list[Bytes] = []
        frame_count, batch_bytes = len(self._control), 0
        buffers += self._control
        self._control = []
        while self._batches and not self._is_paused and batch_bytes < WRITE_BUFFER_BYTES:
            size_bytes = self._batches[0].size_bytes
            is_idle = self._credit_bytes == self._granted_bytes
            if size_bytes > self._credit_bytes and size_bytes and not is_idle:
                break
            queued = self._batches.popleft()
            self.handed_over = queued.number or self.handed_over
            self._credit_bytes -= size_bytes
            self._queued_bytes -= size_bytes
            batch_bytes += size_bytes or len(queued.head)
            frame_count += 1
            buffers += [queued.head, *queued.payload]
        if buffers:
            counters = self._context.counters
            counters.frames_sent += frame_count
            counters.bytes_sent += sum(map(len, buffers))
            self._transport.writelines(buffers)
        if self._batches and not self._is_paused and batch_bytes >= WRITE_BUFFER_BYTES:
            self._flush_soon()

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._context.opened(self._transport)
        self._transport.write(self._handshake.first_words())
        self._deadline = self._context.loop.call_later(HANDSHAKE_SECONDS, self._on_deadline)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._greeting if self.ordinal is None else self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take them in."""
        self._context.counters.bytes_received += nbytes
        if self._is_refused:
            return
        try:
            if self.ordinal is None:
                self._greet(bytes(self._greeting[:nbytes]))
            else:
                self._take(self._reader.received(nbytes))
        except HandshakeError as error:
            self._refuse(error.reason, error.detail)
        except CorruptFrameError as error:
            self._context.counters.bad_frames += 1
            self._refuse("frame", error.detail)

    def pause_writing(self) -> None:
        """The transport holds enough."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It takes batches again."""
        self._is_paused = False
        self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report it, once."""
        self._stop_deadline()
        self._context.closed(self._transport)
        if self.ordinal is not None and not self._context.is_closed:
            self._context.counters.lost += 1
        elif self._handshake.is_greeted and not (self._is_refused or self._context.is_closed):
            self._refuse("closed", "it ended the handshake; its log says why")
        self._batches.clear()
        self._owner.lost(self, exc)
        while self._awaited:
            self._awaited.popleft()[1]()

    def _greet(self, received: bytes) -> None:
        answer = self._handshake.feed(received)
        if answer:
            self._transport.write(answer)
        peer = self._handshake.peer
        if peer is None:
            return
        self._stop_deadline()
        self.ordinal = peer.ordinal
        self._context.counters.connected += 1
        if self._side is Side.DIALLER or self.forwards:
            self.send(Credit(WINDOW_BYTES))
        self._owner.established(self, peer.ordinal)
        rest = self._handshake.rest()
        while rest:
            room = self._reader.buffer()
            part = rest[: len(room)]
            room[: len(part)] = part
            self._take(self._reader.received(len(part)))
            rest = rest[len(part) :]

    def _take(self, frames: Sequence[LinkFrame]) -> None:
        for frame in frames:
            self._context.counters.frames_received += 1
            if isinstance(frame.message, Credit):
                self._take_credit(frame.message.size_bytes)
                continue
            size_bytes = len(frame.payload)
            if size_bytes:
                self._check_window(size_bytes)
            self._owner.received(self, frame)
            if self.is_closed:
                return

    def _take_credit(self, size_bytes: int) -> None:
        """The first one opens the window, each later one returns what was taken of it."""
        if self._granted_bytes:
            self._taken_bytes += size_bytes
        self._granted_bytes = self._granted_bytes or size_bytes
        self._credit_bytes += size_bytes
        if self._credit_bytes > self._granted_bytes:
            raise CorruptFrameError("it takes more bytes than it was sent")
        while self._awaited and self._awaited[0][0] <= self._taken_bytes:
            self._awaited.popleft()[1]()
        self._flush_soon()

    def _check_window(self, size_bytes: int) -> None:
        """The other side may send more than the window only as the one batch under way."""
        not_returned = self._under_way_bytes + self._consumed_bytes
        if not_returned and not_returned + size_bytes > WINDOW_BYTES:
            raise CorruptFrameError(f"it sends more batches than {WINDOW_BYTES} bytes at a time")
        self._under_way_bytes += size_bytes

    def _on_deadline(self) -> None:
        self._refuse("timeout", f"the handshake did not end in {HANDSHAKE_SECONDS} s")

    def _refuse(self, reason: str, detail: str) -> None:
        """Log it, and close the connection."""
        self._is_refused = True
        if self.ordinal is None:
            self._context.counters.handshakes_refused += 1
        peer = self._peer_name()
        if self._context.may_log(peer, reason):
            _log.warning("replication.refused", peer=peer, reason=reason, detail=detail)
        self._transport.abort()

    def _peer_name(self) -> int | str:
        """Return the ordinal at the other end; of an unknown broker its address."""
        if self.ordinal is not None:
            return self.ordinal
        if self._wanted is not None:
            return self._wanted
        return str((self._transport.get_extra_info("peername") or ("unknown",))[0])

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
