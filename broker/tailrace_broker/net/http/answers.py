"""The answers of one connection, in the order of its requests.

Appends start as soon as their request is whole, so that pipelined ones share a write; everything
else starts when it is the first without an answer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from time import monotonic, time
from typing import Any, Protocol, cast
from wsgiref.handlers import format_date_time

import structlog

from tailrace_broker.memory.pool import Lease, tied
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.problems import problem_response, seen_from
from tailrace_broker.net.http.request import Exchange
from tailrace_broker.net.http.router import Response

# Requests of one connection that wait for their answers; then it is not read.
PIPELINED_MAX = 256
# A stream is sent whole up to here, else in chunks of this size.
SEND_BYTES = 1024 * 1024
# Up to here an answer is sent as one buffer.
JOIN_BYTES_MAX = 16 * 1024

# Lets pages of an allowed origin read the answer (Fetch Standard, "CORS protocol").
_READABLE = (
    b"access-control-allow-origin: %b\r\naccess-control-expose-headers: *\r\nvary: origin\r\n"
)

_log = structlog.get_logger()
_levels = logging.getLogger(__name__)
# Looked up once: an enum's member costs a call each time.
_BAD_REQUEST, _NO_CONTENT = int(HTTPStatus.BAD_REQUEST), int(HTTPStatus.NO_CONTENT)


class Spawn(Protocol):
    """Starts work below the runtime's task group."""

    def __call__(self, work: Coroutine[Any, Any, None], /) -> "asyncio.Task[None]":
        """The task, to be cancelled."""


