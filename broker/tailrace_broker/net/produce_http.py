"""The fast produce door: HTTP/1.1 on httptools under uvloop, one object a connection.

Small requests are parsed from one receive buffer that all connections share: the event loop hands
over what it read before it reads for another. A large body is received into place: the bytes that
are still to come bypass the parser, which sees the next request anew.
"""

import asyncio
from collections import deque
from functools import partial
from http import HTTPStatus
from typing import cast

import httptools

from tailrace.wire import JSON_CONTENT_TYPE
from tailrace_broker.model.errors import (
    InvalidRequestError,
    MethodNotAllowedError,
    TailraceError,
)
from tailrace_broker.net.api import Broker
from tailrace_broker.net.problems import (
    PROBLEM_CONTENT_TYPE,
    problem_body,
    problem_headers,
    problem_status,
)
from tailrace_broker.net.produce import (
    HEADER_BYTES_MAX,
    Body,
    check_body_size,
    header_too_large,
    parse_target,
    produce,
    request_timeout,
)

RECEIVE_BUFFER_BYTES = 64 * 1024
# Below this a copy through the parser is cheaper than a second receive.
DIRECT_BODY_BYTES_MIN = 16 * 1024
# Pipelined requests of one connection that wait for their answers; then it is not read.
PIPELINED_MAX = 256
# A refused body is read and thrown away up to here, so that the peer reads the answer; a larger
# one is not waited for.
DISCARD_BYTES_MAX = 64 * 1024 * 1024

_HEAD = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n"
_OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))


class _Exchange:
    """One request from its first byte until its answer is sent."""

    __slots__ = (
        "answer",
        "chunks",
        "content_bytes",
        "content_type",
        "expects_continue",
        "head_bytes",
        "header_bytes",
        "is_chunked",
        "is_in_body",
        "keeps_alive",
        "memory_bytes",
        "received_bytes",
        "refused",
        "target",
    )

    def __init__(self) -> None:
        self.target = b""
        self.content_type = JSON_CONTENT_TYPE
        self.content_bytes = 0
        self.header_bytes = 0  # request line and headers that are parsed
        self.head_bytes = 0  # received, of a head whose end was not there yet
        self.expects_continue = False
        self.is_chunked = False
        self.is_in_body = False
        self.chunks: list[bytes] = []
        self.received_bytes = 0
        self.refused: TailraceError | None = None
        self.keeps_alive = True
        self.memory_bytes = 0  # of produce memory, returned with the answer
        self.answer: bytes | None = None


