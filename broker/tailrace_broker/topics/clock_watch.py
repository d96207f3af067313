"""Whether the brokers that share a range have the same time.

Age is counted by the clock of the broker that leads. While the clock of another replica differs, or
no other is heard, nobody can say which is right, and nothing is old: else a broker that starts with
a clock that is days ahead, and leads, removes everywhere what is not old yet.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from tailrace_broker.core.ring.copies import others_heard
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.ring_state import RangeState, RingState
from tailrace_broker.node.ring import RingNode

LOOK_SECONDS = 30.0
# While somebody has not answered, or has another time.
RETRY_SECONDS = 2.0
# Clocks that differ by more than this are wrong.
CLOCKS_APART_SECONDS_MAX = 60.0

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_log = structlog.get_logger()


class ClockWatch:
    """State changes on the event loop only. `on_changed`: called when others agree than before."""

    def __init__(self, ring: RingNode, ordinal: int, now_us: Callable[[], int]) -> None:
        """`ordinal`: of this broker; `now_us`: its clock, as others are told it."""
        self.on_changed: Callable[[], None] = lambda: None
        self._ring = ring
        self._ordinal = ordinal
        self._now_us = now_us
        self._agreeing: frozenset[int] = frozenset()
        self._was_unsure = False  # when somebody asked
        self._warned: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def begin(self, clock_of: Callable[[int], Awaitable[int]], spawn: Spawn) -> None:
        """Start to ask now and then. `clock_of` asks a broker for its time, in µs since 1970;
        TailraceError.
        """
        self._task = spawn(self._run(clock_of))

    async def close(self) -> None:
        """Ask nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def agree(self, range_id: int) -> bool:
        """Whether all others that have copies of an open range, and are not fenced, have the time
        that it is here, as they said last. All are fenced: nobody knows.
        """
        state = self._ring.state
        owner = None if state is None else state.ranges.get(range_id)
        if state is None or owner is None or owner.is_sealed or len(owner.replicas) == 1:
            return True
        others = self._others(state, owner)
        is_sure = bool(others) and others <= self._agreeing
        self._was_unsure = self._was_unsure or not is_sure
        return is_sure

    def agree_all(self) -> bool:
        """Whether that is so of all ranges of which this broker has a copy."""
        state = self._ring.state
        return state is None or all(self.agree(each.id) for each in self._shared(state))

    async def look(self, clock_of: Callable[[int], Awaitable[int]]) -> bool:
        """Ask all that share an open range with this broker; whether all have the time that it is.

        Of no other range it need be known: this broker cannot come to lead it.
        """
        state = self._ring.state
        if state is None:
            return False
        shared = self._shared(state)
        others = frozenset[int]().union(*(self._others(state, each) for each in shared))
        agreeing = frozenset(
            [each for each in sorted(others) if await self._agrees(each, clock_of)]
        )
        is_sure_again = self._was_unsure and agreeing == others
        if agreeing != self._agreeing or is_sure_again:
            self._agreeing, self._was_unsure = agreeing, False
            self.on_changed()
        return agreeing == others

    async def _run(self, clock_of: Callable[[int], Awaitable[int]]) -> None:
        while True:
            is_sure = await self.look(clock_of)
            await asyncio.sleep(LOOK_SECONDS if is_sure else RETRY_SECONDS)

    async def _agrees(self, ordinal: int, clock_of: Callable[[int], Awaitable[int]]) -> bool:
        try:
            theirs_us = await clock_of(ordinal)
        except TailraceError:
            return False
        ahead_seconds = round((theirs_us - self._now_us()) / 1e6)
        if abs(ahead_seconds) <= CLOCKS_APART_SECONDS_MAX:
            self._warned.discard(ordinal)
            return True
        if ordinal not in self._warned:
            _log.warning("clocks.differ", broker=ordinal, ahead_seconds=ahead_seconds)
            self._warned.add(ordinal)
        return False

    def _shared(self, state: RingState) -> list[RangeState]:
        return [each for each in state.ranges.values() if self._ordinal in each.replicas]

    def _others(self, state: RingState, owner: RangeState) -> frozenset[int]:
        """Who else has a copy, and is heard; of a sealed range nobody: one broker decides for all,
        and asks itself.
        """
        if owner.is_sealed:
            return frozenset()
        return frozenset(others_heard(state, owner, self._ordinal))
