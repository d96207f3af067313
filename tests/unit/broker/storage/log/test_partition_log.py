import asyncio
import errno
import os
import random

import pytest

from tailrace.wire import HEADER_BYTES, Flag
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    DiskFullError,
    OffsetOutOfRangeError,
    ReadFailedError,
    StorageFailedError,
    TopicNotFoundError,
)
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.log.tail import INLINE_COMPRESS_BYTES_MAX
from tests.support.storage.batches import PARTITION, TIME_US, Event, body_of
from tests.support.storage.storage import (
    MEBIBYTE,
    Appends,
    FaultyDisk,
    LogFiles,
    open_log,
    records_of,
)


def bytes_of(batches: list[StoredBatch]) -> bytes:
    return b"".join(buffer for batch in batches for buffer in batch.buffers)


# --- appends --------------------------------------------------------------------------------------


async def test_events_of_one_turn_of_the_loop_share_a_batch(files: LogFiles) -> None:
    async with open_log(files) as log:
        appends = Appends(log)
        for number in range(5):
            appends.event(b"%d" % number, key=b"k%d" % number)
        assert await appends.outcomes() == [0, 1, 2, 3, 4]

        (batch,) = await log.read(0, MEBIBYTE)
        assert [(record.key, record.value) for record in records_of([batch])] == [
            (b"k%d" % number, b"%d" % number) for number in range(5)
        ]


async def test_a_batch_says_of_its_events_only_what_holds_for_all(files: LogFiles) -> None:
    async with open_log(files) as log:
        appends = Appends(log)
        appends.event(b"0", flags=Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS)
        appends.event(b"1", flags=Flag.JSON_VALUES)
        await appends.outcomes()
        await appends.event(b"2", flags=Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS)
        assert [batch.header.flags for batch in await log.read(0, MEBIBYTE)] == [
            Flag.JSON_VALUES,
            Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS,
        ]


async def test_a_batch_between_events_keeps_its_place(files: LogFiles) -> None:
    async with open_log(files) as log:
        appends = Appends(log)
        appends.event(b"0")
        appends.batch([b"1", b"2"])
        appends.event(b"3")
        appends.event(b"4")
        appends.batch([b"5"])
        assert await appends.outcomes() == [0, 1, 3, 4, 5]
        assert [batch.header.record_count for batch in await log.read(0, MEBIBYTE)] == [
            1,
            2,
            2,
            1,
        ]
    assert files.values() == [b"%d" % number for number in range(6)]


async def test_large_appends_are_compressed_and_stored_like_small_ones(files: LogFiles) -> None:
    values = [b"a" * (2 * INLINE_COMPRESS_BYTES_MAX), os.urandom(2 * INLINE_COMPRESS_BYTES_MAX)]

    async with open_log(files) as log:
        appends = Appends(log)
        for value in values:
            appends.batch([value])
        await appends.outcomes()
    assert files.values() == values
    assert files.segment().stat().st_size < 3 * INLINE_COMPRESS_BYTES_MAX


@pytest.mark.parametrize(
    ("error", "kind"),
    [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)],
    ids=["no space", "I/O error"],
)
async def test_a_failed_write_is_asked_to_all_its_appends_and_the_log_goes_on(
    files: LogFiles, disk: FaultyDisk, error: int, kind: type[Exception]
) -> None:
    async with open_log(files) as log:
        appends = Appends(log)
        appends.event(b"0")
        await appends.outcomes()
        disk.fail("pwritev", error, kept_bytes=BLOCK_BYTES)
        appends.event(b"lost")
        appends.event(b"lost")
        appends.batch([b"lost", b"lost"])
        outcomes = await appends.outcomes()
        assert [type(outcome) for outcome in outcomes[1:]] == [kind] * 3
        assert log.high_watermark == log.log_end == 1

        assert await appends.event(b"1") == 1
    assert files.values() == [b"0", b"1"]


async def test_a_close_waits_for_the_appends_under_way(files: LogFiles, disk: FaultyDisk) -> None:
    async with open_log(files) as log:
        appends = Appends(log)
        await appends.event(b"0")
        disk.hold_writes()
        appends.event(b"1")
        await disk.wait_for_held_write()
        appends.event(b"2")
        closed = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        assert not closed.done()

        disk.let_writes_go_on()
        await closed
        assert await appends.outcomes() == [0, 1, 2]


