"""Topics of a scenario get other numbers of partitions, and ranges are re-sliced for it."""

from random import Random
from typing import Protocol

from tailrace_broker.core.ring.topics import open_ranges
from tailrace_broker.model.commands import AlterTopic, Command, Reslice, Stamped
from tailrace_broker.model.ring_state import RingState

COUNT_MAX = 5


class Slicing(Protocol):
    """The scenario."""

    state: RingState
    waiting: list[Stamped]

    def apply_command(self, stamped: Stamped) -> None:
        """Apply it, and check what that has changed."""


def happen_to_slices(scenario: Slicing, chance: Random) -> None:
    """Sometimes something; drawn apart, so that the rest of a scenario stays the same."""
    kind = chance.random()
    if kind < 0.015 and scenario.state.topics:
        name = chance.choice([*scenario.state.topics])
        count = chance.randint(1, COUNT_MAX)
        _say(scenario, chance, AlterTopic(name, {"partitionsPerRange": count}))
    elif kind < 0.05:
        _say(scenario, chance, Reslice(chance.choice(open_ranges(scenario.state)).id))


def _say(scenario: Slicing, chance: Random, command: Command) -> None:
    """It arrives now or later, or twice."""
    stamped = Stamped(chance.getrandbits(63), command)
    if chance.random() < 0.3:
        scenario.waiting.append(stamped)
    if chance.random() < 0.8:
        scenario.apply_command(stamped)
