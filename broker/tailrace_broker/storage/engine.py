"""Opens what all logs of a broker share, with what the journal holds for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

from tailrace.wire import JOURNAL_BLOCK_BYTES, BatchHeader
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.journal import JournalCut
from tailrace_broker.core.log.journal_replay import NO_FILE, JournaledBatch, JournalReplay
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.counters import Counters
from tailrace_broker.storage.files.direct_file import write_file_atomically
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_share import IoShare
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.kernel_aio import KernelAio
from tailrace_broker.storage.journal.file import JOURNAL_FILES, JournalFile, journal_paths
from tailrace_broker.storage.journal.journal import Journal
from tailrace_broker.storage.journal.recovery import recover_journal
from tailrace_broker.storage.journal.spiller import Spiller
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.flusher import Flusher
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.recovery import RecoveredLog
from tailrace_broker.storage.log.resources import LogResources, Reading
from tailrace_broker.storage.segments.open_segments import OpenSegments
from tailrace_broker.storage.segments.quarantine import Quarantine
from tailrace_broker.storage.segments.writer import LogPlace


@dataclass(slots=True)
class Replayed:
    """What the journal holds, until the logs have been opened; `log_ends`: at a clean stop.

    `cuts`: of logs of which it holds what their recovery has given up.
    """

    files: list[JournalFile] = field(default_factory=list)
    replay: JournalReplay = field(default_factory=JournalReplay)
    log_ends: dict[UUID, list[int | None]] = field(default_factory=dict)
    cuts: list[JournalCut] = field(default_factory=list)

    def batches(self, topic_id: UUID, partition: int) -> list[JournaledBatch]:
        """Return the batches of one log, in the order in which they were written."""
        return self.replay.batches.get((topic_id.bytes, partition), [])

    def damaged(self, topic_id: UUID, partition: int) -> list[BatchHeader]:
        """Return batches of that log that the journal held durably, and that are damaged there."""
        return self.replay.damaged.get((topic_id.bytes, partition), [])

    def exact_end(self, topic_id: UUID, partition: int) -> int | None:
        """Return where that log ended at a clean stop."""
        log_ends = self.log_ends.get(topic_id, [])
        return log_ends[partition] if partition < len(log_ends) else None

    def note_opened(self, place: LogPlace, found: RecoveredLog) -> None:
        """Note whether the journal must be cut for this log, before its start is over."""
        if found.journal_cut is not None:
            cut = JournalCut(place.topic_id.bytes, place.partition, found.journal_cut)
            self.cuts.append(cut)

    def pending(
        self, followed: list[JournaledBatch]
    ) -> list[tuple[StoredBatch, JournalFile | None]]:
        """Batches that go on behind a log's segments, in memory of their own."""
        return [
            (
                StoredBatch(each.header, (bytes(each.stored),)),
                None if each.file_index == NO_FILE else self.files[each.file_index],
            )
            for each in followed
        ]


async def open_engine(
    data: Path,
    io: IoThreads,
    pool: BufferPool,
    cache: BatchCache,
    inventory: Inventory,
    counters: Counters,
    *,
    now_us: Callable[[], int],
    on_sealed: Callable[[PartitionLog], None],
    write_file: Callable[[Path, bytes], None] = write_file_atomically,
    segment_bytes: int,
    journal_bytes: int,
    is_direct: bool,
    open_aio: Callable[[], KernelAio | None] = KernelAio.open,
) -> tuple[LogResources, Replayed]:
    """Read the journal. ReadFailedError, CorruptMetadataError.

    `open_aio`: what writes the journal where it is written directly; None: threads do.
    """
    file_bytes = journal_bytes // JOURNAL_FILES // JOURNAL_BLOCK_BYTES * JOURNAL_BLOCK_BYTES
    files = [
        JournalFile(path, size_bytes=file_bytes, is_direct=is_direct)
        for path in journal_paths(data)
    ]
    journal_id, replay = await io.run(partial(recover_journal, files, is_direct=is_direct))
    spiller = Spiller(io, data, inventory)
    journal = Journal(
        files,
        io,
        spiller,
        inventory,
        counters,
        journal_id=journal_id,
        next_sequence=replay.next_sequence,
        last_used=replay.last_used,
        boot=replay.last_boot + 1,
        aio=open_aio() if is_direct else None,
    )
    open_segments = OpenSegments(is_direct=is_direct)
    resources = LogResources(
        io=io,
        pool=pool,
        cache=cache,
        files=open_segments,
        inventory=inventory,
        journal=journal,
        flusher=Flusher(io, journal, open_segments),
        spiller=spiller,
        quarantine=Quarantine(io, pool, is_direct=is_direct),
        counters=counters,
        now_us=now_us,
        segment_bytes=segment_bytes,
        is_direct=is_direct,
        on_sealed=on_sealed,
        reading=Reading(pool.read, io),
        catch_up=Reading(pool.catch_up, IoShare(io, max(1, io.count - 1))),
        # What followers are sent is waited for, too, by producers elsewhere: it gets all threads.
        # Twice their number: a thread that has ended a job has the next one. What comes here
        # waits for no more than these, if hundreds are there.
        receiving=IoShare(io, 2 * io.count),
        write_file=write_file,
    )
    return resources, Replayed(files, replay)
