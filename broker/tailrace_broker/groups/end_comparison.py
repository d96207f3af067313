"""Moves groups back where a log that another broker leads has lost its end.

A `written` topic loses what was not flushed with the power of all brokers, any topic loses what
somebody has accepted in a range. What comes under those offsets is new, and a group that is above
the end would pass it over. A replica that is behind knows nothing of it: the leaders are asked,
until they have said it. They give no end that is below what readers have got before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from tailrace_broker.core.groups.group import Group
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.topics.topics import Topics

# Until those are asked again who have not said it; doubled each time.
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 5.0

Ends = Mapping[TopicPartition, tuple[int, int]]
# Log start and high watermark of the partitions of some topics, of those whose leaders say it.
KnownEndsOf = Callable[[Sequence[str]], Awaitable[Ends]]


class EndComparison:
    """Of the groups of one coordinator. State changes on the event loop only."""

    def __init__(
        self,
        topics: Topics,
        ends_of: KnownEndsOf,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        groups: Callable[[], Iterable[Group]],
        on_moved: Callable[[Group], None],
    ) -> None:
        """`on_moved` gets each group whose positions have moved."""
        self._topics = topics
        self._ends_of = ends_of
        self._spawn = spawn
        self._groups = groups
        self._on_moved = on_moved
        self._numbers = count()
        # By partition the number of the call of `compare` since which it is awaited.
        self._awaited: dict[TopicPartition, int] = {}
        self._has_more = asyncio.Event()
        self._is_running = self._is_ended = False

    def compare(
        self, topics: Iterable[str], *, known: Collection[TopicPartition] = frozenset()
    ) -> None:
        """Have all positions in these topics compared with what leaders say from now on.

        `known`: partitions whose positions are compared already.
        """
        number = next(self._numbers)
        wanted = self._open_in(topics)
        held = {tp for group in self._groups() for tp in group.positions}
        self._awaited |= {tp: number for tp in held if tp in wanted and tp not in known}
        self._has_more.set()
        if self._awaited and not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    def end(self) -> None:
        """Move none any more: another coordinator does."""
        self._is_ended = True
        self._has_more.set()

    def _open_in(self, names: Iterable[str]) -> dict[TopicPartition, str]:
        """By partition the topic's name; where a sealed one ends is known."""
        hosted = [self._topics.by_name[name] for name in names if name in self._topics.by_name]
        return {
            TopicPartition(each.topic.topic_id, partition.partition): each.topic.name
            for each in hosted
            for partition in each.topic.partitions
            if not partition.is_sealed
        }

    async def _run(self) -> None:
        pause_s = RETRY_SECONDS_MIN
        while asked := self._still_awaited():
            self._has_more.clear()
            await self._ask(asked)
            if self._awaited:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._has_more.wait()
            pause_s = (
                RETRY_SECONDS_MIN
                if self._has_more.is_set()
                else min(2 * pause_s, RETRY_SECONDS_MAX)
            )
        self._is_running = False

    def _still_awaited(self) -> dict[TopicPartition, int]:
        """Of partitions that are gone or sealed meanwhile nobody says more."""
        names = self._open_in(self._topics.by_name)
        self._awaited = {tp: number for tp, number in self._awaited.items() if tp in names}
        return {} if self._is_ended else dict(self._awaited)

    async def _ask(self, asked: Mapping[TopicPartition, int]) -> None:
        names = self._open_in(self._topics.by_name)
        before = [
            (group, tp, group.positions[tp])
            for group in self._groups()
            for tp in asked.keys() & group.positions.keys()
        ]
        try:
            ends = await self._ends_of(sorted({names[tp] for tp in asked}))
        except TailraceError:  # the broker stops
            return
        if not self._is_ended:
            self._move(before, ends)
        for tp in asked.keys() & ends.keys():
            if self._awaited.get(tp) == asked[tp]:  # else it may have lost its end since
                del self._awaited[tp]

    def _move(self, before: Sequence[tuple[Group, TopicPartition, int]], ends: Ends) -> None:
        """Move back what was above the ends before these were asked for, and is so still."""
        moved: dict[str, Group] = {}
        known = {group.name: group for group in self._groups()}
        for group, tp, position in before:
            log_start, end = ends.get(tp, (0, position))
            is_same = known.get(group.name) is group and group.positions.get(tp) == position
            if position > end and is_same:
                group.fit(tp, log_start, end)
                moved[group.name] = group
        for group in moved.values():
            self._on_moved(group)