async def test_a_ready_made_batch_is_stored_unchanged_and_by_itself(files: LogFiles) -> None:
    body = body_of([Event(b"1" * 300), Event(b"2", key=None)])

    async with open_log(files) as log:
        appends = Appends(log)
        appends.event(b"0")
        appends.body(body)
        appends.event(b"3")
        assert await appends.outcomes() == [0, 1, 3]

        _, batch, _ = await log.read(0, MEBIBYTE)
        stored = batch.contents()[HEADER_BYTES:]
        assert stored[: len(body.payload)] == body.payload
        assert (batch.header.base_offset, batch.header.record_count) == (1, 2)
    assert files.values() == [b"0", b"1" * 300, b"2", b"3"]


async def test_a_log_knows_how_much_it_stores(files: LogFiles) -> None:
    async with open_log(files, segment_bytes=BLOCK_BYTES) as log:
        assert log.size_bytes == 0
        for number in range(3):
            await Appends(log).event(b"0")
            assert log.pending_bytes == sum(
                batch.header.batch_bytes for batch in await log.read(number, MEBIBYTE)
            )
            assert log.size_bytes == number * BLOCK_BYTES + log.pending_bytes
            await log.spilled()
        assert log.size_bytes == 3 * BLOCK_BYTES


# --- reads ----------------------------------------------------------------------------------------


async def test_a_record_is_not_read_before_it_is_durable(files: LogFiles, disk: FaultyDisk) -> None:
    async with open_log(files, cache_bytes=0) as log:
        appends = Appends(log)
        await appends.event(b"0")
        disk.hold_writes()
        appends.event(b"1")
        await disk.wait_for_held_write()
        assert [record.value for record in records_of(await log.read(0, MEBIBYTE))] == [b"0"]
        assert await log.read(1, MEBIBYTE) == []
        with pytest.raises(OffsetOutOfRangeError):
            await log.read(2, MEBIBYTE)

        disk.let_writes_go_on()
        await appends.outcomes()
        assert [record.value for record in records_of(await log.read(1, MEBIBYTE))] == [b"1"]


async def test_offsets_outside_the_log_are_refused_with_its_bounds(files: LogFiles) -> None:
    async with open_log(files) as log:
        await Appends(log).batch([b"0", b"1"])
        for offset in (-1, 3):
            with pytest.raises(OffsetOutOfRangeError) as refused:
                await log.read(offset, MEBIBYTE)
            assert refused.value.members == {"logStart": 0, "highWatermark": 2}
        assert await log.read(2, MEBIBYTE) == []


async def test_memory_and_disk_give_the_same_bytes(files: LogFiles) -> None:
    generator = random.Random(17)
    groups = [
        [generator.randbytes(generator.choice([1, 200, 4_000, 90_000])) for _ in range(count)]
        for count in [generator.randint(1, 8) for _ in range(60)]
    ]

    async with open_log(files, cache_bytes=64 * MEBIBYTE) as log:
        for values in groups:
            await Appends(log).batch(values)
        end = log.high_watermark
        questions = [
            (generator.randrange(end), generator.choice([1, 5_000, 200_000, MEBIBYTE]))
            for _ in range(150)
        ]
        from_memory = [bytes_of(await log.read(*question)) for question in questions]
    async with open_log(files, cache_bytes=0) as log:
        from_disk = [bytes_of(await log.read(*question)) for question in questions]
    assert from_disk == from_memory


async def test_a_reader_goes_from_the_disk_over_to_memory_without_a_gap(files: LogFiles) -> None:
    """Segments roll on the way, and only the newest batches are in memory."""
    values = [b"%d" % number * 100 for number in range(300)]

    async with open_log(files, segment_bytes=20 * BLOCK_BYTES, cache_bytes=10_000) as log:
        for value in values:
            await Appends(log).batch([value])
            if int(value[:1]) % 2:  # several writes are one spill, or one each
                await log.spilled()
        read: list[bytes | None] = []
        while len(read) < log.high_watermark:
            batches = await log.read(len(read), 5_000)
            assert batches[0].header.base_offset == len(read)
            read += [record.value for record in records_of(batches)]
        assert read == values
    assert len(list(files.place.directory.glob("*.log"))) > 5


