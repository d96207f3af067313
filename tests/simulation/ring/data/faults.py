"""What goes wrong with replicas, and what clients of the data do."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from tests.simulation.ring.faults import Happening
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.world import LEADER, World

# In place of an ordinal: whoever leads the first range that has a leader.
RANGE_LEADER = -2
# From the last write that a disk has refused until it passes for having room.
FULL_MS = 3_000
Direction = Literal["both", "out", "in"]
DIRECTIONS: tuple[Direction, ...] = ("both", "out", "in")


def find(world: World, ordinal: int) -> int:
    """The broker that is meant."""
    if ordinal == LEADER:
        return world.leader()
    if ordinal != RANGE_LEADER:
        return ordinal
    state = world.agreement.state
    led = () if state is None else (each.leader for each in state.ranges.values())
    return next((each.ordinal for each in led if each is not None), 0)


@dataclass(frozen=True, slots=True)
class ToRangeLeader(Happening):
    """This happens to the broker that leads a range then."""

    happening: Happening

    def happen(self, world: World) -> None:
        replace(self.happening, ordinal=find(world, RANGE_LEADER)).happen(world)


@dataclass(frozen=True, slots=True)
class Use(Happening):
    """Clients produce, read, and topics are retained, until the end."""

    produce_ms: int
    share: float
    retain_ms: int

    def happen(self, world: World) -> None:
        replicas = world.replicas
        assert replicas is not None
        _every(world, self.produce_ms, partial(replicas.produce, self.share))
        _every(world, self.retain_ms, replicas.retain)
        _every(world, 500, replicas.read)


@dataclass(frozen=True, slots=True)
class FailWrites(Happening):
    """So many of the next appends of a log fail: the broker's disk is full for a while."""

    count: int

    def happen(self, world: World) -> None:
        replicas = world.replicas
        assert replicas is not None
        ordinal = find(world, self.ordinal)
        logs = world.disks[ordinal].logs
        if logs:
            world.faults["write failed"] += 1
            logs[replicas.generator.choice(sorted(logs))].failures += self.count
        process = world.newest(ordinal)
        if process is not None and not process.is_paused:
            process.fill(is_full=True)
            world.schedule.after(FULL_MS * US_PER_MS, partial(process.fill, is_full=False))


@dataclass(frozen=True, slots=True)
class DamageLog(Happening):
    """A start finds committed records damaged, and sets the end of a log aside."""

    down_ms: int
    is_last_record: bool

    def happen(self, world: World) -> None:
        replicas, disk = world.replicas, world.disks[self.ordinal]
        assert replicas is not None
        sealed = replicas.truth.lineage.ends
        keys = [key for key, log in sorted(disk.logs.items()) if log.entries and key not in sealed]
        if not keys or not world.may_lose_disk(self.ordinal):
            return
        world.faults["log damaged"] += 1
        process = world.newest(self.ordinal)
        if process is not None:
            world.kill(process, "process", down_ms=self.down_ms)
        key = replicas.generator.choice(keys)
        log = disk.logs[key]
        first = log.end - 1 if self.is_last_record else log.start
        log.damage(replicas.generator.randint(first, log.end - 1))
        disk.damaged.add(key)


@dataclass(frozen=True, slots=True)
class FindDamage(Happening):
    """A running process finds that records of a log cannot be read, and may be killed soon."""

    killed_ms: int | None

    def happen(self, world: World) -> None:
        replicas = world.replicas
        assert replicas is not None
        process = world.newest(find(world, self.ordinal))
        if process is None or process.shell is None or process.is_paused:
            return
        assert process.control is not None
        state, mine = process.control.state, process.control.registration
        if state is None or mine is None or replicas.registered(mine.ordinal) is None:
            return
        keys = [
            key
            for key, hosted in sorted(process.shell.host.hosted.items())
            if hosted.log.entries and len(state.ranges[hosted.range_id].replicas) > 1
        ]
        if keys and world.may_lose_disk(mine.ordinal):
            world.faults["damage found"] += 1
            process.shell.find_damage(replicas.generator.choice(keys))
            if self.killed_ms is not None:
                kill = partial(world.kill, process, "process", down_ms=50)
                world.schedule.after(self.killed_ms * US_PER_MS, kill)


@dataclass(frozen=True, slots=True)
class ResetLink(Happening):
    """The connections of two brokers are reset, though both are well."""

    other: int

    def happen(self, world: World) -> None:
        one, other = world.newest(self.ordinal), world.newest(self.other)
        if one is not None and other is not None and one is not other:
            world.faults["false reset"] += 1
            world.network.reset(one, other)


@dataclass(frozen=True, slots=True)
class Isolate(Happening):
    """Nothing of replication passes between this broker and all others, in that direction."""

    direction: Direction
    lasts_ms: int

    def happen(self, world: World) -> None:
        world.faults["isolated"] += 1
        alone = find(world, self.ordinal)
        for other in range(world.broker_count):
            if other != alone and self.direction != "in":
                cut_data(world, alone, other, self.lasts_ms)
            if other != alone and self.direction != "out":
                cut_data(world, other, alone, self.lasts_ms)


@dataclass(frozen=True, slots=True)
class SlowRecovery(Happening):
    """Starts on this disk take longer for a while."""

    delay_ms: int
    lasts_ms: int

    def happen(self, world: World) -> None:
        world.faults["slow recovery"] += 1
        disk = world.disks[self.ordinal]
        disk.recovery_us = self.delay_ms * US_PER_MS

        def end() -> None:
            disk.recovery_us = 0

        world.schedule.after(self.lasts_ms * US_PER_MS, end)


def cut_data(world: World, sender: int, receiver: int, lasts_ms: int) -> None:
    """Nothing of replication passes in this direction for a while."""
    world.network.cut(sender, receiver, "data")
    repair = partial(world.network.repair, sender, receiver, "data")
    world.schedule.after(lasts_ms * US_PER_MS, repair)


def _every(world: World, pause_ms: int, do: Callable[[], None]) -> None:
    def again() -> None:
        do()
        world.schedule.after(pause_ms * US_PER_MS, again)

    world.schedule.after(pause_ms * US_PER_MS, again)
