"""Mutations of replication that need whole brokers: of what a start finds, and of ghosts."""

import pytest
from msgspec.structs import replace

from tailrace_broker.core.node import duties
from tailrace_broker.core.ring import range_commands, registrations
from tailrace_broker.model.ring_state import RangeState, RingState
from tests.simulation.ring.disk import Crash, Disk


def a_power_ghost_with_damage_leads(patch: pytest.MonkeyPatch) -> None:
    """Among ghosts damage counts as little as a loss of power."""

    def greatest(state: RingState, led: RangeState) -> set[int]:
        isr = tuple(
            each._replace(cause="power") if each.cause == "damage" else each for each in led.isr
        )
        return shipped(state, replace(led, isr=isr))

    shipped = range_commands.greatest_ghosts
    patch.setattr(range_commands, "greatest_ghosts", greatest)
    patch.setattr(duties, "greatest_ghosts", greatest)


def set_aside_forgotten_by_a_crash(patch: pytest.MonkeyPatch) -> None:
    """What a start has set aside the next one does not know of."""

    def crashed(self: Disk, crash: Crash) -> None:
        self.damaged.clear()
        shipped(self, crash)

    shipped = Disk.crashed
    patch.setattr(Disk, "crashed", crashed)


def the_last_cause_wins(patch: pytest.MonkeyPatch) -> None:
    """A ghost's next restart may improve its cause."""
    patch.setattr(registrations, "_worse", lambda one, other: other)
