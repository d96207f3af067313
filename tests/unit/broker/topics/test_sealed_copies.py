"""Which sealed ranges a broker fetches, from whom, and when it says that they are whole."""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.copied import chained
from tailrace_broker.model.commands import Command, Completed, CreateTopic, DeleteTopic, Lost
from tailrace_broker.model.errors import NoLeaderError, NotAgreedError, TailraceError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, RingState
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.log.damage_file import accepted_losses
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics import sealed_copies
from tailrace_broker.topics.hosted_topic import open_logs
from tailrace_broker.topics.log_copy import Compared, SourceEnds
from tailrace_broker.topics.sealed_copies import SealedCopies
from tests.support.ring.states import done, led, stepped, with_topic
from tests.support.storage.batches import PARTITION, TOPIC_ID
from tests.support.storage.followers import stored_batch
from tests.support.storage.storage import LogFiles, open_engine_on
from tests.support.waits import until

ORDINAL = 1


def grown() -> RingState:
    """A ring of two that was one of one: broker 1 is to hold the first range, without events."""
    return stepped(with_topic(led(1, registered=1), partitions=2))


def held_in(state: RingState) -> RangeState:
    [held] = [each for each in state.ranges.values() if each.is_sealed]
    return held


class FixedRing:
    """Commits at once, unless it `refuses`."""

    def __init__(self, state: RingState) -> None:
        self.state = state
        self.on_applied: list[Callable[[RingState | None, RingState], None]] = []
        self.asked: list[Command] = []
        self.refuses: list[TailraceError] = []
        self.quiet: set[int] = set()

    @property
    def registration(self) -> Any:
        return self.state.brokers[ORDINAL]

    def silent(self) -> set[int]:
        return self.quiet

    async def change(self, command: Command) -> None:
        self.asked.append(command)
        if self.refuses:
            raise self.refuses.pop(0)
        self.show(done(self.state, command))

    def show(self, after: RingState) -> None:
        before, self.state = self.state, after
        for call in self.on_applied:
            call(before, after)


class EmptySource:
    """A log of the ends that `states` gives them, of which nothing is left."""

    def __init__(self, asked: list[int], ordinal: int, end: int, error: Exception | None):
        self._asked, self._ordinal, self._end, self._error = asked, ordinal, end, error

    async def ends(self) -> SourceEnds:
        self._asked.append(self._ordinal)
        if self._error is not None:
            raise self._error
        return SourceEnds(self._end, self._end)

    async def compare(self, start: int, end: int) -> Compared:
        return Compared(chained([]), end)

    async def read(self, offset: int) -> Sequence[StoredBatch]:
        raise AssertionError("it has no batches")


class World:
    """Broker 1 on a disk, and the others as sources."""

    def __init__(self, ring: FixedRing, directory: DataDirectory) -> None:
        self.ring = ring
        self.asked: list[int] = []
        self.errors: list[Exception | None] = []
        self.open_logs: dict[LogKey, Any] = {}
        self.engine: Any = None
        self.reached_count = 0
        self.attempts = 0  # to fetch a log from a source
        made: Any = ring
        self.copies = SealedCopies(made, directory, self.open_logs.get, self._reached)

    async def _reached(self) -> None:
        self.reached_count += 1

    def source_of(self, ordinal: int, key: LogKey) -> EmptySource:
        self.attempts += 1
        error = self.errors.pop(0) if self.errors else None
        return EmptySource(self.asked, ordinal, 100 + key.partition, error)


def scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, play: Callable[[World], Any], **options: Any
) -> None:
    """Play it with a broker that fetches."""
    monkeypatch.setattr(sealed_copies, "RETRY_SECONDS_MIN", options.get("pause_seconds", 0.001))
    monkeypatch.setattr(sealed_copies, "RETRY_SECONDS_MAX", options.get("pause_seconds", 30.0))

    async def run() -> None:
        files = LogFiles(tmp_path)
        directory: Any = SimpleNamespace(
            identity=SimpleNamespace(ordinal=ORDINAL),
            partition_path=lambda topic, partition: tmp_path / str(topic) / str(partition),
            inventory=files.inventory,
            damaged=SimpleNamespace(
                is_to_be_set_aside=lambda _: False,
                unreset=set(),
                set_aside_path=lambda key: tmp_path / f"{key.partition}.damaged" / "log",
            ),
            has_lost_power=False,
        )
        async with open_engine_on(files, partitions=()) as engine:
            world = World(FixedRing(options.get("state") or grown()), directory)
            world.engine = engine
            world.errors = options.get("errors", [])
            world.ring.refuses = options.get("refuses", [])
            world.ring.quiet = options.get("quiet", set())
            world.copies.begin(engine.resources, world.source_of, asyncio.create_task)
            try:
                async with asyncio.timeout(5):
                    await play(world)
            finally:
                await world.copies.close()

    asyncio.run(run())


