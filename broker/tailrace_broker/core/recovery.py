"""Where a log ends: the rules by which stored batches belong to it.

A batch belongs to the log only if its base offset is the current end and its epoch is not below
its predecessor's; the first that fails ends the log. What stands behind the end is cut away,
unless it proves that the end was once committed further on: then it is damage, and is kept.
"""

from contextlib import suppress
from dataclasses import dataclass, field
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
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.model.topic import NO_EPOCH

# Every write starts on a block boundary, and no block is smaller.
BLOCK_BYTES_MIN = 512


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
                return header.batch_bytes
        self.ended = True
        return 0

    def _belongs(self, header: BatchHeader) -> bool:
        state = self.state
        return (
            header.topic_id == self.topic_id.bytes
            and header.partition == self.partition
            and header.base_offset == state.end_offset
            and header.epoch >= state.last_epoch
            and header.previous_epoch == state.last_epoch
        )


def proves_damage(scan: LogScan, window: memoryview) -> bool:
    """Whether `window`, from behind the log's end, shows that records are missing before it.

    A header that was written when the high watermark was above the end proves it: all below that
    was acknowledged. A torn write proves nothing: its batches name the end as it was before.
    `window` starts on a block boundary.
    """
    magics = np.frombuffer(window[: len(window) // 4 * 4], "<u4")[:: BLOCK_BYTES_MIN // 4]
    for block in np.flatnonzero(magics == BATCH_MAGIC).tolist():
        try:
            header = read_header(window, block * BLOCK_BYTES_MIN)
        except CorruptBatchError:
            continue
        is_same_log = (header.topic_id, header.partition) == (scan.topic_id.bytes, scan.partition)
        if is_same_log and header.high_watermark > scan.state.end_offset:
            return True
    return False
