"""A random walk: the replicas of a range, and all that befalls them, under a seed."""

import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from uuid import UUID

from tailrace_broker.core.node.duties import ranges_to_lead
from tailrace_broker.core.replication.events import ReplicationTiming
from tailrace_broker.model.commands import (
    Command,
    CreateTopic,
    DeleteTopic,
    Lost,
    Register,
    RestoreTopic,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import LOSSES, Loss, RangeEnd, Registration, RingState, Start
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.replication.host import Host, Led, Message, keys_of
from tests.simulation.replication.metadata import Metadata
from tests.simulation.replication.model_log import Crash, Entry, ModelLog
from tests.simulation.replication.truth import Truth
from tests.simulation.ring.schedule import US_PER_MS, US_PER_S, Schedule
from tests.simulation.ring.violation import Violation, check

BROKERS = 3
TICK_US = 20 * US_PER_MS
APPLY_MS_MAX = 40
PRODUCE_US = 15 * US_PER_MS
SUSPICION_US = 300 * US_PER_MS
HEALED_WITHIN_S = 30
FACTOR = 3
TIMING = ReplicationTiming(failback_ms=1000)


class LinkFaults(NamedTuple):
    """Shares of messages that are lost, come twice, and late."""

    lost: float
    doubled: float
    late: float


@dataclass(slots=True)
class Disk:
    """Of a broker. `starts`: not known to be registered, oldest first."""

    incarnation: UUID
    logs: dict[LogKey, ModelLog] = field(default_factory=dict)
    boot: int = 0
    starts: tuple[Start, ...] = ()
    ended: Loss = "disk"  # how the last process on it ended
    damaged: set[int] = field(default_factory=set)  # ranges of which it lacks records


@dataclass(slots=True)
class Process:
    """A broker's process. `height`: of the state that it has applied."""

    host: Host
    disk: Disk
    start: UUID
    height: int = 0
    died_us: int | None = None
    starts: tuple[Start, ...] = ()
    ends: tuple[RangeEnd, ...] = ()
    damaged: tuple[int, ...] = ()  # as its registration says


class Outcome(NamedTuple):
    """How a walk ended; `failure` None: as it should."""

    seed: int
    failure: str | None
    rules: Counter[str]
    faults: Counter[str]
    counts: Counter[str]


class Walk:
    """Three brokers, their disks, and the metadata."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        self.random = random.Random(f"walk {seed}")
        self.schedule = Schedule()
        self.rules: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.truth = Truth(self)
        self.trace = trace
        self.link_faults = LinkFaults(0.0, 0.0, 0.0)
        self.cuts: Counter[tuple[int, int]] = Counter()
        self.processes: dict[int, Process] = {}
        self.lost: dict[int, int] = {}  # registrations with which brokers lost data
        self.is_healing = False
        self._next = 0
        self.disks = {each: Disk(self._uuid()) for each in range(BROKERS)}
        brokers = []
        for ordinal, disk in self.disks.items():
            start = Start(self._uuid(), "disk")
            disk.starts, disk.ended = (start,), "clean"
            brokers.append(Registration(ordinal, 1, disk.incarnation, 0, start.id, "disk"))
        self.metadata = Metadata(
            self.schedule, self.random, brokers, self.counts, self.truth.changed
        )
        self._dead_since: dict[int, int] = {}
        self.value = 0
        self._breaking: set[tuple[int, int]] = set()

    def _uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    def say(self, line: str) -> None:
        """For the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.schedule.now_us / 1e6:.4f} {line}")

    # --- processes ---

    def start(self, ordinal: int) -> None:
        """A process on the broker's disk, unless one runs."""
        if ordinal in self.processes:
            return
        disk = self.disks[ordinal]
        disk.boot += 1
        start = Start(self._uuid(), disk.ended)
        disk.starts = (*disk.starts, start)
        disk.ended = "process"
        name = f"{ordinal}/{disk.boot}"
        host = Host(ordinal, name, disk.logs, TIMING, self)
        process = Process(
            host,
            disk,
            start.id,
            starts=disk.starts,
            ends=self._ends(disk),
            damaged=tuple(sorted(disk.damaged)),
        )
        self.processes[ordinal] = process
        self._dead_since.pop(ordinal, None)
        self.say(f"{name} starts, loss {start.loss}")
        self._catch_up(process)
        self._tick(process)

    def _ends(self, disk: Disk) -> tuple[RangeEnd, ...]:
        """By range what a recovery finds on the disk."""
        state = self.metadata.state
        topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
        ends: dict[int, RangeEnd] = {}
        for topic in topics:
            for key, range_id in keys_of(topic):
                log = disk.logs.get(key)
                if log is not None:
                    known = ends.get(range_id, RangeEnd(range_id, 0, 0))
                    epoch = max(known.last_epoch, log.last_epoch)
                    ends[range_id] = RangeEnd(range_id, epoch, known.end + log.end)
        return tuple(ends.values())

    def kill(self, ordinal: int, crash: Crash) -> None:
        """The process dies."""
        process = self.processes.pop(ordinal, None)
        disk = self.disks[ordinal]
        self._dead_since.setdefault(ordinal, self.schedule.now_us)
        if process is not None:
            process.host.is_alive = False
            self.say(f"{process.host.name} dies: {crash}")
            for other in range(BROKERS):
                if other != ordinal and self.random.random() < 0.9:
                    self._after_ms(20, partial(self.reset, other, ordinal))
        for log in disk.logs.values():
            log.crashed(crash)
        disk.ended = max(disk.ended, crash, key=LOSSES.index)

    def wipe(self, ordinal: int) -> None:
        """The disk is lost."""
        self.kill(ordinal, "process")
        self.disks[ordinal] = Disk(self._uuid())

    def pause(self, ordinal: int, lasts_ms: int) -> None:
        """As by SIGSTOP."""
        process = self.processes.get(ordinal)
        if process is None or process.host.is_paused:
            return
        process.host.is_paused = True
        self._dead_since[ordinal] = self.schedule.now_us

        def go_on() -> None:
            if process.host.is_alive:
                self._dead_since.pop(ordinal, None)
                process.host.resume()

        self.schedule.after(lasts_ms * US_PER_MS, go_on)

    def is_losing(self) -> bool:
        """Whether a replica that was lost may still lack something."""
        state = self.metadata.state
        registered = {o: state.brokers[o].number for o in state.brokers}
        if any(registered[each] <= number for each, number in self.lost.items()):
            return True
        if any(disk.damaged for disk in self.disks.values()):
            return True
        return any(
            {(r.ordinal, r.registration) for r in each.isr if r.cause in (None, "power")}
            != {*registered.items()}
            and any(r.cause in ("damage", "disk") for r in each.isr)
            for each in state.ranges.values()
        )

    def may_lose(self, ordinal: int) -> bool:
        """No other replica is lost now: all are in sync again, as they are registered since."""
        state = self.metadata.state
        registered = {o: state.brokers[o].number for o in state.brokers}
        if any(registered[each] <= number for each, number in self.lost.items()):
            return False
        if any(disk.damaged for disk in self.disks.values()):
            return False
        for each in state.ranges.values():
            wanted = {each.replica_of(broker) for broker in state.brokers.values()}
            if {*each.isr} != wanted:
                return False
        self.lost = {ordinal: registered[ordinal]}
        return True

    def damage(self, ordinal: int) -> bool:
        """A scrub finds that a log lacks records; False: there is nothing to find."""
        process = self.processes.get(ordinal)
        if process is None or process.host.is_paused:
            return False
        keys = [key for key, each in process.host.hosted.items() if each.log.entries]
        if not keys:
            return False
        key = self.random.choice(sorted(keys))
        range_id, log = process.host.hosted[key].range_id, process.host.hosted[key].log
        self.say(f"{process.host.name} finds damage in range {range_id}")
        set_aside(process.disk, range_id)
        process.host.find_damage(range_id, key, self.random.randint(log.start, log.end - 1))
        return True

    def reset(self, ordinal: int, dead: int) -> None:
        """The broker learns that a connection to the other one was reset."""
        process = self.processes.get(ordinal)
        if process is not None:
            process.host.do(partial(process.host.link_lost, dead))
            if self.random.random() < 0.5:
                process.host.do(partial(process.host.suspect, dead))

    def _after_ms(self, within_ms: int, happen: Callable[[], None]) -> None:
        self.schedule.after(self.random.randrange(within_ms * US_PER_MS), happen)

    # --- metadata ---

    def _catch_up(self, process: Process) -> None:
        """Apply the next state, sooner or later."""
        host = process.host

        def apply() -> None:
            self._apply(process)

        if host.is_alive:
            is_cut = self.cuts[BROKERS, host.ordinal] > 0
            if process.height < len(self.metadata.states) - (process.height > 0) and not is_cut:
                host.do(apply)
            self._after_ms(APPLY_MS_MAX, lambda: self._catch_up(process))

    def _apply(self, process: Process) -> None:
        states = self.metadata.states
        behind = len(states) - 1 - process.height
        process.height += self.random.randint(min(1, behind), min(behind, 3))
        state = states[process.height]
        found = state.brokers[process.host.ordinal]
        number = found.number if found.start == process.start else None
        if number is not None:
            process.disk.starts = tuple(
                each for each in process.disk.starts if each.id != process.start
            )
            process.disk.starts = process.starts[-1:]
            process.disk.damaged.difference_update(process.damaged)
            process.damaged = ()
        damaged = {*process.host.damaged}
        process.host.apply(state, number)
        process.disk.damaged -= damaged - process.host.damaged.keys()
        self.truth.check_all(process.host)

    def _register(self, process: Process) -> None:
        newest = self.metadata.state.brokers[process.host.ordinal]
        if newest.start != process.start:
            disk = process.disk
            self.metadata.ask(
                Register(
                    process.host.ordinal,
                    disk.incarnation,
                    disk.boot,
                    process.starts,
                    newest.number,
                    process.ends,
                    process.damaged,
                )
            )

    def _tick(self, process: Process) -> None:
        host = process.host
        if not host.is_alive:
            return
        host.do(host.wake)
        if self.random.random() < 0.1:
            host.do(partial(self._duties, process))
        self.schedule.after(TICK_US, lambda: self._tick(process))

    def _duties(self, process: Process) -> None:
        state: RingState = self.metadata.states[process.height]
        mine = state.brokers[process.host.ordinal]
        if mine.start != process.start:
            self._register(process)
            return
        for range_id, replica in process.host.damaged.items():
            self.ask(process.host, Lost(range_id, mine.ordinal, *replica.number))
        for command in ranges_to_lead(state, mine, self._seems_alive):
            if command.range_id not in process.host.damaged:
                self.ask(process.host, command)

    def _seems_alive(self, ordinal: int) -> bool:
        since = self._dead_since.get(ordinal)
        if since is None:
            return self.is_healing or self.random.random() > 0.002
        return self.schedule.now_us - since < SUSPICION_US

    # --- what hosts need ---

    def send(self, host: Host, ordinal: int, message: Message, entries: tuple[Entry, ...]) -> None:
        """Once, twice or never; who loses a message loses the connection, in a while."""
        chance, link_faults = self.random.random, self.link_faults
        if self.trace is not None:
            self.say(f"{host.name} > {ordinal}: {message}")
        if chance() < link_faults.lost:
            self.faults["message lost"] += 1
            self._break(host.ordinal, ordinal)
            return
        self._deliver(host, ordinal, message, entries)
        if chance() < link_faults.doubled:
            self.faults["message doubled"] += 1
            self._deliver(host, ordinal, message, entries)

    def _break(self, one: int, other: int) -> None:
        pair = min(one, other), max(one, other)
        if pair not in self._breaking:
            self._breaking.add(pair)
            self._after_ms(1000, partial(self.reset_link, *pair))

    def reset_link(self, one: int, other: int) -> None:
        """Both learn that what was on their connection may be lost."""
        self._breaking.discard((one, other))
        for at, gone in ((one, other), (other, one)):
            process = self.processes.get(at)
            if process is not None:
                process.host.do(partial(process.host.link_lost, gone))

    def _deliver(
        self, host: Host, ordinal: int, message: Message, entries: tuple[Entry, ...]
    ) -> None:
        within_ms = 3
        if self.random.random() < self.link_faults.late:
            self.faults["message late"] += 1
            within_ms = 3000

        def deliver() -> None:
            process = self.processes.get(ordinal)
            if process is None:
                return
            if self.cuts[host.ordinal, ordinal] > 0:
                self.faults["message cut"] += 1
                self._break(host.ordinal, ordinal)
                return
            process.host.do(partial(self._receive, process.host, message, entries))

        self._after_ms(within_ms, deliver)

    def _receive(self, host: Host, message: Message, entries: tuple[Entry, ...]) -> None:
        host.receive(message, entries)
        self.truth.check_some(host)

    def ask(self, host: Host, command: Command) -> None:
        """Unless the broker is cut from the metadata."""
        self.say(f"{host.name} asks {command}")
        if self.cuts[host.ordinal, BROKERS] <= 0:
            self.metadata.ask(command)

    def new_log(self, ordinal: int, key: LogKey) -> ModelLog:
        """An empty one."""
        return ModelLog(self.schedule, self.random)

    def opened(self, host: Host, led: Led) -> None:
        """It leads from now on."""
        self.counts["opened"] += 1
        self.say(f"{host.name} leads range {led.range_id} in epoch {led.machine.epoch}")
        self.truth.opened(host, led)

    def wrote_own(self, host: Host, led: Led, key: LogKey, offset: int) -> None:
        """As leader it has written a batch there."""
        self.counts["written"] += 1

    def acknowledged(self, host: Host, led: Led, key: LogKey, offset: int) -> None:
        """To a producer."""
        self.counts["acknowledged"] += 1
        self.truth.acknowledged(host, led, key, offset)

    def advanced(self, host: Host, key: LogKey, high_watermark: int) -> None:
        """It takes all below for committed."""
        self.truth.advanced(host, key, high_watermark)

    def stopped(self, host: Host, key: LogKey, cut_end: int) -> None:
        """It has found that what it took for committed is not."""
        check(False, f"{host.name}: {key} is to be cut at {cut_end}, below what was committed")

    # --- clients ---

    def produce(self) -> None:
        """A producer tries every partition at whoever leads."""
        for process in [*self.processes.values()]:
            for key in sorted(process.host.live):
                if self.random.random() < 0.5 and not process.host.is_paused:
                    self.value += 1
                    size = self.random.choice((100, 5000, 30_000))
                    process.host.produce(key, self.value, size)

    def retain(self) -> None:
        """Retention removes something at a leader."""
        for process in [*self.processes.values()]:
            for key, hosted in [*process.host.hosted.items()]:
                if self.random.random() < 0.2 and not process.host.is_paused:
                    high = hosted.ends.high_watermark
                    process.host.move_start(key, self.random.randint(0, high))

    def change_topics(self, number: int) -> None:
        """Somebody deletes, restores or creates a topic."""
        state = self.metadata.state
        kind = self.random.random()
        if kind < 0.4 and len(state.topics) > 1:
            name = self.random.choice(sorted(state.topics))
            self.metadata.ask(DeleteTopic(name, number))
        elif state.deleted:
            key = self.random.choice(sorted(state.deleted))
            self.metadata.ask(RestoreTopic(key, f"again-{number}"))


