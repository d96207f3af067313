"""What storage promises to be durable on return survives any loss of power.

Every call is recorded by a simulated disk, which then makes images of what the power may leave.
"""

import os
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.wire import DAMAGE_FILE, INVENTORY_FILE, JOURNAL_BLOCK_BYTES, METADATA_LOGS
from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.codec.metadata import KnownFiles
from tailrace_broker.core.raft.metadata_log import MetadataLog, Remove, Write, WriteSnapshot
from tailrace_broker.model.agreement import (
    Block,
    BlockId,
    Configuration,
    DiskId,
    Head,
    Kept,
    Record,
    Snapshot,
    Stored,
    Term,
)
from tailrace_broker.model.damage import RecordedDamage
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.direct_file import DirectFile, write_file_atomically
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.journal.presence import check_journal
from tailrace_broker.storage.log.damage_file import save_damage
from tailrace_broker.storage.log.rescued_tail import RESCUED, remove_rescued, save_rescued
from tailrace_broker.storage.metadata.disk import MetadataDisk
from tailrace_broker.storage.segments.cut import finish_cut, remove_from
from tailrace_broker.storage.segments.writer import segment_path
from tailrace_broker.storage.trash import Trash
from tests.support.storage.batches import Event, body_of, place_of
from tests.support.storage.simulated_disk import SimulatedDisk
from tests.support.storage.topics import new_topic

LOG_BYTES = 64 * 1024
# An image keeps none, half or all of what is not durable, and any prefix of the names.
IMAGES = 12
TOPIC = new_topic("flights", TopicSettings(), UUID(int=1))
VOTERS = Configuration((DiskId(0, UUID(int=1)),))
MARK = f"{TOPIC.topic_id}/topic.json"
BURIED = f"trash/{TOPIC.topic_id}/topic.json"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


class PowerLosses:
    """Images of a directory as a loss of power may leave it now."""

    def __init__(self, directory: Path) -> None:
        self.disk = SimulatedDisk(directory, "power")
        self._numbers = count()
        self._target = directory.parent

    def images(self, time: int | None = None) -> Iterator[Path]:
        """`time`: of the past."""
        for number in range(IMAGES):
            target = self._target / f"image-{next(self._numbers)}"
            at = self.disk.tick() if time is None else time
            self.disk.image(at, random.Random(number), target)
            yield target


def found(directory: Path) -> Kept:
    """What a start finds in the metadata's files."""
    files = {path.name: path.read_bytes() for path in (directory / "metadata").iterdir()}
    return MetadataLog.recover(files, log_bytes=LOG_BYTES)[0]


def block(height: int, payload: bytes = b"") -> list[Record]:
    stored = Block(BlockId(1, height), BlockId(1, height - 1), 0, payload)
    return [Stored(stored), Head(stored.id)]


def metadata_of(data: Path) -> MetadataDisk:
    return MetadataDisk(data / "metadata", is_direct=False, write_file=write_file_atomically)


