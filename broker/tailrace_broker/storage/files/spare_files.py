"""Files and directories kept ready, so that a full disk still takes a deletion.

A small file is replaced as a whole by writing another and renaming it. Where a full disk has no
block for the other, a spare file becomes it: its blocks were written before, so that writing over
them takes none. File systems that never write in place (btrfs, ZFS) may refuse that too.

<root>/data/spare/file-<n>, directory-<n>
"""

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

from tailrace_broker.model.errors import DiskFullError, StoredDataError
from tailrace_broker.storage.files.direct_file import (
    sync_directory,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.files.writes_under_way import writing

# A start writes who the disk is, a deletion its mark; a topic without a record, and the trash, may
# have no directory yet.
SPARE_COUNT = 2
# The largest is the ring's snapshot: about 300 bytes a topic.
SPARE_BYTES = 2 * 1024 * 1024
_ZEROS = bytes(512 * 1024)


class SpareFiles:
    """The spare files of one data directory. All methods block; call them in an I/O thread."""

    def __init__(self, data: Path) -> None:
        """`data`: what they are spare for lies below it. Nothing is made yet."""
        self._path = data / "spare"
        self._files = [self._path / f"file-{number}" for number in range(SPARE_COUNT)]
        self._directories = [self._path / f"directory-{number}" for number in range(SPARE_COUNT)]
        # No two threads take the same one; none is filled that has just become another file.
        self._lock = Lock()

    def fill(self) -> None:
        """Make those that are missing, as far as there is space; so does a write that has space."""
        with self._lock, suppress(StoredDataError), translated_errors(self._path), writing():
            for directory in (self._path, *self._directories):
                directory.mkdir(exist_ok=True)
            for path in self._files:
                _make_spare(path)

    def write(self, path: Path, contents: bytes) -> None:
        """Write as `write_file_atomically`; on a full disk over a spare file, while there is one.

        DiskFullError: there is none left that is large enough.
        """
        try:
            write_file_atomically(path, contents)
            if not all(file.exists() for file in self._files):
                self.fill()
        except DiskFullError:
            with self._lock:
                spare = self._spare_for(len(contents))
                if spare is None:
                    raise
                with translated_errors(path), writing():
                    _write_over(spare, contents)
                    spare.replace(path)
                    sync_directory(path.parent)

    def make_directory(self, path: Path) -> None:
        """Unless there is one; on a full disk it is a spare one. Its entry is not synced."""
        try:
            with translated_errors(path):
                path.mkdir(exist_ok=True)
        except DiskFullError:
            with self._lock:
                spare = next(
                    (directory for directory in self._directories if directory.exists()), None
                )
                if spare is None:
                    raise
                with translated_errors(path):
                    spare.rename(path)

    def _spare_for(self, size_bytes: int) -> Path | None:
        """One that has room for so much."""
        for path in self._files:
            if path.exists() and path.stat().st_size >= size_bytes:
                return path
        return None


def _make_spare(path: Path) -> None:
    """Extend the file to its full size; on a full disk it stays as large as it became."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        size_bytes = os.fstat(fd).st_size
        while size_bytes < SPARE_BYTES:
            zeros = memoryview(_ZEROS)[: SPARE_BYTES - size_bytes]
            size_bytes += os.pwritev(fd, [zeros], size_bytes)
    finally:
        os.fsync(fd)
        if hasattr(os, "posix_fadvise"):  # nobody reads them
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _write_over(path: Path, contents: bytes) -> None:
    """Replace a file's bytes within its blocks; durable on return."""
    fd = os.open(path, os.O_WRONLY)
    try:
        written_bytes = 0
        while written_bytes < len(contents):
            written_bytes += os.pwritev(fd, [contents[written_bytes:]], written_bytes)
        os.ftruncate(fd, len(contents))
        os.fsync(fd)
    finally:
        os.close(fd)
