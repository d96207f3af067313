"""Brokers that hear each other by gossip, and not by replication: the port `data` alone is cut."""

import random
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

from tailrace_broker.model.commands import CreateTopic, Lead
from tailrace_broker.model.replication import Batches, LogKey
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.ring.data.faults import DIRECTIONS, Isolate, Use, cut_data
from tests.simulation.ring.disk_faults import Stall
from tests.simulation.ring.faults import Happening, Kill
from tests.simulation.ring.network import CALM, DataFrame, Endpoint, Payload
from tests.simulation.ring.scenario import Scenario
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.violation import check
from tests.simulation.ring.work import Change, Found
from tests.simulation.ring.world import World

# By then another replica leads: `replicaLagMs` and 2 s.
LED_MS = 5000
# In which each partition takes something.
PRODUCED_MS = 1000
CUT_MS = 8000
RECOVERY_MS = 10_000
# For longer than a leader waits that nobody answers.
SLOW_MS = 4000
# Of cuts; each ends early enough for the natural leader to lead before the next.
ROUNDS = 4
ROUND_MS = 12_000
# What the dead led has found another leader by then, where one could lead.
TAKEN_OVER_MS = 2000


@dataclass(frozen=True, slots=True)
class CutPair(Happening):
    """Nor between these two brokers."""

    other: int
    lasts_ms: int

    def happen(self, world: World) -> None:
        cut_data(world, self.ordinal, self.other, self.lasts_ms)
        cut_data(world, self.other, self.ordinal, self.lasts_ms)


@dataclass(frozen=True, slots=True)
class CutTo(Happening):
    """What this broker sends the other does not arrive."""

    other: int
    lasts_ms: int

    def happen(self, world: World) -> None:
        cut_data(world, self.ordinal, self.other, self.lasts_ms)


@dataclass(frozen=True, slots=True)
class DelayBatches(Happening):
    """Those that the broker sends arrive so much later."""

    delay_ms: int

    def happen(self, world: World) -> None:
        def is_such(sender: Endpoint, message: Payload) -> bool:
            is_batches = isinstance(message, DataFrame) and isinstance(message.message, Batches)
            return is_batches and sender.ordinal == self.ordinal

        world.network.hold_back(is_such, self.delay_ms * US_PER_MS)


@dataclass(frozen=True, slots=True)
class RecoverLogs(Happening):
    """Whoever starts on this disk recovers its logs for so much longer, and is heard meanwhile."""

    lasts_ms: int

    def happen(self, world: World) -> None:
        world.disks[self.ordinal].logs_recovery_us = self.lasts_ms * US_PER_MS


@dataclass(frozen=True, slots=True)
class FailAppend(Happening):
    """The next append of a log that it leads fails: it leads on in the next epoch."""

    def happen(self, world: World) -> None:
        assert world.replicas is not None
        host = world.replicas.registered(self.ordinal)
        assert host is not None
        key = min(key for key in host.live if host.hosted[key].range_id in host.led)
        world.disks[self.ordinal].logs[key].failures += 1


@dataclass(frozen=True, slots=True)
class OthersCommit(Happening):
    """Every range is led by other brokers than this one, and commits."""

    def happen(self, world: World) -> None:
        replicas = world.replicas
        assert replicas is not None
        for owner in replicas.state.ranges.values():
            leader = owner.leader
            is_other = leader is not None and leader.ordinal != self.ordinal
            check(is_other, f"range {owner.id} is led by {leader}, which nobody hears")
        before = {**replicas.truth.acknowledged_count}
        world.schedule.after(PRODUCED_MS * US_PER_MS, partial(_check_taken, world, before))


@dataclass(frozen=True, slots=True)
class NobodyDied(Happening):
    """Nor has anybody taken another broker for dead."""

    def happen(self, world: World) -> None:
        check(world.rules["gossip.damped"] == 0, "who left its ranges passes for dead")


@dataclass(frozen=True, slots=True)
class CountLeads(Happening):
    """From now on for `lasts_ms` at most so many takeovers are committed."""

    lasts_ms: int
    most: int

    def happen(self, world: World) -> None:
        before = _lead_count(world)

        def look() -> None:
            count = _lead_count(world) - before
            check(count <= self.most, f"{count} times another broker came to lead")

        world.schedule.after(self.lasts_ms * US_PER_MS, look)


def isolated_broker(seed: int) -> Scenario:
    """Others lead what it led, and it leads again what is its own when it is heard again."""
    generator = random.Random(f"isolated {seed}")
    broker_count = generator.choice((3, 3, 4, 6))
    alone = generator.randrange(broker_count)
    happenings = [
        *_use(generator, broker_count),
        Isolate(CUT_MS, alone, generator.choice(DIRECTIONS), 9000),
        OthersCommit(CUT_MS + LED_MS, alone),
        CountLeads(CUT_MS + LED_MS, 0, 4000, 0),
    ]
    return _scenario(seed, broker_count, happenings, CUT_MS + 10_000)


def isolated_again_and_again(seed: int) -> Scenario:
    """As when it hears others, and they do not hear it: it gets its range back, and leaves it.

    Others lead as soon each time, and nobody takes it for dead.
    """
    generator = random.Random(f"isolated again {seed}")
    alone = generator.randrange(3)
    happenings = [*_use(generator, 3)]
    for number in range(ROUNDS):
        at_ms = CUT_MS + number * ROUND_MS
        lasts_ms = LED_MS + PRODUCED_MS
        happenings.append(Isolate(at_ms, alone, generator.choice(DIRECTIONS), lasts_ms))
        happenings.append(OthersCommit(at_ms + LED_MS, alone))
    end_ms = CUT_MS + ROUNDS * ROUND_MS
    happenings.append(NobodyDied(end_ms, alone))
    return _scenario(seed, 3, happenings, end_ms)


