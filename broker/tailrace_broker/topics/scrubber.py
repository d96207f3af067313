"""Scrubs the disk: one slow task that re-reads all segments, so that damage is found before a
reader meets it. One part at a time in an I/O thread, with a pause after each that keeps the pace.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.scrub import first_segment
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import ReadFailedError
from tailrace_broker.storage.segments.check import part_from_offset
from tailrace_broker.storage.segments.quarantine import Log, Quarantine
from tailrace_broker.storage.segments.writer import segment_path

# What takes less to read is not read again sooner.
ROUND_SECONDS_MIN = 24 * 3600.0

_log = structlog.get_logger()


class Scrubber:
    """State changes on the event loop only."""

    def __init__(
        self,
        logs: Callable[[], Iterable[Log]],
        quarantine: Quarantine,
        counters: Counters,
        now_us: Callable[[], int],
        *,
        bytes_per_second: int,
        round_seconds_min: float = ROUND_SECONDS_MIN,
    ) -> None:
        """`logs`: those that are there when it is called; `bytes_per_second`: more than 0."""
        self._logs = logs
        self._quarantine = quarantine
        self._counters = counters
        self._now_us = now_us
        self._bytes_per_second = bytes_per_second
        self._round_seconds_min = round_seconds_min
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

    async def run(self) -> None:
        """Round after round until it is stopped, each from where time says."""
        loop = asyncio.get_running_loop()
        while not self._stopped.is_set():
            round_ends_s = loop.time() + self._round_seconds_min
            segments = self._segments()
            first = first_segment(
                [state.position for _, state in segments],
                self._now_us(),
                bytes_per_second=self._bytes_per_second,
            )
            for log, state in segments[first:] + segments[:first]:
                await self._scrub(log, state)
            await self._pause(round_ends_s - loop.time())

    async def _scrub(self, log: Log, state: SegmentState) -> None:
        """One segment, up to what is written now."""
        path = segment_path(log.place.directory, state.base_offset)
        part = part_from_offset(path, state, state.base_offset)
        while part.start.position < part.end.position and not self._stopped.is_set():
            try:
                checked = await self._quarantine.check(log, part)
            except ReadFailedError as error:
                if (log, state) in self._segments():  # else it was deleted meanwhile
                    _log.error("scrub.failed", detail=error.detail)
                    self._quarantine.unreadable(log, error)
                return
            checked_bytes = checked.end.position - part.start.position
            self._counters.scrubbed_bytes += checked_bytes
            part = part._replace(start=checked.end)
            await self._pause(checked_bytes / self._bytes_per_second)

    async def _pause(self, seconds: float) -> None:
        """Until then, or until it is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    def _segments(self) -> list[tuple[Log, SegmentState]]:
        return [(log, state) for log in self._logs() for state in log.segments]
