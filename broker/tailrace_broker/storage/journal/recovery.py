"""Reads the journal at a start: what its files hold, and where it goes on. Blocks."""

import mmap
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import structlog

from tailrace.wire import JOURNAL_BLOCK_BYTES
from tailrace_broker.codec.journal import (
    JournalFileHeader,
    first_frame_id,
    has_traces,
    read_file_header,
    read_frames,
)
from tailrace_broker.core.log.journal_replay import JournalReplay, JournalRound, plan_replay
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.storage.files.direct_file import DirectFile
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.journal.presence import is_accepted, marker, stored_at

_REMEDY = (
    "restore the file from a copy, or go on without the events in what cannot be read; all that "
    "can be read is kept: touch {}"
)


_log = structlog.get_logger()


class RecoveredJournal(NamedTuple):
    """The journal's id and what is to be replayed."""

    journal_id: int
    replay: JournalReplay


class JournalFiles(NamedTuple):
    """The journal as its files have it, and what is to be replayed of it.

    `accepted`: indexes of the files of which somebody has accepted that something is lost.
    `has_torn_end`: the last write before a kill is not whole, or damaged: one cannot be told from
    the other.
    """

    paths: Sequence[Path]
    contents: Sequence[memoryview]
    headers: Sequence[JournalFileHeader | None]
    accepted: Collection[int]
    journal_id: int
    replay: JournalReplay
    has_torn_end: bool

    @property
    def cut_short(self) -> Mapping[int, str]:
        """By index of the file: what is to be said of one that ends before its end.

        Of one without a block for frames `presence` knows: it counts as missing.
        """
        return {
            index: f"is cut short to {len(stored):,} of {header.size_bytes:,} bytes"
            for index, (stored, header) in enumerate(zip(self.contents, self.headers, strict=True))
            if header is not None and JOURNAL_BLOCK_BYTES < len(stored) < header.size_bytes
        }

    def check(self) -> None:
        """CorruptMetadataError when a file has lost what it alone held, or may have."""
        for index, cut in self.cut_short.items():
            if index not in self.accepted:
                path = self.paths[index]
                raise CorruptMetadataError(
                    f"{path} {cut}, and may have held more events; {_REMEDY.format(marker(path))}"
                )
        if self.replay.missing is not None:
            index, sequence = self.replay.missing
            raise CorruptMetadataError(
                f"{self.paths[index]} is damaged: frame {sequence}, which was durable, cannot be "
                f"read; {_REMEDY.format(marker(self.paths[index]))}"
            )


def recover_journal(files: Sequence[JournalFile], *, is_direct: bool) -> RecoveredJournal:
    """Read the files. ReadFailedError; CorruptMetadataError when one has lost what it alone held.

    Nothing is changed: what the journal holds stays there until it is safe in segments.
    """
    found = read_journal([file.path for file in files], is_direct=is_direct)
    found.check()
    if found.has_torn_end:
        _log.warning("journal.cut", file=str(found.paths[found.replay.last_used]))
    return RecoveredJournal(found.journal_id, found.replay)


def read_journal(paths: Sequence[Path], *, is_direct: bool) -> JournalFiles:
    """Read the files at these paths. ReadFailedError.

    CorruptMetadataError: nobody can say what is a frame in them.
    """
    contents = [_read(stored_at(path), is_direct) for path in paths]
    headers = [read_file_header(stored) for stored in contents]
    accepted = {
        index
        for index, (path, header) in enumerate(zip(paths, headers, strict=True))
        if is_accepted(path, header)
    }
    journal_id = _journal_id(paths, contents, headers, accepted)
    rounds = [
        JournalRound(
            index,
            header,
            read_frames(stored, journal_id, header.first_sequence if header else 0),
        )
        for index, (stored, header) in enumerate(zip(contents, headers, strict=True))
    ]
    replay = plan_replay(rounds, accepted)
    newest, frames = contents[replay.last_used], rounds[replay.last_used].frames
    has_torn_end = has_traces(newest, journal_id, replay.next_sequence) or (
        bool(frames) and (bool(frames[-1].damaged) or frames[-1].is_broken_off)
    )
    return JournalFiles(paths, contents, headers, accepted, journal_id, replay, has_torn_end)


def _read(path: Path, is_direct: bool) -> memoryview:
    """The whole file; nothing when there is none."""
    if not path.exists():
        return memoryview(b"")
    file = DirectFile.open(path, is_direct=is_direct)
    try:
        size_bytes = file.size_bytes() // JOURNAL_BLOCK_BYTES * JOURNAL_BLOCK_BYTES
        if not size_bytes:
            return memoryview(b"")
        stored = memoryview(mmap.mmap(-1, size_bytes))
        return stored[: file.read(stored, 0)]
    finally:
        file.close()


def _journal_id(
    paths: Sequence[Path],
    contents: Sequence[memoryview],
    headers: Sequence[JournalFileHeader | None],
    accepted: Collection[int],
) -> int:
    """As the files say; a new one when nothing was ever written, or the loss of it is accepted."""
    for header in headers:
        if header is not None:
            return header.journal_id
    for stored in contents:
        journal_id = first_frame_id(stored)
        if journal_id is not None:
            return journal_id
    for index, (path, stored) in enumerate(zip(paths, contents, strict=True)):
        is_used = np.any(np.frombuffer(stored[JOURNAL_BLOCK_BYTES:], np.uint8))
        if is_used and index not in accepted:
            raise CorruptMetadataError(
                f"{path} is damaged: its first block cannot be read; {_REMEDY.format(marker(path))}"
            )
    return int.from_bytes(os.urandom(8), "little")
