"""What happens to a ring that replicates: its topics and clients, and faults of data at random."""

import random
from collections.abc import Callable
from uuid import UUID

from tailrace_broker.model.commands import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    RestoreTopic,
)
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.ring.data.faults import (
    DIRECTIONS,
    RANGE_LEADER,
    DamageLog,
    FailWrites,
    FindDamage,
    Isolate,
    ResetLink,
    SlowRecovery,
    ToRangeLeader,
    Use,
)
from tests.simulation.ring.disk import Crash
from tests.simulation.ring.disk_faults import Stall, Wipe
from tests.simulation.ring.faults import (
    DATA_EFFECTS,
    Cut,
    Happening,
    Kill,
    KillAt,
    LosePower,
    Stop,
)
from tests.simulation.ring.network import Port
from tests.simulation.ring.troubles import make_troubles
from tests.simulation.ring.work import Change, Purge

# Brokers and copies, and how often such a ring is simulated.
DATA_RINGS = (
    ((1, 3), 1),
    ((2, 3), 1),
    ((3, 3), 8),
    ((4, 3), 1),
    ((5, 3), 1),
    ((6, 3), 1),
)
CREATED_MS = 1500
DOWN_MS = (10, 100, 400, 1500, 4000)
LASTS_MS = (100, 800, 2000, 4000)
DURABILITIES = (
    ("fsync",),
    ("fsync", "fsync"),
    ("written",),
    ("fsync", "written"),
    ("fsync", "fsync", "written"),
)
DAMAGE_FOUND = 0.25  # so many scenarios have running processes find some
ISOLATED = 0.2  # so many have a broker that gossip hears and replication does not
ISOLATED_MS = (3000, 5000, 8000)
Maker = Callable[[random.Random, int, int], list[Happening]]


def make_data_work(generator: random.Random, broker_count: int, trouble_ms: int) -> list[Happening]:
    """A few topics, which are used, deleted, restored and altered."""
    use = Use(0, 0, generator.choice((20, 60)), generator.choice((0.1, 0.4)), 700)
    work: list[Happening] = [use]
    for index, durability in enumerate(generator.choice(DURABILITIES)):
        settings = TopicSettings(
            partitions_per_range=1, durability="written" if durability == "written" else "fsync"
        )
        create = CreateTopic(f"topic-{index}", UUID(int=index + 1), settings)
        work += [  # the first may come before anybody leads the metadata
            Change(at_ms + index, generator.randrange(broker_count), create)
            for at_ms in (CREATED_MS, CREATED_MS + 1500)
        ]
    at_ms, number = CREATED_MS + 2000, 0
    while at_ms < trouble_ms:
        number += 1
        work.append(_change(generator, at_ms, broker_count, number))
        at_ms += int(generator.expovariate(1 / 1500)) + 1
    return work


def _change(generator: random.Random, at_ms: int, broker_count: int, number: int) -> Happening:
    who, index = generator.randrange(broker_count), generator.randrange(3)
    kind = generator.random()
    if kind < 0.3:
        return Change(at_ms, who, DeleteTopic(f"topic-{index}", at_ms * 1000 + number))
    if kind < 0.8:
        restore = RestoreTopic(UUID(int=index + 1), f"topic-{index}")
        return Change(at_ms, who, restore)
    if kind < 0.85:
        return Purge(at_ms, who, UUID(int=index + 1), UUID(int=number, version=4))
    changes: dict[str, int | bool | str | None] = {
        "durability": generator.choice(("fsync", "written")),
        "retentionMs": 60_000 + number,
    }
    return Change(at_ms, who, AlterTopic(f"topic-{index}", changes))


def make_data_troubles(
    generator: random.Random, broker_count: int, trouble_ms: int
) -> list[Happening]:
    """Those of a ring, and those of data."""
    troubles = make_troubles(generator, broker_count, trouble_ms=trouble_ms)
    if generator.random() < 0.5:
        troubles = []
    pause_ms = generator.choice((200, 600, 2000))
    makers = generator.sample(MAKERS, generator.randint(1, len(MAKERS)))
    at_ms = CREATED_MS + generator.randint(0, 1000)
    while at_ms < trouble_ms:
        troubles += generator.choice(makers)(generator, at_ms, broker_count)
        at_ms += int(generator.expovariate(1 / pause_ms)) + 1
    own = random.Random()  # so that neither changes a scenario without it
    own.setstate(generator.getstate())
    if own.random() < DAMAGE_FOUND:
        for _ in range(own.randint(1, 3)):
            found_ms = own.randint(CREATED_MS, max(CREATED_MS, trouble_ms))
            troubles += _find_damage(own, found_ms, broker_count)
    if own.random() < ISOLATED:
        cut_ms = own.randint(CREATED_MS, max(CREATED_MS, trouble_ms - ISOLATED_MS[0]))
        troubles += _isolate(own, cut_ms, broker_count)
    return troubles


def _crash(generator: random.Random) -> Crash:
    return "power" if generator.random() < 0.3 else "process"


