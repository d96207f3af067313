"""One group's events on their way to `__groups`: what is appended, and who waits for it.

A group event is applied when it is stored. Positions run ahead of what is stored: those that polls
move gather for a moment, and go together. A crash forgets them, and what was delivered in that
moment is delivered again.

An append that is given up may be committed later in the same epoch. Until then the group is in
doubt, and nothing is decided on it: a successor would apply what this coordinator does not have.
"""

import asyncio
from collections.abc import Callable, Container, Coroutine
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from tailrace_broker.core.groups.group import Group
from tailrace_broker.groups.log import GroupLog
from tailrace_broker.model.append_outcome import AppendFailed
from tailrace_broker.model.errors import NotReadyError, TailraceError
from tailrace_broker.model.group import Committed, GroupEvent, GroupSnapshot

Waiter = asyncio.Future[None]
_Done = Callable[[TailraceError | None], None]

# How long positions gather; a commit does not wait for it.
SAVE_SECONDS = 0.1

_log = structlog.get_logger()


class GroupWriter:
    """Changes on the event loop only. DiskFullError, StorageFailedError, CorruptPartitionError."""

    def __init__(
        self,
        group: Group,
        log: GroupLog,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        clock_us: Callable[[], int],
        *,
        is_kept: Callable[[], bool],
        on_stored: Callable[[GroupEvent], None],
        on_ended: Callable[[], None],
    ) -> None:
        """`clock_us`: of sessions; `is_kept`: the group exists.

        `on_stored`: a group event is, in the order of the log; `on_ended`: an append has.
        """
        self._group = group
        self._log = log
        self._spawn = spawn
        self._clock_us = clock_us
        self._is_kept = is_kept
        self._on_stored = on_stored
        self._on_ended = on_ended
        self._appends = 0  # under way, or in doubt
        self._doubts = 0
        self._is_saving = False  # positions are under way
        self._save_timer: asyncio.TimerHandle | None = None
        self._unsaved: list[Waiter] = []  # for the save that begins next
        self._when_settled: list[Callable[[], None]] = []  # no append is under way

    @property
    def is_in_doubt(self) -> bool:
        """An append was given up and may be committed later, which is then applied."""
        return self._doubts > 0

    def check_settled(self) -> None:
        """NotReadyError while the group is in doubt."""
        if self.is_in_doubt:
            raise NotReadyError(
                f'whether the last change of group "{self._group.name}" is stored is not known '
                "yet; try again"
            )

    async def store(self, event: GroupEvent) -> None:
        """Append a group event; it has been applied on return. The group is not in doubt.

        Who is cancelled returns when the append has ended, too: what it holds keeps others from
        deciding on a group that does not have the event yet.
        """
        waiter: Waiter = asyncio.get_running_loop().create_future()

        def done(error: TailraceError | None) -> None:
            if error is None:
                self._group.apply(event, self._clock_us())
                self._on_stored(event)
            end(waiter, error)

        self._append(event, done)
        was_cancelled = False
        while not waiter.done():
            try:
                await asyncio.wait([waiter])
            except asyncio.CancelledError:
                was_cancelled = True
        error = waiter.exception()
        if was_cancelled:
            raise asyncio.CancelledError
        if error is not None:
            raise error

    def save_soon(self) -> None:
        """Store the positions in a moment; there is no timer while nothing moves."""
        if self._save_timer is None:
            loop = asyncio.get_running_loop()
            self._save_timer = loop.call_later(SAVE_SECONDS, self._save)

    def _save(self) -> None:
        """Store the positions now; those that commits wait for meanwhile when that has ended."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if self._is_saving:
            return
        committed = self._group.uncommitted()
        waiters, self._unsaved = self._unsaved, []

        def done(error: TailraceError | None) -> None:
            self._is_saving = False
            if error is None and committed is not None:
                self._group.saved(committed)
                if self._group.uncommitted() is not None:
                    self.save_soon()
            elif error is not None:  # the next poll or commit tries again
                _log.warning("commit.failed", group=self._group.name, detail=error.detail)
            for waiter in waiters:
                end(waiter, error)

        if committed is None:
            done(None)
        else:
            self._is_saving = True
            self._append(committed, done)

    async def saved(self) -> None:
        """Once the positions of now are stored; a save that fails is tried once more."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._unsaved.append(waiter)
        self._save()
        await waiter

    def topic_ids(self) -> set[UUID]:
        """Return the topics that the group has positions in."""
        return {partition.topic_id for partition in self._group.stored}

    async def append_snapshot(self, gone: Container[UUID]) -> None:
        """All of the group, when nothing of it is under way: a snapshot must know what it follows.

        Positions in topics that are `gone` are left out.
        """
        waiter: Waiter = asyncio.get_running_loop().create_future()

        def append() -> None:
            if self._is_kept():
                self._append(self._group.snapshot(gone), partial(end, waiter))
            else:
                end(waiter)

        if self._appends:
            self._when_settled.append(append)
        else:
            append()
        await waiter

    def _append(self, event: GroupEvent, done: _Done) -> None:
        def ended(failed: AppendFailed | None) -> None:
            if failed is not None and failed.written_end is not None:
                self._doubts += 1
                self._spawn(self._settle(event, failed.written_end))
            else:
                self._appends -= 1
                if failed is not None:
                    self._group.failed(event)
            done(None if failed is None else failed.error)
            self._go_on()

        self._appends += 1
        try:
            self._log.append(self._group.name, event, ended)
        except TailraceError as error:
            ended(AppendFailed(error))

    async def _settle(self, event: GroupEvent, written_end: int) -> None:
        """Apply an event that was given up, if it is committed all the same."""
        if not await self._log.has_committed(written_end):
            return  # another coordinator reads what the log has
        self._doubts -= 1
        self._appends -= 1
        if isinstance(event, Committed):
            self._group.saved(event)
        elif not isinstance(event, GroupSnapshot):
            self._group.apply(event, self._clock_us())
            self._on_stored(event)
        self._go_on()

    def _go_on(self) -> None:
        """An append has ended, or is not in doubt any more."""
        while self._when_settled and not self._appends:
            self._when_settled.pop()()
        if self._unsaved:
            self._save()
        self._on_ended()


def end(waiter: Waiter, error: TailraceError | None = None) -> None:
    """End a wait, unless nobody waits any more."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
