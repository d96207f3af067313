"""What is remembered of damage, reported of it, and answered to readers who meet it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tailrace_broker.core.log.recovery import LogScan, SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.segments.check import part_from_offset
from tailrace_broker.storage.segments.quarantine import Quarantine
from tailrace_broker.storage.segments.writer import LogPlace, segment_path
from tests.support.storage.batches import PARTITION, TOPIC_ID, Event, body_of, log_of

BATCH_RECORDS = 10
STORED = log_of([[body_of([Event(b"%d" % n) for n in range(BATCH_RECORDS)])] for _ in range(6)])
BATCHES = [piece for piece in STORED.pieces if piece.header]
MET = CorruptBatchError("met")


@dataclass(eq=False)
class OneSegment:
    """A log of one segment, and where it begins."""

    place: LogPlace
    state: SegmentState
    log_start: int = 0

    @property
    def segments(self) -> list[SegmentState]:
        """The one that it has."""
        return [self.state]

    @property
    def path(self) -> Path:
        """The segment's file."""
        return segment_path(self.place.directory, 0)

    def damage(self, batches: Iterable[int], at: int = 150) -> None:
        """Damage these batches alone, at this byte of each."""
        stored = bytearray(STORED.stored)
        for index in batches:
            stored[BATCHES[index].start + at] ^= 1
        self.path.write_bytes(stored)

    def known(self, *batches: int) -> list[Damage]:
        """Damage of these batches."""
        return [
            Damage(
                self.path,
                BATCHES[index].start,
                index * BATCH_RECORDS,
                (index + 1) * BATCH_RECORDS,
            )
            for index in batches
        ]


def log_in(folder: Path) -> OneSegment:
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))
    scan.feed(memoryview(STORED.stored), is_last=True)
    return OneSegment(LogPlace(folder, "t", TOPIC_ID, PARTITION, range_id=0), scan.state)


@asynccontextmanager
async def quarantine() -> AsyncIterator[Quarantine]:
    bugs: list[BaseException] = []
    io = IoThreads(1, bugs.append)
    io.start()
    yield Quarantine(io, BufferPool(64 * 1024 * 1024), is_direct=False)
    io.stop()
    assert bugs == []


async def check(kept: Quarantine, log: OneSegment) -> None:
    await kept.check(log, part_from_offset(log.path, log.state, 0))


async def test_damage_is_reported_once_and_kept(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.damage([3, 1])
    async with quarantine() as kept:
        with capture_logs() as lines:
            await check(kept, log)
            await check(kept, log)

        assert kept.of(log) == log.known(1, 3)
        assert kept.batch_count == 2
        assert [line["event"] for line in lines] == 2 * ["batch.quarantined"]
        assert lines[0] == {
            "event": "batch.quarantined",
            "log_level": "error",
            "topic": "t",
            "partition": PARTITION,
            "file": str(log.path),
            "byte": BATCHES[1].start,
            "first_offset": 10,
            "last_offset": 19,
        }


async def test_what_was_repaired_is_forgotten_when_it_is_checked_again(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    async with quarantine() as kept:
        log.damage([1, 3])
        await check(kept, log)
        log.damage([3])
        await check(kept, log)
        assert kept.of(log) == log.known(3)
        log.damage([])
        await check(kept, log)
        assert (kept.of(log), kept.batch_count) == ([], 0)


async def test_what_retention_took_is_no_damage_any_more(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.damage([1, 3])
    async with quarantine() as kept:
        await check(kept, log)
        log.log_start = 20
        assert kept.of(log) == log.known(3)
        log.damage([0, 3])
        with capture_logs() as entries:
            await check(kept, log)
        assert (kept.of(log), entries) == (log.known(3), [])


async def test_what_was_cut_while_it_was_checked_is_no_damage(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.damage([1])
    part = part_from_offset(log.path, log.state, 0)
    log.state = SegmentState(0, 3 * BATCH_RECORDS, position=BATCHES[3].start)
    with log.path.open("r+b") as file:
        file.truncate(BATCHES[3].start + 150)
    async with quarantine() as kept:
        await kept.check(log, part)

        assert kept.of(log) == log.known(1)


async def test_a_log_that_is_closed_is_forgotten(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.damage([1])
    async with quarantine() as kept:
        await check(kept, log)
        kept.forget(log)
        assert kept.batch_count == 0


@pytest.mark.parametrize("at", [150, 33])
@pytest.mark.parametrize("offset", [20, 25, 29])
async def test_a_reader_is_reported_what_is_damaged_and_where_to_go_on(
    tmp_path: Path, offset: int, at: int
) -> None:
    log = log_in(tmp_path)
    log.damage([2, 3], at)
    end_offset = 40 if at == 150 else 60  # behind a damaged header: the next entry, or the end
    async with quarantine() as kept:
        error = await kept.damaged(log, log.state, offset, MET)

        assert error.members == {
            "topic": "t",
            "partition": PARTITION,
            "firstOffset": 20,
            "lastOffset": end_offset - 1,
            "nextOffset": end_offset,
            "accepted": False,
        }
        assert f"offsets 20 to {end_offset - 1} of partition " in error.detail
        assert str(log.path) in error.detail
        assert kept.of(log)[0].first_offset == 20


async def test_what_no_check_finds_again_is_reported_as_it_was_met(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.damage([])
    async with quarantine() as kept:
        error = await kept.damaged(log, log.state, 20, MET)

        assert error.detail == "met. Restore the file from a copy"
        assert error.members == {"topic": "t", "partition": PARTITION}


@pytest.mark.parametrize("is_accepted", [False, True])
async def test_a_loss_that_was_accepted_is_reported_as_such_and_is_nothing_to_restore(
    tmp_path: Path, is_accepted: bool
) -> None:
    log = log_in(tmp_path)
    async with quarantine() as kept:
        loss = Damage(log.path, 0, 20, 30, is_accepted)
        kept.recovered(log, [], [loss])
        error = kept.loss_error(log, 25)

        assert error is not None
        assert (error.members["accepted"], error.members["nextOffset"]) == (is_accepted, 30)
        assert ("lost, which was accepted" in error.detail) == is_accepted
        assert ("Restore the file" in error.detail) == (not is_accepted)
        assert kept.of(log) == [loss]
        assert kept.batch_count == (not is_accepted)


async def test_what_a_person_has_given_up_is_neither_reported_nor_hidden(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.damage([1, 2, 4])
    async with quarantine() as kept:
        found: list[LogPlace] = []
        kept.on_found = found.append
        kept.recovered(log, [], [], [(20, 30), (0, 20)])
        await check(kept, log)
        assert [each.is_accepted for each in kept.of(log)] == [True, True, False]
        assert (kept.batch_count, len(found)) == (1, 1)
        given_up = await kept.damaged(log, log.state, 15, MET)
        assert (given_up.members["accepted"], given_up.members["nextOffset"]) == (True, 30)
        assert not (await kept.damaged(log, log.state, 45, MET)).members["accepted"]
        kept.forget(log)
        await check(kept, log)
        assert kept.batch_count == 3


async def test_a_loss_that_the_ring_knows_is_given_up(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    async with quarantine() as kept:
        lost = Damage(log.path, 0, 20, 30)
        kept.recovered(log, [], [lost], [(20, 30)])
        error = kept.loss_error(log, 25)
        assert error is not None
        assert error.members["accepted"]
        kept.cut(log, 30)
        error = kept.loss_error(log, 25)
        assert error is not None
        assert not error.members["accepted"]