def _to_leader(generator: random.Random, happening: Happening) -> Happening:
    """To the leader of a range, as often as to anybody."""
    if generator.random() < 0.5:
        return ToRangeLeader(happening.at_ms, RANGE_LEADER, happening)
    return happening


def _kill(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    crash, down_ms = _crash(generator), generator.choice(DOWN_MS)
    return [_to_leader(generator, Kill(at_ms, generator.randrange(brokers), crash, down_ms))]


def _kill_again(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """It loses the power, and dies once more before that is registered."""
    who = generator.randrange(brokers)
    again_ms = at_ms + 60 + generator.randrange(100)
    return [Kill(at_ms, who, "power", 10), Kill(again_ms, who, "process", 50)]


def _kill_at(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    crash, down_ms = _crash(generator), generator.choice(DOWN_MS)
    effect, number = generator.choice([*DATA_EFFECTS]), generator.choice((1, 1, 2, 5))
    who = generator.randrange(brokers)
    return [_to_leader(generator, KillAt(at_ms, who, crash, down_ms, effect, number))]


def _kill_all(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [Kill(at_ms, who, "process", generator.choice(DOWN_MS)) for who in range(brokers)]


def _lose_power(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [LosePower(at_ms, 0, generator.choice(DOWN_MS))]


def _fail_writes(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    who = generator.choice((RANGE_LEADER, generator.randrange(brokers)))
    return [FailWrites(at_ms, who, generator.choice((1, 1, 3)))]


def _reset(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [ResetLink(at_ms, generator.randrange(brokers), generator.randrange(brokers))]


def _cut_data(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """One way or both, the metadata's port or the data's."""
    one, other = generator.randrange(brokers), generator.randrange(brokers)
    pairs = generator.choice((((one, other),), ((one, other), (other, one))))
    ports: tuple[Port, ...] = generator.choice((("data",), ("data",), ("peer",)))
    return [Cut(at_ms, one, pairs, generator.choice(LASTS_MS), ports)]


def _stall_data(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    delay_ms = generator.choice((10, 100, 1500, 13_000))
    who = generator.randrange(brokers)
    return [Stall(at_ms, who, delay_ms, generator.choice(LASTS_MS), is_of_data=True)]


def _recover_slowly(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    who, delay_ms = generator.randrange(brokers), generator.choice((300, 2000, 6000))
    slow = SlowRecovery(at_ms, who, delay_ms, 3000)
    return [slow, Kill(at_ms + 10, who, _crash(generator), 10)]


def _wipe(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [
        _to_leader(generator, Wipe(at_ms, generator.randrange(brokers), generator.choice(DOWN_MS)))
    ]


def _damage(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """And perhaps it dies again before that is registered, or all lose the power."""
    who = generator.randrange(brokers)
    damage = DamageLog(at_ms, who, 10, is_last_record=generator.random() < 0.5)
    kind, later_ms = generator.random(), at_ms + 60 + generator.randrange(300)
    if kind < 0.3:
        return [damage, Kill(later_ms, who, "process", 50)]
    if kind < 0.7:
        return [damage, LosePower(later_ms, 0, 100)]
    return [damage]


def _stop(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """And perhaps somebody dies while it hands over."""
    stop = Stop(at_ms, generator.randrange(brokers), generator.choice(DOWN_MS))
    if generator.random() < 0.5:
        return [_to_leader(generator, stop)]
    die = Kill(at_ms + generator.randrange(100), generator.randrange(brokers), "process", 400)
    return [_to_leader(generator, stop), die]


def _stop_all(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    return [Stop(at_ms, who, generator.choice(DOWN_MS)) for who in range(brokers)]


def _find_damage(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """And perhaps it dies before the ring knows, or all lose the power."""
    who = generator.choice((RANGE_LEADER, generator.randrange(brokers)))
    killed_ms = generator.randrange(30) if generator.random() < 0.4 else None
    found = FindDamage(at_ms, who, killed_ms)
    if generator.random() < 0.3:
        return [found, LosePower(at_ms + generator.randrange(30), 0, 100)]
    return [found]


def _isolate(generator: random.Random, at_ms: int, brokers: int) -> list[Happening]:
    """And perhaps another one soon, so that those that remain cannot do better."""
    who = generator.choice((RANGE_LEADER, generator.randrange(brokers)))
    lasts_ms = generator.choice(ISOLATED_MS)
    isolated: list[Happening] = [Isolate(at_ms, who, generator.choice(DIRECTIONS), lasts_ms)]
    if generator.random() < 0.3:
        later_ms = at_ms + generator.randrange(3000)
        isolated.append(Isolate(later_ms, RANGE_LEADER, "both", generator.choice(ISOLATED_MS)))
    return isolated


MAKERS: list[Maker] = [
    _kill,
    _kill_again,
    _kill_at,
    _kill_all,
    _lose_power,
    _fail_writes,
    _reset,
    _cut_data,
    _stall_data,
    _recover_slowly,
    _wipe,
    _damage,
    _stop,
    _stop_all,
]
