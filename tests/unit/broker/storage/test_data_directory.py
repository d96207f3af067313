import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tailrace_broker.model.errors import (
    CorruptMetadataError,
    DataDirectoryInUseError,
    DiskFullError,
    InvalidSettingError,
    StorageFailedError,
)
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage import data_directory
from tailrace_broker.storage.data_directory import DataDirectory, PreviousEnd
from tests.support.storage.batches import TOPIC_ID
from tests.support.storage.storage import FaultyDisk
from tests.support.storage.topics import new_topic

TOPIC = new_topic("orders", TopicSettings(partitions_per_range=3, json_check=False), TOPIC_ID)


@pytest.fixture(autouse=True)
def small_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones take milliseconds to write."""
    monkeypatch.setattr("tailrace_broker.storage.files.spare_files.SPARE_BYTES", 8192)


def reopened(directory: DataDirectory, root: Path) -> DataDirectory:
    directory.close()
    return DataDirectory(root)


def test_a_new_directory_gets_an_identity_that_it_keeps(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "new", ordinal=2)
    identity = directory.identity
    directory.close()
    directory = DataDirectory(tmp_path / "new", ordinal=2)
    other = DataDirectory(tmp_path / "other")

    assert directory.identity == identity
    assert (identity.ordinal, other.identity.ordinal) == (2, 0)
    assert identity.cluster_id is None
    assert other.identity.incarnation != identity.incarnation
    directory.close()
    other.close()


def test_a_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    DataDirectory(tmp_path, ordinal=1).close()
    with pytest.raises(InvalidSettingError, match="the disk of broker 1, not of 2; give each"):
        DataDirectory(tmp_path, ordinal=2)

    DataDirectory(tmp_path, ordinal=1).close()


def test_a_directory_belongs_to_one_ring(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    for _ in range(2):
        directory.belong_to(UUID(int=5))
        directory = reopened(directory, tmp_path)
        assert directory.identity.cluster_id == UUID(int=5)
    with pytest.raises(CorruptMetadataError, match=r"the ring .*5, but .*of the ring .*6"):
        directory.belong_to(UUID(int=6))
    directory.close()


def test_starts_are_counted(tmp_path: Path) -> None:
    for boot in range(1, 5):
        directory = DataDirectory(tmp_path)
        directory.begin_boot()
        assert directory.identity.boot == boot
        stored = json.loads((tmp_path / "data" / "meta.json").read_text())
        assert stored["boot"] == boot
        directory.close()


def test_a_start_on_a_full_disk_takes_a_spare_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = DataDirectory(tmp_path)
    directory.begin_boot()
    disk = FaultyDisk(monkeypatch)
    for boot in (2, 3):
        disk.fail("open", errno.ENOSPC)
        directory.begin_boot()
        assert directory.identity.boot == boot
        assert json.loads((tmp_path / "data" / "meta.json").read_text())["boot"] == boot
    before = directory.identity
    for call, error, kind in (
        ("open", errno.ENOSPC, DiskFullError),  # there were two
        ("replace", errno.EIO, StorageFailedError),
    ):
        disk.fail(call, error)
        with pytest.raises(kind, match=r"meta\.json"):
            directory.begin_boot()
        assert directory.identity == before
    directory.close()


# --- starts that the ring may not know ------------------------------------------------------------


def test_each_start_is_reported_with_what_came_before_it(tmp_path: Path) -> None:
    boot(tmp_path)
    boot(tmp_path, log_ends=ENDS)
    boot(tmp_path)
    directory = DataDirectory(tmp_path)
    starts = directory.identity.starts

    assert [start.loss for start in starts] == ["disk", "process", "clean"]
    assert len({start.id for start in starts}) == 3
    directory.close()


def test_starts_before_the_registered_one_are_forgotten(tmp_path: Path) -> None:
    for _ in range(4):
        boot(tmp_path)
    directory = DataDirectory(tmp_path)
    starts = directory.identity.starts
    for kept in (starts[2:], starts[3:]):
        directory.keep_starts_from(kept[0].id)
        directory = reopened(directory, tmp_path)
        assert directory.identity.starts == kept
        directory.keep_starts_from(UUID(int=1))  # of none that is known
        assert directory.identity.starts == kept
    directory.close()


def test_of_very_many_starts_the_first_and_every_loss_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_directory, "STARTS_MAX", 4)
    boot(tmp_path)
    boot(tmp_path)
    meta = tmp_path / "data" / "meta.json"
    known = json.loads(meta.read_text())
    known["starts"][1][1] = "power"
    meta.write_text(json.dumps(known))
    for _ in range(6):
        boot(tmp_path)
    starts = [tuple(start) for start in json.loads(meta.read_text())["starts"]]

    assert starts[0] == tuple(known["starts"][0])
    assert [loss for _, loss in starts] == ["disk", "power", "process", "process"]


# --- how the boot before ended --------------------------------------------------------------------

ENDS: dict[UUID, list[int | None]] = {TOPIC_ID: [5, None], UUID(int=7): []}


def boot(root: Path, *, log_ends: dict[UUID, list[int | None]] | None = None) -> PreviousEnd:
    """Start and stop, cleanly where the log ends are given; how the one before ended."""
    directory = DataDirectory(root)
    restart = directory.begin_boot()
    if log_ends is not None:
        directory.end_boot(log_ends)
    directory.close()
    return restart


def test_a_start_knows_how_the_one_before_ended(tmp_path: Path) -> None:
    assert boot(tmp_path, log_ends=ENDS) == ("disk", {})
    assert boot(tmp_path) == ("clean", ENDS)
    assert boot(tmp_path) == ("process", {})
    assert boot(tmp_path, log_ends={}) == ("process", {})
    assert boot(tmp_path) == ("clean", {})


def test_a_kernel_that_has_booted_since_is_a_loss_of_power(tmp_path: Path) -> None:
    boot(tmp_path)
    meta = tmp_path / "data" / "meta.json"
    known = json.loads(meta.read_text())
    assert known["kernelBootId"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for kernel_boot_id in ("another", ""):
        meta.write_text(json.dumps({**known, "kernelBootId": kernel_boot_id}))
        assert boot(tmp_path, log_ends=ENDS) == ("power", {})
        # A clean stop is one whatever the kernel did afterwards.
        known = json.loads(meta.read_text())
        meta.write_text(json.dumps({**known, "kernelBootId": "another"}))
        assert boot(tmp_path) == ("clean", ENDS)
        known = json.loads(meta.read_text())


def test_a_loss_of_power_counts_until_the_ring_knows_a_later_start(tmp_path: Path) -> None:
    """Until then no start may have recovered the logs."""
    boot(tmp_path)
    meta = tmp_path / "data" / "meta.json"
    boot(tmp_path)
    known = json.loads(meta.read_text())
    meta.write_text(json.dumps({**known, "kernelBootId": "another"}))
    boot(tmp_path)
    directory = DataDirectory(tmp_path)
    found = [directory.begin_boot().kind, directory.has_lost_power]
    directory.keep_starts_from(directory.identity.starts[-1].id)
    found.append(directory.has_lost_power)
    directory.close()

    assert found == ["process", True, False]


@pytest.mark.parametrize("stored", [b"", b"{", b'{"boot":1,"logEnds":{},"version":2}', b"\0" * 50])
def test_a_stop_marker_that_cannot_be_read_counts_as_none(tmp_path: Path, stored: bytes) -> None:
    boot(tmp_path, log_ends=ENDS)
    (tmp_path / "data" / "clean-stop.json").write_bytes(stored)

    assert boot(tmp_path) == ("process", {})


def test_a_stop_marker_of_another_boot_counts_as_none(tmp_path: Path) -> None:
    """An old copy was put back."""
    boot(tmp_path, log_ends=ENDS)
    marker = tmp_path / "data" / "clean-stop.json"
    kept = marker.read_bytes()
    boot(tmp_path)
    marker.write_bytes(kept)

    assert boot(tmp_path) == ("process", {})


def test_the_stop_marker_is_gone_before_anything_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(tmp_path, log_ends=ENDS)
    directory = DataDirectory(tmp_path)
    FaultyDisk(monkeypatch).fail("unlink")
    with pytest.raises(StorageFailedError, match=r"clean-stop\.json"):
        directory.begin_boot()
    directory.close()

    boot(tmp_path)
    assert not (tmp_path / "data" / "clean-stop.json").exists()


# --- the ring's metadata -------------------------------------------------------------------------


def test_metadata_is_not_missed_before_there_was_any(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.check_metadata()
    directory.begin_boot()
    directory.check_metadata()
    directory.close()


def test_metadata_that_is_lost_is_reported(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.belong_to(UUID(int=5))
    with pytest.raises(CorruptMetadataError, match=r"metadata has lost committed metadata"):
        directory.check_metadata()

    (directory.metadata_path / "0-0.snapshot").touch()
    directory.check_metadata()
    directory.close()


def test_a_second_broker_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryInUseError, match="in use by another broker; stop it"):
        DataDirectory(tmp_path)

    reopened(first, tmp_path).close()


def foreign_version(stored: bytes) -> bytes:
    return json.dumps(json.loads(stored) | {"version": 9}).encode()


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda stored: stored[:-10],
    "not JSON": lambda stored: b"\0" * len(stored),
    "not UTF-8": lambda stored: stored.replace(b': "', b': "\xff', 1),
    "another shape": lambda _: b"[]",
    "a foreign version": foreign_version,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_identity_that_is_unreadable_is_refused_and_kept(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    DataDirectory(tmp_path).close()
    path = tmp_path / "data" / "meta.json"
    changed = change(path.read_bytes())
    path.write_bytes(changed)

    with pytest.raises(CorruptMetadataError, match=r"meta\.json"):
        DataDirectory(tmp_path)
    assert path.read_bytes() == changed


def test_a_damaged_identity_is_refused_with_its_path_and_the_ways_on(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    data = tmp_path / "data"
    path = data / "meta.json"
    stored = path.read_bytes()
    path.write_bytes(stored[:-5])
    with pytest.raises(CorruptMetadataError) as damaged:
        DataDirectory(tmp_path)
    path.write_bytes(foreign_version(stored))
    with pytest.raises(CorruptMetadataError) as foreign:
        DataDirectory(tmp_path)

    assert damaged.value.detail == (
        f"{path} cannot be read: Input data was truncated; restore the file from a copy, or move "
        f"the data away: mv {data} {data}.lost; the broker then begins again, empty"
    )
    assert foreign.value.detail.startswith(f"{path}: format version ")
    assert "mv" not in foreign.value.detail


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("mine")
    with pytest.raises(StorageFailedError, match="/root: "):
        DataDirectory(tmp_path / "root")


def test_nothing_of_a_partition_exists_before_its_first_record(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    path = directory.partition_path(TOPIC.topic_id, 2)

    assert path == tmp_path / "data" / str(TOPIC_ID) / "2"
    assert not path.exists()
    directory.close()


def test_lost_metadata_is_refused_when_a_topic_has_data(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.partition_path(TOPIC_ID, 0).mkdir(parents=True)
    with pytest.raises(CorruptMetadataError, match=r"metadata is empty, .* restore its files"):
        directory.check_metadata()

    directory.close()


def test_a_lost_identity_is_refused_when_there_is_metadata(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    (directory.metadata_path / "0.blocks").touch()
    (tmp_path / "data" / "meta.json").unlink()

    with pytest.raises(CorruptMetadataError, match=r"meta\.json is missing"):
        reopened(directory, tmp_path)


def test_a_lost_identity_is_refused_when_there_is_a_topics_data(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.partition_path(TOPIC_ID, 0).mkdir(parents=True)
    (tmp_path / "data" / "meta.json").unlink()

    with pytest.raises(CorruptMetadataError, match=r"meta\.json is missing"):
        reopened(directory, tmp_path)


def test_the_trash_holds_no_topic(tmp_path: Path) -> None:
    """A new directory's first topic may be deleted before another is saved."""
    directory = DataDirectory(tmp_path)
    directory.trash.mark(TOPIC, 1)
    directory.trash.bury(TOPIC_ID)

    directory.check_metadata()
    directory.close()


