"""When the ring is to have which size; drawn at random."""

import random
from dataclasses import dataclass

from tailrace_broker.model.commands import AlterTopic
from tests.simulation.ring.faults import Happening
from tests.simulation.ring.work import Change
from tests.simulation.ring.world import World

# Brokers that found it and others, and how often such a ring is simulated.
STEP_RINGS = (
    ((1, 1), 1),
    ((1, 3), 2),
    ((2, 2), 2),
    ((3, 1), 2),
    ((3, 3), 4),
    ((5, 1), 1),
    ((6, 2), 1),
)
FIRST_MS = 2000
PAUSE_MS = 1500
TOPICS = 3
SLICES_MAX = 4
RETENTION_MS = 200_000  # a number more for each command: no two are equal


@dataclass(frozen=True, slots=True)
class Resize(Happening):
    """Somebody wants so many brokers to be of the ring."""

    wanted_count: int

    def happen(self, world: World) -> None:
        assert world.operator is not None
        world.counts["size ordered"] += 1
        world.operator.order(self.wanted_count)


def make_orders(generator: random.Random, broker_count: int, trouble_ms: int) -> list[Happening]:
    """Any sizes, one after the other, the first time all."""
    orders: list[Happening] = []
    at_ms, wanted_count = FIRST_MS + generator.randrange(1500), broker_count
    while at_ms < trouble_ms:
        orders.append(Resize(at_ms, 0, wanted_count))
        wanted_count = generator.randint(1, broker_count)
        at_ms += int(generator.expovariate(1 / PAUSE_MS)) + 300
    return orders


def make_slicings(generator: random.Random, broker_count: int, trouble_ms: int) -> list[Happening]:
    """Topics get other numbers of partitions; whoever leads the metadata has ranges re-sliced."""
    slicings: list[Happening] = []
    at_ms = FIRST_MS + generator.randrange(1500)
    while at_ms < trouble_ms:
        name, who = f"topic-{generator.randrange(TOPICS)}", generator.randrange(broker_count)
        changes: dict[str, int | bool | str | None] = {
            "partitionsPerRange": generator.randint(1, SLICES_MAX),
            "retentionMs": RETENTION_MS + len(slicings),
        }
        slicings.append(Change(at_ms, who, AlterTopic(name, changes)))
        at_ms += int(generator.expovariate(1 / PAUSE_MS)) + 300
    return slicings
