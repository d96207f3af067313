"""The ring's metadata for a walk: one list of states that brokers apply late, in order.

Commands are lost, doubled and late. How brokers come to agree is not simulated here
(`tests/simulation/ring` does that): the commands and their rules are the shipped ones.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from uuid import UUID

from tailrace_broker.core.ring.checks import check_state
from tailrace_broker.core.ring.commands import apply_command, initial_state
from tailrace_broker.model.commands import Command, Stamped
from tailrace_broker.model.ring_state import Refusal, Registration, RingState
from tests.simulation.ring.schedule import US_PER_MS, Schedule

DELAY_MS_MAX = 20
LOST = 0.1
DOUBLED = 0.1
LATE = 0.1
LATE_MS_MAX = 4000


class Metadata:
    """`states`: all that there ever were, the initial one first."""

    def __init__(
        self,
        schedule: Schedule,
        generator: random.Random,
        brokers: list[Registration],
        counts: Counter[str],
        changed: Callable[[RingState, RingState], None],
    ) -> None:
        """`changed` is called with the states before and after a change."""
        self.states: list[RingState] = [initial_state(UUID(int=1), len(brokers), 3, brokers)]
        self.is_calm = False
        self._schedule = schedule
        self._random = generator
        self._counts = counts
        self._changed = changed
        self._ids = count(1)

    @property
    def state(self) -> RingState:
        """The newest."""
        return self.states[-1]

    def ask(self, command: Command) -> None:
        """Apply it, in a while; or not."""
        stamped = Stamped(next(self._ids), command)
        chance = self._random.random
        if self.is_calm or chance() >= LOST:
            self._later(stamped, DELAY_MS_MAX)
        if not self.is_calm and chance() < DOUBLED:
            self._later(stamped, LATE_MS_MAX)
        if not self.is_calm and chance() < LATE:  # a copy with another id, as by a second attempt
            self._later(stamped.__class__(next(self._ids), command), LATE_MS_MAX)

    def apply(self, command: Command) -> Refusal | None:
        """At once."""
        return self._apply(Stamped(next(self._ids), command))

    def arrived(self, stamped: Stamped) -> None:
        """A command that was on its way."""
        self._apply(stamped)

    def _later(self, stamped: Stamped, within_ms: int) -> None:
        delay_us = self._random.randrange(within_ms * US_PER_MS)
        self._schedule.after(delay_us, lambda: self.arrived(stamped))

    def _apply(self, stamped: Stamped) -> Refusal | None:
        before = self.state
        after = apply_command(before, stamped)
        refusal = after.recent[stamped.id]
        name = type(stamped.command).__name__
        self._counts[f"{name} {'done' if refusal is None else 'refused: ' + refusal.reason}"] += 1
        if (
            after.ranges is not before.ranges
            or after.brokers is not before.brokers
            or (after.topics is not before.topics or after.deleted is not before.deleted)
        ):
            check_state(after)
            self.states.append(after)
            self._changed(before, after)
        return refusal
