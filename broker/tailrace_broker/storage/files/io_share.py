"""A part of the I/O threads: of its jobs so many at most are with them, the others wait here.

The threads take jobs in the order of their arrival. What comes by the hundred would have all others
wait for all of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.files.io_threads import IoThreads, settle

T = TypeVar("T")
Done = Callable[[Any, TailraceError | None], None]


class IoShare:
    """State changes on the event loop only."""

    def __init__(self, io: IoThreads, jobs_max: int) -> None:
        """A `jobs_max` below the number of threads leaves one for others at any time.

        With a larger one others wait for so many of its jobs at most, whatever waits here.
        """
        assert jobs_max > 0
        self._io = io
        self._free = jobs_max
        self._waiting: deque[tuple[Callable[[], Any], Done]] = deque()

    def submit(
        self, work: Callable[[], T], done: Callable[[T, TailraceError | None], None]
    ) -> None:
        """As `IoThreads.submit`, when it is its turn."""
        if self._free:
            self._free -= 1
            self._io.submit(work, partial(self._on_done, done))
        else:
            self._waiting.append((work, done))

    async def run(self, work: Callable[[], T]) -> T:
        """`submit` for callers that can wait. What waits here goes with a caller that gives up."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = (work, partial(settle, future))
        self.submit(*job)
        try:
            return await future
        except asyncio.CancelledError:
            with suppress(ValueError):  # it has begun
                self._waiting.remove(job)
            raise
        finally:
            del future, job  # else an error would keep itself, and what its traceback sees

    def _on_done(self, done: Done, result: Any, error: TailraceError | None) -> None:
        self._free += 1
        if self._waiting:
            self.submit(*self._waiting.popleft())
        done(result, error)


# What takes a job.
Io = IoThreads | IoShare
