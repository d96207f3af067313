"""A sealed log is copied from another broker, on a real disk; the source does as it is told."""

import asyncio
import errno
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.wire import BatchHeader
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.copied import chained
from tailrace_broker.model.damage import Loss
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    DiskFullError,
    NoLeaderError,
    NotReadyError,
    StorageFailedError,
)
from tailrace_broker.model.topic import NO_EPOCH, TopicSettings
from tailrace_broker.storage.log.damage_file import record_loss
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics import log_copy
from tailrace_broker.topics.log_copy import (
    Compared,
    Copied,
    DamagedPart,
    SealedAt,
    SourceEnds,
    copy_log,
    reading_back,
)
from tests.support.storage.damaged import flip
from tests.support.storage.followers import Follower, follow, on_a_loop, stored_batch
from tests.support.storage.storage import Engine, FaultyDisk, LogFiles, open_engine_on, read_all

FLUSH = "fdatasync"
LARGE = 70_000  # goes straight to the segment


def log_of(count: int, *, first: int = 0, epoch: int = 1, mark: bytes = b"x") -> list[StoredBatch]:
    """Batches of one event, large ones among them."""
    return [
        stored_batch(
            [mark + Random(each).randbytes(LARGE if each % 3 == 0 else 10)], each, epoch=epoch
        )
        for each in range(first, first + count)
    ]


class FixedSource:
    """`fails_after`: so many pieces. Of what it was asked it remembers the offsets."""

    def __init__(
        self, batches: Sequence[StoredBatch], *, log_start: int = 0, fails_after: int | None = None
    ) -> None:
        self.batches = batches
        self.read_offsets: list[int] = []
        self.compared: list[int] = []
        self._log_start = log_start
        self._fails_after = fails_after

    async def ends(self) -> SourceEnds:
        end = self.batches[-1].header.end_offset if self.batches else self._log_start
        return SourceEnds(self._log_start, end)

    async def compare(self, start: int, end: int) -> Compared:
        """Of two batches at most."""
        self.compared.append(start)
        found = [
            each.header
            for each in self.batches
            if each.header.end_offset > start and each.header.base_offset < end
        ][:2]
        return Compared(chained(found), found[-1].end_offset)

    async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
        """Two batches at most."""
        if len(self.read_offsets) == self._fails_after:
            raise NoLeaderError("the broker does not answer")
        self.read_offsets.append(offset)
        return [each for each in self.batches if each.header.end_offset > offset][:2]


async def sealed_as(source: FixedSource, epoch: int = NO_EPOCH) -> SealedAt:
    """Where the source ends. Without an epoch nothing is proven by it."""
    return SealedAt((await source.ends()).end, epoch)


async def no_pause(_: float) -> None:
    pass


async def copy(engine: Engine, source: FixedSource) -> int:
    copied = await copied_by(engine, source)
    assert copied.lost is None
    return copied.size_bytes


async def nothing_spare(_: int, __: int) -> Sequence[StoredBatch]:
    return []


async def copied_by(engine: Engine, source: FixedSource) -> Copied:
    (log,) = engine.logs
    read_back = reading_back(engine.resources)
    sealed = await sealed_as(source)
    return await copy_log(log, source, sealed, read_back, nothing_spare, no_pause)


async def contents(log: PartitionLog) -> bytes:
    return b"".join(bytes(each.contents()) for each in await read_all(log))


def bytes_of(batches: Sequence[StoredBatch]) -> bytes:
    return b"".join(bytes(each.contents()) for each in batches)


@on_a_loop
async def test_a_copy_is_what_the_source_has_durable_and_in_segments(tmp_path: Path) -> None:
    source = FixedSource(log_of(7))
    for settings in (TopicSettings(), TopicSettings(durability="written", flush_ms=10)):
        (tmp_path / settings.durability).mkdir()
        files = LogFiles(tmp_path / settings.durability)
        async with follow(files, settings=settings) as engine:
            (log,) = engine.logs
            size_bytes = await copy(engine, source)

            assert size_bytes == sum(each.header.batch_bytes for each in source.batches)
            assert (log.log_start, log.high_watermark, log.durable_end) == (0, 7, 7)
            assert log.pending_bytes == 0
            assert await contents(log) == bytes_of(source.batches)


