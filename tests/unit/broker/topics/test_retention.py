"""When logs are trimmed: by settings that change, segments that fill, and a clock of the test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.retention import CautiousClock, Retention
from tests.support.broker.brokers import started_broker
from tests.support.storage.storage import MEBIBYTE, Appends, FaultyDisk, records_of
from tests.support.waits import until

MINUTE_US = 60_000_000
# Two fill a segment.
LARGE = Random(1).randbytes(600_000)
FOR_EVER = TopicSettings(partitions_per_range=1)
A_MINUTE = TopicSettings(partitions_per_range=1, retention_ms=60_000)
LATER = TopicSettings(partitions_per_range=1, retention_ms=2**40)
A_MEBIBYTE = TopicSettings(partitions_per_range=1, retention_bytes=MEBIBYTE)


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due is not gathered for a second."""
    monkeypatch.setattr("tailrace_broker.topics.retention.SLEEP_SECONDS_MIN", 0.0)
    monkeypatch.setattr("tailrace_broker.storage.files.spare_files.SPARE_BYTES", 8192)


class Shifted:
    """The broker's clock, ahead by as much as the test says."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self.ahead_us = 0

    def __call__(self) -> int:
        return self._broker.now_us() + self.ahead_us


class Watched:
    """A broker with one topic, and a second retention over its log, by a clock of the test."""

    def __init__(self, broker: LocalBroker, tasks: asyncio.TaskGroup) -> None:
        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.create_task(work)

        self.broker = broker
        self.log: PartitionLog = broker._topics.by_name["t"].all_logs()[0]
        self.clock = Shifted(broker)
        self.counters = Counters()
        self.retention = Retention(spawn, self.clock, self.counters)

    async def append(self, count: int) -> None:
        """So many records, two a segment."""
        for _ in range(count):
            await Appends(self.log).batch([LARGE])

    async def until_start_is(self, log_start: int) -> None:
        await until(lambda: self.log.log_start == log_start)

    async def offsets(self) -> list[int]:
        batches = await self.log.read(self.log.log_start, 99 * MEBIBYTE)
        return [record.offset for record in records_of(batches)]


@asynccontextmanager
async def watched(root: Path, settings: TopicSettings) -> AsyncIterator[Watched]:
    """Topic "t" of these settings; its log is not watched yet by the test's retention."""
    async with started_broker(root, segment_bytes=MEBIBYTE) as broker:
        await broker.create_topic("t", settings)
        async with asyncio.TaskGroup() as tasks:
            each = Watched(broker, tasks)
            yield each
            each.retention.stop()


def test_a_log_that_is_watched_again_and_again_is_trimmed_and_takes_no_more_memory(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await each.append(5)
            for _ in range(300):
                each.retention.watch([each.log])
            assert len(each.retention._heap) < 100
            each.clock.ahead_us = 2 * MINUTE_US
            each.retention._look_at_due()
            await each.until_start_is(5)

    run(scenario)


def test_what_is_old_goes_when_it_is_looked_at_and_offsets_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await each.append(5)
            each.retention.watch([each.log])
            await asyncio.sleep(0)
            assert each.log.log_start == 0
            each.clock.ahead_us = 2 * MINUTE_US
            with capture_logs() as logs:
                each.retention.look(each.log)
                await until(lambda: each.counters.trimmed_segments == 3)
            assert each.log.log_start == 5
            assert each.log.high_watermark == 5
            assert await each.offsets() == []
            await each.append(1)
            assert await each.offsets() == [5]
            (trimmed,) = [line for line in logs if line["event"] == "log.trimmed"]
            assert (trimmed["topic"], trimmed["log_start"], trimmed["segments"]) == ("t", 5, 3)
            assert each.counters.trimmed_bytes == trimmed["size_bytes"] > 5 * len(LARGE)

    run(scenario)


def test_nothing_is_old_while_the_time_is_not_sure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await each.append(5)
            is_sure = False
            each.retention.is_time_sure = lambda _: is_sure
            each.clock.ahead_us = 8 * 1440 * MINUTE_US
            each.retention.watch([each.log])
            assert not each.retention._surplus
            assert not each.retention._due_us  # nothing but another clock makes it old
            is_sure = True
            each.retention.check_all()
            await each.until_start_is(5)

    run(scenario)


def test_what_is_too_large_goes_whatever_the_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MEBIBYTE) as each:
            await each.append(5)
            each.retention.is_time_sure = lambda _: False
            each.retention.watch([each.log])
            await each.until_start_is(2)

    run(scenario)


def test_a_log_is_looked_at_by_itself_when_its_time_has_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await Appends(each.log).event(b"1")  # in the journal only
            each.clock.ahead_us = MINUTE_US - 20_000
            each.retention.watch([each.log])
            await each.until_start_is(1)
            assert await each.offsets() == []

    run(scenario)


