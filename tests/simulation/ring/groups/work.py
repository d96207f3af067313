"""What consumers do in a scenario: which groups there are, and who comes when."""

import random
from dataclasses import dataclass
from uuid import UUID

from tailrace_broker.model.group import OnNewGroup
from tests.simulation.ring.faults import Cut, Happening
from tests.simulation.ring.groups.consumers import Habits
from tests.simulation.ring.world import World

CREATED_MS = 1500
TOPIC_IDS = tuple(UUID(int=index + 1) for index in range(3))
TOPICS: tuple[tuple[str, ...], ...] = (
    ("topic-0",),
    ("topic-0", "topic-1"),
    ("topic-1", "topic-2"),
)


@dataclass(frozen=True, slots=True)
class Consume(Happening):
    """A consumer comes."""

    name: str
    group: str
    topics: tuple[str, ...]
    start: OnNewGroup
    habits: Habits

    def happen(self, world: World) -> None:
        assert world.replicas is not None
        groups = world.replicas.groups
        assert groups is not None
        world.counts["consumer came"] += 1
        groups.consume(self.name, self.group, self.topics, self.start, self.habits)


@dataclass(frozen=True, slots=True)
class Produce(Happening):
    """A producer comes that numbers what it sends.

    `loses`: so many answers to all of them do not arrive from now on; None: as many as before.
    """

    name: str
    loses: float | None = None

    def happen(self, world: World) -> None:
        assert world.replicas is not None
        groups = world.replicas.groups
        assert groups is not None
        if self.loses is not None:
            groups.producers.loses = self.loses
        groups.produce(self.name)


def make_group_work(
    generator: random.Random, broker_count: int, trouble_ms: int
) -> list[Happening]:
    """One group or two, consumers that come and go, and producers that number what they send."""
    work: list[Happening] = []
    groups = [f"group-{index}" for index in range(generator.randint(1, 2))]
    starts: list[OnNewGroup] = ["startFromLatest", "startFromEarliest"]
    for group in groups:
        topics = generator.choice(TOPICS)
        names = generator.random() < 0.6
        at_ms, number = CREATED_MS + generator.randint(200, 2500), 0
        while at_ms < trouble_ms and number < 4:
            number += 1
            habits = Habits(
                names=names,
                commits=generator.choice((0.0, 0.2, 0.6)),
                moves=generator.choice((0.0, 0.3)),
                loses=generator.choice((0.0, 0.05, 0.2)),
                leaves=generator.choice((0.0, 0.02)),
                dies=generator.choice((0.0, 0.02)),
                sleeps=generator.choice((0.0, 0.06)) if names else 0.0,
                session_ms=generator.choice((1000, 2000)),
            )
            start = generator.choice(starts)
            name = f"{group}-{number}"
            work.append(Consume(at_ms, 0, name, group, topics, start, habits))
            at_ms += int(generator.expovariate(1 / 1500)) + 1
    work += [
        Produce(CREATED_MS + generator.randint(200, 2500), 0, f"producer-{number}")
        for number in range(generator.randint(0, 2))
    ]
    work += _cuts(generator, broker_count, trouble_ms)
    return [each for each in work if each.at_ms < trouble_ms]


def _cuts(generator: random.Random, broker_count: int, trouble_ms: int) -> list[Happening]:
    """Answers of coordinators that do not reach who forwarded the request."""
    cuts: list[Happening] = []
    for _ in range(generator.choice((0, 0, 3, 8))):
        at_ms = generator.randint(CREATED_MS, trouble_ms)
        one, other = generator.randrange(broker_count), generator.randrange(broker_count)
        lasts_ms = generator.choice((50, 200, 800))
        cuts.append(Cut(at_ms, one, ((one, other),), lasts_ms, ("data",)))
    return cuts
