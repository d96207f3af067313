"""What is wrong with the files of one partition's log (formats: docs/formats.md).

The rules are those by which a broker opens the log; besides, every checksum and every pad is
looked at, and each index against its segment.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import UUID

from tailrace.cli.stored.segments import BAD, BLOCK_BYTES, Index, Piece, parse_index, pieces
from tailrace.errors import CorruptBatchError
from tailrace.wire import BatchHeader

NO_TIMESTAMP_US = -(2**63)  # of no record
SEGMENT_NAME = re.compile(r"\d{20}\.log", re.ASCII)
INDEX_NAME = re.compile(r"\d{20}\.idx", re.ASCII)


class Finding(NamedTuple):
    """Something in a file that should not be there, at its first bad byte; or one that is missing.

    `is_bad`: it is damage. Else it was never acknowledged, and the next start does away with it.
    """

    file: Path
    position: int | None
    text: str
    is_bad: bool = True


class Expected(NamedTuple):
    """What other files tell of a log; None: they tell nothing."""

    first_offset: int | None = None
    epoch_before: int | None = None  # of the batch before the first
    end_offset: int = 0  # all below it was acknowledged
    journaled: Sequence[BatchHeader] = ()
    losses: Sequence[tuple[int, int]] = ()  # first and end offsets of what is recorded as lost


def log_findings(
    directory: Path, expected: Expected, note_file: Callable[[Path], None]
) -> list[Finding]:
    """Of the segments and indexes in a partition's directory; `note_file` gets each."""
    names = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    segments = [directory / name for name in names if SEGMENT_NAME.fullmatch(name)]
    indexes = {directory / name for name in names if INDEX_NAME.fullmatch(name)}
    log = _Log(directory, expected)
    for path in segments:
        note_file(path)
        if expected.first_offset is not None and int(path.stem) < expected.first_offset:
            indexes.discard(path.with_suffix(".idx"))
            continue  # retention removes it at the next start
        index_path = path.with_suffix(".idx")
        index = None
        if index_path in indexes:
            indexes.discard(index_path)
            note_file(index_path)
            index = log.read_index(index_path)
        with path.open("rb") as file:
            log.follow(path, file, index, is_last=path == segments[-1])
    for path in sorted(indexes):
        log.findings.append(Finding(path, 0, "has lost its segment, the .log file"))
    log.end(segments[-1] if segments else directory)
    return log.findings


class _Problem(NamedTuple):
    """A finding in the segment that takes writes, and where the log would end with it."""

    finding: Finding
    end_offset: int


