"""The storage edge: the only module that opens data files.

Direct I/O (O_DIRECT, open(2)) where the file system has it, so that the kernel keeps no second
copy; else buffered (macOS, tmpfs), which `is_direct` says. Positions, sizes and memory are whole
blocks; durable writes carry RWF_DSYNC (pwritev2(2)), so that one call writes and syncs.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter

from tailrace_broker.model.errors import (
    DiskFullError,
    ReadFailedError,
    StorageFailedError,
    StoredDataError,
)
from tailrace_broker.storage.files.writes_under_way import writing

# A multiple of every logical block size in use (512, 4096), and the page size.
BLOCK_BYTES = 4096
# So many durable writes show how fast the disk is; at a slow disk's 10 ms no start notices them.
DURABLE_WRITES = 8

_libc = ctypes.CDLL(None, use_errno=True)  # gives the interpreter up while it waits
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_RWF_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
# <data>/<topic id>/<partition id>/: each may be new with a partition's first segment.
_DIRECTORIES_ABOVE_A_SEGMENT = 3
_READ_ONLY_ERRNOS = frozenset({errno.EROFS, errno.EACCES})
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DirectFile:
    """A data file, read and written in whole blocks of aligned memory.

    All methods block; call them in an I/O thread. Errors: DiskFullError, StorageFailedError.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def create(cls, path: Path, *, is_direct: bool, is_durable: bool = True) -> "DirectFile":
        """An empty file; it and the directories above it are durable on return, if asked for.

        A leftover of a failed attempt is emptied: no log names it.
        """
        with translated_errors(path), writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = cls(path, _open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, is_direct))
            try:
                for directory in list(path.parents)[:_DIRECTORIES_ABOVE_A_SEGMENT]:
                    if is_durable:
                        sync_directory(directory)
            except OSError:
                file.close()
                raise
            return file

    @classmethod
    def open(cls, path: Path, *, is_direct: bool) -> "DirectFile":
        """An existing file, to be read and written; ReadFailedError.

        To be read alone where the file system has become read-only: writes then fail.
        """
        with translated_errors(path, ReadFailedError):
            try:
                return cls(path, _open(path, os.O_RDWR, is_direct))
            except OSError as error:
                if error.errno not in _READ_ONLY_ERRNOS:
                    raise
                return cls(path, _open(path, os.O_RDONLY, is_direct))

    @property
    def fd(self) -> int:
        """The descriptor, for calls that are not here."""
        return self._fd

    def size_bytes(self) -> int:
        """Return the file's present size."""
        return os.fstat(self._fd).st_size

    def read(self, buffer: memoryview, position: int) -> int:
        """Fill whole blocks of `buffer` from `position`; returns bytes read, fewer at the end."""
        assert position % BLOCK_BYTES == 0, position
        with translated_errors(self.path, ReadFailedError):
            return os.preadv(self._fd, [buffer], position)

    def write(self, buffer: memoryview, position: int, *, is_durable: bool = True) -> None:
        """Write whole blocks; durable on return (contents and file size) by default."""
        assert position % BLOCK_BYTES == 0, position
        assert len(buffer) % BLOCK_BYTES == 0, len(buffer)
        with translated_errors(self.path), writing():
            written_bytes = 0
            while written_bytes < len(buffer):
                rest = buffer[written_bytes:]
                flags = _RWF_DSYNC if is_durable else 0
                if flags:
                    written_bytes += os.pwritev(self._fd, [rest], position + written_bytes, flags)
                else:
                    written_bytes += os.pwritev(self._fd, [rest], position + written_bytes)
            if is_durable and not _RWF_DSYNC:
                _sync_data(self._fd)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file; durable on return."""
        with translated_errors(self.path), writing():
            os.ftruncate(self._fd, size_bytes)
            os.fsync(self._fd)

    def flush(self) -> None:
        """Make what was written before durable (fdatasync(2))."""
        with translated_errors(self.path), writing():
            _sync_data(self._fd)

    def close(self) -> None:
        """Give the descriptor back; what was written durably stays so."""
        os.close(self._fd)


def write_file_atomically(path: Path, contents: bytes) -> None:
    """Replace a small file as a whole; durable on return."""
    temporary = path.with_suffix(path.suffix + ".new")
    with translated_errors(path), writing():
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(contents)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
        sync_directory(path.parent)


def sync_file_system(path: Path) -> None:
    """Sync all earlier writes to the file system that this file is on. StorageFailedError.

    For many files at once: on ext4 it took 0.06 ms a file, and a sync of each 0.8 to 3 ms.
    """
    with translated_errors(path), writing():
        _with_fd(path, syncfs)


def syncfs(fd: int) -> None:
    """syncfs(2), or sync(2) where there is none. OSError."""
    if not hasattr(_libc, "syncfs"):
        os.sync()
    elif _libc.syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _with_fd(path: Path, call: Callable[[int], None]) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call(fd)
    finally:
        os.close(fd)


def _sync_data(fd: int) -> None:
    """Call fdatasync(2), which macOS lacks."""
    getattr(os, "fdatasync", os.fsync)(fd)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    with writing():
        _with_fd(directory, os.fsync)


def has_direct_io(directory: Path) -> bool:
    """Return whether files here can bypass the page cache; tried with a real write."""
    if not _O_DIRECT or _is_in_memory(directory):
        return False
    probe = directory / "direct-io-probe"
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | _O_DIRECT, 0o644)
        try:
            os.pwrite(fd, mmap.mmap(-1, BLOCK_BYTES), 0)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno in _FULL_ERRNOS  # a full disk can still be read
    finally:
        probe.unlink(missing_ok=True)
    return True


def measure_durable_write_ms(directory: Path, *, is_direct: bool) -> float | None:
    """Median of some durable writes of a block to blocks that are there; None: the disk fails."""
    path = directory / "durable-write-probe"
    durations_ms = []
    block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    try:
        file = DirectFile(path, _open(path, os.O_RDWR | os.O_CREAT, is_direct))
        try:
            for _ in range(DURABLE_WRITES + 1):
                started_s = perf_counter()
                file.write(block, 0)
                durations_ms.append((perf_counter() - started_s) * 1000)
        finally:
            file.close()
    except (OSError, StoredDataError):
        return None
    finally:
        with suppress(OSError):
            path.unlink()
    median_ms = sorted(durations_ms[1:])[DURABLE_WRITES // 2]  # the first one made the block
    return round(median_ms, 3)


@contextmanager
def translated_errors(
    path: Path, failed: type[StoredDataError] = StorageFailedError
) -> Iterator[None]:
    """OSError -> our errors, at the one edge that meets them; `failed` unless the disk is full."""
    try:
        yield
    except OSError as error:
        raise translated(error, path, failed) from error


def translated(
    error: OSError, path: Path, failed: type[StoredDataError] = StorageFailedError
) -> StoredDataError:
    """Translate an OSError that was not raised here."""
    if error.errno in _FULL_ERRNOS:
        return DiskFullError(
            f"no space left for {path}; delete a topic, lower its retention, or enlarge the disk"
        )
    return failed(f"{path}: {error.strerror}")


def _open(path: Path, flags: int, is_direct: bool) -> int:
    return os.open(path, flags | os.O_CLOEXEC | (_O_DIRECT if is_direct else 0), 0o644)


def _is_in_memory(directory: Path) -> bool:
    """Return whether this is tmpfs, which takes O_DIRECT but is memory (proc(5), mountinfo)."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    rows = (line.split() for line in mounts.splitlines())
    return any(row[2] == wanted and row[row.index("-") + 1] in {"tmpfs", "ramfs"} for row in rows)