def set_aside(disk: Disk, range_id: int) -> None:
    """Durably: a crash before the ring knows of the damage does not forget it."""
    disk.damaged.add(range_id)


def settle(walk: Walk) -> None:
    """Violation unless everything is whole again in time."""
    walk.is_healing = walk.metadata.is_calm = True
    walk.link_faults = LinkFaults(0.0, 0.0, 0.0)
    walk.cuts.clear()
    for ordinal in range(BROKERS):
        process = walk.processes.get(ordinal)
        if process is not None and process.host.is_paused:
            walk._dead_since.pop(ordinal, None)
            process.host.resume()
        for log in walk.disks[ordinal].logs.values():
            log.failures = 0
        walk.start(ordinal)
    deadline_us = walk.schedule.now_us + HEALED_WITHIN_S * US_PER_S
    acknowledged = {**walk.truth.acknowledged_count}
    while (lacking := walk.truth.lacking(acknowledged)) is not None:
        check(walk.schedule.now_us < deadline_us, f"not whole after {HEALED_WITHIN_S} s: {lacking}")
        walk.produce()
        walk.schedule.run(walk.schedule.now_us + 100 * US_PER_MS)


def run(seed: int, trace: list[str] | None = None) -> Outcome:
    """One walk."""
    from tests.simulation.replication.happenings import Plan, happen

    walk = Walk(seed, trace)
    failure = None
    try:
        happen(walk, Plan.draw(random.Random(f"plan {seed}")))
        settle(walk)
        walk.truth.check_end()
    except AssertionError as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, Violation) else f"{place.filename}:{place.lineno} "
        failure = f"{walk.schedule.now_us / 1e6:.4f} s: {where}{error or place.line}"
        walk.say(failure)
    return Outcome(seed, failure, walk.rules, walk.faults, walk.counts)


def create_topics(walk: Walk, durabilities: tuple[str, ...]) -> None:
    """One partition per range each."""
    for index, durability in enumerate(durabilities):
        settings = TopicSettings(
            partitions_per_range=1, durability="written" if durability == "written" else "fsync"
        )
        walk.metadata.apply(CreateTopic(f"topic-{index}", UUID(int=index + 1), settings))
