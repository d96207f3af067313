"""What happens to a ring under a seed: made up beforehand, so that parts of it can be left out."""

import random
from typing import NamedTuple

from tests.simulation.ring.data.troubles import DATA_RINGS, make_data_troubles, make_data_work
from tests.simulation.ring.faults import Happening
from tests.simulation.ring.network import CALM, Environment
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

    `has_data`: the brokers replicate logs too.
    """

    seed: int
    broker_count: int
    factor: int
    environment: Environment
    trouble_ms: int
    happenings: tuple[Happening, ...]
    has_data: bool = False


def make_scenario(seed: int) -> Scenario:
    """The scenario of a seed: of an even one of the metadata alone, of an odd one of data too."""
    return make_data_scenario(seed) if seed % 2 else make_metadata_scenario(seed)


def make_data_scenario(seed: int) -> Scenario:
    """Shorter ones: much more happens in a second."""
    generator = random.Random(f"data scenario {seed}")
    ((broker_count, factor),) = generator.choices(
        [ring for ring, _ in DATA_RINGS], [weight for _, weight in DATA_RINGS]
    )
    trouble_ms = generator.randint(DATA_TROUBLE_MS_MIN, DATA_TROUBLE_MS_MAX)
    happenings = [
        Found(generator.randint(200, 500), 0, broker_count, factor),
        *make_data_work(generator, broker_count, trouble_ms),
        *make_data_troubles(generator, broker_count, trouble_ms),
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
    events = tuple(happenings)
    return Scenario(seed, broker_count, factor, environment, trouble_ms, events, has_data=True)


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
