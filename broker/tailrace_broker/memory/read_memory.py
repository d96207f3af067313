"""Who reads for an answer, or for a follower, waits here for room, in the order of arrival."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from tailrace_broker.memory.pool import Lease, Quota
from tailrace_broker.model.errors import ReadMemoryFullError

T = TypeVar("T")


class ReadMemory:
    """The read quota, or the catch-up quota, as the event loop sees it."""

    def __init__(self, quota: Quota, wait_seconds: float) -> None:
        self._quota = quota
        self._wait_seconds = wait_seconds
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()  # held by the first of those who wait
        self._returned = asyncio.Event()
        quota.on_returned = self._on_returned

    @property
    def used_bytes(self) -> int:
        """Return how much memory answers hold."""
        return self._quota.used_bytes

    @property
    def capacity_bytes(self) -> int:
        """Return how much memory answers may hold."""
        return self._quota.capacity_bytes

    def lease(self) -> Lease:
        """Return a lease, to hold memory for an answer that is made of more than pinned buffers."""
        return self._quota.lease()

    async def run(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`; it is called again when memory has come back.

        It must hold nothing when it fails. ReadMemoryFullError when that takes too long.
        """
        if not self._turn.locked():
            with suppress(ReadMemoryFullError):
                return await read()
        try:
            async with asyncio.timeout(self._wait_seconds), self._turn:
                while True:
                    used_bytes = self.used_bytes
                    with suppress(ReadMemoryFullError):
                        return await read()
                    await self._wait_below(max(used_bytes, self.used_bytes))
        except TimeoutError:
            raise ReadMemoryFullError(
                f"answers that their readers have not taken hold {self.used_bytes} of "
                f"{self.capacity_bytes} bytes since {self._wait_seconds:g} s; retry"
            ) from None

    async def _wait_below(self, used_bytes: int) -> None:
        """Wait until others have given something back; what a failed read returns is no room."""
        while self.used_bytes >= used_bytes:
            self._returned.clear()
            await self._returned.wait()

    def _on_returned(self) -> None:
        """Wake the waiter, from whichever thread dropped the last view."""
        if self._turn.locked():
            self._loop.call_soon_threadsafe(self._returned.set)
