"""A log's start and its end: what lingers, what is trimmed, what a close leaves."""

import asyncio
import errno
import gc
import tracemalloc
from collections.abc import Callable, Coroutine

import pytest
from msgspec.structs import replace

from tailrace_broker.codec.journal import (
    JournalFileHeader,
    encode_file_header,
    read_file_header,
)
from tailrace_broker.core.log.epochs import EpochEnd
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.damage import LostEnd
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    CorruptPartitionError,
    DiskFullError,
    OffsetOutOfRangeError,
    ReadFailedError,
    StorageFailedError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.recovery import UNKNOWN_OFFSETS_MAX
from tests.support.storage.batches import TIME_US, Event
from tests.support.storage.storage import (
    MEBIBYTE,
    SYNCED,
    Appends,
    FaultyDisk,
    LogFiles,
    open_engine_on,
    open_log,
    records_of,
    values_in,
)

Scenario = Callable[[], Coroutine[None, None, None]]
LONG_MS = 60_000


def run(scenario: Scenario) -> None:
    asyncio.run(scenario())


# --- linger ---------------------------------------------------------------------------------------


async def test_events_wait_for_others_for_their_time(files: LogFiles) -> None:
    counters = Counters()

    settings = replace(SYNCED, linger_ms=1)
    async with open_log(files, settings=settings, counters=counters) as log:
        appends = Appends(log)
        appends.event(b"0")
        await asyncio.sleep(0)
        appends.event(b"1")
        assert await appends.outcomes() == [0, 1]
        await Appends(log).event(b"2")  # the next one waits again
        assert [each.header.record_count for each in await log.read(0, MEBIBYTE)] == [2, 1]
    assert counters.journal_writes == 2


@pytest.mark.parametrize("end", ["so many bytes", "a batch", "a close", "a large event"])
async def test_events_wait_no_longer(files: LogFiles, end: str) -> None:
    """Each of them ends a linger of a minute."""

    settings = replace(SYNCED, linger_ms=LONG_MS, linger_bytes=100)
    async with open_log(files, settings=settings) as log:
        appends = Appends(log)
        first = appends.event(b"0")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.high_watermark == 0
        if end == "so many bytes":
            appends.event(bytes(50))
            await asyncio.sleep(0)
            assert not first.done()
            appends.event(bytes(50))
        elif end == "a batch":
            appends.batch([b"1"])
        elif end == "a large event":
            appends.event(bytes(MEBIBYTE))
        else:
            await log.close()
        outcomes = await appends.outcomes()
        assert outcomes == list(range(len(outcomes)))


