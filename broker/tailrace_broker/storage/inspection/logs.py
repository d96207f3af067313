"""What a start would make of one partition's log, and what of its files is damaged besides."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tailrace.wire import align_up
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.codec.segment import SegmentIndex
from tailrace_broker.core.log.journal_replay import JournaledBatch
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Damage, RecordedDamage
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    CorruptPartitionError,
    ReadFailedError,
)
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES, DirectFile
from tailrace_broker.storage.inspection.findings import Finding, refused
from tailrace_broker.storage.inspection.pieces import pieces_in
from tailrace_broker.storage.inspection.segments import SegmentWalk
from tailrace_broker.storage.log.damage_file import load_damage
from tailrace_broker.storage.log.recovery import (
    LogEvidence,
    RecoveredLog,
    check_epoch,
    lost_end_error,
    recover_with,
)
from tailrace_broker.storage.segments.writer import LogPlace, segment_path

BELOW_START = ": below the log start, where nobody reads"


class NotedRepairs:
    """Takes note of what a start would change (`storage.log.repairs`), and reads all segments."""

    trusts_indexes = False

    def __init__(self) -> None:
        self.torn: list[tuple[Path, int, int]] = []  # file, position, bytes
        self.cut_end: int | None = None  # what is there goes

    def save_index(self, path: Path, index: SegmentIndex) -> None:
        """An index is compared with its segment elsewhere."""

    def save_damage(self, known: RecordedDamage) -> None:
        """Do nothing: the recovery returns the damage of the log."""

    def write_pending(
        self, segments: list[SegmentState], pending: Sequence[JournaledBatch]
    ) -> None:
        """Follow the log as if they were written."""
        state = segments[-1]
        state.position = align_up(state.position, BLOCK_BYTES)
        for each in pending:
            state.add(each.header)
        state.position = align_up(state.position, BLOCK_BYTES)

    def finish_cut(self, end_offset: int) -> None:
        """Note where: the recovery reads as if it were done."""
        self.cut_end = end_offset

    def cut(self, file: DirectFile, state: SegmentState, torn_bytes: int) -> None:
        """Note where the log is cut."""
        if torn_bytes:
            self.torn.append((file.path, state.position, torn_bytes))

    def save_start(self, start: LogStart) -> None:
        """It is in what the recovery returns."""

    def remove_segments(self, paths: Iterable[Path]) -> None:
        """Do nothing: nobody needs these segments."""


def check_log(
    place: LogPlace, evidence: LogEvidence, epoch: int | None, pool: BufferPool
) -> list[Finding]:
    """Check a log as a start opens it, and each byte of its segments and indexes.

    `epoch`: of its range, as the ring committed it; None is not known.
    """
    repairs = NotedRepairs()
    try:
        log = recover_with(repairs, place, evidence, pool, is_direct=False)
        if epoch is not None:
            check_epoch(place, epoch, log)
        recorded = load_damage(place.directory)
    except (CorruptPartitionError, CorruptMetadataError, ReadFailedError) as error:
        return [refused(place.directory, error.detail)]
    return [
        *_damage_findings(log, recorded),
        *_torn_findings(log, repairs, headers_prove=evidence.headers_prove),
        *_lost_end_findings(place, evidence, log),
        *_file_findings(place, log, repairs.cut_end),
    ]


def _damage_findings(log: RecoveredLog, recorded: RecordedDamage) -> Iterator[Finding]:
    known = {each[:2] for each in recorded.losses}
    for damage in log.damages:
        is_bad = damage.end_offset > log.start.log_start
        text = f"{_offsets_of(damage)} cannot be read{'' if is_bad else BELOW_START}"
        yield Finding(damage.path, damage.position, text, is_bad)
    for loss in log.losses:
        if loss.end_offset > log.start.log_start:
            is_known = loss[2:4] in known
            said = ", which somebody has accepted" if loss.is_accepted else ""
            text = f"{_offsets_of(loss)} are lost{', which is recorded' if is_known else said}"
            yield Finding(loss.path, loss.position, text, not (is_known or loss.is_accepted))


def _torn_findings(
    log: RecoveredLog, repairs: NotedRepairs, *, headers_prove: bool
) -> Iterator[Finding]:
    end_offset = (log.pending or log.segments)[-1].end_offset
    for path, position, torn_bytes in repairs.torn:
        is_bad = headers_prove and _acknowledged_end(path, position) > end_offset
        cut = "the next start cuts them away"
        if is_bad:
            text = f"some were acknowledged, and {cut}: restore the file from a copy before"
        elif log.pending:
            first_offset = log.pending[0].header.base_offset
            text = (
                f"{cut}, and goes on with what the journal alone has: offsets {first_offset} to "
                f"{end_offset - 1}, which may have been acknowledged"
            )
        else:
            text = f"not proven to have been acknowledged; {cut}"
        text = f"{torn_bytes} bytes behind the end of the log: {text}"
        yield Finding(path, position, text, is_bad)


def _acknowledged_end(path: Path, position: int) -> int:
    """Return the end of what is acknowledged, as batches from this byte on say; 0: none does.

    A start reads only those that begin a write.
    """
    with path.open("rb") as file:
        pieces = pieces_in(file, os.fstat(file.fileno()).st_size, position)
        return max((each.header.high_watermark for each in pieces if each.header), default=0)


def _lost_end_findings(
    place: LogPlace, evidence: LogEvidence, log: RecoveredLog
) -> Iterator[Finding]:
    if log.lost_end is None:
        return
    has_segments = any(state.position for state in log.segments)
    error = lost_end_error(place, log.lost_end, has_segments=has_segments)
    finding = refused(place.directory, error.detail)
    if evidence.newest_segment is not None and has_segments:
        newest = segment_path(place.directory, evidence.newest_segment)
        if not newest.exists():
            text = f"is missing: it was the last segment; {finding.text}"
            finding = finding._replace(file=newest, text=text)
    yield finding


def _file_findings(place: LogPlace, log: RecoveredLog, cut_end: int | None) -> Iterator[Finding]:
    """Return findings that a start passes over.

    `cut_end`: what is there and behind it goes, and is begun again.
    """
    reported: dict[Path, set[int]] = {}
    for damage in (*log.damages, *log.losses):
        reported.setdefault(damage.path, set()).add(damage.position)
    append_time_us = 0
    for state in log.segments:
        path = segment_path(place.directory, state.base_offset)
        is_to_go = cut_end is not None and state.base_offset >= cut_end
        if is_to_go or not path.exists():
            continue
        is_last = state is log.segments[-1]
        walk = SegmentWalk(path, state, append_time_us, is_last=is_last)
        yield from walk.findings(reported.get(path, set()))
        append_time_us = walk.append_time_us


def _offsets_of(damage: Damage) -> str:
    return f"offsets {damage.first_offset} to {damage.end_offset - 1}"
