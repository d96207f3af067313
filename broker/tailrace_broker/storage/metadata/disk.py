"""The metadata's files as such: applies `FileAction`s, in their order. All of it blocks."""

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from tailrace_broker.core.raft.metadata_log import (
    FileAction,
    MetadataLog,
    Remove,
    Reserve,
    Sync,
    Write,
    WriteSnapshot,
    owns,
)
from tailrace_broker.model.agreement import Kept
from tailrace_broker.model.errors import DiskFullError, ReadFailedError
from tailrace_broker.storage.files.direct_file import (
    BLOCK_BYTES,
    DirectFile,
    sync_directory,
    translated_errors,
)

_ZEROS = memoryview(mmap.mmap(-1, 256 * 1024))


class MetadataDisk:
    """One directory. A snapshot may be written beside another action, nothing else may."""

    def __init__(
        self, directory: Path, *, is_direct: bool, write_file: Callable[[Path, bytes], None]
    ) -> None:
        """`write_file` replaces a file as a whole."""
        self._directory = directory
        self._is_direct = is_direct
        self._write_file = write_file
        self._files: dict[str, DirectFile] = {}

    def recover(self, *, log_bytes: int) -> tuple[Kept, MetadataLog]:
        """Return what is there, durably, and the log that goes on from it.

        CorruptMetadataError, ReadFailedError, DiskFullError, StorageFailedError.
        """
        with translated_errors(self._directory):
            self._directory.mkdir(exist_ok=True)
            sync_directory(self._directory.parent)
        with translated_errors(self._directory, ReadFailedError):
            paths = [path for path in self._directory.iterdir() if owns(path.name)]
            files = {path.name: path.read_bytes() for path in paths}
        kept, log = MetadataLog.recover(files, log_bytes=log_bytes)
        self.execute(log.prepare())
        return kept, log

    def execute(self, actions: Sequence[FileAction]) -> None:
        """Execute in this order.

        DiskFullError (doing them all again does no harm), StorageFailedError.
        """
        for action in actions:
            path = self._directory / action.name
            match action:
                case Reserve(name, size_bytes):
                    self._reserve(path, size_bytes)
                case Sync(name):
                    self._file(name).flush()
                case Write(name, position, contents):
                    block = mmap.mmap(-1, len(contents))  # aligned
                    block[:] = contents
                    with memoryview(block) as view:
                        self._file(name).write(view, position)
                case WriteSnapshot(name, slices):
                    self._write_whole(path, b"".join(slices))
                case Remove(name):
                    with translated_errors(path):
                        path.unlink(missing_ok=True)
                case _:
                    assert_never(action)

    def close(self) -> None:
        """Close the files. Nothing is being written."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, name: str) -> DirectFile:
        if name not in self._files:
            self._files[name] = DirectFile.open(self._directory / name, is_direct=self._is_direct)
        return self._files[name]

    def _reserve(self, path: Path, size_bytes: int) -> None:
        """Zeros are written, so that no later write needs space."""
        if not path.exists():
            DirectFile.create(path, is_direct=self._is_direct).close()
        file = DirectFile.open(path, is_direct=self._is_direct)
        try:
            present_bytes = file.size_bytes()
            present_bytes -= present_bytes % BLOCK_BYTES  # a copy may end anywhere
            for position in range(present_bytes, size_bytes, len(_ZEROS)):
                file.write(_ZEROS[: size_bytes - position], position, is_durable=False)
            file.flush()
        finally:
            file.close()
        with translated_errors(path):
            sync_directory(path.parent)

    def _write_whole(self, path: Path, contents: bytes) -> None:
        try:
            self._write_file(path, contents)
        except DiskFullError:
            with suppress(OSError):  # what there was room for takes room
                path.with_suffix(path.suffix + ".new").unlink(missing_ok=True)
            raise
