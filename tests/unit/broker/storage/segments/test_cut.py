"""What the removal of segments leaves when it ends anywhere, and how a start finishes it."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.model.errors import StorageFailedError
from tailrace_broker.storage.files.writes_under_way import IoThread
from tailrace_broker.storage.inspection.logs import check_log
from tailrace_broker.storage.log.recovery import LogEvidence
from tailrace_broker.storage.segments.cut import finish_cut, remove_from, unfinished_cut
from tests.support.storage.batches import PARTITION, TOPIC_ID
from tests.support.storage.storage import FaultyDisk, LogFiles, append
from tests.support.waits import WAIT_S


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    """Segments at 0, 2 and 4."""
    files = LogFiles(tmp_path)
    writer = files.writer(segment_bytes=2 * 4096)
    for number in range(5):
        append(writer, [b"%d" % number])
    writer.close()
    files.inventory.cut_segments(TOPIC_ID, PARTITION, None)
    return files


def names(files: LogFiles) -> list[str]:
    return [path.name.lstrip("0") for path in sorted(files.place.directory.iterdir())]


def test_an_empty_segment_begins_at_the_cut(files: LogFiles) -> None:
    remove_from(files.place.directory, 2, is_direct=files.is_direct)

    assert names(files) == [".idx", ".log", "2.log"]
    assert files.values() == [b"0", b"1"]


def test_nothing_is_left_of_a_log_that_is_cut_at_its_start(files: LogFiles) -> None:
    remove_from(files.place.directory, 0, is_direct=files.is_direct)

    assert names(files) == []
    assert files.values() == []


@pytest.mark.parametrize("call", ["unlink", "fsync", "open"])
@pytest.mark.parametrize("skipped", range(5))
def test_a_start_finishes_what_a_mark_says(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch, call: str, skipped: int
) -> None:
    disk, before = FaultyDisk(monkeypatch), names(files)
    disk.fail(call, skipped=skipped)
    try:
        remove_from(files.place.directory, 2, is_direct=files.is_direct)
    except StorageFailedError:
        disk.forget_faults()
        if not any(path.suffix == ".cut" for path in files.place.directory.iterdir()):
            assert names(files) == before
            return  # not begun
    disk.forget_faults()
    assert check_log(files.place, LogEvidence(0), None, files.pool) == []
    assert files.values() == [b"0", b"1"]
    assert names(files) == [".idx", ".log", "2.log"]


def test_a_removal_that_hangs_on_a_disk_that_stalls_counts_as_a_write(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[float | None] = []
    real = os.unlink

    def unlink(*args: Any, **options: Any) -> None:
        marks.append(thread.writes_since_s)
        real(*args, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    cut = partial(remove_from, files.place.directory, 2, is_direct=files.is_direct)
    thread = IoThread(target=cut)
    thread.start()
    thread.join(WAIT_S)

    assert marks
    assert None not in marks


def test_the_lowest_mark_counts(files: LogFiles) -> None:
    directory = files.place.directory
    for offset in (4, 2):
        files.segment(offset).with_suffix(".cut").touch()
    end = unfinished_cut([path.name for path in directory.iterdir()])

    assert end == 2
    finish_cut(directory, end, is_direct=files.is_direct)
    assert names(files) == [".idx", ".log", "2.log"]
    assert unfinished_cut([path.name for path in directory.iterdir()]) is None
