"""Makes the records of `written` topics durable in the background.

One task for the broker: the first log that must be flushed takes all others along, so that the
journal is synced once for all of them. Nothing runs while nothing waits.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.io_threads import IoThreads
from tailrace_broker.storage.journal import Journal
from tailrace_broker.storage.journal_file import JournalFile
from tailrace_broker.storage.open_segments import OpenSegments

# After a disk that failed to sync.
RETRY_SECONDS = 1.0

_log = structlog.get_logger()


class UnflushedLog(Protocol):
    """What the flusher asks of a log."""

    def begin_flush(self) -> tuple[int, Sequence[Path]]:
        """The end of what is written, and the segments that were written since the last flush."""

    def on_flushed(self, end_offset: int) -> None:
        """All below is durable."""


class Flusher:
    """Logs with records that a power failure would take."""

    def __init__(self, io: IoThreads, journal: Journal, files: OpenSegments) -> None:
        self._io = io
        self._journal = journal
        self._files = files
        self._logs: dict[UnflushedLog, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._is_flushing = False
        self._waiting: list[asyncio.Future[bool]] = []

    def add(self, log: UnflushedLog, within_seconds: float) -> None:
        """It has unflushed records: flush within this time, 0 for now."""
        self._logs[log] = None
        loop = asyncio.get_running_loop()
        due_s = loop.time() + within_seconds
        if self._timer is None or due_s < self._due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._due_s = due_s
            self._timer = loop.call_at(due_s, self._flush)

    async def flush_all(self) -> bool:
        """Flush what there is; whether that worked."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._flush()
        return await waiter

    def stop(self) -> None:
        """No more flushes begin."""
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        """Begin a flush of all, unless one is under way: its end begins the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_flushing:
            return
        self._is_flushing = True
        logs, self._logs = self._logs, {}
        waiting, self._waiting = self._waiting, []
        journal_files, journal_flushed = self._journal.begin_flush()
        begun = [(log, *log.begin_flush()) for log in logs]
        paths = [path for *_end, written in begun for path in written]

        def done(_: None, error: TailraceError | None) -> None:
            self._is_flushing = False
            if error is None:
                journal_flushed()
                for log, end_offset, _paths in begun:
                    log.on_flushed(end_offset)
            else:
                _log.error("flush.failed", detail=error.detail)
                for log in logs:
                    self.add(log, RETRY_SECONDS)
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(error is None)
            if self._waiting or (self._logs and self._timer is None):
                self._flush()

        self._io.submit(partial(self._sync, journal_files, paths), done)

    def _sync(self, journal_files: Sequence[JournalFile], paths: Sequence[Path]) -> None:
        """Blocks. The first that fails ends it: all are tried again."""
        for journal_file in journal_files:
            journal_file.file.flush()
        for path in paths:
            with self._files.use(path) as file:
                file.flush()
