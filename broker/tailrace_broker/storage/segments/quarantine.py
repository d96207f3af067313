"""The damaged batches of a broker's logs, whoever met them: a reader or the scrub.

What is known of a part of a file is what its last check found: damage that was repaired, or that
was none, is forgotten by the next check. What no file has is known from the log's recovery, and
stays. Nothing is changed on disk, and nothing outlives the process: who meets the damage again
reports it again. State changes on the event loop only.
"""

import errno
import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Protocol

import structlog

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Accepted, Damage, is_accepted
from tailrace_broker.model.errors import CorruptPartitionError, ReadFailedError, TailraceError
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.segments.check import (
    Checked,
    SegmentPart,
    check_part,
    part_from_offset,
)
from tailrace_broker.storage.segments.writer import LogPlace, segment_path

# What one check reads: a few ms of an I/O thread when batches are small.
CHECK_BYTES = 256 * 1024
# Of reads that fail the next time too: the file is gone, or the disk cannot read it.
_LOST_ERRNOS = {errno.ENOENT, errno.EIO}

_log = structlog.get_logger()


class Log(Protocol):
    """What is asked of a partition's log."""

    @property
    def place(self) -> LogPlace:
        """Where it lies."""

    @property
    def log_start(self) -> int:
        """What is below it is gone."""

    @property
    def segments(self) -> Sequence[SegmentState]:
        """Of the whole log, in order."""


class Quarantine:
    """Checks parts of segments and remembers what of them is damaged."""

    def __init__(self, io: IoThreads, pool: BufferPool, *, is_direct: bool) -> None:
        self._io = io
        self._pool = pool
        self._is_direct = is_direct
        self.on_found: Callable[[LogPlace], None] = lambda _: None  # new damage in that log
        self._by_log: dict[Log, list[Damage]] = {}
        self._losses: dict[Log, list[Damage]] = {}
        self._accepted: dict[Log, Accepted] = {}

    @property
    def batch_count(self) -> int:
        """Damages in all logs but those that somebody has accepted."""
        logs = self._by_log.keys() | self._losses.keys()
        return sum(not damage.is_accepted for log in logs for damage in self.of(log))

    def of(self, log: Log) -> list[Damage]:
        """What of a log is known to be damaged, in order."""
        damages = heapq.merge(
            self._by_log.get(log, ()), self._losses.get(log, ()), key=attrgetter("first_offset")
        )
        accepted = self._accepted.get(log, ())
        return [
            each._replace(is_accepted=True)
            if is_accepted(accepted, each.first_offset, each.end_offset)
            else each
            for each in damages
            if each.end_offset > log.log_start
        ]

    def recovered(
        self,
        log: Log,
        damages: Sequence[Damage],
        losses: Sequence[Damage],
        accepted: Accepted = (),
    ) -> None:
        """What the recovery of a log found; no file has what is among `losses`."""
        if accepted:
            self._accepted[log] = accepted
        if damages:
            self._by_log[log] = list(damages)
        if losses:
            self._losses[log] = list(losses)
        for damage in chain(damages, losses):
            _log_damage(log, damage)

    def loss_error(self, log: Log, offset: int) -> CorruptPartitionError | None:
        """The error of reading this offset when no file has it; None: one has."""
        accepted = self._accepted.get(log, ())
        for loss in self._losses.get(log, ()):
            if loss.first_offset <= offset < loss.end_offset:
                if loss.is_accepted or is_accepted(accepted, loss.first_offset, loss.end_offset):
                    return _given_up(log.place, loss.first_offset, loss.end_offset)
                return _unreadable(log.place, loss.path, loss.first_offset, loss.end_offset)
        return None

    def cut(self, log: Log, end_offset: int) -> None:
        """The log ends there now."""
        self._accepted.pop(log, None)  # of what is sealed, which is not cut
        for known in (self._by_log, self._losses):
            kept = [each for each in known.pop(log, ()) if each.end_offset <= end_offset]
            if kept:
                known[log] = kept

    def forget(self, log: Log) -> None:
        """It is closed."""
        self._accepted.pop(log, None)
        self._by_log.pop(log, None)
        self._losses.pop(log, None)

    async def check(self, log: Log, part: SegmentPart) -> Checked:
        """Check the beginning of a part, and remember what is found. ReadFailedError."""
        work = partial(
            check_part, part, self._pool, max_bytes=CHECK_BYTES, is_direct=self._is_direct
        )
        checked = await self._io.run(work)
        self._note(log, part, checked)
        return checked

    async def damaged(
        self, log: Log, state: SegmentState, offset: int, error: TailraceError
    ) -> CorruptPartitionError:
        """What to answer a reader of `offset`, who met `error` in this segment. ReadFailedError."""
        path = segment_path(log.place.directory, state.base_offset)
        # The batch of this offset begins in less than CHECK_BYTES: so close are index entries.
        await self.check(log, part_from_offset(path, state, offset))
        met: list[Damage] = []
        next_offset = offset
        for damage in self.of(log):
            if damage.first_offset <= next_offset < damage.end_offset:
                met.append(damage)
                next_offset = damage.end_offset
        if not met:
            return log.place.damaged(f"{error}. Restore the file from a copy")
        first_offset = min(offset, met[0].first_offset)
        if all(each.is_accepted for each in met):
            return _given_up(log.place, first_offset, next_offset)
        return _unreadable(log.place, path, first_offset, next_offset)

    def unreadable(self, log: Log, error: ReadFailedError) -> None:
        """Report a log of which a segment that must be there is missing, or not given by the disk.

        What may be another time, as when too many files are open, is no damage.
        """
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _LOST_ERRNOS:
            self.on_found(log.place)

    def _note(self, log: Log, part: SegmentPart, checked: Checked) -> None:
        """Replace what was known of what was checked; report what is new.

        A cut that came while it was checked ends the segment earlier, and its file.
        """
        known = self._by_log.get(log, [])
        ends = [each.end_offset for each in log.segments if each.base_offset == part.base_offset]
        found = [each for each in checked.damages if ends and each.end_offset <= ends[0]]
        kept = [
            damage
            for damage in known
            if damage.path != part.path
            or not part.start.position <= damage.position < checked.end.position
        ]
        damages = sorted(chain(kept, found), key=lambda damage: damage.first_offset)
        if damages:
            self._by_log[log] = damages
        else:
            self._by_log.pop(log, None)
        for damage in found:
            if damage not in known:
                _log_damage(log, damage)
                first, end = damage.first_offset, damage.end_offset
                if end > log.log_start and not is_accepted(self._accepted.get(log, ()), first, end):
                    self.on_found(log.place)


