"""Replication in every process: the shipped machines over model logs, beside `Control`.

`Replicas` is the world's part: who is there, what is on the disks, what must be true. `Shell` is a
process's: it gives `Host` the ring's network, disk, clock and commands.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tailrace_broker.core.node.events import Damaged
from tailrace_broker.core.replication.events import ReplicationTiming
from tailrace_broker.core.replication.range_events import OfRange
from tailrace_broker.core.replication.ranges import logs_of
from tailrace_broker.model.commands import Command
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState
from tests.simulation.ring.data.host import Host, Led, Logs, Message
from tests.simulation.ring.data.model_log import Entry, ModelLog
from tests.simulation.ring.data.truth import Truth
from tests.simulation.ring.network import DataFrame
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.violation import check

if TYPE_CHECKING:
    from tests.simulation.ring.disk import Disk
    from tests.simulation.ring.process import Process
    from tests.simulation.ring.world import World

TIMING = ReplicationTiming(failback_ms=300)
# For how long a process that stops waits for others to take over, and how often it looks.
HAND_OVER_US = 1000 * US_PER_MS
LOOK_US = 5 * US_PER_MS
SIZES = (100, 5000, 30_000)
# No request of a client has such a number.
FIRST_REQUEST = 10**9


class Replicas:
    """Of all processes; `truth` holds what was acknowledged and read."""

    def __init__(self, world: "World", seed: int) -> None:
        self.counts = world.counts
        self.truth = Truth(self)
        self.world = world
        self.generator = random.Random(f"replicas {seed}")
        self.acknowledged_before: dict[LogKey, int] = {}  # until all was repaired
        self.request = FIRST_REQUEST
        self._value = 0

    # --- the ring from outside ---

    @property
    def state(self) -> RingState:
        """The newest that is committed."""
        state = self.world.agreement.state
        assert state is not None
        return state

    def hosts(self) -> list[Host]:
        """Of all living processes."""
        return [each.shell.host for each in self.world.processes if each.shell is not None]

    def registered(self, ordinal: int) -> Host | None:
        """Of the living process that is the broker, as it is committed."""
        start = self.state.brokers[ordinal].start
        for each in self.world.processes:
            if each.shell is not None and each.disk.identity.starts[-1].id == start:
                return each.shell.host
        return None

    def logs_of(self, ordinal: int) -> Logs | None:
        """On the disk that is the broker's, as it is committed; None: it is gone, or damaged."""
        incarnation = self.state.brokers[ordinal].incarnation
        disks = [self.world.disks[ordinal], *(each.disk for each in self.world.processes)]
        found = next((each for each in disks if each.identity.incarnation == incarnation), None)
        return None if found is None or found.damaged else found.logs

    def changed(self, before: RingState, after: RingState) -> None:
        """The committed state differs."""
        if after.ranges is not before.ranges:
            self.truth.changed(before, after)

    # --- clients ---

    def produce(self, share: float) -> None:
        """Producers try partitions at whoever leads them."""
        for host in self.hosts():
            if host.is_paused:
                continue
            for key in [*host.live]:
                if self.generator.random() < share:
                    self._value += 1
                    host.produce(key, self._value, self.generator.choice(SIZES))

    def retain(self) -> None:
        """Retention removes something at leaders."""
        for host in self.hosts():
            for key, hosted in [*host.hosted.items()]:
                if not host.is_paused and self.generator.random() < 0.1:
                    high = hosted.ends.high_watermark
                    host.move_start(key, self.generator.randint(0, high))

    def read(self) -> None:
        """Readers read below the high watermark of any replica."""
        for host in self.hosts():
            for key in [*host.hosted]:
                if not host.is_paused and self.generator.random() < 0.2:
                    self.truth.read(host, key)

    # --- the end ---

    def healed(self) -> None:
        """From now on everything must become whole."""
        self.acknowledged_before = {**self.truth.acknowledged_count}
        for disk in self.world.disks.values():
            for log in disk.logs.values():
                log.failures = 0

    def missing(self) -> str | None:
        """Copies that are not in sync, ranges that are not led, partitions that take nothing."""
        return self.truth.lacking(self.acknowledged_before)


