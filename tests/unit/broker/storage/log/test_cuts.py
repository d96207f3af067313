"""A follower's log on a real disk: stored batches and cuts, over restarts and failing disks."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.producers import decode_checkpoint
from tailrace_broker.codec.segment import decode_index
from tailrace_broker.core.log.producers import NOTHING
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.append_outcome import (
    AppendFailed,
    CutFailed,
    CutRefused,
    LogIsCut,
    Misfit,
    MisfitReason,
)
from tailrace_broker.model.damage import Loss, RecordedDamage
from tailrace_broker.model.errors import (
    DiskFullError,
    OffsetOutOfRangeError,
    StorageFailedError,
)
from tailrace_broker.storage.inspection.logs import check_log
from tailrace_broker.storage.log.damage_file import load_damage, save_damage
from tailrace_broker.storage.log.producer_recovery import PRODUCERS, save_checkpoint
from tailrace_broker.storage.log.recovery import LogEvidence
from tailrace_broker.storage.log.rescued_tail import RESCUED, load_rescued, save_rescued
from tailrace_broker.storage.segments import cut as segments_cut
from tailrace_broker.storage.segments.writer import LogPlace
from tests.support.storage.batches import PARTITION, TOPIC_ID
from tests.support.storage.followers import Follower, follow, stored_batch
from tests.support.storage.storage import FaultyDisk, LogFiles, read_all, values_in

LARGE = 80_000


def small(
    base_offset: int, count: int = 5, *, epoch: int = 7, previous: int = 7, **options: int
) -> StoredBatch:
    values = [b"%d-%d" % (epoch, base_offset + each) for each in range(count)]
    previous = previous if base_offset else 0
    return stored_batch(values, base_offset, epoch=epoch, previous_epoch=previous, **options)


def large(base_offset: int, *, epoch: int = 7, previous: int = 7) -> StoredBatch:
    values = [os.urandom(LARGE // 5) for _ in range(5)]
    previous = previous if base_offset else 0
    return stored_batch(values, base_offset, epoch=epoch, previous_epoch=previous)


def spans(files: LogFiles) -> list[tuple[int, int, int]]:
    """Base offset, end and epoch of what a start recovers from the segments and the journal."""
    log = files.recover_all()
    found = [(each.base_offset, each.end_offset, each.last_epoch) for each in log.segments]
    found = [each for each in found if each[0] < each[1]]
    pending = [(each.header.base_offset, each.end_offset, each.last_epoch) for each in log.pending]
    check = LogEvidence(
        0,
        files.inventory.newest_segment(TOPIC_ID, PARTITION),
        files.replay().batches.get((TOPIC_ID.bytes, PARTITION), []),
    )
    assert check_log(files.place, check, None, files.pool) == []
    return [*found, *pending]


async def settled(follower: Follower) -> None:
    """All that is pending is in the segment."""
    assert await follower.log.spilled() is None


# --- stored batches -------------------------------------------------------------------------------


async def test_stored_batches_are_on_disk_as_they_came(files: LogFiles) -> None:
    batches = [small(0), small(5), large(10), small(15)]
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(*batches[:2])
        for batch in batches[2:]:
            await follower.write(batch)
        follower.log.commit(20)
        assert [bytes(each.contents()) for each in await read_all(follower.log)] == [
            bytes(each.contents()) for each in batches
        ]
    found = await read_back(files)
    assert found == [bytes(each.contents()) for each in batches]


async def read_back(files: LogFiles) -> list[bytes]:
    """What a leader with the only copy serves of the same files."""
    async with follow(files) as engine:
        log = engine.logs[0]
        log.commit(log.log_end)
        return [bytes(each.contents()) for each in await read_all(log)]


async def test_the_own_write_of_a_follower_commits_nothing(files: LogFiles) -> None:
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0))
        assert (follower.log.high_watermark, follower.log.durable_end) == (0, 5)
        follower.log.commit(3)
        assert follower.log.high_watermark == 3
        follower.log.commit(100)
        assert follower.log.high_watermark == 5


async def test_a_start_knows_what_headers_say_is_committed(files: LogFiles) -> None:
    async with follow(files, is_killed=True) as engine:
        await Follower(engine.logs[0]).write(small(0), small(5, high_watermark=4))
    async with follow(files) as engine:
        log = engine.logs[0]
        assert (log.high_watermark, log.log_end) == (4, 10)
        engine.role.change(9)
        assert log.high_watermark == 10


async def test_a_failed_write_to_the_segment_does_not_stand_beside_what_replaces_it(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0))
        failed = large(5)
        disk.fail("pwritev", kept_bytes=100 * 4096)
        assert isinstance(await follower.append(failed), AppendFailed)
        await follower.write(large(5, epoch=8))
        await follower.write(small(10, epoch=8, previous=8))
    assert spans(files) == [(0, 10, 8), (10, 15, 8)]


# --- cuts -----------------------------------------------------------------------------------------


async def test_a_cut_of_the_journal_survives_a_kill(files: LogFiles) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        for batch in (small(0), small(5)):
            await follower.write(batch)
        assert await follower.cut(5, 7) == LogIsCut(5)
        assert (follower.log.log_end, follower.log.pending_bytes > 0) == (5, True)
    assert spans(files) == [(0, 5, 7)]


async def test_what_follows_a_cut_replaces_what_was_there(files: LogFiles) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        for batch in (small(0), small(5)):
            await follower.write(batch)
        await follower.cut(5, 7)
        await follower.write(small(5, 3, epoch=8))
    assert spans(files) == [(0, 5, 7), (5, 8, 8)]


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("follows", [0, 3, LARGE])
async def test_a_cut_within_a_segment_survives_a_stop(
    files: LogFiles, is_killed: bool, follows: int
) -> None:
    async with follow(files, is_killed=is_killed) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0))
        await follower.write(small(5))
        await settled(follower)
        assert await follower.cut(5, 7) == LogIsCut(5)
        assert files.inventory.newest_segment(TOPIC_ID, PARTITION) == 5
        assert follower.log.durable_end == 5
        if follows == LARGE:
            await follower.write(large(5, epoch=8))
        elif follows:
            await follower.write(small(5, 3, epoch=8))
    expected = {0: [], 3: [(5, 8, 8)], LARGE: [(5, 10, 8)]}[follows]
    assert spans(files) == [(0, 5, 7), *expected]


async def test_a_lost_index_brings_nothing_back(files: LogFiles) -> None:
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0), small(5), small(10))
        await settled(follower)
        await follower.cut(5, 7)
        await follower.write(small(5, 3, epoch=8))
    index = files.segment().with_suffix(".idx")
    kept = decode_index(index.read_bytes())
    index.unlink()

    assert spans(files) == [(0, 5, 7), (5, 8, 8)]
    assert decode_index(index.read_bytes()) == kept


async def test_readers_of_a_cut_segment_get_nothing_behind_the_cut(files: LogFiles) -> None:
    async with follow(files, cache_bytes=0) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0), small(5))
        await settled(follower)
        await follower.cut(5, 7)
        await follower.write(small(5, 3, epoch=8))
        await settled(follower)
        follower.log.commit(8)
        assert await values_in(follower.log) == [
            *(b"7-%d" % each for each in range(5)),
            *(b"8-%d" % each for each in range(5, 8)),
        ]
        assert await follower.log.find_timestamp(0) == 0


async def test_an_index_of_what_was_cut_is_not_left_behind(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, or when the process is killed before the new one is written."""

    def refuse(path: Path, contents: bytes) -> None:
        raise DiskFullError("no room")

    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0), small(5))
        await engine.logs[0].roll()
        index = files.segment().with_suffix(".idx")
        assert index.exists()
        monkeypatch.setattr(segments_cut, "write_file_atomically", refuse)
        assert await follower.cut(5, 7) == LogIsCut(5)
        assert not index.exists()
        await follower.write(large(5, epoch=8))
    assert spans(files) == [(0, 5, 7), (5, 10, 8)]


