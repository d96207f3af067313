"""An operator who has the ring grow and shrink, one step after the other, until it has its size.

What is refused or comes to nothing is asked for again after a pause, which doubles. Brokers that
have left the ring are retired when no range names them any more.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from tailrace_broker.model.commands import BeginStep, Retire
from tailrace_broker.model.ring_state import RingState
from tests.simulation.ring.schedule import US_PER_MS

if TYPE_CHECKING:
    from tests.simulation.ring.world import World

LOOK_MS = 50
PAUSE_MS_MIN = 50
PAUSE_MS_MAX = 1600


class Operator:
    """`wanted_count`: so many brokers are to be of the ring."""

    def __init__(self, world: "World", generator: random.Random) -> None:
        self.wanted_count = world.founded_count
        self._world = world
        self._random = generator
        self.at_next_step: list[Callable[[RingState], None]] = []  # called when one has begun
        self._pause_ms = PAUSE_MS_MIN
        self._next_us = 0
        self._seen_count = world.founded_count  # when it asked last
        # Disks with which brokers have left the ring, and that are not retired yet.
        self._leaving: dict[int, UUID] = {}
        self._look_later()

    def order(self, wanted_count: int) -> None:
        """Have the ring be of so many brokers."""
        self.wanted_count = wanted_count
        self._pause_ms, self._next_us = PAUSE_MS_MIN, 0

    def begun(self, state: RingState) -> None:
        """A step is committed."""
        assert state.step is not None
        self._world.counts[f"{state.step.kind} begun"] += 1
        waiting, self.at_next_step = self.at_next_step, []
        for call in waiting:
            call(state)

    def _look_later(self) -> None:
        self._world.schedule.after(LOOK_MS * US_PER_MS, self._look)

    def _look(self) -> None:
        self._look_later()
        world, now_us = self._world, self._world.schedule.now_us
        state = world.agreement.state
        if state is None:
            return
        if state.broker_count != self._seen_count:
            if state.broker_count < self._seen_count:
                left = state.brokers[state.broker_count]
                self._leaving[left.ordinal] = left.incarnation
            self._seen_count, self._pause_ms, self._next_us = state.broker_count, PAUSE_MS_MIN, 0
            world.counts["step taken"] += 1
        self._retire(state)
        if state.step is not None or now_us < self._next_us:
            return
        if state.broker_count != self.wanted_count:
            self._ask(state.broker_count)
            self._next_us = now_us + self._pause_ms * US_PER_MS
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)

    def _retire(self, state: RingState) -> None:
        """Those that hold nothing, and vote no more."""
        configuration = self._world.agreement.configuration
        for ordinal, incarnation in [*self._leaving.items()]:
            registered = state.brokers.get(ordinal)
            if (
                registered is None
                or registered.incarnation != incarnation
                or ordinal < state.broker_count
            ):
                del self._leaving[ordinal]
                self._world.rules["ring.retired"] += incarnation in state.retired
                continue
            holds = any(ordinal in each.replicas for each in state.ranges.values())
            votes = configuration is None or any(
                each.ordinal == ordinal for each in configuration.disks
            )
            process = self._world.newest(self._random.randrange(self._world.broker_count))
            if not holds and not votes and process is not None and process.control is not None:
                self._world.clients.ask(process, Retire(ordinal, registered.number))

    @property
    def is_done(self) -> bool:
        """Whoever has left is retired."""
        return not self._leaving

    def _ask(self, count: int) -> None:
        world = self._world
        process = world.newest(self._random.randrange(world.broker_count))
        if process is not None and process.control is not None:
            world.counts["step asked"] += 1
            is_growth = count < self.wanted_count
            world.clients.ask(process, BeginStep("grow" if is_growth else "shrink", count))
