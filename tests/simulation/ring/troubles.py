"""Faults at random: which kinds a scenario has, whom they hit, and for how long."""

import random
from collections.abc import Callable

from tests.simulation.ring.disk import Crash
from tests.simulation.ring.disk_faults import Rot, Stall, Twin, Wipe
from tests.simulation.ring.faults import (
    DOWN_MS,
    EFFECTS,
    LASTS_MS,
    Cut,
    Freeze,
    Happening,
    Isolate,
    Kill,
    KillAt,
    LosePower,
    Pause,
    Reset,
    Slow,
    StallData,
    Stop,
)
from tests.simulation.ring.world import LEADER

Maker = Callable[[random.Random, int, int], list[Happening]]
HIT_LEADER = 0.35


def make_troubles(
    generator: random.Random, broker_count: int, *, trouble_ms: int
) -> list[Happening]:
    """As many as there is time for; some scenarios are quiet, and some are not."""
    pause_ms = generator.choice((500, 1500, 4000))
    makers = generator.sample(MAKERS, generator.randint(1, len(MAKERS)))
    troubles: list[Happening] = []
    at_ms = generator.randint(0, 3000)
    while at_ms < trouble_ms:
        troubles += generator.choice(makers)(generator, at_ms, broker_count)
        at_ms += int(generator.expovariate(1 / pause_ms)) + 1
    return troubles


def _who(generator: random.Random, brokers: int) -> int:
    return LEADER if generator.random() < HIT_LEADER else generator.randrange(brokers)


def _crash(generator: random.Random) -> Crash:
    return "power" if generator.random() < 0.4 else "process"


def _kill(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    who, down_ms = _who(generator, brokers), generator.choice(DOWN_MS)
    return [Kill(at_ms, who, _crash(generator), down_ms)]


def _kill_at(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    who, effect = _who(generator, brokers), generator.choice([*EFFECTS])
    number, down_ms = generator.choice((1, 1, 2, 5)), generator.choice(DOWN_MS)
    return [KillAt(at_ms, who, _crash(generator), down_ms, effect, number)]


def _lag(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """A broker misses something; it hears again as the leader dies that has committed it."""
    who, lasts_ms = generator.randrange(brokers), generator.choice((1500, 3000))
    down_ms = generator.choice(DOWN_MS)
    end_ms = at_ms + lasts_ms - generator.randrange(300)
    return [
        Isolate(at_ms, who, "in", lasts_ms),
        KillAt(end_ms, LEADER, _crash(generator), down_ms, "commit", 1),
    ]


def _stop(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [Stop(at_ms, _who(generator, brokers), generator.choice(DOWN_MS))]


def _lose_power(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [LosePower(at_ms, LEADER, generator.choice(DOWN_MS))]


def _pause(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [Pause(at_ms, _who(generator, brokers), generator.choice(LASTS_MS))]


def _freeze(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [Freeze(at_ms, _who(generator, brokers), generator.choice(LASTS_MS))]


def _isolate(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    ways = generator.choice(("in", "out", "both"))
    return [Isolate(at_ms, _who(generator, brokers), ways, generator.choice(LASTS_MS))]


def _split(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """The ring falls into two."""
    side = [generator.random() < 0.5 for _ in range(brokers)]
    pairs = tuple(
        (one, other)
        for one in range(brokers)
        for other in range(brokers)
        if side[one] != side[other]
    )
    return [Cut(at_ms, LEADER, pairs, generator.choice(LASTS_MS))]


def _cut_one_way(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    one, other = generator.randrange(brokers), generator.randrange(brokers)
    return [Cut(at_ms, one, ((one, other),), generator.choice(LASTS_MS))]


def _reset(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [Reset(at_ms, _who(generator, brokers), generator.randrange(brokers))]


def _slow(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    one, other = generator.randrange(brokers), generator.randrange(brokers)
    delay_ms = generator.choice((30, 300, 2000))
    return [Slow(at_ms, one, other, delay_ms, generator.choice(LASTS_MS))]


def _stall(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    delay_ms = generator.choice((10, 100, 1500, 13_000))
    return [Stall(at_ms, _who(generator, brokers), delay_ms, generator.choice(LASTS_MS))]


def _stall_data(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [StallData(at_ms, _who(generator, brokers), generator.choice(LASTS_MS))]


def _lose_disk(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """And perhaps the leader dies while the new disk is let in."""
    who, down_ms = generator.randrange(brokers), generator.choice(DOWN_MS)
    kind = generator.randrange(3)
    lost: Happening = Wipe(at_ms, who, down_ms)
    if kind == 0:
        lost = Rot(at_ms, who, down_ms)
    elif kind == 1:
        lost = Twin(at_ms, who, generator.random() < 0.5, generator.choice(LASTS_MS))
    if generator.random() < 0.5:
        return [lost]
    later_ms = at_ms + generator.randrange(2000)
    return [lost, Kill(later_ms, LEADER, _crash(generator), generator.choice(DOWN_MS))]


MAKERS: list[Maker] = [
    _kill,
    _kill_at,
    _lag,
    _stop,
    _lose_power,
    _pause,
    _freeze,
    _isolate,
    _split,
    _cut_one_way,
    _reset,
    _slow,
    _stall,
    _stall_data,
    _lose_disk,
]