class ProduceProtocol(asyncio.BufferedProtocol):
    """One connection of the produce door. Answers leave in the order of the requests."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transport: asyncio.Transport | None = None
        self._unanswered: deque[_Exchange] = deque()
        self._is_paused = False
        self._peer_is_slow = False
        self._is_ending = False  # what still comes after the last request is not looked at
        self._parser = httptools.HttpRequestParser(self)
        self._current = _Exchange()
        # The rest of a large body comes here: into place, or nowhere when it is refused.
        self._direct_body: bytearray | None = None
        self._discard_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    # --- transport callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the answers."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer; appends that are under way go on, their answers are dropped."""
        self._transport = None
        self._return_memory(self._current)
        self._stop_deadline()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop shall receive: the rest of a large body, or the shared buffer."""
        if self._direct_body is not None:
            return memoryview(self._direct_body)[self._current.received_bytes :]
        if self._discard_bytes:
            return _receive_buffer[: self._discard_bytes]
        return _receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        if self._is_ending:
            return
        if self._direct_body is not None:
            self._current.received_bytes += nbytes
            if self._current.received_bytes == self._current.content_bytes:
                body, self._direct_body = self._direct_body, None
                self._parser = httptools.HttpRequestParser(self)
                self._complete(body)
        elif self._discard_bytes:
            self._discard_bytes -= nbytes
            if not self._discard_bytes:
                self._parser = httptools.HttpRequestParser(self)
                self._complete(b"")
        else:
            self._parse(_receive_buffer[:nbytes])
        if self._deadline is None and self._current.target:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._broker.request_seconds, self._expire)

    def pause_writing(self) -> None:
        """The peer reads its answers slowly: take no more requests from it."""
        self._peer_is_slow = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """The peer has read its answers."""
        self._peer_is_slow = False
        self._resume_reading()

    # --- parser callbacks (httptools) ---

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._current.target += url
        self._current.header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, whole; or a trailer, which says nothing here."""
        current = self._current
        current.header_bytes += len(name) + len(value)
        if current.is_in_body:
            return
        lower = name.lower()
        if lower == b"content-type":
            current.content_type = value.decode("latin-1")
        elif lower == b"content-length":
            current.content_bytes = int(value)
        elif lower == b"transfer-encoding":
            current.is_chunked = True
        elif lower == b"expect":
            current.expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Decide whether the body is wanted."""
        current = self._current
        current.is_in_body = True
        current.keeps_alive = self._parser.should_keep_alive()
        try:
            if current.header_bytes > HEADER_BYTES_MAX:
                current.keeps_alive = False
                raise header_too_large()
            parse_target(current.target)
            if self._parser.get_method() != b"POST":
                path = current.target.partition(b"?")[0].decode(errors="replace")
                raise MethodNotAllowedError(f"{path} takes POST")
            check_body_size(self._broker, current.content_bytes)
            self._take_memory(current.content_bytes)
        except TailraceError as error:
            current.refused = error
        if current.expects_continue:
            self._answer_expectation()

    def on_body(self, chunk: bytes) -> None:
        """A piece of the body, chunked transfer coding already removed."""
        if self._is_ending:
            return
        current = self._current
        current.received_bytes += len(chunk)
        if current.refused is not None:
            return
        try:
            check_body_size(self._broker, current.received_bytes)
            if not current.content_bytes:  # chunked: the size was not known before
                self._take_memory(len(chunk))
        except TailraceError as error:
            current.refused = error
        else:
            current.chunks.append(chunk)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._is_ending or self._parser.should_upgrade():
            return
        chunks = self._current.chunks
        self._complete(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    # --- requests ---

    def _parse(self, received: memoryview) -> None:
        before, body_bytes = self._current, self._current.received_bytes
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserCallbackError:
            raise  # our bug, not the peer's
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_http_1(received[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._fail(InvalidRequestError(f"not an HTTP/1.1 request: {error}"))
            return
        current = self._current
        rest_bytes = current.content_bytes - current.received_bytes
        if current.is_in_body and rest_bytes >= DIRECT_BODY_BYTES_MIN:
            self._receive_directly(rest_bytes)
        elif current is before and current.received_bytes == body_bytes:  # a head, or trailers
            current.head_bytes += len(received)
            if current.head_bytes > HEADER_BYTES_MAX:
                self._fail(header_too_large())

    def _stay_with_http_1(self, rest: memoryview) -> None:
        """A request that offers another protocol is served as it is (RFC 9110, 7.8).

        The parser has left its body, which `rest` starts with, to that protocol.
        """
        if self._is_ending:  # refused by its head already
            return
        current = self._current
        if current.is_chunked:
            self._fail(InvalidRequestError("a chunked body with Upgrade; leave out Upgrade"))
            return
        self._parser = httptools.HttpRequestParser(self)
        body = bytes(rest[: current.content_bytes])
        current.received_bytes = len(body)
        current.chunks = [body]
        rest_bytes = current.content_bytes - len(body)
        if rest_bytes:
            self._receive_directly(rest_bytes)
            return
        self._complete(body)
        if len(rest) > len(body):
            self._parse(rest[len(body) :])

    def _expire(self) -> None:
        """The request did not arrive whole in time: it must not hold memory any longer."""
        self._direct_body, self._discard_bytes = None, 0
        self._fail(request_timeout(self._broker))

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _answer_expectation(self) -> None:
        """`Expect: 100-continue`: ask for the body, or say at once why not (RFC 9110, 10.1.1)."""
        if self._current.refused is not None:
            self._current.keeps_alive = False
            self._complete(b"")
        elif self._transport is not None and not self._unanswered:
            self._transport.write(_CONTINUE)  # behind others' answers the peer stops waiting itself

    def _receive_directly(self, rest_bytes: int) -> None:
        """Let the rest of the body bypass the parser."""
        current = self._current
        if current.refused is not None and rest_bytes > DISCARD_BYTES_MAX:
            current.keeps_alive = False
            self._complete(b"")
        elif current.refused is not None:
            self._discard_bytes = rest_bytes
        else:
            self._direct_body = bytearray(current.content_bytes)
            self._direct_body[: current.received_bytes] = b"".join(current.chunks)

    def _complete(self, body: Body) -> None:
        """Produce a whole request and be ready for the next."""
        self._stop_deadline()
        exchange, self._current = self._current, _Exchange()
        self._unanswered.append(exchange)
        self._is_ending = not exchange.keeps_alive
        if self._is_ending or len(self._unanswered) >= PIPELINED_MAX:
            self._pause_reading()
        answer = partial(self._answer, exchange)
        if exchange.refused is not None:
            answer(0, b"", exchange.refused)
        else:
            target = parse_target(exchange.target)
            produce(self._broker, target, exchange.content_type, body, answer)

    def _fail(self, error: TailraceError) -> None:
        """Answer an unreadable request, then close."""
        if self._is_ending:
            return
        self._current.refused = error
        self._current.keeps_alive = False
        self._complete(b"")

    # --- answers ---

    def _answer(
        self, exchange: _Exchange, status: int, body: bytes, error: TailraceError | None
    ) -> None:
        """Send an answer as soon as those before it are sent."""
        counters = self._broker.counters
        counters.produce_requests += 1
        if error is not None:
            counters.produce_errors += 1
            exchange.answer = _error_answer(error)
        elif status == 200:
            exchange.answer = _OK_HEAD % len(body) + body
        else:
            exchange.answer = _encode_answer(status, JSON_CONTENT_TYPE, body)
        self._return_memory(exchange)
        unanswered = self._unanswered
        while self._transport is not None and unanswered:
            ready = unanswered[0].answer
            if ready is None:
                break
            self._transport.write(ready)
            if not unanswered.popleft().keeps_alive:
                self._transport.close()
                return
        if self._is_paused:
            self._resume_reading()

    def _take_memory(self, size_bytes: int) -> None:
        """ProduceMemoryFullError when the bound is reached."""
        self._broker.take_produce_memory(size_bytes)
        self._current.memory_bytes += size_bytes

    def _return_memory(self, exchange: _Exchange) -> None:
        self._broker.return_produce_memory(exchange.memory_bytes)
        exchange.memory_bytes = 0

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Unless one of the reasons to pause is left."""
        transport = self._transport
        if transport is None or self._is_ending or not self._is_paused:
            return
        if len(self._unanswered) < PIPELINED_MAX // 2 and not self._peer_is_slow:
            self._is_paused = False
            transport.resume_reading()


def _error_answer(error: TailraceError) -> bytes:
    extra = b"".join(
        b"%s: %s\r\n" % (name.encode(), value.encode())
        for name, value in problem_headers(error).items()
    )
    return _encode_answer(problem_status(error), PROBLEM_CONTENT_TYPE, problem_body(error), extra)


def _encode_answer(status: int, content_type: str, body: bytes, extra: bytes = b"") -> bytes:
    reason = HTTPStatus(status).phrase.encode()
    return _HEAD % (status, reason, content_type.encode(), len(body), extra) + body
