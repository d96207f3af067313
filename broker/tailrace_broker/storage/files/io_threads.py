"""A small bounded pool of threads for blocking disk calls, with one wake-up for many completions.

`loop.run_in_executor` costs two futures and a wake-up of the loop a call, about 40 µs; this costs
a queue put and a share of a wake-up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from tailrace_broker.model.errors import DiskFullError, StorageFailedError, TailraceError
from tailrace_broker.storage.files.writes_under_way import IoThread

T = TypeVar("T")
Done = Callable[[Any, TailraceError | None], None]


class IoThreads:
    """Runs blocking work in threads and hands the results to the event loop.

    Work may raise TailraceError; anything else is our bug and goes to `on_bug`.
    """

    def __init__(
        self, count: int, on_bug: Callable[[BaseException], None], *, name: str = "io"
    ) -> None:
        """`name`: the prefix of the threads' names."""
        self._work: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        self._completed: deque[tuple[Done, Any, TailraceError | None]] = deque()
        self._is_woken = False
        self._is_stopped = False  # no thread is left
        self.full_at_s: float | None = None  # when the disk last had no room, monotonic
        self._on_bug = on_bug
        # Work that finds the disk full, which leaves nothing behind, is run again in what is freed.
        self.with_room: Callable[[Callable[[], Any]], Any] = _run_once
        self._loop = asyncio.get_running_loop()
        self._threads = [
            IoThread(target=self._run, name=f"{name}-{index}", daemon=True)
            for index in range(count)
        ]

    @property
    def count(self) -> int:
        """How many jobs are done at a time."""
        return len(self._threads)

    @property
    def writes_since_s(self) -> float | None:
        """When the oldest write under way began, on the monotonic clock; None: there is none."""
        began_s = [each.writes_since_s for each in self._threads]
        return min((each for each in began_s if each is not None), default=None)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(
        self, work: Callable[[], T], done: Callable[[T, TailraceError | None], None]
    ) -> None:
        """Run `work` in a thread, then `done(result, error)` on the loop.

        StorageFailedError when the threads have ended.
        """
        self._work.put((work, done))
        if self._is_stopped:
            self._refuse_queued()

    def note_full(self) -> None:
        """The disk had no room, as the result of a job says. In any thread."""
        self.full_at_s = monotonic()

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop, after what this turn still brings."""
        self._loop.call_soon(action)

    async def run(self, work: Callable[[], T]) -> T:
        """`submit` for callers that can wait."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit(work, partial(settle, future))
        try:
            return await future
        finally:
            del future  # else an error would keep itself, and what its traceback sees

    def stop(self) -> None:
        """Finish the work that is queued, then end the threads; blocks."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._is_stopped = True
        self._refuse_queued()  # from another thread, some may have come meanwhile

    def _refuse_queued(self) -> None:
        with suppress(Empty):
            while True:
                item = self._work.get_nowait()
                if item is not None:
                    error = StorageFailedError("the broker is stopping: it does not use its disk")
                    self._loop.call_soon_threadsafe(item[1], None, error)

    def _run(self) -> None:
        while self._do_next():
            pass  # nothing is kept of what is done: a result may be a view of a pinned buffer

    def _do_next(self) -> bool:
        """Do the next job; return whether there is more to come."""
        item = self._work.get()
        if item is None:
            return False
        work, done = item
        try:
            self._completed.append((done, self.with_room(work), None))
        except TailraceError as error:
            if isinstance(error, DiskFullError):
                self.note_full()
            self._completed.append((done, None, error))
        except BaseException as error:  # noqa: BLE001  a supervisor: hands bugs to the runtime
            self._loop.call_soon_threadsafe(self._on_bug, error)
            return False
        finally:
            del item, work, done  # else an error would keep itself, as in `run`
        # Set before the wake-up, cleared before the queue is drained: no completion is missed.
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._deliver)
        return True

    def _deliver(self) -> None:
        """Runs on the loop; takes all that has completed since the wake-up."""
        self._is_woken = False
        while self._completed:
            done, result, error = self._completed.popleft()
            done(result, error)


def _run_once(work: Callable[[], T]) -> T:
    return work()


def settle(future: "asyncio.Future[T]", result: T, error: TailraceError | None) -> None:
    """Give the result to who waits for it, unless nobody does any more."""
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
