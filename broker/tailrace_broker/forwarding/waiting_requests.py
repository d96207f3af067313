"""Counts the requests that wait for other brokers, and bounds them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import NotReadyError, TailraceError, TooManyForwardedError


class WaitingRequests:
    """Appends and reads. `is_stopping`: no more are taken."""

    def __init__(self, counters: Counters, count_max: int) -> None:
        self.count = 0
        self.is_stopping = False
        self._counters = counters
        self._count_max = count_max
        self._all_answered = asyncio.Event()

    def refusal(self) -> TailraceError | None:
        """Why one more is not taken."""
        if self.is_stopping:
            return NotReadyError("the broker stops; send it again")
        if self.count < self._count_max:
            return None
        self._counters.forwards_refused += 1
        return TooManyForwardedError(
            f"{self._count_max} requests wait for the brokers to which this one forwarded them; "
            "nothing was stored, send it again",
            forwardedMax=self._count_max,
        )

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """While the block lasts. TooManyForwardedError, NotReadyError."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        self.count += 1
        try:
            yield
        finally:
            self.end_one()

    def end_one(self) -> None:
        """A request has its answer."""
        self.count -= 1
        if not self.count:
            self._all_answered.set()

    async def all_answered(self) -> None:
        """Once none waits any more."""
        self._all_answered.clear()
        while self.count:
            await self._all_answered.wait()