@on_a_loop
async def test_an_interrupted_copy_goes_on_where_it_was(tmp_path: Path) -> None:
    batches, files = log_of(9), LogFiles(tmp_path)
    async with follow(files) as engine:
        with pytest.raises(NoLeaderError):
            await copy(engine, FixedSource(batches, fails_after=2))
    async with follow(files) as engine:
        source = FixedSource(batches)
        await copy(engine, source)

        assert source.compared == [0, 2]
        assert source.read_offsets == [4, 6, 8]
        assert await contents(engine.logs[0]) == bytes_of(batches)


@on_a_loop
async def test_what_is_whole_is_only_compared(tmp_path: Path) -> None:
    source = FixedSource(log_of(4))
    async with follow(LogFiles(tmp_path)) as engine:
        await copy(engine, source)
        source.read_offsets.clear()

        assert await copy(engine, source) == 0
        assert source.read_offsets == []


@pytest.mark.parametrize("here", [log_of(3, mark=b"y"), log_of(9), log_of(4, epoch=2)])
def test_what_was_never_committed_does_not_stay(
    tmp_path: Path, here: Sequence[StoredBatch]
) -> None:
    """A replica that was not in sync has other batches, or more of them."""

    @on_a_loop
    async def scenario() -> None:
        source = FixedSource(log_of(6))
        async with follow(LogFiles(tmp_path)) as engine:
            await Follower(engine.logs[0]).write(*here)
            await copy(engine, source)

            assert source.read_offsets == [0, 2, 4]
            assert await contents(engine.logs[0]) == bytes_of(source.batches)

    scenario()


@on_a_loop
async def test_a_copy_begins_where_the_source_does(tmp_path: Path) -> None:
    """Retention removes segments there, and moves the start within a batch."""
    batches = [stored_batch([b"1", b"2", b"3"], 10), *log_of(3, first=13)]
    files = LogFiles(tmp_path)
    async with follow(files) as engine:
        (log,) = engine.logs
        await copy(engine, FixedSource(batches, log_start=11))
        assert (log.log_start, log.high_watermark) == (11, 16)
    async with open_engine_on(files, sealed_end=16) as engine:
        (log,) = engine.logs
        assert (log.log_start, log.high_watermark) == (11, 16)
        [first, *_] = await log.read(11, 1)
        assert first.header.base_offset == 10


@on_a_loop
async def test_a_log_of_which_nothing_is_left_has_its_end(tmp_path: Path) -> None:
    async with follow(LogFiles(tmp_path)) as engine:
        (log,) = engine.logs
        await copy(engine, FixedSource([], log_start=12))

        assert (log.log_start, log.log_end, log.high_watermark) == (12, 12, 12)


