"""Requests that other brokers answer: asked on the link to them, and passed on part by part.

A part is asked for when the one before has been taken, so a slow reader holds one part of memory
and keeps nobody else waiting.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from tailrace_broker.codec.forwarded_errors import error_of
from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.forwarding.waiting_requests import WaitingRequests
from tailrace_broker.memory.pool import Lease
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.errors import (
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    TailraceError,
)
from tailrace_broker.model.forwarding import (
    PRODUCERS,
    CallAnswer,
    CallCancelled,
    CallFailed,
    CallMore,
    CallPart,
    ForwardedCall,
)
from tailrace_broker.net.broker import LeaderAnswer, OpenTopic, contents_of
from tailrace_broker.net.replication.link import Link

T = TypeVar("T")

# After a read that nobody could answer, until the next try.
RETRY_SECONDS = 0.05
_WAIT_MS = re.compile(rb"[?&]waitMs=([0-9]{1,9})")


class _Arrived(NamedTuple):
    message: CallAnswer | CallPart
    payload: memoryview


class _Reading:
    """One read. What has arrived of it and is not taken is one part at most."""

    def __init__(self, link: Link, number: int, *, is_repeatable: bool) -> None:
        self._is_repeatable = is_repeatable
        self.link = link
        self.number = number
        self.is_over = False
        self._arrived: asyncio.Queue[_Arrived | TailraceError] = asyncio.Queue()

    def put(self, arrived: _Arrived | TailraceError) -> None:
        self._arrived.put_nowait(arrived)

    async def next(self, timeout_s: float) -> _Arrived:
        """The next part, or raise what came instead."""
        try:
            async with asyncio.timeout(timeout_s):
                arrived = await self._arrived.get()
        except TimeoutError:
            raise self.not_heard() from None
        if isinstance(arrived, TailraceError):
            self.is_over = True
            raise arrived
        self.is_over = arrived.message.is_last
        return arrived

    def not_heard(self) -> TailraceError:
        """Say that no answer has come, or not all of it."""
        if self._is_repeatable:
            return _not_heard()
        return OutcomeUnknownError(
            "the broker that this request was forwarded to does not answer; it may have been "
            "executed: send it again"
        )


class CallForwarder:
    """State changes on the event loop only."""

    def __init__(
        self,
        ordinal: int,
        link_to: Callable[[int], Link | None],
        waiting: WaitingRequests,
        memory: ReadMemory,
        timeout_s: float,
    ) -> None:
        """`link_to`: the link to a broker, if there is one. `timeout_s`: until a read fails, and
        how long a broker has for each part.
        """
        self._ordinal = ordinal
        self._link_to = link_to
        self._waiting = waiting
        self._memory = memory
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._readings: dict[tuple[Link, int], _Reading] = {}

    async def read_at_leader(
        self,
        hosted: OpenTopic,
        partition: int,
        target: bytes,
        accept: str,
        here: Callable[[], Awaitable[T]],
    ) -> T | LeaderAnswer:
        """See `Broker.read_at_leader`. A read changes nothing: it is repeated in any case."""
        late_s = self._loop.time() + self._timeout_s
        wait_ms = _WAIT_MS.search(target)
        while True:
            try:
                leader = _leader_of(hosted, partition)
                if leader in (None, self._ordinal):
                    return await here()
                request = ForwardedCall(0, target, accept)
                return await self.forward(leader, request, int(wait_ms[1]) if wait_ms else 0)
            except (NotLeaderError, NoLeaderError, NotReadyError):
                if self._waiting.is_stopping or self._loop.time() >= late_s:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def ask(self, ordinal: int, target: bytes) -> bytes:
        """See `Broker.ask_broker`."""
        answer = await self.forward(ordinal, ForwardedCall(0, target, ""))
        return await contents_of(answer)

    async def ask_producers(self, ordinal: int, target: bytes) -> bytes:
        """Return what that broker knows of a sealed partition's producers (`topics/`)."""
        answer = await self.forward(ordinal, ForwardedCall(0, target, "", PRODUCERS))
        return await contents_of(answer)

    async def forward(
        self,
        ordinal: int,
        request: ForwardedCall,
        wait_ms: int = 0,
        *,
        waits_for_memory: bool = True,
    ) -> LeaderAnswer:
        """See `Broker.forward_call`."""
        link = self._link_to(ordinal)
        if link is None:
            raise _not_heard()
        with self._waiting.one_more():
            return await self.read(link, request, wait_ms / 1000, waits_for_memory=waits_for_memory)

    async def read(
        self,
        link: Link,
        request: ForwardedCall,
        wait_s: float,
        *,
        waits_for_memory: bool = True,
    ) -> LeaderAnswer:
        """Return the answer of the broker at the other end; what it raises; NoLeaderError, of other
        requests than a GET OutcomeUnknownError.

        `wait_s`: how much longer it may take, since it waits for records.
        """
        self._number += 1
        reading = self._readings[link, self._number] = _Reading(
            link, self._number, is_repeatable=request.method == "GET"
        )
        link.send(request._replace(number=reading.number))
        is_begun = False
        try:
            head, payload = await reading.next(self._timeout_s + wait_s)
            assert isinstance(head, CallAnswer)
            lease = self._memory.lease()
            if waits_for_memory:
                await self._memory.run(partial(_hold, lease, len(payload)))
            else:
                lease.resize(len(payload))
            is_begun = True
        finally:
            if not is_begun:
                self._cancel(reading)
            elif reading.is_over:
                self._forget(reading)
        lost = partial(self._cancel, reading)
        whole = head.content_type, head.status, head.headers, lease, lost
        if head.is_last:
            return LeaderAnswer((payload,), *whole)
        return LeaderAnswer(self._rest(reading, payload), *whole)

    async def _rest(self, reading: _Reading, payload: memoryview) -> AsyncIterator[bytes]:
        """The parts, one after the other; an empty one before each that must be waited for."""
        try:
            while True:
                yield bytes(payload)
                if reading.is_over:
                    return
                yield b""
                reading.link.send(CallMore(reading.number))
                _, payload = await reading.next(self._timeout_s)
        finally:
            if reading.is_over:
                self._forget(reading)
            else:
                self._cancel(reading)

    def received(self, link: Link, frame: LinkFrame) -> None:
        """Take an answer, a part of one, or why there is none."""
        message = frame.message
        arrived: _Arrived | TailraceError
        if isinstance(message, CallFailed):
            number, arrived = message.failure.number, error_of(message.failure)
        else:
            assert isinstance(message, CallAnswer | CallPart)
            number, arrived = message.number, _Arrived(message, frame.payload)
        reading = self._readings.get((link, number))
        if reading is not None:
            reading.put(arrived)
        if frame.payload:
            link.consumed(len(frame.payload))

    def lost(self, link: Link) -> None:
        """Nothing more comes on this link."""
        for reading in self._readings.values():
            if reading.link is link:
                reading.put(reading.not_heard())

    def _cancel(self, reading: _Reading) -> None:
        """Nobody waits for the rest, or the answer has not reached who asked."""
        self._forget(reading)
        reading.link.send(CallCancelled(reading.number))

    def _forget(self, reading: _Reading) -> None:
        self._readings.pop((reading.link, reading.number), None)


def _leader_of(hosted: OpenTopic, partition: int) -> int | None:
    """The broker that serves it. None: this one, or one that is not known."""
    try:
        hosted.log_of(partition)
    except NotLeaderError as error:
        leader = error.members.get("leader")
        return leader if isinstance(leader, int) else None
    except TailraceError:
        pass
    return None


async def _hold(lease: Lease, size_bytes: int) -> None:
    lease.resize(size_bytes)


def _not_heard() -> NoLeaderError:
    return NoLeaderError("the broker that serves the partition does not answer; try again")
