"""Brings batches to a partition's segments. Blocks: runs in an I/O thread, one call at a time.

Every write starts and ends on a block boundary and makes the file grow: appends that are small and
urgent go to the journal, which is zero-written ahead (docs/decisions/008-journal.md).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from uuid import UUID

import structlog

from tailrace.wire import align_up
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.segment import SegmentIndex, encode_index, encode_pad
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.errors import CorruptPartitionError, NoLeaderError, TailraceError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES, DirectFile, write_file_atomically
from tailrace_broker.storage.files.inventory import Inventory, ListedSegment
from tailrace_broker.storage.segments.open_segments import OpenSegments

_log = structlog.get_logger()
_levels = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """What all batches of a partition have in common, and where its files are."""

    directory: Path
    topic: str
    topic_id: UUID
    partition: int
    range_id: int

    @classmethod
    def of(cls, directory: Path, topic: Topic, partition: Partition) -> "LogPlace":
        """The place of a topic's partition, whose files are in this directory."""
        number, range_id = partition.partition, partition.range_id
        return cls(directory, topic.name, topic.topic_id, number, range_id)

    @property
    def key(self) -> LogKey:
        """What names the partition in the ring."""
        return LogKey(self.topic_id, self.partition)

    def damaged(self, detail: str) -> CorruptPartitionError:
        """The error that says so, naming the partition."""
        return CorruptPartitionError(detail, topic=self.topic, partition=self.partition)

    def no_leader(self, detail: str) -> NoLeaderError:
        """The error that says so, naming the partition and its range."""
        return NoLeaderError(
            detail, topic=self.topic, partition=self.partition, range=self.range_id
        )


def segment_path(directory: Path, base_offset: int) -> Path:
    """The file of a segment; its index is beside it with the suffix `.idx`."""
    return directory / f"{base_offset:020d}.log"


class SegmentWriter:
    """The writing end of one partition's log. `segments` ends with the one that takes writes."""

    __slots__ = ("_files", "_has_file", "_inventory", "_is_debug", "_place", "_pool",
                 "_segment_bytes", "_segments", "needs_cut")  # fmt: skip

    def __init__(
        self,
        place: LogPlace,
        segments: list[SegmentState],
        pool: BufferPool,
        files: OpenSegments,
        inventory: Inventory,
        *,
        segment_bytes: int,
    ) -> None:
        """`inventory`: gets each new segment."""
        self._place = place
        self._segments = segments
        self._pool = pool
        self._files = files
        self._inventory = inventory
        self._segment_bytes = segment_bytes
        self._has_file = segments[-1].position > 0
        self.needs_cut = False  # a failed write may still stand behind the end
        self._is_debug = _levels.isEnabledFor(logging.DEBUG)

    @property
    def path(self) -> Path:
        """The file of the last segment."""
        return segment_path(self._place.directory, self._segments[-1].base_offset)

    @property
    def listed_segment(self) -> ListedSegment:
        """The last segment, as the inventory lists it."""
        place = self._place
        return place.topic_id, place.partition, self._segments[-1].base_offset

    def write(self, batches: Sequence[StoredBatch], *, is_durable: bool) -> Path:
        """Append batches, which go on at the end of the last segment, in one write; its file.

        On an error none of them is in the log. DiskFullError: nothing was written. After
        StorageFailedError they may still be found on disk by a recovery before the next write.
        """
        path = self.put(batches, is_durable=is_durable)
        self.take(batches)
        return path

    def put(
        self, batches: Sequence[StoredBatch], *, is_durable: bool, is_synced_later: bool = False
    ) -> Path:
        """The first half of `write`: what is put may still be cut, and else must be taken.

        `is_synced_later`: the caller makes it durable, with a new file and its directories, and
        then notes the segment in the inventory.
        """
        path = self._ready_path(is_synced_later=is_synced_later)
        size_bytes = sum(batch.header.batch_bytes for batch in batches)
        padded_bytes = align_up(size_bytes, BLOCK_BYTES)
        start, started_s = self._segments[-1].position, perf_counter()
        with self._files.use(path) as file:
            if self.needs_cut:
                self._cut(file)
            try:
                with self._pool.lend(padded_bytes) as buffer:
                    _fill(buffer, batches, padded_bytes - size_bytes)
                    file.write(buffer[:padded_bytes], start, is_durable=is_durable)
                if not is_synced_later:
                    self._inventory.add_segments([self.listed_segment])
            except TailraceError:
                self._forget_new_file()
                self._cut(file)
                raise
        if self._is_debug:
            _log.debug(
                "segment.written",
                file=str(path),
                base_offset=batches[0].header.base_offset,
                end_offset=batches[-1].header.end_offset,
                batches=len(batches),
                size_bytes=padded_bytes,
                is_durable=is_durable,
                duration_ms=round((perf_counter() - started_s) * 1000, 3),
            )
        return path

    def take(self, batches: Sequence[StoredBatch]) -> None:
        """The second half: what was put is in the log."""
        state = self._segments[-1]
        for batch in batches:
            state.add(batch.header)
        state.position = align_up(state.position, BLOCK_BYTES)

    def cut(self) -> None:
        """What was put could not be made durable: it is not in the log. StorageFailedError.

        After an error the next write tries again.
        """
        self.needs_cut = True
        self._forget_new_file()
        with self._files.use(self.path) as file:
            self._cut(file)

    def roll(self) -> None:
        """Finish the last segment, index it, go on with an empty one; repeatable after an error."""
        state = self._segments[-1]
        path = self.path
        with self._files.use(path) as file:
            file.truncate(state.position)
        write_file_atomically(path.with_suffix(".idx"), encode_index(index_of(state)))
        self._has_file = False
        _log.info(
            "segment.sealed", path=str(path), end_offset=state.end_offset, size_bytes=state.position
        )
        self._segments.append(
            SegmentState(
                state.end_offset,
                state.end_offset,
                state.last_epoch,
                state.last_append_time_us,
                high_watermark=state.high_watermark,
            )
        )

    def _ready_path(self, *, is_synced_later: bool) -> Path:
        """The file of the last segment, which has room."""
        state = self._segments[-1]
        if state.position >= self._segment_bytes:
            self.roll()
        path = self.path
        if not self._has_file:
            self._files.create(path, is_durable=not is_synced_later)
            self._has_file = True
        return path

    def _forget_new_file(self) -> None:
        """Its directories may not be synced: the next write makes it again."""
        self._has_file = self._segments[-1].position > 0

    def _cut(self, file: DirectFile) -> None:
        """Remove what a failed write left behind the log's end.

        Else a later, shorter write could leave a stale batch that recovery takes for the log's.
        """
        self.needs_cut = True
        file.truncate(self._segments[-1].position)
        self.needs_cut = False


def index_of(state: SegmentState) -> SegmentIndex:
    """The index file's contents for a segment that takes no more writes."""
    return SegmentIndex(
        state.position,
        state.end_offset,
        state.last_epoch,
        state.last_append_time_us,
        state.largest_timestamp_us,
        state.entries,
        state.epochs,
    )


def _fill(buffer: memoryview, batches: Sequence[StoredBatch], pad_bytes: int) -> None:
    """Lay batches and pad into aligned memory: the one copy on the way to the disk."""
    position = 0
    for batch in batches:
        for part in batch.buffers:
            buffer[position : position + len(part)] = part
            position += len(part)
    buffer[position : position + pad_bytes] = encode_pad(pad_bytes)
