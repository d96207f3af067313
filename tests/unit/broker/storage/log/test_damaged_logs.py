from pathlib import Path
from uuid import UUID

import pytest

from tailrace_broker.model.replication import LogKey
from tailrace_broker.storage.data_directory import DataDirectory
from tests.support.storage.storage import noted_syncs

KEY = LogKey(UUID(int=7), 3)


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path)


def write(directory: DataDirectory, content: str) -> Path:
    """Make a log with one file, as the inventory knows it."""
    path = directory.partition_path(*KEY) / "00000000000000000000.log"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    directory.inventory.add_segments([(*KEY, 0)])
    return path


def test_a_marked_log_is_to_be_set_aside_by_the_next_process_too(directory: DataDirectory) -> None:
    write(directory, "damaged")
    assert not directory.damaged.is_to_be_set_aside(KEY)

    directory.damaged.mark(KEY)
    directory.close()

    again = DataDirectory(directory.path.parent)
    assert again.damaged.is_to_be_set_aside(KEY)
    assert again.damaged.known == {KEY}


def test_a_log_is_marked_where_it_is_unless_its_topic_is_gone(directory: DataDirectory) -> None:
    topic = directory.partition_path(*KEY).parent
    assert not directory.damaged.mark_in_place(KEY)
    assert not topic.exists()

    write(directory, "damaged")
    assert directory.damaged.mark_in_place(KEY)
    assert directory.damaged.is_to_be_set_aside(KEY)


def test_what_was_set_aside_first_is_kept_until_it_is_removed(directory: DataDirectory) -> None:
    path = write(directory, "damaged")
    marker = path.parent.with_name("3.damaged")

    directory.damaged.set_aside(KEY)
    assert not path.parent.exists()
    assert (marker / "log" / path.name).read_text() == "damaged"
    assert directory.inventory.newest_segment(*KEY) is None
    assert not directory.damaged.is_to_be_set_aside(KEY)
    assert directory.damaged.known == directory.damaged.unreset == {KEY}

    write(directory, "fetched, and damaged")
    directory.damaged.mark(KEY)
    assert directory.damaged.is_to_be_set_aside(KEY)
    directory.damaged.set_aside(KEY)
    assert not directory.damaged.is_to_be_set_aside(KEY)
    assert not path.parent.exists()
    assert (marker / "log" / path.name).read_text() == "damaged"

    directory.damaged.remove(KEY)
    assert not marker.exists()
    assert directory.damaged.known == set()


def test_a_log_has_its_new_name_durably_before_it_loses_the_old_one(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = write(directory, "damaged").parent.parent
    marker = topic / "3.damaged"
    synced = noted_syncs(monkeypatch)
    directory.damaged.set_aside(KEY)

    made, moved = [topic.parent, marker, topic], [marker, topic]
    assert synced[:5] == made + moved


def test_a_log_without_files_can_be_set_aside_and_its_topic_may_be_gone(
    directory: DataDirectory,
) -> None:
    directory.damaged.set_aside(KEY)
    assert directory.damaged.known == {KEY}

    directory.damaged.remove(KEY)
    directory.damaged.remove(KEY)
    assert not directory.damaged.is_to_be_set_aside(KEY)


def test_of_a_topic_that_is_gone_nothing_is_known(directory: DataDirectory) -> None:
    directory.damaged.set_aside(KEY)

    directory.damaged.forget(KEY)
    assert directory.damaged.known == directory.damaged.unreset == set()
