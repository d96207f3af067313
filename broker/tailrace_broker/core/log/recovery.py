"""Where a log ends: the rules by which stored batches belong to it.

A batch belongs to the log only if its base offset is the current end and its epoch is not below
its predecessor's; the first that fails ends the log. Segments come first, then what the journal
holds. What stands behind the end is cut away, unless it is proven that the log was once durable
further on. Then it is damage, and the log goes on behind it with the first batch that begins at or
below the proven end, and the offsets in between cannot be read
(docs/decisions/013-damage-found-at-a-start.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

import numpy as np

from tailrace.wire import BATCH_MAGIC, HEADER, HEADER_BYTES, BatchHeader
from tailrace_broker.codec.batch import read_header, verify_batch
from tailrace_broker.codec.segment import (
    INDEX_INTERVAL_BYTES,
    NO_TIMESTAMP_US,
    EpochStart,
    IndexEntry,
    read_pad,
)
from tailrace_broker.core.log.epochs import note_epoch
from tailrace_broker.core.log.producers import ProducerWindows
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.model.topic import NO_EPOCH

# Every write starts on a block boundary, and no block is smaller.
BLOCK_BYTES_MIN = 512


class HasHeader(Protocol):
    """A stored batch."""

    @property
    def header(self) -> BatchHeader:
        """Its header."""


B = TypeVar("B", bound=HasHeader)


@dataclass(slots=True)
class SegmentState:
    """What is known of one segment and of the log at its end."""

    base_offset: int
    end_offset: int
    last_epoch: int = NO_EPOCH
    last_append_time_us: int = 0
    largest_timestamp_us: int = NO_TIMESTAMP_US  # of this segment
    position: int = 0
    entries: list[IndexEntry] = field(default_factory=list)
    epochs: list[EpochStart] = field(default_factory=list)  # of this segment, its first included
    is_behind_damage: bool = False  # the epoch of what stood before the end is not known
    # The largest that a header notes, as far as headers were read.
    high_watermark: int = field(default=0, compare=False)

    def add(self, header: BatchHeader) -> None:
        """Take a batch that stands at `position`; an index entry every 64 KiB."""
        assert header.base_offset == self.end_offset, (header.base_offset, self.end_offset)
        indexed = self.entries[-1].position + INDEX_INTERVAL_BYTES if self.entries else 0
        if self.position >= indexed:
            self.entries.append(
                IndexEntry(
                    header.base_offset - self.base_offset,
                    self.position,
                    self.largest_timestamp_us,
                )
            )
        note_epoch(self.epochs, header.epoch, header.base_offset)
        self.end_offset = header.end_offset
        self.last_epoch = header.epoch
        self.last_append_time_us = header.append_time_us
        self.largest_timestamp_us = max(self.largest_timestamp_us, header.largest_timestamp_us)
        self.position += header.batch_bytes
        self.high_watermark = max(self.high_watermark, header.high_watermark)
        self.is_behind_damage = False

    def pass_over(self, resumption: "Resumption") -> None:
        """Go on behind damage, where readers find the next batch by an entry of its own."""
        assert resumption.position > self.position, (resumption.position, self.position)
        assert resumption.offset >= self.end_offset, (resumption.offset, self.end_offset)
        self.end_offset, self.position, self.last_epoch = resumption
        self.is_behind_damage = False
        relative_offset = self.end_offset - self.base_offset
        self.entries.append(IndexEntry(relative_offset, self.position, self.largest_timestamp_us))

    def follow_on(self, base_offset: int) -> "SegmentState":
        """The next segment of the log, empty; what is between them cannot be read."""
        assert base_offset >= self.end_offset, (base_offset, self.end_offset)
        return SegmentState(
            base_offset,
            base_offset,
            self.last_epoch,
            self.last_append_time_us,
            is_behind_damage=self.is_behind_damage or base_offset > self.end_offset,
            high_watermark=self.high_watermark,
        )


class Resumption(NamedTuple):
    """Where a log goes on behind damage; `epoch`: of what stood before."""

    offset: int
    position: int
    epoch: int


@dataclass(slots=True)
class LogScan:
    """Follows one partition's log through a segment, window by window."""

    topic_id: UUID
    partition: int
    state: SegmentState
    ended: bool = False
    windows: ProducerWindows | None = None  # that learn what its producers sent
    limit: int | None = None  # where the next segment begins: what is behind was cut

    def feed(self, window: memoryview, *, is_last: bool) -> int:
        """Take the batches and pads of `window`, which starts at `state.position`.

        `is_last`: the file ends with the window. Returns how many bytes the next window must have
        at least, 0 when the log has ended.
        """
        taken = 0
        while not self.ended:
            rest = window[taken:]
            wanted_bytes = self._next_bytes(rest)
            if wanted_bytes <= len(rest):
                taken += wanted_bytes
            elif is_last:
                self.ended = True
            else:
                return wanted_bytes
        return 0

    def _next_bytes(self, rest: memoryview) -> int:
        """Size of what stands next, taken when whole; 0 and `ended` when it is not of the log."""
        pad_bytes = read_pad(rest)
        if pad_bytes:
            if pad_bytes <= len(rest):
                self.state.position += pad_bytes
            return pad_bytes
        if self.state.end_offset == self.limit:
            self.ended = True
            return 0
        if len(rest) < HEADER_BYTES:
            return HEADER_BYTES
        with suppress(CorruptBatchError):
            header = read_header(rest)
            if self.is_next(header):
                if header.batch_bytes <= len(rest):
                    verify_batch(rest)
                    self.state.add(header)
                    self._note_producers(header, rest)
                return header.batch_bytes
        self.ended = True
        return 0

    def _note_producers(self, header: BatchHeader, stored: memoryview) -> None:
        if self.windows is not None and header.producer_table_bytes:
            end = HEADER_BYTES + header.producer_table_bytes
            self.windows.replay(header, stored[HEADER_BYTES:end])

    def is_next(self, header: BatchHeader) -> bool:
        """Whether a batch with this header belongs to the log at its end."""
        state = self.state
        return (
            header.topic_id == self.topic_id.bytes
            and header.partition == self.partition
            and _follows(header, state)
        )

    def resume(self, resumption: Resumption) -> None:
        """Go on behind damage."""
        self.state.pass_over(resumption)
        self.ended = False


