import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace_broker.codec.segment import decode_index
from tailrace_broker.model.errors import DiskFullError, StorageFailedError, TailraceError
from tailrace_broker.storage.files import direct_file
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tests.support.storage.batches import PARTITION, TOPIC_ID, Event, body_of
from tests.support.storage.storage import FaultyDisk, LogFiles, SegmentAppends, append

SMALL = b"small"
LARGE = os.urandom(64 * 1024)  # does not compress
ROLLS_AFTER_BYTES = 3 * BLOCK_BYTES


def written_bytes(files: LogFiles) -> int:
    return files.segment().stat().st_size


def refuse(writer: SegmentAppends, *batches: list[bytes]) -> TailraceError:
    """An append that must fail."""
    end_offset = writer.segments[-1].end_offset
    with pytest.raises(TailraceError) as refused:
        append(writer, *batches)

    assert writer.segments[-1].end_offset == end_offset
    return refused.value


# --- appends --------------------------------------------------------------------------------------


def test_nothing_is_on_disk_before_the_first_append(files: LogFiles) -> None:
    files.writer().close()
    assert not files.place.directory.exists()


def test_batches_follow_each_other_in_offset_epoch_and_time(files: LogFiles) -> None:
    writer = files.writer()
    first, second = append(writer, [b"a", b"b"], [b"c"])
    (third,) = append(writer, [b"d"])

    headers = [batch.header for batch in (first, second, third)]
    assert [(header.base_offset, header.end_offset) for header in headers] == [
        (0, 2),
        (2, 3),
        (3, 4),
    ]
    assert [header.previous_epoch for header in headers] == [0, 1, 1]
    assert [header.high_watermark for header in headers] == [0, 0, 3]
    assert files.values() == [b"a", b"b", b"c", b"d"]


def test_every_write_starts_on_a_block(files: LogFiles) -> None:
    writer = files.writer()
    append(writer, [SMALL])
    append(writer, [os.urandom(BLOCK_BYTES)])
    append(writer, [SMALL])

    assert writer.segments[-1].position == 4 * BLOCK_BYTES
    stored = files.segment().read_bytes()
    starts = [at for at in range(0, len(stored), BLOCK_BYTES) if stored[at : at + 4] == b"TRLB"]
    assert starts == [0, BLOCK_BYTES, 3 * BLOCK_BYTES]


def test_a_write_ends_with_the_file(files: LogFiles) -> None:
    writer = files.writer()
    for values in ([SMALL], [LARGE], [SMALL]):
        append(writer, values)
        assert written_bytes(files) == writer.segments[-1].position