class AnswerQueue:
    """Requests from when they are whole until their answer is sent."""

    def __init__(
        self,
        broker: Broker,
        spawn: Spawn,
        *,
        on_sent: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        """`on_sent`: something has left, there may be room; `on_ended`: the last answer has."""
        self._broker = broker
        self._spawn = spawn
        self._on_sent = on_sent
        self._on_ended = on_ended
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Exchange] = deque()
        self._started = 0  # of those that wait, from the first on
        self._serving: asyncio.Task[None] | None = None  # the first, when it is not immediate
        self._is_starting = False
        self._is_debug = _levels.isEnabledFor(logging.DEBUG)
        self.written_bytes = 0  # handed to the transport
        self._unsent: list[Exchange] = []  # written, and with the transport still
        self.can_write = asyncio.Event()  # the peer takes bytes
        self.can_write.set()

    def attach(self, transport: asyncio.Transport) -> None:
        """Set the transport of the answers."""
        self._transport = transport

    def detach(self) -> None:
        """The peer has gone: what it asked for is not started any more.

        What runs is given up only when it changes nothing (RFC 9110, 9.2.1), or says so itself.
        """
        self._transport = None
        unsent, self._unsent = self._unsent, []
        self.can_write.set()
        serving = self._serving
        if serving and (self.needs_peer or self._waiting[0].route.method == "GET"):
            serving.cancel()
            self._serving = None  # its error keeps what the handler had
            self.return_memory(self._waiting[0])
        while len(self._waiting) > self._started:
            self.return_memory(self._waiting.pop())
        for exchange in (*self._waiting, *unsent):
            _end(exchange, is_sent=False)

    @property
    def needs_peer(self) -> bool:
        """Return whether what runs now must end when the peer may have gone."""
        return self._serving is not None and self._waiting[0].route.is_given_up

    def on_all_sent(self) -> None:
        """The peer has taken all that was written."""
        unsent, self._unsent = self._unsent, []
        for exchange in unsent:
            _end(exchange, is_sent=True)
        self.can_write.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, exchange: Exchange) -> None:
        """A whole request, or one that is refused."""
        self._waiting.append(exchange)
        self._start_waiting()

    def end_after_last(self) -> None:
        """Close the connection when the answers that wait are sent."""
        self._waiting[-1].keeps_alive = False

    def _start_waiting(self) -> None:
        """Start what may start now; not below itself, since an answer may come at once."""
        if self._is_starting:
            return
        self._is_starting = True
        while self._started < len(self._waiting) and self._serving is None:
            exchange = self._waiting[self._started]
            if self._started and not _is_immediate(exchange):
                break  # it waits for its turn
            self._started += 1
            self._start(exchange)
        self._is_starting = False

    def _start(self, exchange: Exchange) -> None:
        if exchange.refused is not None:
            self._answer(exchange, exchange.refused)
            return
        immediate = exchange.route.immediate
        if immediate is not None:
            exchange.began_s = monotonic()
            immediate(self._broker, exchange.call(), partial(self._answer, exchange))
        else:
            self._serving = self._spawn(self._serve(exchange))

    def _answer(self, exchange: Exchange, result: Response | TailraceError) -> None:
        """Answer for a route that does so by callback."""
        if isinstance(result, TailraceError):
            outside = self._broker.outside if exchange.is_outside else None
            result = problem_response(seen_from(outside, result))
        self._answer_whole(exchange, result)

    async def _serve(self, exchange: Exchange) -> None:
        """Run the handler of the first that waits."""
        handle = exchange.route.handle
        assert handle is not None
        try:
            response = await handle(self._broker, exchange.call())
            exchange.on_lost = response.on_lost
            if isinstance(response.body, AsyncIterator):
                await self._answer_stream(exchange, response, response.body)
            else:
                self._serving = None
                self._answer_whole(exchange, response)
        except TailraceError as error:
            _end(exchange, is_sent=False)
            self._serving = None
            self._answer(exchange, error)

    def _answer_whole(self, exchange: Exchange, response: Response) -> None:
        # No stream: an `isinstance` of an abstract class is dear for each answer.
        whole = cast(Sequence[bytes | memoryview], response.body)
        head = answer_head(exchange, response, sum(map(len, whole)))
        body = () if exchange.is_head_only else whole
        exchange.lease = response.lease
        self._finish(exchange, response.status, [head, *body])

    async def _answer_stream(
        self, exchange: Exchange, response: Response, stream: AsyncIterator[bytes]
    ) -> None:
        """Whole when it is small, else chunk by chunk as it is read.

        After an empty chunk the stream may have to wait: what is ready leaves first.
        """
        head = answer_head(exchange, response, None)
        if exchange.is_head_only:
            self._serving = None
            self._finish(exchange, response.status, [head])
            if response.on_lost is not None:  # nobody takes the stream
                response.on_lost()
            return
        exchange.lease = response.lease
        ready: list[bytes] = []
        ready_bytes = 0
        try:
            async for part in stream:
                await asyncio.sleep(0)  # a part takes milliseconds: others come in between
                if ready and (not part or ready_bytes + len(part) > SEND_BYTES):
                    self._send(exchange, [head, *chunk(exchange, ready)])
                    head, ready, ready_bytes = b"", [], 0
                    await self.can_write.wait()
                if part:
                    ready.append(part)
                    ready_bytes += len(part)
        except TailraceError:
            if head:
                raise
            exchange.count(self._broker.counters, is_error=True)
            if self._transport is not None:
                self._transport.abort()  # the peer sees that the answer is not whole
            return
        self._serving = None
        if head:
            self._answer_whole(exchange, response._replace(body=ready))
        else:
            assert ready, "what an empty chunk precedes did not come"
            end = [*chunk(exchange, ready), *chunk(exchange, [])]
            self._finish(exchange, response.status, end)

    def _finish(self, exchange: Exchange, status: int, rest: list[bytes | memoryview]) -> None:
        """Send the rest of an answer when it is its turn, and what waited behind it."""
        exchange.count(self._broker.counters, is_error=status >= _BAD_REQUEST)
        if self._is_debug:
            _log.debug(
                "request.answered",
                path=exchange.target.partition(b"?")[0].decode(errors="replace"),
                status=status,
                body_bytes=exchange.received_bytes,
            )
        self.return_memory(exchange)
        transport = self._transport
        exchange.answer = rest
        if transport is None:
            _end(exchange, is_sent=False)
        while transport is not None and self._waiting:
            first = self._waiting[0]
            if first.answer is None:
                break
            self._write(transport, first.answer, first.lease)
            if first.on_lost is not None and not self.can_write.is_set():
                first.answer = first.lease = None  # the transport's now
                self._unsent.append(first)
            self._started -= 1
            if not self._waiting.popleft().keeps_alive:
                self._on_ended()
                return
        if self._transport is not None:
            self._start_waiting()
            self._on_sent()

    def _send(self, exchange: Exchange, buffers: list[bytes | memoryview]) -> None:
        if self._transport is not None:
            self._write(self._transport, buffers, exchange.lease)
            self._on_sent()

    def _write(
        self, transport: asyncio.Transport, buffers: list[bytes | memoryview], lease: Lease | None
    ) -> None:
        """Several buffers cost uvloop more than their copy, until they are large.

        Then it keeps them until all are sent, and with the last of them the lease.
        """
        size_bytes = sum(map(len, buffers))
        self.written_bytes += size_bytes
        if size_bytes <= JOIN_BYTES_MAX:
            transport.write(b"".join(buffers))
        else:
            if lease is not None:
                buffers[-1] = tied(buffers[-1], lease)
            transport.writelines(buffers)

    def return_memory(self, exchange: Exchange) -> None:
        """Its body is not needed any more."""
        self._broker.return_produce_memory(exchange.memory_bytes)
        exchange.memory_bytes = 0


