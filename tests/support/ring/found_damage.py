"""Replicas of a scenario's open ranges find damage, and say so before anything else."""

from random import Random
from typing import Protocol

from tailrace_broker.core.ring.topics import open_ranges
from tailrace_broker.model.commands import ChangeIsr, Lost, Stamped
from tailrace_broker.model.ring_state import RingState


class Damaging(Protocol):
    """The scenario."""

    state: RingState
    waiting: list[Stamped]

    def apply_command(self, stamped: Stamped) -> None:
        """Apply it, and check what that has changed."""


def happen_to_damage(scenario: Damaging, chance: Random) -> None:
    """Sometimes; often to a replica that somebody has proposed to admit, and still may."""
    if chance.random() >= 0.02:
        return
    state = scenario.state
    asked = [each.command for each in scenario.waiting if isinstance(each.command, ChangeIsr)]
    opened = {each.id: each for each in open_ranges(state)}
    found = [
        (opened[each.range_id], member.ordinal)
        for each in asked
        if each.range_id in opened
        for member in each.isr
        if member not in opened[each.range_id].isr
    ]
    if not found or chance.random() < 0.5:
        found = [(held, ordinal) for held in opened.values() for ordinal in held.replicas]
    held, ordinal = chance.choice(found)
    broker = state.brokers.get(ordinal)
    if broker is not None:
        lost = Lost(held.id, ordinal, broker.number, held.losses.get(ordinal, 0))
        scenario.apply_command(Stamped(chance.getrandbits(63), lost))
