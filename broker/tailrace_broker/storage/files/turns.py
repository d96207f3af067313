"""Who may write a log's segments: one at a time, in the order of asking."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """On the event loop only. Whoever has the turn ends it, maybe much later."""

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[Callable[[], None]] | None = None

    def take(self, begin: Callable[[], None]) -> None:
        """Call `begin` when it is its turn, at once when nobody has it."""
        if self._is_taken:
            self._waiting = [*(self._waiting or ()), begin]
        else:
            self._is_taken = True
            begin()

    def end(self) -> None:
        """Release the lock to the next one."""
        assert self._is_taken
        if self._waiting:
            begin, *rest = self._waiting
            self._waiting = rest or None
            begin()
        else:
            self._is_taken = False

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the lock in a task; one that is cancelled while it waits leaves its place."""
        begun = asyncio.Event()
        begin = begun.set
        self.take(begin)
        try:
            await begun.wait()
        except asyncio.CancelledError:
            if begun.is_set():
                self.end()
            else:
                assert self._waiting is not None
                self._waiting = [each for each in self._waiting if each != begin] or None
            raise
        try:
            yield
        finally:
            self.end()
