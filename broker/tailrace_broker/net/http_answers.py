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
from time import time
from typing import Any, Protocol
from wsgiref.handlers import format_date_time

import structlog

from tailrace_broker.model.errors import TailraceError
from tailrace_broker.net.api import Broker
from tailrace_broker.net.http_request import Exchange
from tailrace_broker.net.problems import problem_response
from tailrace_broker.net.routes import Response

# Requests of one connection that wait for their answers; then it is not read.
PIPELINED_MAX = 256
# A stream is sent whole up to here, else in chunks of this size.
SEND_BYTES = 1024 * 1024
# Up to here an answer is sent as one buffer.
JOIN_BYTES_MAX = 16 * 1024

_log = structlog.get_logger()
# Tells in a fifth of a microsecond that a line need not be built.
_levels = logging.getLogger(__name__)
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


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
        self.can_write = asyncio.Event()  # the peer takes bytes
        self.can_write.set()

    def attach(self, transport: asyncio.Transport) -> None:
        """Where the answers go."""
        self._transport = transport

    def detach(self) -> None:
        """The peer has gone: what it asked for is not started any more.

        What runs is given up only when it changes nothing (RFC 9110, 9.2.1).
        """
        self._transport = None
        self.can_write.set()
        if self._serving is not None and self._waiting[0].route.method == "GET":
            self._serving.cancel()
            self.return_memory(self._waiting[0])
        while len(self._waiting) > self._started:
            self.return_memory(self._waiting.pop())

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
            self._answer(exchange, 0, b"", exchange.refused)
        elif exchange.route.immediate is not None:
            exchange.route.immediate(self._broker, exchange.call(), partial(self._answer, exchange))
        else:
            self._serving = self._spawn(self._serve(exchange))

    def _answer(
        self, exchange: Exchange, status: int, body: bytes, error: TailraceError | None
    ) -> None:
        """Of a route that answers by callback."""
        if error is not None:
            self._answer_whole(exchange, problem_response(error))
        else:
            self._answer_whole(exchange, Response((body,), status=status))

    async def _serve(self, exchange: Exchange) -> None:
        """Run the handler of the first that waits."""
        handle = exchange.route.handle
        assert handle is not None
        try:
            response = await handle(self._broker, exchange.call())
            if isinstance(response.body, AsyncIterator):
                await self._answer_stream(exchange, response, response.body)
            else:
                self._serving = None
                self._answer_whole(exchange, response)
        except TailraceError as error:
            self._serving = None
            self._answer(exchange, 0, b"", error)

    def _answer_whole(self, exchange: Exchange, response: Response) -> None:
        assert not isinstance(response.body, AsyncIterator)
        head = answer_head(exchange, response, sum(map(len, response.body)))
        body = () if exchange.is_head_only else response.body
        self._finish(exchange, response.status, [head, *body])

    async def _answer_stream(
        self, exchange: Exchange, response: Response, stream: AsyncIterator[bytes]
    ) -> None:
        """In one piece when it is small, else chunk by chunk as it is read."""
        head = answer_head(exchange, response, None)
        if exchange.is_head_only:
            self._serving = None
            self._finish(exchange, response.status, [head])
            return
        ready: list[bytes] = []
        ready_bytes = 0
        try:
            async for piece in stream:
                await asyncio.sleep(0)  # a piece takes milliseconds: others come in between
                if ready and ready_bytes + len(piece) > SEND_BYTES:
                    self._send([head, *chunk(exchange, ready)])
                    head, ready, ready_bytes = b"", [], 0
                    await self.can_write.wait()
                ready.append(piece)
                ready_bytes += len(piece)
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
            end = [*chunk(exchange, ready), *chunk(exchange, [])]
            self._finish(exchange, response.status, end)

    def _finish(self, exchange: Exchange, status: int, rest: list[bytes]) -> None:
        """Send the rest of an answer when it is its turn, and what waited behind it."""
        exchange.count(self._broker.counters, is_error=status >= HTTPStatus.BAD_REQUEST)
        if _levels.isEnabledFor(logging.DEBUG):
            _log.debug(
                "request.answered",
                path=exchange.target.partition(b"?")[0].decode(errors="replace"),
                status=status,
                body_bytes=exchange.received_bytes,
            )
        exchange.answer = rest
        self.return_memory(exchange)
        transport = self._transport
        while transport is not None and self._waiting:
            ready = self._waiting[0].answer
            if ready is None:
                break
            _write(transport, ready)
            self._started -= 1
            if not self._waiting.popleft().keeps_alive:
                self._on_ended()
                return
        if self._transport is not None:
            self._start_waiting()
            self._on_sent()

    def _send(self, buffers: list[bytes]) -> None:
        if self._transport is not None:
            _write(self._transport, buffers)
            self._on_sent()

    def return_memory(self, exchange: Exchange) -> None:
        """Its body is not needed any more."""
        self._broker.return_produce_memory(exchange.memory_bytes)
        exchange.memory_bytes = 0


def answer_head(exchange: Exchange, response: Response, body_bytes: int | None) -> bytes:
    """Status line and headers. `body_bytes` None: a stream; chunked, or up to the close."""
    fields = [_STATUS_LINES[response.status], _date_line(int(time()))]
    if body_bytes is None:
        exchange.keeps_alive = exchange.keeps_alive and not exchange.is_http_1_0
        fields += [] if exchange.is_http_1_0 else [b"transfer-encoding: chunked\r\n"]
    elif response.status != HTTPStatus.NO_CONTENT:
        fields.append(b"content-length: %d\r\n" % body_bytes)
    if response.content_type:
        fields.append(b"content-type: %s\r\n" % response.content_type.encode())
    for name, value in response.headers.items():
        fields.append(b"%s: %s\r\n" % (name.encode(), value.encode()))
    if not exchange.keeps_alive:
        fields.append(b"connection: close\r\n")
    elif exchange.is_http_1_0:
        fields.append(b"connection: keep-alive\r\n")
    fields.append(b"\r\n")
    return b"".join(fields)


def chunk(exchange: Exchange, buffers: Sequence[bytes]) -> list[bytes]:
    """A piece of a stream as it travels; without buffers its end."""
    if exchange.is_http_1_0:
        return list(buffers)
    return [b"%x\r\n" % sum(map(len, buffers)), *buffers, b"\r\n"]


def _write(transport: asyncio.Transport, buffers: list[bytes]) -> None:
    """Several buffers cost uvloop more than their copy, until they are large."""
    if sum(map(len, buffers)) <= JOIN_BYTES_MAX:
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)


def _is_immediate(exchange: Exchange) -> bool:
    return exchange.refused is not None or exchange.route.immediate is not None


@lru_cache(maxsize=1)
def _date_line(now_s: int) -> bytes:
    """RFC 9110, 6.6.1; made once a second."""
    return f"date: {format_date_time(now_s)}\r\n".encode()
