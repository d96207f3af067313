"""Producer windows over a restart: from the checkpoint, the segments, and the journal's batches."""

import errno
from pathlib import Path

import pytest

from tailrace_broker.codec.batch import StoredBatch, stamp_batch
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.codec.segment import encode_pad
from tailrace_broker.core.log.journal_replay import JournaledBatch
from tailrace_broker.core.log.producers import Duplicate, Producer, ProducerWindows, Verdict
from tailrace_broker.core.log.recovery import LogScan, SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.errors import ReadFailedError, SequenceUnknownError
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.log.producer_recovery import (
    PRODUCERS,
    ProducerRecovery,
    save_checkpoint,
)
from tailrace_broker.storage.segments.writer import segment_path
from tests.support.storage.batches import PARTITION, TIME_US, TOPIC_ID, Event, body_of, place_of
from tests.support.storage.storage import FaultyDisk

MINUTE_US = 60_000_000
POOL_BYTES = 8 * 1024 * 1024
NAME = b"till-7"


class Log:
    """A partition's segments; the record at offset n is of sequence n, appended at minute n."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.segments: list[SegmentState] = []
        self.windows = ProducerWindows()  # as the appends built them

    def batch(self, offset: int) -> StoredBatch:
        """Of one record."""
        table = encode_table([TableEntry(*Producer.named(NAME, offset), 0, 1)])
        place = place_of(
            base_offset=offset,
            append_time_us=TIME_US + offset * MINUTE_US,
            previous_epoch=1 if offset else 0,
        )
        return stamp_batch(body_of([Event(b"1")], producer_table=table), place)

    def add_segment(self, first: int, count: int) -> None:
        """With records from this offset on."""
        stored = b""
        for offset in range(first, first + count):
            batch = self.batch(offset)
            self.windows.replay(batch.header, batch.buffers[1])
            stored += b"".join(batch.buffers)
            stored += encode_pad(-len(stored) % BLOCK_BYTES)
        segment_path(self.directory, first).write_bytes(stored)
        before = self.segments[-1].last_epoch if self.segments else 0
        state = SegmentState(first, first, before)
        LogScan(TOPIC_ID, PARTITION, state).feed(memoryview(stored), is_last=True)
        self.segments.append(state)

    def save(self, end_offset: int) -> None:
        """A checkpoint of the windows."""
        save_checkpoint(self.directory, self.windows.checkpoint(end_offset))

    def recover(
        self, *, pending: tuple[int, ...] = (), now_minute: int = 9, pool: BufferPool | None = None
    ) -> ProducerWindows | None:
        """As at a start: the last segment is scanned between `begin` and `end`."""
        *finished, last = self.segments
        unscanned = SegmentState(last.base_offset, last.base_offset, 1 if finished else 0)
        now_us = TIME_US + now_minute * MINUTE_US
        pool = pool or BufferPool(POOL_BYTES)
        recovery = ProducerRecovery(self.directory, pool, is_direct=False, now_us=now_us)
        recovery.begin([*finished, unscanned])
        stored = segment_path(self.directory, last.base_offset).read_bytes()
        scan = LogScan(TOPIC_ID, PARTITION, unscanned, windows=recovery.windows)
        scan.feed(memoryview(stored), is_last=True)
        journaled = [
            JournaledBatch(batch.header, memoryview(b"".join(batch.buffers)), 0)
            for batch in map(self.batch, pending)
        ]
        return recovery.end(self.segments, journaled)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three segments of two records each."""
    log = Log(tmp_path)
    for first in (0, 2, 4):
        log.add_segment(first, 2)
    return log


def known(windows: ProducerWindows | None) -> list[int]:
    """Which of the sequences 0 to 9 are known, at minute 9; the offset is always the same."""
    assert windows is not None
    windows.validate()
    found = []
    for sequence in range(10):
        try:
            verdict = windows.begin(
                Producer.named(NAME, sequence), 1, now_us=TIME_US + 9 * MINUTE_US
            )
        except SequenceUnknownError:
            continue
        if verdict is not Verdict.NEW:
            assert verdict == Duplicate(sequence)
            found.append(sequence)
    return found


