"""What lies between brokers: every message is on its own, and may come late, twice, or never.

A message is on its way when its sender dies, and arrives all the same. Who sends to a port where no
process listens learns that, sometimes; a dead process resets its connections, as a rule.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from tailrace_broker.model.messages import Message
from tailrace_broker.model.replication import ToFollower, ToLeader
from tests.simulation.ring.data.model_log import Entry
from tests.simulation.ring.groups.links import CallFrame
from tests.simulation.ring.schedule import US_PER_MS, Schedule

# Of the metadata, and of the data (9256). Each has its own cuts and delays.
Port = Literal["peer", "data"]
PORTS: tuple[Port, ...] = ("peer", "data")


class DataFrame(NamedTuple):
    """A message between replicas, and the batches that travel beside it."""

    message: ToFollower | ToLeader
    entries: tuple[Entry, ...]


Payload = Message | DataFrame | CallFrame


class Endpoint(Protocol):
    """A process, as the network sees it."""

    @property
    def ordinal(self) -> int:
        """Of the broker."""

    @property
    def number(self) -> int:
        """Of the process."""

    @property
    def is_alive(self) -> bool:
        """It runs, or is paused."""

    def receive(self, port: Port, message: Payload) -> None:
        """A message for it has arrived."""

    def link_broke(self, ordinal: int) -> None:
        """A connection of the data port ended; what was on it may be lost."""

    def unreachable(self, ordinal: int) -> None:
        """A connection to that broker was reset or refused."""


@dataclass(frozen=True, slots=True)
class Environment:
    """How messages fare. Shares of one; delays in µs.

    `is_ordered`: of two frames on a data connection none overtakes the other, unless it is late.
    """

    is_ordered: bool = True
    delay_us_min: int = 200
    delay_us_max: int = 1500
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0  # share that takes up to `late_us_max`
    late_us_max: int = 20_000_000


CALM = Environment()
DIAL_PAUSE_US_MIN = 20 * US_PER_MS
DIAL_PAUSE_US_MAX = 1000 * US_PER_MS
RESET_TOLD = 0.9
RESET_DELAY_US_MAX = 20 * US_PER_MS
# A connection that has lost something is noticed by both sides within this time.
BREAK_US_MAX = 1000 * US_PER_MS
# With two processes of one ordinal: how often a peer's connection ends up at the other one.
TURNS_TO_THE_OTHER = 0.1


class Network:
    """Who is where, what is cut, and the network conditions."""

    def __init__(self, schedule: Schedule, generator: random.Random, faults: Counter[str]) -> None:
        self.environment = CALM
        self._schedule = schedule
        self._random = generator
        self._faults = faults
        self._at: dict[int, list[Endpoint]] = {}  # living ones by ordinal, the oldest first
        self._routes: dict[tuple[int, int], int] = {}  # (process, ordinal) -> process
        self._cuts: Counter[tuple[int, int, Port]] = Counter()
        self._slow_us: dict[tuple[int, int, Port], int] = {}
        self._held_back: list[tuple[Callable[[Endpoint, Payload], bool], int]] = []
        self._last_us: dict[tuple[int, int], int] = {}  # of what a data connection delivers
        self._breaking: set[tuple[int, int]] = set()
        self._dials: dict[tuple[int, int], tuple[int, int]] = {}  # not before, and the next pause
        self._deaf: set[int] = set()  # processes that nobody reaches, and that reach nobody

    def joined(self, endpoint: Endpoint) -> None:
        """Its port is open."""
        self._at.setdefault(endpoint.ordinal, []).append(endpoint)

    def left(self, endpoint: Endpoint) -> None:
        """The process is gone: whoever was connected to it is reported, mostly."""
        self._at[endpoint.ordinal].remove(endpoint)
        for ordinal in sorted(self._at):
            for peer in self._at[ordinal]:
                if ordinal != endpoint.ordinal and self._random.random() < RESET_TOLD:
                    self._tell(peer, endpoint.ordinal)

    def send(self, sender: Endpoint, ordinal: int, port: Port, message: Payload) -> None:
        """Once, twice or never, sooner or later. A data connection that loses something breaks."""
        environment, generator = self.environment, self._random
        target = self._target(sender, ordinal)
        if target is None:
            if port == "peer" and not self._is_cut(sender, ordinal, port):
                self._refuse(sender, ordinal)
            return
        if self._dials:
            self._dials.pop((sender.number, ordinal), None)
        if environment.lost and generator.random() < environment.lost:
            self._faults["message lost"] += 1
            self._lose(sender, target, port)
            return
        self._deliver_later(sender, target, port, message)
        if environment.doubled and generator.random() < environment.doubled:
            self._faults["message doubled"] += 1
            self._deliver_later(sender, target, port, message)

    def cut(self, sender: int, receiver: int, port: Port) -> None:
        """Nothing passes in this direction until it is repaired as often as it was cut."""
        self._cuts[sender, receiver, port] += 1

    def repair(self, sender: int, receiver: int, port: Port) -> None:
        """Takes one cut back."""
        self._cuts[sender, receiver, port] -= 1

    def slow(self, sender: int, receiver: int, port: Port, delay_us: int) -> None:
        """This direction takes so much longer; 0: no longer."""
        self._slow_us[sender, receiver, port] = delay_us

    def hold_back(self, is_such: Callable[[Endpoint, Payload], bool], delay_us: int) -> None:
        """From now on such messages of a sender take so much longer."""
        self._held_back.append((is_such, delay_us))

    def is_open(self, one: Endpoint, other: Endpoint) -> bool:
        """Data passes between the two, in both directions."""
        is_cut = self._is_cut(one, other.ordinal, "data") or self._is_cut(
            other, one.ordinal, "data"
        )
        return not is_cut and not {one.number, other.number} & self._deaf

    def reset(self, one: Endpoint, other: Endpoint) -> None:
        """Their connections end, though both are there."""
        self._tell(one, other.ordinal)
        self._tell(other, one.ordinal)

    def deafen(self, endpoint: Endpoint) -> None:
        """Nobody hears this process any more, nor it anybody."""
        self._deaf.add(endpoint.number)

    def heal(self) -> None:
        """No cut, no slow link, calm network."""
        self.environment = CALM
        self._cuts.clear()
        self._slow_us.clear()
        self._held_back.clear()
        self._deaf.clear()

    def spoil(self, **changes: float) -> None:
        """Worse network."""
        self.environment = replace(self.environment, **changes)  # type: ignore[arg-type]

    def _target(self, sender: Endpoint, ordinal: int) -> Endpoint | None:
        """Of two processes of one ordinal the one that the sender is connected to."""
        living = self._at.get(ordinal)
        if not living:
            return None
        if len(living) == 1:
            return living[0]
        route = (sender.number, ordinal)
        turns = self._random.random() < TURNS_TO_THE_OTHER
        before = next((each for each in living if each.number == self._routes.get(route)), None)
        if before is not None and not turns:
            return before
        chosen = self._random.choice(living)
        self._routes[route] = chosen.number
        if before is not None and chosen is not before:
            self._lose(sender, before, "data")  # a connection has one other end
        return chosen

    def _is_cut(self, sender: Endpoint, receiver: int, port: Port) -> bool:
        return self._cuts.get((sender.ordinal, receiver, port), 0) > 0

    def _deliver_later(
        self, sender: Endpoint, target: Endpoint, port: Port, message: Payload
    ) -> None:
        environment, generator = self.environment, self._random
        span_us = environment.delay_us_max - environment.delay_us_min
        delay_us = environment.delay_us_min + int(generator.random() * span_us)
        is_late = bool(environment.late) and generator.random() < environment.late
        if is_late:
            self._faults["message late"] += 1
            delay_us = int(generator.random() * environment.late_us_max)
        if self._slow_us:
            delay_us += self._slow_us.get((sender.ordinal, target.ordinal, port), 0)
        for is_such, longer_us in self._held_back:
            delay_us += longer_us * is_such(sender, message)
        if port == "data" and environment.is_ordered and not is_late:
            delay_us = self._in_order(sender, target, delay_us)

        def deliver() -> None:
            if not target.is_alive:
                return
            if self._cuts and self._is_cut(sender, target.ordinal, port):
                self._faults["message cut"] += 1
                self._lose(sender, target, port)
                return
            if self._deaf and (sender.number in self._deaf or target.number in self._deaf):
                return
            target.receive(port, message)

        self._schedule.after(delay_us, deliver)

    def _in_order(self, sender: Endpoint, target: Endpoint, delay_us: int) -> int:
        """Behind what the connection has carried before; only late copies are overtaken."""
        link, now_us = (sender.number, target.number), self._schedule.now_us
        arrives_us = max(now_us + delay_us, self._last_us.get(link, 0) + 1)
        self._last_us[link] = arrives_us
        return arrives_us - now_us

    def _lose(self, sender: Endpoint, target: Endpoint, port: Port) -> None:
        link = min(sender.number, target.number), max(sender.number, target.number)
        if port != "data" or link in self._breaking:
            return
        self._breaking.add(link)

        def broke() -> None:
            self._breaking.discard(link)
            for peer, other in ((sender, target), (target, sender)):
                if peer.is_alive:
                    peer.link_broke(other.ordinal)

        self._schedule.after(int(self._random.random() * BREAK_US_MAX), broke)

    def _refuse(self, sender: Endpoint, ordinal: int) -> None:
        """It dials again and again, more and more seldom."""
        key, now_us = (sender.number, ordinal), self._schedule.now_us
        next_us, pause_us = self._dials.get(key, (0, DIAL_PAUSE_US_MIN))
        if now_us >= next_us:
            self._dials[key] = now_us + pause_us, min(2 * pause_us, DIAL_PAUSE_US_MAX)
            self._tell(sender, ordinal)

    def _takes_connection(self, peer: Endpoint, ordinal: int) -> bool:
        """Whether dialling again is answered, as a broker does whose connection has ended."""
        return bool(self._at.get(ordinal)) and not self._is_cut(peer, ordinal, "peer")

    def _tell(self, peer: Endpoint, ordinal: int) -> None:
        def tell() -> None:
            if not peer.is_alive:
                return
            if self._takes_connection(peer, ordinal):
                self._faults["connection reset alone"] += 1
            else:
                peer.unreachable(ordinal)

        self._schedule.after(int(self._random.random() * RESET_DELAY_US_MAX) + 1, tell)