async def test_later_segments_are_removed(files: LogFiles) -> None:
    async with follow(files, segment_bytes=1) as engine:
        follower = Follower(engine.logs[0])
        for offset in range(0, 25, 5):
            await follower.write(large(offset))
        assert len(engine.logs[0].segments) == 5
        assert await follower.cut(10, 7) == LogIsCut(10)
        names = sorted(path.name for path in files.place.directory.glob("*.log"))
        assert names == [f"{offset:020d}.log" for offset in (0, 5, 10)]
        await follower.write(large(10, epoch=9))
    assert spans(files) == [(0, 5, 7), (5, 10, 7), (10, 15, 9)]


async def test_all_of_a_log_is_cut(files: LogFiles) -> None:
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(large(0))
        assert await follower.cut(0, 0) == LogIsCut(0)
        assert not list(files.place.directory.glob("*.log"))
        assert files.inventory.newest_segment(TOPIC_ID, PARTITION) is None
        await follower.write(small(0, epoch=9))
    assert spans(files) == [(0, 5, 9)]


@pytest.mark.parametrize("start", [2, 100])
async def test_a_reset_log_goes_on_elsewhere(files: LogFiles, start: int) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        for batch in (large(0), small(5)):
            await follower.write(batch)
        await follower.cut(start, 6, is_reset=True)
        assert not list(files.place.directory.glob("*.log"))
        assert files.inventory.newest_segment(TOPIC_ID, PARTITION) is None
        log = follower.log
        ends = (log.log_start, log.log_end, log.high_watermark, log.durable_end)
        assert ends == (start,) * 4
        await follower.write(small(start, 3, epoch=8, previous=6))
    assert spans(files) == [(start, start + 3, 8)]


