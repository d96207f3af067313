"""What a partition's producers sent, from its checkpoint and from its log. Blocks.

The checkpoint is written when a segment is finished and at a clean stop, so that what follows it
stands in the segment that is scanned anyway. When it is missing, damaged or older, batches of the
last minutes are read again; with it goes the mark of producers that were silent for longer. When it
is ahead of the log, of which a power failure took the unflushed end, what was there is taken out.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import structlog

from tailrace.wire import HEADER_BYTES, BatchHeader
from tailrace_broker.codec.batch import read_header, verify_batch
from tailrace_broker.codec.producers import Checkpoint, decode_checkpoint, encode_checkpoint
from tailrace_broker.codec.segment import find_position, read_pad
from tailrace_broker.core.log.journal_replay import JournaledBatch
from tailrace_broker.core.log.producers import (
    NOTHING,
    ProducerWindows,
    WindowLimits,
    cut_checkpoint,
    damage_checkpoint,
)
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import (
    CorruptBatchError,
    DiskFullError,
    ReadFailedError,
    StorageFailedError,
)
from tailrace_broker.storage.files.direct_file import (
    DirectFile,
    sync_directory,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.segments.reader import window_at
from tailrace_broker.storage.segments.writer import segment_path

# Beside the segments.
PRODUCERS = "producers"

_READ_BYTES = 1024 * 1024

_log = structlog.get_logger()


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Durable on return, unless the disk does not take it: the next start then reads more."""
    with suppress(DiskFullError, StorageFailedError):
        write_file_atomically(directory / PRODUCERS, encode_checkpoint(checkpoint))


def replace_checkpoint_above(directory: Path, end_offset: int, checkpoint: Checkpoint) -> None:
    """Replace one that says what was above this offset, where the log was cut.

    Durable on return. The log will be there again, with other records.
    DiskFullError, StorageFailedError, ReadFailedError.
    """
    path = directory / PRODUCERS
    with translated_errors(path, ReadFailedError), suppress(FileNotFoundError):
        try:
            if decode_checkpoint(path.read_bytes()).end_offset <= end_offset:
                return
        except CorruptBatchError:
            return  # it says nothing
        write_file_atomically(path, encode_checkpoint(checkpoint))


class ProducerRecovery:
    """Beside the recovery of a log: `begin`, then `windows.replay` of what is scanned, then `end`.

    `begin` and `end` raise ReadFailedError.
    """

    def __init__(self, directory: Path, pool: BufferPool, *, is_direct: bool, now_us: int) -> None:
        self._directory = directory
        self._pool = pool
        self._is_direct = is_direct
        self._old_us = now_us - WindowLimits().age_us
        self.windows = ProducerWindows()

    def begin(self, segments: Sequence[SegmentState]) -> None:
        """Know what stands before the last of these segments, which is not scanned yet."""
        checkpoint = self._read_checkpoint()
        self.windows = ProducerWindows(checkpoint)
        *finished, last = segments
        if checkpoint.end_offset < last.base_offset:
            self._replay(finished, checkpoint.end_offset)

    def end(
        self,
        segments: Sequence[SegmentState],
        pending: Sequence[JournaledBatch],
        damages: Sequence[Damage] = (),
    ) -> ProducerWindows | None:
        """The windows, once all is scanned but `pending`, the log's last batches.

        What the batches in `damages` brought is not known. None: no producer is known.
        """
        ends = (batch.end_offset for batch in pending)
        end_offset = max([segments[-1].end_offset, *ends])
        if self.windows.end_offset > end_offset:
            # The log will reach that end again, with other records.
            checkpoint = cut_checkpoint(self.windows.checkpoint(end_offset), end_offset)
            self.windows = ProducerWindows(checkpoint)
            self._replace_checkpoint(checkpoint)
        for batch in pending:
            self._replay_batch(batch.header, batch.stored)
        if damages:
            checkpoint = damage_checkpoint(self.windows.checkpoint(end_offset), damages)
            self.windows = ProducerWindows(checkpoint)
        return None if self.windows.is_empty else self.windows

    def _read_checkpoint(self) -> Checkpoint:
        path = self._directory / PRODUCERS
        with translated_errors(path, ReadFailedError), suppress(FileNotFoundError):
            try:
                return decode_checkpoint(path.read_bytes())
            except CorruptBatchError as error:
                _log.warning("producers.unreadable", file=str(path), detail=str(error))
        return NOTHING

    def _replace_checkpoint(self, checkpoint: Checkpoint) -> None:
        """The old one must not stay: on a disk too full for another it goes."""
        path = self._directory / PRODUCERS
        try:
            write_file_atomically(path, encode_checkpoint(checkpoint))
        except (DiskFullError, StorageFailedError):
            with translated_errors(path, ReadFailedError):
                path.unlink()
                sync_directory(self._directory)

    def _replay(self, segments: Iterable[SegmentState], from_offset: int) -> None:
        """Read the batches from there on, but for segments whose appends are all too old."""
        for state in segments:
            if state.last_append_time_us <= self._old_us:
                continue
            if state.end_offset > from_offset:
                with suppress(CorruptBatchError):  # its readers are told
                    self._replay_segment(state, from_offset)

    def _replay_segment(self, state: SegmentState, from_offset: int) -> None:
        """From the index entry on that is nearest. With a buffer of the I/O share, as all scans."""
        position = find_position(state.entries, from_offset - state.base_offset)
        path = segment_path(self._directory, state.base_offset)
        wanted_bytes = HEADER_BYTES
        with closing(DirectFile.open(path, is_direct=self._is_direct)) as file:
            while position < state.position:
                window_bytes = max(wanted_bytes, _READ_BYTES)
                with window_at(file, self._pool, position, window_bytes) as window:
                    if len(window) < wanted_bytes:
                        raise CorruptBatchError(f"{path} ends at byte {position + len(window)}")
                    before_the_end = window[: state.position - position]  # behind: what was cut
                    taken_bytes, wanted_bytes = self._replay_window(before_the_end)
                position += taken_bytes

    def _replay_window(self, window: memoryview) -> tuple[int, int]:
        """Bytes of the batches and pads that stand whole in it, and of what stands next."""
        taken_bytes = 0
        while True:
            rest = window[taken_bytes:]
            size_bytes = read_pad(rest)
            if not size_bytes:
                if len(rest) < HEADER_BYTES:
                    return taken_bytes, HEADER_BYTES
                header = read_header(rest)
                size_bytes = header.batch_bytes
                if size_bytes <= len(rest):
                    self._replay_batch(verify_batch(rest), rest)
            if size_bytes > len(rest):
                return taken_bytes, size_bytes
            taken_bytes += size_bytes

    def _replay_batch(self, header: BatchHeader, stored: bytes | memoryview) -> None:
        if header.producer_table_bytes:
            end = HEADER_BYTES + header.producer_table_bytes
            self.windows.replay(header, stored[HEADER_BYTES:end])
