"""Where a log ends: the rules by which stored batches belong to it.

A batch belongs to the log only if its base offset is the current end and its epoch is not below
its predecessor's; the first that fails ends the log. Segments come first, then what the journal
holds. What stands behind the end is cut away, unless it proves that the end was once durable
further on: then it is damage, and is kept.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

import numpy as np

from tailrace.wire import BATCH_MAGIC, HEADER_BYTES, BatchHeader
from tailrace_broker.codec.batch import read_header, verify_batch
from tailrace_broker.codec.segment import (
    INDEX_INTERVAL_BYTES,
    NO_TIMESTAMP_US,
    IndexEntry,
    read_pad,
)
from tailrace_broker.core.producers import ProducerWindows
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
        self.end_offset = header.end_offset
        self.last_epoch = header.epoch
        self.last_append_time_us = header.append_time_us
        self.largest_timestamp_us = max(self.largest_timestamp_us, header.largest_timestamp_us)
        self.position += header.batch_bytes


@dataclass(slots=True)
class LogScan:
    """Follows one partition's log through a segment, window by window."""

    topic_id: UUID
    partition: int
    state: SegmentState
    ended: bool = False
    windows: ProducerWindows | None = None  # that learn what its producers sent

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
        pad_bytes = read_pad(rest, 0)
        if pad_bytes:
            if pad_bytes <= len(rest):
                self.state.position += pad_bytes
            return pad_bytes
        if len(rest) < HEADER_BYTES:
            return HEADER_BYTES
        with suppress(CorruptBatchError):
            header = read_header(rest)
            if self._belongs(header):
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

    def _belongs(self, header: BatchHeader) -> bool:
        state = self.state
        return (
            header.topic_id == self.topic_id.bytes
            and header.partition == self.partition
            and _follows(header, state.end_offset, state.last_epoch)
        )


def durable_end_behind(scan: LogScan, window: memoryview) -> int:
    """How far the log was durable once, by `window`, from behind its end; 0 when it says nothing.

    A header carries the end up to which all was durable when it was written. A torn write proves
    nothing: its batches name the end as it was before. `window` starts on a block boundary.
    """
    magics = np.frombuffer(window[: len(window) // 4 * 4], "<u4")[:: BLOCK_BYTES_MIN // 4]
    durable_end = 0
    for block in np.flatnonzero(magics == BATCH_MAGIC).tolist():
        with suppress(CorruptBatchError):
            header = read_header(window, block * BLOCK_BYTES_MIN)
            if (header.topic_id, header.partition) == (scan.topic_id.bytes, scan.partition):
                durable_end = max(durable_end, header.high_watermark)
    return durable_end


def follow_journal(end: SegmentState, batches: Iterable[B]) -> tuple[list[B], int]:
    """What of a partition's batches in the journal goes on behind its segments, which end in `end`.

    `batches` in the order in which they were written. Also how far the log was durable once, by
    those that do not belong to it.
    """
    followed: list[B] = []
    end_offset, epoch, durable_end = end.end_offset, end.last_epoch, 0
    for batch in batches:
        header = batch.header
        if _follows(header, end_offset, epoch):
            followed.append(batch)
            end_offset, epoch = header.end_offset, header.epoch
        elif header.end_offset > end_offset:  # else it is in the segments
            durable_end = max(durable_end, header.high_watermark)
    return followed, durable_end


def _follows(header: BatchHeader, end_offset: int, last_epoch: int) -> bool:
    """The rule."""
    return (
        header.base_offset == end_offset
        and header.epoch >= last_epoch
        and header.previous_epoch == last_epoch
    )
