"""Scenarios of groups that are written by hand."""

import random

from tailrace_broker.model.commands import CreateTopic
from tailrace_broker.model.group import OnNewGroup
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.ring.data.faults import Use
from tests.simulation.ring.faults import Cut, Happening
from tests.simulation.ring.groups.consumers import Habits
from tests.simulation.ring.groups.work import TOPIC_IDS, Consume, Produce
from tests.simulation.ring.network import CALM
from tests.simulation.ring.scenario import Scenario
from tests.simulation.ring.steps.orders import Resize
from tests.simulation.ring.work import Change, Found

TROUBLE_MS = 12_000
GROW_MS, SHRINK_MS = 4000, 6500
STEPS_MS = 9000
PRODUCERS = 5
GROUPS_MS = 8_000
CUT_MS = 150
# Longer than a broker is silent before others lead.
CUT_OFF_MS = 4000

_CREATE = CreateTopic("topic-0", TOPIC_IDS[0], TopicSettings(partitions_per_range=1))
# A ring of three with a topic, which is asked for twice.
BEGINNING: tuple[Happening, ...] = (
    Found(300, 0, 3, 3),
    Change(1500, 0, _CREATE),
    Change(2500, 0, _CREATE),
)


def lost_answers(seed: int) -> Scenario:
    """Answers to polls get lost between brokers; their consumers do not say what they got.

    Who lost one goes, and what it did not get comes to another.
    """
    generator = random.Random(f"lost answers {seed}")
    happenings = [*BEGINNING, Use(0, 0, 20, 0.4, 60_000)]
    habits = Habits(names=False, commits=0.0, moves=0.5, session_ms=8000)
    for number, at_ms in enumerate(range(2600, TROUBLE_MS, 700)):
        name = f"silent-{number}"
        happenings.append(
            Consume(at_ms, 0, name, "group-0", ("topic-0",), "startFromEarliest", habits)
        )
    for at_ms in range(4000, TROUBLE_MS, 400):
        one = generator.randrange(3)
        other = (one + generator.choice((1, 2))) % 3
        happenings.append(Cut(at_ms, one, ((one, other),), CUT_MS, ("data",)))
    return _scenario(seed, TROUBLE_MS, happenings)


def lost_answers_over_steps(seed: int) -> Scenario:
    """Producers send to children what their parents have stored: half of the answers are lost."""
    generator = random.Random(f"lost answers over steps {seed}")
    happenings = [
        *BEGINNING,
        Resize(GROW_MS + generator.randrange(500), 0, 4),
        Resize(SHRINK_MS + generator.randrange(500), 0, 3),
    ]
    happenings += [Produce(2600, 0, f"producer-{number}", 0.5) for number in range(PRODUCERS)]
    return _scenario(seed, STEPS_MS, happenings, spare_count=1)


def lost_registrations(seed: int) -> Scenario:
    """Requests of consumers that are the first of their groups end with their connections."""
    generator = random.Random(f"lost registrations {seed}")
    happenings = [*BEGINNING, Use(0, 0, 20, 0.4, 60_000)]
    starts: tuple[OnNewGroup, ...] = ("startFromLatest", "startFromEarliest")
    habits = Habits(names=True, moves=0.5, session_ms=8000)
    for number, at_ms in enumerate(range(2600, GROUPS_MS, 100)):
        group = f"group-{number // 2}"
        start = generator.choice(starts)
        name = f"consumer-{number}"
        happenings.append(Consume(at_ms, 0, name, group, ("topic-0",), start, habits))
        one = generator.randrange(3)
        pair = (one, (one + generator.choice((1, 2))) % 3)
        cut_ms = at_ms + generator.randrange(100)
        happenings.append(Cut(cut_ms, one, (pair, pair[::-1]), 30, ("data",)))
    return _scenario(seed, GROUPS_MS, happenings)


def cut_off_coordinators(seed: int) -> Scenario:
    """One broker after the other is cut off, and consumers still reach it as they do its successor.

    It does not know that others coordinate its groups, and what they have delivered.
    """
    generator = random.Random(f"cut off coordinators {seed}")
    happenings = [*BEGINNING, Use(0, 0, 20, 0.4, 60_000)]
    habits = Habits(names=True, commits=0.7, moves=0.7, session_ms=20_000)
    for number in range(6):
        name, group = f"consumer-{number}", f"group-{number}"
        consume = Consume(2600, 0, name, group, ("topic-0",), "startFromEarliest", habits)
        happenings.append(consume)
    for at_ms in range(5000, TROUBLE_MS, 2 * CUT_OFF_MS):
        one = generator.randrange(3)
        pairs = [(one, other) for other in range(3) if other != one]
        both = (*pairs, *((other, one) for one, other in pairs))
        happenings.append(Cut(at_ms, one, both, CUT_OFF_MS))
    return _scenario(seed, TROUBLE_MS, happenings)


def _scenario(
    seed: int, trouble_ms: int, happenings: list[Happening], *, spare_count: int = 0
) -> Scenario:
    """Of a ring of three with groups."""
    in_order = tuple(sorted(happenings, key=lambda each: each.at_ms))
    return Scenario(
        seed, 3, 3, CALM, trouble_ms, in_order, has_data=True, has_groups=True,
        spare_count=spare_count,
    )  # fmt: skip