class Shell:
    """Of one process, from when it listens until it ends."""

    def __init__(self, process: "Process", replicas: Replicas) -> None:
        self.schedule = replicas.world.schedule
        self.rules: Counter[str] = replicas.world.rules
        self.random = replicas.generator
        self._process = process
        self._replicas = replicas
        self._asked: dict[int, Command] = {}
        self._suspected: set[int] = set()
        # Logs in which damage was found, with what names this process as a replica then.
        self._found: dict[LogKey, tuple[int, int]] = {}
        for key in process.disk.to_set_aside:
            process.disk.logs[key].set_aside()
        process.disk.to_set_aside.clear()
        self.host = Host(process.ordinal, process.name, process.disk.logs, TIMING, self)
        if replicas.world.agreement.state is not None:
            replicas.truth.recovered(process.disk.logs)

    # --- of the process ---

    def apply(self) -> None:
        """What `Control` has applied."""
        control = self._process.control
        assert control is not None
        assert control.state is not None
        mine = control.registration
        for key, number in [*self._found.items()]:
            hosted = self.host.hosted.get(key)
            if hosted is None or mine is None:
                del self._found[key]  # its topic was purged
            elif control.state.ranges[hosted.range_id].replica_of(mine).number != number:
                del self._found[key]
                self._process.disk.damaged.discard(key)
                self._process.disk.to_set_aside.discard(key)
                self.host.close(key)
        self.host.apply(control.state, None if mine is None else mine.number)
        self._replicas.truth.check_all(self.host)

    def yields(self, *, is_fit: bool) -> None:
        """While it can write no more all others are to lead in its place."""
        control = self._process.control
        state = None if control is None else control.state
        if state is not None:
            others = state.brokers.keys() - {self._process.ordinal}
            self.host.do(partial(self.host.yield_to, frozenset(() if is_fit else others)))

    def find_damage(self, key: LogKey) -> None:
        """Records of the log cannot be read: that is noted, durably, and the ring is to know."""
        assert self._process.control is not None
        state, mine = self._process.control.state, self._process.control.registration
        assert state is not None
        assert mine is not None
        range_id = self.host.hosted[key].range_id
        self._found[key] = state.ranges[range_id].replica_of(mine).number
        self._process.disk.damaged.add(key)
        self._process.disk.to_set_aside.add(key)
        self._process.step(Damaged(range_id))

    def receive(self, frame: DataFrame) -> None:
        """A message of another replica."""
        self.host.do(partial(self._receive, frame))

    def _receive(self, frame: DataFrame) -> None:
        self.host.receive(frame.message, frame.entries)
        self._replicas.truth.check_some(self.host)

    def link_broke(self, ordinal: int) -> None:
        """A connection to that broker ended."""
        self.host.do(partial(self.host.link_lost, ordinal))

    def suspect(self, ordinals: set[int]) -> None:
        """Of these brokers nothing is heard; of each the machine learns once."""
        for ordinal in sorted(ordinals - self._suspected):
            self.host.do(partial(self.host.suspect, ordinal))
        self._suspected = ordinals

    def answered(self, request: int) -> None:
        """What it had asked the ring for is done, or refused."""
        self._asked.pop(request, None)

    def hand_over(self, then: Callable[[], None]) -> None:
        """Have others lead and do without it; `then`, when they do, or when it takes too long."""
        until_us = self.schedule.now_us + HAND_OVER_US
        self.host.do(self.host.stop)

        def look() -> None:
            if self.host.ranges.is_needed and self.schedule.now_us < until_us:
                self.schedule.after(LOOK_US, look)
            elif self.host.is_alive:
                then()

        look()

    def close(self, then: Callable[[], None]) -> None:
        """Take in nothing more; `then`, when the logs are durable."""
        self.host.is_alive = False
        waiting = {*self._process.disk.logs}

        def closed(key: LogKey) -> None:
            waiting.discard(key)
            if not waiting:
                then()

        for key, log in self._process.disk.logs.items():
            log.close(partial(closed, key))
        if not waiting:
            then()

    # --- of the host ---

    def send(self, host: Host, ordinal: int, message: Message, entries: tuple[Entry, ...]) -> None:
        """On the data port."""
        if self._process.trace.is_on:
            self._process.trace.line(self.schedule.now_us, f"{host.name} to {ordinal}: {message}")
        self._replicas.world.network.send(
            self._process, ordinal, "data", DataFrame(message, entries)
        )

    def ask(self, host: Host, command: Command) -> None:
        """In a step of its own; unless the same is under way."""
        if command in self._asked.values():
            return
        self._replicas.request += 1
        self._asked[self._replicas.request] = command
        self.schedule.after(1, partial(self._process.ask, self._replicas.request, command))

    def new_log(self, ordinal: int, key: LogKey) -> ModelLog:
        """An empty one."""
        disk = self._process.disk
        return ModelLog(
            self.schedule, self.random, lambda: disk.slowness_us + disk.data_slowness_us
        )

    def doing(self, host: Host, of_range: OfRange) -> bool:
        """Whether it lives to do this."""
        return self._process.is_doing(of_range.effect)

    def opened(self, host: Host, led: Led) -> None:
        """It leads from now on."""
        self._replicas.counts["opened"] += 1
        self._say(f"leads range {led.range_id} in epoch {led.machine.epoch}")
        self._replicas.truth.opened(host, led)

    def held(self, host: Host, led: Led) -> None:
        """It appends nothing more in this epoch."""
        self._say(f"holds appends of range {led.range_id} in epoch {led.machine.epoch}")
        self._replicas.truth.held(led)

    def begins_write(self, host: Host, led: Led, key: LogKey) -> None:
        """As leader it begins to write a batch there."""
        self._replicas.truth.begins_write(host, led, key)

    def wrote_own(self, host: Host, led: Led, key: LogKey, offset: int) -> None:
        """As leader it has written a batch there."""
        self._replicas.counts["written"] += 1

    def acknowledged(self, host: Host, led: Led, key: LogKey, offset: int) -> None:
        """To a producer."""
        self._replicas.counts["produced"] += 1
        self._replicas.truth.acknowledged(host, led, key, offset)

    def advanced(self, host: Host, key: LogKey, high_watermark: int) -> None:
        """It takes all below for committed."""
        self._replicas.truth.advanced(host, key, high_watermark)

    def stopped(self, host: Host, key: LogKey, cut_end: int) -> None:
        """It would cut what it took for committed: what is damaged begins again, so none does."""
        check(False, f"{host.name}: {key} is to be cut at {cut_end}, below what was committed")

    def _say(self, line: str) -> None:
        self._process.trace.line(self.schedule.now_us, f"{self.host.name} {line}")


def damaged_ranges(disk: "Disk", state: RingState | None) -> tuple[int, ...]:
    """Those of the logs of which something was set aside."""
    if state is None or not disk.damaged:
        return ()
    topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
    found = {range_id for each in topics for key, range_id in logs_of(each) if key in disk.damaged}
    return tuple(sorted(found))
