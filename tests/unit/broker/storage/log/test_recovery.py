import errno
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.model.damage import Loss, LostEnd
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    ReadFailedError,
)
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES, write_file_atomically
from tailrace_broker.storage.log.damage_file import record_loss
from tailrace_broker.storage.log.recovery import UNKNOWN_OFFSETS_MAX
from tailrace_broker.storage.log.trim import save_log_start
from tailrace_broker.storage.segments.scan import SCAN_WINDOW_BYTES
from tests.support.storage.batches import PARTITION, TIME_US, Event, body_of, place_of
from tests.support.storage.storage import FaultyDisk, LogFiles, append

# Batches of no compression: one inside a block, one over several, one that ends within a block.
LAST_WRITE = [[b"c"], [os.urandom(2 * BLOCK_BYTES)], [b"d", b"e"], [os.urandom(5000)], [b"f"]]
LAST_VALUES = [value for values in LAST_WRITE for value in values]
# What of the last write is there when so many of its batches are.
KEPT_VALUES = [
    [value for values in LAST_WRITE[:count] for value in values]
    for count in range(len(LAST_WRITE) + 1)
]
# What brokers of before wrote.
GOLDEN = Path(__file__).parents[4] / "golden" / "formats"
GARBAGE = random.Random(5).randbytes(3 * BLOCK_BYTES)


def written(files: LogFiles, *writes: list[list[bytes]]) -> list[bytes]:
    """Append the writes to a new segment; the bytes of each."""
    writer = files.writer()
    ends = [0]
    for batches in writes:
        append(writer, *batches)
        ends.append(writer.segments[-1].position)
    writer.close()
    stored = files.segment().read_bytes()[: ends[-1]]
    return [stored[start:end] for start, end in pairwise(ends)]


def segments_of(files: LogFiles) -> list[Path]:
    """The segment files that are there."""
    return sorted(files.place.directory.glob("*.log"))


def recovered_values(files: LogFiles) -> list[bytes | None]:
    """Recover twice: the second time finds what the first left, and changes nothing."""
    values = files.values()
    contents = files.contents()

    assert files.values() == values
    assert files.contents() == contents
    segments = [each for name, each in contents.items() if name.endswith(".log")]
    assert all(len(each) % BLOCK_BYTES == 0 for each in segments)
    return values


def assert_stands_still(files: LogFiles) -> None:
    """The partition is refused, and its files stay as they are."""
    contents = files.contents()
    with pytest.raises(CorruptPartitionError) as refused:
        files.recover()

    assert refused.value.members == {"topic": "topic", "partition": PARTITION}
    assert files.contents() == contents


# --- the last write is torn -----------------------------------------------------------------------


def test_a_log_without_files_is_empty(files: LogFiles) -> None:
    (state,) = files.recover(first_offset=7)
    assert (state.base_offset, state.end_offset, state.position) == (7, 7, 0)
    assert not files.place.directory.exists()


def test_zeros_behind_the_last_write_are_no_records(files: LogFiles) -> None:
    (stored,) = written(files, [[b"a"]])
    files.write_segment(stored + bytes(3 * BLOCK_BYTES))

    assert recovered_values(files) == [b"a"]
    assert files.segment().stat().st_size == BLOCK_BYTES


@pytest.mark.parametrize("tail", [b"", bytes(8 * BLOCK_BYTES), GARBAGE], ids=["", "zeros", "bytes"])
def test_a_last_write_that_ends_at_any_block_leaves_its_first_batches(
    files: LogFiles, tail: bytes
) -> None:
    before, last = written(files, [[b"a"], [b"b"]], LAST_WRITE)
    for end in range(0, len(last) + 1, BLOCK_BYTES):
        files.write_segment(before + last[:end] + tail)
        values = recovered_values(files)

        assert values[:2] == [b"a", b"b"]
        assert values[2:] in KEPT_VALUES
        assert (values[2:] == LAST_VALUES) == (end == len(last))


def test_a_last_write_that_ends_within_a_block_leaves_its_first_batches(files: LogFiles) -> None:
    """Without files any byte: test_recovery_properties.py."""
    before, last = written(files, [[b"a"]], [[b"c"], [b"d", b"e"]])
    used_bytes = len(last.rstrip(b"\0")) + 8
    kept_values = [[], [b"c"], [b"c", b"d", b"e"]]
    for end in [*range(0, used_bytes, 7), *range(used_bytes, len(last), 499)]:
        files.write_segment(before + last[:end])
        values = files.values()

        assert values[0] == b"a"
        assert values[1:] in kept_values


