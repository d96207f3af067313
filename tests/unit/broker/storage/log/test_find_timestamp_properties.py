"""A find by time against a plain list of times, over any batches, segments and restarts."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.storage.batches import Event
from tests.support.storage.storage import Appends, LogFiles, open_log

# Few different times: equal ones, out of order, over and over.
TIMES = st.integers(0, 12) | st.sampled_from([2**62, 5_000])
# The larger ones are what gives a segment more than one index entry.
SIZES = st.sampled_from([0, 3_000, 30_000, 70_000])
BATCHES = st.lists(st.tuples(st.lists(TIMES, min_size=1, max_size=4), SIZES), max_size=8)
NOISE = Random(1).randbytes(80_000)  # does not compress


async def check_all_times(log: PartitionLog, times: list[int]) -> None:
    """Each time that is there, the one before and the one behind it."""
    for asked in sorted({0, *times, *(each + 1 for each in times), *(each - 1 for each in times)}):
        wanted = next((offset for offset, time in enumerate(times) if time >= asked), None)
        assert await log.find_timestamp(asked) == wanted


@pytest.mark.timeout(60)
# Few: each example opens real files up to four times.
@settings(max_examples=15, deadline=None)
@given(lives=st.lists(BATCHES, min_size=1, max_size=3), cache_bytes=st.sampled_from([0, 40_000]))
def test_the_first_record_of_a_time_or_later_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[list[tuple[list[int], int]]],
    cache_bytes: int,
) -> None:
    files = LogFiles(tmp_path_factory.mktemp("log"))
    times: list[int] = []

    async def live(batches: list[tuple[list[int], int]]) -> None:
        async with open_log(files, segment_bytes=40 * BLOCK_BYTES, cache_bytes=cache_bytes) as log:
            appends = Appends(log)
            for number, (batch_times, size) in enumerate(batches):
                value = b"%d" % number + NOISE[number : number + size]
                appends.records([Event(value, timestamp_us=time) for time in batch_times])
                times.extend(batch_times)
                if number % 3 == 0:  # else several batches are one write
                    await appends.outcomes()
            await appends.outcomes()
            await check_all_times(log, times)

    for batches in lives:
        asyncio.run(live(batches))
    asyncio.run(live([]))