def durable_end_behind(scan: LogScan, window: memoryview) -> int:
    """How far the log was durable once, by `window`, from behind its end; 0 when it says nothing.

    A header carries the end up to which all was durable when it was written. A torn write proves
    nothing: its batches name the end as it was before. `window` starts on a block boundary.
    """
    return max((header.high_watermark for _, header in _headers_in(scan, window)), default=0)


def largest_end_behind(scan: LogScan, window: memoryview) -> int:
    """The largest end offset of the headers in `window`; 0 when there is none."""
    return max((header.end_offset for _, header in _headers_in(scan, window)), default=0)


def size_at_damage(scan: LogScan, window: memoryview) -> tuple[int, Resumption | None]:
    """How long the damaged batch says it is that `window` starts with, 0 when it is too short.

    When its header is whole, the size is right and the log resumes behind it; else any size is
    possible.
    """
    if len(window) < HEADER_BYTES:
        return 0, None
    with suppress(CorruptBatchError):
        header = read_header(window)
        if scan.is_next(header):
            position = scan.state.position + header.batch_bytes
            return header.batch_bytes, Resumption(header.end_offset, position, header.epoch)
    return BatchHeader._make(HEADER.unpack(window[:HEADER_BYTES])).batch_bytes, None


def resumption_in(
    scan: LogScan, window: memoryview, position: int, durable_end: int
) -> Resumption | None:
    """The first batch in `window` with which the log goes on behind damage.

    `window` is at `position` of the segment, where a batch may start, as on each block behind it.
    """
    for index, header in _headers_in(scan, window):
        if _goes_on(header, scan.state, durable_end):
            return Resumption(header.base_offset, position + index, header.previous_epoch)
    return None


def _headers_in(scan: LogScan, window: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Of batches of this log that start on a block of `window`, with their positions in it."""
    magics = np.frombuffer(window[: len(window) // 4 * 4], "<u4")[:: BLOCK_BYTES_MIN // 4]
    for block in np.flatnonzero(magics == BATCH_MAGIC).tolist():
        with suppress(CorruptBatchError):
            header = read_header(window, block * BLOCK_BYTES_MIN)
            if (header.topic_id, header.partition) == (scan.topic_id.bytes, scan.partition):
                yield block * BLOCK_BYTES_MIN, header


def follow_journal(end: SegmentState, batches: Iterable[B]) -> tuple[list[B], int]:
    """What of a partition's batches in the journal goes on behind its segments, which end in `end`.

    `batches` in the order in which they were written. Also how far the log was durable once, by
    those that do not belong to it.
    """
    followed: list[B] = []
    state, durable_end = end.follow_on(end.end_offset), 0
    for batch in batches:
        header = batch.header
        if _follows(header, state):
            followed.append(batch)
            state.add(header)
        elif header.end_offset > state.end_offset:  # else it is in the segments
            durable_end = max(durable_end, header.high_watermark)
    return followed, durable_end


def end_of_damaged(end_offset: int, damaged: Iterable[BatchHeader]) -> int:
    """Where a log goes on behind batches that are damaged in the journal, which names them all."""
    for header in damaged:
        if header.base_offset == end_offset:
            end_offset = header.end_offset
    return end_offset


def resume_journal(end: SegmentState, batches: Sequence[B], durable_end: int) -> list[B]:
    """The batches in the journal with which a log goes on behind damage; none when there are none.

    They are the last ones that were written, and what leads to them without a gap: what else is
    there may have been given up by an earlier start.
    """
    resumed: list[B] = []
    for batch in reversed(batches):
        header = batch.header
        if header.base_offset < end.end_offset:
            break  # what was written before it was above it, and is given up, or is in the segments
        after = resumed[-1].header if resumed else None
        if after is None or _leads_to(header, after):
            resumed.append(batch)
    resumed.reverse()
    return resumed if resumed and _goes_on(resumed[0].header, end, durable_end) else []


def _follows(header: BatchHeader, end: SegmentState) -> bool:
    """The rule. Behind damage nobody knows the epoch before."""
    return header.base_offset == end.end_offset and (
        end.last_epoch <= header.previous_epoch <= header.epoch
        if end.is_behind_damage
        else header.previous_epoch == end.last_epoch <= header.epoch
    )


def _leads_to(header: BatchHeader, after: BatchHeader) -> bool:
    return (header.end_offset, header.epoch) == (after.base_offset, after.previous_epoch)


def _goes_on(header: BatchHeader, end: SegmentState, durable_end: int) -> bool:
    """The rule behind damage: the log was durable to where the batch begins, at least."""
    if header.base_offset == end.end_offset:  # the damage is in a pad
        return _follows(header, end)
    is_proven = end.end_offset < header.base_offset <= durable_end
    return is_proven and end.last_epoch <= header.previous_epoch <= header.epoch
