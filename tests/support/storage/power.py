"""A loss of power: a file system forgets what was not synced, and the kernel boots again.

An ext4 is shut down without its journal (`EXT4_IOC_SHUTDOWN`, as xfstests' godown does): new names,
sizes, and blocks that were allocated or written for the first time are as at the last sync of them.
What was written directly to blocks in use stays: a loop device has no cache that it could lose.
"""

import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.ring.local_ring import LocalRing
from tests.support.storage.mounted import remount

CLONE_NEWNS = 0x00020000  # unshare(2)
EXT4_IOC_SHUTDOWN = 0x8004587D
WITHOUT_JOURNAL = struct.pack("I", 2)
BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LIBC = ctypes.CDLL(None, use_errno=True)


class Power:
    """Of brokers whose data directories are file systems of their own."""

    def __init__(self, boot_id: Path) -> None:
        self._boot_id = boot_id

    def lose(self, ring: LocalRing, ordinals: Sequence[int]) -> None:
        """Of these brokers, at the same moment; then their machines are up again."""
        for ordinal in ordinals:
            ring.kill(ordinal)
        for ordinal in ordinals:
            _forget_unsynced(ring.brokers[ordinal].data_dir)
        self._boot_id.write_text(f"{uuid4()}\n")
        for ordinal in ordinals:
            remount(ring.brokers[ordinal].data_dir)


@contextmanager
def own_power(directory: Path) -> Iterator[Power]:
    """Let what is started while the block lasts see a boot id that `Power.lose` changes.

    In a mount namespace of this thread (mount_namespaces(7)); skip without root.
    """
    if os.geteuid() != 0:
        pytest.skip("only root makes a mount namespace")
    boot_id, working_directory = directory / "boot_id", Path.cwd()
    boot_id.write_text(f"{uuid4()}\n")
    outside = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    if _LIBC.unshare(CLONE_NEWNS):
        os.close(outside)
        pytest.skip(f"no mount namespace here: {os.strerror(ctypes.get_errno())}")
    try:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "--bind", str(boot_id), BOOT_ID], check=True)
        yield Power(boot_id)
    finally:
        left = _LIBC.setns(outside, CLONE_NEWNS)
        os.close(outside)
        assert left == 0, os.strerror(ctypes.get_errno())
        os.chdir(working_directory)


def _forget_unsynced(mount: Path) -> None:
    fd = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, WITHOUT_JOURNAL)
    finally:
        os.close(fd)