@pytest.mark.parametrize(
    "hole", [bytes(BLOCK_BYTES), GARBAGE[:BLOCK_BYTES]], ids=["zeros", "bytes"]
)
def test_a_hole_in_the_last_write_ends_the_log_there(files: LogFiles, hole: bytes) -> None:
    before, last = written(files, [[b"a"], [b"b"]], LAST_WRITE)
    for start in range(0, len(last), BLOCK_BYTES):
        files.write_segment(before + last[:start] + hole + last[start + BLOCK_BYTES :])
        values = recovered_values(files)

        assert values[:2] == [b"a", b"b"]
        assert values[2:] in KEPT_VALUES[:-1]


def test_a_recovered_log_takes_appends_where_it_ends(files: LogFiles) -> None:
    before, last = written(files, [[b"a"]], LAST_WRITE)
    for end in range(0, len(last) + 1, BLOCK_BYTES):
        files.write_segment(before + last[:end])
        kept = files.values()
        append(files.writer(), [b"new"])

        assert files.values() == [*kept, b"new"]


def test_batches_larger_than_a_window_are_found(files: LogFiles) -> None:
    large = os.urandom(SCAN_WINDOW_BYTES * 2 + 1)
    stored = b"".join(written(files, [[b"a"]], [[large], [b"b"]], [[b"c"]]))
    files.write_segment(stored + bytes(SCAN_WINDOW_BYTES))

    assert recovered_values(files) == [b"a", large, b"b", b"c"]


