"""Journal files as frames of batches, and as documents in JSON's terms.

The layout: docs/formats.md, "Journal". Total: damage is told, and reading goes on behind it.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import UUID

from tailrace.cli.stored.logs import Finding
from tailrace.cli.stored.segments import (
    BAD,
    OK,
    UNCHECKED,
    Document,
    Piece,
    batch_at,
    header_document,
    read_at,
    verdict,
)
from tailrace.errors import CorruptBatchError
from tailrace.wire import (
    JOURNAL_BLOCK_BYTES,
    JOURNAL_FILE_HEADER,
    JOURNAL_FILE_MAGIC,
    JOURNAL_FRAME_HEADER,
    JOURNAL_FRAME_MAGIC,
    JOURNAL_VERSION,
    BatchHeader,
    align_up,
)


class Frame(NamedTuple):
    """One write; a batch whose header is damaged ends `batches` as damage."""

    position: int
    size_bytes: int
    sequence: int
    durable_sequence: int  # all frames below it were durable when this was written
    checksum: str
    batches: list[Piece]


class Journal(NamedTuple):
    """The present round of a file."""

    boot: int  # of the broker that wrote it
    first_sequence: int
    frames: list[Frame]


def read_journal(file: BinaryIO, size_bytes: int) -> Journal | None:
    """A journal file; None: its space was never used. CorruptBatchError: its head is damaged."""
    raw = read_at(file, 0, JOURNAL_FILE_HEADER.size)
    if not any(raw):
        return None
    if len(raw) < JOURNAL_FILE_HEADER.size:
        raise CorruptBatchError("too short for a journal")
    magic, version, crc, boot, journal_id, first_sequence = JOURNAL_FILE_HEADER.unpack(raw)
    is_right = verdict(_all_but_crc(raw), crc) != BAD
    if (magic, version) != (JOURNAL_FILE_MAGIC, JOURNAL_VERSION) or not is_right:
        raise CorruptBatchError("the head of the journal file is damaged, or of another version")
    frames = list(_frames(file, size_bytes, journal_id, first_sequence))
    return Journal(boot, first_sequence, frames)


def journal_documents(journal: Journal | None) -> Iterator[Document]:
    """Its frames, each before its batches."""
    for frame in journal.frames if journal else ():
        yield {
            "position": frame.position,
            "kind": "frame",
            "sequence": frame.sequence,
            "durableSequence": frame.durable_sequence,
            "bytes": frame.size_bytes,
            "checksum": frame.checksum,
        }
        for piece in frame.batches:
            header = {} if piece.header is None else _batch_document(piece.header)
            yield {
                "position": piece.position,
                "kind": piece.kind,
                **header,
                "bytes": piece.size_bytes,
                "checksum": piece.checksum,
            }


def journal_findings(paths: Sequence[Path]) -> tuple[list[Finding], list[BatchHeader]]:
    """Of all files of a broker's journal; and the batches that its next start finds there."""
    findings: list[Finding] = []
    rounds: list[tuple[Path, Journal]] = []
    for path in paths:
        with path.open("rb") as file:
            try:
                journal = read_journal(file, os.fstat(file.fileno()).st_size)
            except CorruptBatchError as error:
                findings.append(Finding(path, 0, str(error)))
                continue
        if journal is not None:
            rounds.append((path, journal))
    rounds.sort(key=lambda each: each[1].first_sequence)
    durable_sequences: dict[int, int] = defaultdict(int)  # by boot: a later one proves nothing
    for _, journal in rounds:
        for frame in journal.frames:
            known = durable_sequences[journal.boot]
            durable_sequences[journal.boot] = max(known, frame.durable_sequence)
    ends = [*(journal.first_sequence for _, journal in rounds), 0][1:]
    for (path, journal), end in zip(rounds, ends, strict=False):
        findings += _round_findings(path, journal, end, durable_sequences[journal.boot])
    batches = [piece for _, journal in rounds for each in journal.frames for piece in each.batches]
    return findings, [piece.header for piece in batches if piece.header is not None]


