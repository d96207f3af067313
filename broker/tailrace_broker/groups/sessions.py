"""Consumers of a group that make no request for too long are removed: one timer a group."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

from tailrace_broker.core.groups.group import Group
from tailrace_broker.model.errors import TailraceError

# Between two passes; and after a removal that could not be stored.
PAUSE_SECONDS_MIN = 0.1
RETRY_SECONDS = 5.0

_log = structlog.get_logger()


class GroupSessions:
    """Without consumers there is no timer."""

    def __init__(
        self,
        group: Group,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        clock_us: Callable[[], int],
        *,
        waiting: Callable[[], Iterable[str]],
        remove_expired: Callable[[], Awaitable[None]],
    ) -> None:
        """`waiting`: consumers whose polls wait, so that they are there."""
        self._group = group
        self._spawn = spawn
        self._clock_us = clock_us
        self._waiting = waiting
        self._remove_expired = remove_expired
        self._timer: asyncio.TimerHandle | None = None
        self._is_removing = False
        self._is_ended = False

    def watch(self, *, pause_seconds_min: float = PAUSE_SECONDS_MIN) -> None:
        """Watch from now on: consumers have come or gone."""
        self._stop()
        expires_us = self._group.next_expiry_us()
        if expires_us is not None and not (self._is_removing or self._is_ended):
            in_seconds = max(pause_seconds_min, (expires_us - self._clock_us()) / 1e6)
            self._timer = asyncio.get_running_loop().call_later(in_seconds, self._look)

    def end(self) -> None:
        """Remove no consumer any more: another coordinator does, also what could not be stored."""
        self._is_ended = True
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_us = self._clock_us()
        for consumer_id in self._waiting():
            if consumer_id in self._group.members:
                self._group.touch(consumer_id, now_us)
        if self._group.expired(now_us):
            self._is_removing = True
            self._spawn(self._remove())
        else:
            self.watch()

    async def _remove(self) -> None:
        pause_seconds = PAUSE_SECONDS_MIN
        try:
            await self._remove_expired()
        except TailraceError as error:
            pause_seconds = RETRY_SECONDS
            _log.warning("removal.failed", group=self._group.name, detail=error.detail)
        self._is_removing = False
        self.watch(pause_seconds_min=pause_seconds)