def test_each_log_has_its_own_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await each.broker.create_topic("later", LATER)
            later = each.broker.hosted("later").log_of(0)
            assert isinstance(later, PartitionLog)
            for log in (later, each.log):
                await Appends(log).event(b"1")
            each.clock.ahead_us = MINUTE_US - 20_000
            each.retention.watch([later, each.log])
            await each.until_start_is(1)
            assert later.log_start == 0

            each.clock.ahead_us += 2**40 * 1000
            for _ in range(2):
                each.retention.look(later)
            await until(lambda: later.log_start == 1)

    run(scenario)


def test_finished_segments_go_by_size_as_soon_as_the_next_is_finished(tmp_path: Path) -> None:
    """By the broker's own retention."""

    async def scenario() -> None:
        async with watched(tmp_path, A_MEBIBYTE) as each:
            await each.append(7)
            await each.until_start_is(4)
            assert await each.offsets() == [4, 5, 6]
            await until(lambda: each.broker.counters.trimmed_segments == 2)
            names = {path.name for path in each.log.place.directory.glob("*.log")}
            assert names == {f"{4:020d}.log", f"{6:020d}.log"}

    run(scenario)


def test_altered_settings_count_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, FOR_EVER) as each:
            await each.append(7)
            assert each.log.log_start == 0
            await each.broker.alter_topic("t", {"retention_bytes": MEBIBYTE})
            await each.until_start_is(4)
        async with started_broker(tmp_path, segment_bytes=MEBIBYTE) as broker:
            log = broker.hosted("t").log_of(0)
            assert (log.log_start, log.high_watermark) == (4, 7)

    run(scenario)


def test_an_altered_topic_is_not_trimmed_by_what_held_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await each.append(3)
            each.retention.watch([each.log])
            each.log.settings = FOR_EVER
            each.retention.watch([each.log])
            each.clock.ahead_us = 9 * MINUTE_US
            each.retention.look(each.log)
            await asyncio.sleep(0)
            assert await each.offsets() == [0, 1, 2]

    run(scenario)


def test_a_deleted_topic_and_a_stopped_broker_are_not_trimmed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await each.append(3)
            each.retention.watch([each.log])
            each.clock.ahead_us = 9 * MINUTE_US
            each.retention.look(each.log)
            each.retention.forget([each.log])
            each.retention.look(each.log)
            await asyncio.sleep(0)
            each.retention.stop()
            each.retention.look(each.log)
            await asyncio.sleep(0)
            assert await each.offsets() == [0, 1, 2]

    run(scenario)


def test_a_trim_that_fails_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace_broker.topics.retention.RETRY_US", 1)
    disk = FaultyDisk(monkeypatch, spares_metadata=True)

    async def scenario() -> None:
        async with watched(tmp_path, A_MINUTE) as each:
            await each.append(4)
            each.clock.ahead_us = 9 * MINUTE_US
            disk.fail("replace")
            with capture_logs() as logs:
                each.retention.watch([each.log])
                await each.until_start_is(4)
            failed = [line for line in logs if line["event"] == "trim.failed"]
            assert [(line["topic"], line["log_level"]) for line in failed] == [("t", "warning")]

    run(scenario)


def test_an_earlier_time_counts_and_a_later_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trim by size is tried again soon, though time makes nothing old for years."""
    monkeypatch.setattr("tailrace_broker.topics.retention.RETRY_US", 1)
    disk = FaultyDisk(monkeypatch, spares_metadata=True)
    both = replace(LATER, retention_bytes=MEBIBYTE)

    async def scenario() -> None:
        async with watched(tmp_path, FOR_EVER) as each:
            await each.append(7)
            each.log.settings = LATER
            each.retention.watch([each.log])
            each.log.settings = both
            for _ in range(2):  # the checkpoint of the last segment's producers may meet one
                disk.fail("replace")
            with capture_logs() as logs:
                each.retention.look(each.log)
                await each.until_start_is(4)
            assert "trim.failed" in [line["event"] for line in logs]

            each.log.settings = LATER
            each.clock.ahead_us = 2**40 * 1000 + MINUTE_US
            each.retention.look(each.log)
            await each.until_start_is(7)

    run(scenario)


# --- the clock ------------------------------------------------------------------------------------


def test_a_clock_that_is_set_ahead_makes_nothing_old_and_is_reported_once() -> None:
    wall_us, passed_us = [1000 * MINUTE_US], [5]
    clock = CautiousClock(lambda: wall_us[0], lambda: passed_us[0])
    assert clock() == 1000 * MINUTE_US
    passed_us[0] += MINUTE_US
    wall_us[0] += MINUTE_US
    assert clock() == 1001 * MINUTE_US
    wall_us[0] += 8 * 24 * 60 * MINUTE_US
    with capture_logs() as logs:
        assert clock() == clock() == 1001 * MINUTE_US
    assert [(line["event"], line["ahead_seconds"]) for line in logs] == [
        ("clock.jumped", 8 * 24 * 3600)
    ]
    wall_us[0] = 990 * MINUTE_US
    assert clock() == 990 * MINUTE_US
