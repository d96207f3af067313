import errno
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.model.errors import DiskFullError, ReadFailedError, StorageFailedError
from tailrace_broker.storage.files import direct_file
from tailrace_broker.storage.files.direct_file import (
    BLOCK_BYTES,
    DURABLE_WRITES,
    DirectFile,
    has_direct_io,
    measure_durable_write_ms,
    sync_directory,
    sync_file_system,
    write_file_atomically,
)
from tailrace_broker.storage.files.spare_files import SpareFiles
from tailrace_broker.storage.files.writes_under_way import IoThread
from tests.support.storage.storage import FaultyDisk

WAIT_S = 15.0
MEMORY_FILE_SYSTEM = Path("/dev/shm")


def aligned(contents: bytes) -> memoryview:
    """Whole blocks in memory that O_DIRECT takes."""
    buffer = memoryview(mmap.mmap(-1, -(-len(contents) // BLOCK_BYTES) * BLOCK_BYTES))
    buffer[: len(contents)] = contents
    return buffer


@contextmanager
def new_file(path: Path) -> Iterator[DirectFile]:
    file = DirectFile.create(path, is_direct=has_direct_io(path.parent))
    try:
        yield file
    finally:
        file.close()


def open_files() -> set[str]:
    """What the descriptors of this process name."""
    links = Path("/proc/self/fd").iterdir()
    return {str(link.readlink()) for link in links if link.is_symlink()}


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow further (EFBIG)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_blocks_are_read_back_from_where_they_were_written(tmp_path: Path) -> None:
    with new_file(tmp_path / "f") as file:
        file.write(aligned(b"a" * BLOCK_BYTES), 0)
        file.write(aligned(b"b" * BLOCK_BYTES), 2 * BLOCK_BYTES)
        buffer = aligned(bytes(2 * BLOCK_BYTES))

        assert file.read(buffer, BLOCK_BYTES) == 2 * BLOCK_BYTES
        assert bytes(buffer) == bytes(BLOCK_BYTES) + b"b" * BLOCK_BYTES
        assert file.size_bytes() == 3 * BLOCK_BYTES


def test_a_read_at_the_end_of_the_file_is_short(tmp_path: Path) -> None:
    with new_file(tmp_path / "f") as file:
        file.write(aligned(b"a" * BLOCK_BYTES), 0)
        file.truncate(100)

        assert file.read(aligned(bytes(BLOCK_BYTES)), 0) == 100
        assert file.read(aligned(bytes(BLOCK_BYTES)), BLOCK_BYTES) == 0


def test_a_write_that_the_kernel_cuts_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, *rest: real(fd, [parts[0][:BLOCK_BYTES]], *rest)
    )
    contents = os.urandom(3 * BLOCK_BYTES)

    with new_file(tmp_path / "f") as file:
        file.write(aligned(contents), 0)

    assert (tmp_path / "f").read_bytes() == contents


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_space_is_distinguished_from_other_failures(
    tmp_path: Path, disk: FaultyDisk, error: int
) -> None:
    with new_file(tmp_path / "f") as file:
        disk.fail("pwritev", error)
        with pytest.raises(DiskFullError, match=r"no space left for .*/f"):
            file.write(aligned(b"a"), 0)
        disk.fail("pwritev", errno.EIO)
        with pytest.raises(StorageFailedError, match="/f: Input/output error"):
            file.write(aligned(b"a"), 0)


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    with new_file(tmp_path / "f") as file, largest_file(2 * BLOCK_BYTES):
        file.write(aligned(bytes(2 * BLOCK_BYTES)), 0)
        with pytest.raises(DiskFullError):
            file.write(aligned(bytes(2 * BLOCK_BYTES)), BLOCK_BYTES)


def test_a_new_file_and_the_directories_above_it_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "topic" / "0" / "f"

    DirectFile.create(path, is_direct=False).close()

    assert synced == [str(tmp_path / "topic" / "0"), str(tmp_path / "topic"), str(tmp_path)]


def test_a_leftover_of_a_failed_create_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"stale")
    with new_file(tmp_path / "f") as file:
        assert file.size_bytes() == 0


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_a_create_that_fails_keeps_no_file_open(
    tmp_path: Path, disk: FaultyDisk, skipped: int
) -> None:
    disk.fail("fsync", skipped=skipped)
    with pytest.raises(StorageFailedError):
        DirectFile.create(tmp_path / "a" / "b" / "f", is_direct=False)

    assert not any(name.startswith(str(tmp_path)) for name in open_files())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReadFailedError, match="/f: No such file"):
        DirectFile.open(tmp_path / "f", is_direct=False)


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="no RWF_DSYNC here")
def test_a_durable_write_is_one_call_that_writes_and_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []
    real = os.pwritev

    def pwritev(fd: int, parts: list[memoryview], position: int, flag: int = 0) -> int:
        flags.append(flag)
        return real(fd, parts, position, flag)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with new_file(tmp_path / "f") as file:
        file.write(aligned(b"a"), 0)
        file.write(aligned(b"a"), 0, is_durable=False)

    assert flags == [os.RWF_DSYNC, 0]