async def test_damage_on_disk_is_never_served(files: LogFiles) -> None:
    async with open_log(files, segment_bytes=BLOCK_BYTES, cache_bytes=0) as log:
        for value in (b"0", b"1", b"2"):
            await Appends(log).event(value)
            await log.spilled()
        stored = bytearray(files.segment(1).read_bytes())
        stored[140] ^= 1
        files.write_segment(bytes(stored), 1)
        with pytest.raises(CorruptPartitionError, match=r"1\.log.*Restore the file") as refused:
            await log.read(1, MEBIBYTE)
        assert refused.value.members == {
            "topic": "topic",
            "partition": PARTITION,
            "firstOffset": 1,
            "lastOffset": 1,
            "nextOffset": 2,
            "accepted": False,
        }
        assert [(each.position, each.first_offset) for each in log.quarantined] == [(0, 1)]

        for offset, value in ((0, b"0"), (2, b"2")):
            records = records_of(await log.read(offset, MEBIBYTE))
            assert [record.value for record in records] == [value]


# --- finds by time --------------------------------------------------------------------------------


async def test_a_recent_time_is_found_without_the_disk(files: LogFiles, disk: FaultyDisk) -> None:
    async with open_log(files) as log:
        for number in range(4):
            events = [Event(b"", timestamp_us=TIME_US + number), Event(b"", timestamp_us=0)]
            await Appends(log).records(events)
        disk.calls.clear()
        assert [await log.find_timestamp(TIME_US + each) for each in range(-1, 5)] == [
            0,
            0,
            2,
            4,
            6,
            None,
        ]
        assert disk.calls.total() == 0


