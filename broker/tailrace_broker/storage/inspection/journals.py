"""The contents of the files of a journal, and what a start would say of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tailrace.wire import JOURNAL_BLOCK_BYTES, JOURNAL_FILE_HEADER
from tailrace_broker.codec.journal import FRAME_HEADER_BYTES, read_file_header, read_frames
from tailrace_broker.core.log.journal_replay import (
    FrameFlaw,
    JournalReplay,
    JournalRound,
    plan_replay,
)
from tailrace_broker.model.errors import CorruptBatchError, CorruptMetadataError
from tailrace_broker.storage.inspection.findings import Finding, refused
from tailrace_broker.storage.inspection.pieces import Piece, batch_at, cut_at
from tailrace_broker.storage.journal.recovery import JournalFiles, read_journal


class FrameView(NamedTuple):
    """One frame of a journal file, or what is left of it; then `entries` may be missing some."""

    position: int
    size_bytes: int
    sequence: int
    durable_sequence: int
    is_whole: bool
    entries: Sequence[Piece]


def frames_in(file: BinaryIO) -> Iterator[FrameView]:
    """The frames of a file's present round; none when its space was never used.

    CorruptBatchError: its first block is damaged.
    """
    stored = file.read()
    header = read_file_header(memoryview(stored))
    if header is None:
        if any(stored[: JOURNAL_FILE_HEADER.size]):
            raise CorruptBatchError("the head of the journal file is damaged")
        return
    frames = read_frames(memoryview(stored), header.journal_id, header.first_sequence)
    flaws = plan_replay([JournalRound(0, header, frames)]).flaws
    damaged = {flaw.sequence for flaw in flaws}
    views = [
        FrameView(
            frame.position,
            frame.size_bytes,
            frame.sequence,
            frame.durable_sequence,
            frame.sequence not in damaged,
            list(_entries(file, frame.position, frame.position + frame.size_bytes)),
        )
        for frame in frames
    ]
    known = {view.sequence for view in views}
    views += [
        FrameView(flaw.position, JOURNAL_BLOCK_BYTES, flaw.sequence, 0, is_whole=False, entries=())
        for flaw in flaws
        if flaw.sequence not in known
    ]
    yield from sorted(views)


def check_journal_files(paths: Sequence[Path]) -> tuple[list[Finding], JournalReplay]:
    """Check the files of one journal. What is to be replayed is what a start replays.

    ReadFailedError.
    """
    try:
        journal = read_journal(paths, is_direct=False)
    except CorruptMetadataError as error:
        return [_blamed(paths, error)], JournalReplay()
    findings = [
        Finding(path, 0, "the head of the journal file is damaged: its frames are read without it")
        for path, stored, header in zip(paths, journal.contents, journal.headers, strict=True)
        if header is None and any(stored[: JOURNAL_FILE_HEADER.size])
    ]
    findings += [_cut(journal, index, cut) for index, cut in journal.cut_short.items()]
    findings += [_flaw(paths, journal, flaw) for flaw in journal.replay.flaws]
    if journal.has_torn_end and not findings:
        text = "the last frame is not whole: the next start leaves it out"
        findings.append(Finding(paths[journal.replay.last_used], None, text, is_bad=False))
    return findings, journal.replay


def _flaw(paths: Sequence[Path], found: JournalFiles, flaw: FrameFlaw) -> Finding:
    path = paths[flaw.file_index]
    what = "is missing" if flaw.is_missing else "does not match its checksums"
    text = f"frame {flaw.sequence} {what}"
    if not flaw.is_durable:
        text += ": not proven to have been acknowledged; the next start leaves out what is damaged"
    elif flaw.file_index in found.accepted:
        text += ", which somebody has accepted: a start goes on with all that can be read"
    elif flaw.is_missing:
        text += ", and was durable: a start refuses it; restore the file from a copy"
        return Finding(path, flaw.position, text)
    else:
        return Finding(path, flaw.position, f"{text}; restore the file from a copy")
    return Finding(path, flaw.position, text, is_bad=False)


def _cut(found: JournalFiles, index: int, cut: str) -> Finding:
    path, end = found.paths[index], len(found.contents[index])
    if index in found.accepted:
        text = f"{cut}, which somebody has accepted: a start goes on with all that can be read"
        return Finding(path, end, text, is_bad=False)
    return Finding(path, end, f"{cut}, and may have held more events; restore the file from a copy")


def _blamed(paths: Sequence[Path], error: CorruptMetadataError) -> Finding:
    """Report a refusal at the file that it names."""
    path = next((path for path in paths if error.detail.startswith(f"{path} ")), paths[0])
    return refused(path, error.detail, 0)


def _entries(file: BinaryIO, start: int, end: int) -> Iterator[Piece]:
    """The batches and cuts of a frame, up to the first whose head is damaged."""
    position = start + FRAME_HEADER_BYTES
    while position < end:
        piece = (
            cut_at(file, position)
            or batch_at(file, position, end)
            or Piece("damage", position, end - position, is_whole=False)
        )
        yield piece
        position += piece.size_bytes
