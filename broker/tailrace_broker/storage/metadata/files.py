"""The metadata's files: does on the real disk what `core.metadata_log` decides, in its order.

One write is under way at a time; what is to be kept meanwhile gathers and is the next one. A
snapshot is made on the event loop, a slice a turn, and written beside the log's writes. After a
write that failed nobody knows what the disk holds, so nothing is written any more: a restart reads
it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, assert_never

from tailrace.wire import METADATA_LOGS
from tailrace_broker.codec.metadata_log import encode_snapshot
from tailrace_broker.core.raft.metadata_log import (
    LOG_BYTES,
    FileAction,
    MetadataLog,
    WriteSnapshot,
    snapshot_name,
)
from tailrace_broker.model.agreement import (
    BlockId,
    Configuration,
    Kept,
    Record,
    Snapshot,
    Stored,
)
from tailrace_broker.model.errors import (
    DiskFullError,
    StorageFailedError,
    TailraceError,
)
from tailrace_broker.storage.files.direct_file import write_file_atomically
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.metadata.disk import MetadataDisk

KeepDone = Callable[[int, TailraceError | None], None]
SnapshotDone = Callable[[Snapshot], None]
# As much joins the first in one write.
GATHERED_BYTES_MAX = 1024 * 1024
# Of a record without the payload of its block.
RECORD_BYTES_MAX = 128
# How long a snapshot waits on a full disk before it is tried again.
RETRY_S = 1.0


class _Keep(NamedTuple):
    number: int
    records: Sequence[Record]
    done: KeepDone


class _Replace(NamedTuple):
    number: int
    snapshot: Snapshot
    records: Sequence[Record]
    done: KeepDone


class _BeginCompaction(NamedTuple):
    number: int
    id: BlockId
    records: Sequence[Record]
    done: KeepDone


class _EndCompaction(NamedTuple):
    snapshot: Snapshot
    done: SnapshotDone


class _Compaction(NamedTuple):
    """Slices of its snapshot that are made, and those to come."""

    id: BlockId
    configuration: Configuration
    made: list[bytes]
    coming: Iterator[bytes]
    done: SnapshotDone


_Job = _Keep | _Replace | _BeginCompaction | _EndCompaction
_OnDone = Callable[[TailraceError | None], None]


class MetadataFiles:
    """Answers (`done`) come in the order of the numbers, on the event loop, never at once."""

    def __init__(
        self,
        directory: Path,
        io: IoThreads,
        *,
        is_direct: bool,
        write_file: Callable[[Path, bytes], None] = write_file_atomically,
        log_bytes: int = LOG_BYTES,
        retry_s: float = RETRY_S,
    ) -> None:
        """`write_file`: as `write_file_atomically`, perhaps over a spare file on a full disk."""
        self._disk = MetadataDisk(directory, is_direct=is_direct, write_file=write_file)
        self._io = io
        self._log_bytes = log_bytes
        self._retry_s = retry_s
        self._log: MetadataLog | None = None
        self._snapshot_bytes = 0
        self._jobs: deque[_Job] = deque()
        self._is_writing = False
        self._is_writing_snapshot = False
        self._failure: StorageFailedError | None = None
        self._retries: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self._is_closing = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def size_bytes(self) -> int:
        """Return the size of the log and the snapshot on disk."""
        log_bytes = 0 if self._log is None else len(METADATA_LOGS) * self._log_bytes
        return log_bytes + self._snapshot_bytes

    async def load(self) -> Kept:
        """Return what the disk keeps; nothing, in a new directory. Call it once, before all else.

        CorruptMetadataError, ReadFailedError, DiskFullError, StorageFailedError.
        """
        kept, self._log = await self._io.run(partial(self._disk.recover, log_bytes=self._log_bytes))
        if kept.snapshot is not None:
            self._snapshot_bytes = len(kept.snapshot.state)
        return kept

    def keep(self, number: int, records: Sequence[Record], done: KeepDone) -> None:
        """Put these behind what was kept before; durable, all or none, when `done` says so."""
        self._add(_Keep(number, records, done))

    def replace(
        self, number: int, snapshot: Snapshot, records: Sequence[Record], done: KeepDone
    ) -> None:
        """Put these in place of all that was kept before, in one instant."""
        self._add(_Replace(number, snapshot, records, done))

    def compact(
        self,
        number: int,
        snapshot_id: BlockId,
        configuration: Configuration,
        state: Iterator[bytes],
        records: Sequence[Record],
        done_records: KeepDone,
        done_snapshot: SnapshotDone,
    ) -> None:
        """Keep the snapshot of a state, and these records and what comes, in place of what was.

        `state`: its slices; one a turn of the loop is taken. On a full disk the snapshot is tried
        again until there is room.
        """
        assert not self._is_writing_snapshot
        self._add(_BeginCompaction(number, snapshot_id, records, done_records))
        slices = encode_snapshot(snapshot_id, configuration, state)
        compaction = _Compaction(snapshot_id, configuration, [], slices, done_snapshot)
        self._is_writing_snapshot = True
        self._io.call_soon(partial(self._make_slice, compaction))

    async def close(self) -> None:
        """Write what is there to be written; a snapshot that is not yet being written is not."""
        self._is_closing = True
        while self._retries:
            retry, give_up = self._retries.popitem()
            retry.cancel()
            give_up()
        self._note_idle()
        await self._is_idle.wait()
        self._disk.close()

    # --- one write after the other ---

    def _add(self, job: _Job) -> None:
        if self._is_closing and self._failure is None:
            self._failure = StorageFailedError("no metadata is kept: the broker stops")
        self._jobs.append(job)
        self._is_idle.clear()
        if self._failure is not None:
            self._io.call_soon(self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Begin what waits, unless a write is under way."""
        if self._is_writing:
            return
        if self._failure is not None:
            self._refuse_all(self._failure)
        elif self._jobs:
            self._begin(self._jobs.popleft())
        self._note_idle()

    def _begin(self, job: _Job) -> None:
        log = self._log
        assert log is not None, "load comes first"
        decide: Callable[[], Sequence[FileAction]]
        match job:
            case _Keep():
                gathered = self._gather(job)
                decide = partial(log.keep, [record for job in gathered for record in job.records])
                on_done = partial(self._report_kept, gathered)
            case _Replace():
                decide = partial(log.replace, job.snapshot, job.records)
                on_done = partial(self._report_replaced, job)
            case _BeginCompaction():
                decide = partial(log.begin_compaction, job.id, job.records)
                on_done = partial(self._report_kept, [job])
            case _EndCompaction():
                decide = partial(log.end_compaction, job.snapshot.id)
                on_done = partial(self._report_compacted, job)
            case _:
                assert_never(job)
        self._is_writing = True
        try:
            self._write(decide(), on_done)
        except StorageFailedError as error:  # the log is full
            self._io.call_soon(partial(self._end_write, on_done, error))

    def _gather(self, first: _Keep) -> list[_Keep]:
        """Gather the jobs of one write."""
        gathered, size_bytes = [first], 0
        size_bytes_max = min(GATHERED_BYTES_MAX, self._log_bytes // 4)
        while self._jobs and isinstance(job := self._jobs[0], _Keep):
            size_bytes += _size_bytes_max(job.records)
            if size_bytes > size_bytes_max:
                break
            gathered.append(job)
            self._jobs.popleft()
        return gathered

    def _write(self, actions: Sequence[FileAction], on_done: _OnDone) -> None:
        self._io.submit(
            partial(self._disk.execute, actions), partial(self._written, actions, on_done)
        )

    def _written(
        self, actions: Sequence[FileAction], on_done: _OnDone, _: None, error: TailraceError | None
    ) -> None:
        give_up = partial(self._end_write, on_done, error)
        again = partial(self._write, actions, on_done)
        if not (isinstance(error, DiskFullError) and self._try_again(again, give_up)):
            give_up()

    def _end_write(self, on_done: _OnDone, error: TailraceError | None) -> None:
        """End a write. Jobs that this brings about wait for its end, and are the next write."""
        if error is not None:
            self._fail(error)
        on_done(None if error is None else self._failure)
        self._is_writing = False
        self._go_on()

    def _report_kept(
        self, jobs: Sequence[_Keep | _BeginCompaction], error: TailraceError | None
    ) -> None:
        for job in jobs:
            job.done(job.number, error)

    def _report_replaced(self, job: _Replace, error: TailraceError | None) -> None:
        if error is None:
            self._snapshot_bytes = len(job.snapshot.state)
        job.done(job.number, error)

    def _report_compacted(self, job: _EndCompaction, error: TailraceError | None) -> None:
        if error is None:
            self._snapshot_bytes = len(job.snapshot.state)
            job.done(job.snapshot)

    def _fail(self, error: TailraceError) -> None:
        if self._failure is None:
            self._failure = StorageFailedError(
                f"{error.detail}; check the disk and restart the broker, which keeps no metadata "
                "until then"
            )

    def _refuse_all(self, failure: StorageFailedError) -> None:
        refused, self._jobs = self._jobs, deque()  # what this brings about is refused next
        for job in refused:
            if not isinstance(job, _EndCompaction):
                job.done(job.number, failure)

    def _try_again(self, action: Callable[[], None], give_up: Callable[[], None]) -> bool:
        """Later, unless the broker stops: `give_up` then."""
        if self._is_closing:
            return False

        def run() -> None:
            del self._retries[handle]
            action()

        handle = asyncio.get_running_loop().call_later(self._retry_s, run)
        self._retries[handle] = give_up
        return True

    def _note_idle(self) -> None:
        if not (self._is_writing or self._is_writing_snapshot or self._jobs):
            self._is_idle.set()

    # --- the snapshot of a compaction ---

    def _make_slice(self, compaction: _Compaction) -> None:
        """The next one; the rest in later turns of the loop."""
        if self._is_closing or self._failure is not None:
            self._end_snapshot(self._failure)
            return
        made = next(compaction.coming, None)
        if made is None:
            self._write_snapshot(compaction)
            return
        compaction.made.append(made)
        self._io.call_soon(partial(self._make_slice, compaction))

    def _write_snapshot(self, compaction: _Compaction) -> None:
        action = WriteSnapshot(snapshot_name(compaction.id), compaction.made)
        self._io.submit(
            partial(self._disk.execute, [action]), partial(self._snapshot_written, compaction)
        )

    def _snapshot_written(
        self, compaction: _Compaction, _: None, error: TailraceError | None
    ) -> None:
        if isinstance(error, DiskFullError):  # a stop gives it up; all it holds is in the log
            give_up = partial(self._end_snapshot, None)
            if not self._try_again(partial(self._write_snapshot, compaction), give_up):
                give_up()
            return
        if error is None:
            state = b"".join(compaction.made[1:-1])  # between head and end
            snapshot = Snapshot(compaction.id, compaction.configuration, state)
            self._jobs.append(_EndCompaction(snapshot, compaction.done))
        self._end_snapshot(error)

    def _end_snapshot(self, error: TailraceError | None) -> None:
        self._is_writing_snapshot = False
        if error is not None:
            self._fail(error)
        self._go_on()


def _size_bytes_max(records: Sequence[Record]) -> int:
    """Return an upper bound of the records' encoded size."""
    payload_bytes = sum(
        len(record.block.payload) for record in records if isinstance(record, Stored)
    )
    return payload_bytes + RECORD_BYTES_MAX * len(records)
