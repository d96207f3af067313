"""What befalls a walk, drawn from its seed."""

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.simulation.replication.walk import (
    BROKERS,
    PRODUCE_US,
    LinkFaults,
    Walk,
    create_topics,
)
from tests.simulation.ring.schedule import US_PER_MS

DOWN_MS = (10, 100, 400, 1500, 5000)
LASTS_MS = (100, 800, 2000, 5000)


class Plan(NamedTuple):
    """`kinds`: of faults; one happens about every `pause_ms`."""

    lasts_ms: int
    pause_ms: int
    durabilities: tuple[str, ...]
    kinds: tuple[str, ...]
    link_faults: LinkFaults

    @classmethod
    def draw(cls, generator: random.Random) -> "Plan":
        """As the generator has it."""
        kinds = generator.sample([*KINDS], generator.randint(1, len(KINDS)))
        rough = generator.random() < 0.5
        return cls(
            generator.randint(4000, 15_000),
            generator.choice((150, 500, 1500)),
            generator.choice(
                (
                    ("fsync",),
                    ("fsync", "fsync"),
                    ("written",),
                    ("fsync", "written"),
                    ("written", "written"),
                )
            ),
            tuple(kinds),
            LinkFaults(
                generator.choice((0, 0.01, 0.05)),
                generator.choice((0, 0.05)),
                generator.choice((0, 0.002, 0.02)),
            )
            if rough
            else LinkFaults(0, 0, 0),
        )


def happen(walk: Walk, plan: Plan) -> None:
    """Everything until the faults end."""
    create_topics(walk, plan.durabilities)
    walk.link_faults = plan.link_faults
    for ordinal in range(BROKERS):
        walk.start(ordinal)
    end_us = plan.lasts_ms * US_PER_MS
    every(walk, PRODUCE_US, walk.produce, end_us)
    every(walk, 700 * US_PER_MS, walk.retain, end_us)
    at_ms, number = 500, 0
    while at_ms < plan.lasts_ms:
        number += 1
        walk.schedule.run(at_ms * US_PER_MS)
        kind = walk.random.choice(plan.kinds)
        walk.say(f"* {kind}")
        KINDS[kind](walk, number)
        at_ms += int(walk.random.expovariate(1 / plan.pause_ms)) + 1
    walk.schedule.run(end_us)


def every(walk: Walk, pause_us: int, do: Callable[[], None], end_us: int) -> None:
    """Again and again until then."""

    def again() -> None:
        if walk.schedule.now_us < end_us:
            do()
            walk.schedule.after(pause_us, again)

    walk.schedule.after(pause_us, again)


def _who(walk: Walk) -> int:
    """The leader of the first range more often than others."""
    leader = walk.metadata.state.ranges[0].leader
    if leader is not None and walk.random.random() < 0.5:
        return leader.ordinal
    return walk.random.randrange(BROKERS)


def _come_back(walk: Walk, ordinal: int) -> None:
    down_ms = walk.random.choice(DOWN_MS)
    walk.schedule.after(down_ms * US_PER_MS, partial(walk.start, ordinal))


def _kill(walk: Walk, number: int) -> None:
    ordinal = _who(walk)
    walk.faults["killed"] += 1
    walk.kill(ordinal, "process")
    _come_back(walk, ordinal)


def _kill_all(walk: Walk, number: int) -> None:
    walk.faults["all killed"] += 1
    for ordinal in range(BROKERS):
        walk.kill(ordinal, "process")
        _come_back(walk, ordinal)


def _power(walk: Walk, number: int) -> None:
    ordinal = _who(walk)
    if walk.may_lose(ordinal):
        walk.faults["power lost"] += 1
        walk.kill(ordinal, "power")
        _come_back(walk, ordinal)


def _power_and_again(walk: Walk, number: int) -> None:
    """It dies once more before its loss is registered."""
    ordinal = _who(walk)
    if walk.may_lose(ordinal):
        walk.faults["power lost, and killed"] += 1
        walk.kill(ordinal, "power")
        walk.start(ordinal)
        walk.schedule.after(
            walk.random.randrange(100) * US_PER_MS, partial(walk.kill, ordinal, "process")
        )
        walk.schedule.after(150 * US_PER_MS, partial(walk.start, ordinal))