async def test_a_reset_that_was_cut_short_is_no_damage(files: LogFiles) -> None:
    """A start removes what is left of the log, whose first segment may be anywhere."""
    async with follow(files, segment_bytes=1) as engine:
        follower = Follower(engine.logs[0])
        for offset in range(0, 15, 5):
            await follower.write(large(offset))
        follower.log.commit(15)
        await follower.log.trim(5)
    files.inventory.cut_segments(TOPIC_ID, PARTITION, None)
    (files.place.directory / f"{0:020d}.cut").touch()

    assert check_log(files.place, LogEvidence(0), None, files.pool) == []
    log = files.recover_all()
    assert [(each.base_offset, each.end_offset) for each in log.segments] == [(5, 5)]


async def test_a_cut_below_the_high_watermark_lowers_it(files: LogFiles) -> None:
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0), small(5))
        follower.log.commit(10)
        assert await follower.cut(5, 7) == LogIsCut(5)
        assert follower.log.high_watermark == 5


async def test_a_log_that_starts_within_a_batch_is_cut_behind_its_start(files: LogFiles) -> None:
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(large(0), large(5), large(10))
        follower.log.commit(15)
        await follower.log.trim(7)
        outcome = await follower.cut(5, 7)
        assert outcome == CutRefused("offset 5 is below the log start 7")
        assert await follower.cut(10, 7) == LogIsCut(10)
        await follower.write(large(10, epoch=8))
        assert (follower.log.log_start, follower.log.log_end) == (7, 15)
    found = files.recover_all()
    assert (found.start.log_start, found.segments[-1].end_offset) == (7, 15)


# --- producers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("known_end", "is_reset"), [(10, False), (1, True)])
async def test_a_checkpoint_of_producers_does_not_say_what_was_behind_a_cut(
    files: LogFiles, known_end: int, is_reset: bool
) -> None:
    """A log that is reset keeps none."""
    path = files.place.directory / PRODUCERS
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(large(0), large(5))
        save_checkpoint(path.parent, NOTHING._replace(end_offset=known_end))
        assert await follower.cut(5, 7, is_reset=is_reset) == LogIsCut(5)
        assert decode_checkpoint(path.read_bytes()).end_offset == 5


# --- what stands beside ---------------------------------------------------------------------------


async def test_what_was_set_aside_is_cut(files: LogFiles) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        batches = [small(0), small(5)]
        for batch in batches:
            await follower.write(batch)
        save_rescued(files.place.directory, [each.contents() for each in batches])
        await follower.cut(5, 7)
        (kept,) = load_rescued(files.place.directory)
        assert kept.end_offset == 5
        await follower.cut(0, 0)
    assert not (files.place.directory / RESCUED).exists()


async def test_a_proven_end_does_not_outlive_a_recorded_loss(files: LogFiles) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(large(0))
        await follower.write(small(5))
        save_damage(files.place.directory, RecordedDamage(8, 9, (Loss(6, 7),)))
        await follower.cut(5, 7)
    assert load_damage(files.place.directory) == RecordedDamage(5, 0, ())
    assert spans(files) == [(0, 5, 7)]


# --- disks that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_spilled", [True, False])
@pytest.mark.parametrize("end", [5, 10])
async def test_nothing_of_a_failed_write_comes_back_behind_a_cut(
    files: LogFiles, disk: FaultyDisk, end: int, is_spilled: bool
) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0))
        await follower.write(small(5))
        if is_spilled:
            await settled(follower)
        disk.fail("pwritev", kept_bytes=100 * 4096)
        disk.fail("ftruncate")
        assert isinstance(await follower.append(large(10)), AppendFailed)
        assert await follower.cut(end, 7) == LogIsCut(end)
        assert disk.is_done
    assert spans(files)[-1][1] == end


