"""Small file systems in image files, that run full or freeze; only root mounts them."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEBIBYTE = 1024 * 1024


@contextmanager
def mounted_disk(mount: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a new ext4 at a new directory while the block lasts; skip where that cannot be."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("only root mounts a file system, and mkfs.ext4 makes it")
    image = mount.with_name(f"{mount.name}.image")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    mount.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(mount)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no loop mount here: {mounted.stderr.decode().strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)
        image.unlink()


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


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