def test_a_segment_that_cannot_be_read_is_no_end_of_the_log(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(files, [[b"a"]])
    contents = files.contents()
    FaultyDisk(monkeypatch).fail("preadv")
    with pytest.raises(ReadFailedError):
        files.recover()

    assert files.contents() == contents


# --- acknowledged records are damaged -------------------------------------------------------------


def flip(stored: bytes, position: int) -> bytes:
    return stored[:position] + bytes([stored[position] ^ 1]) + stored[position + 1 :]


def test_a_log_start_that_cannot_be_read_is_damage(files: LogFiles) -> None:
    """Where the log starts, the segments alone do not tell."""
    three_segments(files)
    (files.place.directory / "log-start.json").write_bytes(b"{")
    assert_stands_still(files)


def test_what_retention_left_is_removed(files: LogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written down that the log starts behind it."""
    values = three_segments(files)
    save_log_start(files.place.directory, LogStart(4, 4, 1, 5), write_file_atomically)
    disk = FaultyDisk(monkeypatch)
    disk.fail("unlink")
    assert [state.base_offset for state in files.recover()] == [4]
    assert files.values() == values[4:]
    assert not files.segment(0).exists()
    assert not files.segment(2).with_suffix(".idx").exists()


def test_a_log_that_starts_behind_all_its_segments_is_empty(files: LogFiles) -> None:
    three_segments(files)
    save_log_start(files.place.directory, LogStart(5, 5, 3, 7), write_file_atomically)
    (state,) = files.recover()

    assert (state.base_offset, state.end_offset) == (5, 5)
    assert (state.last_epoch, state.last_append_time_us) == (3, 7)


@pytest.mark.parametrize("start", [LogStart(3, 0, 0, 0), LogStart(3, 2, 1, TIME_US)])
def test_a_log_starts_inside_of_a_segment(files: LogFiles, start: LogStart) -> None:
    """Those that end below it are removed, if the file names them or not."""
    three_segments(files)
    save_log_start(files.place.directory, start, write_file_atomically)
    for _ in range(2):
        log = files.recovered()
        assert log.start == LogStart(3, 2, 1, TIME_US)
        assert [(each.base_offset, each.end_offset) for each in log.segments] == [(2, 4), (4, 5)]
        assert segments_of(files) == [files.segment(2), files.segment(4)]


def test_a_log_whose_end_is_below_its_start_begins_again_there(files: LogFiles) -> None:
    """A loss of power took an unflushed tail, but not what says where the log starts."""
    three_segments(files)
    save_log_start(files.place.directory, LogStart(7, 0, 0, 0), write_file_atomically)
    start = LogStart(7, 7, 1, TIME_US, is_behind_damage=True)
    for _ in range(2):
        log = files.recovered()
        assert (log.start, log.lost_end, log.losses) == (start, None, [])
        assert [(each.base_offset, each.end_offset) for each in log.segments] == [(7, 7)]
        assert segments_of(files) == []

    append(files.writer(), [b"new"])
    assert files.values() == [b"new"]
    assert files.recovered().start == start


@pytest.mark.parametrize("has_index", [True, False])
def test_the_epoch_before_counts_again_behind_a_segment_that_is_behind_damage(
    files: LogFiles, has_index: bool
) -> None:
    """A batch that names another epoch before it is of another log."""
    three_segments(files)
    start = LogStart(0, 0, 0, 0, is_behind_damage=True)
    save_log_start(files.place.directory, start, write_file_atomically)
    if not has_index:
        for path in files.place.directory.glob("*.idx"):
            path.unlink()
    place = place_of(base_offset=4, epoch=3, previous_epoch=2)
    files.segment(4).write_bytes(stamp_batch(body_of([Event(b"other")]), place).contents())

    segments = files.recovered().segments

    assert [(each.base_offset, each.end_offset) for each in segments] == [(0, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize(("exact_end", "first_segment"), [(None, 5), (5, 4)])
def test_what_is_missing_below_the_log_start_is_no_loss(
    files: LogFiles, exact_end: int | None, first_segment: int
) -> None:
    """The last batch is damaged: it is taken for a torn write, or not."""
    three_segments(files)
    files.segment(4).write_bytes(flip(files.segment(4).read_bytes(), 140))
    save_log_start(files.place.directory, LogStart(5, 4, 1, TIME_US), write_file_atomically)
    for _ in range(2):
        log = files.recovered(exact_end=exact_end)
        assert log.lost_end is None
        assert [(each.base_offset, each.end_offset) for each in log.segments] == [
            (first_segment, 5)
        ]


def test_what_is_missing_from_the_log_start_on_is_a_loss(files: LogFiles) -> None:
    three_segments(files)
    save_log_start(files.place.directory, LogStart(7, 0, 0, 0), write_file_atomically)
    for _ in range(2):
        log = files.recovered(exact_end=9)
        assert log.lost_end == LostEnd(7, 9, 9)
        assert log.segments[-1].end_offset == 7
    assert len(segments_of(files)) == 3, "what is lost may be restored"

    record_loss(files.place.directory, Loss(7, 9, TIME_US))
    for _ in range(2):
        log = files.recovered()
        assert (log.lost_end, log.segments[-1].end_offset) == (None, 9)


def test_a_last_segment_that_holds_the_log_start_is_missed(files: LogFiles) -> None:
    three_segments(files)
    save_log_start(files.place.directory, LogStart(5, 4, 1, TIME_US), write_file_atomically)
    files.inventory.add_segments([(files.place.topic_id, files.place.partition, 4)])
    last = files.segment(4).read_bytes()
    files.segment(4).unlink()
    for _ in range(2):
        assert files.recovered().lost_end == LostEnd(5, 6, 5 + UNKNOWN_OFFSETS_MAX)

    files.segment(4).write_bytes(last)
    log = files.recovered()
    assert (log.lost_end, log.segments[-1].end_offset) == (None, 5)


def test_a_log_starts_inside_of_a_loss_that_was_accepted(files: LogFiles) -> None:
    three_segments(files)
    record_loss(files.place.directory, Loss(5, 9, TIME_US))
    assert files.recovered().segments[-1].end_offset == 9
    save_log_start(files.place.directory, LogStart(7, 0, 0, 0), write_file_atomically)
    for _ in range(2):
        log = files.recovered()
        assert (log.start.log_start, log.lost_end, log.segments[-1].end_offset) == (7, None, 9)
        assert [each.first_offset for each in log.losses] == [5]


# --- finished segments ----------------------------------------------------------------------------


def three_segments(files: LogFiles) -> list[bytes]:
    """Segments at 0, 2 and 4; their values."""
    writer = files.writer(segment_bytes=2 * BLOCK_BYTES)
    values = [b"%d" % number for number in range(5)]
    for value in values:
        append(writer, [value])
    writer.close()
    assert [state.base_offset for state in writer.segments] == [0, 2, 4]
    return values


INDEX_CHANGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda index: index.unlink(),
    "empty": lambda index: index.write_bytes(b""),
    "truncated": lambda index: index.write_bytes(index.read_bytes()[:-1]),
    "damaged": lambda index: index.write_bytes(flip(index.read_bytes(), 20)),
    "another segment's": lambda index: index.write_bytes(index.with_stem(f"{2:020d}").read_bytes()),
    "of version 1": lambda index: index.write_bytes((GOLDEN / "segment.idx").read_bytes()),
    "left half-written": lambda index: index.rename(index.with_suffix(".idx.new")),
}


@pytest.mark.parametrize("change", INDEX_CHANGES.values(), ids=INDEX_CHANGES.keys())
def test_an_index_that_does_not_fit_is_built_again(
    files: LogFiles, change: Callable[[Path], object]
) -> None:
    values = three_segments(files)
    states = files.recover()
    index = files.segment(0).with_suffix(".idx")
    right = index.read_bytes()
    change(index)

    assert files.recover() == states
    assert index.read_bytes() == right
    assert files.values() == values


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_disk_too_full_for_an_index_stops_no_start(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    values = three_segments(files)
    states = files.recover()
    files.segment(0).with_suffix(".idx").unlink()
    FaultyDisk(monkeypatch).fail(call, errno.ENOSPC)

    assert files.recover() == states
    assert not files.segment(0).with_suffix(".idx").exists()
    assert files.values() == values


def test_segments_with_their_indexes_are_not_read_to_be_opened(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a start takes no longer with more data."""
    three_segments(files)
    files.recover()
    disk = FaultyDisk(monkeypatch)
    files.recover()
    last_segment_reads = disk.calls["preadv"]

    files.segment(0).with_suffix(".idx").unlink()
    files.recover()
    assert disk.calls["preadv"] > 2 * last_segment_reads


def test_a_damaged_finished_segment_with_its_index_is_noticed_when_it_is_read(
    files: LogFiles,
) -> None:
    three_segments(files)
    path = files.segment(0)
    path.write_bytes(flip(path.read_bytes(), 140))
    state = files.recover()[0]
    with pytest.raises(CorruptBatchError, match=r"0\.log"):
        files.read(state, 0, end_offset=2)


def test_an_empty_last_segment_takes_the_next_append(files: LogFiles) -> None:
    """As left by a stop between its creation and its first write."""
    values = three_segments(files)
    files.segment(4).write_bytes(b"")
    assert recovered_values(files) == values[:4]

    append(files.writer(), [b"new"])
    assert files.values() == [*values[:4], b"new"]


def test_an_only_segment_without_bytes_is_an_empty_log(files: LogFiles) -> None:
    files.write_segment(b"")
    assert recovered_values(files) == []
    append(files.writer(), [b"a"])
    assert files.values() == [b"a"]


def test_a_log_that_had_segments_and_has_none_is_noticed(files: LogFiles) -> None:
    """Retention leaves a file where it has removed them all."""
    for _ in range(2):
        assert files.recovered().lost_end is None
        files.place.directory.mkdir(parents=True, exist_ok=True)
    files.inventory.add_segments([(files.place.topic_id, files.place.partition, 0)])
    for _ in range(2):
        assert files.recovered().lost_end == LostEnd(0, 1, 1 + UNKNOWN_OFFSETS_MAX)
    files.write_segment(b"")  # a power failure took what was never flushed
    files.damage_file().unlink()
    assert files.recovered().lost_end is None
    files.segment().unlink()
    save_log_start(files.place.directory, LogStart(7, 7, 1, 5), write_file_atomically)
    assert files.recovered().segments[-1].end_offset == 7


def test_files_that_are_no_segments_are_left_alone(files: LogFiles) -> None:
    values = three_segments(files)
    for name in ("notes.log", "-5.log", "7.log", "00000000000000000000.log.bak"):
        (files.place.directory / name).write_bytes(b"mine")

    assert files.values() == values
    assert files.contents()["notes.log"] == b"mine"


# --- behind where it is known to end --------------------------------------------------------------


def test_what_a_failed_write_has_left_behind_the_end_of_a_sealed_log_is_not_of_it(
    files: LogFiles,
) -> None:
    """Its bytes were there when the disk said that they were not."""
    written(files, [[b"a"], [b"b"]], [[b"failed"]])
    for _ in range(2):
        assert files.recovered(exact_end=2).segments[-1].end_offset == 2
    assert files.values() == [b"a", b"b"]
