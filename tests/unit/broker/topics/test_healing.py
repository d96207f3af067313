"""When damage that a running broker has found is reported to the ring."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.model.commands import AcceptLoss, Completed, Lost
from tailrace_broker.model.errors import StorageFailedError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import LostOffsets, RangeState, Registration, RingState
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.topics import healing
from tailrace_broker.topics.healing import Healing
from tests.support.ring.states import done, led, refusal_of, stepped, with_topic
from tests.support.storage.topics import new_topic
from tests.support.waits import until

T = TypeVar("T")

KEY = LogKey(UUID(bytes=b"orders".ljust(16)), 0)
OTHER_KEY = KEY._replace(partition=1)


def sealed_range(state: RingState) -> RangeState:
    [held] = [each for each in state.ranges.values() if each.is_sealed]
    return held


class World:
    """Broker 0 with a damaged log, on a disk that refuses to note it as often as `fails` says."""

    def __init__(self, state: RingState | None, *, fails: int = 0) -> None:
        self.state = state
        self.fails = fails
        self.is_registered = True
        self.marked: list[LogKey] = []
        self.known: set[LogKey] = set()
        self.unreset: set[LogKey] = set()
        self.reported: list[int] = []
        self.answers = asyncio.Event()  # set while the disk does
        self.answers.set()
        self._tasks: list[asyncio.Task[None]] = []
        self.damaged: Any = self
        self.begin()

    def begin(self) -> None:
        io: Any = self
        ring: Any = self
        self.healing = Healing(ring, self.damaged, io, self._spawn)

    @property
    def registration(self) -> Registration | None:
        return self.state.brokers[0] if self.state and self.is_registered else None

    def note_damage(self, range_id: int) -> None:
        self.reported.append(range_id)

    def mark_in_place(self, key: LogKey) -> bool:
        if self.fails:
            self.fails -= 1
            raise StorageFailedError("the disk is away")
        self.marked.append(key)
        self.known.add(key)
        return True

    def remove(self, key: LogKey) -> None:
        self.known.discard(key)

    async def run(self, work: Callable[[], T]) -> T:
        await self.answers.wait()
        return work()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def settled(self) -> list[int]:
        """What is reported by now."""
        while self._tasks:
            await self._tasks.pop()
        return self.reported


def test_damage_in_the_only_copy_is_reported_when_another_broker_has_one() -> None:
    async def scenario() -> None:
        state = stepped(with_topic(led(1, registered=1)))
        held = sealed_range(state)
        world = World(state)
        world.healing.note_damage(KEY, held.id)
        world.healing.report_found()
        assert await world.settled() == []
        world.state = done(state, Completed(held.id, 1, 1, 0))
        world.healing.report_found()
        world.healing.report_found()
        assert await world.settled() == [held.id]
        assert world.marked == [KEY]
        world.healing.note_damage(KEY, held.id)  # met once more before the ring knows
        assert await world.settled() == [held.id]
        lost = done(world.state, Lost(held.id, 0, 1, 0))
        assert list(world.healing.take_lost(lost, world.registration)) == [KEY]

    asyncio.run(scenario())


def test_damage_in_what_became_the_only_copy_is_reported_when_there_is_another_again() -> None:
    """The other broker has reported damage first, so that the ring refused the report from here."""

    async def scenario() -> None:
        state = stepped(with_topic(led(1, registered=1)))
        held = sealed_range(state)
        state = done(state, Completed(held.id, 1, 1, 0))
        world = World(state)
        world.healing.note_damage(KEY, held.id)
        assert await world.settled() == [held.id]
        world.state = state = done(state, Lost(held.id, 1, 1, 0))
        assert refusal_of(state, Lost(held.id, 0, 1, 0)) == "only-copy"
        assert list(world.healing.take_lost(state, world.registration)) == []
        world.healing.report_found()
        world.healing.remove_healed(state, world.registration)
        assert await world.settled() == [held.id]
        assert world.known == {KEY}  # a start is to know it, too

        world.state = state = done(state, Completed(held.id, 1, 1, 1))
        world.healing.report_found()
        assert await world.settled() == [held.id, held.id]
        lost = done(state, Lost(held.id, 0, 1, 0))
        assert list(world.healing.take_lost(lost, world.registration)) == [KEY]

    asyncio.run(scenario())


def test_what_was_accepted_of_the_only_copy_is_not_reported_when_another_is_made_of_it() -> None:
    async def scenario() -> None:
        state = stepped(with_topic(led(1, registered=1)))
        held = sealed_range(state)
        world = World(state)
        world.healing.note_damage(KEY, held.id)
        lost = (LostOffsets(KEY.topic_id, 0, 40, 50),)
        state = done(state, AcceptLoss(held.id, held.epoch, 0, 1, lost))
        world.healing.forget_found({KEY})
        world.state = done(state, Completed(held.id, 1, 1, 1))
        world.healing.report_found()
        assert await world.settled() == []

    asyncio.run(scenario())


def test_damage_in_a_replica_is_reported_at_once() -> None:
    async def scenario() -> None:
        world = World(with_topic(led(3)))
        world.healing.note_damage(KEY, 0)
        assert await world.settled() == [0]

    asyncio.run(scenario())


def test_damage_that_the_disk_does_not_note_is_reported_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reports it again: whoever meets it later meets damage that is known."""
    monkeypatch.setattr(healing, "RETRY_SECONDS", 0)

    async def scenario() -> None:
        world = World(with_topic(led(3)), fails=2)
        world.healing.note_damage(KEY, 0)
        await until(lambda: world.reported == [0])
        assert world.marked == [KEY]

    asyncio.run(scenario())


