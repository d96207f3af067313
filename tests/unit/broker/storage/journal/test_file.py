"""One file of the journal: how it comes to be, and what a round leaves."""

import errno
import mmap
from pathlib import Path

import pytest

from tailrace_broker.codec.journal import JournalFileHeader, read_file_header
from tailrace_broker.model.errors import DiskFullError, StorageFailedError
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.journal.file import JOURNAL_FILES, JournalFile, journal_paths
from tests.support.storage.storage import FaultyDisk

SIZE_BYTES = 3 * 1024 * 1024 + 2 * BLOCK_BYTES
HEADER = JournalFileHeader(1, journal_id=2, first_sequence=3, size_bytes=SIZE_BYTES)


def new_file(path: Path, size_bytes: int = SIZE_BYTES) -> JournalFile:
    return JournalFile(path / "journal" / "0.journal", size_bytes=size_bytes, is_direct=False)


def block_of(contents: bytes) -> memoryview:
    block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    block[: len(contents)] = contents
    return block


def test_a_first_round_makes_the_file_whole_and_zero(tmp_path: Path, disk: FaultyDisk) -> None:
    file = new_file(tmp_path)
    assert not file.path.parent.exists()
    file.begin_round(HEADER)
    stored = file.path.read_bytes()

    assert read_file_header(memoryview(stored)) == HEADER
    assert stored[40:] == bytes(SIZE_BYTES - 40)
    assert disk.calls["fdatasync"] == 1  # of the zeros; the header is one durable write
    file.close()
    file.close()


def test_a_later_round_writes_its_header_alone(tmp_path: Path, disk: FaultyDisk) -> None:
    file = new_file(tmp_path)
    file.begin_round(HEADER)
    file.file.write(block_of(b"frame"), BLOCK_BYTES)
    before = disk.calls["pwritev"]
    file.begin_round(later := HEADER._replace(first_sequence=9))

    assert disk.calls["pwritev"] == before + 1
    stored = file.path.read_bytes()
    assert read_file_header(memoryview(stored)) == later
    assert stored[BLOCK_BYTES : BLOCK_BYTES + 5] == b"frame"
    file.close()


@pytest.mark.parametrize(
    "present_bytes",
    [0, 100, BLOCK_BYTES, 2 * 1024 * 1024 + 100, SIZE_BYTES + 100, SIZE_BYTES + BLOCK_BYTES],
)
def test_a_file_that_is_not_whole_is_made_so(tmp_path: Path, present_bytes: int) -> None:
    """As a stop left it, or a journal that was smaller or larger."""
    file = new_file(tmp_path)
    file.path.parent.mkdir()
    file.path.write_bytes(bytes(present_bytes))
    file.begin_round(HEADER)

    assert file.path.stat().st_size == SIZE_BYTES
    file.close()


@pytest.mark.parametrize(("call", "skipped"), [("open", 0), ("pwritev", 2), ("fdatasync", 0)])
def test_a_round_that_cannot_begin_begins_later(
    tmp_path: Path, disk: FaultyDisk, call: str, skipped: int
) -> None:
    file = new_file(tmp_path)
    disk.fail(call, errno.ENOSPC, skipped=skipped)
    with pytest.raises(DiskFullError, match=r"0\.journal"):
        file.begin_round(HEADER)
    file.begin_round(HEADER)

    assert file.path.stat().st_size == SIZE_BYTES
    file.close()


def test_a_larger_file_is_not_cut_before_its_header_says_so(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """A kill in between must not make it look as if it was cut by somebody."""
    file = new_file(tmp_path)
    file.path.parent.mkdir()
    file.path.write_bytes(bytes(SIZE_BYTES + BLOCK_BYTES))
    disk.fail("ftruncate", errno.EIO)
    with pytest.raises(StorageFailedError):
        file.begin_round(HEADER)

    assert read_file_header(memoryview(file.path.read_bytes())) == HEADER
    assert file.path.stat().st_size == SIZE_BYTES + BLOCK_BYTES
    file.begin_round(HEADER)
    assert file.path.stat().st_size == SIZE_BYTES
    file.close()


def test_nothing_is_found_where_a_round_ended(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.begin_round(HEADER)
    for position in (BLOCK_BYTES, 2 * BLOCK_BYTES, SIZE_BYTES - BLOCK_BYTES):
        file.file.write(block_of(b"frame"), position)
    file.end_round(2 * BLOCK_BYTES)
    file.end_round(SIZE_BYTES)  # full: there is nothing behind it

    assert file.path.stat().st_size == SIZE_BYTES
    stored = file.path.read_bytes()
    found = [at for at in range(0, SIZE_BYTES, BLOCK_BYTES) if stored[at : at + 5] == b"frame"]
    assert found == [BLOCK_BYTES, SIZE_BYTES - BLOCK_BYTES]
    file.close()


def test_a_file_that_holds_what_nothing_else_does_is_not_used_again(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.pending[None] = None  # type: ignore[index]
    with pytest.raises(AssertionError):
        file.begin_round(HEADER)


def test_the_files_are_named_in_the_order_of_their_use(tmp_path: Path) -> None:
    names = [path.name for path in journal_paths(tmp_path)]

    assert names == [f"{number}.journal" for number in range(JOURNAL_FILES)]