def test_a_write_that_need_not_be_durable_is_not_synced(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []
    real = os.pwritev

    def pwritev(fd: int, parts: list[memoryview], position: int, flag: int = 0) -> int:
        flags.append(flag)
        return real(fd, parts, position, flag)

    monkeypatch.setattr(os, "pwritev", pwritev)
    writer = files.writer()
    writer.write([body_of([Event(b"a")])], is_durable=False)
    append(writer, [b"b"])

    assert flags == [0, os.RWF_DSYNC]
    assert files.values() == [b"a", b"b"]


def test_a_reopened_log_goes_on_behind_its_end(files: LogFiles) -> None:
    writer = files.writer()
    append(writer, [b"a"])
    writer.close()

    writer = files.writer()
    append(writer, [b"b"])
    assert files.values() == [b"a", b"b"]


# --- a write fails --------------------------------------------------------------------------------


def test_a_new_file_whose_first_write_failed_before_its_sync_is_made_again_durably(
    files: LogFiles, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(direct_file, "sync_directory", synced.append)
    writer = files.writer()
    disk.fail("pwritev")
    with pytest.raises(StorageFailedError):
        writer.write([body_of([Event(b"a")])], is_durable=False, is_synced_later=True)
    append(writer, [b"b"])

    assert files.place.directory in synced
    assert files.values() == [b"b"]


@pytest.mark.parametrize("kept_bytes", [0, BLOCK_BYTES, len(LARGE)])
@pytest.mark.parametrize(
    ("error", "kind"),
    [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)],
    ids=["no space", "I/O error"],
)
def test_a_write_that_fails_in_its_middle_is_cut_away(
    files: LogFiles, disk: FaultyDisk, kept_bytes: int, error: int, kind: type[TailraceError]
) -> None:
    writer = files.writer()
    append(writer, [b"a"])
    end = writer.segments[-1].position
    disk.fail("pwritev", error, kept_bytes=kept_bytes)

    assert isinstance(refuse(writer, [b"lost"], [LARGE]), kind)
    assert written_bytes(files) == end

    (batch,) = append(writer, [b"b"])
    assert batch.header.base_offset == 1
    assert written_bytes(files) == end + BLOCK_BYTES
    assert files.values() == [b"a", b"b"]


def test_a_partition_is_in_the_inventory_before_its_first_append_counts(
    files: LogFiles, disk: FaultyDisk
) -> None:
    writer = files.writer()
    disk.fail("replace")
    refuse(writer, [SMALL])
    listed = [files.inventory.newest_segment(TOPIC_ID, PARTITION)]
    append(writer, [SMALL])
    listed.append(files.inventory.newest_segment(TOPIC_ID, PARTITION))
    disk.calls.clear()
    append(writer, [SMALL])
    writer.close()

    assert listed == [None, 0]
    assert disk.calls["replace"] == 0
    assert files.values() == [SMALL] * 2


@pytest.mark.parametrize("call", ["ftruncate", "fsync"])
def test_nothing_is_appended_until_a_failed_write_is_cut_away(
    files: LogFiles, disk: FaultyDisk, call: str
) -> None:
    writer = files.writer()
    append(writer, [b"a"])
    end = writer.segments[-1].position
    disk.fail("pwritev", errno.ENOSPC, kept_bytes=BLOCK_BYTES)
    disk.fail(call)
    assert isinstance(refuse(writer, [b"lost"]), StorageFailedError)

    disk.fail(call)
    writes_before = disk.calls["pwritev"]
    assert isinstance(refuse(writer, [b"lost too"]), StorageFailedError)
    assert disk.calls["pwritev"] == writes_before

    append(writer, [b"b"])
    assert files.segment().read_bytes()[end:].count(b"TRLB") == 1
    assert files.values() == [b"a", b"b"]


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "after a restart"])
def test_a_longer_write_that_failed_does_not_come_back_behind_a_shorter_one(
    files: LogFiles, disk: FaultyDisk, restarts: bool
) -> None:
    """Its second batch would follow the shorter write's in offset, epoch and position."""
    writer = files.writer()
    append(writer, [b"a"])
    padding = os.urandom(BLOCK_BYTES - 512)
    disk.fail("pwritev", kept_bytes=8 * BLOCK_BYTES)
    refuse(writer, [padding], [b"stale"], [LARGE])
    if restarts:
        writer.close()
        writer = files.writer()

    append(writer, [b"b"])
    assert files.values() == [b"a", b"b"]


def test_a_failed_write_that_could_not_be_cut_away_comes_back_whole_or_not_at_all(
    files: LogFiles, disk: FaultyDisk
) -> None:
    """Its producer was reported that this is unknown."""
    for kept_bytes in range(0, len(LARGE) + 4 * BLOCK_BYTES, BLOCK_BYTES):
        writer = files.writer()
        end_offset = writer.segments[-1].end_offset
        disk.fail("pwritev", kept_bytes=kept_bytes)
        disk.fail("ftruncate")
        assert isinstance(refuse(writer, [b"a"], [LARGE], [b"c"]), StorageFailedError)
        writer.close()

        assert files.values()[end_offset:] in ([], [b"a"], [b"a", LARGE], [b"a", LARGE, b"c"])


# --- the segment rolls ----------------------------------------------------------------------------