def _unreadable(
    place: LogPlace, path: Path, first_offset: int, next_offset: int
) -> CorruptPartitionError:
    return CorruptPartitionError(
        f"{path} is damaged: offsets {first_offset} to {next_offset - 1} of partition "
        f'{place.partition} of topic "{place.topic}" cannot be read. Restore the file from a '
        f"copy, or read on at offset {next_offset}",
        topic=place.topic,
        partition=place.partition,
        firstOffset=first_offset,
        lastOffset=next_offset - 1,
        nextOffset=next_offset,
        accepted=False,
    )


def _given_up(place: LogPlace, first_offset: int, next_offset: int) -> CorruptPartitionError:
    return CorruptPartitionError(
        f"offsets {first_offset} to {next_offset - 1} of partition {place.partition} of topic "
        f'"{place.topic}" are lost, which was accepted. Read on at offset {next_offset}',
        topic=place.topic,
        partition=place.partition,
        firstOffset=first_offset,
        lastOffset=next_offset - 1,
        nextOffset=next_offset,
        accepted=True,
    )


def _log_damage(log: Log, damage: Damage) -> None:
    """Unless no reader can meet it any more."""
    if damage.end_offset <= log.log_start:
        return
    _log.error(
        "batch.quarantined",
        topic=log.place.topic,
        partition=log.place.partition,
        file=str(damage.path),
        byte=damage.position,
        first_offset=damage.first_offset,
        last_offset=damage.end_offset - 1,
    )
