"""HTTP/1.1 for every listener: one object a connection, on httptools under uvloop (RFC 9110, 9112).

Small requests are parsed from one receive buffer that all connections share: the event loop hands
over what it read before it reads for another. A large body is received into place: the bytes that
are still to come bypass the parser, which sees the next request again.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import httptools

from tailrace.wire import RECORDS_CONTENT_TYPE, RECORDS_JSON_CONTENT_TYPE
from tailrace_broker.model.errors import (
    BodyTooLargeError,
    HeaderTooLargeError,
    InvalidRequestError,
    RequestTimeoutError,
    TailraceError,
    TooManyConnectionsError,
)
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.answers import PIPELINED_MAX, AnswerQueue, Spawn
from tailrace_broker.net.http.long_line import LongLine
from tailrace_broker.net.http.origin import PREFLIGHT, WebAccess, host_name
from tailrace_broker.net.http.request import (
    HEADERS,
    Exchange,
    check_head,
    check_matched,
    check_secret,
)
from tailrace_broker.net.http.router import Match

RECEIVE_BUFFER_BYTES = 64 * 1024
# Request line and headers together.
HEADER_BYTES_MAX = 16 * 1024
# Below this a copy through the parser is cheaper than a second receive.
DIRECT_BODY_BYTES_MIN = 16 * 1024
# Memory for the whole body is taken when this part of it has arrived: a sender that announces much
# and sends little keeps nobody out.
DIRECT_BODY_SHARE = 4
# A refused body is read and thrown away up to here, so that the peer reads the answer; a larger
# one is not waited for.
DISCARD_BYTES_MAX = 64 * 1024 * 1024
# Of what waits for it a peer takes so much in `answer_seconds`, or all.
TAKEN_BYTES_MIN = 1024 * 1024
# After the last answer: what the peer still sends is thrown away, since closing on it would reset
# the connection and the answer could be lost (RFC 9112, 9.6).
LINGER_SECONDS = 2.0
# At the stop of the broker: long enough that answers under way are sent.
END_SECONDS_MAX = 5.0

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# What the parser keeps to itself: of a head with its request line, and of each header line.
_HEAD_FRAME_BYTES = len("  HTTP/1.1\r\n\r\n")
_HEADER_FRAME_BYTES = len(": \r\n")
_NOTHING = memoryview(b"")

_receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))


@dataclass(slots=True)
class Connections:
    """All connections of a broker, and what bounds them."""

    header_seconds: float
    request_seconds: float
    idle_seconds: float
    answer_seconds: float
    count_max: int
    web_access: WebAccess = field(default_factory=WebAccess)
    open: "set[HttpConnection]" = field(default_factory=set)
    is_ending: bool = False
    _all_closed: asyncio.Event = field(default_factory=asyncio.Event)

    def remove(self, connection: "HttpConnection") -> None:
        """Remove a connection that has closed."""
        self.open.discard(connection)
        if not self.open:
            self._all_closed.set()

    async def end(self) -> None:
        """Close all: idle ones now, others when their requests are answered or time is up."""
        self.is_ending = True
        self._all_closed.clear()
        for connection in list(self.open):
            connection.end()
        if self.open:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS_MAX):
                    await self._all_closed.wait()
        for connection in list(self.open):
            connection.abort()


class HttpConnection(asyncio.BufferedProtocol):
    """One connection of a listener, whose routes `match` knows."""

    def __init__(
        self, broker: Broker, match: Match, connections: Connections, spawn: Spawn
    ) -> None:
        self._broker = broker
        self._match = match
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._current = Exchange()
        self._answers = AnswerQueue(
            broker, spawn, on_sent=self._on_sent, on_ended=self._end_sending
        )
        # The rest of a large body comes here: into place, or nowhere when it is refused.
        self._direct_body: bytearray | None = None
        self._discard_bytes = 0
        self._is_paused = False
        self._is_ending = False  # what still comes after the last request is not looked at
        self._is_last_sent = False
        self._deadline: asyncio.TimerHandle | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self._began_s = 0.0  # the request that is being received
        self._active_s = 0.0  # when the peer was last seen to be there
        self._pace_check: asyncio.TimerHandle | None = None  # while the peer has to take something

    def end(self) -> None:
        """Close when the requests that are whole are answered."""
        if self._transport is None:
            return
        self._is_ending = True
        if len(self._answers):
            self._answers.end_after_last()
            self._pause_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    # --- transport callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, unless there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)  # what is unsent holds memory: it is watched
        self._answers.attach(self._transport)
        connections = self._connections
        connections.open.add(self)
        self._active_s = self._loop.time()
        self._idle_check = self._loop.call_later(connections.idle_seconds, self._check_idle)
        if connections.is_ending:  # accepted by the kernel before the listener closed
            self.end()
        elif len(connections.open) > connections.count_max:
            self._fail(
                TooManyConnectionsError(
                    f"{connections.count_max} connections are open; close some, or retry later"
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer; appends that are under way go on, their answers are dropped."""
        self._transport = None
        self._connections.remove(self)
        self._answers.detach()
        self._answers.return_memory(self._current)
        self._stop_deadline()
        self._stop_pace_check()
        assert self._idle_check is not None
        self._idle_check.cancel()

    def eof_received(self) -> bool:
        """The peer sends no more; True: it still waits for answers.

        Or it has gone, which looks the same: what only a peer that is there may get is given up.
        """
        if self._answers.needs_peer:
            self._answers.detach()
            self.abort()
            return False
        waits = len(self._answers) > 0
        if waits:
            self.end()
        return waits

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the loop shall receive: the rest of a large body, or the shared buffer."""
        if self._direct_body is not None:
            return memoryview(self._direct_body)[self._current.received_bytes :]
        if self._discard_bytes:
            return _receive_buffer[: self._discard_bytes]
        return _receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were received."""
        if self._is_ending:
            return
        if self._direct_body is not None:
            self._current.received_bytes += nbytes
            if self._current.received_bytes == self._current.content_bytes:
                self._current.body, self._direct_body = self._direct_body, None
                self._parser = httptools.HttpRequestParser(self)
                self._complete()
        elif self._discard_bytes:
            self._look_for_long_line(bytes(_receive_buffer[:nbytes]))
            self._discard_bytes -= nbytes
            if not self._discard_bytes:
                self._parser = httptools.HttpRequestParser(self)
                self._complete()
        else:
            rest = _receive_buffer[:nbytes]
            while rest and not self._is_ending:
                rest = self._parse(rest)
        if self._current.has_begun and self._deadline is None and not self._is_ending:
            self._start_deadline()

    def pause_writing(self) -> None:
        """The peer has not taken all: take no more requests from it."""
        self._answers.can_write.clear()
        self._pause_reading()
        self._start_pace_check()

    def resume_writing(self) -> None:
        """The peer has taken all."""
        self._active_s = self._loop.time()
        self._stop_pace_check()
        self._answers.on_all_sent()
        if self._is_last_sent:
            self._linger()
        else:
            self._resume_reading()

    # --- parser callbacks (httptools) ---

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._current.has_begun = True

    def on_url(self, url: bytes) -> None:
        """A chunk of the request target."""
        self._current.target += url
        self._current.header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, whole; or a trailer, which says nothing here."""
        current = self._current
        current.header_bytes += len(name) + len(value) + _HEADER_FRAME_BYTES
        read = HEADERS.get(name.lower())
        if read is not None and not current.is_in_body:
            read(current, value)

    def on_headers_complete(self) -> None:
        """Find the route, and decide whether the body is wanted."""
        if self._is_ending:
            return
        current, parser = self._current, self._parser
        method = parser.get_method()
        current.is_in_body = True
        current.keeps_alive = parser.should_keep_alive()
        current.header_bytes += len(method) + _HEAD_FRAME_BYTES
        try:
            if current.header_bytes > HEADER_BYTES_MAX:
                raise _header_too_large(current.target)
            check_head(current, parser.get_http_version(), method)
        except TailraceError as error:  # where the request ends is not certain: it is the last
            self._fail(error)
            return
        try:
            self._connections.web_access.check(current, method)
            if self._broker.outside is not None:
                current.is_outside = self._broker.outside.has(
                    host_name(current.host.decode("latin-1"))
                )
            is_preflight = current.allowed_origin and method == b"OPTIONS"
            current.matched = PREFLIGHT if is_preflight else self._match(method, current.target)
            if current.route.is_admin:
                check_secret(self._broker.ring_secret, current.authorization)
            check_matched(current)
            self._check_body_size(current.content_bytes)
            self._broker.check_produce_memory(current.content_bytes)
        except TailraceError as error:
            self._refuse(error)
        if current.expectation and current.has_body:
            self._answer_expectation()

    def on_body(self, chunk: bytes) -> None:
        """A chunk of the body, chunked transfer coding already removed."""
        if self._is_ending:
            return
        current = self._current
        current.received_bytes += len(chunk)
        if current.refused is not None:
            self._look_for_long_line(chunk)
            if current.received_bytes > DISCARD_BYTES_MAX:
                self._fail(current.refused)
            return
        try:
            self._check_body_size(current.received_bytes)
            self._take_memory(len(chunk))
        except TailraceError as error:
            body = current.body
            self._refuse(error)
            self._look_for_long_line(body)
            self._look_for_long_line(chunk)
        else:
            current.add_to_body(chunk)

    def on_message_complete(self) -> None:
        """Handle a request that is whole."""
        if not self._is_ending and not self._parser.should_upgrade():
            self._complete()

    # --- receiving ---

    def _parse(self, received: memoryview) -> memoryview:
        """Parse what the parser leaves: requests behind one that offers another protocol."""
        before, body_bytes = self._current, self._current.received_bytes
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserCallbackError:
            raise  # our bug, not the peer's
        except httptools.HttpParserUpgrade as upgrade:
            return self._stay_with_http_1(received[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._fail(InvalidRequestError(f"not an HTTP/1.1 request: {error}"))
            return _NOTHING
        current = self._current
        rest_bytes = current.content_bytes - current.received_bytes
        if current.is_in_body and self._is_large(rest_bytes):
            self._receive_directly(rest_bytes)
        elif current is before and current.received_bytes > body_bytes:
            current.head_bytes = 0
        elif current is before:  # of a head, of chunk sizes, of trailers: they must end
            current.head_bytes += len(received)
            if current.head_bytes > HEADER_BYTES_MAX:
                self._fail(_header_too_large(current.target))
        return _NOTHING

    def _stay_with_http_1(self, rest: memoryview) -> memoryview:
        """A request that offers another protocol is served as it is (RFC 9110, 7.8).

        The parser has left its body, which `rest` starts with, to that protocol.
        """
        if self._is_ending:  # refused by its head already
            return _NOTHING
        current = self._current
        if current.transfer_coding:
            self._fail(InvalidRequestError("a chunked body with Upgrade; leave out Upgrade"))
            return _NOTHING
        self._parser = httptools.HttpRequestParser(self)
        current.body = bytes(rest[: current.content_bytes])
        current.received_bytes = len(current.body)
        rest_bytes = current.content_bytes - current.received_bytes
        try:
            self._take_memory(current.received_bytes)
        except TailraceError as error:
            self._refuse(error)
        if rest_bytes:
            self._receive_directly(rest_bytes)
            return _NOTHING
        self._complete()
        return rest[current.received_bytes :]

    def _is_large(self, rest_bytes: int) -> bool:
        """Return whether the rest of a body should bypass the parser: it is large and serious."""
        current = self._current
        has_begun = current.received_bytes * DIRECT_BODY_SHARE >= current.content_bytes
        return rest_bytes >= DIRECT_BODY_BYTES_MIN and (has_begun or current.refused is not None)

    def _receive_directly(self, rest_bytes: int) -> None:
        """Let the rest of the body bypass the parser."""
        current = self._current
        try:
            if current.refused is None:
                self._take_memory(rest_bytes)
        except TailraceError as error:
            self._refuse(error)
        if current.refused is not None and rest_bytes > DISCARD_BYTES_MAX:
            self._fail(current.refused)
        elif current.refused is not None:
            self._discard_bytes = rest_bytes
        else:
            self._direct_body = bytearray(current.content_bytes)
            self._direct_body[: current.received_bytes] = current.body

    def _answer_expectation(self) -> None:
        """`Expect: 100-continue`: ask for the body, or say at once why not (RFC 9110, 10.1.1).

        Of a body that is too large the line that makes it so is worth asking for.
        """
        current = self._current
        is_searched = current.long_line is not None and current.content_bytes <= DISCARD_BYTES_MAX
        if current.refused is not None and not is_searched:
            self._fail(current.refused)
        elif self._transport is not None and not len(self._answers):
            self._transport.write(_CONTINUE)  # behind others' answers the peer stops waiting itself

    def _complete(self) -> None:
        """Hand over a whole request and be ready for the next."""
        self._stop_deadline()
        exchange, self._current = self._current, Exchange()
        if exchange.long_line is not None and exchange.long_line.number is not None:
            exchange.refused = _line_too_large(
                exchange.long_line.number, self._broker.max_request_bytes
            )
        self._is_ending = not exchange.keeps_alive
        if self._is_ending or len(self._answers) >= PIPELINED_MAX:
            self._pause_reading()
        self._answers.add(exchange)

    def _refuse(self, error: TailraceError) -> None:
        """This is its answer; nothing that came of its body is kept."""
        current = self._current
        current.refused = error
        current.body = b""
        self._answers.return_memory(current)

    def _fail(self, error: TailraceError) -> None:
        """Refuse a request that is not whole, or not readable, and close behind the answer."""
        if self._is_ending:
            return
        self._direct_body, self._discard_bytes = None, 0
        self._refuse(error)
        self._current.keeps_alive = False
        self._complete()

    def _check_body_size(self, body_bytes: int) -> None:
        bytes_max = self._broker.max_request_bytes
        if body_bytes > bytes_max:
            if self._current.has_lines():
                self._current.long_line = LongLine(bytes_max)
            raise BodyTooLargeError(
                f"the body is over {bytes_max} bytes; send fewer events a request, or "
                "split the event",
                maxRequestBytes=bytes_max,
            )

    def _look_for_long_line(self, chunk: bytes | bytearray) -> None:
        if self._current.long_line is not None:
            self._current.long_line.add(chunk)

    def _take_memory(self, size_bytes: int) -> None:
        """ProduceMemoryFullError when the bound is reached."""
        self._broker.take_produce_memory(size_bytes)
        self._current.memory_bytes += size_bytes

    # --- pace ---

    def _on_sent(self) -> None:
        """Note that an answer, or a chunk of one, was sent."""
        self._active_s = self._loop.time()
        self._resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Unless one of the reasons to pause is left."""
        if self._transport is None or self._is_ending or not self._is_paused:
            return
        if len(self._answers) < PIPELINED_MAX // 2 and self._answers.can_write.is_set():
            self._is_paused = False
            self._transport.resume_reading()

    def _start_deadline(self) -> None:
        """The head has its time; with the body it has some more."""
        self._began_s = self._loop.time()
        self._await_rest()

    def _await_rest(self) -> None:
        current, bounds = self._current, self._connections
        what, seconds = (
            ("request", bounds.request_seconds)
            if current.is_in_body
            else ("head of the request", bounds.header_seconds)
        )
        self._deadline = self._loop.call_at(
            self._began_s + seconds, self._expire, what, seconds, current.is_in_body
        )

    def _expire(self, what: str, seconds: float, was_in_body: bool) -> None:
        """Close a connection whose request did not arrive in time, to free its memory."""
        if self._is_paused:  # it is not the peer that is slow
            self._start_deadline()
        elif self._current.is_in_body and not was_in_body:
            self._await_rest()
        else:
            late = RequestTimeoutError(
                f"the {what} did not arrive whole within {seconds:g} s; nothing was stored"
            )
            self._fail(self._current.refused or late)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _check_idle(self) -> None:
        """Close a connection that has no request, and nothing to take."""
        transport, loop = self._transport, self._loop
        assert transport is not None
        is_waited_for = self._current.has_begun or self._pace_check is not None  # for a time
        if len(self._answers) or is_waited_for:
            self._active_s = loop.time()
        closes_s = self._active_s + self._connections.idle_seconds
        if loop.time() >= closes_s:
            transport.abort()
        else:
            self._idle_check = loop.call_at(closes_s, self._check_idle)

    def _start_pace_check(self) -> None:
        """Give the peer a time from now on to take some of what is unsent."""
        transport, loop = self._transport, self._loop
        assert transport is not None
        unsent_bytes = transport.get_write_buffer_size()
        due_bytes = self._answers.written_bytes - unsent_bytes + min(unsent_bytes, TAKEN_BYTES_MIN)
        self._pace_check = loop.call_later(
            self._connections.answer_seconds, self._check_pace, due_bytes
        )

    def _check_pace(self, due_bytes: int) -> None:
        """Close a connection whose peer hardly takes its answers: others need the memory."""
        transport = self._transport
        assert transport is not None
        if self._answers.written_bytes - transport.get_write_buffer_size() >= due_bytes:
            self._start_pace_check()
        else:
            self._broker.counters.slow_readers_dropped += 1
            transport.abort()

    def _stop_pace_check(self) -> None:
        if self._pace_check is not None:
            self._pace_check.cancel()
            self._pace_check = None

    def _end_sending(self) -> None:
        """The last answer is on its way: nothing follows it, and nothing is taken any more."""
        transport = self._transport
        assert transport is not None
        self._is_ending = self._is_last_sent = True
        transport.write_eof()
        self._is_paused = False
        transport.resume_reading()
        if not transport.get_write_buffer_size():  # else `resume_writing` says when all has left
            self._linger()

    def _linger(self) -> None:
        """All is sent: wait a little for the peer's end."""
        transport = self._transport
        assert transport is not None
        assert self._idle_check is not None
        self._idle_check.cancel()
        loop = self._loop
        self._idle_check = loop.call_later(LINGER_SECONDS, transport.abort)


def _line_too_large(number: int, bytes_max: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"line {number} is over {bytes_max} bytes, and a request has at most so many; split the "
        "event",
        maxRequestBytes=bytes_max,
        line=number,
    )


def _header_too_large(target: bytes) -> HeaderTooLargeError:
    """Says what to do: mostly it is a key, which takes up to three bytes of the URL for each."""
    is_key = b"partitionKey=" in target and len(target) > HEADER_BYTES_MAX // 2
    what = "partitionKey travels in the URL" if is_key else "send fewer or shorter headers"
    remedy = (
        f"{what}; a longer key goes in the body, as {RECORDS_JSON_CONTENT_TYPE} or "
        f"{RECORDS_CONTENT_TYPE} (in Python by produce_records or a Producer)"
    )
    return HeaderTooLargeError(
        f"request line and headers are over {HEADER_BYTES_MAX} bytes; {remedy}"
    )
