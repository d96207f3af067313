"""How the leader of a child comes by what its parents remember of their producers.

With its first append in an epoch it begins to ask; that append, and all that come before it knows,
wait in their order. When nobody answers, appends go on without it, but for those that name a
producer: they are refused until somebody does, or until all that the parents had is forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import structlog

from tailrace_broker.core.log.parent_windows import ParentWindows
from tailrace_broker.core.log.producers import WindowLimits
from tailrace_broker.model.errors import NotReadyError, TailraceError

# After nobody has answered.
RETRY_SECONDS = 0.3
# So long after a partition is open its parents remember nobody: clocks may be a minute apart.
FORGOTTEN_SECONDS = WindowLimits().age_us / 1e6 + 60

_log = structlog.get_logger()


class Heir(Protocol):
    """A leader of the log."""

    def inherit(self, parents: ParentWindows | TailraceError) -> None:
        """What the parents of the partition have is not stored again."""


class Inheritance:
    """State changes on the event loop only."""

    __slots__ = (
        "_forgotten_s", "_heir", "_is_asked", "_is_ended", "_known", "_load", "_spawn", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        load: Callable[[], Awaitable[ParentWindows]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`load` asks for it; TailraceError. The parents are sealed by now."""
        self._forgotten_s = asyncio.get_running_loop().time() + FORGOTTEN_SECONDS
        self._load = load
        self._spawn = spawn
        self._known: ParentWindows | TailraceError | None = None
        self._waiting: list[Callable[[], None]] = []
        self._heir: Heir | None = None
        self._is_asked = False
        self._is_ended = False

    def must_wait(self, append: Callable[[], None]) -> bool:
        """Whether the append is tried again later, when more is known."""
        if self._known is not None:
            return False
        self._waiting.append(append)
        self._ask()
        return True

    def hand_on(self, heir: Heir) -> None:
        """Tell a new leader what is known, and what will be."""
        self._heir = heir
        if self._known is not None:
            heir.inherit(self._known)

    def try_again(self) -> None:
        """The role has changed: let what waits find out."""
        waiting, self._waiting = self._waiting, []
        for append in waiting:
            append()

    def end(self) -> None:
        """The log goes away: what waits is tried once more."""
        self._is_ended = True
        self._known = self._known or _unknown()
        self.try_again()

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._spawn(self._run())

    async def _run(self) -> None:
        while not self._is_ended:
            try:
                self._known = await self._load()
            except TailraceError as error:
                if self._known is None:
                    _log.warning("producers.unknown", detail=error.detail)
                is_forgotten = asyncio.get_running_loop().time() >= self._forgotten_s
                self._known = ParentWindows() if is_forgotten else _unknown()
            if self._heir is not None:
                self._heir.inherit(self._known)
            self.try_again()
            if isinstance(self._known, ParentWindows):
                return
            await asyncio.sleep(RETRY_SECONDS)


def _unknown() -> NotReadyError:
    return NotReadyError(
        "what the parents of the partition have stored is not known yet; nothing was stored, send "
        "it again"
    )
