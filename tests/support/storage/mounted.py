"""Small file systems in image files, that run full or freeze; only root mounts them."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

MEBIBYTE = 1024 * 1024


@contextmanager
def mounted_disk(mount: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a new ext4 at a new directory while the block lasts; skip where that cannot be."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("only root mounts a file system, and mkfs.ext4 makes it")
    image = _image_of(mount)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    mount.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    if refused := _mount(mount):
        pytest.skip(f"no loop mount here: {refused}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)
        image.unlink()


@contextmanager
def mounted_disks(root: Path, count: int, size_bytes: int) -> Iterator[None]:
    """Mount one each at `root/0`, `root/1` and so on, as brokers of a ring have them."""
    with ExitStack() as stack:
        for ordinal in range(count):
            stack.enter_context(mounted_disk(root / str(ordinal), size_bytes))
        yield


def remount(mount: Path) -> None:
    """Unmount what nobody uses, and mount it again."""
    subprocess.run(["umount", str(mount)], check=True)
    assert not (refused := _mount(mount)), refused


@contextmanager
def frozen(mount: Path) -> Iterator[None]:
    """Let no write to the file system end while the block lasts (fsfreeze(8)).

    A process that writes cannot be killed before the end of it.
    """
    subprocess.run(["fsfreeze", "--freeze", str(mount)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(mount)], check=True)


def fill_up(path: Path, left_bytes: int = 0) -> None:
    """Let a file take all blocks that are free, but for so many bytes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC)
    try:
        while (free_bytes := _free_bytes(path) - left_bytes) > 0:
            os.write(fd, bytes(min(free_bytes, MEBIBYTE)))
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017  metadata took the last block
    finally:
        os.close(fd)


def _image_of(mount: Path) -> Path:
    return mount.with_name(f"{mount.name}.image")


def _mount(mount: Path) -> str:
    """Return what is wrong; nothing when it is mounted."""
    command = ["mount", "-o", "loop", str(_image_of(mount)), str(mount)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
