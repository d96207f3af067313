"""One process of a broker: the shipped machine on a disk and a network of the simulation.

It starts as the real one does: this start is noted on its disk, what that keeps is read, and only
then the machine is made. An event is taken in, its effects are done one after the other, and
between any two of them the process may die. A paused process takes in nothing; what comes waits.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from tailrace_broker.core.node.applied import Identity as ProcessIdentity
from tailrace_broker.core.node.control import Control, ControlTiming
from tailrace_broker.core.node.events import (
    Answer,
    Applied,
    Ask,
    CompactState,
    ControlEffect,
    ControlEvent,
    Health,
    Heard,
    Recovered,
    Superseded,
)
from tailrace_broker.core.raft.events import Keep, Replace, Send, Unreachable, Woken
from tailrace_broker.core.replication.range_events import RangeEffect
from tailrace_broker.model.agreement import DiskId, Kept
from tailrace_broker.model.commands import Command
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Loss, Refusal, Start
from tests.simulation.ring.data.host import recovered_ends
from tests.simulation.ring.data.replicas import Replicas, Shell, damaged_ranges
from tests.simulation.ring.disk import Crash, Disk, Identify, Identity
from tests.simulation.ring.groups.links import CallFrame
from tests.simulation.ring.kept_files import KeptFiles
from tests.simulation.ring.network import DataFrame, Network, Payload, Port
from tests.simulation.ring.schedule import US_PER_MS, Schedule
from tests.simulation.ring.trace import Trace

RECOVERY_US_MAX = 50 * US_PER_MS
# Of logs: quick as a rule, and now and then longer than anybody waits for a silent broker.
SLOW_RECOVERY = 0.2
SLOW_RECOVERY_US_MAX = 6000 * US_PER_MS
# Held for a paused process; more are lost, the oldest first, as by full queues.
BACKLOG_MAX = 2000
DAMAGED = "damaged"
RETIRED = "retired"
DOWN_MS = 500


class Watcher(Protocol):
    """Who looks on: invariants, the trace, and the clients who wait for answers."""

    def read(self, process: "Process") -> None:
        """Its disk has been read and its machine made."""

    def stepped(
        self, process: "Process", event: ControlEvent, effects: list[ControlEffect]
    ) -> None:
        """It took in an event; the effects are not done yet."""

    def answered(self, process: "Process", request: int, refusal: Refusal | None) -> None:
        """What it was asked is done, or refused."""

    def ended(self, process: "Process", why: str) -> None:
        """It runs no more."""


class DeathAt(NamedTuple):
    """The process dies before, or after, it does the `number`-th such effect from now on."""

    is_such: Callable[[ControlEffect | RangeEffect], bool]
    number: int
    crash: Crash
    is_after: bool = False


class Surroundings(NamedTuple):
    """What a process lives in."""

    schedule: Schedule
    network: Network
    generator: random.Random
    watcher: Watcher
    timing: ControlTiming
    rules: Counter[str]
    log_bytes: int
    trace: Trace
    replicas: Replicas | None = None  # None: no data is replicated


class Process:
    """Alive from `start` on; `control` is there as soon as its disk has been read.

    `shell`: of its replicas, from the same moment on, where there are any.
    """

    def __init__(self, ordinal: int, number: int, disk: Disk, around: Surroundings) -> None:
        """`number`: of all processes of the scenario."""
        self.ordinal = ordinal
        self.number = number
        self.disk = disk
        self.is_alive = False
        self.is_paused = False
        self.is_recovered = False  # its logs are
        self.health = Health()
        self.control: Control | None = None
        self.shell: Shell | None = None
        self.trace = around.trace
        self.death: DeathAt | None = None
        self.down_ms = DOWN_MS  # once it has ended
        self._around = around
        self._files = KeptFiles(disk, around.schedule, self)
        self._backlog: list[ControlEvent] = []
        self._wake_us = -1
        self._is_stopping = False
        self._is_closed = False
        self._damaged: set[LogKey] = set()  # what it registers as damaged
        # Clocks of processes have nothing to do with each other.
        self._clock_ahead_ms = around.generator.randrange(1_000_000)
        self._generator = random.Random(around.generator.getrandbits(64))

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.ordinal}/{self.disk.identity.boot}#{self.number}"

    @property
    def now_ms(self) -> int:
        """Its own clock."""
        return self._around.schedule.now_us // US_PER_MS + self._clock_ahead_ms

    def start(self) -> None:
        """Read the disk, note this start on it, then listen."""
        self.is_alive = True
        delay_us = int(self._around.generator.random() * RECOVERY_US_MAX)
        self._around.schedule.after(delay_us + self.disk.recovery_us, self._read)

    def step(self, event: ControlEvent) -> None:
        """Take in an event, and do what follows from it."""
        if self.is_paused:
            self._backlog.append(event)
            del self._backlog[:-BACKLOG_MAX]
            return
        control, watcher = self.control, self._around.watcher
        if control is None or self._is_closed:
            return
        effects = control.step(event, self.now_ms)
        watcher.stepped(self, event, effects)
        for effect in effects:
            is_last = self.death is not None and self._is_last(self.death, effect)
            if not is_last or (self.death is not None and self.death.is_after):
                self._do(effect)
            if is_last and self.death is not None:
                self.die(self.death.crash, f"{self.death.crash}, at {type(effect).__name__}")
            if not self.is_alive:
                return
        self._wake_when_due(control)
        if self.shell is not None and isinstance(event, Woken):
            self.shell.suspect(control.silent(self.now_ms))
            self.shell.look()

    def ask(self, request: int, command: Command) -> None:
        """Of its replicas to the ring."""
        if self.is_alive:
            self.step(Ask(request, command))

    def is_doing(self, effect: RangeEffect) -> bool:
        """Whether the process lives to do this effect of its replicas."""
        if self.death is not None and self._is_last(self.death, effect):
            self.die(self.death.crash, f"{self.death.crash}, at {type(effect).__name__}")
        return self.is_alive

    def receive(self, port: Port, message: Payload) -> None:
        """A message has arrived."""
        if not isinstance(message, DataFrame | CallFrame):
            assert port == "peer", port
            self.step(Heard(message))
        elif self.shell is not None:
            self.shell.receive(message)

    def unreachable(self, ordinal: int) -> None:
        """A connection was reset or refused."""
        self.step(Unreachable(ordinal))
        self.link_broke(ordinal)

    def link_broke(self, ordinal: int) -> None:
        """A connection of the data port ended."""
        if self.shell is not None:
            self.shell.link_broke(ordinal)

    def die(self, crash: Crash, why: str) -> None:
        """At once; what its disk was doing is left as it is."""
        if self.is_alive:
            self._end(why)
            self._files.abandon()
            self.disk.crashed(crash)

    def stop(self) -> None:
        """By itself, when others do without it as far as they can, and its disk has everything."""
        if self.control is None:
            self.die("process", "stopped before it was up")
        elif not self._is_stopping:
            self._is_stopping = True
            self._note_health(is_stopping=True)
            if self.shell is None:
                self._close()
            else:
                self.shell.hand_over(self._close)

    def _close(self) -> None:
        self._is_closed = True
        if self.shell is None:
            self._mark_clean()
        else:
            self.shell.close(self._mark_clean)

    def _mark_clean(self) -> None:
        """All is durable: the last write says so."""
        if self.is_alive:
            marked = Identify(self.disk.identity._replace(is_clean=True))
            self._files.close(marked, partial(self._end, "stopped"))

    def pause(self) -> None:
        """As by SIGSTOP: its disk goes on with what it was reported, nothing else does."""
        self.is_paused = True
        if self.shell is not None:
            self.shell.host.is_paused = True

    def resume(self) -> None:
        """Everything that came meanwhile is taken in at once."""
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            if self.is_alive:
                self.step(event)
        if self.is_alive and not self.is_paused:
            self.step(Woken())
        if self.shell is not None and self.is_alive:
            self.shell.host.resume()

    def stall(self, *, is_stalled: bool) -> None:
        """A write of its data does not end; or it has."""
        self._note_health(is_stalled=is_stalled)

    def fill(self, *, is_full: bool) -> None:
        """Its disk has no room for data; or it has again."""
        self._note_health(is_full=is_full)

    def note_isolated(self, *, is_isolated: bool) -> None:
        """Its replication hears nobody of those that gossip hears; or it does again."""
        self._note_health(is_isolated=is_isolated)

    def _note_health(self, **changes: bool) -> None:
        health = replace(self.health, **changes)
        if self.is_alive and self.control is not None and health != self.health:
            before, self.health = self.health, health
            self.step(health)
            if self.shell is not None and before.can_store != health.can_store:
                self.shell.look(at_once=True)

    def _read(self) -> None:
        if not self.is_alive:
            return
        before, disk = self.disk.identity, self.disk
        start = Start(UUID(int=self._generator.getrandbits(128), version=4), _loss(disk))
        starts = (*before.starts, start)
        identity = Identity(before.incarnation, before.boot + 1, starts, disk.kernel, False)
        self._identify(identity, self._load)

    def _load(self) -> None:
        try:
            self._files.load(self._around.log_bytes, self._listen)
        except CorruptMetadataError as error:
            self.die("process", f"{DAMAGED}: {error}")

    def _listen(self, kept: Kept) -> None:
        identity = self.disk.identity
        mine = DiskId(self.ordinal, identity.incarnation)
        replicas = self._around.replicas
        self.control = Control(
            ProcessIdentity(mine, identity.boot, identity.starts),
            kept,
            self._around.timing,
            self._generator,
            self.now_ms,
            self._around.rules,
        )
        if replicas is not None:
            self.shell = Shell(self, replicas)
        self._around.watcher.read(self)
        self._around.network.joined(self)
        is_slow = self._generator.random() < SLOW_RECOVERY
        recovery_us = SLOW_RECOVERY_US_MAX if is_slow else RECOVERY_US_MAX
        delay_us = int(self._generator.random() * recovery_us)
        self._around.schedule.after(delay_us + self.disk.logs_recovery_us, self._recover)
        self.step(Woken())

    def _recover(self) -> None:
        if not self.is_alive:
            return
        self.is_recovered = True
        state = None if self.control is None or self.shell is None else self.control.state
        ends = () if state is None else recovered_ends(self.ordinal, self.disk.logs, state)
        self._damaged = {*self.disk.damaged}
        self.step(Recovered(ends, damaged_ranges(self.disk, state)))

    def _identify(self, identity: Identity, then: Callable[[], None]) -> None:
        self._files.act([Identify(identity)], then)

    def _do(self, effect: ControlEffect) -> None:
        match effect:
            case Send(ordinal, message):
                self._around.network.send(self, ordinal, "peer", message)
            case Keep() | Replace() | CompactState():
                self._files.keep(effect)
            case Applied():
                self._forget_starts()
                if self.shell is not None:
                    self.shell.apply()
            case Answer(request, refusal):
                if self.shell is not None:
                    self.shell.answered(request)
                self._around.watcher.answered(self, request, refusal)
            case Superseded(_, is_retired):
                self.die("process", RETIRED if is_retired else "superseded")

    def _forget_starts(self) -> None:
        """The ring knows this start: those before it are of no use any more."""
        assert self.control is not None
        if self.control.registration is None:
            return
        self.disk.damaged -= self._damaged
        if len(self.disk.identity.starts) > 1:
            last = self.disk.identity.starts[-1:]
            self._files.act([Identify(self.disk.identity._replace(starts=last))], lambda: None)

    def _is_last(self, death: DeathAt, effect: ControlEffect | RangeEffect) -> bool:
        if not death.is_such(effect):
            return False
        self.death = death._replace(number=death.number - 1)
        return death.number <= 1

    def _wake_when_due(self, control: Control) -> None:
        """One waking is set at a time; a later one sets itself when it comes too early."""
        schedule = self._around.schedule
        due_us = (control.wake_at_ms - self._clock_ahead_ms) * US_PER_MS
        if self._wake_us < schedule.now_us or due_us < self._wake_us:
            self._wake_us = max(due_us, schedule.now_us + 1)
            schedule.at(self._wake_us, partial(self._wake, self._wake_us))

    def _wake(self, set_for_us: int) -> None:
        if not self.is_alive or set_for_us != self._wake_us or self.control is None:
            return
        self._wake_us = -1
        if self.is_paused:
            return
        if self.now_ms >= self.control.wake_at_ms:
            self.step(Woken())
        else:
            self._wake_when_due(self.control)

    def _end(self, why: str) -> None:
        self.is_alive = False
        if self.shell is not None:
            self.shell.host.is_alive = False
        if self.control is not None:
            self._around.network.left(self)
        self._around.watcher.ended(self, why)


def _loss(disk: Disk) -> Loss:
    """What the data may have lost since the process before."""
    before = disk.identity
    if before.boot == 0:
        return "disk"
    if before.is_clean:
        return "clean"
    return "process" if before.kernel == disk.kernel else "power"
