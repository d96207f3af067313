"""Brings the pending tails of logs to their segments, those of many logs with one sync.

A file of the journal may hold something of thousands of logs. All are written, and then made
durable by one call for the file system, which costs little more than the sync of one file.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.model.errors import DiskFullError, StoredDataError, TailraceError
from tailrace_broker.storage.files.direct_file import sync_file_system
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.turns import Turns
from tailrace_broker.storage.segments.writer import SegmentWriter

# Of one piece of work for an I/O thread.
LOGS_MAX = 256

SpillDone = Callable[[TailraceError | None], None]


class SpillPart(NamedTuple):
    """What one log has to spill; it had so many segments when it began."""

    writer: SegmentWriter
    batches: Sequence[StoredBatch]
    segment_count: int
    started_s: float


class SpillingLog(Protocol):
    """What the spiller asks of a log."""

    @property
    def turns(self) -> Turns:
        """Of who writes its segments."""

    def begin_spill(self) -> SpillPart:
        """It has the turn."""

    def end_spill(self, part: SpillPart, error: TailraceError | None) -> None:
        """The part is in the segment, durably, or not at all; the turn ends."""


class Spiller:
    """Groups of logs go one after the other: two that wait for each other's turns would wait for
    ever. A log alone waits for nobody but itself.
    """

    def __init__(self, io: IoThreads, data: Path, inventory: Inventory) -> None:
        """`data`: on the file system of all segments."""
        self._io = io
        self._data = data
        self._inventory = inventory
        self._waiting: deque[tuple[Sequence[SpillingLog], SpillDone]] = deque()
        self._is_busy = False

    def spill(self, log: SpillingLog, done: SpillDone) -> None:
        """Spill one log."""
        self._take_turns([log], done)

    async def spilled(self, log: SpillingLog, is_done: Callable[[], bool]) -> TailraceError | None:
        """Spill one log until that is done; or why it is not."""
        while True:
            outcome: asyncio.Future[TailraceError | None]
            outcome = asyncio.get_running_loop().create_future()
            self.spill(log, partial(_tell, outcome))
            error = await outcome
            if error is not None or is_done():
                return error

    def spill_all(self, logs: Sequence[SpillingLog], done: SpillDone) -> None:
        """Spill them all; `done` with the first error, once all have ended."""
        groups = [logs[index : index + LOGS_MAX] for index in range(0, len(logs), LOGS_MAX)]
        errors: list[TailraceError | None] = []

        def on_group(error: TailraceError | None) -> None:
            errors.append(error)
            self._is_busy = False
            if len(errors) == len(groups):
                done(next(filter(None, errors), None))
            self._begin_group()

        if not groups:
            done(None)
        self._waiting.extend((group, on_group) for group in groups)
        self._begin_group()

    def _begin_group(self) -> None:
        if self._waiting and not self._is_busy:
            self._is_busy = True
            self._take_turns(*self._waiting.popleft())

    def _take_turns(self, logs: Sequence[SpillingLog], done: SpillDone) -> None:
        missing = len(logs)

        def on_turn() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._begin(logs, done)

        for log in logs:
            log.turns.take(on_turn)

    def _begin(self, logs: Sequence[SpillingLog], done: SpillDone) -> None:
        """It has the turns of all."""
        parts = [log.begin_spill() for log in logs]

        def on_written(errors: list[TailraceError | None], _: TailraceError | None) -> None:
            for log, part, error in zip(logs, parts, errors, strict=True):
                log.end_spill(part, error)
            done(next(filter(None, errors), None))

        if any(part.batches for part in parts):
            self._io.submit(lambda: self._write(parts), on_written)
        else:
            on_written([None] * len(parts), None)

    def _write(self, parts: Sequence[SpillPart]) -> list[TailraceError | None]:
        """Blocks. What became of each."""
        is_together = sum(bool(part.batches) for part in parts) > 1
        errors = [self._put(part, is_together=is_together) for part in parts]
        put = [part for part, error in zip(parts, errors, strict=True) if not error]
        sync_error = self._sync(put) if is_together else None
        if any(isinstance(each, DiskFullError) for each in (*errors, sync_error)):
            self._io.note_full()
        for part in put:
            if sync_error is None:
                part.writer.take(part.batches)
            elif part.batches:
                with suppress(StoredDataError):  # the next write cuts
                    part.writer.cut()
        return [error or sync_error for error in errors]

    def _put(self, part: SpillPart, *, is_together: bool) -> TailraceError | None:
        """Write a part; durably unless all are synced together."""
        if not part.batches:
            return None
        put = partial(
            part.writer.put,
            part.batches,
            is_durable=not is_together,
            is_synced_later=is_together,
        )
        try:
            self._io.with_room(put)
        except StoredDataError as error:
            return error
        return None

    def _sync(self, put: Sequence[SpillPart]) -> TailraceError | None:
        """Make durable what was put, and note which segments are new."""
        segments = [part.writer.listed_segment for part in put if part.batches]
        try:
            sync_file_system(self._data)
            self._io.with_room(partial(self._inventory.add_segments, segments))
        except StoredDataError as error:
            return error
        return None


def _tell(outcome: "asyncio.Future[TailraceError | None]", error: TailraceError | None) -> None:
    """Unless nobody waits any more."""
    if not outcome.cancelled():
        outcome.set_result(error)
