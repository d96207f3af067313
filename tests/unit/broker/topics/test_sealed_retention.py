"""When this broker decides what retention leaves of sealed ranges, and when it does not."""

import asyncio
from typing import Any

import pytest

from tailrace_broker.model.commands import Command, DropCopy, Fence, TrimSealed
from tailrace_broker.model.errors import NotAgreedError, NotReadyError, TailraceError
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.topics import sealed_retention
from tailrace_broker.topics.sealed_retention import SealedRetention
from tests.support.ring.states import done, led, stepped, with_topic

NOW_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


def grown() -> RingState:
    """Range 0 is sealed, with two partitions that end at 100 and 101; broker 0 decides."""
    return stepped(with_topic(led(registered=1)))


class FixedRing:
    """Commits at once, unless it refuses; what is asked for is noted."""

    def __init__(self, state: RingState | None, ordinal: int) -> None:
        self.state = state
        self.registration = None if state is None else state.brokers[ordinal]
        self.asked: list[Command] = []
        self.refusal: TailraceError | None = None
        self.was_asked_again = asyncio.Event()

    async def change(self, command: Command) -> None:
        self.asked.append(command)
        if len(self.asked) > 1:
            self.was_asked_again.set()
        if self.refusal is not None:
            raise self.refusal


class World:
    """A broker whose logs begin where `starts` says, by partition."""

    def __init__(self, state: RingState | None, ordinal: int = 0, keep_seconds: float = 0) -> None:
        self.ring = FixedRing(state, ordinal)
        self.starts: dict[int, int] = {0: 100, 1: 7}
        self.clocks: dict[int, int | TailraceError] = {}
        self.asked_clocks: list[int] = []
        made: Any = self.ring
        self.retention = SealedRetention(
            made, lambda _: None, lambda: NOW_US, keep_seconds=keep_seconds
        )
        self.retention._start_of = (  # type: ignore[method-assign]
            lambda settings, key: self.starts.get(key.partition)
        )

    async def clock_of(self, ordinal: int) -> int:
        self.asked_clocks.append(ordinal)
        found = self.clocks.get(ordinal, NOW_US)
        if isinstance(found, TailraceError):
            raise found
        return found

    async def look(self) -> list[Command]:
        await self.retention.look(self.clock_of)
        return self.ring.asked


def asked(world: World) -> list[Command]:
    return asyncio.run(world.look())


def test_the_broker_that_decides_asks_for_what_has_moved() -> None:
    world = World(grown())
    topic_id = grown().topics["orders"].id

    assert asked(world) == [TrimSealed(0, 0, 1, {topic_id: (100, 7)})]
    assert world.asked_clocks == [1, 2]


@pytest.mark.parametrize("ordinal", [1, 2, 3])
def test_others_ask_for_nothing(ordinal: int) -> None:
    assert asked(World(grown(), ordinal)) == []


def test_nothing_is_asked_for_before_there_is_a_ring_or_when_nothing_moves() -> None:
    still = World(grown())
    still.starts = {0: 0, 1: 0}

    assert asked(World(None)) == []
    assert asked(still) == []
    assert still.asked_clocks == []


@pytest.mark.parametrize("apart_seconds", [-61, 61, 8 * 86_400])
def test_nothing_is_decided_while_clocks_differ(apart_seconds: int) -> None:
    world = World(grown())
    world.clocks[2] = NOW_US + apart_seconds * SECOND_US

    async def twice() -> list[Command]:
        await world.look()
        return await world.look()

    assert asyncio.run(twice()) == []
    world.clocks[2] = NOW_US + 59 * SECOND_US
    assert len(asked(world)) == 1


def test_who_does_not_answer_is_waited_for_unless_it_is_fenced() -> None:
    world = World(grown())
    world.clocks[1] = NotReadyError("it starts")

    assert asked(world) == []
    fenced = World(done(grown(), Fence(1, 1)))
    fenced.clocks = dict(world.clocks)
    assert len(asked(fenced)) == 1
    assert fenced.asked_clocks == [2]


def test_nothing_is_decided_while_all_others_with_copies_are_fenced() -> None:
    """Nobody could say whether the clock here is right."""
    state = grown()
    world = World(done(state, *(Fence(each, 1) for each in state.ranges[0].replicas[1:])))

    assert asked(world) == []


def test_a_broker_that_has_the_only_copy_decides_by_its_own_clock() -> None:
    state = stepped(with_topic(led(2, registered=0)), "shrink")
    [held, *_] = [each for each in state.ranges.values() if each.is_sealed]
    state = done(state, DropCopy(held.id, 1))
    world = World(state)
    world.starts = dict.fromkeys(range(4), 100)

    assert len(asked(world)) == 1
    assert world.asked_clocks == []


def test_what_is_not_committed_is_asked_for_again() -> None:
    world = World(grown())
    world.ring.refusal = NotAgreedError("nobody leads")

    async def twice() -> list[Command]:
        await world.look()
        return await world.look()

    assert len(asyncio.run(twice())) == 2


def test_a_range_stays_as_it_is_for_some_time_after_it_was_sealed() -> None:
    world = World(grown(), keep_seconds=3600)

    assert asked(world) == []


def test_it_looks_again_and_again_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_retention, "LOOK_SECONDS_MAX", 0.001)
    world = World(grown())

    async def scenario() -> None:
        await world.retention.close()  # it has not begun
        world.retention.begin(world.clock_of, asyncio.create_task)
        async with asyncio.timeout(5):
            await world.ring.was_asked_again.wait()
        await world.retention.close()

    asyncio.run(scenario())


def test_a_log_that_is_not_open_here_says_nothing() -> None:
    world = World(grown())
    del world.retention._start_of

    assert asked(world) == []


def test_a_partition_without_records_stays_for_some_time() -> None:
    world = World(grown())
    emptied = done(grown(), *asked(world))
    topic_id = emptied.topics["orders"].id

    async def scenario() -> list[Command]:
        later = World(emptied, keep_seconds=3600)
        sealed_s = asyncio.get_running_loop().time() - 3601
        later.retention._sealed_s = {0: sealed_s}
        assert await later.look() == []
        later.retention._emptied_s = dict.fromkeys(later.retention._emptied_s, sealed_s)
        return await later.look()

    assert asyncio.run(scenario()) == [TrimSealed(0, 0, 1, {topic_id: (100, 7)})]
