import errno
import shutil
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tailrace_broker.model.errors import (
    DiskFullError,
    InvalidParameterError,
    NotInTrashError,
    StorageFailedError,
)
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.storage.trash import Trash, topic_directories
from tests.support.storage.storage import FaultyDisk, noted_syncs
from tests.support.storage.topics import new_topic

TOPICS = [new_topic(name, TopicSettings(), UUID(int=n)) for n, name in enumerate("abc", start=1)]
IDS = [str(topic.topic_id) for topic in TOPICS]


@pytest.fixture(autouse=True)
def small_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones take milliseconds to write."""
    monkeypatch.setattr("tailrace_broker.storage.files.spare_files.SPARE_BYTES", 8192)


@pytest.fixture
def trash(tmp_path: Path) -> Trash:
    return Trash(tmp_path, lambda _: None)


def delete(trash: Trash, data: Path, topic: Topic, deleted_us: int) -> None:
    """Mark and bury a topic of one record file."""
    segment = data / str(topic.topic_id) / "0" / f"{0:020d}.log"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"records")
    trash.mark(topic, deleted_us)
    trash.bury(topic.topic_id)


def buried(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "trash").iterdir())


def test_what_is_old_enough_is_purged_and_the_oldest_of_the_rest_is_reported(
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
    assert (trash.counters.purged_topics, trash.counters.purged_early_topics) == (3, 0)


def test_a_purged_topic_is_forgotten_before_nothing_records_it(tmp_path: Path) -> None:
    seen: list[tuple[UUID, list[str]]] = []
    trash = Trash(tmp_path, lambda topic_id: seen.append((topic_id, buried(tmp_path))))
    delete(trash, tmp_path, TOPICS[0], 1)
    trash.purge(1)

    assert seen == [(TOPICS[0].topic_id, [f"{IDS[0]}.purged"])]
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


def test_a_mark_that_cannot_be_written_is_reported(
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
    committed = new_topic("committed", TopicSettings(), UUID(int=4))
    trash.mark(marked, 1)
    trash.mark(living, 1)
    for topic in (unknown, committed):
        (tmp_path / str(topic.topic_id)).mkdir()
    (tmp_path / "notes").mkdir()
    with capture_logs() as logs:
        trash.finish_deletions({living.topic_id}, {committed.topic_id: (committed, 7)})

    assert buried(tmp_path) == [IDS[0], str(committed.topic_id)]
    assert [(each.deleted.topic, each.deleted.deleted_us) for each in trash.buried()] == [
        (committed, 7),
        (marked, 1),
    ]
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


def test_a_committed_deletion_that_cannot_be_marked_is_left_to_the_next_start(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic, *_) = TOPICS
    (tmp_path / IDS[0]).mkdir()
    FaultyDisk(monkeypatch).fail("replace")
    for expected in ([], IDS[:1]):
        trash.finish_deletions(set(), {topic.topic_id: (topic, 7)})
        assert [each.directory.name for each in trash.buried()] == expected


def test_a_burial_is_durable_in_both_directories(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(trash, tmp_path, TOPICS[0], 1)
    (tmp_path / "trash").mkdir()
    synced = noted_syncs(monkeypatch)
    trash.bury(TOPICS[0].topic_id)

    assert synced == [tmp_path / "trash", tmp_path]


def test_a_topic_buried_twice_is_no_error(trash: Trash, tmp_path: Path) -> None:
    """The first time its last sync failed."""
    delete(trash, tmp_path, TOPICS[0], 1)
    with capture_logs() as logs:
        trash.bury(TOPICS[0].topic_id)

    assert [entry["event"] for entry in logs] == ["trash.failed"]
    assert buried(tmp_path) == IDS[:1]


def test_a_mark_that_cannot_be_removed_is_reported(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic, *_) = TOPICS
    trash.mark(topic, 1)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr("os.unlink", _fail)
        trash.finish_deletions({topic.topic_id}, {})
    assert [entry["event"] for entry in logs] == ["trash.failed"]

    trash.finish_deletions({topic.topic_id}, {})
    trash.finish_deletions(set(), {})
    assert not (tmp_path / "trash").exists()


def test_a_trash_that_cannot_be_listed_is_reported(trash: Trash, tmp_path: Path) -> None:
    (tmp_path / "trash").write_bytes(b"")
    with capture_logs() as logs:
        assert trash.purge(1) is None

    assert [entry["event"] for entry in logs] == ["trash.failed"]


# --- restore --------------------------------------------------------------------------------------


def test_the_latest_deletion_is_listed_first(trash: Trash, tmp_path: Path) -> None:
    assert trash.buried() == []
    for topic, deleted_us in zip(TOPICS, (5, 7, 6), strict=True):
        delete(trash, tmp_path, topic, deleted_us)

    found = trash.buried()
    assert [each.deleted.topic for each in found] == [TOPICS[1], TOPICS[2], TOPICS[0]]
    assert [each.deleted.deleted_us for each in found] == [7, 6, 5]
    assert all(each.size_bytes() >= 4096 for each in found)


def test_a_deleted_topic_is_found_by_its_id_and_by_a_name_that_no_other_had(
    trash: Trash, tmp_path: Path
) -> None:
    namesake = new_topic("a", TopicSettings(), UUID(int=9))
    for deleted_us, topic in enumerate((*TOPICS, namesake)):
        delete(trash, tmp_path, topic, deleted_us)

    assert trash.find("b") == TOPICS[1]
    assert trash.find(IDS[0]) == TOPICS[0]
    assert trash.find(str(namesake.topic_id)) == namesake
    with pytest.raises(NotInTrashError, match="GET /v1/trash") as missing:
        trash.find("x")
    assert missing.value.members == {"topic": "x"}
    with pytest.raises(InvalidParameterError) as ambiguous:
        trash.find("a")
    assert ambiguous.value.members == {"parameter": "topic"}
    assert f"{namesake.topic_id}, {IDS[0]}" in ambiguous.value.detail


def test_an_exhumed_topic_is_where_it_was_and_still_marked(trash: Trash, tmp_path: Path) -> None:
    topic = TOPICS[0]
    delete(trash, tmp_path, topic, 1)
    for _ in range(2):
        trash.exhume(topic)

        assert buried(tmp_path) == []
        assert (tmp_path / IDS[0] / "0" / f"{0:020d}.log").read_bytes() == b"records"
        assert (tmp_path / IDS[0] / "topic.json").exists()
    trash.unmark(topic.topic_id)
    with pytest.raises(NotInTrashError):
        trash.exhume(topic)


@pytest.mark.parametrize("is_exhumed", [False, True])
def test_an_interrupted_restoration_is_finished(
    trash: Trash, tmp_path: Path, is_exhumed: bool
) -> None:
    topic = TOPICS[0]
    delete(trash, tmp_path, topic, 1)
    if is_exhumed:
        trash.exhume(topic)
    trash.finish_deletions({topic.topic_id}, {})

    assert buried(tmp_path) == []
    assert [path.name for path in topic_directories(tmp_path)] == IDS[:1]
    assert not (tmp_path / IDS[0] / "topic.json").exists()


@pytest.mark.parametrize("call", ["rename", "fsync"])
@pytest.mark.parametrize("is_at_start", [False, True])
def test_an_exhumation_that_fails_is_reported(
    trash: Trash, tmp_path: Path, call: str, is_at_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TOPICS[0]
    delete(trash, tmp_path, topic, 1)
    FaultyDisk(monkeypatch).fail(call)
    exhume = partial(trash.exhume, topic)
    at_start = partial(trash.finish_deletions, {topic.topic_id}, {})
    with pytest.raises(StorageFailedError):
        (at_start if is_at_start else exhume)()

    trash.finish_deletions(set(), {})
    assert buried(tmp_path) == IDS[:1]


# --- a full disk ----------------------------------------------------------------------------------


class TooMuch:
    """Work that a disk takes when so many topics have gone from the trash."""

    def __init__(self, data: Path, topics_max: int) -> None:
        self._data = data
        self._topics_max = topics_max

    def __call__(self) -> str:
        if len(buried(self._data)) > self._topics_max:
            raise DiskFullError("no space left")
        return "done"


def test_a_full_disk_empties_the_trash_as_far_as_it_must_the_oldest_first(
    trash: Trash, tmp_path: Path
) -> None:
    for topic, deleted_us in zip(TOPICS, (5, 7, 6), strict=True):
        delete(trash, tmp_path, topic, deleted_us)
    with capture_logs() as logs:
        assert trash.with_room(TooMuch(tmp_path, 3)) == "done"
        assert len(buried(tmp_path)) == 3
        assert trash.with_room(TooMuch(tmp_path, 1)) == "done"

    assert buried(tmp_path) == [IDS[1]]
    assert [(entry["event"], entry["topic"], entry["is_early"]) for entry in logs] == [
        ("topic.purged", "a", True),
        ("topic.purged", "c", True),
    ]
    counters = trash.counters
    assert (counters.purged_topics, counters.purged_early_topics) == (2, 2)
    assert counters.purged_bytes == sum(entry["size_bytes"] for entry in logs) > 0


def test_what_was_emptied_makes_room_for_spare_files_too(trash: Trash, tmp_path: Path) -> None:
    delete(trash, tmp_path, TOPICS[0], 1)
    shutil.rmtree(tmp_path / "spare", ignore_errors=True)

    trash.with_room(TooMuch(tmp_path, 0))

    spares = sorted(path.name for path in (tmp_path / "spare").iterdir())
    assert spares == ["directory-0", "directory-1", "file-0", "file-1"]


def test_when_the_trash_is_empty_a_full_disk_is_reported(trash: Trash, tmp_path: Path) -> None:
    with pytest.raises(DiskFullError):
        trash.with_room(_no_space)


def _no_space() -> None:
    raise DiskFullError("no space left")


def test_what_a_failed_removal_left_behind_goes_too(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(trash, tmp_path, TOPICS[0], 1)
    with monkeypatch.context() as patched:
        patched.setattr("os.rmdir", _fail)
        with capture_logs() as logs, pytest.raises(DiskFullError):
            trash.with_room(TooMuch(tmp_path, 0))
    assert [entry["event"] for entry in logs] == ["topic.purged", "trash.failed"]

    assert trash.with_room(TooMuch(tmp_path, 0)) == "done"


def test_a_trash_of_which_nothing_can_be_removed_does_not_hold_the_disk_for_ever(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(trash, tmp_path, TOPICS[0], 1)
    FaultyDisk(monkeypatch).fail("rename")
    with pytest.raises(DiskFullError):
        trash.with_room(TooMuch(tmp_path, 0))

    assert buried(tmp_path) == IDS[:1]


def test_what_another_thread_removed_meanwhile_is_enough(trash: Trash, tmp_path: Path) -> None:
    for topic in TOPICS:
        delete(trash, tmp_path, topic, 1)
    tries = []

    def work() -> None:
        tries.append(len(buried(tmp_path)))
        if len(tries) == 1:
            trash.with_room(TooMuch(tmp_path, 2))
            raise DiskFullError("no space left")

    trash.with_room(work)
    assert tries == [3, 2]


def test_a_deletion_on_a_full_disk_takes_no_space(
    trash: Trash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trash.spares.fill()
    disk = FaultyDisk(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr("os.mkdir", _mkdir_fails)
        disk.fail("open", errno.ENOSPC, skipped=1)  # the one before syncs a directory
        trash.mark(TOPICS[0], 1)
        trash.bury(TOPICS[0].topic_id)

    assert trash.find("a") == TOPICS[0]


def _mkdir_fails(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def mark(trash: Trash, data: Path, topic: Topic, deleted_us: int) -> None:
    """Mark a topic of one record file where it is."""
    segment = data / str(topic.topic_id) / "0" / f"{0:020d}.log"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"records")
    trash.mark(topic, deleted_us)


def test_what_is_kept_in_its_place_can_be_found_and_only_the_ring_removes_it(
    tmp_path: Path,
) -> None:
    forgotten: list[UUID] = []
    trash = Trash(tmp_path, forgotten.append)
    delete(trash, tmp_path, TOPICS[0], 6)
    mark(trash, tmp_path, TOPICS[1], 5)

    trash.finish_deletions(set(), {}, {TOPICS[1].topic_id})
    assert [each.deleted.topic for each in trash.restorable()] == TOPICS[:2]
    assert trash.find("b") == TOPICS[1]
    assert trash.purge(10) is None
    assert [each.directory for each in trash.restorable()] == [tmp_path / IDS[1]]

    trash.discard(TOPICS[1])
    trash.discard(TOPICS[1])
    assert trash.restorable() == []
    assert trash.gone([TOPICS[1].topic_id])
    assert forgotten == [TOPICS[0].topic_id, TOPICS[1].topic_id]


def test_what_is_kept_goes_when_the_ring_forgets_it_though_the_disk_was_too_full_to_mark_it(
    trash: Trash, tmp_path: Path
) -> None:
    """Its space may be what the disk is full of."""
    directory = tmp_path / IDS[0]
    directory.mkdir()
    (directory / "segment").write_bytes(b"records")

    trash.discard(TOPICS[0])
    assert not directory.exists()
    assert buried(tmp_path) == []
    assert (trash.counters.purged_topics, trash.counters.purged_early_topics) == (1, 0)


def test_a_full_disk_without_trash_asks_for_what_is_kept(trash: Trash, tmp_path: Path) -> None:
    mark(trash, tmp_path, TOPICS[1], 5)
    asked: list[bool] = []
    trash.on_full = lambda: asked.append(True)

    def work() -> None:
        raise DiskFullError("full")

    with pytest.raises(DiskFullError):
        trash.with_room(work)
    assert asked == [True]
    assert [each.directory for each in trash.restorable()] == [tmp_path / IDS[1]]