async def attempted_again(world: World) -> None:
    """One attempt to fetch has ended since, which began since."""
    before = world.attempts
    await until(lambda: world.attempts > before + 1)


def completed(world: World) -> bool:
    return ORDINAL in held_in(world.ring.state).complete


def test_a_range_is_completed_when_all_its_logs_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(world: World) -> None:
        await until(lambda: completed(world))
        held = held_in(world.ring.state)
        assert world.ring.asked == [Completed(held.id, ORDINAL, 1, 0)]
        assert world.asked == [0, 0]  # two partitions
        assert world.reached_count == 2

    scenario(tmp_path, monkeypatch, play)


@pytest.mark.parametrize("error", [NoLeaderError("away"), msgspec.DecodeError("cut off")])
def test_a_source_that_fails_is_asked_again_and_what_is_whole_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def play(world: World) -> None:
        await until(lambda: completed(world))
        assert len(world.asked) == 3

    scenario(tmp_path, monkeypatch, play, errors=[None, error])


def test_the_next_source_is_asked_when_one_fails_those_that_are_heard_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = stepped(with_topic(led(3, registered=1), partitions=1))
    held = held_in(state)
    assert held.complete == (0, 1, 2)
    state = done(state, Lost(held.id, 1, 1, 0))

    async def play(world: World) -> None:
        await until(lambda: completed(world))
        assert world.asked == [2, 0]

    scenario(tmp_path, monkeypatch, play, state=state, errors=[NoLeaderError("away")], quiet={0})


