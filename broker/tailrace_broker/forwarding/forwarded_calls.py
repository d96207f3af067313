"""Requests that other brokers took, and that this one answers as the leader, part by part.

Appends are no such requests (`forwarding/forwarded.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tailrace.wire import JSON_CONTENT_TYPE
from tailrace_broker.codec.forwarded_errors import failed_request
from tailrace_broker.model.errors import InvalidParameterError, MethodNotAllowedError, TailraceError
from tailrace_broker.model.forwarding import (
    PRODUCERS,
    CallAnswer,
    CallCancelled,
    CallFailed,
    CallMore,
    CallPart,
    ForwardedCall,
)
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.answers import Spawn
from tailrace_broker.net.http.router import Call, Match, Response
from tailrace_broker.net.replication.link import Link

# Answers that are remembered until it is too late to take them back.
SENT_MAX = 10_000
# Of a body in one message.
PART_BYTES = 512 * 1024


class ForwardedCalls:
    """State changes on the event loop only."""

    def __init__(
        self,
        broker: Broker,
        match: Callable[[], Match],
        spawn: Spawn,
        producers_of: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        """`match`: finds their routes. `producers_of`: answers `PRODUCERS`."""
        self._producers_of = producers_of
        self._broker = broker
        self._match = match
        self._spawn = spawn
        self._tasks: dict[tuple[Link, int], asyncio.Task[None]] = {}
        self._wanted: dict[tuple[Link, int], asyncio.Event] = {}  # the next part is
        # What is called when an answer that was sent has not reached who asked; the latest last.
        self._sent: dict[tuple[Link, int], Callable[[], None]] = {}

    def received(self, link: Link, message: ForwardedCall | CallMore | CallCancelled) -> None:
        """Begin, go on, or end."""
        place = link, message.number
        match message:
            case ForwardedCall():
                self._wanted[place] = asyncio.Event()
                task = self._tasks[place] = self._spawn(self._answer(link, message))
                task.add_done_callback(lambda _: self._ended(place))
            case CallMore():
                if place in self._wanted:
                    self._wanted[place].set()
            case CallCancelled():
                if place in self._tasks:
                    self._tasks[place].cancel()
                self._lost(place)

    def lost(self, link: Link) -> None:
        """Nobody waits for answers on this link."""
        for (asked_on, _), task in self._tasks.items():
            if asked_on is link:
                task.cancel()
        for place in [place for place in self._sent if place[0] is link]:
            self._lost(place)

    def _lost(self, place: tuple[Link, int]) -> None:
        on_lost = self._sent.pop(place, None)
        if on_lost is not None:
            on_lost()

    async def _answer(self, link: Link, message: ForwardedCall) -> None:
        place = link, message.number
        try:
            response = await self._respond(message)
            if response.on_lost is not None:
                self._sent[place] = response.on_lost
                if len(self._sent) > SENT_MAX:
                    del self._sent[next(iter(self._sent))]
            await self._send(link, message.number, response)
            if link.is_closed:
                self._lost(place)
        except TailraceError as error:
            link.send(CallFailed(failed_request(message.number, error)))

    def _ended(self, place: tuple[Link, int]) -> None:
        """Answered, or cancelled, maybe before its first step."""
        del self._tasks[place], self._wanted[place]

    async def _respond(self, message: ForwardedCall) -> Response:
        """Run the handler of the route. What it raises."""
        if message.method == PRODUCERS:
            return Response((await self._producers_of(message.target),))
        matched = self._match()(message.method.encode(), message.target)
        if isinstance(matched.parameters, InvalidParameterError):
            raise matched.parameters.with_traceback(None)  # others of this target share it
        handle = matched.route.handle
        if handle is None or matched.route.is_admin:
            raise MethodNotAllowedError("no broker answers this for another", allowed="")
        call = Call(
            matched.parameters,
            message.content_type or JSON_CONTENT_TYPE,
            message.accept,
            message.body,
            dict(message.headers),
            message.target,
            is_forwarded=True,
            method=message.method,
        )
        return await handle(self._broker, call)

    async def _send(self, link: Link, number: int, response: Response) -> None:
        """Part by part, each when the one before was taken; the last is never empty but alone."""
        _, content_type, status, headers, _, _ = response
        head: CallAnswer | CallPart = CallAnswer(number, status, content_type, headers, False)
        ready: list[bytes | memoryview] = []
        ready_bytes = 0
        async for piece in _pieces(response.body):
            if ready and ready_bytes + len(piece) > PART_BYTES:
                link.send(head, ready)
                head, ready, ready_bytes = CallPart(number, False), [], 0
                wanted = self._wanted[link, number]
                await wanted.wait()
                wanted.clear()
            ready.append(piece)
            ready_bytes += len(piece)
        link.send(head._replace(is_last=True), ready)


async def _pieces(
    body: Sequence[bytes | memoryview] | AsyncIterator[bytes],
) -> AsyncIterator[memoryview]:
    """A body as buffers that fit into a part; none of them is empty."""
    if isinstance(body, AsyncIterator):
        async for piece in body:
            await asyncio.sleep(0)  # a piece takes milliseconds: others come in between
            for part in _parts(piece):
                yield part
    else:
        for buffer in body:
            for part in _parts(buffer):
                yield part


def _parts(buffer: bytes | memoryview) -> list[memoryview]:
    view = memoryview(buffer)
    return [view[start : start + PART_BYTES] for start in range(0, len(view), PART_BYTES)]
