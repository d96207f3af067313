"""Reads the journal at a start: what its files hold, and where it goes on. Blocks."""

import mmap
import os
from collections.abc import Collection, Sequence
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
from tailrace_broker.storage.journal.presence import is_accepted, marker

_REMEDY = (
    "restore the file from a copy, or go on without the events in what cannot be read; all that "
    "can be read is kept: touch {}"
)


_log = structlog.get_logger()


class RecoveredJournal(NamedTuple):
    """The journal's id and what is to be replayed."""

    journal_id: int
    replay: JournalReplay


def recover_journal(files: Sequence[JournalFile], *, is_direct: bool) -> RecoveredJournal:
    """Read the files. ReadFailedError; CorruptMetadataError when one has lost what it alone held.

    Nothing is changed: what the journal holds stays there until it is safe in segments.
    """
    contents = [_read(file.path, is_direct) for file in files]
    headers = [read_file_header(stored) for stored in contents]
    accepted = {
        index
        for index, (file, header) in enumerate(zip(files, headers, strict=True))
        if is_accepted(file.path, header)
    }
    journal_id = _journal_id(files, contents, headers, accepted)
    rounds = [
        JournalRound(
            index,
            header,
            read_frames(stored, journal_id, header.first_sequence if header else 0),
        )
        for index, (stored, header) in enumerate(zip(contents, headers, strict=True))
    ]
    replay = plan_replay(rounds, accepted)
    if replay.missing is not None:
        index, sequence = replay.missing
        raise CorruptMetadataError(
            f"{files[index].path} is damaged: frame {sequence}, which was durable, cannot be read; "
            f"{_REMEDY.format(marker(files[index].path))}"
        )
    newest, frames = contents[replay.last_used], rounds[replay.last_used].frames
    is_torn = has_traces(newest, journal_id, replay.next_sequence)
    if is_torn or (frames and (frames[-1].damaged or frames[-1].is_cut)):
        # The last write before a kill, or damage to it: one cannot be told from the other.
        _log.warning("journal.cut", file=str(files[replay.last_used].path))
    return RecoveredJournal(journal_id, replay)


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
    files: Sequence[JournalFile],
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
    for index, (file, stored) in enumerate(zip(files, contents, strict=True)):
        is_used = np.any(np.frombuffer(stored[JOURNAL_BLOCK_BYTES:], np.uint8))
        if is_used and index not in accepted:
            raise CorruptMetadataError(
                f"{file.path} is damaged: its first block cannot be read; "
                f"{_REMEDY.format(marker(file.path))}"
            )
    return int.from_bytes(os.urandom(8), "little")
