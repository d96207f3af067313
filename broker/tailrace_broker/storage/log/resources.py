"""What all logs of a broker share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool, Quota
from tailrace_broker.model.counters import Counters
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_share import Io
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.journal.journal import Journal
from tailrace_broker.storage.journal.spiller import Spiller
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.flusher import Flusher
from tailrace_broker.storage.segments.open_segments import OpenSegments
from tailrace_broker.storage.segments.quarantine import Quarantine
from tailrace_broker.storage.segments.writer import LogPlace, SegmentWriter

if TYPE_CHECKING:
    from tailrace_broker.storage.log.partition_log import PartitionLog


class Reading(NamedTuple):
    """Where what is read from the disk goes, and who reads it."""

    memory: Quota
    io: Io


@dataclass(frozen=True, slots=True)
class LogResources:
    """`on_sealed`: a log has finished a segment.

    `reading`: for users; `catch_up`: for followers. `receiving`: writes what a follower was sent,
    and cuts its log.
    `io`: all threads, for what producers send.
    `write_file`: replaces a small file, on a full disk too, so that retention can make room.
    """

    io: IoThreads
    pool: BufferPool
    cache: BatchCache
    files: OpenSegments
    inventory: Inventory
    journal: Journal
    flusher: Flusher
    spiller: Spiller
    quarantine: Quarantine
    counters: Counters
    now_us: Callable[[], int]
    segment_bytes: int
    is_direct: bool
    on_sealed: Callable[["PartitionLog"], None]
    reading: Reading
    catch_up: Reading
    receiving: Io
    write_file: Callable[[Path, bytes], None]

    def segment_writer(self, place: LogPlace, segments: list[SegmentState]) -> SegmentWriter:
        """Return a writer of a log's segments."""
        return SegmentWriter(
            place,
            segments,
            self.pool,
            self.files,
            self.inventory,
            segment_bytes=self.segment_bytes,
        )

    def close(self) -> None:
        """All logs are closed, and nothing is being flushed."""
        self.flusher.stop()
        self.journal.close()
        self.files.close()