def test_what_the_metadata_keeps_is_durable_at_once(data: Path) -> None:
    """New files, appends, the other generation, and a snapshot in place of all."""
    power, disk = PowerLosses(data), metadata_of(data)
    term = Term(1, VOTERS.voters[0])
    kept: list[Kept] = []

    def survives() -> None:
        kept.append(found(data))
        assert [found(image) for image in power.images()] == [kept[-1]] * IMAGES

    with power.disk.recording():
        _, log = disk.recover(log_bytes=LOG_BYTES)
        survives()
        for records in ([term, *block(1)], block(2, bytes(LOG_BYTES // 2)), block(3), block(4)):
            disk.execute(log.keep(records))
            survives()
        log.begin_compaction(BlockId(1, 4), [term, Head(BlockId(1, 4))])
        disk.execute(log.replace(Snapshot(BlockId(2, 9), VOTERS, b"state"), [term]))
        survives()
    disk.close()

    assert [len(each.blocks) for each in kept] == [0, 1, 2, 3, 4, 0]
    assert kept[-1].snapshot == Snapshot(BlockId(2, 9), VOTERS, b"state")


def test_what_a_killed_process_wrote_is_durable_once_it_was_found(data: Path) -> None:
    """Its write had ended, and not its sync."""
    power, disk = PowerLosses(data), metadata_of(data)
    with power.disk.recording():
        _, log = disk.recover(log_bytes=LOG_BYTES)
        (write,) = log.keep([Term(1), *block(1)])
        assert isinstance(write, Write)
        file = DirectFile.open(data / "metadata" / write.name, is_direct=False)
        file.write(memoryview(write.contents), write.position, is_durable=False)
        file.close()
        assert {len(found(image).blocks) for image in power.images()} == {0, 1}

        metadata_of(data).recover(log_bytes=LOG_BYTES)
        assert {len(found(image).blocks) for image in power.images()} == {1}
    disk.close()


def test_actions_that_a_full_disk_interrupted_may_run_again(data: Path) -> None:
    disk = metadata_of(data)
    _, log = disk.recover(log_bytes=LOG_BYTES)
    disk.execute(log.replace(Snapshot(BlockId(1, 1), VOTERS, b"before"), [Term(1)]))
    actions = log.replace(Snapshot(BlockId(2, 9), VOTERS, b"state"), [Term(2)])

    disk.execute(actions)
    once = found(data)
    disk.execute(actions)
    disk.close()

    assert [type(action) for action in actions] == [WriteSnapshot, Write, Remove]
    assert found(data) == once


def test_a_file_that_a_killed_process_made_has_a_durable_name_at_the_next_start(
    data: Path,
) -> None:
    """It died between the new name and the sync of the directory."""
    power = PowerLosses(data)
    with power.disk.recording():
        (data / "metadata").mkdir()
        for name in METADATA_LOGS:
            os.close(os.open(data / "metadata" / name, os.O_CREAT | os.O_WRONLY))
        disk = metadata_of(data)
        disk.recover(log_bytes=LOG_BYTES)
        names = [{path.name for path in (image / "metadata").iterdir()} for image in power.images()]
    disk.close()

    assert names == [set(METADATA_LOGS)] * IMAGES


def test_the_folders_of_a_new_data_directory_are_durable(tmp_path: Path) -> None:
    power = PowerLosses(tmp_path)
    root = tmp_path / "volume" / "broker"
    with power.disk.recording():
        DataDirectory(root).close()
        present = [(image / "volume/broker/data/metadata").is_dir() for image in power.images()]

    assert present == [True] * IMAGES


def test_a_damaged_file_of_the_journal_that_was_renamed_has_its_name_back_for_good(
    data: Path,
) -> None:
    journal = data / "journal"
    journal.mkdir()
    (journal / "0.journal.lost").write_bytes(b"x" * 2 * JOURNAL_BLOCK_BYTES)
    inventory = Inventory(data / INVENTORY_FILE, KnownFiles(("0.journal",)))
    power = PowerLosses(data)
    with power.disk.recording():
        check_journal(journal, inventory, boot=3, is_clean=False)
        names = [{path.name for path in (image / "journal").iterdir()} for image in power.images()]

    assert names == [{"0.journal", "0.journal.lost.3"}] * IMAGES


def test_a_loss_of_the_journal_that_was_accepted_is_so_once_for_good(data: Path) -> None:
    journal = data / "journal"
    journal.mkdir()
    (journal / "0.journal.lost").touch()
    inventory = Inventory(data / INVENTORY_FILE, KnownFiles(("0.journal",)))
    power = PowerLosses(data)
    with power.disk.recording():
        check_journal(journal, inventory, boot=3, is_clean=False)
        names = [{path.name for path in (image / "journal").iterdir()} for image in power.images()]

    assert names == [{"0.journal.lost.3"}] * IMAGES


def test_recorded_damage_of_a_partition_without_files_is_durable(data: Path) -> None:
    power = PowerLosses(data)
    directory = data / "topic" / "0"
    with power.disk.recording():
        save_damage(directory, RecordedDamage())
        present = [(image / "topic" / "0" / DAMAGE_FILE).exists() for image in power.images()]

    assert present == [True] * IMAGES


def test_a_cut_has_its_mark_until_the_new_segment_is_there_for_good(data: Path) -> None:
    """Whenever the power is lost."""
    path = segment_path(data / "topic" / "0", 2)
    path.parent.mkdir(parents=True)
    for segment in (segment_path(path.parent, 0), path):
        segment.write_bytes(b"batches")
    power = PowerLosses(data)
    with power.disk.recording():
        remove_from(path.parent, 2, is_direct=False)
    assert path.read_bytes() == b""

    for time in range(power.disk.tick()):
        for image in power.images(time):
            segment = image / path.relative_to(data)
            assert segment.exists() or segment.with_suffix(".cut").exists()


def test_the_mark_of_a_cut_that_a_killed_process_began_is_durable_before_segments_go(
    data: Path,
) -> None:
    directory = data / "topic" / "0"
    directory.mkdir(parents=True)
    segment = segment_path(directory, 0)
    for path in (segment, segment.with_suffix(".idx")):
        path.write_bytes(b"batches")
    power = PowerLosses(data)
    with power.disk.recording():
        segment.with_suffix(".cut").touch()
        finish_cut(directory, 0, is_direct=False)

    for time in range(power.disk.tick()):
        for image in power.images(time):
            left = {path.suffix for path in (image / "topic" / "0").iterdir()}
            assert left >= {".log", ".idx"} or ".cut" in left or not left


def test_rescued_batches_of_a_topic_without_files_are_durable(data: Path) -> None:
    power = PowerLosses(data)
    directory = data / "topic" / "0"
    batch = stamp_batch(body_of([Event(b"1")]), place_of()).contents()
    with power.disk.recording():
        save_rescued(directory, [batch])
        present = [(image / "topic" / "0" / RESCUED).exists() for image in power.images()]

    assert present == [True] * IMAGES


def test_rescued_batches_may_be_removed_twice(data: Path) -> None:
    (data / RESCUED).write_bytes(b"batches")

    remove_rescued(data)
    remove_rescued(data)

    assert list(data.iterdir()) == []


def test_a_larger_log_has_its_space_before_it_is_used(data: Path) -> None:
    """The zeros are durable, so that no later write needs space."""
    power, disk = PowerLosses(data), metadata_of(data)
    with power.disk.recording():
        disk.recover(log_bytes=LOG_BYTES)
        disk.close()
        disk = metadata_of(data)
        disk.recover(log_bytes=2 * LOG_BYTES)
        sizes = {
            path.stat().st_size
            for image in power.images()
            for path in (image / "metadata").iterdir()
        }
    disk.close()

    assert sizes == {2 * LOG_BYTES}


def test_each_step_of_a_deletion_and_a_restore_is_durable(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace_broker.storage.files.spare_files.SPARE_BYTES", 8192)
    power, trash = PowerLosses(data), Trash(data, lambda _: None)
    steps: list[tuple[Callable[[], None], set[str]]] = [
        (lambda: trash.mark(TOPIC, 1), {MARK}),
        (lambda: trash.bury(TOPIC.topic_id), {BURIED}),
        (lambda: trash.exhume(TOPIC), {MARK}),
        (lambda: trash.unmark(TOPIC.topic_id), set()),
    ]
    with power.disk.recording():
        for step, marks in steps:
            step()
            for image in power.images():
                assert {mark for mark in (MARK, BURIED) if (image / mark).exists()} == marks
