"""What happens to a ring under a seed: made up beforehand, so that parts of it can be left out."""

import random
from typing import NamedTuple

from tests.simulation.ring.data.troubles import (
    CREATED_MS,
    DATA_RINGS,
    make_data_troubles,
    make_data_work,
)
from tests.simulation.ring.faults import Happening
from tests.simulation.ring.groups.work import make_group_work
from tests.simulation.ring.network import CALM, Environment
from tests.simulation.ring.steps.clients import Follow
from tests.simulation.ring.steps.orders import STEP_RINGS, make_orders, make_slicings
from tests.simulation.ring.steps.troubles import make_step_troubles
from tests.simulation.ring.troubles import make_troubles
from tests.simulation.ring.work import Found, make_work

TROUBLE_MS_MIN = 10_000
TROUBLE_MS_MAX = 60_000
DATA_TROUBLE_MS_MIN = 5000
DATA_TROUBLE_MS_MAX = 14_000
# Brokers and copies, and how often such a ring is simulated.
RINGS = (
    ((1, 1), 1),
    ((2, 1), 1),
    ((2, 3), 1),
    ((3, 3), 10),
    ((3, 1), 2),
    ((5, 3), 3),
    ((5, 1), 1),
    ((9, 3), 1),
    ((10, 3), 1),
)


class Scenario(NamedTuple):
    """`happenings` in the order of their times; after `trouble_ms` everything heals.

    `has_data`: the brokers replicate logs too; `has_groups`: and consumers read them in groups.
    `spare_count`: so many brokers more are there, of which the ring grows and shrinks again.
    """

    seed: int
    broker_count: int
    factor: int
    environment: Environment
    trouble_ms: int
    happenings: tuple[Happening, ...]
    has_data: bool = False
    has_groups: bool = False
    spare_count: int = 0


def make_scenario(seed: int) -> Scenario:
    """The scenario of a seed: of an even one of the metadata alone, of an odd one of data too: of
    every other of these of groups, and of every other of the rest of rings that change their size:
    of every fifth of those of topics that get other numbers of partitions.
    """
    if seed % 2 == 0:
        return make_metadata_scenario(seed)
    has_steps, has_groups = seed % 8 in (5, 7), seed % 4 == 3
    if not has_steps:
        return make_group_scenario(seed) if has_groups else make_data_scenario(seed)
    scenario = make_step_group_scenario(seed) if has_groups else make_step_scenario(seed)
    return with_slicings(scenario) if seed // 8 % 5 == 0 else scenario


def with_slicings(scenario: Scenario) -> Scenario:
    """One of steps, in which topics get other numbers of partitions as well."""
    generator = random.Random(f"slicing scenario {scenario.seed}")
    all_count = scenario.broker_count + scenario.spare_count
    slicings = make_slicings(generator, all_count, scenario.trouble_ms)
    troubles = make_step_troubles(generator, all_count, slicings)
    added = (*scenario.happenings, *slicings, *troubles)
    happenings = sorted(added, key=lambda each: each.at_ms)
    return scenario._replace(happenings=tuple(happenings))


def make_group_scenario(seed: int) -> Scenario:
    """One of data, in which consumers read in groups."""
    scenario = make_data_scenario(seed)
    generator = random.Random(f"group scenario {seed}")
    work = make_group_work(generator, scenario.broker_count, scenario.trouble_ms)
    happenings = sorted((*scenario.happenings, *work), key=lambda each: each.at_ms)
    return scenario._replace(happenings=tuple(happenings), has_groups=True)


def make_step_group_scenario(seed: int) -> Scenario:
    """One in which the ring grows and shrinks under consumers."""
    scenario = make_step_scenario(seed)
    generator = random.Random(f"step group scenario {seed}")
    all_count = scenario.broker_count + scenario.spare_count
    work = make_group_work(generator, all_count, scenario.trouble_ms)
    happenings = sorted((*scenario.happenings, *work), key=lambda each: each.at_ms)
    return scenario._replace(happenings=tuple(happenings), has_groups=True)


def make_data_scenario(seed: int) -> Scenario:
    """Shorter ones: much more happens in a second."""
    generator = random.Random(f"data scenario {seed}")
    ((broker_count, factor),) = generator.choices(
        [ring for ring, _ in DATA_RINGS], [weight for _, weight in DATA_RINGS]
    )
    return _data_scenario(seed, generator, broker_count, factor, 0)


