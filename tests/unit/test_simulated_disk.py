"""The simulated disk leaves what a disk may leave, and nothing else."""

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage.simulated_disk import BLOCK_BYTES, Call, Killed, SimulatedDisk

IMAGES = 60
OLD, NEW = b"o" * BLOCK_BYTES, b"n" * BLOCK_BYTES


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SimulatedDisk]:
    """With a durable file of three blocks; it records."""
    root = tmp_path / "disk"
    root.mkdir()
    (root / "kept").write_bytes(OLD * 3)
    disk = SimulatedDisk(root, seed=1)
    with disk.recording():
        yield disk


def images(disk: SimulatedDisk, time: int | None = None) -> list[dict[str, bytes]]:
    """What many losses of power leave, the same each time."""
    found = []
    for seed in range(IMAGES):
        target = disk.root.parent / f"image-{seed}"
        disk.image(disk.time if time is None else time, random.Random(seed), target)
        found.append(
            {
                str(path.relative_to(target)): path.read_bytes()
                for path in sorted(target.rglob("*"))
                if path.is_file()
            }
        )
    return found


def write(path: Path, contents: bytes, position: int = 0, flags: int = 0) -> int:
    """Write, and leave the file open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwritev(fd, [contents], position, flags)
    return fd


def test_a_durable_write_is_there_whole(disk: SimulatedDisk) -> None:
    os.close(write(disk.root / "kept", NEW * 2, BLOCK_BYTES, os.RWF_DSYNC))

    assert {image["kept"] for image in images(disk)} == {OLD + NEW * 2}


def test_of_a_write_that_was_not_synced_any_block_may_be_there(disk: SimulatedDisk) -> None:
    os.close(write(disk.root / "kept", NEW * 2, BLOCK_BYTES))

    left = {image["kept"] for image in images(disk)}

    assert left >= {OLD * 3, OLD + NEW * 2, OLD * 2 + NEW, OLD + NEW + OLD}


def test_a_durable_write_may_still_be_under_way(disk: SimulatedDisk) -> None:
    began = disk.time + 1
    os.close(write(disk.root / "kept", NEW, 0, os.RWF_DSYNC))

    assert {image["kept"] for image in images(disk, began)} >= {OLD * 3, NEW + OLD * 2}


def test_a_sync_makes_all_of_a_file_durable(disk: SimulatedDisk) -> None:
    fd = write(disk.root / "kept", NEW)
    os.ftruncate(fd, BLOCK_BYTES)
    os.fsync(fd)
    os.close(fd)

    assert {image["kept"] for image in images(disk)} == {NEW}


def test_a_file_that_was_cut_may_be_whole_again(disk: SimulatedDisk) -> None:
    fd = os.open(disk.root / "kept", os.O_RDWR)
    os.ftruncate(fd, 0)
    os.close(fd)

    assert {image["kept"] for image in images(disk)} == {OLD * 3, b""}


def test_a_new_file_is_gone_unless_its_directory_was_synced(disk: SimulatedDisk) -> None:
    fd = write(disk.root / "new", NEW)
    os.fsync(fd)
    os.close(fd)

    assert {"new" in image for image in images(disk)} == {True, False}

    fd = os.open(disk.root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    for path in disk.root.parent.glob("image-*/*"):
        path.unlink()
    for path in disk.root.parent.glob("image-*"):
        path.rmdir()
    assert {image["new"] for image in images(disk)} == {NEW}


def test_a_replaced_file_is_the_old_or_the_new_one(disk: SimulatedDisk) -> None:
    fd = write(disk.root / "kept.new", NEW)
    os.fsync(fd)
    os.close(fd)
    (disk.root / "kept.new").replace(disk.root / "kept")

    assert {image["kept"] for image in images(disk)} == {OLD * 3, NEW}


def test_a_removed_directory_takes_nothing_with_it_that_was_not_removed(
    disk: SimulatedDisk,
) -> None:
    (disk.root / "directory").mkdir()
    os.close(write(disk.root / "directory" / "file", NEW))
    for path in (disk.root, disk.root / "directory"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    (disk.root / "directory" / "file").unlink()
    (disk.root / "directory").rmdir()

    assert {"directory/file" in image for image in images(disk)} == {True, False}


def test_a_killed_process_changes_nothing_more(disk: SimulatedDisk) -> None:
    fd = write(disk.root / "kept", NEW)
    disk.kill_after(0)

    with pytest.raises(Killed):
        os.pwritev(fd, [NEW * 2], BLOCK_BYTES)
    with pytest.raises(Killed):
        (disk.root / "kept").unlink()

    disk.kill()
    stored = (disk.root / "kept").read_bytes()
    assert stored[:BLOCK_BYTES] == NEW
    assert disk.recorded_files() == {"kept": stored}


def test_a_write_that_fails_is_there_in_part(disk: SimulatedDisk) -> None:
    disk.trouble = lambda call: errno.EIO if call.name == "pwritev" else None

    with pytest.raises(OSError, match="Input/output error"):
        os.close(write(disk.root / "kept", NEW * 2, BLOCK_BYTES, os.RWF_DSYNC))

    left = (disk.root / "kept").read_bytes()
    assert left in {OLD * 3, OLD + NEW + OLD, OLD + NEW * 2}
    assert {image["kept"] for image in images(disk)} >= {OLD * 3}
    assert disk.recorded_files() == {"kept": left}


def test_a_sync_that_fails_makes_nothing_durable(disk: SimulatedDisk) -> None:
    fd = write(disk.root / "kept", NEW * 2, BLOCK_BYTES)
    disk.trouble = lambda call: errno.EIO if call.name == "fsync" else None

    with pytest.raises(OSError, match="Input/output error"):
        os.fsync(fd)
    os.close(fd)

    assert OLD * 3 in {image["kept"] for image in images(disk)}


def test_what_takes_space_is_known(disk: SimulatedDisk) -> None:
    calls: list[Call] = []

    def note(call: Call) -> None:
        calls.append(call)

    disk.trouble = note
    os.close(write(disk.root / "kept", NEW))
    os.close(write(disk.root / "kept", NEW, 3 * BLOCK_BYTES))
    os.close(write(disk.root / "new", NEW))
    (disk.root / "new").unlink()

    assert calls == [
        Call("pwritev", takes_space=False),
        Call("pwritev", takes_space=True),
        Call("open", takes_space=True),
        Call("pwritev", takes_space=True),
        Call("unlink", takes_space=False),
    ]
