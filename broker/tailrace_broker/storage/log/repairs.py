"""What the recovery of a log changes on disk: each change has its method here. Blocks.

`DiskRepairs` makes the changes. `tailrace verify` runs the same recovery with repairs that only
take note of them (`storage.inspection`).
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

import structlog

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.codec.segment import SegmentIndex, encode_index, encode_pad
from tailrace_broker.core.log.journal_replay import JournaledBatch
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import RecordedDamage
from tailrace_broker.model.errors import DiskFullError, StorageFailedError
from tailrace_broker.storage.files.direct_file import (
    BLOCK_BYTES,
    DirectFile,
    write_file_atomically,
)
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.log.damage_file import save_damage
from tailrace_broker.storage.log.trim import remove_segments, save_log_start
from tailrace_broker.storage.segments.cut import finish_cut
from tailrace_broker.storage.segments.open_segments import OpenSegments
from tailrace_broker.storage.segments.writer import LogPlace, SegmentWriter, segment_path

# Batches of the journal that go to a segment in one write; each is smaller than 64 KiB.
_BATCHES_PER_WRITE = 32

_log = structlog.get_logger()


class Repairs(Protocol):
    """Of one log. Errors: DiskFullError, StorageFailedError."""

    @property
    def trusts_indexes(self) -> bool:
        """A finished segment is not read when its index fits it."""

    def save_index(self, path: Path, index: SegmentIndex) -> None:
        """Write the index of a finished segment that was scanned and is whole."""

    def save_damage(self, known: RecordedDamage) -> None:
        """Record what is known of the log's damage, durably."""

    def write_pending(
        self, segments: list[SegmentState], pending: Sequence[JournaledBatch]
    ) -> None:
        """Write batches of the journal to the last of these segments, and add them to its state."""

    def finish_cut(self, end_offset: int) -> None:
        """Do what is left of a cut of the log's segments."""

    def cut(self, file: DirectFile, state: SegmentState, torn_bytes: int) -> None:
        """End the log on a block boundary with nothing behind it.

        `torn_bytes`: that are not zero behind the end.
        """

    def save_start(self, start: LogStart) -> None:
        """Save where the log starts now, durably, before `remove_segments`."""

    def remove_segments(self, paths: Iterable[Path]) -> None:
        """Remove segments that end below the log start."""


class DiskRepairs:
    """Repairs of a start."""

    trusts_indexes = True

    def __init__(
        self, place: LogPlace, pool: BufferPool, inventory: Inventory, *, is_direct: bool
    ) -> None:
        self._place = place
        self._pool = pool
        self._inventory = inventory
        self._is_direct = is_direct

    def save_index(self, path: Path, index: SegmentIndex) -> None:
        """When the disk refuses it, the next start scans again."""
        with suppress(DiskFullError, StorageFailedError):
            write_file_atomically(path, encode_index(index))

    def save_damage(self, known: RecordedDamage) -> None:
        """See Repairs."""
        save_damage(self._place.directory, known)

    def write_pending(
        self, segments: list[SegmentState], pending: Sequence[JournaledBatch]
    ) -> None:
        """See Repairs. From then on the journal goes on without them."""
        state = segments[-1]
        if state.position:
            path = segment_path(self._place.directory, state.base_offset)
            with closing(DirectFile.open(path, is_direct=self._is_direct)) as file:
                self._make_end_clean(file, state)
        with closing(OpenSegments(is_direct=self._is_direct)) as files:
            writer = SegmentWriter(
                self._place,
                segments,
                self._pool,
                files,
                self._inventory,
                segment_bytes=sys.maxsize,
            )
            for start in range(0, len(pending), _BATCHES_PER_WRITE):
                batches = pending[start : start + _BATCHES_PER_WRITE]
                stored = [StoredBatch(each.header, (each.stored,)) for each in batches]
                writer.write(stored, is_durable=True)

    def finish_cut(self, end_offset: int) -> None:
        """See Repairs."""
        finish_cut(self._place.directory, end_offset, is_direct=self._is_direct)

    def cut(self, file: DirectFile, state: SegmentState, torn_bytes: int) -> None:
        """Cut away what a torn write left."""
        if torn_bytes:
            _log.warning(
                "log.cut",
                file=str(file.path),
                end_offset=state.end_offset,
                torn_bytes=torn_bytes,
            )
        self._make_end_clean(file, state)

    def save_start(self, start: LogStart) -> None:
        """See Repairs."""
        save_log_start(self._place.directory, start, write_file_atomically)

    def remove_segments(self, paths: Iterable[Path]) -> None:
        """When the disk refuses it, the next start tries again."""
        with suppress(StorageFailedError):
            remove_segments(paths)

    def _make_end_clean(self, file: DirectFile, state: SegmentState) -> None:
        """When a torn write left batches but not its pad, give their last block one.

        It is the only time that a block is written again: its write was never acknowledged as a
        whole. What a killed broker wrote last need not be on the disk yet: who recovers the logs
        syncs them all at once.
        """
        block_start = state.position // BLOCK_BYTES * BLOCK_BYTES
        used_bytes = state.position - block_start
        if used_bytes:
            with self._pool.lend(BLOCK_BYTES) as block:
                file.read(block[:BLOCK_BYTES], block_start)
                block[used_bytes:BLOCK_BYTES] = encode_pad(BLOCK_BYTES - used_bytes)
                file.write(block[:BLOCK_BYTES], block_start)
            state.position = block_start + BLOCK_BYTES
        if file.size_bytes() > state.position:
            file.truncate(state.position)