class _Log:
    """Follows a log through its files; `findings` is what it met."""

    def __init__(self, directory: Path, expected: Expected) -> None:
        self.findings: list[Finding] = []
        self._expected = expected
        self._topic_id = _uuid_bytes(directory.parent.name)
        self._partition = int(directory.name) if directory.name.isdecimal() else None
        self._offset = expected.first_offset
        self._is_lost = False  # behind damage: how many records it has is not known
        self._epoch: int | None = expected.epoch_before
        self._append_time_us = 0
        self._position = 0
        # All below it was acknowledged.
        self._proven_end = max(
            expected.end_offset, *(each.high_watermark for each in expected.journaled), 0
        )
        # Of the segment that takes writes.
        self._problems: list[_Problem] = []

    def read_index(self, path: Path) -> Index | None:
        """None, and a finding, when it is damaged."""
        try:
            index = parse_index(path.read_bytes())
        except CorruptBatchError as error:
            self.findings.append(Finding(path, 0, f"is {error}"))
            return None
        if index.checksum != BAD:
            return index
        text = "the checksum does not match: a broker writes it anew at its next start"
        self.findings.append(Finding(path, 0, text))
        return None

    def follow(self, path: Path, file: BinaryIO, index: Index | None, *, is_last: bool) -> None:
        """The next segment."""
        base_offset = int(path.stem)
        if (self._offset, base_offset) in self._expected.losses:
            self._note_loss(path, base_offset)
        elif self._offset is not None and base_offset != self._offset and not self._is_lost:
            text = f"starts at offset {base_offset}, and {self._offset} is the next of the log"
            self.findings.append(Finding(path, 0, text))
            self._epoch = None
        self._offset, self._is_lost = base_offset, False
        problems: list[_Problem] = []
        check = index and _IndexCheck(index, base_offset)
        zeros: Piece | None = None
        self._position = 0
        for piece in pieces(file, os.fstat(file.fileno()).st_size):
            end_offset = self._offset
            if zeros is not None:
                finding = Finding(path, zeros.position, "zeros, with more of the log behind them")
                problems.append(_Problem(finding, end_offset))
            zeros = piece if piece.kind == "zeros" else None
            if check and piece.header:
                check.take(piece.position, piece.header)
            problems += [
                _Problem(Finding(path, piece.position, text), end_offset)
                for text in self._take(piece)
            ]
            self.findings += [Finding(path, piece.position, text) for text in self._flaws(piece)]
        if is_last:
            self._problems = problems
            self._proven_end = max(self._proven_end, index.end_offset if index else 0)
        else:
            self.findings += [each.finding for each in problems]
            if zeros is not None:
                text = "zeros at the end of a finished segment"
                self.findings.append(Finding(path, zeros.position, text))
        if check and not problems:
            wrong = check.wrong(self._offset, self._position, is_finished=not is_last)
            self.findings += [Finding(path.with_suffix(".idx"), 0, text) for text in wrong]

    def end(self, path: Path) -> None:
        """Behind the last segment, `path`: what of it was torn, and what of the log is missing."""
        if self._offset is None:
            return
        for first_offset, end_offset in self._expected.losses:
            if first_offset == self._offset:
                self._note_loss(path, end_offset)
        torn = [
            each for each in self._problems if self._replayed(each.end_offset) >= self._proven_end
        ]
        self.findings += [each.finding for each in self._problems if each not in torn]
        if torn:
            finding, end_offset = torn[0]
            is_replayed = self._replayed(end_offset) > end_offset
            what = (
                "brings back from the journal"
                if is_replayed
                else "cuts away: it is not proven to have been acknowledged"
            )
            text = f"{finding.text}; the next start {what}"
            self.findings.append(finding._replace(text=text, is_bad=False))
        end_offset = self._replayed(torn[0].end_offset if torn else self._offset)
        if end_offset < self._proven_end:
            last = self._proven_end - 1
            text = f"the log ends at offset {end_offset}, and there were records up to {last}"
            self.findings.append(Finding(path, self._position, text))

    def _note_loss(self, path: Path, next_offset: int) -> None:
        """It is known, and the log goes on behind it."""
        text = f"offsets {self._offset} to {next_offset - 1} are lost, which is recorded"
        self.findings.append(Finding(path, self._position, text, is_bad=False))
        self._offset, self._epoch = next_offset, None

    def _replayed(self, end_offset: int) -> int:
        """Where the log ends once the journal has been replayed behind this offset."""
        for header in sorted(self._expected.journaled, key=lambda each: each.base_offset):
            if header.base_offset <= end_offset:
                end_offset = max(end_offset, header.end_offset)
        return end_offset

    def _flaws(self, piece: Piece) -> Iterator[str]:
        """What is wrong with a piece that a broker takes all the same."""
        if piece.kind == "pad" and piece.checksum == BAD:
            yield "a pad whose fill is not zero"
        if piece.kind == "pad" and (piece.position + piece.size_bytes) % BLOCK_BYTES:
            yield "a pad that does not end with a block"
        if piece.header is not None:
            if piece.header.append_time_us < self._append_time_us:
                yield f"{_name(piece.header)} was appended before its predecessor"
            self._append_time_us = piece.header.append_time_us

    def _take(self, piece: Piece) -> Iterator[str]:
        """Why the log would end before it; follows the log behind it."""
        if piece.header is not None:
            yield from self._take_batch(piece.header, piece.checksum)
        elif piece.kind == "damage":
            yield f"no batch and no pad, where offset {self._offset} should be"
            self._epoch, self._is_lost = None, True
        if piece.kind in ("batch", "pad"):
            self._position = piece.position + piece.size_bytes

    def _take_batch(self, header: BatchHeader, checksum: str) -> Iterator[str]:
        assert self._offset is not None
        if self._topic_id is None:
            self._topic_id = header.topic_id
        if self._partition is None:
            self._partition = header.partition
        if (header.topic_id, header.partition) != (self._topic_id, self._partition):
            yield f"a batch of partition {header.partition} of topic {UUID(bytes=header.topic_id)}"
            return
        self._proven_end = max(self._proven_end, header.high_watermark)
        if checksum == BAD:
            yield f"{_name(header)} does not match its checksum"
        if header.base_offset != self._offset and not self._is_lost:
            yield f"{_name(header)}, where offset {self._offset} should be"
        elif self._epoch is not None and header.previous_epoch != self._epoch:
            yield f"{_name(header)} does not follow epoch {self._epoch}"
        if self._epoch is not None and header.epoch < self._epoch:
            yield f"{_name(header)} is of epoch {header.epoch}, below {self._epoch} before it"
        self._offset, self._is_lost = max(self._offset, header.end_offset), False
        self._epoch = header.epoch


class _IndexCheck:
    """Follows an index and its segment side by side."""

    def __init__(self, index: Index, base_offset: int) -> None:
        self._index = index
        self._base_offset = base_offset
        self._rows = iter(index.rows)
        self._row = next(self._rows, None)
        self._last: BatchHeader | None = None
        self._largest_us = NO_TIMESTAMP_US

    def take(self, position: int, header: BatchHeader) -> None:
        """The next batch."""
        if header.end_offset > self._index.end_offset:  # came after the stop that left the index
            return
        if self._row == (header.base_offset - self._base_offset, position, self._largest_us):
            self._row = next(self._rows, None)
        self._largest_us = max(self._largest_us, header.largest_timestamp_us)
        self._last = header

    def wrong(self, end_offset: int, end_position: int, *, is_finished: bool) -> Iterator[str]:
        """What does not fit the segment, which ends here."""
        index, last = self._index, self._last
        if self._row is not None:
            yield f"an entry for byte {self._row[1]}, where no such batch starts"
        if last is not None:
            known = (index.last_epoch, index.last_append_time_us, index.largest_timestamp_us)
            if known != (last.epoch, last.append_time_us, self._largest_us):
                yield "the head does not fit the batches of its segment"
        end = (index.end_offset, index.segment_bytes)
        if is_finished and end != (end_offset, end_position):
            yield f"tells another end than that of its segment, offset {end_offset}"


def _name(header: BatchHeader) -> str:
    return f"the batch of offsets {header.base_offset} to {header.end_offset - 1}"


def _uuid_bytes(name: str) -> bytes | None:
    """Of a topic's directory; None: it is another."""
    with suppress(ValueError):
        return UUID(name).bytes
    return None
