"""What all logs of a broker share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.counters import Counters
from tailrace_broker.storage.files.direct_file import write_file_atomically
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.journal.journal import Journal
from tailrace_broker.storage.journal.spiller import Spiller
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.flusher import Flusher
from tailrace_broker.storage.segments.open_segments import OpenSegments
from tailrace_broker.storage.segments.quarantine import Quarantine

if TYPE_CHECKING:
    from tailrace_broker.storage.log.partition_log import PartitionLog


@dataclass(frozen=True, slots=True)
class LogResources:
    """`on_sealed`: a log has finished a segment.

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
    write_file: Callable[[Path, bytes], None] = write_file_atomically

    def close(self) -> None:
        """All logs are closed, and nothing is being flushed."""
        self.flusher.stop()
        self.journal.close()
        self.files.close()
