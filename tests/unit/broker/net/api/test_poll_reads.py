"""What a poll reads: within its bounds and the read memory, and without what cannot be read."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.groups.group import FetchRange
from tailrace_broker.memory.pool import BufferPool, Lease
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    OffsetOutOfRangeError,
    ReadFailedError,
    ReadMemoryFullError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.net.api import poll_reads
from tailrace_broker.net.api.poll_reads import Part, PollBounds, elements, lines, read_parts
from tailrace_broker.net.broker import GroupPoll
from tailrace_broker.net.logs import OpenLog
from tests.support.broker.brokers import started_broker
from tests.support.storage.storage import MEBIBYTE, Appends
from tests.support.waits import until

# A batch has three events of so many bytes, and takes nearly so many.
EVENT_BYTES = 1_000
BATCH_BYTES = 3_300
UNBOUNDED = PollBounds(16 * MEBIBYTE, 2**31, is_text=False)
TEXT = UNBOUNDED._replace(is_text=True)
UNREADABLE: list[type[TailraceError]] = [CorruptPartitionError, ReadFailedError]
GONE: list[type[TailraceError]] = [OffsetOutOfRangeError, TopicNotFoundError]


class Logs:
    """Three partitions with four batches of three events each, and a read quota of their own."""

    def __init__(self, broker: LocalBroker, read_bytes: int) -> None:
        self._hosted = broker.hosted("t")
        self.memory = ReadMemory(BufferPool(MEBIBYTE, read_bytes).read, 0.05)
        self.lease = self.memory.lease()

    def fetch_range(
        self, partition: int = 0, start: int = 0, end: int | None = None
    ) -> tuple[FetchRange, OpenLog]:
        topic = self._hosted.topic
        topic_partition = TopicPartition(topic.topic_id, partition)
        found = FetchRange(topic, topic.partitions[partition], topic_partition, start, end)
        return found, self.log(partition)

    def log(self, partition: int) -> OpenLog:
        return self._hosted.log_of(partition)

    async def read(
        self, fetch_ranges: Sequence[tuple[FetchRange, OpenLog]], bounds: PollBounds = UNBOUNDED
    ) -> list[Part]:
        poll = GroupPoll("c", 1, fetch_ranges, is_assigned=True, epoch=1, confirmed=0)
        return await read_parts(self.memory, self.lease, poll, bounds)


class FailingLog:
    """A log whose reads fail from an offset on."""

    def __init__(self, log: OpenLog, error: TailraceError, offset: int = 0) -> None:
        self._log = log
        self._error = error
        self._offset = offset
        self.high_watermark = log.high_watermark

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        if offset >= self._offset:
            raise self._error
        found = await self._log.read(offset, max_bytes)
        return [each for each in found if each.header.base_offset < self._offset]


def failing(
    fetch_range: tuple[FetchRange, OpenLog], error: TailraceError, offset: int = 0
) -> tuple[FetchRange, Any]:
    return fetch_range[0], FailingLog(fetch_range[1], error, offset)


@asynccontextmanager
async def logs_of(root: Path, read_bytes: int = 64 * MEBIBYTE) -> AsyncIterator[Logs]:
    settings = TopicSettings(partitions_per_range=3, compression="none")
    async with started_broker(root) as broker:
        await broker.create_topic("t", settings)
        for partition in range(3):
            for number in range(4):
                some = [
                    b'"%s"' % (b"%d" % (number * 3 + index) * EVENT_BYTES)[:EVENT_BYTES]
                    for index in range(3)
                ]
                await Appends(broker.hosted("t").log_of(partition)).batch(some)
        yield Logs(broker, read_bytes)


def ends(parts: Sequence[Part]) -> list[int]:
    return [part.end for part in parts]


@pytest.mark.parametrize(
    ("start", "bounds", "read_count"), [(1, UNBOUNDED, 2), (3, UNBOUNDED, 3), (1, TEXT, 3)]
)
async def test_start_offsets_fit_into_a_header(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: int,
    bounds: PollBounds,
    read_count: int,
) -> None:
    """Of partitions that are in the middle of a batch, which in binary a header says."""
    monkeypatch.setattr(poll_reads, "START_OFFSETS_BYTES_MAX", 40)
    async with logs_of(tmp_path) as logs:
        parts = await logs.read([logs.fetch_range(each, start) for each in range(3)], bounds)

    assert ends(parts) == [12] * read_count + [start] * (3 - read_count)


async def test_all_there_is_is_read_of_each_piece(tmp_path: Path) -> None:
    async with logs_of(tmp_path) as logs:
        parts = await logs.read(
            [logs.fetch_range(2, 6), logs.fetch_range(0), logs.fetch_range(1, 12)]
        )

        assert ends(parts) == [12, 12, 12]
        assert [len(part.batches) for part in parts] == [2, 4, 0]
        assert 6 * 3 * EVENT_BYTES < logs.lease.size_bytes < 6 * BATCH_BYTES


class NewLeader:
    """Does not know yet that all that the broker has heard of is committed."""

    high_watermark = 9

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        return ()


@pytest.mark.parametrize("end", [None, 9])
async def test_a_log_that_gives_nothing_is_left_out(tmp_path: Path, end: int | None) -> None:
    async with logs_of(tmp_path) as logs:
        fetch_range, _ = logs.fetch_range(end=end)
        poll = GroupPoll("c", 1, [(fetch_range, NewLeader())], True, 1, 0)
        [part] = await read_parts(logs.memory, logs.lease, poll, UNBOUNDED)

        assert (part.end, list(part.batches), part.problem) == (0, [], None)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (UNBOUNDED._replace(bytes_max=1), [3, 0, 0]),
        (UNBOUNDED._replace(bytes_max=2 * BATCH_BYTES), [6, 0, 0]),
        (UNBOUNDED._replace(bytes_max=5 * BATCH_BYTES), [12, 3, 0]),
        (UNBOUNDED._replace(records_max=1), [3, 0, 0]),
        (UNBOUNDED._replace(records_max=4), [6, 0, 0]),
        (UNBOUNDED._replace(records_max=14), [12, 3, 0]),
        (TEXT._replace(bytes_max=1), [3, 0, 0]),
        (TEXT._replace(records_max=1), [1, 0, 0]),
        (TEXT._replace(records_max=4), [4, 0, 0]),
        (TEXT._replace(records_max=14), [12, 2, 0]),
    ],
)
async def test_the_bounds_are_of_all_pieces_together(
    tmp_path: Path, bounds: PollBounds, expected: list[int]
) -> None:
    async with logs_of(tmp_path) as logs:
        parts = await logs.read([logs.fetch_range(partition) for partition in range(3)], bounds)

        assert ends(parts) == expected


@pytest.mark.parametrize("bounds", [TEXT, UNBOUNDED])
async def test_what_was_delivered_before_is_read_again_whatever_the_bounds_are(
    tmp_path: Path, bounds: PollBounds
) -> None:
    async with logs_of(tmp_path) as logs:
        fetch_ranges = [logs.fetch_range(0, 1, 8), logs.fetch_range(1, 3, 6)]
        parts = await logs.read(fetch_ranges, bounds._replace(bytes_max=1, records_max=1))

        assert ends(parts) == [8, 6]
        assert [len(part.batches) for part in parts] == [3, 1]


@pytest.mark.parametrize("kind", [*UNREADABLE, *GONE])
async def test_what_cannot_be_read_is_left_out(tmp_path: Path, kind: type[TailraceError]) -> None:
    async with logs_of(tmp_path) as logs:
        error = kind("a test")
        whole = logs.fetch_range(1)
        assert ends(await logs.read([failing(logs.fetch_range(0), error), whole])) == [0, 12]
        assert ends(await logs.read([failing(logs.fetch_range(0), error, 6), whole])) == [6, 12]
        again = [failing(logs.fetch_range(0, 0, 9), error, 6), logs.fetch_range(1, 0, 9)]
        assert ends(await logs.read(again)) == [0, 9]


@pytest.mark.parametrize("end", [None, 9])
async def test_what_is_wrong_with_a_partition_is_reported(tmp_path: Path, end: int | None) -> None:
    """That it was trimmed or deleted meanwhile is no problem."""

    async with logs_of(tmp_path) as logs:
        for kind in UNREADABLE:
            parts = await logs.read(
                [
                    failing(logs.fetch_range(0, 0, end), TopicNotFoundError("gone")),
                    failing(logs.fetch_range(1, 0, end), kind("the first")),
                    logs.fetch_range(2, 0, end),
                ]
            )
            assert [(type(each.problem), each.end) for each in parts] == [
                (type(None), 0),
                (kind, 0),
                (type(None), end or 12),
            ]
        for gone in GONE:
            (part,) = await logs.read([failing(logs.fetch_range(0, 0, end), gone("gone"))])
            assert (part.problem, part.end) == (None, 0)


async def test_what_comes_before_damage_is_read(tmp_path: Path) -> None:
    async with logs_of(tmp_path) as logs:
        (part,) = await logs.read([failing(logs.fetch_range(0), CorruptPartitionError("at 6"), 6)])

        assert (part.end, type(part.problem)) == (6, CorruptPartitionError)


def held_by_others(memory: ReadMemory, left_bytes: int) -> Lease:
    lease = memory.lease()
    lease.resize(memory.capacity_bytes - left_bytes)
    return lease


async def test_with_memory_for_some_these_are_delivered(tmp_path: Path) -> None:
    async with logs_of(tmp_path) as logs:
        fetch_ranges = [logs.fetch_range(partition) for partition in range(3)]
        others = held_by_others(logs.memory, 9 * BATCH_BYTES)
        parts = await logs.read(fetch_ranges, UNBOUNDED._replace(bytes_max=64 * 1024))

        assert ends(parts) == [12, 12, 0]
        assert 8 * EVENT_BYTES * 3 < logs.lease.size_bytes < 9 * BATCH_BYTES
        del others


@pytest.mark.parametrize("end", [None, 12])
async def test_who_waits_for_memory_holds_none(tmp_path: Path, end: int | None) -> None:
    async with logs_of(tmp_path) as logs:
        others = held_by_others(logs.memory, BATCH_BYTES)
        asked = [logs.fetch_range(partition, 0, end) for partition in range(3)]
        waiting = asyncio.create_task(logs.read(asked))
        await until(lambda: logs.memory._turn.locked())
        assert logs.lease.size_bytes == 0
        others.resize(0)
        assert ends(await waiting) == [12, 12, 12]


async def test_who_waits_too_long_is_reported(tmp_path: Path) -> None:
    async with logs_of(tmp_path) as logs:
        others = held_by_others(logs.memory, BATCH_BYTES)
        with pytest.raises(ReadMemoryFullError):
            await logs.read([logs.fetch_range(0)])
        assert logs.lease.size_bytes == 0
        del others


async def test_text_counts_beside_its_batches(tmp_path: Path) -> None:
    async with logs_of(tmp_path) as logs:
        await logs.read([logs.fetch_range(0)])
        of_batches = logs.lease.size_bytes
        await logs.read([logs.fetch_range(0)], TEXT)
        assert logs.lease.size_bytes > 2 * of_batches


async def joined(texts: AsyncIterator[list[bytes]]) -> list[Any]:
    return [json.loads(text) async for some in texts for text in some]


async def test_parts_become_text_from_their_start_to_their_end(tmp_path: Path) -> None:
    async with logs_of(tmp_path) as logs:
        fetch_ranges = [logs.fetch_range(0, 2), logs.fetch_range(1, 12), logs.fetch_range(2, 5)]
        parts = await logs.read(fetch_ranges, TEXT._replace(records_max=13))
        in_lines = [(each["partition"], each["offset"]) for each in await joined(lines(parts))]
        in_elements = [
            (each["partition"], int(each["startOffset"]) + index)
            for each in await joined(elements(parts))
            for index in range(len(each["values"]))
        ]

        assert in_lines == [*((0, offset) for offset in range(2, 12)), (2, 5), (2, 6), (2, 7)]
        assert in_elements == in_lines