async def test_no_frame_that_failed_comes_back_behind_a_cut(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0))
        disk.fail("pwritev", kept_bytes=4096)
        assert isinstance(await follower.append(small(5)), AppendFailed)
        assert await follower.cut(5, 7) == LogIsCut(5)
        assert disk.is_done
    assert spans(files) == [(0, 5, 7)]


async def test_a_cut_that_failed_does_not_come_back_behind_one_at_the_end(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with follow(files, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0), small(5))
        disk.fail("pwritev", kept_bytes=4096)
        assert isinstance(await follower.cut(5, 7), CutFailed)
        assert await follower.cut(10, 7) == LogIsCut(10)
        assert disk.is_done
    assert spans(files)[-1][1] == 10


async def test_a_reset_that_fails_keeps_the_requests_of_what_is_left(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(stored_batch([b"1"], 0, epoch=7, sequence=3))
        await settled(follower)
        known = follower.log.producers()
        disk.fail("fsync")  # of the inventory, behind the journal's entry
        assert isinstance(await follower.cut(9, 7, is_reset=True), CutFailed)
        assert follower.log.log_end == 1
        assert await follower.cut(1, 7) == LogIsCut(1)
        assert follower.log.producers() == known
        assert known.producers


async def test_a_cut_whose_entry_fails_has_changed_nothing(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with follow(files) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(small(0), small(5))
        disk.fail("pwritev")
        assert isinstance(await follower.cut(5, 7), CutFailed)
        await follower.write(small(10))
    assert spans(files) == [(0, 15, 7)]


@pytest.mark.parametrize("call", ["unlink", "fsync", "open", "replace", "fdatasync"])
async def test_a_cut_that_has_failed_must_be_repeated(
    files: LogFiles, disk: FaultyDisk, call: str
) -> None:
    async with follow(files, segment_bytes=1) as engine:
        follower = Follower(engine.logs[0])
        for offset in range(0, 20, 5):
            await follower.write(large(offset))
        disk.fail(call)
        outcome = await follower.cut(5, 7)
        disk.forget_faults()
        if isinstance(outcome, CutFailed) and isinstance(outcome.error, StorageFailedError):
            misfit = await follower.append(small(follower.log.log_end))
            if isinstance(misfit, Misfit):
                assert misfit.reason is MisfitReason.CUT_FAILED
            assert await follower.cut(5, 7) == LogIsCut(5)
        await follower.write(small(5, epoch=8))
    assert spans(files) == [(0, 5, 7), (5, 10, 8)]


def test_a_cut_takes_no_entry_of_the_index_behind_it(files: LogFiles) -> None:
    async def run() -> SegmentState:
        async with follow(files) as engine:
            follower = Follower(engine.logs[0])
            for offset in range(0, 50, 5):
                await follower.write(large(offset))
            await follower.cut(35, 7)
            return engine.logs[0].segments[0]

    state = asyncio.run(run())
    found = files.recover_all().segments[0]
    assert (state.entries, state.epochs) == (found.entries, found.epochs)
    assert state.last_append_time_us == found.last_append_time_us
    assert state.largest_timestamp_us == found.largest_timestamp_us
    assert state.position == found.position
    assert errno.EIO


async def test_a_read_of_what_a_cut_has_just_removed_finds_no_damage(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader reads it for a follower when another one comes, and cuts its log."""
    removed, may_end = threading.Event(), threading.Event()
    synced = os.fsync

    def fsync(fd: int) -> None:
        if not files.segment(5).exists():
            removed.set()
            assert may_end.wait(10)
        synced(fd)

    async with follow(files, segment_bytes=1, cache_bytes=1) as engine:
        follower, found = Follower(engine.logs[0]), list[LogPlace]()
        log = follower.log
        engine.resources.quarantine.on_found = found.append
        for offset in (0, 5, 10):
            await follower.write(large(offset))
        segments, state = log.segments, log.segments[1]
        monkeypatch.setattr(os, "fsync", fsync)
        cut = follower.begin_cut(5, 7)
        assert await asyncio.to_thread(removed.wait, 10)
        for known in (segments[1], state):
            segments[1:] = [known]  # as a read found it that has begun now, or before
            reading = asyncio.create_task(log.read_written(7, 1))
            await asyncio.sleep(0)
            segments[1:] = [segments[0].follow_on(5)]
            with pytest.raises(OffsetOutOfRangeError):
                await reading
        may_end.set()
        assert await cut == LogIsCut(5)
        assert found == []
