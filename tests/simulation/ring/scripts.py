"""Scenarios that are reported by hand, beside those that seeds make up."""

from dataclasses import dataclass
from random import Random

from tailrace_broker.model.commands import Lead
from tests.simulation.ring.disk_faults import Wipe
from tests.simulation.ring.faults import Happening, Kill, Reset
from tests.simulation.ring.network import CALM
from tests.simulation.ring.scenario import Scenario, make_scenario
from tests.simulation.ring.violation import check
from tests.simulation.ring.work import Found
from tests.simulation.ring.world import World


@dataclass(frozen=True, slots=True)
class WipeTwo(Happening):
    """Two disks are gone at once: more than a ring of three can bear."""

    other: int
    down_ms: int

    def happen(self, world: World) -> None:
        Wipe(self.at_ms, self.ordinal, self.down_ms).replace_disk(world)
        Wipe(self.at_ms, self.other, self.down_ms).replace_disk(world)


@dataclass(frozen=True, slots=True)
class RecoverByHand(Happening):
    """Somebody has this broker go on alone. Nothing has happened in the ring until then."""

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        assert process is not None
        height = world.agreement.height
        check(height > 0, "nothing was ever agreed")
        assert process.control is not None
        check(process.control.raft.applied.height == height, "the ring went on without most voters")
        world.agreement.recovers_alone(process)
        world.clients.recover(process)


def two_wiped_voters(seed: int = 0) -> Scenario:
    """They found nothing, whoever asks them to; the third goes on alone, and lets them in."""
    happenings = (
        Found(500, 0, 3, 3),
        WipeTwo(8_000, 0, 1, 4_000),  # by then the third leads no more
        Found(14_000, 0, 3, 3),
        Found(15_000, 1, 3, 3),
        Found(16_000, 2, 3, 3),
        RecoverByHand(25_000, 2),
    )
    return Scenario(seed, 3, 3, CALM, 26_000, happenings)


def bootstraps_of_any_size(seed: int) -> Scenario:
    """One of all brokers, of which one is late, a smaller one meanwhile, and others or none."""
    generator = Random(f"foundings {seed}")
    broker_count = generator.choice((2, 3, 4))
    late = generator.randrange(broker_count)
    down_ms = generator.choice((500, 1000, 3000))
    happenings: list[Happening] = [Kill(250, late, "process", down_ms)]
    sizes = [broker_count, generator.randint(1, broker_count - 1)]
    sizes += [generator.randint(1, broker_count) for _ in range(generator.choice((0, 0, 1, 2)))]
    at_ms = 300
    for size in sizes:
        happenings.append(Found(at_ms, generator.randrange(size), size, 1))
        at_ms += generator.randrange(generator.choice((20, 600, 3000)))
    if generator.random() < 0.5:
        dead = generator.randrange(broker_count)
        happenings.append(Kill(generator.randint(300, at_ms), dead, "process", 100))
    environment = generator.choice((CALM, make_scenario(seed).environment))
    in_order = sorted(happenings, key=lambda each: each.at_ms)
    return Scenario(seed, broker_count, 1, environment, 8_000, tuple(in_order))


def wiped_voter(seed: int = 0) -> Scenario:
    """It comes back empty, catches up, and votes with its new disk."""
    return Scenario(seed, 3, 3, CALM, 9_000, (Found(500, 0, 3, 3), Wipe(8_000, 1, 200)))


@dataclass(frozen=True, slots=True)
class OnlyTheDeadAreDeposed(Happening):
    """Nobody was taken over from until now but these."""

    dead: tuple[int, ...] = ()

    def happen(self, world: World) -> None:
        for _, stamped, refusal in world.agreement.commands:
            command = stamped.command
            if isinstance(command, Lead) and refusal is None:
                deposed = {*command.without} - {*self.dead}
                check(not deposed, f"brokers {deposed} were deposed, and all was well: {command}")


@dataclass(frozen=True, slots=True)
class DampedOnce(Happening):
    """Of this broker's last death the broker `by` has taken note once."""

    by: int

    def happen(self, world: World) -> None:
        process = world.newest(self.by)
        assert process is not None
        assert process.control is not None
        gossip, now_ms = process.control.gossip, process.now_ms
        damped_ms = gossip.suspicion_ms(self.ordinal, now_ms)
        undamped_ms = gossip.suspicion_ms(self.by, now_ms) // 1000 * 1000
        count = (damped_ms // undamped_ms).bit_length() - 1
        check(count == 1, f"one death of broker {self.ordinal} counts as {count}")


def resets_alone(seed: int) -> Scenario:
    """Connections end, and nobody is dead."""
    generator = Random(f"resets {seed}")
    happenings: list[Happening] = [Found(500, 0, 3, 3)]
    for at_ms in range(6_000, 9_000, 300):
        one, other = generator.sample(range(3), 2)
        happenings.append(Reset(at_ms, one, other))
    happenings.append(OnlyTheDeadAreDeposed(9_900, 0))
    return Scenario(seed, 3, 3, CALM, 10_000, tuple(happenings))


def restarts_of_one(seed: int) -> Scenario:
    """One broker dies again and again; those that it has not heard yet are well."""
    generator = Random(f"restarts {seed}")
    restarted = generator.randrange(3)
    happenings: list[Happening] = [Found(500, 0, 3, 3)]
    for at_ms in range(6_000, 20_000, 3_500):
        down_ms = generator.choice((20, 100, 300, 1000))
        happenings.append(Kill(at_ms, restarted, "process", down_ms))
    happenings.append(OnlyTheDeadAreDeposed(21_900, 0, (restarted,)))
    return Scenario(seed, 3, 3, CALM, 22_000, tuple(happenings))


def death_of_two_ranges(seed: int) -> Scenario:
    """Broker 1 leads the range of broker 0 too, and dies."""
    happenings = (
        Found(500, 0, 3, 3),
        Kill(6_000, 0, "process", 3_000),
        Kill(16_000, 1, "process", 5_000),
        DampedOnce(18_000, 1, by=2),
    )
    return Scenario(seed, 3, 3, CALM, 18_100, happenings)
