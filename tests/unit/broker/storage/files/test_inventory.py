import shutil
import threading
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tailrace.wire import INVENTORY_FILE, JOURNAL_BLOCK_BYTES
from tailrace_broker.codec.journal import JournalFileHeader, encode_file_header
from tailrace_broker.codec.metadata import KnownFiles, decode_inventory
from tailrace_broker.model.errors import CorruptMetadataError, StorageFailedError
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.journal.presence import check_journal, is_accepted
from tests.support.storage.batches import TOPIC_ID
from tests.support.storage.storage import FaultyDisk

OTHER_ID = UUID(int=7)
NAMES = ("0.journal", "1.journal")


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    return Inventory(tmp_path / INVENTORY_FILE, KnownFiles(()))


def stored(directory: Path) -> KnownFiles:
    return decode_inventory((directory / INVENTORY_FILE).read_bytes())


def test_what_was_added_is_in_the_file_once(
    inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)
    for _ in range(2):
        inventory.add_segments([(TOPIC_ID, 2, 0), (OTHER_ID, 0, 7)])
        inventory.add_segments([(TOPIC_ID, 1, 0)])
        inventory.add_journal_file("1.journal")

    newest = {TOPIC_ID: {1: 0, 2: 0}, OTHER_ID: {0: 7}}
    assert stored(tmp_path) == KnownFiles(("1.journal",), newest)
    assert disk.calls["replace"] == 3


def test_a_purged_topic_is_in_it_no_more(inventory: Inventory, tmp_path: Path) -> None:
    inventory.add_segments([(TOPIC_ID, 2, 0), (OTHER_ID, 0, 7)])
    inventory.forget_topic(TOPIC_ID)
    inventory.forget_topic(UUID(int=8))

    assert stored(tmp_path) == KnownFiles((), {OTHER_ID: {0: 7}})


def test_a_later_segment_takes_the_place_of_the_one_before(
    inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)
    for base_offset in (0, 9, 0, 9):
        inventory.add_segments([(TOPIC_ID, 1, base_offset)])

    assert disk.calls["replace"] == 2
    assert stored(tmp_path).newest_segments == {TOPIC_ID: {1: 9}}
    assert inventory.newest_segment(TOPIC_ID, 1) == 9
    assert inventory.newest_segment(TOPIC_ID, 0) is None


