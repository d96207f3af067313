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
from tailrace_broker.core.replication.events import PeerView, ReplicationTiming
from tailrace_broker.core.replication.range_events import OfRange
from tailrace_broker.core.replication.ranges import logs_of
from tailrace_broker.model.commands import Command
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState
from tests.simulation.ring.data.host import Host, Led, Logs, Message
from tests.simulation.ring.data.model_log import Entry, ModelLog
from tests.simulation.ring.data.truth import Truth
from tests.simulation.ring.groups.broker import GroupBroker
from tests.simulation.ring.groups.links import CallFrame
from tests.simulation.ring.groups.records import GROUPS_ID, Records
from tests.simulation.ring.groups.ring import GroupsOfRing
from tests.simulation.ring.network import DataFrame
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.steps.copies import SealedCopies
from tests.simulation.ring.steps.retention import SealedRetention
from tests.simulation.ring.violation import check

if TYPE_CHECKING:
    from tests.simulation.ring.disk import Disk
    from tests.simulation.ring.process import Process
    from tests.simulation.ring.world import World

TIMING = ReplicationTiming(failback_ms=300)
# For how long a process that stops waits for others to take over, and how often it looks.
HAND_OVER_US = 1000 * US_PER_MS
LOOK_US = 5 * US_PER_MS
# How often a process looks who is heard.
LOOK_MS = 500
SIZES = (100, 5000, 30_000)
# No request of a client has such a number.
FIRST_REQUEST = 10**9


