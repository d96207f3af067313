"""Finds where a partition's log ends after any kind of stop, and makes that end clean.

Blocks: runs in an I/O thread before the partition takes anything. The rules are in
`core.recovery`; this reads, cuts and rebuilds index files.

Damage to what was acknowledged is left as it is, and recorded. The log goes on behind it where that
is known. Else it has lost its end: it takes nothing then until somebody accepts the loss.
"""

import re
import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from tailrace.wire import BatchHeader
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.codec.segment import SegmentIndex, decode_index, encode_index, encode_pad
from tailrace_broker.core.log.journal_replay import NO_FILE, JournaledBatch
from tailrace_broker.core.log.producers import ProducerWindows
from tailrace_broker.core.log.recovery import (
    LogScan,
    SegmentState,
    end_of_damaged,
    follow_journal,
    resume_journal,
)
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Damage, Loss, LostEnd, RecordedDamage
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptMetadataError,
    DiskFullError,
    ReadFailedError,
    StorageFailedError,
)
from tailrace_broker.model.topic import NO_EPOCH
from tailrace_broker.storage.files.direct_file import (
    BLOCK_BYTES,
    DirectFile,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.log.damage_file import load_damage, save_damage
from tailrace_broker.storage.log.producer_recovery import ProducerRecovery
from tailrace_broker.storage.log.trim import load_log_start, remove_segments
from tailrace_broker.storage.segments.open_segments import OpenSegments
from tailrace_broker.storage.segments.scan import (
    Behind,
    ends_with_damage,
    look_behind,
    scan_segment,
    scan_through_damage,
)
from tailrace_broker.storage.segments.writer import LogPlace, SegmentWriter, index_of, segment_path

# A log that has lost its end goes on so far behind all that is known of it, unless its end is known
# exactly. No broker appends so many records before a header names the end of those before it: at 10
# million a second that takes 30 hours. JSON has exact offsets for 8,000 such losses.
UNKNOWN_OFFSETS_MAX = 1 << 40
# Batches of the journal that go to a segment in one write; each is smaller than 64 KiB.
_BATCHES_PER_WRITE = 32

# Other files in the directory are not ours.
_SEGMENT_NAME = re.compile(r"\d{20}\.log", re.ASCII)
_INDEX_NAME = re.compile(r"\d{20}\.idx", re.ASCII)

_log = structlog.get_logger()


class RecoveredLog(NamedTuple):
    """A partition's segments in order, the last ready for writes; what the journal adds to them.

    `damages` are in the files; no file has the offsets of `losses`. `lost_end`: the log takes no
    writes.
    """

    segments: list[SegmentState]
    pending: list[JournaledBatch]
    windows: ProducerWindows | None = None  # None: no producer is known
    damages: Sequence[Damage] = ()
    losses: Sequence[Damage] = ()
    lost_end: LostEnd | None = None


def recover_log(
    place: LogPlace,
    first_offset: int,
    pool: BufferPool,
    inventory: Inventory,
    *,
    is_direct: bool,
    journaled: Sequence[JournaledBatch] = (),
    damaged: Sequence[BatchHeader] = (),
    exact_end: int | None = None,
    is_journal_lossy: bool = False,
    now_us: int = 0,
) -> RecoveredLog:
    """On disk nothing follows the segments afterwards, unless the log is damaged there.

    `inventory`: says whether there must be segments; `journaled`: the partition's batches in the
    journal; `damaged`: those that it held durably and that are damaged there; `exact_end`: the log
    ended there, as a clean stop or its seal says; `is_journal_lossy`: somebody has accepted that
    some of the journal is lost.
    CorruptPartitionError: log-start.json or `damage` is damaged, or segments overlap. Nothing is
    changed then.
    """
    try:
        moved_start = load_log_start(place.directory)
        known = load_damage(place.directory)
    except CorruptMetadataError as error:
        raise place.damaged(f"{place.directory}: {error.detail}") from error
    start = moved_start or LogStart(first_offset, NO_EPOCH, 0)
    recovery = _Recovery(place, pool, inventory, is_direct, journaled, damaged, exact_end, known)
    ends = (header.end_offset for header in damaged)
    recovery.is_journal_lossy = is_journal_lossy
    recovery.durable_end = max([exact_end or 0, known.proven_end, *ends])
    return recovery.recover(start, now_us)


@dataclass(slots=True)
class _Recovery:
    """The recovery of one log; `segments` ends with the one that is being recovered."""

    place: LogPlace
    pool: BufferPool
    inventory: Inventory
    is_direct: bool
    journaled: Sequence[JournaledBatch]
    damaged: Sequence[BatchHeader]
    exact_end: int | None
    recorded: RecordedDamage
    is_journal_lossy: bool = False
    durable_end: int = 0
    has_lost_segments: bool = False  # the last ones: how many records they had nobody knows
    segments: list[SegmentState] = field(default_factory=list)
    written: list[JournaledBatch] = field(default_factory=list)  # from the journal to a segment
    damages: list[Damage] = field(default_factory=list)
    losses: list[Damage] = field(default_factory=list)
    lost_end: LostEnd | None = None

    def recover(self, start: LogStart, now_us: int) -> RecoveredLog:
        """Recover all segments, then the end."""
        kept, left = self._base_offsets(start.log_start)
        self._look_for_newest(start.log_start, kept)
        self.segments.append(
            SegmentState(
                start.log_start, start.log_start, start.epoch_before, start.append_time_before_us
            )
        )
        for base_offset, next_offset in zip(kept, [*kept[1:], None], strict=False):
            self._follow_on(base_offset)
            if next_offset is not None:
                self._recover_finished(self.segments[-1], next_offset)
        producers = ProducerRecovery(
            self.place.directory, self.pool, is_direct=self.is_direct, now_us=now_us
        )
        producers.begin(self.segments)
        pending = self._recover_end(producers.windows, has_file=bool(kept))
        damages = [*self.damages, *self.losses]
        windows = producers.end(self.segments, [*self.written, *pending], damages)
        with suppress(StorageFailedError):  # the next start tries again
            remove_segments(self._path(base_offset) for base_offset in left)
        return RecoveredLog(
            self.segments, pending, windows, self.damages, self.losses, self.lost_end
        )

    # --- segments ---

    def _path(self, base_offset: int) -> Path:
        return segment_path(self.place.directory, base_offset)

    def _base_offsets(self, log_start: int) -> tuple[list[int], list[int]]:
        """Of the segments in order: those from the log start on, and those that retention has left.

        An index file without its segment shows that there was one.
        """
        directory = self.place.directory
        with translated_errors(directory, ReadFailedError):
            if not directory.exists():
                return [], []
            names = {path.name for path in directory.iterdir()}
        segments = {int(name[:-4]) for name in names if _SEGMENT_NAME.fullmatch(name)}
        indexes = {int(name[:-4]) for name in names if _INDEX_NAME.fullmatch(name)}
        for base_offset in indexes - segments:
            if base_offset >= log_start:
                index = _read_index(self._path(base_offset).with_suffix(".idx"))
                if base_offset > max(segments, default=-1):
                    self._note_lost_segment(base_offset, index)
        kept = sorted(segments)
        kept = kept[bisect_left(kept, log_start) :]
        return kept, sorted(each for each in segments | indexes if each < log_start)

    def _look_for_newest(self, log_start: int, kept: Sequence[int]) -> None:
        """Note the newest segment that was there when it is gone, unless its loss is accepted."""
        newest = self.inventory.newest_segment(self.place.topic_id, self.place.partition)
        if newest is None:
            return
        ends = (each.end_offset for each in self.recorded.losses)
        if (
            newest >= log_start
            and newest > max([*kept[-1:], -1])
            and newest >= max(ends, default=0)
        ):
            self._note_lost_segment(newest, None)

    def _note_lost_segment(self, base_offset: int, index: SegmentIndex | None) -> None:
        """Note one of the last segments, whose file is missing."""
        end_offset = base_offset + 1 if index is None else index.end_offset
        self.durable_end = max(self.durable_end, end_offset)
        self.has_lost_segments = True

    def _follow_on(self, base_offset: int) -> None:
        """Go on with the segment of this offset; offsets between it and the one before are lost."""
        before = self.segments[-1]
        if base_offset < before.end_offset:
            raise self.place.damaged(
                f"{self._path(base_offset)} begins below offset {before.end_offset}, where the "
                "segment before it ends. Nothing was changed; restore the files"
            )
        state = before.follow_on(base_offset)
        if before.base_offset == base_offset:  # the log begins with it
            self.segments.clear()
        elif base_offset > before.end_offset:
            path = self._path(before.base_offset)
            self.losses.append(Damage(path, before.position, before.end_offset, base_offset))
        self.segments.append(state)

    def _recover_finished(self, state: SegmentState, next_offset: int) -> None:
        """A segment that another follows: from its index file, or from a scan."""
        path = self._path(state.base_offset)
        index_path = path.with_suffix(".idx")
        index = _read_index(index_path)
        with translated_errors(path):
            size_bytes = path.stat().st_size
        known = (next_offset, size_bytes)
        if index is not None and (index.end_offset, index.segment_bytes) == known:
            state.end_offset = index.end_offset
            state.last_epoch = index.last_epoch
            state.last_append_time_us = index.last_append_time_us
            state.largest_timestamp_us = index.largest_timestamp_us
            state.position = index.segment_bytes
            state.entries = index.entries
            return
        scan = LogScan(self.place.topic_id, self.place.partition, state)
        with closing(DirectFile.open(path, is_direct=self.is_direct)) as file:
            scan_segment(file, scan, self.pool)
            damage_count = len(self.damages)
            self._scan_through_damage(file, scan, next_offset)
        if state.end_offset == next_offset and len(self.damages) == damage_count:
            with suppress(DiskFullError, StorageFailedError):  # the next start scans again
                write_file_atomically(index_path, encode_index(index_of(state)))

    def _scan_through_damage(self, file: DirectFile, scan: LogScan, durable_end: int) -> None:
        """Scan on behind damage, but not behind a loss, whose records were given up."""
        starts = (each.first_offset for each in self.recorded.losses)
        first_lost = min((each for each in starts if each >= scan.state.end_offset), default=None)
        if first_lost is not None:
            durable_end = min(durable_end, first_lost)
        path = self._path(scan.state.base_offset)
        self.damages += scan_through_damage(file, scan, self.pool, path, durable_end)

    # --- the end ---

    def _recover_end(self, windows: ProducerWindows, *, has_file: bool) -> list[JournaledBatch]:
        """Scan the segment that takes writes, follow the journal, cut behind the last batch."""
        state = self.segments[-1]
        scan = LogScan(self.place.topic_id, self.place.partition, state, windows=windows)
        if not has_file:
            return self._go_on(None, scan, Behind())
        path = self._path(state.base_offset)
        with closing(DirectFile.open(path, is_direct=self.is_direct)) as file:
            scan_segment(file, scan, self.pool)
            return self._go_on(file, scan, look_behind(file, scan, self.pool))

    def _go_on(
        self, file: DirectFile | None, scan: LogScan, behind: Behind
    ) -> list[JournaledBatch]:
        """Go on with the journal where the segment ends, or behind damage to what was durable."""
        state = scan.state
        is_last = False
        pending = self._pending(state, behind)
        if not self._is_damaged(state, pending):
            self._record(RecordedDamage(self.recorded.proven_end, 0, self.recorded.losses))
            if file is not None:
                self._cut(file, state, behind)
            return pending
        if file is not None:
            self._scan_through_damage(file, scan, self.durable_end)
            pending = self._pending(state, Behind())
            is_last = ends_with_damage(file, scan, self.pool)
        if not self._is_damaged(state, pending):
            # The next start must know that what follows is no torn write.
            self._record(RecordedDamage(self.durable_end, 0, self.recorded.losses))
            if file is not None:
                self._cut(file, state, look_behind(file, scan, self.pool))
            return pending
        return self._go_on_after_loss(behind, is_last=is_last)

    def _pending(self, state: SegmentState, behind: Behind) -> list[JournaledBatch]:
        """Return the batches that the journal adds, and note how far all was durable."""
        pending, journal_end = follow_journal(state, self.journaled)
        self.durable_end = max(self.durable_end, behind.durable_end, journal_end)
        return pending

    def _is_damaged(self, state: SegmentState, pending: Sequence[JournaledBatch]) -> bool:
        end_offset = pending[-1].end_offset if pending else state.end_offset
        is_unknown = self.has_lost_segments and self.exact_end is None
        return is_unknown or self.durable_end > end_offset

    def _go_on_after_loss(self, behind: Behind, *, is_last: bool) -> list[JournaledBatch]:
        """Go on with a new segment where the last does not reach the proven end, as far as known.

        `is_last`: only one batch of the last segment is damaged, as its size says.
        """
        while True:
            state = self.segments[-1]
            pending = self._pending(state, Behind())
            end_offset = pending[-1].end_offset if pending else state.end_offset
            loss = self.recorded.loss_at(end_offset)
            if loss is not None:
                self._write_pending(pending)
                self._follow_on(loss.end_offset)
                continue
            if not self._is_damaged(state, pending):
                return pending
            next_offset = self._next_offset(behind)
            self._record(RecordedDamage(self.durable_end, next_offset, self.recorded.losses))
            if self.has_lost_segments:  # nothing goes where a lost segment may be restored
                proven_end = max(self.durable_end, end_offset + (self.exact_end is None))
                self.lost_end = LostEnd(end_offset, proven_end, next_offset)
                return [each._replace(file_index=NO_FILE) for each in pending]
            self._write_pending(pending)
            resumed_at = self._resumed_at(state, is_last=is_last)
            if resumed_at is None:
                self.lost_end = LostEnd(state.end_offset, self.durable_end, next_offset)
                return []
            self._record(self.recorded.with_loss(Loss(state.end_offset, resumed_at)))
            is_last = False

    def _resumed_at(self, state: SegmentState, *, is_last: bool) -> int | None:
        """Where the log goes on behind its segments; None: nobody knows what was lost there."""
        damaged_end = end_of_damaged(state.end_offset, self.damaged)
        if damaged_end > state.end_offset:
            return damaged_end
        resumed = resume_journal(state, self.journaled, self.durable_end)
        return (
            resumed[0].header.base_offset
            if resumed and (is_last or self.is_journal_lossy)
            else None
        )

    def _next_offset(self, behind: Behind) -> int:
        """Return an offset that no lost record can have had."""
        ends = [batch.end_offset for batch in self.journaled]
        largest_end = max(self.durable_end, behind.largest_end, *ends)
        if self.recorded.largest_end and self.recorded.proven_end == self.durable_end:
            return max(self.recorded.largest_end, largest_end)
        if self.exact_end == largest_end:
            return largest_end
        return largest_end + UNKNOWN_OFFSETS_MAX

    def _record(self, known: RecordedDamage) -> None:
        """Save what is known of the damage, durably, when it has changed."""
        if known != self.recorded:
            save_damage(self.place.directory, known)
            self.recorded = known

    def _write_pending(self, pending: Sequence[JournaledBatch]) -> None:
        """Write batches of the journal to the segment: the journal goes on without them."""
        if not pending:
            return
        state = self.segments[-1]
        if state.position:
            path = self._path(state.base_offset)
            with closing(DirectFile.open(path, is_direct=self.is_direct)) as file:
                _make_end_clean(file, state, self.pool)
        with closing(OpenSegments(is_direct=self.is_direct)) as files:
            writer = SegmentWriter(
                self.place,
                self.segments,
                self.pool,
                files,
                self.inventory,
                segment_bytes=sys.maxsize,
            )
            for start in range(0, len(pending), _BATCHES_PER_WRITE):
                batches = pending[start : start + _BATCHES_PER_WRITE]
                stored = [StoredBatch(each.header, (each.stored,)) for each in batches]
                writer.write(stored, is_durable=True)
        self.written += pending

    def _cut(self, file: DirectFile, state: SegmentState, behind: Behind) -> None:
        """Cut away what a torn write left."""
        if behind.torn_bytes:
            _log.warning(
                "log.cut",
                file=str(self._path(state.base_offset)),
                end_offset=state.end_offset,
                torn_bytes=behind.torn_bytes,
            )
        _make_end_clean(file, state, self.pool)


def _read_index(path: Path) -> SegmentIndex | None:
    with translated_errors(path), suppress(FileNotFoundError, CorruptBatchError):
        return decode_index(path.read_bytes())
    return None


def _make_end_clean(file: DirectFile, state: SegmentState, pool: BufferPool) -> None:
    """End the log on a block boundary with nothing behind it.

    When a torn write left batches but not its pad, their last block gets one. It is the only time
    that a block is written again: its write was never acknowledged as a whole. What a killed broker
    wrote last need not be on the disk yet: who recovers the logs syncs them all at once.
    """
    block_start = state.position // BLOCK_BYTES * BLOCK_BYTES
    used_bytes = state.position - block_start
    if used_bytes:
        with pool.lend(BLOCK_BYTES) as block:
            file.read(block[:BLOCK_BYTES], block_start)
            block[used_bytes:BLOCK_BYTES] = encode_pad(BLOCK_BYTES - used_bytes)
            file.write(block[:BLOCK_BYTES], block_start)
        state.position = block_start + BLOCK_BYTES
    if file.size_bytes() > state.position:
        file.truncate(state.position)
