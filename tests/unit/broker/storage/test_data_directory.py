import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tailrace_broker.core.metadata import new_topic
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    DataDirectoryInUseError,
    DiskFullError,
    StorageFailedError,
)
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.storage.data_directory import DataDirectory, Restart
from tests.batches import TOPIC_ID
from tests.storage import FaultyDisk

TOPIC = new_topic("orders", TopicSettings(partitions_per_range=3, json_check=False), TOPIC_ID)
OTHER_TOPIC = new_topic("flights", TopicSettings(), UUID(int=7))


@pytest.fixture(autouse=True)
def small_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones take milliseconds to write."""
    monkeypatch.setattr("tailrace_broker.storage.spare_files.SPARE_BYTES", 8192)


def reopened(directory: DataDirectory, root: Path) -> DataDirectory:
    directory.close()
    return DataDirectory(root)


def test_a_new_directory_gets_an_identity_that_it_keeps(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "new")
    identity = directory.identity
    directory = reopened(directory, tmp_path / "new")
    other = DataDirectory(tmp_path / "other")

    assert directory.identity == identity
    assert other.identity.incarnation != identity.incarnation
    assert other.identity.cluster_id != identity.cluster_id
    directory.close()
    other.close()


def test_starts_are_counted(tmp_path: Path) -> None:
    for boot in range(1, 5):
        directory = DataDirectory(tmp_path)
        directory.begin_boot()
        assert directory.identity.boot == boot
        stored = json.loads((tmp_path / "data" / "meta.json").read_text())
        assert stored["boot"] == boot
        directory.close()


def test_a_start_on_a_full_disk_takes_a_spare_file_or_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there can still be read."""
    directory = DataDirectory(tmp_path)
    directory.begin_boot()
    disk = FaultyDisk(monkeypatch)
    for boot in (2, 3, 3):  # there are two
        disk.fail("open", errno.ENOSPC)
        directory.begin_boot()
        assert directory.identity.boot == boot
        assert json.loads((tmp_path / "data" / "meta.json").read_text())["boot"] == boot

    disk.fail("replace", errno.EIO)
    with pytest.raises(StorageFailedError, match=r"meta\.json"):
        directory.begin_boot()
    directory.close()


# --- how the boot before ended --------------------------------------------------------------------

ENDS: dict[UUID, list[int | None]] = {TOPIC_ID: [5, None], UUID(int=7): []}


def boot(root: Path, *, log_ends: dict[UUID, list[int | None]] | None = None) -> Restart:
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


def test_topics_come_back_as_they_were_saved(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert directory.load_topics() == []
    for topics in ([TOPIC], [TOPIC, OTHER_TOPIC]):
        directory.save_topics(topics)
        directory = reopened(directory, tmp_path)
        assert directory.load_topics() == topics
    directory.close()


def test_a_second_broker_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryInUseError, match="in use by another broker; stop it"):
        DataDirectory(tmp_path)

    reopened(first, tmp_path).close()


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_topics_that_cannot_be_saved_leave_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    directory = DataDirectory(tmp_path)
    directory.save_topics([TOPIC])
    disk = FaultyDisk(monkeypatch)
    disk.fail(call, 28)
    with pytest.raises(DiskFullError):
        directory.save_topics([TOPIC, OTHER_TOPIC], may_use_spare=False)

    assert directory.load_topics() == [TOPIC]
    directory.close()


def foreign_version(stored: bytes) -> bytes:
    return json.dumps(json.loads(stored) | {"version": 2}).encode()


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda stored: stored[:-10],
    "not JSON": lambda stored: b"\0" * len(stored),
    "not UTF-8": lambda stored: stored.replace(b': "', b': "\xff', 1),
    "another shape": lambda _: b"[]",
    "a foreign version": foreign_version,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("name", ["meta.json", "metadata/topics.json"])
def test_a_file_that_is_unreadable_is_refused_and_kept(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    directory = DataDirectory(tmp_path)
    directory.save_topics([TOPIC])
    directory.close()
    path = tmp_path / "data" / name
    changed = change(path.read_bytes())
    path.write_bytes(changed)

    def load() -> list[Topic]:
        return DataDirectory(tmp_path).load_topics()

    with pytest.raises(CorruptMetadataError, match=name):
        load()
    assert path.read_bytes() == changed


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


def test_a_lost_topics_file_is_refused_when_a_topic_has_data(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.partition_path(TOPIC_ID, 0).mkdir(parents=True)
    with pytest.raises(CorruptMetadataError, match=r"topics\.json is missing, .* restore the file"):
        directory.load_topics()

    directory.save_topics([TOPIC])
    assert directory.load_topics() == [TOPIC]
    directory.close()


def test_a_lost_identity_is_refused_when_there_are_topics(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.save_topics([TOPIC])
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

    assert directory.load_topics() == []
    directory.close()


def test_the_disk_is_told_as_df_tells_it(tmp_path: Path) -> None:
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
