"""What of a segment and of its index is damaged where a start does not read, or passes over."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from tailrace.wire import BatchHeader
from tailrace_broker.codec.segment import (
    NO_TIMESTAMP_US,
    EpochStart,
    SegmentIndex,
    decode_index,
)
from tailrace_broker.core.log.epochs import note_epoch
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.inspection.findings import Finding
from tailrace_broker.storage.inspection.pieces import Piece, pieces_in

_NOTHING_LOST = "no event is in it, and nothing is lost; check the disk, which has changed it"
_DAMAGED_PADS = {
    "pad": f"a pad whose fill is not zero: {_NOTHING_LOST}",
    "damage": f"a pad whose head is damaged: {_NOTHING_LOST}",
}


class SegmentWalk:
    """Goes through a segment and its index side by side. `state`: as a start takes the segment.

    `append_time_us`: of the last batch before, and afterwards of the last one here.
    """

    def __init__(
        self, path: Path, state: SegmentState, append_time_us: int, *, is_last: bool
    ) -> None:
        self.append_time_us = append_time_us
        self._path = path
        self._state = state
        self._is_last = is_last

    def findings(self, reported: Collection[int]) -> list[Finding]:
        """Yield what is wrong; `reported`: the positions of known damage."""
        found: list[Finding] = []
        index = self._read_index(found)
        check = None if index is None else _IndexCheck(index, self._state.base_offset)
        passed = self._passed_positions(index)
        flaws: list[tuple[int, str, bool]] = []
        end_position = 0
        with self._path.open("rb") as file:
            for piece in self._pieces(file):
                if check is not None and piece.header is not None:
                    check.take(piece.position, piece.header)
                end_position = piece.position + piece.size_bytes
                if _is_harmless(piece, passed):
                    flaws.append((piece.position, _DAMAGED_PADS[piece.kind], False))
                else:
                    flaws += [(piece.position, text, True) for text in self._flaws(piece)]
        found += [Finding(self._path, *flaw) for flaw in flaws if flaw[0] not in reported]
        if check is not None and not (reported or any(is_bad for *_, is_bad in flaws)):
            end = None if self._is_last else (self._state.end_offset, end_position)
            index_path = self._path.with_suffix(".idx")
            found += [Finding(index_path, 0, text) for text in check.wrong(end)]
        return found

    def _read_index(self, found: list[Finding]) -> SegmentIndex | None:
        path = self._path.with_suffix(".idx")
        try:
            return decode_index(path.read_bytes()) if path.exists() else None
        except CorruptBatchError as error:
            found.append(Finding(path, 0, f"{error}: a broker writes it again at its next start"))
            return None

    def _passed_positions(self, index: SegmentIndex | None) -> set[int]:
        """Return where readers go on by an entry, whatever is damaged before it."""
        entries = self._state.entries if index is None else index.entries
        return {entry.position for entry in entries}

    def _pieces(self, file: BinaryIO) -> Iterator[Piece]:
        """Yield the pieces; of the last segment only those before the log's end.

        Behind a cut there may be batches that are not of the log any more.
        """
        end_position = self._state.position
        for piece in pieces_in(file, os.fstat(file.fileno()).st_size):
            if piece.position >= end_position and (self._is_last or piece.header is not None):
                return
            if piece.position == end_position and self._is_cut(piece):
                return
            yield piece

    def _is_cut(self, piece: Piece) -> bool:
        """A cut ends the file with the block: of a batch there only a part may be left."""
        return piece.position % BLOCK_BYTES != 0 and piece.kind == "damage"

    def _flaws(self, piece: Piece) -> Iterator[str]:
        end_position = piece.position + piece.size_bytes
        if piece.kind == "zeros":
            yield "zeros, where a batch or a pad should be"
        elif piece.kind == "damage":
            yield "no batch and no pad"
        elif piece.kind == "pad" and end_position % BLOCK_BYTES:
            yield "a pad that does not end with a block"
        elif not piece.is_whole:
            yield "a batch that does not match its checksum"
        if piece.header is not None:
            if piece.header.append_time_us < self.append_time_us:
                yield "a batch that was appended before its predecessor"
            self.append_time_us = piece.header.append_time_us


def _is_harmless(piece: Piece, passed: Collection[int]) -> bool:
    """Whether it is a pad that nobody misses: of one with a damaged head readers need an entry.

    A pad is what is left of the last block of a write, behind its last batch.
    """
    end_position = piece.position + piece.size_bytes
    if end_position % BLOCK_BYTES or piece.is_whole:
        return False
    is_rest = piece.position % BLOCK_BYTES != 0 and piece.size_bytes < BLOCK_BYTES
    return is_rest and (piece.kind == "pad" or (piece.kind == "damage" and end_position in passed))


class _IndexCheck:
    """Follows an index and its segment side by side."""

    def __init__(self, index: SegmentIndex, base_offset: int) -> None:
        self._index = index
        self._base_offset = base_offset
        self._entries = iter(index.entries)
        self._entry = next(self._entries, None)
        self._epochs: list[EpochStart] = []
        self._last: BatchHeader | None = None
        self._largest_us = NO_TIMESTAMP_US

    def take(self, position: int, header: BatchHeader) -> None:
        """Take the next batch."""
        if header.end_offset > self._index.end_offset:  # the segment has grown since
            return
        if self._entry == (header.base_offset - self._base_offset, position, self._largest_us):
            self._entry = next(self._entries, None)
        note_epoch(self._epochs, header.epoch, header.base_offset)
        self._largest_us = max(self._largest_us, header.largest_timestamp_us)
        self._last = header

    def wrong(self, end: tuple[int, int] | None) -> Iterator[str]:
        """Yield what does not fit the segment; `end`: its offset and size when finished."""
        index, last = self._index, self._last
        if self._entry is not None:
            yield f"an entry for byte {self._entry.position}, where no such batch starts"
        if last is not None:
            known = (
                index.last_epoch,
                index.last_append_time_us,
                index.largest_timestamp_us,
                index.epochs,
            )
            if known != (last.epoch, last.append_time_us, self._largest_us, self._epochs):
                yield "the head does not fit the batches of its segment"
        if end is not None and (index.end_offset, index.segment_bytes) != end:
            yield f"has another end than its segment, offset {end[0]}"
