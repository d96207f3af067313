"""Purges the trash: one task that sleeps until something has lain there long enough.

The ring remembers what can be restored; who leads its metadata has it forgotten in time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.trash import Trash

# A clock that is set back or ahead is noticed after this long.
SLEEP_SECONDS_MAX = 3600.0
# Until what is due, and not gone, is looked at again: the ring has not forgotten it.
SLEEP_SECONDS_MIN = 1.0


class TrashPurger:
    """While nothing lies in the trash there is no task."""

    def __init__(
        self,
        trash: Trash,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now_us: Callable[[], int],
        *,
        retention_us: int,
        purge_agreed: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """`retention_us`: how long a deleted topic's data stays; `purge_agreed`: has the ring
        forget what was deleted by then, and tells when the oldest was that it has not forgotten,
        None: there is none.
        """
        self._trash = trash
        self._io = io
        self._spawn = spawn
        self._now_us = now_us
        self._retention_us = retention_us
        self._purge_agreed = purge_agreed
        self._changed = asyncio.Event()
        self._is_running = False
        self._is_stopped = False

    def look(self) -> None:
        """There may be something in the trash."""
        self._changed.set()
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    def stop(self) -> None:
        """End the task; what lies there waits for the next start."""
        self._is_stopped = True
        self._changed.set()

    async def _run(self) -> None:
        """Purge and sleep until nothing is left."""
        while not self._is_stopped:
            self._changed.clear()
            now_us = self._now_us()
            before_us = now_us - self._retention_us
            kept_us = [await self._io.run(partial(self._trash.purge, before_us))]
            kept_us.append(self._purge_agreed(before_us))
            if self._changed.is_set():
                continue
            oldest_us = min((each for each in kept_us if each is not None), default=None)
            if oldest_us is None:
                break
            due_seconds = (oldest_us + self._retention_us - now_us) / 1e6
            is_due = due_seconds <= 0
            sleep_seconds = SLEEP_SECONDS_MIN if is_due else min(due_seconds, SLEEP_SECONDS_MAX)
            with suppress(TimeoutError):
                async with asyncio.timeout(sleep_seconds):
                    await self._changed.wait()
        self._is_running = False
