"""What a start has given up in the journal does not come back at a later one."""

import os

import pytest
from msgspec.structs import replace

from tailrace.wire import JOURNAL_BLOCK_BYTES, align_up
from tailrace_broker.codec.batch import StoredBatch
from tests.support.storage.followers import Follower, follow, stored_batch
from tests.support.storage.storage import SYNCED, LogFiles, read_all

WRITTEN = replace(SYNCED, durability="written", flush_ms=1_000)


def batch(
    base_offset: int,
    end_offset: int,
    *,
    epoch: int = 7,
    high_watermark: int = 0,
    value_bytes: int = 10,
) -> StoredBatch:
    """Each follows a batch of epoch 7."""
    values = [os.urandom(value_bytes) for _ in range(base_offset, end_offset)]
    previous = 7 if base_offset else 0
    return stored_batch(
        values, base_offset, epoch=epoch, previous_epoch=previous, high_watermark=high_watermark
    )


def lose_frame_of(files: LogFiles, lost: StoredBatch) -> None:
    """It was not synced; it has this batch alone."""
    stored = bytes(lost.contents())
    for path in files.journal():
        contents = bytearray(path.read_bytes())
        position = contents.find(stored)
        if position >= 0:
            start = position // JOURNAL_BLOCK_BYTES * JOURNAL_BLOCK_BYTES
            end = align_up(position + len(stored), JOURNAL_BLOCK_BYTES)
            contents[start:end] = bytes(end - start)
            path.write_bytes(contents)
            return
    pytest.fail("no frame has it")


async def lose_power_before(files: LogFiles, lost: StoredBatch, stale: StoredBatch) -> None:
    """Offsets 0 to 9 are left, and behind a hole the later frame."""
    async with follow(files, settings=WRITTEN, is_killed=True) as engine:
        follower = Follower(engine.logs[0])
        await follower.write(batch(0, 10))
        assert await follower.log.spilled() is None
        await follower.write(lost)
        await follower.write(stale)
    lose_frame_of(files, lost)


@pytest.mark.parametrize("headers_prove", [False, True])
@pytest.mark.parametrize("high_watermark", [0, 10])
async def test_a_batch_behind_a_hole_does_not_take_the_place_of_a_later_one(
    files: LogFiles, high_watermark: int, headers_prove: bool
) -> None:
    """Its header says that no more was committed than what is left."""
    stale = batch(95, 100, high_watermark=high_watermark)
    await lose_power_before(files, batch(10, 95), stale)

    async with follow(
        files, settings=WRITTEN, headers_prove=headers_prove, is_killed=True
    ) as engine:
        follower = Follower(engine.logs[0])
        assert follower.log.log_end == 10
        fetched, later = batch(10, 95, value_bytes=2_000), batch(95, 98, epoch=8)
        await follower.write(fetched)  # to the segment
        await follower.write(later)  # to the journal, behind the stale one

    async with follow(files, settings=WRITTEN) as engine:
        (log,) = engine.logs
        log.commit(log.log_end)
        found = await read_all(log)
        assert [each.header for each in found[1:]] == [fetched.header, later.header]