def _round_findings(
    path: Path, journal: Journal, end_sequence: int, durable_sequence: int
) -> Iterator[Finding]:
    """Of the frames up to `end_sequence`; 0: nobody knows how many there were."""
    position, expected = JOURNAL_BLOCK_BYTES, journal.first_sequence
    for frame in journal.frames:
        if frame.sequence > expected:
            yield _lost(path, position, expected, durable_sequence, "is missing")
        for piece in frame.batches:
            if piece.checksum == BAD:
                is_header = piece.position == frame.position
                text = "cannot be read" if is_header else "has a batch of a wrong checksum"
                yield _lost(path, piece.position, frame.sequence, durable_sequence, text)
        position = frame.position + align_up(frame.size_bytes, JOURNAL_BLOCK_BYTES)
        expected = frame.sequence + 1
    if end_sequence > expected:
        yield _lost(path, position, expected, durable_sequence, "is missing")


def _lost(path: Path, position: int, sequence: int, durable_sequence: int, text: str) -> Finding:
    """A frame that is not whole: damage when a later one says that it was."""
    is_bad = sequence < durable_sequence
    told = "" if is_bad else ": not proven to have been acknowledged; the next start leaves it out"
    return Finding(path, position, f"frame {sequence} {text}{told}", is_bad)


def _frames(
    file: BinaryIO, size_bytes: int, journal_id: int, first_sequence: int
) -> Iterator[Frame]:
    """Those of this round; what an older one has left behind is not told."""
    position, expected = JOURNAL_BLOCK_BYTES, first_sequence
    while position < size_bytes:
        frame = _frame_at(file, position, size_bytes, journal_id) or _trace_at(
            file, position, journal_id, expected
        )
        if frame is None or frame.sequence < expected:
            position += JOURNAL_BLOCK_BYTES
            continue
        yield frame
        expected = frame.sequence + 1
        # Of a damaged frame only where it starts is sure.
        taken_bytes = JOURNAL_BLOCK_BYTES if frame.checksum == BAD else frame.size_bytes
        position += align_up(taken_bytes, JOURNAL_BLOCK_BYTES)


def _frame_at(file: BinaryIO, position: int, size_bytes: int, journal_id: int) -> Frame | None:
    """A frame whose header is right; its batches need not be."""
    raw = read_at(file, position, JOURNAL_FRAME_HEADER.size)
    if len(raw) < JOURNAL_FRAME_HEADER.size:
        return None
    magic, version, crc, frame_bytes, found_id, sequence, durable_sequence, count = (
        JOURNAL_FRAME_HEADER.unpack(raw)
    )
    if (magic, version, found_id) != (JOURNAL_FRAME_MAGIC, JOURNAL_VERSION, journal_id):
        return None
    checksum = verdict(_all_but_crc(raw), crc)
    if checksum == BAD:
        return None
    end = min(position + frame_bytes, size_bytes)
    batches = list(_batches(file, position + JOURNAL_FRAME_HEADER.size, end, count))
    verdicts = {checksum, *(piece.checksum for piece in batches)}
    worst = next(each for each in (BAD, UNCHECKED, OK) if each in verdicts)
    return Frame(position, frame_bytes, sequence, durable_sequence, worst, batches)


def _trace_at(file: BinaryIO, position: int, journal_id: int, expected: int) -> Frame | None:
    """A frame whose header is damaged: two of magic, journal id and sequence are right."""
    raw = read_at(file, position, JOURNAL_FRAME_HEADER.size)
    if len(raw) < JOURNAL_FRAME_HEADER.size:
        return None
    magic, _, crc, _, found_id, sequence, _, _ = JOURNAL_FRAME_HEADER.unpack(raw)
    rights = (magic == JOURNAL_FRAME_MAGIC, found_id == journal_id, sequence == expected)
    if sum(rights) < len(rights) - 1 or verdict(_all_but_crc(raw), crc) != BAD:
        return None
    damage = Piece("damage", position, JOURNAL_BLOCK_BYTES, BAD)
    return Frame(position, JOURNAL_BLOCK_BYTES, expected, 0, BAD, [damage])


def _batches(file: BinaryIO, position: int, end: int, count: int) -> Iterator[Piece]:
    """Up to the first whose header is damaged."""
    for _ in range(count):
        piece = batch_at(file, position, end) or Piece("damage", position, end - position, BAD)
        yield piece
        if piece.header is None:
            return
        position += piece.size_bytes


def _batch_document(header: BatchHeader) -> Document:
    """Of any partition."""
    topic_id, partition = str(UUID(bytes=header.topic_id)), header.partition
    return {"topicId": topic_id, "partition": partition, **header_document(header)}


def _all_but_crc(raw: bytes) -> bytes:
    return raw[:8] + raw[12:]
