from pathlib import Path

import pytest

from tailrace.wire import LOG_START_FILE
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.errors import CorruptMetadataError, ReadFailedError, StorageFailedError
from tailrace_broker.storage.files.direct_file import write_file_atomically
from tailrace_broker.storage.log.trim import (
    load_log_start,
    log_start_in,
    remove_segments,
    save_log_start,
)
from tests.support.storage.storage import FaultyDisk

START = LogStart(log_start=70, first_segment=60, epoch_before=2, append_time_before_us=5)


def test_a_log_start_that_was_saved_comes_back(tmp_path: Path) -> None:
    assert load_log_start(tmp_path) is None
    save_log_start(tmp_path, START, write_file_atomically)
    assert load_log_start(tmp_path) == START


def test_a_log_start_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOG_START_FILE).write_bytes(b"{")
    with pytest.raises(CorruptMetadataError, match=r"log-start\.json"):
        load_log_start(tmp_path)

    (tmp_path / LOG_START_FILE).unlink()
    (tmp_path / LOG_START_FILE).mkdir()
    with pytest.raises(ReadFailedError, match=r"log-start\.json"):
        load_log_start(tmp_path)


FIRST = SegmentState(0, 5, last_epoch=2, last_append_time_us=7)
SECOND = SegmentState(5, 9, last_epoch=3, last_append_time_us=8)
BEHIND_LOSS = SegmentState(12, 15, last_epoch=4, last_append_time_us=9)


@pytest.mark.parametrize(
    ("log_start", "expected", "count"),
    [
        (0, LogStart(0, 0, 1, 4), 0),
        (4, LogStart(4, 0, 1, 4), 0),
        (5, LogStart(5, 5, 2, 7), 1),
        (8, LogStart(8, 5, 2, 7), 1),
        (11, LogStart(11, 5, 2, 7), 1),
        (12, LogStart(12, 12, 3, 8, is_behind_damage=True), 2),
        (15, LogStart(15, 12, 3, 8, is_behind_damage=True), 2),
    ],
)
def test_segments_that_end_below_the_log_start_go(
    log_start: int, expected: LogStart, count: int
) -> None:
    """The one that holds it stays. Which epoch was lost before a segment is not known."""
    segments = [FIRST, SECOND, BEHIND_LOSS]
    assert log_start_in(segments, LogStart(0, 0, 1, 4), log_start) == (expected, count)


def test_segments_go_with_their_indexes_and_what_is_gone_is_passed_over(tmp_path: Path) -> None:
    for name in ("1.log", "1.idx", "2.log", "3.idx", "4.log"):
        (tmp_path / name).touch()
    remove_segments(tmp_path / f"{number}.log" for number in (1, 2, 3, 5))

    assert [path.name for path in tmp_path.iterdir()] == ["4.log"]


@pytest.mark.parametrize("skipped", range(3))
def test_a_removal_that_fails_says_so_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: int
) -> None:
    paths = [tmp_path / name for name in ("1.log", "2.log")]
    for path in paths:
        path.touch()
    disk = FaultyDisk(monkeypatch)
    disk.fail("unlink", skipped=skipped)
    with pytest.raises(StorageFailedError, match=r"\d\.log"):
        remove_segments(paths)

    remove_segments(paths)
    assert list(tmp_path.iterdir()) == []