class Replicas:
    """Of all processes; `truth` holds what was acknowledged and read."""

    def __init__(self, world: "World", seed: int, *, has_groups: bool = False) -> None:
        """`has_groups`: consumers read in groups."""
        self.counts = world.counts
        self.truth = Truth(self)
        self.world = world
        self.generator = random.Random(f"replicas {seed}")
        self.acknowledged_before: dict[LogKey, int] = {}  # until all was repaired
        self.request = FIRST_REQUEST
        self.records = Records()
        self.groups = GroupsOfRing(self) if has_groups else None
        self.sealed = SealedRetention(self, random.Random(f"retention {seed}"))

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
        if after.topics is not before.topics and self.world.operator is not None:
            self.sealed.check()
            if self.groups is not None:
                self.groups.note(after)
        if after.step is not None and before.step is None and self.world.operator is not None:
            self.world.operator.begun(after)
        if self.groups is not None and after.deleted is not before.deleted:
            self.groups.changed(after)

    # --- clients ---

    def produce(self, share: float) -> None:
        """Producers try partitions at whoever leads them."""
        for host in self.hosts():
            if host.is_paused:
                continue
            for key in [*host.live]:
                if key.topic_id != GROUPS_ID and self.generator.random() < share:
                    host.produce(key, self.records.add(None), self.generator.choice(SIZES))

    def retain(self) -> None:
        """Retention removes something at leaders."""
        for host in self.hosts():
            for key, hosted in [*host.hosted.items()]:
                is_kept = host.is_paused or key.topic_id == GROUPS_ID
                if not is_kept and self.generator.random() < 0.1:
                    high = hosted.ends.high_watermark
                    host.move_start(key, self.generator.randint(0, high))
        if self.groups is not None and self.groups.has_producers:
            return  # sealed logs are kept for as long as producers may repeat requests
        for process in self.world.processes:
            if process.shell is not None and not process.is_paused:
                self.sealed.decide(process)

    def read(self) -> None:
        """Readers read below the high watermark of any replica."""
        for host in self.hosts():
            for key in [*host.hosted]:
                if not host.is_paused and self.generator.random() < 0.2:
                    self.truth.read(host, key)
            for range_id in [*host.led]:
                if not host.is_paused and self.generator.random() < 0.5:
                    self.truth.asked(host.led[range_id])
                    host.do(partial(host.prove_lead, range_id))

    # --- the end ---

    def healed(self) -> None:
        """From now on everything must become whole."""
        self.acknowledged_before = {**self.truth.acknowledged_count}
        for disk in self.world.disks.values():
            for log in disk.logs.values():
                log.failures = 0
        if self.groups is not None:
            self.groups.healed()

    def missing(self) -> str | None:
        """Copies that are not in sync, ranges that are not led, partitions that take nothing."""
        lacking = self.truth.lacking(self.acknowledged_before)
        return lacking if lacking is not None or self.groups is None else self.groups.lacking()


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
        self._look_ms = 0
        # Logs in which damage was found, with what names this process as a replica then.
        self._found: dict[LogKey, tuple[int, int]] = {}
        for key in process.disk.to_set_aside:
            process.disk.logs[key].set_aside()
        process.disk.to_set_aside.clear()
        self._groups: GroupBroker | None = None
        self._applied: RingState | None = None
        self.host = Host(process.ordinal, process.name, process.disk.logs, TIMING, self)
        self._copies = SealedCopies(process, self, replicas.world)
        if replicas.groups is not None:
            self._groups = replicas.groups.new_broker(process, self.host)
        if replicas.world.agreement.state is not None:
            replicas.truth.recovered(process.disk.logs)

    # --- of the process ---

    def apply(self) -> None:
        """What `Control` has applied."""
        control = self._process.control
        assert control is not None
        assert control.state is not None
        mine = control.registration
        if self._groups is not None:
            self._groups.take_roles()
        for key, number in [*self._found.items()]:
            hosted = self.host.hosted.get(key)
            if hosted is None or mine is None:
                del self._found[key]  # its topic was purged, or its range is sealed
            elif control.state.ranges[hosted.range_id].replica_of(mine).number != number:
                del self._found[key]
                self._process.disk.damaged.discard(key)
                self._process.disk.to_set_aside.discard(key)
                self.host.close(key)
        self.host.apply(control.state, None if mine is None else mine.number)
        self._replicas.sealed.remove(self._process.ordinal, self.host.logs, control.state)
        if self._groups is not None:
            self._groups.applied()
        self._copies.applied(self._applied, control.state)
        self._applied = control.state
        self._replicas.truth.check_all(self.host)

    def look(self, *, at_once: bool = False) -> None:
        """Hand on what gossip says of the other brokers, and whether replication hears them."""
        control, now_ms = self._process.control, self._process.now_ms
        if control is None or (now_ms < self._look_ms and not at_once):
            return
        self._look_ms = now_ms + LOOK_MS
        heard = control.heard(now_ms)
        able = frozenset(filter(control.gossip.is_fit, heard))
        peers = PeerView(heard, able, can_store=self._process.health.can_store)
        self.host.do(partial(self.host.note_peers, peers))
        self._process.note_isolated(is_isolated=self.host.ranges.is_isolated)

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

    def receive(self, frame: DataFrame | CallFrame) -> None:
        """A message of another replica, or a forwarded request."""
        self.host.do(partial(self._receive, frame))

    def _receive(self, frame: DataFrame | CallFrame) -> None:
        if isinstance(frame, CallFrame):
            if self._groups is not None:
                self._groups.receive(frame)
            return
        self.host.receive(frame.message, frame.entries)
        self._replicas.truth.check_some(self.host)

    def link_broke(self, ordinal: int) -> None:
        """A connection to that broker ended."""
        self.host.do(partial(self.host.link_lost, ordinal))
        if self._groups is not None:
            self.host.do(partial(self._groups.link_broke, ordinal))

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
        if self._groups is None:
            self._hand_over(then)
        else:
            self.host.do(partial(self._groups.stop, partial(self._hand_over, then)))

    def _hand_over(self, then: Callable[[], None]) -> None:
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
        if self._groups is not None:
            self._groups.lead(led.range_id, led.machine.epoch)

    def closed(self, host: Host, led: Led) -> None:
        """It leads no more."""
        if self._groups is not None:
            self._groups.lead(led.range_id, None)

    def hosts(self, host: Host) -> None:
        """The logs that it has open may be others now."""
        if self._groups is not None:
            self._groups.hosts()

    def proven(self, host: Host, led: Led) -> None:
        """Whoever asked for its ends before gets them."""
        self._replicas.truth.proven(host, led)
        if self._groups is not None:
            self._groups.proven(led.range_id)

    def held(self, host: Host, led: Led) -> None:
        """It appends nothing more in this epoch."""
        self._say(f"holds appends of range {led.range_id} in epoch {led.machine.epoch}")
        self._replicas.truth.held(led)
        if self._groups is not None:
            self._groups.hold(led.range_id)

    def begins_write(self, host: Host, led: Led, key: LogKey) -> None:
        """As leader it begins to write a batch there."""
        self._replicas.truth.begins_write(host, led, key)

    def wrote_own(self, host: Host, led: Led, key: LogKey, offset: int) -> None:
        """As leader it has written a batch there."""
        self._replicas.counts["written"] += 1
        if self._replicas.groups is not None:
            self._replicas.groups.producers.wrote(host, key, offset)

    def acknowledged(self, host: Host, led: Led, key: LogKey, offset: int) -> None:
        """To a producer."""
        self._replicas.counts["produced"] += 1
        self._replicas.truth.acknowledged(host, led, key, offset)

    def advanced(self, host: Host, key: LogKey, high_watermark: int) -> None:
        """It takes all below for committed."""
        self._replicas.truth.advanced(host, key, high_watermark)
        if self._groups is not None and self._replicas.groups is not None:
            self._replicas.groups.advanced(host, key, high_watermark)
            self._groups.advanced(key)

    def moved_start(self, key: LogKey, start: int) -> None:
        """As leader it has removed what is before."""
        self._replicas.sealed.moved_start(key, start)

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