def _power_of_all(walk: Walk, number: int) -> None:
    """What only `fsync` topics survive in full: not while a lost disk is not replaced."""
    if walk.is_losing():
        return
    walk.faults["power lost everywhere"] += 1
    for ordinal in range(BROKERS):
        walk.kill(ordinal, "power")
        _come_back(walk, ordinal)


def _power_of_isr(walk: Walk, number: int) -> None:
    """Of all that are in sync in a range; who is not goes on, and remembers what was committed."""
    if walk.is_losing():
        return
    walk.faults["power lost of an ISR"] += 1
    for member in walk.metadata.state.ranges[walk.random.randrange(BROKERS)].isr:
        walk.kill(member.ordinal, "power")
        _come_back(walk, member.ordinal)


def _wipe(walk: Walk, number: int) -> None:
    ordinal = _who(walk)
    if walk.may_lose(ordinal):
        walk.faults["disk lost"] += 1
        walk.wipe(ordinal)
        _come_back(walk, ordinal)


def _damage(walk: Walk, number: int) -> None:
    """Found late; perhaps the process dies before the ring knows of it."""
    ordinal = _who(walk)
    if walk.may_lose(ordinal) and walk.damage(ordinal):
        walk.faults["damage found"] += 1
        if walk.random.random() < 0.5:
            walk.faults["damage found, and killed"] += 1
            _later_ms(walk, 60, partial(walk.kill, ordinal, "process"))
            _later_ms(walk, 500, partial(walk.start, ordinal), after_ms=60)
    walk.lost.clear()  # from now on the disk says so itself


def _power_of_all_and_damage(walk: Walk, number: int) -> None:
    """And one of them finds damage, and perhaps loses power once more."""
    if walk.is_losing():
        return
    walk.faults["power lost everywhere, and damage"] += 1
    for ordinal in range(BROKERS):
        walk.kill(ordinal, "power")
        walk.start(ordinal)
    ordinal = _who(walk)
    _later_ms(walk, 400, partial(walk.damage, ordinal), after_ms=20)
    if walk.random.random() < 0.5:
        _later_ms(walk, 200, partial(walk.kill, ordinal, "power"), after_ms=420)
        _later_ms(walk, 500, partial(walk.start, ordinal), after_ms=620)


def _later_ms(
    walk: Walk, within_ms: int, happen: Callable[[], object], *, after_ms: int = 0
) -> None:
    delay_ms = after_ms + walk.random.randrange(within_ms)

    def do() -> None:
        happen()

    walk.schedule.after(delay_ms * US_PER_MS, do)


def _pause(walk: Walk, number: int) -> None:
    walk.faults["paused"] += 1
    walk.pause(_who(walk), walk.random.choice(LASTS_MS))


def _cut(walk: Walk, number: int) -> None:
    """One way or both, of two brokers, or of one and the metadata (broker `BROKERS`)."""
    walk.faults["cut"] += 1
    one, other = walk.random.sample(range(BROKERS + 1), 2)
    pairs = walk.random.choice(([(one, other)], [(one, other), (other, one)]))
    for pair in pairs:
        walk.cuts[pair] += 1
    lasts_us = walk.random.choice(LASTS_MS) * US_PER_MS
    walk.schedule.after(lasts_us, lambda: walk.cuts.subtract(pairs))


def _reset(walk: Walk, number: int) -> None:
    walk.faults["reset"] += 1
    one, other = walk.random.sample(range(BROKERS), 2)
    walk.reset_link(one, other)
    walk.reset(one, other)


def _fail_write(walk: Walk, number: int) -> None:
    walk.faults["write failed"] += 1
    logs = walk.disks[_who(walk)].logs
    if logs:
        logs[walk.random.choice(sorted(logs))].failures += walk.random.choice((1, 1, 3))


KINDS: dict[str, Callable[[Walk, int], None]] = {
    "kill": _kill,
    "kill all": _kill_all,
    "power": _power,
    "power of all": _power_of_all,
    "power of isr": _power_of_isr,
    "power and again": _power_and_again,
    "wipe": _wipe,
    "damage": _damage,
    "power of all and damage": _power_of_all_and_damage,
    "pause": _pause,
    "cut": _cut,
    "reset": _reset,
    "fail write": _fail_write,
    "topics": lambda walk, number: walk.change_topics(number),
}
