"""One file of the journal: zero-written once, then used in rounds (layout: `codec.journal`)."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tailrace.wire import JOURNAL_BLOCK_BYTES
from tailrace_broker.codec.journal import JournalFileHeader, encode_file_header
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.files.direct_file import DirectFile, translated_errors
from tailrace_broker.storage.journal.spiller import SpillingLog

JOURNAL_FILES = 4
_ZEROS = memoryview(mmap.mmap(-1, 1024 * 1024))


class JournalEntry(Protocol):
    """A batch, or a cut."""

    @property
    def buffers(self) -> tuple[bytes | memoryview, ...]:
        """Its bytes, one buffer after the other."""


class JournalWriter(Protocol):
    """Whoever has something for a frame."""

    def take_for_journal(self) -> Sequence[JournalEntry]:
        """What it has to write now; nothing when it went another way."""

    @property
    def is_synced(self) -> bool:
        """What it writes is durable when it is acknowledged."""

    def on_journaled(
        self, file: "JournalFile", error: TailraceError | None, *, is_durable: bool
    ) -> None:
        """What it gave is in this file, or failed."""


class JournaledLog(JournalWriter, SpillingLog, Protocol):
    """What the journal asks of a log."""

    def set_aside(self, done: Callable[[TailraceError | None], None]) -> None:
        """Its segment cannot be written: keep its pending tail where it harms no other log."""


class JournalFile:
    """Created when its first round begins. `pending`: logs with batches that only it holds."""

    def __init__(self, path: Path, *, size_bytes: int, is_direct: bool) -> None:
        assert size_bytes % JOURNAL_BLOCK_BYTES == 0, size_bytes
        self.path = path
        self.size_bytes = size_bytes
        self.pending: dict[JournaledLog, None] = {}
        self._is_direct = is_direct
        self._file: DirectFile | None = None

    @property
    def file(self) -> DirectFile:
        """Open since the round began."""
        assert self._file is not None
        return self._file

    def begin_round(self, header: JournalFileHeader) -> None:
        """Make it ready for frames; durable on return. Blocks. DiskFullError, StorageFailedError.

        What it held before is gone: it must be safe in segments.
        """
        assert not self.pending
        if self._file is None:
            self._file = self._zero_written()
        block = mmap.mmap(-1, JOURNAL_BLOCK_BYTES)
        raw = encode_file_header(header)
        block[: len(raw)] = raw
        with memoryview(block) as view:
            self._file.write(view, 0)
        # Of a larger journal: cut when the header says so, so that it never looks cut by others.
        if self._file.size_bytes() > self.size_bytes:
            self._file.truncate(self.size_bytes)

    def end_round(self, position: int) -> None:
        """Let no frame be found there, where one that failed may stand; durable on return. Blocks.

        The next file begins with its sequence. DiskFullError, StorageFailedError.
        """
        if position < self.size_bytes:
            self.file.write(_ZEROS[:JOURNAL_BLOCK_BYTES], position)

    def close(self) -> None:
        """Nothing is being written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _zero_written(self) -> DirectFile:
        """The file with all its blocks: what is missing is written."""
        with translated_errors(self.path):
            present_bytes = self.path.stat().st_size if self.path.exists() else 0
            present_bytes -= present_bytes % JOURNAL_BLOCK_BYTES  # a copy may end anywhere
            if not present_bytes:
                DirectFile.create(self.path, is_direct=self._is_direct).close()
            file = DirectFile.open(self.path, is_direct=self._is_direct)
            try:
                for position in range(present_bytes, self.size_bytes, len(_ZEROS)):
                    file.write(_ZEROS[: self.size_bytes - position], position, is_durable=False)
                file.flush()
            except BaseException:
                file.close()
                raise
            return file


def journal_paths(data: Path) -> Iterator[Path]:
    """Where the files of a data directory's journal are, in the order of their use."""
    for index in range(JOURNAL_FILES):
        yield data / "journal" / f"{index}.journal"