def test_what_the_disk_did_not_take_is_not_in_it(
    inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FaultyDisk(monkeypatch).fail("replace")
    with pytest.raises(StorageFailedError):
        inventory.add_segments([(TOPIC_ID, 0, 0)])

    assert inventory.newest_segment(TOPIC_ID, 0) is None
    inventory.add_segments([(TOPIC_ID, 1, 0)])
    assert stored(tmp_path).newest_segments == {TOPIC_ID: {1: 0}}


def test_partitions_that_come_at_the_same_time_share_a_write(
    inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)
    count = 8
    together = threading.Barrier(count)

    def add(partition: int) -> None:
        together.wait()
        inventory.add_segments([(TOPIC_ID, partition, 0)])

    threads = [threading.Thread(target=add, args=(each,)) for each in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert stored(tmp_path).newest_segments == {TOPIC_ID: dict.fromkeys(range(count), 0)}
    assert disk.calls["replace"] <= count


# --- the journal ----------------------------------------------------------------------------------


@pytest.fixture
def journal(inventory: Inventory, tmp_path: Path) -> Path:
    """Of two files, of which the first is gone."""
    (tmp_path / "journal").mkdir()
    for name in NAMES:
        inventory.add_journal_file(name)
    stored = encode_file_header(JournalFileHeader(1, 9, 1, 0)).ljust(2 * JOURNAL_BLOCK_BYTES, b"\0")
    (tmp_path / "journal" / NAMES[1]).write_bytes(stored)
    return tmp_path / "journal"


def test_a_missing_file_of_the_journal_is_refused(inventory: Inventory, journal: Path) -> None:
    with pytest.raises(CorruptMetadataError, match=r"0\.journal is missing, .* touch .*0\.journal"):
        check_journal(journal, inventory, boot=3, is_clean=False)
    shutil.rmtree(journal)
    with pytest.raises(CorruptMetadataError, match=r"0\.journal is missing"):
        check_journal(journal, inventory, boot=3, is_clean=False)

    assert inventory.journal_files == NAMES


def test_a_loss_is_accepted_by_name_and_once(inventory: Inventory, journal: Path) -> None:
    (journal / "0.journal.lost").touch()
    with capture_logs() as logs:
        check_journal(journal, inventory, boot=3, is_clean=False)

    assert logs == [
        {
            "event": "journal.missing",
            "log_level": "warning",
            "files": ["0.journal"],
            "accepted": ["0.journal"],
        }
    ]
    assert inventory.journal_files == NAMES[1:]
    assert (journal / "0.journal.lost.3").read_bytes() == b""
    assert not (journal / "0.journal.lost").exists()


def test_a_loss_that_was_accepted_is_so_once_if_the_start_ends_before_it_is_noted(
    inventory: Inventory, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (journal / "0.journal.lost").touch()
    monkeypatch.setattr(Inventory, "keep_journal_files", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        check_journal(journal, inventory, boot=3, is_clean=False)

    assert not (journal / "0.journal.lost").exists()


@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_loss_of_a_part_is_accepted_of_one_round_of_a_file(
    inventory: Inventory, journal: Path, is_renamed: bool
) -> None:
    header = JournalFileHeader(boot=1, journal_id=9, first_sequence=7, size_bytes=0)
    path, marker = journal / "0.journal", journal / "0.journal.lost"
    stored = encode_file_header(header).ljust(2 * JOURNAL_BLOCK_BYTES, b"x")
    (marker if is_renamed else path).write_bytes(stored)
    marker.touch()
    for _ in range(2):
        check_journal(journal, inventory, boot=3, is_clean=False)
        assert path.read_bytes() == stored
        assert not marker.exists()

    assert is_accepted(path, header)
    assert not is_accepted(path, header._replace(first_sequence=8))
    assert not is_accepted(journal / "1.journal", header)
    assert not is_accepted(path, None)


def test_after_a_clean_stop_nothing_was_in_a_missing_file(
    inventory: Inventory, journal: Path
) -> None:
    check_journal(journal, inventory, boot=3, is_clean=True)

    assert inventory.journal_files == NAMES[1:]
    check_journal(journal, inventory, boot=3, is_clean=False)


def test_who_has_made_the_inventory_again_is_asked_when_the_journal_is_gone_too(
    tmp_path: Path, journal: Path
) -> None:
    inventory = Inventory(tmp_path / INVENTORY_FILE, KnownFiles())
    shutil.rmtree(journal)
    with pytest.raises(
        CorruptMetadataError, match=r"made again, so nobody knows .* touch .*\.lost"
    ):
        check_journal(journal, inventory, boot=3, is_clean=False)
    assert inventory.journal_files is None
    journal.mkdir()
    (journal / "0.journal.lost").touch()

    check_journal(journal, inventory, boot=3, is_clean=False)

    assert stored(tmp_path).journal_files == ()
    assert (journal / "0.journal.lost.3").exists()
    check_journal(journal, inventory, boot=4, is_clean=False)


@pytest.mark.parametrize("is_clean", [False, True])
def test_an_inventory_that_was_made_again_learns_which_files_the_journal_has(
    tmp_path: Path, journal: Path, is_clean: bool
) -> None:
    inventory = Inventory(tmp_path / INVENTORY_FILE, KnownFiles())
    if is_clean:
        shutil.rmtree(journal)

    check_journal(journal, inventory, boot=3, is_clean=is_clean)

    assert stored(tmp_path).journal_files == (() if is_clean else NAMES[1:])


# --- the file itself ------------------------------------------------------------------------------


def test_a_missing_inventory_is_refused_and_can_be_made_again(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    path = tmp_path / "data" / INVENTORY_FILE
    path.unlink()
    with pytest.raises(CorruptMetadataError, match=r"inventory\.json is missing; .* echo"):
        DataDirectory(tmp_path)
    path.write_text('{"version":1}\n')

    DataDirectory(tmp_path).close()


def test_a_damaged_inventory_is_refused_with_its_path_and_the_ways_on(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    path = tmp_path / "data" / INVENTORY_FILE
    path.write_bytes(b"{")

    with pytest.raises(CorruptMetadataError) as refused:
        DataDirectory(tmp_path)
    assert refused.value.detail == (
        f"{path} cannot be read: Input data was truncated; restore it from a copy, or make a new "
        "one, which can name nothing else that is missing: "
        f"echo '{{\"version\":1}}' > {path}"
    )


def test_a_journal_without_an_identity_is_data(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    (tmp_path / "data" / "meta.json").unlink()
    DataDirectory(tmp_path).close()
    (tmp_path / "data" / "meta.json").unlink()
    (tmp_path / "data" / "journal").mkdir()
    (tmp_path / "data" / "journal" / "1.journal").touch()

    with pytest.raises(CorruptMetadataError, match=r"meta\.json is missing, but the directory"):
        DataDirectory(tmp_path)


def test_a_cut_lowers_the_newest_segment(inventory: Inventory, tmp_path: Path) -> None:
    inventory.add_segments([(TOPIC_ID, 1, 9), (TOPIC_ID, 2, 9), (OTHER_ID, 0, 7)])
    for base_offset in (5, 7, 5):
        inventory.cut_segments(TOPIC_ID, 1, base_offset)
    inventory.cut_segments(TOPIC_ID, 2, None)
    inventory.cut_segments(TOPIC_ID, 3, 4)
    inventory.cut_segments(OTHER_ID, 0, None)

    assert stored(tmp_path) == KnownFiles((), {TOPIC_ID: {1: 5}})
