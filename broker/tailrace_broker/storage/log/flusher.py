"""Makes the records of `written` topics durable in the background.

One task for the broker: the first log that must be flushed takes all others along, so that the
journal is synced once for all of them. Nothing runs while nothing waits.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from tailrace_broker.model.errors import StoredDataError, TailraceError
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.journal.journal import Journal
from tailrace_broker.storage.segments.open_segments import OpenSegments

# After a disk that failed to sync.
RETRY_SECONDS = 1.0

_log = structlog.get_logger()


class UnflushedLog(Protocol):
    """What the flusher asks of a log."""

    def begin_flush(self) -> tuple[int, Sequence[Path]]:
        """The end of what is written, and the segments that were written since the last flush."""

    def on_flushed(self, end_offset: int) -> None:
        """All below is durable."""

    def on_flush_failed(self, paths: Sequence[Path], error: TailraceError) -> None:
        """These segments, or the journal, could not be synced."""


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
        self._is_due = False  # again, once the flush that is under way has ended
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
            self._is_due = True
            return
        self._is_flushing, self._is_due = True, False
        logs, self._logs = list(self._logs), {}
        waiting, self._waiting = self._waiting, []
        journal_files, journal_flushed = self._journal.begin_flush()
        begun = [log.begin_flush() for log in logs]
        paths = [written for _, written in begun]

        def done(errors: list[TailraceError | None], _: TailraceError | None) -> None:
            self._is_flushing = False
            journal_error, *log_errors = errors
            if journal_error is None:
                journal_flushed()
            for log, (end_offset, written), error in zip(logs, begun, log_errors, strict=True):
                failed = journal_error or error
                if failed is None:
                    log.on_flushed(end_offset)
                else:
                    _log.error("flush.failed", detail=failed.detail)
                    self.add(log, RETRY_SECONDS)
                    log.on_flush_failed(written, failed)
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(not any(errors))
            if self._is_due:
                self._flush()

        self._io.submit(lambda: self._sync(journal_files, paths), done)

    def _sync(
        self, journal_files: Sequence[JournalFile], paths: Sequence[Sequence[Path]]
    ) -> list[TailraceError | None]:
        """Blocks. What became of the journal, then of each log's segments."""
        return [
            _outcome(partial(_flush_journal, journal_files)),
            *(_outcome(partial(self._flush_segments, of_log)) for of_log in paths),
        ]

    def _flush_segments(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with self._files.use(path) as file:
                file.flush()


def _flush_journal(files: Sequence[JournalFile]) -> None:
    for journal_file in files:
        journal_file.file.flush()


def _outcome(work: Callable[[], None]) -> TailraceError | None:
    try:
        work()
    except StoredDataError as error:
        return error
    return None
