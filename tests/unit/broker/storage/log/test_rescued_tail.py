"""What is set aside from the journal: each batch once, behind what was set aside before."""

import errno
from pathlib import Path

import pytest

from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.model.errors import DiskFullError, ReadFailedError, StorageFailedError
from tailrace_broker.storage.log.rescued_tail import (
    RESCUED,
    load_rescued,
    remove_rescued,
    save_rescued,
)
from tests.support.storage.batches import Event, body_of, place_of
from tests.support.storage.full_disk import full_disk
from tests.support.storage.storage import FaultyDisk


def stored_batch(offset: int, *, epoch: int = 1) -> memoryview:
    """Of one record."""
    place = place_of(base_offset=offset, epoch=epoch)
    return stamp_batch(body_of([Event(b"%d" % offset)]), place).contents()


def offsets_in(directory: Path) -> list[int]:
    return [batch.header.base_offset for batch in load_rescued(directory)]


def test_nothing_is_there_before(tmp_path: Path) -> None:
    assert offsets_in(tmp_path / "0") == []


def test_batches_come_behind_those_before_and_each_once(tmp_path: Path) -> None:
    directory = tmp_path / "topic" / "0"
    save_rescued(directory, [stored_batch(0), stored_batch(1)])
    before = (directory / RESCUED).read_bytes()
    save_rescued(directory, [stored_batch(0), bytes(stored_batch(1))])
    assert (directory / RESCUED).read_bytes() == before

    save_rescued(directory, [stored_batch(1), stored_batch(1, epoch=2), stored_batch(2)])
    assert offsets_in(directory) == [0, 1, 1, 2]
    assert (directory / RESCUED).read_bytes().startswith(before)
    remove_rescued(directory)
    assert offsets_in(directory) == []


def test_what_stands_behind_damage_makes_room(tmp_path: Path) -> None:
    save_rescued(tmp_path, [stored_batch(0), stored_batch(1)])
    path = tmp_path / RESCUED
    path.write_bytes(path.read_bytes()[:-1])
    assert offsets_in(tmp_path) == [0]

    save_rescued(tmp_path, [stored_batch(1), stored_batch(2)])
    assert offsets_in(tmp_path) == [0, 1, 2]


def test_what_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / RESCUED).mkdir()
    with pytest.raises(ReadFailedError, match=r"journaled\.batches: Is a directory"):
        load_rescued(tmp_path)
    with pytest.raises(StorageFailedError, match=r"journaled\.batches: Is a directory"):
        save_rescued(tmp_path, [stored_batch(0)])

    assert (tmp_path / RESCUED).is_dir()


def test_a_disk_that_does_not_take_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch), pytest.raises(DiskFullError):
        save_rescued(tmp_path / "0", [stored_batch(0)])
    save_rescued(tmp_path, [stored_batch(0)])
    disk = FaultyDisk(monkeypatch)
    disk.fail("replace", errno.EIO)
    with pytest.raises(StorageFailedError):
        save_rescued(tmp_path, [stored_batch(1)])
    disk.fail("unlink", errno.EIO)
    with pytest.raises(StorageFailedError):
        remove_rescued(tmp_path)

    assert offsets_in(tmp_path) == [0]
