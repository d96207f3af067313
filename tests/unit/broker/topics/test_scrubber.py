"""The scrub on real logs: what it reads, when, and what it says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.counters import Counters
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.segments.quarantine import Quarantine
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.scrubber import Scrubber
from tests.support.storage.storage import LogFiles, append
from tests.support.waits import until

WAIT_S = 5.0
FAST = 1 << 30  # bytes a second: no pause that a test would notice
SEGMENT_BYTES = 8192
BATCH_BYTES = 4096  # each in a block of its own


@dataclass(eq=False)
class Log:
    """What a scrub needs of a partition's log."""

    place: LogPlace
    segments: list[SegmentState]
    log_start: int = 0


class Scrub:
    """A scrubber of some logs, and all that it works with."""

    def __init__(self, files: LogFiles, io: IoThreads, logs: list[Log]) -> None:
        self.logs = logs
        self.counters = Counters()
        self.quarantine = Quarantine(io, files.pool, is_direct=files.is_direct)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, now_us: int, **options: Any) -> Scrubber:
        """Begin a run; `options` as of a scrubber."""
        scrubber = Scrubber(
            lambda: self.logs,
            self.quarantine,
            self.counters,
            lambda: now_us,
            **{"bytes_per_second": FAST, **options},
        )
        self._tasks.append(asyncio.create_task(scrubber.run()))
        return scrubber

    async def end(self, scrubber: Scrubber) -> None:
        """Stop it; its run ends."""
        scrubber.stop()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self._tasks)

    @property
    def damaged(self) -> list[int]:
        """First offsets of what is quarantined."""
        return [damage.first_offset for log in self.logs for damage in self.quarantine.of(log)]


@asynccontextmanager
async def scrub_of(
    tmp_path: Path, *, batches: int, damaged: tuple[int, ...]
) -> AsyncIterator[Scrub]:
    """Of a log with a record in each block, two blocks a segment; some are damaged."""
    files = LogFiles(tmp_path)
    bugs: list[BaseException] = []
    io = IoThreads(1, bugs.append)
    io.start()
    writer = files.writer(segment_bytes=SEGMENT_BYTES)
    for number in range(batches):
        append(writer, [b"%d" % number])
    writer.close()
    log = Log(files.place, writer.segments)
    for offset in damaged:
        path = files.segment(offset // 2 * 2)
        stored = bytearray(path.read_bytes())
        stored[offset % 2 * BATCH_BYTES + 150] ^= 1
        path.write_bytes(stored)
    yield Scrub(files, io, [log])
    io.stop()
    assert bugs == []


async def test_damage_in_every_segment_is_found_without_a_reader(tmp_path: Path) -> None:
    async with scrub_of(tmp_path, batches=7, damaged=(1, 4, 6)) as scrub:
        scrubber = scrub.start(0)
        await until(lambda: scrub.counters.scrubbed_bytes == 7 * BATCH_BYTES)

        assert scrub.damaged == [1, 4, 6]
        await scrub.end(scrubber)


async def test_a_start_goes_on_where_time_says_and_goes_round(tmp_path: Path) -> None:
    async with scrub_of(tmp_path, batches=6, damaged=(1, 3, 5)) as scrub:
        with capture_logs() as lines:
            # In so many µs it has gone once around, and through two of three segments.
            scrubber = scrub.start(5 * SEGMENT_BYTES, bytes_per_second=1_000_000)
            await until(lambda: scrub.counters.scrubbed_bytes == 6 * BATCH_BYTES)
            await scrub.end(scrubber)

        assert [line["first_offset"] for line in lines] == [5, 1, 3]
        assert scrub.damaged == [1, 3, 5]


async def test_a_stop_does_not_wait_for_a_pause(tmp_path: Path) -> None:
    async with scrub_of(tmp_path, batches=6, damaged=()) as scrub:
        scrubber = scrub.start(0, bytes_per_second=1)
        await until(lambda: scrub.counters.scrubbed_bytes > 0)
        await scrub.end(scrubber)

        assert scrub.counters.scrubbed_bytes == 2 * BATCH_BYTES


async def test_when_a_round_has_taken_its_time_the_next_begins(tmp_path: Path) -> None:
    async with scrub_of(tmp_path, batches=4, damaged=(0,)) as scrub:
        scrubber = scrub.start(0, round_seconds_min=0.0)
        await until(lambda: scrub.counters.scrubbed_bytes >= 12 * BATCH_BYTES)

        assert scrub.damaged == [0]
        await scrub.end(scrubber)


async def test_where_nothing_is_stored_it_only_waits(tmp_path: Path) -> None:
    async with scrub_of(tmp_path, batches=0, damaged=()) as scrub:
        scrubber = scrub.start(0)
        await asyncio.sleep(0)
        await scrub.end(scrubber)

        assert scrub.counters.scrubbed_bytes == 0


async def test_a_segment_that_cannot_be_read_is_reported_and_the_rest_is_scrubbed(
    tmp_path: Path,
) -> None:
    async with scrub_of(tmp_path, batches=4, damaged=(3,)) as scrub:
        missing = LogFiles(tmp_path).segment(0)
        missing.rename(missing.with_suffix(".gone"))
        reported: list[LogPlace] = []
        scrub.quarantine.on_found = reported.append
        with capture_logs() as lines:
            scrubber = scrub.start(0)
            await until(lambda: scrub.counters.scrubbed_bytes == 2 * BATCH_BYTES)
        missing.with_suffix(".gone").rename(missing)
        await scrub.end(scrubber)

        assert [line["event"] for line in lines] == ["scrub.failed", "batch.quarantined"]
        assert str(missing) in lines[0]["detail"]
        place = scrub.logs[0].place
        assert reported == [place, place]  # that it is missing, and that the next is damaged


async def test_a_log_that_was_deleted_meanwhile_is_passed_over(tmp_path: Path) -> None:
    async with scrub_of(tmp_path, batches=4, damaged=()) as scrub:
        listed = [scrub.logs[:], [], []]
        for base_offset in (0, 2):
            LogFiles(tmp_path).segment(base_offset).unlink()
        scrubber = Scrubber(
            lambda: listed.pop(0) if listed else [],
            scrub.quarantine,
            scrub.counters,
            lambda: 0,
            bytes_per_second=FAST,
        )
        with capture_logs() as lines:
            run = asyncio.create_task(scrubber.run())
            await until(lambda: listed == [])
            scrubber.stop()
            await run

        assert lines == []
        assert scrub.counters.scrubbed_bytes == 0