def answer_head(exchange: Exchange, response: Response, body_bytes: int | None) -> bytes:
    """Status line and headers. `body_bytes` None: a stream; chunked, or up to the close."""
    status = response.status
    start = _head_start(status, response.content_type, int(time()))
    if body_bytes is None:
        exchange.keeps_alive = exchange.keeps_alive and not exchange.is_http_1_0
        fields = b"" if exchange.is_http_1_0 else b"transfer-encoding: chunked\r\n"
    else:
        fields = b"content-length: %d\r\n" % body_bytes if status != _NO_CONTENT else b""
    if exchange.allowed_origin:
        fields += _READABLE % exchange.allowed_origin
    if response.headers or not exchange.keeps_alive or exchange.is_http_1_0:
        own = [b"%s: %s\r\n" % (n.encode(), v.encode()) for n, v in response.headers.items()]
        if not exchange.keeps_alive:
            own.append(b"connection: close\r\n")
        elif exchange.is_http_1_0:
            own.append(b"connection: keep-alive\r\n")
        fields += b"".join(own)
    return b"%b%b\r\n" % (start, fields)


def chunk(exchange: Exchange, buffers: Sequence[bytes]) -> list[bytes | memoryview]:
    """A chunk of a stream as it travels; without buffers its end."""
    if exchange.is_http_1_0:
        return list(buffers)
    return [b"%x\r\n" % sum(map(len, buffers)), *buffers, b"\r\n"]


def _end(exchange: Exchange, *, is_sent: bool) -> None:
    """Let go of what an answer holds, not only when the garbage of its connection is collected."""
    exchange.answer = exchange.lease = None
    on_lost, exchange.on_lost = exchange.on_lost, None
    if not is_sent and on_lost is not None:
        on_lost()


def _is_immediate(exchange: Exchange) -> bool:
    return exchange.refused is not None or exchange.route.immediate is not None


@lru_cache(maxsize=16)
def _head_start(status: int, content_type: str, now_s: int) -> bytes:
    """The status line, the date (RFC 9110, 6.6.1) and the type: the same for a second."""
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    of_type = f"content-type: {content_type}\r\n" if content_type else ""
    return f"{line}date: {format_date_time(now_s)}\r\n{of_type}".encode()
