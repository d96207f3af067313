"""The journal under losses of power: any blocks of what was not synced may be there, or not."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tests.support.storage.storage import SYNCED, Appends, LogFiles, open_engine_on, values_in

PARTITIONS = range(2)
WRITTEN = TopicSettings(
    partitions_per_range=1, durability="written", flush_ms=60_000, flush_bytes=1 << 30
)
# Which partitions append at a time, and how much each.
STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3),
        st.sampled_from([10, 3_000, 9_000]),
    ),
    max_size=5,
)
# The journal's files are not used again: what is in the segments is not the matter here.
LIVES = st.lists(STEPS, min_size=1, max_size=3)
SEEDS = st.integers(0, 2**32 - 1)


class Disk:
    """The journal's files as they were when all was durable, and what they may become."""

    def __init__(self, files: LogFiles, seed: int) -> None:
        self._files = files
        self._generator = Random(seed)
        self._durable: dict[Path, bytes] = {}

    def note_durable(self) -> None:
        """All that is there now survives."""
        self._durable = {path: path.read_bytes() for path in self._files.journal()}

    def lose_power(self) -> None:
        """Of what was written since, any of the blocks may be lost."""
        for path in self._files.journal():
            before, now = self._durable[path], path.read_bytes()
            assert len(before) == len(now)
            blocks = [
                (before if self._generator.random() < 0.4 else now)[start : start + BLOCK_BYTES]
                for start in range(0, len(now), BLOCK_BYTES)
            ]
            path.write_bytes(b"".join(blocks))


class Model:
    """What each partition was sent, and how much of it must survive."""

    def __init__(self) -> None:
        self.sent: list[list[bytes | None]] = [[] for _ in PARTITIONS]
        self.durable_counts = [0 for _ in PARTITIONS]
        self._number = 0

    def new_value(self, partition: int, size_bytes: int) -> bytes:
        self._number += 1
        value = b"%d " % self._number + Random(self._number).randbytes(size_bytes)
        self.sent[partition].append(value)
        return value

    def recover(self, partition: int, values: list[bytes | None]) -> None:
        """A start has found these."""
        assert values == self.sent[partition][: len(values)]
        assert len(values) >= self.durable_counts[partition]
        self.sent[partition] = values
        self.note_durable(partition)

    def note_durable(self, partition: int) -> None:
        """What was sent up to now must survive."""
        self.durable_counts[partition] = len(self.sent[partition])


async def live(
    files: LogFiles, disk: Disk, model: Model, steps: list[tuple[list[int], int]]
) -> None:
    """Recover, append to all and flush; append what may be lost."""
    files.epoch += 1
    async with open_engine_on(
        files, partitions=PARTITIONS, settings=WRITTEN, is_killed=True
    ) as engine:
        for partition, log in enumerate(engine.logs):
            model.recover(partition, await values_in(log))
        for partition, log in enumerate(engine.logs):
            await Appends(log).event(model.new_value(partition, 10))
        assert await engine.resources.flusher.flush_all()
        disk.note_durable()
        for partition in PARTITIONS:
            model.note_durable(partition)
        for partitions, size_bytes in steps:
            answers = [
                Appends(engine.logs[each]).event(model.new_value(each, size_bytes))
                for each in partitions
            ]
            await asyncio.gather(*answers)


@pytest.mark.timeout(120)
# Few: each example opens real files up to four times; the simulation tells longer scenarios.
@settings(max_examples=12, deadline=None)
@given(lives=LIVES, seed=SEEDS)
def test_what_was_durable_survives_and_what_was_not_is_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[tuple[list[int], int]]], seed: int
) -> None:
    files = LogFiles(tmp_path_factory.mktemp("log"))
    disk, model = Disk(files, seed), Model()
    for steps in lives:
        asyncio.run(live(files, disk, model, steps))
        disk.lose_power()
    asyncio.run(live(files, disk, model, []))


@pytest.mark.timeout(120)
@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.sampled_from([10, 3_000, 20_000]), max_size=4), seed=SEEDS)
def test_a_synced_topic_loses_nothing_but_what_is_under_way(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    """The last append is under way: its frame is torn."""
    files = LogFiles(tmp_path_factory.mktemp("log"))
    disk, model = Disk(files, seed), Model()

    async def append(*sizes: int) -> None:
        async with open_engine_on(
            files, partitions=[0], settings=replace(SYNCED, compression="none"), is_killed=True
        ) as engine:
            (log,) = engine.logs
            model.recover(0, await values_in(log))
            for number, size_bytes in enumerate([10, *sizes]):
                await Appends(log).event(model.new_value(0, size_bytes))
                if number < len(sizes):
                    disk.note_durable()
                    model.note_durable(0)
        disk.lose_power()

    asyncio.run(append(*sizes, 20_000))
    files.epoch += 1
    asyncio.run(append(10))