def test_a_full_segment_is_cut_and_indexed_and_the_next_begins(files: LogFiles) -> None:
    writer = files.writer(segment_bytes=ROLLS_AFTER_BYTES)
    for number in range(7):
        append(writer, [b"%d" % number])

    assert [state.base_offset for state in writer.segments] == [0, 3, 6]
    contents = files.contents()
    assert len(contents["00000000000000000003.log"]) == ROLLS_AFTER_BYTES
    index = decode_index(contents["00000000000000000003.idx"])
    assert (index.segment_bytes, index.end_offset) == (ROLLS_AFTER_BYTES, 6)
    assert "00000000000000000006.idx" not in contents
    assert files.values() == [b"%d" % number for number in range(7)]


def test_a_full_segment_that_was_reopened_rolls_too(files: LogFiles) -> None:
    writer = files.writer(segment_bytes=ROLLS_AFTER_BYTES)
    for number in range(3):
        append(writer, [b"%d" % number])
    writer.close()

    append(files.writer(segment_bytes=ROLLS_AFTER_BYTES), [b"3"])
    assert [state.base_offset for state in files.recover()] == [0, 3]
    assert files.values() == [b"0", b"1", b"2", b"3"]


# A roll in order: cut and sync the segment; write, sync and rename its index and sync the
# directory; create the next segment and sync three directories; write.
ROLL_STEPS: list[tuple[str, int]] = [
    ("ftruncate", 0),
    ("fsync", 0),
    ("open", 0),
    ("fsync", 1),
    ("replace", 0),
    ("open", 1),
    ("fsync", 2),
    ("open", 2),
    ("fsync", 3),
    ("fsync", 4),
    ("fsync", 5),
    ("pwritev", 0),
    # The inventory.
    ("replace", 1),
    ("fsync", 6),
    ("fsync", 7),
]


def full_writer(files: LogFiles) -> SegmentAppends:
    """The next append rolls."""
    writer = files.writer(segment_bytes=ROLLS_AFTER_BYTES)
    append(writer, [b"0"])
    append(writer, [b"1"])
    append(writer, [b"2"])
    return writer


def go_on(writer: SegmentAppends, files: LogFiles) -> SegmentAppends:
    return writer


def restart(writer: SegmentAppends, files: LogFiles) -> SegmentAppends:
    writer.close()
    return files.writer(segment_bytes=ROLLS_AFTER_BYTES)


@pytest.mark.parametrize("then", [go_on, restart])
@pytest.mark.parametrize(("call", "skipped"), ROLL_STEPS)
def test_a_roll_that_fails_at_any_step_succeeds_later(
    files: LogFiles,
    disk: FaultyDisk,
    call: str,
    skipped: int,
    then: Callable[[SegmentAppends, LogFiles], SegmentAppends],
) -> None:
    writer = full_writer(files)
    disk.fail(call, skipped=skipped)
    refuse(writer, [b"lost"])

    writer = then(writer, files)
    append(writer, [b"3"])
    assert [state.base_offset for state in writer.segments] == [0, 3]
    assert files.values() == [b"0", b"1", b"2", b"3"]
    assert set(files.contents()) == {
        "00000000000000000000.log",
        "00000000000000000000.idx",
        "00000000000000000003.log",
    }


def test_the_steps_of_a_roll_are_all_that_it_asks_of_the_disk(
    files: LogFiles, disk: FaultyDisk
) -> None:
    """Else the test above misses a step."""
    writer = full_writer(files)
    before = disk.calls.copy()
    append(writer, [b"3"])

    asked = disk.calls - before
    # Five more are opened: each directory that is synced.
    assert asked == {"ftruncate": 1, "fsync": 8, "replace": 2, "open": 3 + 5, "pwritev": 1}
    for call in ("ftruncate", "fsync", "replace", "pwritev"):
        assert asked[call] == sum(step == call for step, _ in ROLL_STEPS)
