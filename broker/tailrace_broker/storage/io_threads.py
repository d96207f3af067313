"""A small bounded pool of threads for blocking disk calls, with one wake-up for many completions.

`loop.run_in_executor` costs two futures and a wake-up of the loop a call, about 40 µs; this costs
a queue put and a share of a wake-up.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from tailrace_broker.model.errors import TailraceError

T = TypeVar("T")
Done = Callable[[Any, TailraceError | None], None]


class IoThreads:
    """Runs blocking work in threads and hands the results to the event loop.

    Work may raise TailraceError; anything else is our bug and goes to `on_bug`.
    """

    def __init__(self, count: int, on_bug: Callable[[BaseException], None]) -> None:
        self._work: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        self._completed: deque[tuple[Done, Any, TailraceError | None]] = deque()
        self._is_woken = False
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._run, name=f"io-{index}", daemon=True)
            for index in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(
        self, work: Callable[[], T], done: Callable[[T, TailraceError | None], None]
    ) -> None:
        """Run `work` in a thread, then `done(result, error)` on the loop."""
        self._work.put((work, done))

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop, after what this turn still brings."""
        self._loop.call_soon(action)

    async def run(self, work: Callable[[], T]) -> T:
        """`submit` for callers that can wait."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T, error: TailraceError | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(work, done)
        return await future

    def stop(self) -> None:
        """Finish the work that is queued, then end the threads; blocks."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            completion: tuple[Done, Any, TailraceError | None]
            try:
                completion = (done, work(), None)
            except TailraceError as error:
                completion = (done, None, error)
            except BaseException as error:  # noqa: BLE001  a supervisor: hands bugs to the runtime
                self._loop.call_soon_threadsafe(self._on_bug, error)
                return
            self._completed.append(completion)
            # Set before the wake-up, cleared before the queue is drained: no completion is missed.
            if not self._is_woken:
                self._is_woken = True
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Runs on the loop; takes all that has completed since the wake-up."""
        self._is_woken = False
        while self._completed:
            done, result, error = self._completed.popleft()
            done(result, error)
