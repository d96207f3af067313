"""Trims logs when time or size says so (`core.retention`): a heap of due times and one timer.

A log is looked at when it was opened, when it has finished a segment, when its topic was altered,
and when its time has come; an idle one costs nothing in between. Sealed logs are trimmed to where
the ring's state has them begin (`topics.sealed_retention` decides), whatever the clock says here.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any

import structlog

from tailrace_broker.core.log.retention import RetentionPlan, plan_retention
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.log.partition_log import PartitionLog

# What becomes due in one such time is trimmed together.
SLEEP_SECONDS_MIN = 1.0
# A clock that is set back or ahead is noticed after this long.
SLEEP_SECONDS_MAX = 3600.0
# After a trim that failed.
RETRY_US = 60_000_000
# So many entries of the heap may be stale, and as many as are not.
STALE_MIN = 64
# By how much the clock may be ahead of the time that has passed before it is told.
JUMP_SECONDS_MAX = 60.0

# Linux's monotonic clock stands still while the machine sleeps, macOS's does not.
_STEADY_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_NOTHING: Mapping[PartitionLog, int] = MappingProxyType({})

_log = structlog.get_logger()


def passed_us() -> int:
    """Time on this machine that nobody sets, of a sleep too (clock_gettime(2))."""
    return time.clock_gettime_ns(_STEADY_CLOCK) // 1000


class CautiousClock:
    """The wall clock, but never ahead of its time at the start by more than the time since.

    So a clock that is set ahead while the broker runs makes no record old.
    """

    def __init__(self, wall_us: Callable[[], int], passed_us: Callable[[], int]) -> None:
        """`passed_us`: goes on whatever the wall clock is set to; it may begin anywhere."""
        self._wall_us = wall_us
        self._passed_us = passed_us
        self._start_us = wall_us() - passed_us()
        self._is_jump_told = False

    def __call__(self) -> int:
        """µs since the epoch."""
        wall_us, steady_us = self._wall_us(), self._start_us + self._passed_us()
        ahead_seconds = (wall_us - steady_us) / 1e6
        if ahead_seconds > JUMP_SECONDS_MAX and not self._is_jump_told:
            _log.warning("clock.jumped", ahead_seconds=round(ahead_seconds))
            self._is_jump_told = True
        return min(wall_us, steady_us)


def plan_of(log: PartitionLog, now_us: int, *, is_time_sure: bool = True) -> RetentionPlan:
    """What the settings of its topic leave of a log; nothing is old while no time is sure."""
    # The last segment takes what is pending in the journal, too.
    *finished, last = log.segments
    last = replace(last, end_offset=log.high_watermark, last_append_time_us=log.last_append_time_us)
    return plan_retention(
        [*finished, last],
        retention_ms=log.settings.retention_ms if is_time_sure else None,
        retention_bytes=log.settings.retention_bytes,
        log_start=log.log_start,
        high_watermark=log.high_watermark,
        now_us=now_us,
    )


class Retention:
    """The watched logs by when each is to be looked at. On the event loop only.

    A log counts once in the heap, by its earliest time; later entries of it are stale. `now_us`:
    the clock that says what is old; `is_time_sure`: whether it may say so of this log.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now_us: Callable[[], int],
        counters: Counters,
    ) -> None:
        self._spawn = spawn
        self.now_us = now_us
        self.is_time_sure: Callable[[PartitionLog], bool] = lambda _: True
        self._counters = counters
        self._watched: set[PartitionLog] = set()
        self._decided: dict[PartitionLog, int] = {}
        self._heap: list[tuple[int, int, PartitionLog]] = []
        self._due_us: dict[PartitionLog, int] = {}
        self._numbers = count()  # so that equal times never compare logs
        self._surplus: dict[PartitionLog, None] = {}
        self._is_trimming = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(
        self, logs: Collection[PartitionLog], decided: Mapping[PartitionLog, int] = _NOTHING
    ) -> None:
        """They were opened; or their topic was altered, and what was due may be so no more.

        `decided`: of those that are sealed where they begin.
        """
        self.forget(logs)
        self._watched.update(logs)
        self._decided |= {log: decided[log] for log in logs if log in decided}
        for log in logs:
            self.look(log)

    def decide(self, decided: Mapping[PartitionLog, int]) -> None:
        """These are sealed from this turn on, and begin there."""
        self._decided |= {log: start for log, start in decided.items() if log in self._watched}

    def forget(self, logs: Collection[PartitionLog]) -> None:
        """Their topic goes. A trim under way goes on to its end."""
        self._watched.difference_update(logs)
        for log in logs:
            self._due_us.pop(log, None)
            self._surplus.pop(log, None)
            self._decided.pop(log, None)
        if len(self._heap) > STALE_MIN + 2 * len(self._due_us):  # not for each topic of a step
            self._heap = [entry for entry in self._heap if self._due_us.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def look(self, log: PartitionLog) -> None:
        """Trim it soon if something may go, else look again when time says."""
        if log not in self._watched:
            return
        plan = self._plan(log)
        if plan.log_start is None:
            self._look_at(log, plan.look_at_us)
            return
        self._surplus[log] = None
        if not self._is_trimming:
            self._is_trimming = True
            self._spawn(self._trim_surplus())

    def check_all(self) -> None:
        """Of other logs the time is sure than before."""
        for log in list(self._watched):
            self.look(log)

    def stop(self) -> None:
        """Look at nothing more."""
        self.forget(list(self._watched))
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self, log: PartitionLog) -> RetentionPlan:
        decided = self._decided.get(log)
        if decided is None:
            return plan_of(log, self.now_us(), is_time_sure=self.is_time_sure(log))
        start = min(decided, log.high_watermark)
        return RetentionPlan(start if start > log.log_start else None, None)

    def _look_at(self, log: PartitionLog, look_at_us: int | None) -> None:
        """A place in the heap, unless the log has one that is not later."""
        known_us = self._due_us.get(log)
        if look_at_us is None or log not in self._watched:
            return
        if known_us is not None and known_us <= look_at_us:
            return
        entry = (look_at_us, next(self._numbers), log)
        self._due_us[log] = look_at_us
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._set_timer()

    def _set_timer(self) -> None:
        """To when the first of the heap is due."""
        if self._timer is not None:
            self._timer.cancel()
        due_seconds = (self._heap[0][0] - self.now_us()) / 1e6
        seconds = min(max(due_seconds, SLEEP_SECONDS_MIN), SLEEP_SECONDS_MAX)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look_at_due)

    def _look_at_due(self) -> None:
        now_us = self.now_us()
        while self._heap and self._heap[0][0] <= now_us:
            due_us, _, log = heapq.heappop(self._heap)
            if self._due_us.get(log) == due_us:
                del self._due_us[log]
                self.look(log)
        if self._heap:
            self._set_timer()

    async def _trim_surplus(self) -> None:
        """One log after the other: what removes files is in nobody's way."""
        while self._surplus:
            log = next(iter(self._surplus))
            del self._surplus[log]
            plan = self._plan(log)
            look_at_us = plan.look_at_us
            if plan.log_start is not None:
                try:
                    await self._trim(log, plan.log_start)
                except TailraceError as error:
                    _log.warning("trim.failed", topic=log.place.topic, detail=error.detail)
                if log.log_start < plan.log_start:  # or what is pending had no place in a segment
                    look_at_us = self.now_us() + RETRY_US
            self._look_at(log, look_at_us)
        self._is_trimming = False

    async def _trim(self, log: PartitionLog, log_start: int) -> None:
        before, segments = log.log_start, list(log.segments)
        await log.trim(log_start)
        if log.log_start == before:
            return
        gone = [
            state
            for state in segments
            if max(state.base_offset, before) < state.end_offset <= log.log_start
        ]
        size_bytes = sum(state.position for state in gone)
        self._counters.trimmed_segments += len(gone)
        self._counters.trimmed_bytes += size_bytes
        _log.info(
            "log.trimmed",
            topic=log.place.topic,
            topic_id=str(log.place.topic_id),
            partition=log.place.partition,
            log_start=log.log_start,
            segments=len(gone),
            size_bytes=size_bytes,
        )
