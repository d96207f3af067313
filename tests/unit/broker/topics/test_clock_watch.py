"""Which clocks a broker knows to agree with its own, and when it asks them."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace_broker.model.commands import Fence
from tailrace_broker.model.errors import NoLeaderError, TailraceError
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.topics import clock_watch
from tailrace_broker.topics.clock_watch import ClockWatch
from tests.support.ring.states import done, led, stepped, with_topic
from tests.support.waits import until

NOW_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
DAY_SECONDS = 86_400


class World:
    """Broker 0, whose clock says `NOW_US`."""

    def __init__(self, state: RingState | None) -> None:
        self.state = state
        self.clocks: dict[int, int | TailraceError] = {}
        self.asked: list[int] = []
        self.changes = 0
        ring: Any = self
        self.watch = ClockWatch(ring, 0, lambda: NOW_US)
        self.watch.on_changed = self._on_changed

    def _on_changed(self) -> None:
        self.changes += 1

    async def clock_of(self, ordinal: int) -> int:
        self.asked.append(ordinal)
        found = self.clocks.get(ordinal, NOW_US)
        if isinstance(found, TailraceError):
            raise found
        return found

    def look(self) -> bool:
        return asyncio.run(self.watch.look(self.clock_of))


@pytest.mark.parametrize("apart_seconds", [-61, 61, 8 * DAY_SECONDS])
def test_a_range_has_no_sure_time_while_a_replica_has_another(apart_seconds: int) -> None:
    """As of a broker that has started with a clock that is eight days ahead, and leads."""
    world = World(led())
    world.clocks[2] = NOW_US + apart_seconds * SECOND_US

    with capture_logs() as lines:
        assert not world.look()
        assert not world.look()
    assert not world.watch.agree(0)
    told = [(line["broker"], line["ahead_seconds"]) for line in lines]
    assert told == [(2, apart_seconds)]
    world.clocks[2] = NOW_US + 59 * SECOND_US
    assert world.look()
    assert world.watch.agree(0)
    assert world.changes == 2


def test_no_time_is_sure_before_others_have_answered() -> None:
    world = World(led())
    world.clocks[1] = NoLeaderError("it does not answer")

    assert not world.watch.agree(0)
    assert not world.look()
    assert not world.watch.agree(0)
    assert not world.watch.agree_all()
    del world.clocks[1]
    assert world.look()
    assert world.watch.agree(0)
    assert world.watch.agree_all()


def test_who_is_fenced_or_away_is_not_asked() -> None:
    world = World(done(led(), Fence(1, 1)))

    assert world.look()
    assert world.asked == [2]
    assert world.watch.agree(0)


def test_no_time_is_sure_while_all_others_with_copies_are_fenced() -> None:
    """They are back with all that they had; by then a wrong clock had removed it everywhere."""
    world = World(done(led(), Fence(1, 1), Fence(2, 1)))

    assert world.look()
    assert world.asked == []
    assert not world.watch.agree(0)


def test_logs_are_looked_at_again_when_others_with_copies_were_fenced_for_a_moment() -> None:
    """Nobody looks at a log whose time was not sure when it was due."""
    state = led()
    world = World(state)
    world.look()
    world.state = done(state, Fence(1, 1), Fence(2, 1))
    assert not world.watch.agree(0)
    world.state = state
    world.look()
    assert world.changes == 2
    world.look()
    assert world.changes == 2


def test_a_broker_alone_needs_nobody_nor_does_one_in_no_ring() -> None:
    alone, outside = World(led(1)), World(None)

    assert alone.watch.agree(0)
    assert alone.look()
    assert outside.watch.agree(0)
    assert not outside.look()
    assert alone.asked == outside.asked == []


def test_of_sealed_ranges_and_those_of_others_nobody_is_asked() -> None:
    world = World(stepped(with_topic(led(registered=1))))
    world.look()
    shared = [each for each in world.state.ranges.values() if 0 in each.replicas]  # type: ignore[union-attr]

    assert set(world.asked) == {
        o for each in shared if not each.is_sealed for o in each.replicas
    } - {0}
    assert world.watch.agree(0)  # it is sealed
    assert world.watch.agree(99)


def test_it_asks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_watch, "RETRY_SECONDS", 0)

    async def scenario() -> None:
        world = World(led())
        world.clocks[1] = NoLeaderError("it does not answer")
        agreed = asyncio.Event()
        world.watch.on_changed = lambda: agreed.set() if world.watch.agree(0) else None
        await world.watch.close()
        world.watch.begin(world.clock_of, asyncio.get_running_loop().create_task)
        await until(lambda: len(world.asked) > 4)
        del world.clocks[1]
        await agreed.wait()
        await world.watch.close()

    asyncio.run(scenario())