def test_without_write_flags_a_durable_write_is_followed_by_a_sync(
    tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, which has no RWF_DSYNC."""
    with new_file(tmp_path / "f") as file:
        file.write(aligned(b"a"), 0)
        assert disk.calls["fdatasync"] == 0

        monkeypatch.setattr(direct_file, "_RWF_DSYNC", 0)
        file.write(aligned(b"a"), 0)
        assert disk.calls["fdatasync"] == 1
        file.write(aligned(b"a"), 0, is_durable=False)
        assert disk.calls["fdatasync"] == 1


def test_what_was_written_before_is_flushed_in_one_call(tmp_path: Path, disk: FaultyDisk) -> None:
    with new_file(tmp_path / "f") as file:
        for position in (0, BLOCK_BYTES):
            file.write(aligned(b"a"), position, is_durable=False)
        file.flush()
        assert disk.calls["fdatasync"] == 1

        disk.fail("fdatasync")
        with pytest.raises(StorageFailedError):
            file.flush()


def test_the_file_system_of_a_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    class Libc:
        def syncfs(self, fd: int) -> int:
            synced.append(os.fstat(fd).st_ino)
            return 0

    monkeypatch.setattr(direct_file, "_libc", Libc())
    sync_file_system(tmp_path)
    assert synced == [tmp_path.stat().st_ino]


def test_without_syncfs_all_file_systems_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(direct_file, "_libc", object())
    monkeypatch.setattr(os, "sync", lambda: synced.append("all"))
    sync_file_system(tmp_path)
    assert synced == ["all"]


@pytest.mark.parametrize(
    ("do", "call"),
    [
        (sync_file_system, "sync"),
        (sync_directory, "fsync"),
        (lambda path: DirectFile.create(path / "segment", is_direct=False).close(), "open"),
        (lambda path: write_file_atomically(path / "f.json", b"new"), "fsync"),
        (lambda path: SpareFiles(path).fill(), "pwritev"),
    ],
    ids=["file system", "directory", "new file", "small file", "spare files"],
)
def test_what_may_hang_on_a_disk_that_stalls_counts_as_a_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    do: Callable[[Path], None],
    call: str,
) -> None:
    """From when all of it began: a later part of it does not begin again."""
    monkeypatch.setattr(direct_file, "_libc", object())
    monkeypatch.setattr(os, "sync", lambda: None)
    marks: list[float | None] = []
    real = getattr(os, call)

    def note(*args: Any, **options: Any) -> Any:
        marks.append(thread.writes_since_s)
        return real(*args, **options)

    monkeypatch.setattr(os, call, note)
    thread = IoThread(target=do, args=(tmp_path,))
    thread.start()
    thread.join(WAIT_S)
    assert marks
    assert None not in marks
    assert len(set(marks)) == 1
    assert thread.writes_since_s is None


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, disk: FaultyDisk, call: str
) -> None:
    path = tmp_path / "f.json"
    write_file_atomically(path, b"old")
    disk.fail(call)

    with pytest.raises(StorageFailedError):
        write_file_atomically(path, b"new")
    assert path.read_bytes() == b"old"

    disk.calls.clear()
    write_file_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert disk.calls["fsync"] == 2  # of the file, and of its directory
    assert [each.name for each in tmp_path.iterdir()] == ["f.json"]


def test_a_probe_for_direct_io_leaves_nothing(tmp_path: Path) -> None:
    has_direct_io(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not MEMORY_FILE_SYSTEM.is_dir(), reason="no tmpfs here")
def test_memory_is_not_taken_for_a_disk() -> None:
    assert not has_direct_io(MEMORY_FILE_SYSTEM)


def test_a_disk_is_measured_and_nothing_is_left_on_it(tmp_path: Path, disk: FaultyDisk) -> None:
    is_direct = has_direct_io(tmp_path)

    assert 0 < (measure_durable_write_ms(tmp_path, is_direct=is_direct) or 0) < 10_000
    assert disk.calls["pwritev"] == DURABLE_WRITES + 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["open", "pwritev"])
def test_a_disk_that_fails_is_not_measured(tmp_path: Path, disk: FaultyDisk, call: str) -> None:
    disk.fail(call, errno.ENOSPC)

    assert measure_durable_write_ms(tmp_path, is_direct=False) is None
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in "".join(open_files())