def test_a_log_is_not_set_aside_before_its_damage_is_noted() -> None:
    """Of another log of the range the ring hears meanwhile: opened again without its mark, the
    damaged one would pass for whole.
    """

    async def scenario() -> None:
        state = with_topic(led(3))
        world = World(state)
        world.healing.note_damage(OTHER_KEY, 0)
        await world.settled()
        world.answers.clear()
        world.healing.note_damage(KEY, 0)
        world.state = done(state, Lost(0, 0, 1, 0))
        assert list(world.healing.take_lost(world.state, world.registration)) == [OTHER_KEY]
        world.answers.set()
        assert await world.settled() == [0, 0]
        assert list(world.healing.take_lost(world.state, world.registration)) == []
        world.state = done(world.state, Lost(0, 0, 1, 1))
        assert list(world.healing.take_lost(world.state, world.registration)) == [KEY]

    asyncio.run(scenario())


async def test_damage_that_is_noted_when_its_topic_is_in_the_trash_keeps_nothing_from_coming_back(
    tmp_path: Path,
) -> None:
    """A directory in its place would; its log is closed, and opened again when it is back."""
    directory = DataDirectory(tmp_path)
    topic = new_topic("orders", TopicSettings(), KEY.topic_id)
    path = directory.partition_path(*KEY)
    path.mkdir(parents=True)
    world = World(with_topic(led(3)))
    world.damaged = directory.damaged
    world.begin()
    world.answers.clear()
    world.healing.note_damage(KEY, 0)
    directory.trash.mark(topic, 1)
    directory.trash.bury(KEY.topic_id)
    world.answers.set()
    assert await world.settled() == []
    assert not path.parent.exists()
    directory.trash.exhume(topic)
    assert path.exists()

    world.healing.note_damage(KEY, 0)
    assert await world.settled() == [0]
    assert directory.damaged.is_to_be_set_aside(KEY)


def test_a_log_whose_range_is_gone_when_its_damage_is_noted_is_not_reported() -> None:
    async def scenario() -> None:
        state = stepped(with_topic(led(3, registered=1)))
        held = sealed_range(state)
        world = World(state)
        world.answers.clear()
        world.healing.note_damage(KEY, held.id)
        others = {key: each for key, each in state.ranges.items() if key != held.id}
        world.state = replace(state, ranges=others)
        world.answers.set()
        assert await world.settled() == []

    asyncio.run(scenario())


def test_damage_that_a_start_finds_waits_for_the_registration() -> None:
    async def scenario() -> None:
        world = World(with_topic(led(3)))
        world.is_registered = False
        world.healing.note_damage(KEY, 0)
        assert await world.settled() == []
        world.is_registered = True
        world.healing.report_found()
        assert await world.settled() == [0]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_known", [True, False])
def test_damage_of_which_the_ring_knows_or_whose_range_is_gone_is_not_reported(
    is_known: bool,
) -> None:
    async def scenario() -> None:
        state = stepped(with_topic(led(3, registered=1)))
        held = sealed_range(state)
        lacking = replace(held, complete=(1, 2))
        others = {key: each for key, each in state.ranges.items() if key != held.id}
        after = replace(state, ranges={**others, held.id: lacking} if is_known else others)
        world = World(None)
        world.healing.note_damage(KEY, held.id)
        world.state = after
        world.healing.report_found()
        world.state = state
        world.healing.report_found()
        assert await world.settled() == []

    asyncio.run(scenario())