async def test_segments_that_are_all_earlier_are_not_looked_into(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_log(files, segment_bytes=BLOCK_BYTES, cache_bytes=0) as log:
        for number in range(20):
            await Appends(log).records([Event(b"", timestamp_us=number)])
            await log.spilled()
        disk.calls.clear()
        assert await log.find_timestamp(17) == 17
        # Headers from the index's entry on, then the batch.
        assert disk.calls["preadv"] == 2
        assert await log.find_timestamp(20) is None
        assert disk.calls["preadv"] == 2


async def test_a_record_that_is_not_durable_yet_is_not_found(
    files: LogFiles, disk: FaultyDisk
) -> None:
    """Its write may have ended, so that the index names it, and the loop not know yet."""

    async with open_log(files, cache_bytes=0) as log:
        await Appends(log).records([Event(b"", timestamp_us=1)])
        committed = log.high_watermark
        await Appends(log).records([Event(b"", timestamp_us=5)])
        log._tail.replica.high_watermark = committed
        assert await log.find_timestamp(2) is None
        assert await log.find_timestamp(1) == 0
        log._tail.replica.high_watermark = committed + 1


async def test_a_find_by_time_that_meets_damage_says_where(files: LogFiles) -> None:
    async with open_log(files, cache_bytes=0) as log:
        for number in range(3):
            await Appends(log).records([Event(b"", timestamp_us=number)])
            await log.spilled()
        stored = bytearray(files.segment().read_bytes())
        stored[BLOCK_BYTES + 100] ^= 1
        files.write_segment(bytes(stored))
        with pytest.raises(CorruptPartitionError, match=r"0\.log, from byte 4096") as refused:
            await log.find_timestamp(2)
        assert refused.value.members == {"topic": "topic", "partition": PARTITION}
        assert await log.find_timestamp(0) == 0
        files.write_segment(bytes(stored[:BLOCK_BYTES]))
        with pytest.raises(CorruptPartitionError, match="no batch holds a record of 2"):
            await log.find_timestamp(2)
        files.write_segment(bytes(stored[: BLOCK_BYTES - 16]))
        with pytest.raises(CorruptPartitionError, match="no batch holds"):
            await log.find_timestamp(2)


# --- waiting for records --------------------------------------------------------------------------


async def test_who_waits_for_a_record_is_woken_when_it_is_acknowledged(files: LogFiles) -> None:
    async with open_log(files) as log:
        seen: list[str] = []
        waiting = [asyncio.create_task(log.wait_beyond(offset)) for offset in (0, 0, 1)]
        for task in waiting[:2]:
            task.add_done_callback(lambda _: seen.append("woken"))
        await asyncio.sleep(0)
        log.append_event(None, b"0", TIME_US, 0, lambda *_, **__: seen.append("acknowledged"))
        await waiting[0]
        await waiting[1]
        await asyncio.sleep(0)
        assert seen == ["acknowledged", "woken", "woken"]
        assert not waiting[2].done()

        await Appends(log).event(b"1")
        await waiting[2]


async def test_nobody_waits_for_what_is_there(files: LogFiles) -> None:
    async with open_log(files) as log:
        await Appends(log).event(b"0")
        await log.wait_beyond(0)
        assert log.high_watermark == 1


async def test_who_gives_up_waiting_leaves_nothing_behind(files: LogFiles) -> None:
    async with open_log(files) as log:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await log.wait_beyond(0)
        cancelled = asyncio.create_task(log.wait_beyond(0))
        stays = asyncio.create_task(log.wait_beyond(0))
        await asyncio.sleep(0)
        cancelled.cancel()  # in the turn in which the record comes
        await Appends(log).event(b"0")
        await stays
        assert cancelled.cancelled()


async def test_a_log_that_closes_wakes_who_waits(files: LogFiles) -> None:
    async with open_log(files) as log:
        waiting = asyncio.create_task(log.wait_beyond(0))
        await asyncio.sleep(0)
        await log.close()
        await waiting
        await log.wait_beyond(0)
        assert log.high_watermark == 0


# --- logs that take no more -----------------------------------------------------------------------


async def test_a_sealed_log_is_read_to_its_end_and_nobody_waits_there(files: LogFiles) -> None:
    async with open_log(files) as log:
        await Appends(log).batch([b"0", b"1"])
    async with open_log(files, sealed_end=2) as log:
        assert (log.high_watermark, log.log_end) == (2, 2)
        assert [record.value for record in records_of(await log.read(0, 1))] == [b"0", b"1"]
        await log.wait_beyond(2)
        assert await log.read(2, 1) == []


async def test_a_log_that_goes_away_ends_what_is_under_way_and_refuses_the_rest(
    files: LogFiles, disk: FaultyDisk
) -> None:
    gone = TopicNotFoundError("deleted")

    async with open_log(files) as log:
        appends = Appends(log)
        waiting = asyncio.create_task(log.wait_beyond(0))
        disk.hold_writes()
        appends.event(b"0")
        await disk.wait_for_held_write()
        appends.event(b"1")
        log.give_up(gone)
        appends.event(b"2")
        appends.batch([b"3"])
        appends.body(body_of([Event(b"4")]))
        await waiting
        for refused in (log.read(0, 1), log.find_timestamp(0)):
            with pytest.raises(TopicNotFoundError):
                await refused
        disk.let_writes_go_on()
        assert await appends.outcomes() == [0, 1, gone, gone, gone]
    assert files.values() == [b"0", b"1"]


async def test_a_log_of_a_deleted_topic_is_followed_and_goes_on_when_it_is_restored(
    files: LogFiles,
) -> None:
    gone = TopicNotFoundError("deleted")

    async with open_log(files) as log:
        appends = Appends(log)
        await appends.event(b"0")
        waiting = asyncio.create_task(log.wait_beyond(1))
        await asyncio.sleep(0)
        log.withhold(gone)
        await waiting
        for refused in (appends.event(b"1"), log.read(0, 1), log.find_timestamp(0)):
            with pytest.raises(TopicNotFoundError):
                await refused
        assert len(await log.read_written(0, 1)) == 1

        log.withhold(None)
        assert await appends.event(b"2") == 1
        assert len(await log.read(0, 1)) == 1
    assert files.values() == [b"0", b"2"]


async def test_a_read_whose_file_is_moved_away_learns_why(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_log(files, cache_bytes=0) as log:
        await Appends(log).event(b"0")
        await log.spilled()
        disk.fail("preadv")
        with pytest.raises(ReadFailedError):
            await log.read(0, 1)
        disk.fail("preadv")
        reading = asyncio.create_task(log.read(0, 1))
        await asyncio.sleep(0)
        log.give_up(TopicNotFoundError("deleted"))
        with pytest.raises(TopicNotFoundError):
            await reading


async def test_a_log_that_two_close_at_a_time_is_spilled_once(
    files: LogFiles, disk: FaultyDisk
) -> None:
    """As when a broker stops while the topic is being deleted."""
    counters = Counters()

    async with open_log(files, counters=counters) as log:
        await Appends(log).event(b"0")
        disk.hold_writes()
        first = asyncio.create_task(log.close())
        await disk.wait_for_held_write()
        second = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        assert not second.done()

        disk.let_writes_go_on()
        await asyncio.gather(first, second)
        await log.close()
        assert counters.log_writes == 1
    assert files.values() == [b"0"]