def make_step_scenario(seed: int) -> Scenario:
    """One of data, whose ring grows and shrinks; brokers that it grows by have empty disks."""
    generator = random.Random(f"step scenario {seed}")
    ((broker_count, spare_count),) = generator.choices(
        [ring for ring, _ in STEP_RINGS], [weight for _, weight in STEP_RINGS]
    )
    scenario = _data_scenario(seed, generator, broker_count, 3, spare_count)
    orders = make_orders(generator, broker_count + spare_count, scenario.trouble_ms)
    troubles = make_step_troubles(generator, broker_count + spare_count, orders)
    added = Follow(CREATED_MS, 0, seed), *orders, *troubles
    happenings = sorted((*scenario.happenings, *added), key=lambda each: each.at_ms)
    return scenario._replace(happenings=tuple(happenings))


def _data_scenario(
    seed: int, generator: random.Random, broker_count: int, factor: int, spare_count: int
) -> Scenario:
    all_count = broker_count + spare_count
    trouble_ms = generator.randint(DATA_TROUBLE_MS_MIN, DATA_TROUBLE_MS_MAX)
    happenings = [
        Found(generator.randint(200, 500), 0, broker_count, factor),
        *make_data_work(generator, all_count, trouble_ms),
        *make_data_troubles(generator, all_count, trouble_ms),
    ]
    happenings = [each for each in happenings if each.at_ms < trouble_ms]
    happenings.sort(key=lambda each: each.at_ms)
    environment = CALM
    if generator.random() < 0.5:
        environment = Environment(
            delay_us_max=generator.choice((1500, 5000, 20_000)),
            lost=generator.choice((0.0, 0.001, 0.02)),
            doubled=generator.choice((0.0, 0.02, 0.1)),
            late=generator.choice((0.0, 0.001, 0.01)),
            late_us_max=generator.choice((1_000_000, 5_000_000)),
        )
    return Scenario(
        seed,
        broker_count,
        factor,
        environment,
        trouble_ms,
        tuple(happenings),
        has_data=True,
        spare_count=spare_count,
    )


def make_metadata_scenario(seed: int) -> Scenario:
    """Of the metadata alone."""
    generator = random.Random(f"scenario {seed}")
    ((broker_count, factor),) = generator.choices(
        [ring for ring, _ in RINGS], [weight for _, weight in RINGS]
    )
    trouble_ms = generator.randint(TROUBLE_MS_MIN, TROUBLE_MS_MAX)
    environment = CALM
    if generator.random() < 0.5:
        environment = Environment(
            delay_us_max=generator.choice((1500, 20_000, 200_000)),
            lost=generator.choice((0.0, 0.01, 0.1)),
            doubled=generator.choice((0.0, 0.02, 0.2)),
            late=generator.choice((0.0, 0.001, 0.02)),
        )
    happenings = [
        *_bootstrap(generator, broker_count, factor),
        *make_troubles(generator, broker_count, trouble_ms=trouble_ms),
        *_work(generator, broker_count, trouble_ms),
    ]
    happenings = [each for each in happenings if each.at_ms < trouble_ms]
    happenings.sort(key=lambda each: each.at_ms)
    return Scenario(seed, broker_count, factor, environment, trouble_ms, tuple(happenings))


def _bootstrap(generator: random.Random, broker_count: int, factor: int) -> list[Happening]:
    """By one broker, or by two at once."""
    founders = [0] if generator.random() < 0.7 else [generator.randrange(broker_count)]
    if generator.random() < 0.2:
        founders.append(generator.randrange(broker_count))
    return [
        Found(generator.randint(200, 1500), ordinal, broker_count, factor) for ordinal in founders
    ]


def _work(generator: random.Random, broker_count: int, trouble_ms: int) -> list[Happening]:
    """Clients at random brokers."""
    pause_ms = generator.choice((100, 300, 1000))
    work: list[Happening] = []
    at_ms, number = 2000, 0
    while at_ms < trouble_ms:
        number += 1
        work.append(make_work(generator, at_ms, broker_count, number=number))
        at_ms += int(generator.expovariate(1 / pause_ms)) + 1
    return work