@on_a_loop
async def test_a_disk_that_keeps_something_else_has_no_whole_copy(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    async with follow(files) as engine:
        read_back = reading_back(engine.resources)

        async def damaging(log: PartitionLog, offset: int, max_bytes: int) -> list[StoredBatch]:
            flip(files.segment(), 500, 1)
            return await read_back(log, offset, max_bytes)

        source = FixedSource(log_of(3))
        sealed = await sealed_as(source)
        with pytest.raises(CorruptBatchError):
            await copy_log(engine.logs[0], source, sealed, damaging, nothing_spare, no_pause)


@on_a_loop
async def test_batches_that_are_whole_and_not_what_was_sent_are_found(tmp_path: Path) -> None:
    async with follow(LogFiles(tmp_path)) as engine:

        async def other(log: PartitionLog, offset: int, max_bytes: int) -> list[StoredBatch]:
            return log_of(3, mark=b"y")

        source = FixedSource(log_of(3))
        sealed = await sealed_as(source)
        with pytest.raises(CorruptBatchError, match="not what the source has sent"):
            await copy_log(engine.logs[0], source, sealed, other, nothing_spare, no_pause)


@on_a_loop
async def test_damage_in_what_is_here_begins_the_copy_again(tmp_path: Path) -> None:
    files, source = LogFiles(tmp_path), FixedSource(log_of(6))
    async with follow(files) as engine:
        await Follower(engine.logs[0]).write(*source.batches[:4])
        await engine.logs[0].spilled()
        flip(files.segment(), 500, 1)
        await copy(engine, source)

        assert source.read_offsets == [0, 2, 4]
        assert await contents(engine.logs[0]) == bytes_of(source.batches)


def test_a_full_disk_ends_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with follow(LogFiles(tmp_path)) as engine:
            disk = FaultyDisk(monkeypatch)
            disk.fail("pwritev", errno.ENOSPC, skipped=1)
            with pytest.raises(DiskFullError):
                await copy(engine, FixedSource(log_of(9)))

    scenario()


@on_a_loop
async def test_batches_with_a_gap_are_refused(tmp_path: Path) -> None:
    batches = log_of(9)
    del batches[2]
    async with follow(LogFiles(tmp_path)) as engine:
        with pytest.raises(StorageFailedError, match="does not follow"):
            await copy(engine, FixedSource(batches))


def test_a_disk_that_does_not_flush_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "FLUSH_SECONDS", 0.01)

    async def never(_: PartitionLog) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(PartitionLog, "flush_all", never)

    @on_a_loop
    async def scenario() -> None:
        settings = TopicSettings(durability="written", flush_ms=60_000)
        async with follow(LogFiles(tmp_path), settings=settings) as engine:
            with pytest.raises(StorageFailedError, match="durable in time"):
                await copy(engine, FixedSource(log_of(3)))

    scenario()


