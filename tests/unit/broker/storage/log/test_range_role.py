"""A role that changes under the logs of a range, whatever it interrupts."""

import asyncio
import re
from pathlib import Path
from uuid import UUID

import pytest

from tailrace_broker.core.log.tail_events import Written
from tailrace_broker.model.errors import (
    NoLeaderError,
    NotEnoughReplicasError,
    NotLeaderError,
)
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.range_role import InSync, RangeRole
from tailrace_broker.storage.segments.writer import LogPlace
from tests.support.storage.followers import Follower, follow, stored_batch
from tests.support.storage.storage import (
    Appends,
    FaultyDisk,
    LogFiles,
    append_large,
    leads_surely,
    open_engine_on,
    read_all,
    values_in,
)
from tests.support.waits import until


def elsewhere(topic: str, partition: int) -> NotLeaderError:
    return NotLeaderError("ask another broker", topic=topic, partition=partition)


async def outcome(append: "asyncio.Future[int]") -> object:
    [found] = await asyncio.gather(append, return_exceptions=True)
    return found


async def test_a_deposed_leader_answers_all_appends_in_the_same_turn(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_engine_on(files) as engine:
        [log] = engine.logs
        await Appends(log).event(b"0")
        disk.hold_writes()
        flying = append_large(log)
        await disk.wait_for_held_write()
        waiting = Appends(log).event(b"waits")
        engine.role.change(None, elsewhere)
        late = Appends(log).event(b"late")
        assert all(append.done() for append in (flying, waiting, late))
        errors = [append.exception() for append in (flying, waiting, late)]
        assert [
            isinstance(error, NotLeaderError) and error.write_attempted for error in errors
        ] == [True, False, False]
        assert all(isinstance(error, NotLeaderError) for error in errors)
        with pytest.raises(NotLeaderError, match="ask another broker"):
            log.check_served()
        disk.let_writes_go_on()
        await log.drained()
        assert log.log_end == 2  # what was in flight is stored all the same


async def test_a_log_stays_open_over_roles_and_goes_on_in_a_later_epoch(files: LogFiles) -> None:
    async with open_engine_on(files) as engine:
        [log] = engine.logs
        await Appends(log).event(b"0")
        engine.role.change(None, elsewhere)
        engine.role.change(4)
        await Appends(log).event(b"1")
        engine.role.change(5)
        await Appends(log).event(b"2")
        assert [batch.header.epoch for batch in await read_all(log)] == [1, 4, 5]
        assert await values_in(log) == [b"0", b"1", b"2"]


async def test_appends_that_are_held_wait_for_the_end_of_the_epoch(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_engine_on(files) as engine:
        [log] = engine.logs
        disk.hold_writes()
        flying = append_large(log)
        await disk.wait_for_held_write()
        waiting = Appends(log).event(b"waits")
        engine.role.hold()
        disk.let_writes_go_on()
        assert await flying == 0
        assert not waiting.done()
        assert log.log_end == 1

        engine.role.change(2)
        assert await waiting == 1
        engine.role.hold()
        comes = Appends(log).event(b"comes")
        engine.role.change(None, elsewhere)
        error = comes.exception()
        assert isinstance(error, NotLeaderError)
        assert not error.write_attempted


async def test_a_log_that_had_no_append_before_they_were_held_waits_as_well(
    files: LogFiles,
) -> None:
    async with open_engine_on(files) as engine:
        [log] = engine.logs
        engine.role.hold()
        waiting = Appends(log).event(b"waits")
        await asyncio.sleep(0)
        assert not log.is_writing
        assert not waiting.done()
        engine.role.change(None, elsewhere)
        assert isinstance(waiting.exception(), NotLeaderError)


async def test_who_waits_for_a_record_is_woken(files: LogFiles) -> None:
    async with open_engine_on(files) as engine:
        [log] = engine.logs
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            tasks.create_task(log.wait_beyond(0))
            await asyncio.sleep(0)
            engine.role.change(None, elsewhere)


async def test_a_range_that_is_sealed_takes_no_appends_and_is_read(files: LogFiles) -> None:
    async with open_engine_on(files) as engine:
        [log] = engine.logs
        await Appends(log).event(b"0")
        engine.role.change(None)
        assert isinstance(await outcome(Appends(log).event(b"1")), NoLeaderError)
        assert log.is_served
        assert await values_in(log) == [b"0"]


async def test_a_log_that_is_closed_hears_of_no_role(files: LogFiles) -> None:
    async with open_engine_on(files, partitions=range(2)) as engine:
        first, second = engine.logs
        await first.close()
        engine.role.change(None, elsewhere)
        assert list(engine.role._logs) == [second]


async def test_a_new_leader_knows_its_end_once_that_is_committed(files: LogFiles) -> None:
    async with follow(files) as engine:
        [log] = engine.logs
        follower = Follower(log)
        await follower.write(stored_batch([b"0", b"1"], 0))
        log.commit(1)
        engine.role.change(2, commits_alone=False)
        assert (log.knows_end, log.high_watermark) == (False, 1)
        with pytest.raises(NoLeaderError, match="does not know yet how much is committed"):
            await log.check_end()
        log.commit(2)
        await log.check_end()
        written = asyncio.Event()
        log.on_own_write(lambda event: written.set() if isinstance(event, Written) else None)
        append = append_large(log)
        await written.wait()
        assert (log.knows_end, log.high_watermark, log.log_end) == (True, 2, 3)
        log.commit(3)
        assert await append == 2


async def test_the_only_copy_always_knows_its_end(files: LogFiles, disk: FaultyDisk) -> None:
    async with open_engine_on(files) as engine:
        [log] = engine.logs
        disk.hold_writes()
        append_large(log)
        await disk.wait_for_held_write()
        engine.role.change(4)
        await log.check_end()
        disk.let_writes_go_on()


async def test_a_leader_that_may_be_none_any_more_does_not_know_its_end(files: LogFiles) -> None:
    async def is_led() -> bool:
        return False

    role = RangeRole(1, commits_alone=False, on_given_up=lambda epoch: None, prove=is_led)
    async with open_engine_on(files, role=role) as engine:
        [log] = engine.logs
        with pytest.raises(NoLeaderError, match="is not sure that it leads still"):
            await log.check_end()
        engine.role.change(2, commits_alone=True)
        await log.check_end()


class ShortLog:
    """Notes how often it was asked to take or refuse appends."""

    def __init__(self, needed: int) -> None:
        self.settings = TopicSettings(min_in_sync_replicas=needed)
        self.asked_count = self.flushed_count = 0

    def on_role_changed(self) -> None:
        raise AssertionError

    def on_shortage(self) -> None:
        self.asked_count += 1

    def flush(self) -> None:
        self.flushed_count += 1


PLACE = LogPlace(Path("t"), "t", UUID(int=1), 0, 7)


def test_logs_are_flushed_once_when_a_step_begins() -> None:
    role = RangeRole(None, on_given_up=lambda epoch: None, prove=leads_surely)
    log = ShortLog(2)
    role.add(log)

    for is_open in (False, True, True, False, True):
        role.take_step(is_open=is_open)

    assert log.flushed_count == 2
    assert role.is_in_step


async def test_a_written_log_is_flushed_at_once_while_a_step_is_open(files: LogFiles) -> None:
    settings = TopicSettings(partitions_per_range=1, durability="written", flush_ms=3_600_000)

    async with open_engine_on(files, settings=settings) as engine:
        [log] = engine.logs
        await Appends(log).event(b"before")
        assert log.durable_end == 0
        engine.role.take_step(is_open=True)
        await until(lambda: log.durable_end == 1)

        await Appends(log).event(b"after")

        await until(lambda: log.durable_end == 2)


def test_a_topic_says_how_many_replicas_must_be_in_sync() -> None:
    counted: list[InSync] = []
    role = RangeRole(
        1,
        commits_alone=False,
        on_given_up=lambda epoch: None,
        prove=leads_surely,
        count_in_sync=lambda: counted[-1] if counted else None,
    )
    two, three = ShortLog(2), ShortLog(3)
    role.add(two)
    role.add(three)

    def refusals() -> list[object]:
        return [role.shortage(PLACE, each.settings) for each in (two, three)]

    def count(in_sync: InSync) -> None:
        counted.append(in_sync)
        role.look_for_shortage()

    role.look_for_shortage()
    assert refusals() == [None, None]
    count(InSync([0, 2, 1], [0, 2, 1], copies=3))
    assert (two.asked_count, three.asked_count) == (0, 0)
    count(InSync([2, 0, 1], [2, 0], copies=3))
    [none, error] = refusals()
    assert none is None
    assert isinstance(error, NotEnoughReplicasError)
    assert not error.write_attempted
    assert re.search(r"in-sync replicas \[0, 1, 2\] only \[0, 2\] answer, and 3 must", str(error))
    attempted = role.shortage(PLACE, three.settings, is_attempted=True)
    assert attempted is not None
    assert attempted.write_attempted
    assert (two.asked_count, three.asked_count) == (0, 1)
    three.settings = TopicSettings(min_in_sync_replicas=2)
    count(InSync([2, 0], [2, 0], copies=3))
    assert refusals() == [None, None]
    assert (two.asked_count, three.asked_count) == (0, 2)
    count(InSync([2, 0], [2], copies=3))
    assert (two.asked_count, three.asked_count) == (1, 3)


def test_a_topic_needs_no_more_replicas_than_the_ring_keeps_copies() -> None:
    role = RangeRole(
        1,
        commits_alone=False,
        on_given_up=lambda epoch: None,
        prove=leads_surely,
        count_in_sync=lambda: InSync([0, 1], [0, 1], copies=2),
    )

    assert role.shortage(PLACE, TopicSettings(min_in_sync_replicas=3)) is None
