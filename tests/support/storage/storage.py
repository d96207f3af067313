"""Storage parts on real files, and a disk whose calls can be made to fail or to wait."""

import asyncio
import errno
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace.wire import DAMAGE_FILE, INVENTORY_FILE
from tailrace_broker.codec.batch import (
    BatchBody,
    BatchPlace,
    StoredBatch,
    decompress_payload,
    stamp_batches,
)
from tailrace_broker.codec.metadata import KnownFiles
from tailrace_broker.codec.records import Record, unpack_columns
from tailrace_broker.core.log.journal_replay import JournalReplay
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.replica_tail import LARGE_GROUP_BYTES
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.append_outcome import Appended, AppendOutcome, OnAppended
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import CorruptPartitionError
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.engine import Replayed, open_engine
from tailrace_broker.storage.files.direct_file import has_direct_io
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.kernel_aio import KernelAio
from tailrace_broker.storage.inspection.logs import NotedRepairs
from tailrace_broker.storage.journal.cuts import write_cuts
from tailrace_broker.storage.journal.file import JOURNAL_FILES, JournalFile, journal_paths
from tailrace_broker.storage.journal.recovery import recover_journal
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.log.recovery import (
    LogEvidence,
    RecoveredLog,
    recover_log,
    recover_with,
)
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.open_segments import OpenSegments
from tailrace_broker.storage.segments.reader import read_batches
from tailrace_broker.storage.segments.writer import LogPlace, SegmentWriter, segment_path
from tests.support.storage.batches import PARTITION, TIME_US, TOPIC_ID, Event, body_of, columns_of

MEBIBYTE = 1024 * 1024
# What the storage edge asks of the kernel.
DISK_CALLS = (
    *("open", "preadv", "pwritev", "ftruncate", "fsync", "fdatasync", "replace", "rename"),
    "unlink",
)
WAIT_S = 15.0  # on a busy machine
# The ring's files are this small, so that tests need not wait for them to be zero-written.
JOURNAL_FILE_BYTES = 256 * 1024
SYNCED = TopicSettings(partitions_per_range=1)