def test_what_is_only_compared_is_made_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was closed before its time to flush passes for durable when it is opened."""

    @on_a_loop
    async def scenario() -> None:
        files, source = LogFiles(tmp_path), FixedSource(log_of(4))
        settings = TopicSettings(durability="written", flush_ms=60_000)
        async with follow(files, settings=settings) as engine:
            await copy(engine, source)
        async with follow(files, settings=settings) as engine:
            disk = FaultyDisk(monkeypatch)
            assert await copy(engine, source) == 0
            assert disk.calls[FLUSH] == 1

            disk.fail(FLUSH)
            with pytest.raises(StorageFailedError, match="durable in time"):
                await copy(engine, source)

    scenario()


def test_each_piece_is_paced_by_how_long_it_took(tmp_path: Path) -> None:
    paces: list[float] = []

    async def pause(took_s: float) -> None:
        paces.append(took_s)

    @on_a_loop
    async def scenario() -> None:
        async with follow(LogFiles(tmp_path)) as engine:
            read_back: Any = reading_back(engine.resources)
            source = FixedSource(log_of(5))
            sealed = await sealed_as(source)
            await copy_log(engine.logs[0], source, sealed, read_back, nothing_spare, pause)

    scenario()
    assert len(paces) == 3
    assert all(each >= 0 for each in paces)


@on_a_loop
async def test_the_next_piece_is_fetched_while_one_is_written(tmp_path: Path) -> None:
    class WatchingSource(FixedSource):
        async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
            written_ends.append(log.log_end)
            return await super().read(offset)

    written_ends: list[int] = []
    async with follow(LogFiles(tmp_path)) as engine:
        (log,) = engine.logs
        source = WatchingSource(log_of(6))
        await copy(engine, source)

    assert source.read_offsets == [0, 2, 4]
    assert written_ends == [0, 0, 2]


@pytest.mark.parametrize("piece", [0, 1], ids=["reset", "append"])
def test_a_copy_that_is_cancelled_leaves_its_write_to_end(tmp_path: Path, piece: int) -> None:
    class CancellingSource(FixedSource):
        async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
            if len(self.read_offsets) == piece:  # what comes next waits for the disk
                tasks[0].cancel()
            return await super().read(offset)

    tasks: list[asyncio.Future[int]] = []
    batches = log_of(6)

    @on_a_loop
    async def scenario() -> None:
        async with follow(LogFiles(tmp_path)) as engine:
            (log,) = engine.logs
            tasks.append(asyncio.ensure_future(copy(engine, CancellingSource(batches))))
            await asyncio.wait(tasks)
            assert tasks[0].cancelled()
            await log.close()

            assert log.log_end == 2 * piece

    scenario()


class HoledSource(FixedSource):
    """Has lost some of its offsets, which was accepted; a batch has one."""

    def __init__(self, batches: Sequence[StoredBatch], *lost: range) -> None:
        ends = {each.stop for each in lost}
        super().__init__(
            [each for each in batches if all(each.header.base_offset not in gone for gone in lost)]
        )
        self._end = max([batches[-1].header.end_offset, *ends])
        self._lost = lost

    async def ends(self) -> SourceEnds:
        return SourceEnds(0, self._end)

    async def compare(self, start: int, end: int) -> Compared:
        for lost in self._lost:
            if start in lost:
                self.compared.append(start)
                return Compared(0, lost.stop, is_lost=True)
        gaps = [lost.start for lost in self._lost if lost.start > start]
        return await super().compare(start, min([end, *gaps]))

    async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
        for lost in self._lost:
            if offset in lost:
                return lost
        gaps = [lost.start for lost in self._lost if lost.start > offset]
        found = await super().read(offset)
        assert not isinstance(found, range | DamagedPart)
        return [each for each in found if each.header.base_offset < min([self._end, *gaps])]


async def copy_over_losses(files: LogFiles, source: HoledSource) -> list[range]:
    """As the broker does it: record each loss, and go on behind it with the log opened again."""
    met: list[range] = []
    while len(met) < 9:
        async with follow(files) as engine:
            copied = await copied_by(engine, source)
        if copied.lost is None:
            return met
        met.append(copied.lost)
        record_loss(files.place.directory, Loss(copied.lost.start, copied.lost.stop, 1))
    raise AssertionError(met)


@pytest.mark.parametrize(
    "lost",
    [[range(3, 5)], [range(2)], [range(6, 9)], [range(2), range(4, 5), range(7, 9)], [range(9)]],
)
def test_what_the_source_has_lost_is_lost_in_the_copy(tmp_path: Path, lost: list[range]) -> None:
    batches, files = log_of(9), LogFiles(tmp_path)
    source = HoledSource(batches, *lost)

    async def scenario() -> None:
        assert await copy_over_losses(files, source) == lost
        source.read_offsets.clear()
        assert await copy_over_losses(files, source) == []
        assert source.read_offsets == []
        async with follow(files) as engine:
            (log,) = engine.logs
            assert (log.log_start, log.log_end) == (0, 9)
            assert [range(each[2], each[3]) for each in log.quarantined] == lost
            for offset in range(9):
                if any(offset in gone for gone in lost):
                    with pytest.raises(CorruptPartitionError) as raised:
                        await log.read_written(offset, 1)
                    assert raised.value.members["accepted"]
                else:
                    [found] = await log.read_written(offset, 1)
                    assert found.header == batches[offset].header

    asyncio.run(scenario())


def test_a_copy_that_has_lost_something_else_begins_again(tmp_path: Path) -> None:
    batches, files = log_of(9), LogFiles(tmp_path)

    async def scenario() -> None:
        await copy_over_losses(files, HoledSource(batches, range(2, 4)))
        source = HoledSource(batches, range(2, 5))
        assert await copy_over_losses(files, source) == [range(2, 5)]
        assert source.read_offsets[0] == 0
        whole = HoledSource(batches)
        assert await copy_over_losses(files, whole) == []
        assert whole.read_offsets[0] == 0

    asyncio.run(scenario())


class DamagedSource(HoledSource):
    """Cannot read some of its offsets."""

    async def compare(self, start: int, end: int) -> Compared:
        found = await super().compare(start, end)
        return found._replace(is_lost=False, is_damaged=True) if found.is_lost else found

    async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
        found = await super().read(offset)
        return DamagedPart(found.stop, "it is damaged") if isinstance(found, range) else found


def epochs_of(*epochs: int) -> list[StoredBatch]:
    """A batch of each, which names the one before."""
    return [
        stored_batch([b"%d" % each], each, epoch=epoch, previous_epoch=before)
        for each, (before, epoch) in enumerate(pairwise((0, *epochs)))
    ]


async def copy_beside(
    files: LogFiles, source: FixedSource, spare: Sequence[StoredBatch], epoch: int = NO_EPOCH
) -> list[BatchHeader]:
    """With these batches set aside; what is there then."""

    async def batches(start: int, end: int) -> Sequence[StoredBatch]:
        return [each for each in spare if start <= each.header.base_offset < end]

    async with follow(files) as engine:
        (log,) = engine.logs
        read_back, sealed = reading_back(engine.resources), await sealed_as(source, epoch)
        copied = await copy_log(log, source, sealed, read_back, batches, no_pause)
        assert copied.lost is None
        return [each.header for each in await read_all(log)]


BATCHES = epochs_of(1, 1, 2, 2, 3, 3, 3)


@pytest.mark.parametrize("lost", [[range(2, 4)], [range(2)], [range(1, 2), range(4, 6)]])
def test_what_the_source_cannot_read_is_taken_from_what_was_set_aside(
    tmp_path: Path, lost: list[range]
) -> None:
    async def scenario() -> None:
        source = DamagedSource(BATCHES, *lost)
        found = await copy_beside(LogFiles(tmp_path), source, BATCHES)
        assert found == [each.header for each in BATCHES]
        source.read_offsets.clear()
        again = await copy_beside(LogFiles(tmp_path), source, [])
        assert (again, source.read_offsets) == (found, [])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("lost", "spare"),
    [
        (range(2, 4), []),
        (range(2, 4), BATCHES[:3]),
        (range(2, 4), epochs_of(1, 1, 1, 1)),  # never committed
        (range(5, 7), BATCHES),  # nothing follows
    ],
)
def test_what_nothing_proves_is_not_taken(
    tmp_path: Path, lost: range, spare: Sequence[StoredBatch]
) -> None:
    async def scenario() -> None:
        files = LogFiles(tmp_path)
        with pytest.raises(NotReadyError):
            await copy_beside(files, DamagedSource(BATCHES, lost), spare)
        async with follow(files) as engine:
            assert engine.logs[0].log_end == lost.start

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("here", "lost", "is_kept"),
    [
        (7, [range(2, 4)], True),
        (4, [range(2, 4)], True),
        (3, [range(2, 4)], False),
        (7, [range(5, 7)], False),
    ],
)
def test_a_copy_keeps_what_the_source_has_lost_since(
    tmp_path: Path, here: int, lost: list[range], is_kept: bool
) -> None:
    async def scenario() -> None:
        files = LogFiles(tmp_path)
        await copy_beside(files, FixedSource(BATCHES[:here]), [])
        work = copy_beside(files, DamagedSource(BATCHES, *lost), [])
        if is_kept:
            assert await work == [each.header for each in BATCHES]
            return
        with pytest.raises(NotReadyError):
            await work
        async with follow(files) as engine:
            assert engine.logs[0].log_end == here

    asyncio.run(scenario())


@pytest.mark.parametrize("epoch", [NO_EPOCH, 3])
async def test_a_long_span_that_was_set_aside_is_copied_piece_by_piece(
    tmp_path: Path, epoch: int
) -> None:
    """It is proven at its end, before the first is appended; a stop in between loses nothing."""
    files = LogFiles(tmp_path)
    source = DamagedSource(BATCHES, range(2, 6 if epoch == NO_EPOCH else 7))
    for fails_at in 4, 5, None:
        asked: list[int] = []

        async def one(start: int, _: int) -> Sequence[StoredBatch]:
            is_proven = start in asked  # noqa: B023  of this turn
            asked.append(start)  # noqa: B023
            return [] if is_proven and start == fails_at else BATCHES[start : start + 1]  # noqa: B023

        async with follow(files) as engine:
            (log,) = engine.logs
            read_back, sealed = reading_back(engine.resources), await sealed_as(source, epoch)
            copying = copy_log(log, source, sealed, read_back, one, no_pause)
            if fails_at is None:
                assert (await copying).lost is None
                found = [each.header for each in await read_all(log)]
                assert found == [each.header for each in BATCHES]
            else:
                with pytest.raises(NotReadyError):
                    await copying
                assert log.log_end == fails_at


def test_what_is_here_before_what_is_given_up_is_not_proven(tmp_path: Path) -> None:
    """No batch follows that would name its epoch."""

    class Both(DamagedSource):
        async def compare(self, start: int, end: int) -> Compared:
            found = await super().compare(start, end)
            return Compared(0, 6, is_lost=True) if start == 4 else found

        async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
            return range(4, 6) if offset == 4 else await super().read(offset)

    async def scenario() -> None:
        files = LogFiles(tmp_path)
        await copy_beside(files, FixedSource(BATCHES[:4]), [])
        with pytest.raises(NotReadyError):
            await copy_beside(files, Both(BATCHES, range(2, 4), range(4, 6)), [])

    asyncio.run(scenario())


def test_what_is_here_is_not_proven_by_what_is_given_up_behind_it(tmp_path: Path) -> None:
    class Both(DamagedSource):
        async def compare(self, start: int, end: int) -> Compared:
            found = await super().compare(start, end)
            return Compared(0, 6, is_lost=True) if start == 4 else found

    async def scenario() -> None:
        files = LogFiles(tmp_path)
        await copy_beside(files, FixedSource(BATCHES), [])
        with pytest.raises(NotReadyError):
            await copy_beside(files, Both(BATCHES, range(2, 4), range(4, 6)), [])

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", [range(5, 7), range(6, 7), range(7)])
def test_damage_at_the_end_is_filled_with_what_is_of_the_epoch_of_the_seal(
    tmp_path: Path, lost: range
) -> None:
    async def scenario() -> None:
        files, source = LogFiles(tmp_path), DamagedSource(BATCHES, lost)
        found = await copy_beside(files, source, BATCHES, epoch=3)
        assert found == [each.header for each in BATCHES]
        source.read_offsets.clear()
        again = await copy_beside(files, source, [], epoch=3)
        assert (again, source.read_offsets) == (found, [])

    asyncio.run(scenario())


def test_damage_at_the_end_is_not_filled_with_what_is_of_an_epoch_before(tmp_path: Path) -> None:
    """It may be what another leader has cut."""

    async def scenario() -> None:
        files, source = LogFiles(tmp_path), DamagedSource(BATCHES, range(5, 7))
        with pytest.raises(NotReadyError, match="it is damaged"):
            await copy_beside(files, source, BATCHES, epoch=4)
        await copy_beside(files, FixedSource(BATCHES), [])
        with pytest.raises(NotReadyError, match="nothing proves"):
            await copy_beside(files, source, [], epoch=4)

    asyncio.run(scenario())


def test_a_source_that_lacks_its_end_makes_no_whole_copy(tmp_path: Path) -> None:
    """It has not noticed yet that its last batch is missing."""

    async def scenario() -> None:
        async with follow(LogFiles(tmp_path)) as engine:
            read_back, source = reading_back(engine.resources), FixedSource(BATCHES[:-1])
            with pytest.raises(NotReadyError, match="ends at 6, and was sealed at 7"):
                await copy_log(
                    engine.logs[0],
                    source,
                    SealedAt(7, 3),
                    read_back,
                    nothing_spare,
                    no_pause,
                )

    asyncio.run(scenario())