def test_the_disk_is_reported_as_df_reports_it(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    disk_bytes = directory.disk_bytes()
    directory.close()
    disk = shutil.disk_usage(tmp_path)

    assert disk_bytes is not None
    used_bytes, all_bytes = disk_bytes
    assert all_bytes == disk.total
    assert 0 < used_bytes <= all_bytes


def test_a_disk_that_does_not_answer_has_no_size(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.path.rename(tmp_path / "elsewhere")
    disk_bytes = directory.disk_bytes()
    directory.close()

    assert disk_bytes is None


def test_the_disk_of_a_broker_that_has_left_is_set_aside(tmp_path: Path) -> None:
    """And takes the place of the one that was set aside before."""
    incarnations = []
    for _ in range(3):
        directory = DataDirectory(tmp_path, ordinal=2)
        incarnations.append(directory.identity.incarnation)
        (directory.path / "kept").write_text(str(directory.identity.incarnation))
        directory.mark_retired()
        directory.close()
    directory = DataDirectory(tmp_path, ordinal=2)

    assert len({*incarnations, directory.identity.incarnation}) == 4
    assert not (directory.path / "kept").exists()
    assert (tmp_path / "retired" / "kept").read_text() == str(incarnations[-1])
    directory.close()


def test_a_disk_that_cannot_be_marked_as_retired_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = DataDirectory(tmp_path)

    def refuse(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(data_directory, "sync_directory", refuse)
    with pytest.raises(StorageFailedError, match="Input/output error"):
        directory.mark_retired()
    directory.close()