@dataclass(slots=True)
class Fault:
    """A call that shall fail: the one after `skipped` others of its name."""

    call: str
    error: int
    skipped: int
    kept_bytes: int  # of a pwritev: what reaches the disk all the same


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What fsync(2) is called for from now on, in order."""
    synced: list[Path] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return synced


class FaultyDisk:
    """The real disk below the storage edge, with faults; `calls` counts what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, spares_metadata: bool = False) -> None:
        """`spares_metadata`: the metadata is written even when nothing else is."""
        self.calls: Counter[str] = Counter()
        self._spares_metadata = spares_metadata
        self._faults: list[Fault] = []
        self._write_began = threading.Event()
        self._writes_may_go_on = threading.Event()
        self._writes_may_go_on.set()
        for name in DISK_CALLS:
            monkeypatch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def fail(
        self, call: str, error: int = errno.EIO, *, skipped: int = 0, kept_bytes: int = 0
    ) -> None:
        """Let one call fail."""
        self._faults.append(Fault(call, error, skipped, kept_bytes))

    def forget_faults(self) -> None:
        """Those that have not come up yet."""
        self._faults.clear()

    @property
    def is_done(self) -> bool:
        """All faults have come up."""
        return not self._faults

    def hold_writes(self) -> None:
        """Let writes wait until `let_writes_go_on`."""
        self._write_began.clear()
        self._writes_may_go_on.clear()

    def let_writes_go_on(self) -> None:
        """End `hold_writes`."""
        self._writes_may_go_on.set()

    async def wait_for_held_write(self) -> None:
        """Until a write waits."""
        assert await asyncio.to_thread(self._write_began.wait, WAIT_S)

    def _call(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if name == "pwritev" and self._spares_metadata and _is_of_metadata(args[0]):
            return real(*args, **options)
        self.calls[name] += 1
        if name == "pwritev":
            self._write_began.set()
            assert self._writes_may_go_on.wait(WAIT_S)
        for fault in [fault for fault in self._faults if fault.call == name]:
            if not fault.skipped:
                self._faults.remove(fault)
                if fault.kept_bytes:
                    fd, (buffer,), *rest = args
                    real(fd, [buffer[: fault.kept_bytes]], *rest)
                raise OSError(fault.error, os.strerror(fault.error))
            fault.skipped -= 1
        return real(*args, **options)


def _is_of_metadata(fd: int) -> bool:
    return Path(os.readlink(f"/proc/self/fd/{fd}")).parent.name == "metadata"  # noqa: PTH115


class TrustingRepairs(NotedRepairs):
    """Those of `tailrace verify`, which trust indexes as a start does."""

    trusts_indexes = True


class LogFiles:
    """The files of one partition's log; knows how to recover, write and read them."""

    def __init__(self, directory: Path, *, pool_bytes: int = 64 * MEBIBYTE) -> None:
        self.directory = directory
        self.epoch = 1
        self.place = self.place_of(PARTITION)
        self.pool = BufferPool(pool_bytes)
        self.is_direct = has_direct_io(directory)
        self.inventory = Inventory(directory / INVENTORY_FILE, KnownFiles(()))

    def place_of(self, partition: int) -> LogPlace:
        """Of the topic's partitions, which share the journal."""
        directory = self.directory / "topic" / str(partition)
        return LogPlace(directory, "topic", TOPIC_ID, partition, range_id=0)

    def segment(self, base_offset: int = 0) -> Path:
        """A segment's file."""
        return segment_path(self.place.directory, base_offset)

    def journal(self) -> list[Path]:
        """The files of the journal that are there."""
        return [path for path in journal_paths(self.directory) if path.exists()]

    def contents(self) -> dict[str, bytes]:
        """All files of the partition with their bytes."""
        return {path.name: path.read_bytes() for path in sorted(self.place.directory.iterdir())}

    def damage_file(self) -> Path:
        """Where it is recorded what is damaged."""
        return self.place.directory / DAMAGE_FILE

    def write_segment(self, stored: bytes, base_offset: int = 0) -> None:
        """Put bytes there, as something else than a broker could leave them."""
        self.place.directory.mkdir(parents=True, exist_ok=True)
        self.segment(base_offset).write_bytes(stored)

    def replay(self) -> JournalReplay:
        """What the journal holds."""
        files = [
            JournalFile(path, size_bytes=JOURNAL_FILE_BYTES, is_direct=self.is_direct)
            for path in journal_paths(self.directory)
        ]
        return recover_journal(files, is_direct=self.is_direct).replay

    def recover(self, first_offset: int = 0) -> list[SegmentState]:
        """The segments, as at a broker's start with no journal."""
        return self.recover_as(self.place, LogEvidence(first_offset)).segments

    def recovered(self, *, exact_end: int | None = None) -> RecoveredLog:
        """All that is known of the log, as at a broker's start with no journal."""
        return self.recover_as(self.place, LogEvidence(0, exact_end=exact_end))

    def recover_all(self, partition: int = PARTITION) -> RecoveredLog:
        """The segments, and what the journal adds to them."""
        replayed = Replayed(replay=self.replay())
        return self.recover_as(
            self.place_of(partition),
            LogEvidence(
                0,
                journaled=replayed.batches(TOPIC_ID, partition),
                damaged=replayed.damaged(TOPIC_ID, partition),
            ),
        )

    def recover_as(self, place: LogPlace, evidence: LogEvidence) -> RecoveredLog:
        """Recover; `tailrace verify` must have decided the same before, and changed nothing."""
        noted = self._noted(place, evidence)
        try:
            recovered = recover_log(
                place,
                evidence.first_offset,
                self.pool,
                self.inventory,
                is_direct=self.is_direct,
                journaled=evidence.journaled,
                damaged=evidence.damaged,
                exact_end=evidence.exact_end,
                is_journal_lossy=evidence.is_journal_lossy,
                headers_prove=evidence.headers_prove,
            )
        except CorruptPartitionError:
            assert noted is None
            raise
        assert noted == _decided(recovered)
        return recovered

    def _noted(self, place: LogPlace, evidence: LogEvidence) -> tuple[object, ...] | None:
        """What it decides; None: it refuses."""
        before = _contents_below(place.directory)
        newest = self.inventory.newest_segment(place.topic_id, place.partition)
        evidence = evidence._replace(newest_segment=newest)
        try:
            log = recover_with(TrustingRepairs(), place, evidence, self.pool, is_direct=False)
        except CorruptPartitionError:
            return None
        assert _contents_below(place.directory) == before
        return _decided(log)

    def writer(self, *, segment_bytes: int = 64 * MEBIBYTE) -> "SegmentAppends":
        """Recovered, ready to append."""
        return SegmentAppends(self, self.recover(), segment_bytes)

    def read(
        self, state: SegmentState, offset: int, *, end_offset: int, max_bytes: int = MEBIBYTE
    ) -> list[StoredBatch]:
        """From one segment."""
        with closing(OpenSegments(is_direct=self.is_direct)) as files:
            return read_batches(
                files,
                self.segment(state.base_offset),
                state,
                self.pool.read,
                offset=offset,
                end_offset=end_offset,
                max_bytes=max_bytes,
            )

    def values(self) -> list[bytes | None]:
        """Recover, then read every record's value in the segments; offsets must be dense."""
        segments = self.recover()
        offset, end_offset = segments[0].base_offset, segments[-1].end_offset
        records: list[Record] = []
        for state in segments:
            while offset < state.end_offset:
                batches = self.read(state, offset, end_offset=end_offset)
                records += records_of(batches)
                offset = batches[-1].header.end_offset
        assert [record.offset for record in records] == list(
            range(segments[0].base_offset, end_offset)
        )
        return [record.value for record in records]


def _decided(log: RecoveredLog) -> tuple[object, ...]:
    """What readers and producers meet."""
    states = [
        (segment.base_offset, segment.end_offset, segment.last_epoch) for segment in log.segments
    ]
    pending = [each.header for each in log.pending]
    return states, pending, log.start, log.damages, log.losses, log.lost_end


def _contents_below(directory: Path) -> dict[Path, tuple[bytes, int]]:
    """Of its files, and when they were changed."""
    files = directory.iterdir() if directory.exists() else ()
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


class SegmentAppends:
    """A log's segments with their writer."""

    def __init__(self, files: LogFiles, segments: list[SegmentState], segment_bytes: int) -> None:
        self.segments = segments
        self.place = files.place
        self._epoch = files.epoch
        self._open_files = OpenSegments(is_direct=files.is_direct)
        self._writer = SegmentWriter(
            files.place,
            segments,
            files.pool,
            self._open_files,
            files.inventory,
            segment_bytes=segment_bytes,
        )
        self.roll = self._writer.roll

    def write(
        self,
        bodies: list[BatchBody],
        *,
        append_time_us: int = TIME_US,
        is_durable: bool = True,
        is_synced_later: bool = False,
    ) -> list[StoredBatch]:
        """One write of these batches behind the end."""
        state = self.segments[-1]
        place = self.place
        first = BatchPlace(
            place.topic_id,
            place.range_id,
            place.partition,
            self._epoch,
            state.last_epoch,
            state.end_offset,
            append_time_us,
            state.end_offset,
        )
        batches = stamp_batches(bodies, first)
        self._writer.put(batches, is_durable=is_durable, is_synced_later=is_synced_later)
        self._writer.take(batches)
        return batches

    def close(self) -> None:
        """As a broker that is killed leaves it."""
        self._open_files.close()


def records_of(batches: Iterable[StoredBatch]) -> list[Record]:
    """What readers see of stored batches."""
    records = []
    for batch in batches:
        stored = memoryview(b"".join(batch.buffers))
        records += unpack_columns(batch.header, decompress_payload(batch.header, stored))
    return records


async def read_all(log: PartitionLog) -> list[StoredBatch]:
    """All batches of a log, whatever of them is in memory, and whatever on disk."""
    batches: list[StoredBatch] = []
    offset = log.log_start
    while offset < log.high_watermark:
        batches += await log.read(offset, MEBIBYTE)
        assert batches[-1].header.end_offset > offset
        offset = batches[-1].header.end_offset
    return batches


async def values_in(log: PartitionLog) -> list[bytes | None]:
    """The value of each record of a log."""
    return [record.value for record in records_of(await read_all(log))]


def append(writer: SegmentAppends, *batches: list[bytes]) -> list[StoredBatch]:
    """One durable write of batches of these values."""
    return writer.write([body_of([Event(value) for value in values]) for values in batches])


def append_large(log: PartitionLog) -> "asyncio.Future[int]":
    """What goes straight to the segment; its first offset."""
    return Appends(log).batch([os.urandom(2 * LARGE_GROUP_BYTES)])


@dataclass(slots=True)
class Engine:
    """An open journal, and the logs of some partitions on it."""

    resources: LogResources
    replayed: Replayed
    logs: list[PartitionLog]
    sealed: list[PartitionLog]
    role: RangeRole


async def leads_surely() -> bool:
    """Nobody else could."""
    return True


@asynccontextmanager
async def open_engine_on(
    files: LogFiles,
    *,
    partitions: Iterable[int] = (PARTITION,),
    settings: TopicSettings = SYNCED,
    segment_bytes: int = 64 * MEBIBYTE,
    cache_bytes: int = MEBIBYTE,
    journal_file_bytes: int = JOURNAL_FILE_BYTES,
    counters: Counters | None = None,
    sealed_end: int | None = None,
    uses_kernel_aio: bool = False,
    headers_prove: bool = True,
    is_killed: bool = False,
    role: RangeRole | None = None,
) -> AsyncIterator[Engine]:
    """Recovered partitions with I/O threads of their own; closed when the block ends.

    `headers_prove`: as in `LogEvidence`. `is_killed`: not closed, as by SIGKILL.
    `uses_kernel_aio`: a `FaultyDisk` does not see it.
    """
    bugs: list[BaseException] = []
    io = IoThreads(2, bugs.append)
    io.start()
    sealed: list[PartitionLog] = []
    resources: LogResources | None = None
    try:
        resources, replayed = await open_engine(
            files.directory,
            io,
            files.pool,
            BatchCache(cache_bytes),
            files.inventory,
            counters or Counters(),
            now_us=lambda: TIME_US,
            on_sealed=sealed.append,
            segment_bytes=segment_bytes,
            journal_bytes=journal_file_bytes * JOURNAL_FILES,
            is_direct=files.is_direct,
            open_aio=KernelAio.open if uses_kernel_aio else lambda: None,
        )

        def lead_in_next_epoch(epoch: int) -> None:
            files.epoch = epoch + 1  # of a later life too
            assert role is not None
            role.change(files.epoch)

        role = role or RangeRole(files.epoch, on_given_up=lead_in_next_epoch, prove=leads_surely)
        logs = []
        for partition in partitions:
            place = files.place_of(partition)
            recovered = recover_log(
                place,
                0,
                files.pool,
                files.inventory,
                is_direct=files.is_direct,
                journaled=replayed.batches(TOPIC_ID, partition),
                damaged=replayed.damaged(TOPIC_ID, partition),
                headers_prove=headers_prove,
            )
            replayed.note_opened(place, recovered)
            log = PartitionLog(
                place,
                recovered.segments,
                resources,
                settings,
                role,
                start=recovered.start,
                pending=replayed.pending(recovered.pending),
                windows=recovered.windows,
                sealed_end=sealed_end,
                lost_end=recovered.lost_end,
            )
            resources.quarantine.recovered(log, recovered.damages, recovered.losses)
            logs.append(log)
        await write_cuts(resources.journal, replayed.cuts)
        yield Engine(resources, replayed, logs, sealed, role)
        if not is_killed:
            for log in logs:
                await log.close()
            await resources.flusher.flush_all()
    finally:
        await asyncio.to_thread(io.stop)
        if resources is not None:
            resources.close()
        assert bugs == []


@asynccontextmanager
async def open_log(files: LogFiles, **options: Any) -> AsyncIterator[PartitionLog]:
    """The one partition; keywords as for `open_engine_on`."""
    async with open_engine_on(files, **options) as engine:
        (log,) = engine.logs
        yield log


class Appends:
    """Appends to a log and what became of each, in the order of the calls."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._answers: list[asyncio.Future[int]] = []

    def event(
        self, value: bytes, key: bytes | None = b"key", flags: int = 0
    ) -> "asyncio.Future[int]":
        """Append one event; its offset, or the error."""
        answer, done = self._new_answer()
        self._log.append_event(key, value, TIME_US, flags, done)
        return answer

    def batch(self, values: list[bytes]) -> "asyncio.Future[int]":
        """Append a batch; its first offset, or the error."""
        return self.records([Event(value) for value in values])

    def records(self, events: list[Event]) -> "asyncio.Future[int]":
        """Append a batch of these; its first offset, or the error."""
        answer, done = self._new_answer()
        self._log.append_records(columns_of(events), done)
        return answer

    def body(self, body: BatchBody, producer: Producer | None = None) -> "asyncio.Future[int]":
        """Append a ready-made batch; its first offset, or the error."""
        answer, done = self._new_answer()
        self._log.append_records(body, done, producer)
        return answer

    async def outcomes(self) -> list[int | BaseException]:
        """All offsets and errors."""
        return await asyncio.gather(*self._answers, return_exceptions=True)

    def _new_answer(self) -> "tuple[asyncio.Future[int], OnAppended]":
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(outcome: AppendOutcome) -> None:
            if answer.cancelled():  # the test has ended before, perhaps at its time limit
                return
            if isinstance(outcome, Appended):
                answer.set_result(outcome.offset)
            else:
                answer.set_exception(outcome.error)

        self._answers.append(answer)
        return answer, done
