"""The broker's journal: small appends of all partitions in one write, group-committed.

While a write is in flight, what arrives joins the next. The files are a ring: the next one is taken
once all that the oldest holds is safe in segments, which is seen to one file ahead. An append is
in the journal and in memory, its log's pending tail, until its log spills it (`partition_log`).

State changes on the event loop only.
"""

import asyncio
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import structlog

from tailrace.wire import JOURNAL_BLOCK_BYTES, align_up
from tailrace_broker.codec.journal import (
    FRAME_HEADER_BYTES,
    JournalFileHeader,
    encode_frame_header,
)
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import DiskFullError, StorageFailedError, TailraceError
from tailrace_broker.storage.files.direct_file import translated
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.kernel_aio import KernelAio, address_of
from tailrace_broker.storage.journal.file import (
    JournalEntry,
    JournalFile,
    JournalWriter,
)
from tailrace_broker.storage.journal.spiller import Spiller

# A frame takes logs until it has so many bytes.
FRAME_BYTES_MAX = 1024 * 1024
# Of one log in a frame: appends that are larger go to its segment.
LOG_BYTES_MAX = 128 * 1024
_ZEROS = bytes(JOURNAL_BLOCK_BYTES)

_log = structlog.get_logger()
_levels = logging.getLogger(__name__)


