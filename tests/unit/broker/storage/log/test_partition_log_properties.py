"""A partition's log against a plain list, over random appends, reads, faults and restarts."""

import asyncio
import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.storage.storage import Appends, FaultyDisk, LogFiles, open_log, records_of

SIZES = st.sampled_from([0, 1, 100, BLOCK_BYTES - 200, BLOCK_BYTES, 3 * BLOCK_BYTES, 80_000])
ACTIONS = st.one_of(
    st.tuples(st.just("event"), SIZES),
    st.tuples(st.just("batch"), st.lists(SIZES, min_size=1, max_size=4)),
    st.tuples(st.just("turn"), st.integers(0, 2)),
    st.tuples(st.just("read"), st.integers(0, 1000)),
    st.tuples(
        st.sampled_from(["pwritev", "ftruncate", "fsync", "open", "replace"]),
        st.sampled_from([errno.ENOSPC, errno.EIO]),
    ),
)
Action = tuple[str, int | list[int]]
LIVES = st.lists(st.lists(ACTIONS, max_size=25), min_size=1, max_size=3)


class Model:
    """What producers were reported, in the order of their appends."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self._sent: list[list[bytes]] = []
        self._number = 0

    def new_values(self, sizes: list[int]) -> list[bytes]:
        """Values that compress badly and are all different."""
        self._number += 1
        values = [(b"%d-" % self._number) + bytes(range(256)) * (size // 256) for size in sizes]
        self._sent.append(values)
        return values

    async def settle(self, appends: Appends) -> None:
        """Wait for all; what is acknowledged has the next offsets."""
        for values, outcome in zip(self._sent, await appends.outcomes(), strict=True):
            if isinstance(outcome, int):
                assert outcome == len(self.stored)
                self.stored += values
        self._sent.clear()


async def read_from(log: PartitionLog, offset: int) -> list[bytes | None]:
    """Values of the records from an offset to the end."""
    values: list[bytes | None] = []
    end = log.high_watermark
    while offset < end:
        records = records_of(await log.read(offset, 50_000))
        values += [record.value for record in records if offset <= record.offset < end]
        offset = records[-1].offset + 1
    return values


async def live(files: LogFiles, disk: FaultyDisk, model: Model, actions: list[Action]) -> None:
    """One life of a log: open, act, close."""
    async with open_log(files, segment_bytes=30 * BLOCK_BYTES, cache_bytes=100_000) as log:
        assert await read_from(log, 0) == model.stored
        appends = Appends(log)
        for name, argument in actions:
            match name, argument:
                case "event", int(size):
                    appends.event(model.new_values([size])[0])
                case "batch", list(sizes):
                    appends.batch(model.new_values(sizes))
                case "turn", _:
                    await asyncio.sleep(0)
                case "read", int(place):
                    await model.settle(appends)
                    appends = Appends(log)
                    disk.forget_faults()
                    offset = place % (len(model.stored) + 1)
                    assert await read_from(log, offset) == model.stored[offset:]
                case call, int(error):
                    disk.fail(call, error, kept_bytes=BLOCK_BYTES if call == "pwritev" else 0)
        await model.settle(appends)
        disk.forget_faults()
        last = Appends(log)
        last.event(model.new_values([1])[0])  # cuts away what a failed cut has left
        await model.settle(last)


@pytest.mark.timeout(60)
# Few: each example opens real files up to three times.
@settings(max_examples=20, deadline=None)
@given(lives=LIVES)
def test_a_log_is_the_list_of_what_it_acknowledged(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[Action]]
) -> None:
    files = LogFiles(tmp_path_factory.mktemp("log"))
    model = Model()
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = FaultyDisk(monkeypatch)
        for actions in lives:
            asyncio.run(live(files, disk, model, actions))
    assert files.values() == model.stored