def open_descriptors() -> set[str]:
    return {link.name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_without_producers_nothing_is_remembered(tmp_path: Path) -> None:
    recovery = ProducerRecovery(tmp_path, BufferPool(POOL_BYTES), is_direct=False, now_us=TIME_US)
    recovery.begin([SegmentState(0, 0)])

    assert recovery.end([SegmentState(0, 0)], []) is None


def test_the_log_alone_tells(log: Log) -> None:
    windows = log.recover(pending=(6, 7))

    assert known(windows) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("end_offset", [2, 4, 6])
def test_the_log_goes_on_where_the_checkpoint_ends(log: Log, end_offset: int) -> None:
    """It says what only it can know: here, that other sequences were never used."""
    log.windows = ProducerWindows()
    log.save(end_offset)
    windows = log.recover(pending=(6,))

    assert known(windows) == list(range(end_offset, 7))


def test_what_the_checkpoint_covers_is_not_read_again(log: Log) -> None:
    log.save(6)
    for state in log.segments[:-1]:
        segment_path(log.directory, state.base_offset).unlink()
    windows = log.recover()

    assert known(windows) == [0, 1, 2, 3, 4, 5]
    assert windows is not None
    assert windows.checkpoint(6) == log.windows.checkpoint(6)


def test_segments_that_are_too_old_are_not_read(log: Log) -> None:
    """The first ends at minute 1, the second at minute 3."""
    segment_path(log.directory, 0).unlink()

    assert known(log.recover(now_minute=11)) == [2, 3, 4, 5]


@pytest.mark.parametrize("contents", [b"", b"x" * 100])
def test_a_damaged_checkpoint_counts_as_none(log: Log, contents: bytes) -> None:
    (log.directory / PRODUCERS).write_bytes(contents)

    assert known(log.recover()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("has_space", [True, False])
def test_of_a_checkpoint_that_is_ahead_of_the_log_counts_what_the_log_has(
    log: Log, disk: FaultyDisk, has_space: bool
) -> None:
    """A power failure took what was not flushed; what was trimmed only the checkpoint knows."""
    for offset in (6, 7):
        batch = log.batch(offset)
        log.windows.replay(batch.header, batch.buffers[1])
    log.save(8)
    for state in log.segments[:-1]:
        segment_path(log.directory, state.base_offset).unlink()
    if not has_space:
        disk.fail("replace", errno.ENOSPC)

    assert known(log.recover()) == [0, 1, 2, 3, 4, 5]
    assert (log.directory / PRODUCERS).exists() == has_space
    if has_space:
        assert known(log.recover()) == [0, 1, 2, 3, 4, 5]


def test_a_checkpoint_that_is_ahead_of_the_segments_alone_counts(log: Log) -> None:
    for offset in (6, 7):
        batch = log.batch(offset)
        log.windows.replay(batch.header, batch.buffers[1])
    log.save(8)

    assert known(log.recover(pending=(6, 7, 8))) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert (log.directory / PRODUCERS).exists()


def test_damage_in_a_segment_hides_what_stands_behind_it_there(log: Log) -> None:
    path = segment_path(log.directory, 0)
    stored = bytearray(path.read_bytes())
    stored[BLOCK_BYTES + 130] ^= 1  # in the table of the second batch
    path.write_bytes(stored)

    assert known(log.recover()) == [0, 2, 3, 4, 5]


def test_a_segment_that_is_cut_hides_what_stood_behind(log: Log) -> None:
    path = segment_path(log.directory, 0)
    path.write_bytes(path.read_bytes()[: BLOCK_BYTES + 50])

    assert known(log.recover()) == [0, 2, 3, 4, 5]


def test_batches_are_found_through_small_windows(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for window_bytes in (1, BLOCK_BYTES - 20, 2 * BLOCK_BYTES):
        monkeypatch.setattr(
            "tailrace_broker.storage.log.producer_recovery._READ_BYTES", window_bytes
        )
        assert known(log.recover()) == [0, 1, 2, 3, 4, 5]


def test_a_recovery_needs_nothing_of_what_readers_hold(log: Log) -> None:
    pool = BufferPool(POOL_BYTES, POOL_BYTES)
    answer = pool.read.lease(POOL_BYTES)

    assert known(log.recover(pool=pool)) == [0, 1, 2, 3, 4, 5]
    assert answer.size_bytes == POOL_BYTES


def test_damage_keeps_no_file_open(log: Log) -> None:
    path = segment_path(log.directory, 0)
    path.write_bytes(bytes(path.stat().st_size))
    log.recover()
    before = open_descriptors()
    log.recover()

    assert open_descriptors() == before


def test_a_checkpoint_that_cannot_be_read_is_an_error(log: Log) -> None:
    (log.directory / PRODUCERS).mkdir()

    with pytest.raises(ReadFailedError, match="producers: Is a directory"):
        log.recover()


def test_a_disk_that_does_not_take_the_checkpoint_is_none(log: Log, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "gone", log.windows.checkpoint(6))

    assert not (tmp_path / "gone").exists()