class Journal:
    """Takes logs that have something to append, and calls them back."""

    def __init__(
        self,
        files: Sequence[JournalFile],
        io: IoThreads,
        spiller: Spiller,
        inventory: Inventory,
        counters: Counters,
        *,
        journal_id: int,
        next_sequence: int,
        last_used: int,
        boot: int,
        aio: KernelAio | None,
    ) -> None:
        """`files` as replayed: what they hold is known to them; `last_used`: index of the newest.

        `aio` None: the I/O threads write.
        """
        self._files = files
        self._io = io
        self._spiller = spiller
        self._inventory = inventory
        self._counters = counters
        self._journal_id = journal_id
        self._boot = boot
        self._sequence = next_sequence  # of the frame that is, or will be, written next
        self._index = last_used
        self._position = files[last_used].size_bytes  # full: a round begins with the first frame
        self._aio = aio
        self._memory = mmap.mmap(-1, FRAME_BYTES_MAX + 2 * LOG_BYTES_MAX)
        self._buffer = memoryview(self._memory)
        self._address = address_of(self._memory)
        self._ready: dict[JournalWriter, None] = {}
        self._is_busy = False
        self._has_failed = False  # the last frame, which may stand where the next one goes
        # What a power failure may take, until a flush: the last such frame of each file.
        self._unflushed: dict[JournalFile, int] = {}
        self._first_unflushed: int | None = None
        self._is_debug = _levels.isEnabledFor(logging.DEBUG)

    def add(self, log: JournalWriter) -> None:
        """Ask soon what is to be written."""
        self._ready[log] = None
        if not self._is_busy:
            self._is_busy = True
            # Not at once: what this turn of the loop still brings joins.
            self._io.call_soon(self._write_frame)

    def begin_flush(self) -> tuple[list[JournalFile], Callable[[], None]]:
        """The files to be flushed, and what to call when they are: all up to now is durable."""
        return list(self._unflushed), partial(self._on_flushed, self._sequence)

    async def spill_all(self) -> None:
        """Bring what it holds to the segments, as far as the disk takes it."""
        logs = {log: None for file in self._files for log in file.pending}
        ended: asyncio.Future[TailraceError | None] = asyncio.get_running_loop().create_future()
        self._spiller.spill_all(list(logs), ended.set_result)
        await ended

    def close(self) -> None:
        """No log is ready, and nothing is being written."""
        if self._aio is not None:
            self._aio.close()
        for file in self._files:
            file.close()

    def _write_frame(self) -> None:
        """Fill a frame with what the logs have; write it, here or in the next file."""
        taken: list[JournalWriter] = []
        position, entry_count, durable = FRAME_HEADER_BYTES, 0, False
        while self._ready and position < FRAME_BYTES_MAX:
            ready, self._ready = self._ready, {}  # one by one would search the gaps of the others
            for log in ready:
                if position >= FRAME_BYTES_MAX:
                    self._ready[log] = None
                    continue
                entries = log.take_for_journal()
                if entries:
                    taken.append(log)
                    entry_count += len(entries)
                    durable = durable or log.is_synced
                    position = self._fill(entries, position)
        if not taken:
            self._is_busy = False
            return
        durable = durable or self._has_failed  # else a loss of power brings that one back
        first_unflushed = self._first_unflushed
        self._buffer[:FRAME_HEADER_BYTES] = encode_frame_header(
            frame_bytes=position,
            journal_id=self._journal_id,
            sequence=self._sequence,
            durable_sequence=self._sequence if first_unflushed is None else first_unflushed,
            entry_count=entry_count,
        )
        padded_bytes = align_up(position, JOURNAL_BLOCK_BYTES)
        self._buffer[position:padded_bytes] = _ZEROS[: padded_bytes - position]
        write = partial(self._submit, taken, padded_bytes, durable)
        if self._position + padded_bytes <= self._files[self._index].size_bytes:
            write(None)
        else:
            self._begin_round(write)

    def _fill(self, entries: Sequence[JournalEntry], position: int) -> int:
        """Copy entries behind `position`; where they end."""
        buffer = self._buffer
        for entry in entries:
            for part in entry.buffers:
                end = position + len(part)
                buffer[position:end] = part
                position = end
        return position

    def _submit(
        self,
        taken: Sequence[JournalWriter],
        size_bytes: int,
        durable: bool,
        error: TailraceError | None,
    ) -> None:
        """Write the frame at the position; with an error there is no place for it."""
        done = partial(self._on_written, taken, size_bytes, durable, perf_counter())
        file = self._files[self._index].file if error is None else None
        if file is None:
            done(None, error)
        elif self._aio is not None:
            self._aio.write(
                file.fd, self._address, size_bytes, self._position,
                lambda result: done(None, _failure(result, size_bytes, file.path)),
                durable=durable,
            )  # fmt: skip
        else:
            frame = self._buffer[:size_bytes]
            self._io.submit(
                partial(file.write, frame, self._position, is_durable=durable),
                done,
            )

    def _on_written(
        self,
        taken: Sequence[JournalWriter],
        size_bytes: int,
        durable: bool,
        started_s: float,
        _: None,
        error: TailraceError | None,
    ) -> None:
        """Tell the logs; go on with what came meanwhile.

        A frame that failed is written over by the next, which has its place and its sequence.
        """
        file = self._files[self._index]
        self._has_failed = error is not None
        if error is None:
            if not durable:
                self._unflushed[file] = self._sequence
                if self._first_unflushed is None:
                    self._first_unflushed = self._sequence
            duration_s = perf_counter() - started_s
            if self._is_debug:
                _log.debug(
                    "journal.written",
                    file=str(file.path),
                    sequence=self._sequence,
                    partitions=len(taken),
                    size_bytes=size_bytes,
                    is_durable=durable,
                    duration_ms=round(duration_s * 1000, 3),
                )
            self._sequence += 1
            self._position += size_bytes
            self._counters.journal_writes += 1
            self._counters.journal_written_bytes += size_bytes
            self._counters.journal_write_seconds += duration_s
        else:
            self._counters.log_write_errors += 1
        for log in taken:
            log.on_journaled(file, error, is_durable=durable)
        if self._ready:
            self._io.call_soon(self._write_frame)
        else:
            self._is_busy = False

    def _begin_round(self, write: Callable[[TailraceError | None], None]) -> None:
        """Take the next file, once nothing is only there; then `write`."""
        before, position = self._files[self._index], self._position
        index = (self._index + 1) % len(self._files)
        file = self._files[index]
        header = JournalFileHeader(self._boot, self._journal_id, self._sequence, file.size_bytes)

        def begin() -> None:
            before.end_round(position)
            file.begin_round(header)
            self._inventory.add_journal_file(file.path.name)  # it is there, and empty yet

        def on_begun(_: None, error: TailraceError | None) -> None:
            if error is None:
                self._index, self._position = index, JOURNAL_BLOCK_BYTES
                # One file ahead, so that the next round need not wait.
                following = self._files[(index + 1) % len(self._files)]
                self._spiller.spill_all(list(following.pending), lambda _: None)
            write(error)

        def on_spilled(error: TailraceError | None) -> None:
            if isinstance(error, DiskFullError):
                write(error)
            elif error is not None:  # of some logs: they must not stop all others
                self._set_aside(file, on_set_aside)
            elif file.pending:  # tails that are too large for one write
                self._spiller.spill_all(list(file.pending), on_spilled)
            else:
                self._io.submit(begin, on_begun)

        def on_set_aside(error: TailraceError | None) -> None:
            if error is None:
                self._io.submit(begin, on_begun)
            else:
                write(error)

        self._spiller.spill_all(list(file.pending), on_spilled)

    def _set_aside(self, file: JournalFile, done: Callable[[TailraceError | None], None]) -> None:
        """One after the other, until nothing is only in this file."""
        log = next(iter(file.pending), None)
        if log is None:
            done(None)
        else:
            log.set_aside(lambda error: done(error) if error else self._set_aside(file, done))

    def _on_flushed(self, sequence: int) -> None:
        """All frames below it are durable."""
        self._unflushed = {file: last for file, last in self._unflushed.items() if last >= sequence}
        first = self._first_unflushed
        self._first_unflushed = max(first or 0, sequence) if self._unflushed else None


def _failure(result: int, size_bytes: int, path: Path) -> TailraceError | None:
    """Of a write by the kernel: bytes written, or a negative errno."""
    if result == size_bytes:
        return None
    if result < 0:
        return translated(OSError(-result, os.strerror(-result)), path)
    return StorageFailedError(f"{path}: {result} of {size_bytes} bytes written")
