"""What goes wrong: each fault is a value with its moment, and does its harm to the world itself.

What lasts for a while ends by itself, so that any part of a scenario can be left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tailrace_broker.core.node.events import Answer, Applied, ControlEffect
from tailrace_broker.core.raft.events import Keep, Send
from tailrace_broker.core.replication import events as replication_events
from tailrace_broker.core.replication.range_events import BeganLeading, ProposeCommand, RangeEffect
from tailrace_broker.model.agreement import Commit
from tailrace_broker.model.messages import Append, AppendAnswered, VoteAnswered
from tests.simulation.ring.disk import Crash
from tests.simulation.ring.network import PORTS, Port
from tests.simulation.ring.process import DeathAt, Process
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.world import LEADER, World

# Faster than anybody notices, as a rule, and slower than all that anybody waits for.
DOWN_MS = (20, 100, 300, 1000, 3000, 8000)
LASTS_MS = (200, 1000, 3000, 6000, 12_000)


Matches = Callable[[ControlEffect | RangeEffect], bool]


def _sends(*kinds: type) -> Matches:
    return lambda effect: isinstance(effect, Send) and isinstance(effect.message, kinds)


def _does(kind: type) -> Matches:
    return lambda effect: isinstance(effect, kind)


def _keeps_commit(effect: ControlEffect | RangeEffect) -> bool:
    return isinstance(effect, Keep) and any(isinstance(each, Commit) for each in effect.records)


# Moments at which it hurts to die; of a promise, right after it was made.
EFFECTS: dict[str, Matches] = {
    "append": _sends(Append),
    "answer": _does(Answer),
    "apply": _does(Applied),
    "commit": _keeps_commit,
    "keep": _does(Keep),
    "promise": _sends(AppendAnswered, VoteAnswered),
    "vote": _sends(VoteAnswered),
}
AFTER = frozenset({"promise", "vote"})
# Of replication: a follower's write, an acknowledgement, a cut, feeding, leading, a proposal.
DATA_EFFECTS: dict[str, Matches] = {
    "append batches": _does(replication_events.Append),
    "acknowledge": _does(replication_events.Advance),
    "cut": _does(replication_events.Cut),
    "feed": _does(replication_events.Feed),
    "hold appends": _does(replication_events.HoldAppends),
    "lead": _does(BeganLeading),
    "submit": _does(ProposeCommand),
}


@dataclass(frozen=True, slots=True)
class Happening(ABC):
    """At `at_ms`, to this broker."""

    at_ms: int
    ordinal: int

    @abstractmethod
    def happen(self, world: World) -> None:
        """Do it; nothing, where there is nobody to do it to."""


@dataclass(frozen=True, slots=True)
class Kill(Happening):
    """The process dies at once, with its machine when the power fails."""

    crash: Crash
    down_ms: int

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None:
            world.faults[f"killed: {self.crash}"] += 1
            world.kill(process, self.crash, down_ms=self.down_ms)


@dataclass(frozen=True, slots=True)
class KillAt(Happening):
    """The process dies before it does the `number`-th effect of a kind, or right after it."""

    crash: Crash
    down_ms: int
    effect: str
    number: int

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None:
            world.faults[f"killed at {self.effect}"] += 1
            process.down_ms = self.down_ms
            is_after = self.effect in AFTER
            matches = EFFECTS.get(self.effect) or DATA_EFFECTS[self.effect]
            process.death = DeathAt(matches, self.number, self.crash, is_after)


@dataclass(frozen=True, slots=True)
class Stop(Happening):
    """The process stops by itself, and hands over before."""

    down_ms: int

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None:
            world.faults["stopped"] += 1
            process.down_ms = self.down_ms
            process.stop()


@dataclass(frozen=True, slots=True)
class LosePower(Happening):
    """All machines at once; they come back one by one."""

    down_ms: int

    def happen(self, world: World) -> None:
        world.faults["power lost everywhere"] += 1
        running = {id(process.disk) for process in world.processes}
        for process in list(world.processes):
            world.kill(process, "power", down_ms=world.generator.randrange(self.down_ms) + 1)
        for disk in world.disks.values():
            if id(disk) not in running:
                disk.crashed("power")


@dataclass(frozen=True, slots=True)
class Pause(Happening):
    """The process takes in nothing for a while."""

    lasts_ms: int

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None and not process.is_paused:
            world.faults["paused"] += 1
            process.pause()
            world.schedule.after(self.lasts_ms * US_PER_MS, partial(_resume, process))


@dataclass(frozen=True, slots=True)
class Freeze(Happening):
    """The process takes in nothing for a while, and what is sent to it meanwhile is lost.

    Just before it goes on somebody asks it for the state: the first thing that it hears.
    """

    lasts_ms: int

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is None or process.is_paused or process.control is None:
            return
        world.faults["frozen"] += 1
        process.pause()
        pairs = [(each, process.ordinal) for each in range(world.broker_count)]
        Cut(self.at_ms, process.ordinal, tuple(pairs), self.lasts_ms).happen(world)

        def go_on() -> None:
            if process.is_alive and process.is_paused:
                world.clients.ask_state(process)
                process.resume()

        world.schedule.after(self.lasts_ms * US_PER_MS, go_on)


@dataclass(frozen=True, slots=True)
class Isolate(Happening):
    """It hears nobody ("in"), or nobody hears it ("out"), or both, for a while."""

    ways: str
    lasts_ms: int

    def happen(self, world: World) -> None:
        who = world.leader() if self.ordinal == LEADER else self.ordinal
        others = [each for each in range(world.broker_count) if each != who]
        pairs = [(each, who) for each in others if self.ways != "out"]
        pairs += [(who, each) for each in others if self.ways != "in"]
        Cut(self.at_ms, who, tuple(pairs), self.lasts_ms).happen(world)


@dataclass(frozen=True, slots=True)
class Cut(Happening):
    """Nothing passes in these directions for a while."""

    pairs: tuple[tuple[int, int], ...]
    lasts_ms: int
    ports: tuple[Port, ...] = PORTS

    def happen(self, world: World) -> None:
        world.faults["cut off" if len(self.ports) > 1 else f"cut off: {self.ports[0]}"] += 1
        for sender, receiver in self.pairs:
            for port in self.ports:
                world.network.cut(sender, receiver, port)
                repair = partial(world.network.repair, sender, receiver, port)
                world.schedule.after(self.lasts_ms * US_PER_MS, repair)


@dataclass(frozen=True, slots=True)
class Reset(Happening):
    """The connections between two brokers end, and both are there."""

    other: int

    def happen(self, world: World) -> None:
        one, other = world.newest(self.ordinal), world.newest(self.other)
        if one is not None and other is not None and one is not other:
            world.faults["reset"] += 1
            world.network.reset(one, other)


@dataclass(frozen=True, slots=True)
class StallData(Happening):
    """A write of data does not end for longer than brokers bear; the metadata's disk is fine."""

    lasts_ms: int

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None and not process.is_paused:
            world.faults["data stalled"] += 1
            process.stall(is_stalled=True)
            end = partial(process.stall, is_stalled=False)
            world.schedule.after(self.lasts_ms * US_PER_MS, end)


@dataclass(frozen=True, slots=True)
class Slow(Happening):
    """Messages of this broker to another one take longer for a while."""

    other: int
    delay_ms: int
    lasts_ms: int

    def happen(self, world: World) -> None:
        world.faults["slow link"] += 1
        for port in PORTS:
            world.network.slow(self.ordinal, self.other, port, self.delay_ms * US_PER_MS)
            end = partial(world.network.slow, self.ordinal, self.other, port, 0)
            world.schedule.after(self.lasts_ms * US_PER_MS, end)


def _resume(process: Process) -> None:
    if process.is_alive and process.is_paused:
        process.resume()
