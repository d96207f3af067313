import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.model.errors import DiskFullError, StorageFailedError
from tailrace_broker.storage.files.spare_files import SPARE_BYTES, SPARE_COUNT, SpareFiles
from tests.support.storage.full_disk import full_disk
from tests.support.storage.storage import FaultyDisk


@pytest.fixture(autouse=True)
def small_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones take milliseconds to write."""
    monkeypatch.setattr("tailrace_broker.storage.files.spare_files.SPARE_BYTES", 8192)


@pytest.fixture
def spares(tmp_path: Path) -> SpareFiles:
    spares = SpareFiles(tmp_path)
    spares.fill()
    return spares


def names_in(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "spare").iterdir())


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_spare_file_is_larger_than_the_files_that_it_may_become() -> None:
    assert SPARE_BYTES >= 4000 * 350
    assert SPARE_COUNT == 2


def test_while_there_is_space_none_is_used(spares: SpareFiles, tmp_path: Path) -> None:
    spares.write(tmp_path / "a", b"1")
    spares.write(tmp_path / "a", b"2")
    spares.make_directory(tmp_path / "d")
    spares.make_directory(tmp_path / "d")

    assert (tmp_path / "a").read_bytes() == b"2"
    assert (tmp_path / "d").is_dir()
    assert names_in(tmp_path) == ["directory-0", "directory-1", "file-0", "file-1"]


def test_a_full_disk_takes_as_many_small_files_as_there_are_spare_ones(
    spares: SpareFiles, tmp_path: Path, disk: FaultyDisk
) -> None:
    for contents in (b"first", b"second" * 1000):
        disk.fail("open", errno.ENOSPC)
        spares.write(tmp_path / "a", contents)
        assert (tmp_path / "a").read_bytes() == contents
    assert names_in(tmp_path) == ["directory-0", "directory-1"]
    disk.fail("open", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        spares.write(tmp_path / "a", b"third")

    spares.fill()
    assert names_in(tmp_path) == ["directory-0", "directory-1", "file-0", "file-1"]
    disk.fail("open", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        spares.write(tmp_path / "a", bytes(8193))
    assert (tmp_path / "a").read_bytes() == b"second" * 1000


def test_a_full_disk_takes_as_many_directories_as_there_are_spare_ones(
    spares: SpareFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.mkdir", no_space)
        for name in "ab":
            spares.make_directory(tmp_path / name)
            assert list((tmp_path / name).iterdir()) == []
        with pytest.raises(DiskFullError):
            spares.make_directory(tmp_path / "c")
    spares.fill()
    assert names_in(tmp_path) == ["directory-0", "directory-1", "file-0", "file-1"]


class SlowDisk:
    """A call that waits until another thread has ended, or waits itself for what the call holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, other: Callable[[], None]):
        self._real = getattr(os, call)
        self._other = threading.Thread(target=other)
        monkeypatch.setattr(os, call, self)

    def __call__(self, *args: Any) -> Any:
        if not self._other.ident:
            self._other.start()
            self._other.join(0.005)
        return self._real(*args)

    def join(self) -> None:
        self._other.join()


def test_two_threads_never_take_the_same_spare_file(
    spares: SpareFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk(monkeypatch, "pwritev", lambda: spares.write(tmp_path / "b", b"second"))
    with full_disk(monkeypatch):
        spares.write(tmp_path / "a", b"1")
        slow.join()

    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"1", b"second")


def test_two_threads_never_take_the_same_spare_directory(
    spares: SpareFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk(monkeypatch, "rename", lambda: spares.make_directory(tmp_path / "b"))
    with full_disk(monkeypatch):
        spares.make_directory(tmp_path / "a")
        slow.join()

    assert (tmp_path / "a").is_dir()
    assert (tmp_path / "b").is_dir()


def test_a_spare_file_that_has_become_another_is_not_filled(
    spares: SpareFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: FaultyDisk
) -> None:
    (tmp_path / "spare" / "file-0").write_bytes(bytes(100))

    def become_another() -> None:
        disk.fail("open", errno.ENOSPC)
        spares.write(tmp_path / "a", b"1")

    slow = SlowDisk(monkeypatch, "pwritev", become_another)
    spares.fill()
    slow.join()

    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_spare_file_is_as_large_as_the_disk_lets_it_become(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    spares = SpareFiles(tmp_path)
    disk.fail("pwritev", errno.ENOSPC, kept_bytes=4096)
    spares.fill()
    assert (tmp_path / "spare" / "file-0").stat().st_size == 4096
    disk.fail("open", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        spares.write(tmp_path / "a", bytes(4097))
    disk.fail("open", errno.ENOSPC)
    spares.write(tmp_path / "a", b"1")

    assert (tmp_path / "a").read_bytes() == b"1"
    spares.fill()
    sizes = {path.stat().st_size for path in (tmp_path / "spare").glob("file-*")}
    assert sizes == {8192}


def test_what_fails_otherwise_is_no_matter_of_space(
    spares: SpareFiles, tmp_path: Path, disk: FaultyDisk
) -> None:
    disk.fail("open", errno.EIO)
    with pytest.raises(StorageFailedError):
        spares.write(tmp_path / "a", b"1")
    disk.fail("open", errno.ENOSPC)
    disk.fail("pwritev", errno.EIO)
    with pytest.raises(StorageFailedError):
        spares.write(tmp_path / "a", b"1")

    assert names_in(tmp_path) == ["directory-0", "directory-1", "file-0", "file-1"]
    assert not (tmp_path / "a").exists()