def others_recover(seed: int) -> Scenario:
    """They are heard by gossip, but not as whom the ring knows: no range moves until one is."""
    generator = random.Random(f"others recover {seed}")
    alone = generator.randrange(3)
    happenings: list[Happening] = [
        *_use(generator, 3),
        CountLeads(CUT_MS + TAKEN_OVER_MS, alone, RECOVERY_MS - TAKEN_OVER_MS, 0),
    ]
    for other in {0, 1, 2} - {alone}:
        happenings.append(RecoverLogs(CUT_MS, other, RECOVERY_MS))
        happenings.append(Kill(CUT_MS, other, "process", generator.choice((100, 300, 1000))))
    return _scenario(seed, 3, happenings, CUT_MS + 2 * RECOVERY_MS)


def others_write_slowly(seed: int) -> Scenario:
    """In a new epoch each waits for its disk before it stands and cuts: it is there all the same.

    The leader, whose own write has failed, leads on.
    """
    generator = random.Random(f"others write slowly {seed}")
    alone = generator.randrange(3)
    slow = [
        Stall(CUT_MS, other, SLOW_MS, 2 * PRODUCED_MS + 3 * SLOW_MS, is_of_data=True)
        for other in {0, 1, 2} - {alone}
    ]
    happenings = [
        *_use(generator, 3),
        *slow,
        FailAppend(CUT_MS + PRODUCED_MS, alone),
        CountLeads(CUT_MS, alone, 3 * SLOW_MS, 1),
    ]
    return _scenario(seed, 3, happenings, CUT_MS + 4 * SLOW_MS)


def frames_of_a_dead_leader(seed: int) -> Scenario:
    """One follower has what it sent last, but gets it when it follows another leader."""
    generator = random.Random(f"late frames {seed}")
    dead = generator.randrange(3)
    # Ranges move to the next broker, so it is the one after that which follows.
    successor = (dead + 1) % 3
    happenings = [
        *_use(generator, 3),
        DelayBatches(CUT_MS, dead, generator.randrange(300, 900)),
        DelayBatches(CUT_MS, successor, 600),
        CutTo(CUT_MS, dead, successor, 3000),
        Kill(CUT_MS + generator.randrange(20, 200), dead, "process", 5000),
    ]
    return _scenario(seed, 3, happenings, CUT_MS + 8000)


def all_cut_from_each_other(seed: int) -> Scenario:
    """Nobody could do better: no range moves."""
    generator = random.Random(f"all cut {seed}")
    broker_count = generator.choice((2, 3, 3, 6))
    cuts = [
        CutPair(CUT_MS, one, other, 30_000) for one in range(broker_count) for other in range(one)
    ]
    happenings = [*_use(generator, broker_count), CountLeads(CUT_MS - 500, 0, 30_000, 0), *cuts]
    return _scenario(seed, broker_count, happenings, CUT_MS + 30_000)


def all_cut_one_by_one(seed: int) -> Scenario:
    """Ranges move while somebody is heard; then no more."""
    generator = random.Random(f"cut one by one {seed}")
    cuts = [
        CutPair(CUT_MS + generator.randrange(10_000), one, other, 60_000)
        for one, other in ((0, 1), (0, 2), (1, 2))
    ]
    counts = [CountLeads(CUT_MS, 0, 60_000, 6), CountLeads(CUT_MS + 20_000, 0, 40_000, 0)]
    return _scenario(seed, 3, [*_use(generator, 3), *cuts, *counts], CUT_MS + 60_000)


def pair_cut(seed: int) -> Scenario:
    """Two of three do not hear each other: each has the third, and no range moves."""
    generator = random.Random(f"pair cut {seed}")
    one, other = generator.sample(range(3), 2)
    happenings = [
        *_use(generator, 3),
        CountLeads(CUT_MS - 500, 0, 12_000, 0),
        CutPair(CUT_MS, one, other, 10_000),
    ]
    return _scenario(seed, 3, happenings, CUT_MS + 12_000)


def _use(generator: random.Random, broker_count: int) -> list[Happening]:
    work: list[Happening] = [Found(300, 0, broker_count, 3), Use(400, 0, 20, 0.4, 700)]
    for index in range(generator.choice((1, 2))):
        durability: Literal["fsync", "written"] = generator.choice(("fsync", "written"))
        settings = TopicSettings(partitions_per_range=1, durability=durability)
        create = CreateTopic(f"topic-{index}", UUID(int=index + 1), settings)
        work.append(Change(2500 + index, 0, create))
    return work


def _scenario(
    seed: int, broker_count: int, happenings: list[Happening], trouble_ms: int
) -> Scenario:
    in_order = tuple(sorted(happenings, key=lambda each: each.at_ms))
    return Scenario(seed, broker_count, 3, CALM, trouble_ms, in_order, has_data=True)


def _check_taken(world: World, before: dict[LogKey, int]) -> None:
    assert world.replicas is not None
    for key, count in world.replicas.truth.acknowledged_count.items():
        check(count > before.get(key, 0), f"{key} takes no produce, though others lead it")


def _lead_count(world: World) -> int:
    commands = world.agreement.commands
    return sum(isinstance(each.command, Lead) and not why for _, each, why in commands)
