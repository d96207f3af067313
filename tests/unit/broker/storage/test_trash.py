from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tailrace_broker.core.metadata import new_topic
from tailrace_broker.model.errors import DiskFullError
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.storage.trash import Trash, topic_directories
from tests.storage import FaultyDisk

TOPICS = [new_topic(name, TopicSettings(), UUID(int=n)) for n, name in enumerate("abc", start=1)]
IDS = [str(topic.topic_id) for topic in TOPICS]


@pytest.fixture
def trash(tmp_path: Path) -> Trash:
    return Trash(tmp_path)


def delete(trash: Trash, data: Path, topic: Topic, deleted_us: int) -> None:
    """Mark and bury a topic of one record file."""
    segment = data / str(topic.topic_id) / "0" / f"{0:020d}.log"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"records")
    trash.mark(topic, deleted_us)
    trash.bury(topic.topic_id)


def buried(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "trash").iterdir())


def test_what_is_old_enough_is_purged_and_the_oldest_of_the_rest_is_told(
    trash: Trash, tmp_path: Path
) -> None:
    assert trash.purge(5) is None  # there is no trash yet
    for topic, deleted_us in zip(TOPICS, (5, 7, 6), strict=True):
        delete(trash, tmp_path, topic, deleted_us)

    assert trash.purge(4) == 5
    assert buried(tmp_path) == IDS
    assert trash.purge(5) == 6
    assert buried(tmp_path) == IDS[1:]
    assert trash.purge(6) == 7
    assert trash.purge(7) is None
    assert buried(tmp_path) == []


@pytest.mark.parametrize("call", ["rmdir", "unlink"])
def test_a_purge_that_fails_half_way_goes_on_at_the_next(
    trash: Trash, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(trash, tmp_path, TOPICS[0], 1)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr("os." + call, _fail)
        assert trash.purge(1) is None
    assert [entry["event"] for entry in logs] == ["topic.purged", "trash.failed"]
    assert buried(tmp_path) == [f"{IDS[0]}.purged"]

    assert trash.purge(1) is None
    assert buried(tmp_path) == []


def _fail(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("mark", [None, b"", b'{"topic": 5}'], ids=["missing", "empty", "wrong"])
def test_what_nobody_knows_the_age_of_is_kept_and_does_not_stop_the_others(
    trash: Trash, tmp_path: Path, mark: bytes | None
) -> None:
    for topic in TOPICS:
        delete(trash, tmp_path, topic, 1)
    path = tmp_path / "trash" / IDS[0] / "topic.json"
    path.unlink() if mark is None else path.write_bytes(mark)
    with capture_logs() as logs:
        assert trash.purge(1) is None

    assert buried(tmp_path) == IDS[:1]
    assert [entry["event"] for entry in logs].count("trash.failed") == 1


def test_a_mark_that_cannot_be_written_is_told(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)
    for call in ("fsync", "replace"):
        disk.fail(call, 28)
        with pytest.raises(DiskFullError):
            trash.mark(TOPICS[0], 1)
    assert not (tmp_path / IDS[0] / "topic.json").exists()
    trash.unmark(TOPICS[0].topic_id)


def test_interrupted_deletions_are_finished_and_nothing_else_is_touched(
    trash: Trash, tmp_path: Path
) -> None:
    marked, living, unknown = TOPICS
    trash.mark(marked, 1)
    trash.mark(living, 1)
    (tmp_path / str(unknown.topic_id)).mkdir()
    (tmp_path / "notes").mkdir()
    with capture_logs() as logs:
        trash.finish_deletions({living.topic_id})

    assert buried(tmp_path) == IDS[:1]
    assert [path.name for path in topic_directories(tmp_path)] == IDS[1:]
    assert not (tmp_path / IDS[1] / "topic.json").exists()
    assert (tmp_path / "notes").is_dir()
    assert logs == [
        {
            "event": "topic.unknown",
            "log_level": "warning",
            "path": str(tmp_path / str(unknown.topic_id)),
        }
    ]


def test_a_topic_buried_twice_is_no_error(trash: Trash, tmp_path: Path) -> None:
    """The first time its last sync failed."""
    delete(trash, tmp_path, TOPICS[0], 1)
    with capture_logs() as logs:
        trash.bury(TOPICS[0].topic_id)

    assert [entry["event"] for entry in logs] == ["trash.failed"]
    assert buried(tmp_path) == IDS[:1]


def test_a_mark_that_cannot_be_removed_is_told(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic, *_) = TOPICS
    trash.mark(topic, 1)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr("os.unlink", _fail)
        trash.finish_deletions({topic.topic_id})
    assert [entry["event"] for entry in logs] == ["trash.failed"]

    trash.finish_deletions({topic.topic_id})
    trash.finish_deletions({})
    assert not (tmp_path / "trash").exists()


def test_a_trash_that_cannot_be_listed_is_told(trash: Trash, tmp_path: Path) -> None:
    (tmp_path / "trash").write_bytes(b"")
    with capture_logs() as logs:
        assert trash.purge(1) is None

    assert [entry["event"] for entry in logs] == ["trash.failed"]
