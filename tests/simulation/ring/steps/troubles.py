"""What goes wrong just when a step has begun, or is over and its sealed ranges are copied."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from tailrace_broker.core.node.events import ControlEffect
from tailrace_broker.core.replication.range_events import ProposeCommand, RangeEffect
from tailrace_broker.model.commands import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    RestoreTopic,
    Sealed,
)
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.ring.data.faults import DIRECTIONS, FailWrites, Isolate
from tests.simulation.ring.disk import Crash
from tests.simulation.ring.disk_faults import Stall, Wipe
from tests.simulation.ring.faults import Cut, Happening, Kill, LosePower, Pause, Reset, Stop
from tests.simulation.ring.process import DeathAt
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.work import Change, Purge
from tests.simulation.ring.world import World

# In place of an ordinal: who leads the first range of the step, the last, and who joins or leaves.
FIRST_LEADER, LAST_LEADER, CHANGING = -10, -11, -12
WHO = (FIRST_LEADER, FIRST_LEADER, LAST_LEADER, CHANGING)
DOWN_MS = (10, 100, 400, 1500, 4000)
LASTS_MS = (20, 300, 1200, 2500, 4000)
DELAY_MS_MAX = 30
DELAY_MS_AFTER = 600  # when sealed ranges are copied
SHARE = 0.7  # so many orders meet with trouble


@dataclass(frozen=True, slots=True)
class AtStep(Happening):
    """This happens to a broker of the next step that begins, so much later."""

    happening: Happening
    delay_ms: int

    def happen(self, world: World) -> None:
        assert world.operator is not None
        world.operator.at_next_step.append(partial(self._begun, world))

    def _begun(self, world: World, state: RingState) -> None:
        ordinal = _find(state, self.ordinal)
        if ordinal is not None:
            happening = replace(self.happening, ordinal=ordinal)
            world.faults["at a step"] += 1
            happen = partial(happening.happen, world)
            world.schedule.after(self.delay_ms * US_PER_MS + 1, happen)


@dataclass(frozen=True, slots=True)
class KillAtSeal(Happening):
    """The process dies before, or right after, it proposes the ends of a range."""

    crash: Crash
    down_ms: int
    is_after: bool

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None:
            world.faults["killed at seal"] += 1
            process.down_ms = self.down_ms
            process.death = DeathAt(_proposes_ends, 1 + self.is_after, self.crash)


@dataclass(frozen=True, slots=True)
class DelayCommands(Happening):
    """What the broker sends to others about the metadata arrives late for a while."""

    delay_ms: int
    lasts_ms: int

    def happen(self, world: World) -> None:
        world.faults["commands delayed"] += 1
        for other in range(world.broker_count):
            if other != self.ordinal:
                slow = partial(world.network.slow, self.ordinal, other, "peer")
                slow(self.delay_ms * US_PER_MS)
                world.schedule.after(self.lasts_ms * US_PER_MS, partial(slow, 0))


def _proposes_ends(effect: ControlEffect | RangeEffect) -> bool:
    return isinstance(effect, ProposeCommand) and isinstance(effect.command, Sealed)


def _find(state: RingState, who: int) -> int | None:
    step = state.step
    assert step is not None
    if who == CHANGING:
        return max(step.brokers_before, step.brokers_after) - 1
    if who not in (FIRST_LEADER, LAST_LEADER):
        return who
    led = state.ranges[step.parents[0 if who == FIRST_LEADER else -1]]
    return None if led.leader is None else led.leader.ordinal


def make_step_troubles(
    generator: random.Random, broker_count: int, orders: list[Happening]
) -> list[Happening]:
    """For each order there may be some."""
    troubles: list[Happening] = []
    number = 0
    for each in orders:
        while generator.random() < SHARE:
            number += 1
            happening = generator.choice(MAKERS)(generator, each.at_ms, broker_count, number)
            who = generator.choice(WHO)
            if isinstance(happening, Change | Purge | LosePower | Reset):
                who = happening.ordinal
            delay_ms = generator.randrange(generator.choice((DELAY_MS_MAX, DELAY_MS_AFTER)))
            if isinstance(happening, Purge):
                delay_ms = 0  # before a deletion: else its id is given to a new topic later
            troubles.append(AtStep(each.at_ms, who, happening, delay_ms))
    return troubles


Maker = Callable[[random.Random, int, int, int], Happening]


def _crash(generator: random.Random) -> Crash:
    return "power" if generator.random() < 0.4 else "process"


def _kill(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    return Kill(at_ms, 0, _crash(generator), generator.choice(DOWN_MS))


def _kill_at_seal(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    down_ms = generator.choice(DOWN_MS)
    return KillAtSeal(at_ms, 0, _crash(generator), down_ms, generator.random() < 0.5)


def _stop(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    return Stop(at_ms, 0, generator.choice(DOWN_MS))


def _lose_power(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    return LosePower(at_ms, 0, generator.choice(DOWN_MS))


def _pause(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    return Pause(at_ms, 0, generator.choice(LASTS_MS))


def _wipe(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    return Wipe(at_ms, 0, generator.choice(DOWN_MS))


def _isolate(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    """From the others of its ranges."""
    return Isolate(at_ms, 0, generator.choice(DIRECTIONS), generator.choice(LASTS_MS))


def _cut_metadata(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    """Its commands, or the answers to them, are lost for a while."""
    alone = generator.randrange(brokers)
    others = [each for each in range(brokers) if each != alone]
    pairs = [(alone, each) for each in others]
    if generator.random() < 0.5:
        pairs = [(each, alone) for each in others]
    return Cut(at_ms, alone, tuple(pairs), generator.choice(LASTS_MS), ("peer",))


def _delay_commands(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    delay_ms = generator.choice((50, 200, 600, 1500, 2500))
    return DelayCommands(at_ms, 0, delay_ms, generator.choice((10, 30, 100, 1000)))


def _reset(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    return Reset(at_ms, generator.randrange(brokers), generator.randrange(brokers))


def _stall(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    delay_ms = generator.choice((10, 300, 1500, 2500))
    return Stall(at_ms, 0, delay_ms, generator.choice(LASTS_MS), is_of_data=True)


def _fail_writes(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    return FailWrites(at_ms, 0, generator.choice((1, 3)))


def _change(generator: random.Random, at_ms: int, brokers: int, number: int) -> Happening:
    """Of a topic."""
    who, index, kind = generator.randrange(brokers), generator.randrange(3), generator.random()
    if kind < 0.3:
        settings = TopicSettings(
            partitions_per_range=generator.choice((1, 2)),
            durability=generator.choice(("fsync", "written")),
        )
        name = f"at-step-{at_ms}-{number}"
        topic_id = UUID(int=at_ms * 1000 + number, version=4)
        return Change(at_ms, who, CreateTopic(name, topic_id, settings))
    if kind < 0.6:
        return Change(at_ms, who, DeleteTopic(f"topic-{index}", at_ms * 1000 + 500 + number))
    if kind < 0.8:
        return Change(at_ms, who, RestoreTopic(UUID(int=index + 1), f"topic-{index}"))
    if kind < 0.85:
        return Purge(at_ms, who, UUID(int=index + 1), UUID(int=number, version=4))
    changes: dict[str, int | bool | str | None] = {
        "durability": generator.choice(("fsync", "written")),
        "retentionMs": 90_000 + number,
    }
    return Change(at_ms, who, AlterTopic(f"topic-{index}", changes))


MAKERS: tuple[Maker, ...] = (
    _kill,
    _kill_at_seal,
    _kill_at_seal,
    _stop,
    _lose_power,
    _pause,
    _wipe,
    _isolate,
    _cut_metadata,
    _delay_commands,
    _delay_commands,
    _reset,
    _stall,
    _fail_writes,
    _change,
    _change,
    _change,
)
