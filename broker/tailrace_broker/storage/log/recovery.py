"""Finds where a partition's log ends after any kind of stop, and makes that end clean.

Blocks: runs in an I/O thread before the partition takes anything. The rules are in
`core.recovery`; this reads, and has `storage.log.repairs` cut and rebuild index files.

Damage to what was acknowledged is left as it is, and recorded. The log goes on behind it where that
is known. Else it has lost its end: it takes nothing then until somebody accepts the loss.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tailrace.wire import BatchHeader
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.codec.segment import SegmentIndex, decode_index
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
from tailrace_broker.model.damage import (
    Accepted,
    Damage,
    Loss,
    LostEnd,
    RecordedDamage,
    is_accepted,
)
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptMetadataError,
    CorruptPartitionError,
    ReadFailedError,
)
from tailrace_broker.model.topic import NO_EPOCH
from tailrace_broker.storage.files.direct_file import DirectFile, translated_errors
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.log.damage_file import load_damage
from tailrace_broker.storage.log.producer_recovery import ProducerRecovery
from tailrace_broker.storage.log.repairs import DiskRepairs, Repairs
from tailrace_broker.storage.log.trim import load_log_start, log_start_in
from tailrace_broker.storage.segments.cut import unfinished_cut
from tailrace_broker.storage.segments.scan import (
    Behind,
    ends_with_damage,
    look_behind,
    scan_segment,
    scan_through_damage,
)
from tailrace_broker.storage.segments.writer import LogPlace, index_of, segment_path

# A log that has lost its end goes on so far behind all that is known of it, unless its end is known
# exactly. No broker appends so many records before a header names the end of those before it: at 10
# million a second that takes 30 hours. JSON has exact offsets for 8,000 such losses.
UNKNOWN_OFFSETS_MAX = 1 << 40
# Other files in the directory are not ours.
SEGMENT_NAME = re.compile(r"\d{20}\.log", re.ASCII)
INDEX_NAME = re.compile(r"\d{20}\.idx", re.ASCII)


class RecoveredLog(NamedTuple):
    """A partition's segments in order, the last ready for writes; what the journal adds to them.

    `damages` are in the files; no file has the offsets of `losses`. `lost_end`: the log takes no
    writes. `journal_cut`: what the journal has above is given up. It must be cut there before the
    log takes anything: a later start would find it before what has taken its place, and follow it.
    """

    segments: list[SegmentState]
    pending: list[JournaledBatch]
    start: LogStart
    windows: ProducerWindows | None  # None: no producer is known
    damages: Sequence[Damage]
    losses: Sequence[Damage]
    lost_end: LostEnd | None
    journal_cut: int | None


class LogEvidence(NamedTuple):
    """What other files say of a log.

    `first_offset`: where it began; unless `is_start_known`, where what is left of it begins.
    `newest_segment`: it must have the segment of this base offset, as the inventory says.
    `journaled`: its batches in the journal. `damaged`: those that the journal held durably and
    that are damaged there. `exact_end`: it ended there, as a clean stop or its seal says, and what
    is behind is of a write that failed.
    `is_journal_lossy`: somebody has accepted that some of the journal is lost, by `now_us`.
    `headers_prove`: what a batch's header says was committed was durable here. Of several copies
    that need not be: a follower can take two batches in one write, and lose the first with the
    power.
    """

    first_offset: int
    newest_segment: int | None = None
    journaled: Sequence[JournaledBatch] = ()
    damaged: Sequence[BatchHeader] = ()
    exact_end: int | None = None
    is_journal_lossy: bool = False
    headers_prove: bool = True
    is_start_known: bool = True
    now_us: int = 0


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
    headers_prove: bool = True,
    now_us: int = 0,
) -> RecoveredLog:
    """On disk nothing follows the segments afterwards, unless the log is damaged there.

    `inventory` says whether there must be segments; the rest is as in LogEvidence.
    CorruptPartitionError: log-start.json or `damage` is damaged, or segments overlap. Nothing is
    changed then.
    """
    evidence = LogEvidence(
        first_offset,
        inventory.newest_segment(place.topic_id, place.partition),
        journaled,
        damaged,
        exact_end,
        is_journal_lossy=is_journal_lossy,
        headers_prove=headers_prove,
        now_us=now_us,
    )
    producers = ProducerRecovery(place.directory, pool, is_direct=is_direct, now_us=now_us)
    repairs = DiskRepairs(place, pool, inventory, is_direct=is_direct)
    return recover_with(repairs, place, evidence, pool, is_direct=is_direct, producers=producers)


def recover_with(
    repairs: Repairs,
    place: LogPlace,
    evidence: LogEvidence,
    pool: BufferPool,
    *,
    is_direct: bool,
    producers: ProducerRecovery | None = None,
) -> RecoveredLog:
    """Recover a log as `recover_log` does; what is to be changed on disk goes to `repairs`.

    `producers` None: what producers sent is of no interest.
    """
    try:
        start = load_log_start(place.directory)
        known = load_damage(place.directory)
    except CorruptMetadataError as error:
        raise place.damaged(f"{place.directory}: {error.detail}") from error
    recovery = _Recovery(place, pool, repairs, is_direct, evidence, known)
    ends = (header.end_offset for header in evidence.damaged)
    recovery.durable_end = max([evidence.exact_end or 0, known.proven_end, *ends])
    return recovery.recover(start, producers)


def lost_end_error(place: LogPlace, lost: LostEnd, *, has_segments: bool) -> CorruptPartitionError:
    """Return the error of reads behind the end of such a log, and of appends."""
    missing = (
        f"to {lost.proven_end - 1} were acknowledged and are missing"
        if lost.is_exact
        else "on are missing; how many of them were acknowledged is not known"
    )
    return place.damaged(
        f"{place.directory}{'' if has_segments else ' has lost its segments'}: "
        f"offsets from {lost.first_offset} {missing}. Stop the broker and restore the files "
        "from a copy; or, to go on without them: "
        f"tailrace topic accept-loss {place.topic} {place.partition}"
    )


def check_whole(place: LogPlace, log: RecoveredLog, accepted: Accepted) -> None:
    """Check that each offset from the log start on can be read. CorruptPartitionError.

    `accepted`: what is known to be lost.
    """
    if log.lost_end is not None:
        has_segments = any(state.position for state in log.segments)
        raise lost_end_error(place, log.lost_end, has_segments=has_segments)
    for damage in (*log.damages, *log.losses):
        is_missed = not is_accepted(accepted, damage.first_offset, damage.end_offset)
        if is_missed and damage.end_offset > log.start.log_start:
            lost = f"{damage.first_offset} to {damage.end_offset - 1}"
            raise place.damaged(f"{damage.path}: offsets {lost} cannot be read")


def check_epoch(place: LogPlace, epoch: int, log: RecoveredLog) -> None:
    """Check that the log is no newer than what the ring agreed. CorruptPartitionError."""
    last_epoch = (log.pending or log.segments)[-1].last_epoch
    if last_epoch > epoch:
        raise place.damaged(
            f"{place.directory}: the log ends in epoch {last_epoch}, but the ring is in epoch "
            f"{epoch}: {place.directory.parent.parent / 'metadata'} is an older copy; "
            "restore the newest"
        )


@dataclass(slots=True)
class _Recovery:
    """The recovery of one log; `segments` ends with the one that is being recovered."""

    place: LogPlace
    pool: BufferPool
    repairs: Repairs
    is_direct: bool
    evidence: LogEvidence
    recorded: RecordedDamage
    log_start: int = 0
    durable_end: int = 0
    has_lost_segments: bool = False  # the last ones: how many records they had nobody knows
    segments: list[SegmentState] = field(default_factory=list)
    written: list[JournaledBatch] = field(default_factory=list)  # from the journal to a segment
    damages: list[Damage] = field(default_factory=list)
    losses: list[Damage] = field(default_factory=list)
    lost_end: LostEnd | None = None
    cut_end: int | None = None  # of a cut that was not finished

    def recover(
        self, moved_start: LogStart | None, producers: ProducerRecovery | None
    ) -> RecoveredLog:
        """Recover all segments, then the end."""
        start = moved_start or self._first_start()
        first_segment, self.log_start = start.first_segment, start.log_start
        kept, left = self._base_offsets(first_segment)
        self._look_for_newest(first_segment, kept)
        self.segments.append(
            SegmentState(
                first_segment,
                first_segment,
                start.epoch_before,
                start.append_time_before_us,
                is_behind_damage=start.is_behind_damage,
            )
        )
        for base_offset, next_offset in zip(kept, [*kept[1:], None], strict=False):
            self._follow_on(base_offset)
            if next_offset is not None:
                self._recover_finished(self.segments[-1], next_offset)
        if producers is not None:
            producers.begin(self.segments)
        windows = None if producers is None else producers.windows
        has_file = bool(kept) and kept[-1] != self.cut_end  # else it is empty
        pending = self._recover_end(windows, has_file=has_file)
        if producers is not None:
            damages = [*self.damages, *self.losses]
            windows = producers.end(self.segments, [*self.written, *pending], damages)
        if self.lost_end is None:  # else a lost segment may be restored
            start, gone = self._forget_segments(start)
            left += gone
        self.repairs.remove_segments([self._path(base_offset) for base_offset in left])
        return RecoveredLog(
            self.segments, pending, start, windows, self.damages, self.losses, self.lost_end,
            self._journal_cut(self._end_of(self.segments[-1], pending)),
        )  # fmt: skip

    def _first_start(self) -> LogStart:
        """Of a log whose start was never moved."""
        first_offset = self.evidence.first_offset
        is_behind_damage = not self.evidence.is_start_known
        return LogStart(first_offset, first_offset, NO_EPOCH, 0, is_behind_damage=is_behind_damage)

    def _forget_segments(self, start: LogStart) -> tuple[LogStart, list[int]]:
        """Forget those that end below the log start, when what followed them was lost."""
        start, count = log_start_in(self.segments, start, self.log_start)
        gone = [state.base_offset for state in self.segments[:count]]
        if gone:
            self.repairs.save_start(start)
            del self.segments[:count]
        return start, gone

    # --- segments ---

    def _path(self, base_offset: int) -> Path:
        return segment_path(self.place.directory, base_offset)

    def _base_offsets(self, first_segment: int) -> tuple[list[int], list[int]]:
        """Of the segments in order: those from the first on, and those that a trim has left.

        An index file without its segment shows that there was one.
        """
        directory = self.place.directory
        with translated_errors(directory, ReadFailedError):
            if not directory.exists():
                return [], []
            names = {path.name for path in directory.iterdir()}
        segments = {int(name[:-4]) for name in names if SEGMENT_NAME.fullmatch(name)}
        indexes = {int(name[:-4]) for name in names if INDEX_NAME.fullmatch(name)}
        self.cut_end = unfinished_cut(names)
        if self.cut_end is not None:
            self.repairs.finish_cut(self.cut_end)
            segments = {each for each in segments if each < self.cut_end}
            indexes = {each for each in indexes if each < self.cut_end}
            segments |= {self.cut_end} if segments else set()
        for base_offset in indexes - segments:
            if base_offset >= first_segment:
                index = read_index(self._path(base_offset).with_suffix(".idx"))
                if base_offset > max(segments, default=-1):
                    self._note_lost_segment(base_offset, index)
        kept = sorted(segments)
        kept = kept[bisect_left(kept, first_segment) :]
        return kept, sorted(each for each in segments | indexes if each < first_segment)

    def _look_for_newest(self, first_segment: int, kept: Sequence[int]) -> None:
        """Note the newest segment that was there when it is gone, unless its loss is accepted."""
        newest = self.evidence.newest_segment
        if newest is None:
            return
        ends = (each.end_offset for each in self.recorded.losses)
        if (
            newest >= first_segment
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
        """Go on with the segment of this offset.

        Offsets between it and the one before are lost, unless all are below the log start.
        """
        before = self.segments[-1]
        if base_offset < before.end_offset:
            raise self.place.damaged(
                f"{self._path(base_offset)} begins below offset {before.end_offset}, where the "
                "segment before it ends. Nothing was changed; restore the files"
            )
        state = before.follow_on(base_offset)
        if before.base_offset == base_offset:  # the log begins with it
            self.segments.clear()
        elif base_offset > max(before.end_offset, self.log_start):
            path, first_offset = self._path(before.base_offset), before.end_offset
            is_accepted = any(
                loss.accepted_us > 0
                and loss.first_offset <= first_offset < base_offset <= loss.end_offset
                for loss in self.recorded.losses
            )
            self.losses.append(
                Damage(path, before.position, first_offset, base_offset, is_accepted)
            )
        self.segments.append(state)

    def _recover_finished(self, state: SegmentState, next_offset: int) -> None:
        """A segment that another follows, where it ends: from its index file, or from a scan."""
        path = self._path(state.base_offset)
        index_path = path.with_suffix(".idx")
        index = read_index(index_path)
        with translated_errors(path):
            size_bytes = path.stat().st_size
        fits = (
            index is not None
            and index.end_offset == next_offset
            and index.segment_bytes <= size_bytes  # a cut may have left something behind
        )
        if index is not None and fits and self.repairs.trusts_indexes:
            state.end_offset = index.end_offset
            state.last_epoch = index.last_epoch
            state.last_append_time_us = index.last_append_time_us
            state.largest_timestamp_us = index.largest_timestamp_us
            state.position = index.segment_bytes
            state.entries, state.epochs = index.entries, index.epochs
            state.is_behind_damage = state.is_behind_damage and not index.entries
            return
        scan = LogScan(self.place.topic_id, self.place.partition, state, limit=next_offset)
        with closing(DirectFile.open(path, is_direct=self.is_direct)) as file:
            scan_segment(file, scan, self.pool)
            damage_count = len(self.damages)
            self._scan_through_damage(file, scan, next_offset)
        if state.end_offset == next_offset and len(self.damages) == damage_count:
            self.repairs.save_index(index_path, index_of(state))

    def _scan_through_damage(self, file: DirectFile, scan: LogScan, durable_end: int) -> None:
        """Scan on behind damage, but not behind a loss, whose records were given up."""
        starts = (each.first_offset for each in self.recorded.losses)
        first_lost = min((each for each in starts if each >= scan.state.end_offset), default=None)
        if first_lost is not None:
            durable_end = min(durable_end, first_lost)
        path = self._path(scan.state.base_offset)
        self.damages += scan_through_damage(file, scan, self.pool, path, durable_end)

    # --- the end ---

    def _recover_end(
        self, windows: ProducerWindows | None, *, has_file: bool
    ) -> list[JournaledBatch]:
        """Scan the segment that takes writes, follow the journal, cut behind the last batch."""
        state = self.segments[-1]
        end = self.evidence.exact_end  # a write behind it has failed
        scan = LogScan(self.place.topic_id, self.place.partition, state, windows=windows, limit=end)
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
            if self._end_of(state, pending) < self.log_start:
                return self._go_on_after_loss(behind, is_last=False)
            if file is not None:
                self.repairs.cut(file, state, behind.torn_bytes)
            return pending
        if file is not None:
            self._scan_through_damage(file, scan, self.durable_end)
            pending = self._pending(state, Behind())
            is_last = ends_with_damage(file, scan, self.pool)
        is_short = self._end_of(state, pending) < self.log_start
        if not is_short and not self._is_damaged(state, pending):
            # The next start must know that what follows is no torn write.
            self._record(RecordedDamage(self.durable_end, 0, self.recorded.losses))
            if file is not None:
                behind = look_behind(file, scan, self.pool)
                self.repairs.cut(file, state, behind.torn_bytes)
            return pending
        return self._go_on_after_loss(behind, is_last=is_last)

    def _pending(self, state: SegmentState, behind: Behind) -> list[JournaledBatch]:
        """Return the batches that the journal adds, and note how far all was durable."""
        pending, journal_end = follow_journal(state, self.evidence.journaled)
        end = self.evidence.exact_end
        pending = [each for each in pending if end is None or each.end_offset <= end]
        if self.evidence.headers_prove:
            self.durable_end = max(self.durable_end, behind.durable_end, journal_end)
        return pending

    def _journal_cut(self, end_offset: int) -> int | None:
        """Return where the journal is to be cut for a log that goes on at its end; None: nowhere.

        What it has above does not follow, nor does it prove anything: a write before was lost.
        """
        is_above = any(each.end_offset > end_offset for each in self.evidence.journaled)
        return end_offset if is_above and self.lost_end is None else None

    def _is_damaged(self, state: SegmentState, pending: Sequence[JournaledBatch]) -> bool:
        is_unknown = self.has_lost_segments and self.evidence.exact_end is None
        return is_unknown or self.durable_end > self._end_of(state, pending)

    def _end_of(self, state: SegmentState, pending: Sequence[JournaledBatch]) -> int:
        return pending[-1].end_offset if pending else state.end_offset

    def _go_on_after_loss(self, behind: Behind, *, is_last: bool) -> list[JournaledBatch]:
        """Go on with a new segment where the last does not reach the proven end, as far as known.

        What is missing below the log start is nobody's loss: the log goes on there.

        `is_last`: only one batch of the last segment is damaged, as its size says.
        """
        while True:
            state = self.segments[-1]
            pending = self._pending(state, Behind())
            end_offset = self._end_of(state, pending)
            loss = self.recorded.loss_at(end_offset)
            if loss is not None:
                self._write_pending(pending)
                self._follow_on(loss.end_offset)
                continue
            if end_offset < self.log_start:
                self._follow_on(self.log_start)
                continue
            if not self._is_damaged(state, pending):
                return pending
            next_offset = self._next_offset(behind)
            self._record(RecordedDamage(self.durable_end, next_offset, self.recorded.losses))
            if self.has_lost_segments:  # nothing goes where a lost segment may be restored
                proven_end = max(self.durable_end, end_offset + (self.evidence.exact_end is None))
                self.lost_end = LostEnd(end_offset, proven_end, next_offset)
                return [each._replace(file_index=NO_FILE) for each in pending]
            self._write_pending(pending)
            resumed_at = self._resumed_at(state, is_last=is_last)
            if resumed_at is None:
                self.lost_end = LostEnd(state.end_offset, self.durable_end, next_offset)
                return []
            accepted_us = self._accepted_us(is_last=is_last)
            self._record(self.recorded.with_loss(Loss(state.end_offset, resumed_at, accepted_us)))
            is_last = False

    def _accepted_us(self, *, is_last: bool) -> int:
        """When somebody accepted the loss that is found now; 0: nobody has.

        Who accepts what the journal has lost has not given up a batch that a segment holds damaged.
        """
        is_accepted = self.evidence.is_journal_lossy and not is_last
        return max(1, self.evidence.now_us) if is_accepted else 0

    def _resumed_at(self, state: SegmentState, *, is_last: bool) -> int | None:
        """Where the log goes on behind its segments; None: nobody knows what was lost there."""
        damaged_end = end_of_damaged(state.end_offset, self.evidence.damaged)
        if damaged_end > state.end_offset:
            return damaged_end
        resumed = resume_journal(state, self.evidence.journaled, self.durable_end)
        return (
            resumed[0].header.base_offset
            if resumed and (is_last or self.evidence.is_journal_lossy)
            else None
        )

    def _next_offset(self, behind: Behind) -> int:
        """Return an offset that no lost record can have had."""
        ends = [batch.end_offset for batch in self.evidence.journaled]
        largest_end = max(self.durable_end, behind.largest_end, *ends)
        if self.recorded.largest_end and self.recorded.proven_end == self.durable_end:
            return max(self.recorded.largest_end, largest_end)
        if self.evidence.exact_end == largest_end:
            return largest_end
        return largest_end + UNKNOWN_OFFSETS_MAX

    def _record(self, known: RecordedDamage) -> None:
        """Save what is known of the damage, durably, when it has changed."""
        if known != self.recorded:
            self.repairs.save_damage(known)
            self.recorded = known

    def _write_pending(self, pending: Sequence[JournaledBatch]) -> None:
        """Write batches of the journal to the segment: the journal goes on without them."""
        if pending:
            self.repairs.write_pending(self.segments, pending)
            self.written += pending


def read_index(path: Path) -> SegmentIndex | None:
    """Read an index; None: there is none, or it is damaged. ReadFailedError."""
    with translated_errors(path), suppress(FileNotFoundError, CorruptBatchError):
        return decode_index(path.read_bytes())
    return None
