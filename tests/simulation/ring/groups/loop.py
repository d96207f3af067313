"""The event loop of one simulated process: the shipped shell runs on it, in the ring's own time.

A callback is an event of the schedule. So nothing happens while its process is paused, and what a
dead process has begun never goes on.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from tests.simulation.ring.schedule import Schedule

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ProcessLoop(asyncio.BaseEventLoop):
    """Nobody runs it: the schedule does, callback by callback."""

    def __init__(self, schedule: Schedule, do: Callable[[Callable[[], None]], None]) -> None:
        """`do` has something happen now, later when the process is paused, never when it is
        dead.
        """
        super().__init__()
        self._schedule = schedule
        self._do = do
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._bug: BaseException | None = None
        self._is_over = False
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Of the schedule."""
        return self._schedule.now_us / 1e6

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """In a step of its own, at the same moment."""
        handle = asyncio.Handle(callback, args, self, context)
        self._schedule.after(0, partial(self._do, partial(self._run, handle)))
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """A microsecond late: what has to wait until then finds that it is over."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        when_us = round(when * 1e6) + 1
        self._schedule.at(when_us, partial(self._do, partial(self._run, timer)))
        return timer

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it; what it does not catch is a bug, and ends the scenario."""
        if self._is_over:
            work.close()
            return cast(asyncio.Task[T], self.create_future())
        task = self.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    @contextmanager
    def running(self) -> Iterator[None]:
        """For what the process does outside of callbacks."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def abandon(self) -> None:
        """At the end of a scenario: what is under way ends, whatever it says to that."""
        self._is_over = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException), self.running():
                task.get_coro().close()
        self._tasks.clear()

    def __del__(self) -> None:
        """It has nothing that must be closed."""

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            with self.running():
                handle._run()
            if self._bug is not None:
                raise self._bug

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._bug = task.exception()

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._bug = self._bug or context.get("exception")
