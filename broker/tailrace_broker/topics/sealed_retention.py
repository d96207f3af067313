"""Decides where sealed logs begin, for the ranges for which this broker does.

Now and then it looks at what the settings of topics leave of its copies, and has the ring commit
it; all brokers with copies trim them then. Nothing is decided while the clock of another broker
with a copy differs from the one here, or none of them is heard: nobody could say which is right.
And nothing is decided of a range that was sealed a short time ago: its producers may still repeat
what it has. A partition without records stays for as long, so that each coordinator counts what its
groups have not read there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from uuid import UUID

import structlog

from tailrace_broker.core.ring.copies import others_heard
from tailrace_broker.core.ring.sealed_retention import decider_of, decision
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, RingState
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.clock_watch import CLOCKS_APART_SECONDS_MAX, Spawn
from tailrace_broker.topics.hosted_topic import HostedTopic, is_whole, lacks_records
from tailrace_broker.topics.retention import plan_of

LOOK_SECONDS_MAX = 30.0

_log = structlog.get_logger()


class SealedRetention:
    """State changes on the event loop only."""

    def __init__(
        self,
        ring: RingNode,
        hosted_of: Callable[[UUID], HostedTopic | None],
        now_us: Callable[[], int],
        *,
        keep_seconds: float,
    ) -> None:
        """`keep_seconds`: for so long after it was sealed a range stays as it is, and a partition
        without records stays.
        """
        self._ring = ring
        self._hosted_of = hosted_of
        self._now_us = now_us
        self._keep_seconds = keep_seconds
        self._sealed_s: dict[int, float] = {}  # by range when it was first seen sealed here
        self._emptied_s: dict[LogKey, float] = {}  # when it was first seen without records here
        self._has_warned = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, clock_of: Callable[[int], Awaitable[int]], spawn: Spawn) -> None:
        """Start to decide now and then. `clock_of` asks a broker for its time, in µs since 1970;
        TailraceError.
        """
        self._task = spawn(self._run(clock_of))

    async def close(self) -> None:
        """Decide nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, clock_of: Callable[[int], Awaitable[int]]) -> None:
        while True:
            await self.look(clock_of)
            await asyncio.sleep(min(self._keep_seconds, LOOK_SECONDS_MAX))

    async def look(self, clock_of: Callable[[int], Awaitable[int]]) -> None:
        """Decide for all ranges for which this broker does."""
        state, mine = self._ring.state, self._ring.registration
        if state is None or mine is None:
            return
        emptied_s, self._emptied_s = self._emptied_s, {}
        settings = {topic.id: topic.settings for topic in state.topics.values()}
        start_of = partial(self._start_of, settings)
        for held in self._due(state):
            if decider_of(state, held) != mine.ordinal:
                continue
            command = decision(state, held, mine, start_of, partial(self._may_leave, emptied_s))
            others = others_heard(state, held, mine.ordinal)
            is_known = bool(others) or len(held.replicas) == 1
            if command is None or not is_known:
                continue
            if not await self._clocks_agree(held, others, clock_of):
                continue
            try:
                await self._ring.change(command)
            except TailraceError as error:  # the next look tries again
                _log.info("retention.postponed", range=held.id, detail=error.detail)

    def _due(self, state: RingState) -> list[RangeState]:
        """Return the ranges that were sealed long enough ago."""
        now_s = asyncio.get_running_loop().time()
        sealed = [each for each in state.ranges.values() if each.is_sealed]
        self._sealed_s = {each.id: self._sealed_s.get(each.id, now_s) for each in sealed}
        return [each for each in sealed if now_s - self._sealed_s[each.id] >= self._keep_seconds]

    def _may_leave(self, emptied_s: Mapping[LogKey, float], key: LogKey) -> bool:
        """Whether a partition was without records at earlier passes, for long enough."""
        now_s = asyncio.get_running_loop().time()
        self._emptied_s[key] = emptied_s.get(key, now_s)
        return now_s - self._emptied_s[key] >= self._keep_seconds

    def _start_of(self, settings: Mapping[UUID, TopicSettings], key: LogKey) -> int | None:
        """Where these settings of its topic have a log begin; None: it is not whole here, or has
        others still.

        At its end when nothing else of it is there: what is lost, as was accepted, keeps no
        partition.
        """
        hosted = self._hosted_of(key.topic_id)
        log = None if hosted is None else hosted.logs.get(key.partition)
        if log is None or not is_whole(log) or log.settings != settings.get(key.topic_id):
            return None
        start = plan_of(log, self._now_us()).log_start or log.log_start
        return start if lacks_records(log) or _has_records(log, start) else log.log_end

    async def _clocks_agree(
        self, held: RangeState, others: list[int], clock_of: Callable[[int], Awaitable[int]]
    ) -> bool:
        """Whether these others have the time that it is here."""
        for ordinal in others:
            try:
                theirs_us = await clock_of(ordinal)
            except TailraceError as error:
                _log.info("retention.postponed", range=held.id, detail=error.detail)
                return False
            ahead_seconds = round((theirs_us - self._now_us()) / 1e6)
            if abs(ahead_seconds) > CLOCKS_APART_SECONDS_MAX:
                if not self._has_warned:
                    _log.warning("clocks.differ", broker=ordinal, ahead_seconds=ahead_seconds)
                self._has_warned = True
                return False
        self._has_warned = False
        return True


def _has_records(log: PartitionLog, start: int) -> bool:
    """Whether any is there from `start` on."""
    ends = [*(each.end_offset for each in log.segments[:-1]), log.log_end]
    bounds = zip(log.segments, ends, strict=True)
    return any(end > max(segment.base_offset, start) for segment, end in bounds)
