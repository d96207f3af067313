"""`python -m tests.simulation.replication.mutations`: walks find each rule that is taken away.

A function takes one rule from the shipped machines. `MUTATIONS` has a seed that finds it.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterable

import pytest

from tailrace_broker.core.ring import range_commands, registrations
from tailrace_broker.model.ring_state import (
    RangeState,
    Registration,
    Replica,
)
from tests.simulation.replication import walk
from tests.simulation.replication.walk import Outcome, run

Mutation = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 400


def ends_reported_before_the_damage_count(patch: pytest.MonkeyPatch) -> None:
    """`Lost` gives no other number: what the replica reported before names it still."""

    def replica_of(self: RangeState, broker: Registration) -> Replica:
        return Replica(broker.ordinal, broker.number)

    patch.setattr(RangeState, "replica_of", replica_of)


def set_aside_forgotten_by_a_crash(patch: pytest.MonkeyPatch) -> None:
    """A process that dies before `Lost` is agreed leaves no note of the damage."""
    patch.setattr(walk, "set_aside", lambda disk, range_id: None)


def a_power_ghost_with_damage_leads(patch: pytest.MonkeyPatch) -> None:
    """What is found later does not worsen the cause of a ghost."""

    def damaged(member: Replica) -> Replica:
        return member._replace(is_ghost=True, cause=member.cause or "damage")

    patch.setattr(range_commands, "_damaged", damaged)


def the_last_cause_wins(patch: pytest.MonkeyPatch) -> None:
    """A loss of power takes the place of damage."""
    for module in (registrations, range_commands):
        patch.setattr(module, "worse", lambda one, other: other)


def find(seeds: Iterable[int]) -> Outcome | None:
    """The first walk that fails, of those seeds in their order."""
    with multiprocessing.get_context("fork").Pool() as pool:
        return next((each for each in pool.imap(run, seeds) if each.failure is not None), None)


# By bug a seed that finds it; when it does so no more, another will. `main` prints the first.
MUTATIONS: dict[Mutation, int] = {
    ends_reported_before_the_damage_count: 0,
    set_aside_forgotten_by_a_crash: 29,
    a_power_ghost_with_damage_leads: 60,
    the_last_cause_wins: 13,
}


def main(names: list[str]) -> int:
    """0 when every bug was found; `names`: of these alone."""
    missed = 0
    for mutation in MUTATIONS:
        if names and mutation.__name__ not in names:
            continue
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            found = find(range(SEEDS_MAX))
        missed += found is None
        what = f"NOT FOUND in {SEEDS_MAX}" if found is None else f"{found.seed:4}"
        print(f"{mutation.__name__:40} {what}  {found.failure if found else ''}"[:200], flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