def test_an_outcome_that_is_not_known_is_asked_for_again_without_a_second_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may be opened and served any moment: it must not be opened here as well."""

    async def play(world: World) -> None:
        await until(lambda: completed(world))
        assert len(world.ring.asked) == 2
        assert world.asked == [0, 0]

    scenario(tmp_path, monkeypatch, play, refuses=[NotAgreedError("nobody answers")])


def test_damage_that_was_found_meanwhile_begins_the_copy_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(world: World) -> None:
        await until(lambda: completed(world))
        held = held_in(world.ring.state)
        world.ring.show(done(world.ring.state, Lost(held.id, ORDINAL, 1, 0)))
        await until(lambda: completed(world))
        assert world.ring.asked[-1] == Completed(held.id, ORDINAL, 1, 1)
        assert len(world.asked) == 4

    scenario(tmp_path, monkeypatch, play)


def test_a_log_that_is_still_open_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(world: World) -> None:
        [topic] = world.ring.state.topics.values()
        world.open_logs[LogKey(topic.id, 0)] = object()
        await until(lambda: world.reached_count > 2)
        assert world.ring.asked == []
        world.open_logs.clear()
        await until(lambda: completed(world))

    scenario(tmp_path, monkeypatch, play)


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_log_that_somebody_needs_as_it_is_is_closed_and_fetched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_opened: bool
) -> None:
    """A loss is accepted at a broker that is copying from one that does not answer any more."""
    hangs, opened, may_open = asyncio.Event(), asyncio.Event(), asyncio.Event()
    closed: list[PartitionLog] = []
    ends, close = EmptySource.ends, PartitionLog.close

    async def ask(self: EmptySource) -> SourceEnds:
        hangs.set()
        if not closed:
            await asyncio.Event().wait()
        return await ends(self)

    async def note_closed(self: PartitionLog) -> None:
        await close(self)
        closed.append(self)

    async def open_late(*args: Any) -> Any:
        opened.set()
        if not is_opened:
            await may_open.wait()
        return await open_logs(*args)

    monkeypatch.setattr(EmptySource, "ends", ask)
    monkeypatch.setattr(PartitionLog, "close", note_closed)
    monkeypatch.setattr(sealed_copies, "open_logs", open_late)

    async def play(world: World) -> None:
        held = held_in(world.ring.state)
        await (hangs if is_opened else opened).wait()
        async with world.copies.stopped(lambda _, each: each.range_id != held.id):
            assert not closed
        asyncio.get_running_loop().call_soon(may_open.set)
        async with world.copies.stopped(lambda _, each: each.range_id == held.id):
            assert len(closed) == 1
            await attempted_again(world)
            assert len(closed) == 1
        await until(lambda: completed(world))

    scenario(tmp_path, monkeypatch, play)


@pytest.mark.parametrize("phase", ["opened", "closed"])
def test_the_end_waits_for_a_log_that_is_being_opened_or_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """The disk would go on with it, in files and a journal that are closed."""
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    opened: list[PartitionLog] = []
    closed: list[PartitionLog] = []
    close = PartitionLog.close

    async def open_late(*args: Any) -> Any:
        if phase == "opened":
            begun.set()
            await may_go_on.wait()
        found = await open_logs(*args)
        opened.extend(each for each in found.values() if isinstance(each, PartitionLog))
        return found

    async def close_late(self: PartitionLog) -> None:
        if phase == "closed":
            begun.set()
            await may_go_on.wait()
        await close(self)
        closed.append(self)

    monkeypatch.setattr(sealed_copies, "open_logs", open_late)
    monkeypatch.setattr(PartitionLog, "close", close_late)

    async def play(world: World) -> None:
        await begun.wait()
        closing = asyncio.create_task(world.copies.close())
        await until(lambda: bool(world.copies._needed))
        assert not closing.done()
        may_go_on.set()
        await closing
        assert len(opened) == 1
        assert opened == closed

    scenario(tmp_path, monkeypatch, play)


def test_topics_that_are_deleted_meanwhile_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(world: World) -> None:
        world.ring.show(done(world.ring.state, DeleteTopic("orders", 1)))
        await until(lambda: completed(world))

    scenario(tmp_path, monkeypatch, play, errors=[NoLeaderError("away")] * 3)


def test_a_topic_that_is_deleted_while_another_is_fetched_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = stepped(with_topic(with_topic(led(1, registered=1), "first"), "second"))
    is_deleted = False
    ends = EmptySource.ends

    async def delete(self: EmptySource) -> SourceEnds:
        nonlocal is_deleted
        if not is_deleted:
            is_deleted = True
            rings[0].show(done(rings[0].state, DeleteTopic("second", 1)))
        return await ends(self)

    rings: list[FixedRing] = []
    monkeypatch.setattr(EmptySource, "ends", delete)

    async def play(world: World) -> None:
        rings.append(world.ring)
        await until(lambda: completed(world))
        assert world.asked == [0, 0]  # the partitions of the first

    scenario(tmp_path, monkeypatch, play, state=state)


def two_ranges() -> RingState:
    """Two sealed ranges, neither of which broker 1 has."""
    state = stepped(with_topic(led(3, registered=1), partitions=1))
    first = held_in(state)
    second = replace(first, id=state.next_range_id)
    ranges = {each.id: replace(each, complete=(0, 2)) for each in (first, second)}
    return replace(state, ranges={**state.ranges, **ranges}, next_range_id=state.next_range_id + 1)


def test_a_range_that_nobody_gives_delays_no_other_and_is_asked_for_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = two_ranges()
    first, second = (each for each in state.ranges.values() if each.is_sealed)

    async def play(world: World) -> None:
        await until(lambda: ORDINAL in world.ring.state.ranges[second.id].complete)
        assert world.asked == [0, 2]
        assert ORDINAL not in world.ring.state.ranges[first.id].complete
        other = replace(world.ring.state.ranges[first.id], complete=(2,))
        ranges = {**world.ring.state.ranges, first.id: other}
        world.ring.show(replace(world.ring.state, ranges=ranges))
        await until(lambda: ORDINAL in world.ring.state.ranges[first.id].complete)
        assert world.asked == [0, 2, 2]

    scenario(
        tmp_path,
        monkeypatch,
        play,
        state=state,
        errors=[NoLeaderError("away")] * 2,
        pause_seconds=60.0,
    )


def test_what_the_source_has_lost_is_recorded_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(self: EmptySource) -> SourceEnds:
        return SourceEnds(0, self._end)

    async def compare(self: EmptySource, start: int, end: int) -> Compared:
        return Compared(0, self._end, is_lost=True)

    async def read(self: EmptySource, offset: int) -> range:
        return range(offset, self._end)

    for method in (ends, compare, read):
        monkeypatch.setattr(EmptySource, method.__name__, method)

    async def play(world: World) -> None:
        await until(lambda: completed(world))
        [topic] = world.ring.state.topics.values()
        for partition, end in enumerate((100, 101)):
            path = tmp_path / str(topic.id) / str(partition)
            assert accepted_losses(path) == [(0, end)]

    scenario(tmp_path, monkeypatch, play)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_copy_leaves_files_that_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    """Else a directory comes behind the one that was moved, and a restored topic cannot return."""

    is_read, may_go_on = asyncio.Event(), asyncio.Event()

    async def ends(self: EmptySource) -> SourceEnds:
        self._asked.append(self._ordinal)
        return SourceEnds(0, self._end)

    async def read(self: EmptySource, offset: int) -> Sequence[StoredBatch]:
        is_read.set()
        await may_go_on.wait()
        return [stored_batch([b"%d" % each for each in range(100)], 0)]

    for method in (ends, read):
        monkeypatch.setattr(EmptySource, method.__name__, method)

    async def play(world: World) -> None:
        [topic] = world.ring.state.topics.values()
        path = tmp_path / str(topic.id)
        await is_read.wait()
        async with world.copies.stopped(lambda topic_id, _: topic_id == TOPIC_ID):
            assert len(world.asked) == 1  # it is another topic
        async with world.copies.stopped(lambda topic_id, _: topic_id == topic.id):
            assert not path.exists()  # nothing is written before something was read
            if is_deleted:
                world.ring.show(done(world.ring.state, DeleteTopic("orders", 1)))
                await until(lambda: completed(world))
            else:
                await attempted_again(world)
            may_go_on.set()
            assert not path.exists()
        await until(lambda: completed(world) if is_deleted else path.exists())
        assert path.exists() is not is_deleted

    scenario(tmp_path, monkeypatch, play)


def test_a_copy_that_a_full_disk_has_ended_leaves_nothing_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is opened again. What the one before had there would be written over that one."""
    settings = TopicSettings(partitions_per_range=PARTITION + 1)
    state = stepped(done(led(1, registered=1), CreateTopic("orders", TOPIC_ID, settings)))
    end = 100 + PARTITION
    batches = [stored_batch([b"0"] * 50, 0), stored_batch([b"1"] * (end - 50), 50)]
    is_full, refused = True, 0
    empty_ends, written = EmptySource.ends, os.pwritev

    async def ends(self: EmptySource) -> SourceEnds:
        found = await empty_ends(self)
        return SourceEnds(0, end) if found.end == end else found

    async def compare(self: EmptySource, start: int, end: int) -> Compared:
        return Compared(chained(each.header for each in batches), end)

    async def read(self: EmptySource, offset: int) -> Sequence[StoredBatch]:
        if is_full and offset:
            raise NoLeaderError("away")
        return [each for each in batches if each.header.base_offset == offset]

    def pwritev(fd: int, *rest: Any) -> int:
        nonlocal refused
        if is_full and Path(os.readlink(f"/proc/self/fd/{fd}")).suffix == ".log":  # noqa: PTH115
            refused += 1
            raise OSError(errno.ENOSPC, "full")
        return written(fd, *rest)

    for method in (ends, compare, read):
        monkeypatch.setattr(EmptySource, method.__name__, method)
    monkeypatch.setattr(os, "pwritev", pwritev)

    async def play(world: World) -> None:
        nonlocal is_full
        await until(lambda: refused > 1)
        is_full = False
        await until(lambda: completed(world))
        segment = tmp_path / str(TOPIC_ID) / str(PARTITION) / f"{0:020}.log"
        stored = segment.read_bytes()
        assert stored.startswith(b"".join(bytes(each.contents()) for each in batches))
        await world.engine.resources.journal.spill_all()
        assert segment.read_bytes() == stored

    scenario(tmp_path, monkeypatch, play, state=state)


def test_only_a_whole_copy_is_given_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(world: World) -> None:
        await until(lambda: completed(world))
        held = held_in(world.ring.state)
        [topic] = world.ring.state.topics.values()
        key = LogKey(topic.id, 0)
        log: Any = SimpleNamespace(place=SimpleNamespace(range_id=held.id), lost_end=None)
        with pytest.raises(NoLeaderError):
            world.copies.whole_log(key)
        world.open_logs[key] = log
        assert world.copies.whole_log(key) is log
        setattr(log, "lost_end", object())  # noqa: B010  of what mypy takes for a log
        with pytest.raises(NoLeaderError):
            world.copies.whole_log(key)

    scenario(tmp_path, monkeypatch, play)