async def test_without_a_bound_of_bytes_only_time_ends_a_linger(files: LogFiles) -> None:
    async with open_log(files, settings=replace(SYNCED, linger_ms=LONG_MS)) as log:
        appends = Appends(log)
        appends.event(bytes(MEBIBYTE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.high_watermark == 0
        log.settings = SYNCED  # as altered: the next event takes it along
        appends.event(b"1")
        assert await appends.outcomes() == [0, 1]


# --- trim -----------------------------------------------------------------------------------------


async def fill(log: PartitionLog, count: int = 6) -> None:
    """Segments of two events each, at 0, 2, 4; the last event is pending."""
    for number in range(count):
        await Appends(log).event(b"%d" % number)
        if number < count - 1:
            await log.spilled()


async def test_a_log_begins_at_any_offset_and_whole_segments_below_it_are_removed(
    files: LogFiles,
) -> None:
    async with open_log(files, segment_bytes=2 * BLOCK_BYTES, cache_bytes=0) as log:
        await fill(log)
        for wanted, first_segment in ((0, 0), (1, 0), (2, 2), (3, 2), (2, 2), (5, 5)):
            await log.trim(wanted)
            assert log.log_start == max(wanted, log.log_start)
            bases = [state.base_offset for state in log.segments]
            assert bases == list(range(first_segment, 6, 2))
        assert await values_in(log) == [b"5"]
        with pytest.raises(OffsetOutOfRangeError) as refused:
            await log.read(4, 1)
        assert refused.value.members == {"logStart": 5, "highWatermark": 6}
        assert await Appends(log).event(b"6") == 6
    async with open_log(files) as log:
        assert (log.log_start, await values_in(log)) == (5, [b"5", b"6"])
        with pytest.raises(OffsetOutOfRangeError):
            await log.read(4, 1)
    assert not {"00000000000000000000.log", "00000000000000000002.idx"} & {*files.contents()}


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_log_begins_inside_of_a_batch(files: LogFiles, is_killed: bool) -> None:
    """Its batch is answered as a whole: who asks for an offset passes over what is below."""

    async with open_log(files, is_killed=is_killed) as log:
        await Appends(log).batch([b"0", b"1", b"2"])  # pending: it is spilled before
        await log.trim(1)
    for _ in range(2):
        async with open_log(files, is_killed=is_killed) as log:
            assert (log.log_start, log.high_watermark) == (1, 3)
            (batch,) = await log.read(1, 1)
            assert batch.header.base_offset == 0
            with pytest.raises(OffsetOutOfRangeError):
                await log.read(0, 1)


async def test_a_log_start_never_falls(files: LogFiles) -> None:
    async with open_log(files, segment_bytes=2 * BLOCK_BYTES) as log:
        await fill(log)
        await log.trim(3)
        stored = files.contents()["log-start.json"]
        for lower in (0, 2, 3):
            await log.trim(lower)
            assert (log.log_start, files.contents()["log-start.json"]) == (3, stored)


async def test_epochs_begin_at_the_log_start_now_and_after_a_restart(files: LogFiles) -> None:
    for epoch in (1, 2, 3):
        files.epoch = epoch
        async with open_log(files) as log:
            await Appends(log).batch([b"0", b"1"])
            if epoch == 3:
                await log.trim(3)
                assert log.end_of_epoch(1) == EpochEnd(None, 3)
    async with open_log(files) as log:
        assert log.end_of_epoch(1) == EpochEnd(None, 3)
        assert log.end_of_epoch(2) == EpochEnd(2, 4)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_log_can_lose_all_that_it_has(files: LogFiles, is_killed: bool) -> None:
    """What is pending goes to its segment before."""

    for number in range(3):
        async with open_log(files, is_killed=is_killed) as log:
            assert (log.log_start, log.high_watermark) == (2 * number, 2 * number)
            assert await Appends(log).batch([b"0", b"1"]) == 2 * number
            (batch,) = await log.read(2 * number, 1)
            assert batch.header.previous_epoch == (1 if number else 0)
            assert batch.header.append_time_us > 0
            await log.trim(log.high_watermark)
            assert (log.size_bytes, log.pending_bytes) == (0, 0)
            assert await log.read(log.high_watermark, 1) == []
    assert [*files.contents()] == ["log-start.json"]


TRIM_CALLS = ["ftruncate", "open", "fsync", "replace", "unlink", "pwritev"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("is_killed", [False, True], ids=["goes on", "restarts"])
@pytest.mark.parametrize("skipped", range(4))
@pytest.mark.parametrize("call", TRIM_CALLS)
async def test_a_trim_that_fails_anywhere_is_made_good_by_the_next(
    files: LogFiles, disk: FaultyDisk, call: str, skipped: int, is_killed: bool
) -> None:
    async def trim_and_check(log: PartitionLog) -> None:
        await log.trim(6)
        assert await values_in(log) == []
        assert await Appends(log).event(b"6") == 6

    async with open_log(
        files, segment_bytes=2 * BLOCK_BYTES, cache_bytes=0, is_killed=is_killed
    ) as log:
        await fill(log)
        disk.fail(call, skipped=skipped)
        try:
            await log.trim(6)
        except TailraceError as error:
            assert isinstance(error, StorageFailedError)  # noqa: PT017  it need not fail
        disk.forget_faults()
        kept = [b"%d" % number for number in range(log.log_start, 6)]
        assert await values_in(log) == kept
        if not is_killed:
            await trim_and_check(log)
    if is_killed:
        async with open_log(files, segment_bytes=2 * BLOCK_BYTES, cache_bytes=0) as log:
            assert await values_in(log) == [b"%d" % each for each in range(log.log_start, 6)]
            await trim_and_check(log)
    files.recover()  # a start removes what could not be removed
    assert [name for name in files.contents() if name.endswith(".log")] == [f"{6:020d}.log"]


async def test_a_read_of_what_is_trimmed_meanwhile_learns_where_the_log_starts(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_log(files, segment_bytes=2 * BLOCK_BYTES, cache_bytes=0) as log:
        await fill(log)
        reading = asyncio.create_task(log.read(0, 1))
        await asyncio.sleep(0)
        await log.trim(4)
        # The read came to its file before, or not: it never serves anything else.
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, OffsetOutOfRangeError)
        else:
            assert records_of(outcome)[0].value == b"0"
        log.segments.insert(0, SegmentState(0, 2, position=BLOCK_BYTES))  # as it saw them
        with pytest.raises(OffsetOutOfRangeError):
            await log._read_from_disk(0, 1, 2, log._resources.reading)
        del log.segments[0]


async def test_a_find_by_time_in_what_is_trimmed_meanwhile_goes_on_behind_it(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_log(files, segment_bytes=BLOCK_BYTES, cache_bytes=0) as log:
        for value in (b"0", b"1", b"2"):
            await Appends(log).event(value)
            await log.spilled()
        stale = log.segments[0]
        await log.trim(1)
        log.segments.insert(0, stale)  # as the find saw it when it began
        assert await log.find_timestamp(TIME_US) == 1
        del log.segments[0]

        disk.fail("preadv")
        with pytest.raises(ReadFailedError):
            await log.find_timestamp(TIME_US)


TIMES = [5, 9, 1, 2, 9, 3]


@pytest.mark.parametrize("batch_records", [1, 3, 6])
@pytest.mark.parametrize("is_spilled", [False, True])
@pytest.mark.parametrize("cache_bytes", [0, MEBIBYTE])
async def test_a_find_by_time_finds_nothing_below_the_log_start(
    files: LogFiles, batch_records: int, is_spilled: bool, cache_bytes: int
) -> None:
    events = [Event(b"%d" % number, timestamp_us=time) for number, time in enumerate(TIMES)]

    async with open_log(files, cache_bytes=cache_bytes) as log:
        for first in range(0, len(events), batch_records):
            await Appends(log).records(events[first : first + batch_records])
        if is_spilled:
            await log.spilled()
        for log_start in range(len(TIMES) + 1):
            if log_start < len(TIMES):
                await log.trim(log_start)
            else:  # at the end it begins with an empty segment
                await log.trim(log.high_watermark)
            for time in range(11):
                later = (at for at in range(log_start, len(TIMES)) if TIMES[at] >= time)
                assert await log.find_timestamp(time) == next(later, None)


# --- close ----------------------------------------------------------------------------------------


async def test_a_close_on_a_full_disk_leaves_the_tail_in_the_journal(
    files: LogFiles, disk: FaultyDisk
) -> None:
    for number in range(3):
        async with open_log(files) as log:
            assert await values_in(log) == [b"%d" % each for each in range(number)]
            await Appends(log).event(b"%d" % number)
            disk.fail("open", errno.ENOSPC)
            await log.close()
            assert log.pending_bytes > 0
            disk.fail("open", errno.ENOSPC)
    disk.forget_faults()
    assert len(files.recover_all().pending) == 3


async def test_a_log_that_goes_away_lets_the_journal_forget_it(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_engine_on(files) as engine:
        (log,) = engine.logs
        await Appends(log).event(b"0")
        log.give_up(TopicNotFoundError("deleted"))
        disk.fail("open")
        await log.close()
        assert log.pending_bytes == 0
        assert not any(file.pending for file in engine.replayed.files)


async def test_a_spill_that_fails_is_made_by_a_later_one(files: LogFiles, disk: FaultyDisk) -> None:
    counters = Counters()

    async with open_log(files, counters=counters) as log:
        for call in ("open", "fsync", "pwritev"):
            await Appends(log).event(b"1")
            disk.fail(call, errno.ENOSPC)
            assert isinstance(await log.spilled(), DiskFullError)
            assert log.pending_bytes > 0
        assert await log.spilled() is None
        assert (log.pending_bytes, counters.log_write_errors, counters.log_writes) == (0, 3, 1)
    assert files.values() == [b"1"] * 3


# --- recovery with the journal --------------------------------------------------------------------


async def append_two(files: LogFiles, *, spills_first: bool) -> None:
    """Each in a frame of its own."""
    async with open_log(files, is_killed=True) as log:
        await Appends(log).event(b"0")
        if spills_first:
            await log.spilled()
        await Appends(log).event(b"1")


def spoil_journal(files: LogFiles, batch: int, at: int) -> None:
    """Damage a byte of a batch."""
    (path,) = files.journal()
    stored = bytearray(path.read_bytes())
    position = -1
    for _ in range(batch + 1):
        position = stored.index(b"TRLB", position + 1)
    stored[position + at] ^= 1
    path.write_bytes(stored)


def test_behind_a_damaged_batch_that_the_journal_alone_held_the_log_goes_on(
    files: LogFiles,
) -> None:
    run(lambda: append_two(files, spills_first=False))
    spoil_journal(files, batch=0, at=130)

    async def scenario() -> None:
        for new in range(1, 4):
            async with open_log(files, is_killed=new == 1) as log:
                assert [each[2:4] for each in log.quarantined] == [(0, 1)]
                with pytest.raises(CorruptPartitionError) as refused:
                    await log.read(0, MEBIBYTE)
                assert refused.value.members["nextOffset"] == 1
                batches = await log.read(1, MEBIBYTE)
                assert batches[-1].header.end_offset == log.high_watermark == 1 + new
                await Appends(log).event(b"new")
            assert files.damage_file().exists()

    run(scenario)


def test_a_damaged_batch_that_is_in_the_segment_is_none(files: LogFiles) -> None:
    run(lambda: append_two(files, spills_first=True))
    spoil_journal(files, batch=0, at=130)
    recovered = files.recover_all()
    assert (recovered.segments[0].end_offset, len(recovered.pending)) == (1, 1)


def test_the_last_write_of_a_killed_broker_may_be_torn(files: LogFiles) -> None:
    run(lambda: append_two(files, spills_first=False))
    spoil_journal(files, batch=1, at=130)
    assert len(files.recover_all().pending) == 1


def test_a_frame_that_cannot_be_reported_at_all_keeps_the_broker_from_starting(
    files: LogFiles,
) -> None:
    run(lambda: append_two(files, spills_first=True))
    (path,) = files.journal()
    before = path.read_bytes()
    spoil_journal(files, batch=0, at=20)  # its header
    damaged = path.read_bytes()
    with pytest.raises(
        CorruptMetadataError,
        match=r"\.journal is damaged: frame 1, which was .* touch .*\.journal\.lost",
    ):
        files.recover_all()
    assert path.read_bytes() == damaged
    path.write_bytes(before)
    assert len(files.recover_all().pending) == 1


def test_a_journal_whose_only_head_is_damaged_is_read_by_its_first_frame(
    files: LogFiles,
) -> None:
    run(lambda: append_two(files, spills_first=False))
    (path,) = files.journal()
    whole = files.recover_all().pending
    path.write_bytes(bytes(BLOCK_BYTES) + path.read_bytes()[BLOCK_BYTES:])
    assert [each.header for each in files.recover_all().pending] == [each.header for each in whole]


def test_a_journal_whose_head_and_first_frame_are_damaged_keeps_the_broker_from_starting(
    files: LogFiles,
) -> None:
    run(lambda: append_two(files, spills_first=False))
    (path,) = files.journal()
    path.write_bytes(bytes(BLOCK_BYTES + 48) + path.read_bytes()[BLOCK_BYTES + 48 :])
    with pytest.raises(CorruptMetadataError, match=r"first block cannot be read; .* touch "):
        files.recover_all()
    accepted = path.with_name(f"{path.name}.lost.1")
    accepted.touch()
    assert files.recover_all().pending == []
    accepted.unlink()

    path.unlink()  # as it says: to go on without the events that only it held
    assert files.recover_all().pending == []
    path.touch()
    assert files.recover_all().pending == []


def test_a_segment_that_has_lost_what_the_journal_follows_is_a_loss(files: LogFiles) -> None:
    run(lambda: append_two(files, spills_first=True))
    (path,) = files.journal()
    stored = path.read_bytes()
    files.write_segment(bytes(BLOCK_BYTES))
    assert len(files.recover_all().pending) == 2  # the journal has both still

    second = stored.index(b"TRLJ", stored.index(b"TRLJ") + 1)
    head = encode_file_header(JournalFileHeader(1, read_id(stored), 2, 0))
    path.write_bytes(head.ljust(BLOCK_BYTES, b"\0") + stored[second:])
    assert files.recover_all().lost_end == LostEnd(0, 1, 2 + UNKNOWN_OFFSETS_MAX)


def read_id(stored: bytes) -> int:
    header = read_file_header(memoryview(stored))
    assert header is not None
    return header.journal_id


# --- idle logs ------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
async def test_2000_idle_logs_take_little_memory_and_no_file(files: LogFiles) -> None:
    count = 2000

    async with open_engine_on(files, partitions=()) as engine:
        places = [files.place_of(number) for number in range(count)]
        gc.collect()
        tracemalloc.start()
        logs = [
            PartitionLog(place, [SegmentState(0, 0)], engine.resources, SYNCED, engine.role)
            for place in places
        ]
        used_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(logs) == count
        assert used_bytes / count < 2048
        assert len(engine.resources.files) == 0
    assert not (files.directory / "topic").exists()
