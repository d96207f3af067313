"""What a broker's process does for replication: machines of its ranges over model logs.

The shell in small: it hands states, messages and the ends of writes to the machines and applies
their effects. Roles change in the turn in which a state is applied.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from tailrace_broker.core.replication.events import (
    Advance,
    Advanced,
    Append,
    Applied,
    Cut,
    CutDone,
    Feed,
    Flushed,
    FollowerEffect,
    FollowerEvent,
    GiveUpEpoch,
    HandOver,
    HeardFollower,
    HeardLeader,
    LeaderEffect,
    LeaderEvent,
    LinkLost,
    LogAdded,
    LogAltered,
    LogRemoved,
    LogStartMoved,
    Propose,
    RangeView,
    ReplicationTiming,
    ReportLost,
    SendFollower,
    SendLeader,
    SetLogStart,
    Suspected,
    Woken,
    WriteFailed,
    Wrote,
    view_of,
)
from tailrace_broker.core.replication.follower import RangeFollower
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.model.commands import Command, Lead
from tailrace_broker.model.replication import (
    Batches,
    LogKey,
    Reported,
    Run,
    Standing,
    ToFollower,
    ToLeader,
)
from tailrace_broker.model.ring_state import RangeState, Replica, RingState, TopicState
from tests.simulation.replication.model_log import Entry, ModelLog
from tests.simulation.ring.schedule import US_PER_MS, Schedule

PIECE_ENTRIES = 5
MIN_ISR = 2
FLUSH_US = (300 * US_PER_MS, 3000 * US_PER_MS)
Message = ToFollower | ToLeader
Logs = dict[LogKey, ModelLog]


class Surroundings(Protocol):
    """What a host lives in."""

    schedule: Schedule
    random: random.Random
    rules: Counter[str]

    def send(
        self, host: "Host", ordinal: int, message: Message, entries: tuple[Entry, ...]
    ) -> None:
        """To the broker, sooner, later or never."""

    def ask(self, host: "Host", command: Command) -> None:
        """Have the command applied."""

    def new_log(self, ordinal: int, key: LogKey) -> ModelLog:
        """An empty one on the broker's disk."""

    def opened(self, host: "Host", led: "Led") -> None:
        """It leads from now on."""

    def wrote_own(self, host: "Host", led: "Led", key: LogKey, offset: int) -> None:
        """As leader it has written a batch there."""

    def acknowledged(self, host: "Host", led: "Led", key: LogKey, offset: int) -> None:
        """To a producer."""

    def advanced(self, host: "Host", key: LogKey, high_watermark: int) -> None:
        """It takes all below for committed."""

    def stopped(self, host: "Host", key: LogKey, cut_end: int) -> None:
        """It has found that what it took for committed is not."""


class Led(NamedTuple):
    """A range that the host leads; by log the ends that producers wait for."""

    range_id: int
    machine: RangeLeader
    waiting: dict[LogKey, deque[int]]


class _Hosted(NamedTuple):
    """A log, of this range."""

    range_id: int
    ends: LogEnds
    log: ModelLog


class Host:
    """One process. `logs`: its disk's, as recovered."""

    def __init__(
        self, ordinal: int, name: str, logs: Logs, timing: ReplicationTiming, around: Surroundings
    ) -> None:
        self.ordinal = ordinal
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.led: dict[int, Led] = {}
        self.followers: dict[int, RangeFollower] = {}
        self.hosted: dict[LogKey, _Hosted] = {}
        self.live: set[LogKey] = set()
        # By range with which number damage was found: it stands idle until it has another one.
        self.damaged: dict[int, Replica] = {}
        self._sessions: dict[int, int] = {}  # of followers that damage has ended
        self._opens: dict[int, RangeState] = {}  # leads when no write of its logs is under way
        self._logs = logs
        self._timing = timing
        self._around = around
        self._state: RingState | None = None
        self._me: Replica | None = None
        self._message: tuple[Message, tuple[Entry, ...]] | None = None
        self._backlog: list[Callable[[], None]] = []
        self._clock_ahead_ms = around.random.randrange(1_000_000)
        self._flush_us = around.random.choice(FLUSH_US)
        self._flush_later()

    @property
    def now_ms(self) -> int:
        """Its own clock."""
        return self._around.schedule.now_us // US_PER_MS + self._clock_ahead_ms

    def do(self, happen: Callable[[], None]) -> None:
        """Now, later when it is paused, never when it is dead."""
        if self.is_paused:
            self._backlog.append(happen)
        elif self.is_alive:
            happen()

    def resume(self) -> None:
        """Everything that came meanwhile is taken in at once."""
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        for happen in backlog:
            self.do(happen)

    # --- the state ---

    def apply(self, state: RingState, number: int | None) -> None:
        """`number`: of this process's registration; None: not applied yet, it serves nothing."""
        self._state = state
        if number is None:
            return
        self._me = Replica(self.ordinal, number)
        for owner in state.ranges.values():
            if self.ordinal not in owner.replicas or owner.id in self.followers:
                continue
            known = self.damaged.get(owner.id)
            if known is None or known.losses < owner.losses.get(self.ordinal, 0):
                self.damaged.pop(owner.id, None)
                session = self._sessions.pop(owner.id, 0)
                self.followers[owner.id] = RangeFollower(
                    self.ordinal, self._timing, self._around.rules, session=session
                )
        self._host_logs(state)
        for range_id in self.followers:
            self._change_role(state, range_id)

    def _host_logs(self, state: RingState) -> None:
        wanted: dict[LogKey, tuple[int, TopicState]] = {}
        topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
        for topic in topics:
            for key, range_id in keys_of(topic):
                if range_id in self.followers:
                    wanted[key] = range_id, topic
        self.live = {key for topic in state.topics.values() for key, _ in keys_of(topic)}
        for key in [each for each in self.hosted if each not in wanted]:
            self._to_both(self.hosted.pop(key).range_id, LogRemoved(key))
            del self._logs[key]
        for key, (range_id, topic) in wanted.items():
            is_synced = topic.settings.durability == "fsync"
            if key in self.hosted:
                self._to_both(range_id, LogAltered(key, is_synced, self.min_isr(key)))
                continue
            log = self._logs.get(key)
            if log is None:
                log = self._logs[key] = self._around.new_log(self.ordinal, key)
            ends = log.recovered()
            self.hosted[key] = _Hosted(range_id, ends, log)
            self._to_both(range_id, LogAdded(key, ends, is_synced, self.min_isr(key)))

    def _change_role(self, state: RingState, range_id: int) -> None:
        view = view_of(state, range_id)
        led, owner = self.led.get(range_id), view.range
        leads = owner.leader is not None and owner.leader == view.current.get(self.ordinal)
        if led is not None and (not leads or led.machine.epoch != owner.epoch):
            del self.led[range_id]
            led = None
        self._opens.pop(range_id, None)
        self._follower(range_id, Applied(view))
        if led is not None:
            self._leader(led, Applied(view))
        elif leads:
            self._opens[range_id] = owner
            self._open_when_idle(range_id)

    def _open_when_idle(self, range_id: int) -> None:
        if range_id not in self._opens or any(
            each.ends.under_way for each in self.hosted.values() if each.range_id == range_id
        ):
            return
        del self._opens[range_id]
        assert self._state is not None
        assert self._me is not None
        view = view_of(self._state, range_id)
        me = view.current[self.ordinal]
        machine = RangeLeader(me, view, self._timing, self.now_ms, self._around.rules)
        led = self.led[range_id] = Led(range_id, machine, {})
        for key, each in self.hosted.items():
            if each.range_id == range_id:
                self._leader(led, LogAdded(key, each.ends, self.is_synced(key), self.min_isr(key)))
        self._around.opened(self, led)

    def view(self, range_id: int) -> RangeView:
        """The range as it is applied."""
        assert self._state is not None
        return view_of(self._state, range_id)

    def is_synced(self, key: LogKey) -> bool:
        """Whether offsets of the log count when they are flushed."""
        assert self._state is not None
        topics = [*self._state.topics.values()]
        topics += [each.topic for each in self._state.deleted.values()]
        found = next(each for each in topics if each.id == key.topic_id)
        return found.settings.durability == "fsync"

    def min_isr(self, key: LogKey) -> int:
        """In force for the log."""
        return MIN_ISR

    # --- events ---

    def receive(self, message: Message, entries: tuple[Entry, ...]) -> None:
        """A message has arrived."""
        if isinstance(message, Standing | Reported):
            led = self.led.get(message.range_id)
            if led is not None:
                self._leader(led, HeardFollower(message))
        elif message.range_id in self.followers:
            self._message = message, entries
            self._follower(message.range_id, HeardLeader(message))

    def link_lost(self, ordinal: int) -> None:
        """The connection to that broker broke."""
        for range_id in self.followers:
            owner = None if self._state is None else self._state.ranges[range_id]
            if owner and owner.leader and owner.leader.ordinal == ordinal:
                self._follower(range_id, LinkLost())
        self._check(machine for machine in self.followers.values())

    def suspect(self, ordinal: int) -> None:
        """That broker seems dead."""
        for led in [*self.led.values()]:
            self._leader(led, Suspected(ordinal))

    def wake(self) -> None:
        """Every few ms; the machines say themselves whether something is due."""
        for led in [*self.led.values()]:
            if self.now_ms >= led.machine.wake_at_ms:
                self._leader(led, Woken())
        for range_id, machine in self.followers.items():
            if self.now_ms >= machine.wake_at_ms:
                self._follower(range_id, Woken())

    def produce(self, key: LogKey, value: int, size_bytes: int) -> bool:
        """Begin to write a batch, as leader; False: it cannot now."""
        hosted = self.hosted.get(key)
        led = None if hosted is None else self.led.get(hosted.range_id)
        if led is None or hosted is None or hosted.ends.under_way or key not in self.live:
            return False
        ends, epoch = hosted.ends, led.machine.epoch
        if led.machine.is_given_up or led.machine.succession.is_holding:
            return False
        ends.under_way += 1
        entry = Entry(epoch, value, min(ends.high_watermark, ends.flushed), size_bytes)
        self._write(key, (entry,), Run(epoch, ends.written, ends.written + 1))
        return True

    def move_start(self, key: LogKey, start: int) -> None:
        """Retention, at the leader."""
        hosted = self.hosted.get(key)
        led = None if hosted is None else self.led.get(hosted.range_id)
        if led and hosted and hosted.ends.start < start <= hosted.ends.high_watermark:
            hosted.log.set_start(start)
            self._leader(led, LogStartMoved(key, start))

    def find_damage(self, range_id: int, key: LogKey, end: int) -> None:
        """What the log has from `end` on cannot be read: the range's logs are recovered.

        It leads and follows no more until the ring has applied `Lost`.
        """
        assert self._state is not None
        machine = self.followers.pop(range_id)
        self._sessions[range_id] = machine.session
        self.led.pop(range_id, None)
        self._opens.pop(range_id, None)
        for each in [each for each in self.hosted if self.hosted[each].range_id == range_id]:
            self.hosted.pop(each).log.crashed("process")
        self._logs[key].damage(end)
        self.damaged[range_id] = self.view(range_id).current[self.ordinal]

    # --- the disk ---

    def _write(self, key: LogKey, entries: tuple[Entry, ...], run: Run) -> None:
        is_durable = self.is_synced(key) and self._around.random.random() < 0.5
        done = partial(self._wrote, key, run, sum(each.size_bytes for each in entries))
        log = self.hosted[key].log
        log.append(
            run.first,
            entries,
            is_durable=is_durable,
            then=lambda well: self.do(partial(done, well)),
        )

    def _wrote(self, key: LogKey, run: Run, size_bytes: int, is_well: bool) -> None:
        hosted = self.hosted.get(key)
        if hosted is None:
            return
        event: Wrote | WriteFailed = WriteFailed(key)
        led = self.led.get(hosted.range_id)
        if is_well:
            event = Wrote(key, run, min(hosted.log.durable, run.end), size_bytes)
        if led is None or run.epoch != led.machine.epoch:
            self._follower(hosted.range_id, event)
            self._open_when_idle(hosted.range_id)
        else:
            if is_well:
                led.waiting.setdefault(key, deque()).append(run.end)
                self._around.wrote_own(self, led, key, run.first)
            self._leader(led, event)
        if is_well and self.is_synced(key) and hosted.log.durable < run.end:
            self._flush(key)

    def _flush(self, key: LogKey) -> None:
        def flushed(end: int) -> None:
            if key in self.hosted:
                self._to_role(self.hosted[key].range_id, Flushed(key, end))

        self.hosted[key].log.flush(lambda end: self.do(partial(flushed, end)))

    def _flush_later(self) -> None:
        def flush() -> None:
            if self.is_alive:
                for key, hosted in self.hosted.items():
                    if hosted.log.durable < hosted.log.end:
                        self._flush(key)
                self._flush_later()

        self._around.schedule.after(self._flush_us, flush)

    # --- effects ---

    def _to_both(self, range_id: int, event: LogAdded | LogAltered | LogRemoved) -> None:
        self._follower(range_id, event)
        if range_id in self.led:
            self._leader(self.led[range_id], event)

    def _to_role(self, range_id: int, event: Flushed) -> None:
        led = self.led.get(range_id)
        if led is None:
            self._follower(range_id, event)
        else:
            self._leader(led, event)

    def _leader(self, led: Led, event: LeaderEvent) -> None:
        effects = led.machine.step(event, self.now_ms)
        led.machine.validate()
        for effect in effects:
            self._do_leader(led, effect)

    def _do_leader(self, led: Led, effect: LeaderEffect) -> None:
        match effect:
            case SendFollower(ordinal, message):
                self._around.send(self, ordinal, message, ())
            case Feed():
                self._feed(led, effect)
            case Advance(key, high_watermark):
                self._around.advanced(self, key, high_watermark)
                waiting = led.waiting.get(key, deque())
                while waiting and waiting[0] <= high_watermark:
                    self._around.acknowledged(self, led, key, waiting.popleft() - 1)
            case SetLogStart(key, start):
                self.hosted[key].log.set_start(start)
            case Propose(command):
                self._around.ask(self, command)
            case GiveUpEpoch(epoch):
                assert self._me is not None
                self._around.ask(self, Lead(led.range_id, epoch, *self._me[:2]))
            case HandOver(epoch, successor):
                self._around.ask(self, Lead(led.range_id, epoch, *successor[:2]))

    def _feed(self, led: Led, feed: Feed) -> None:
        log = self.hosted[feed.log].log
        end = feed.first + PIECE_ENTRIES if feed.end is None else feed.end
        if feed.first < log.start:
            return
        entries = tuple(log.read(feed.first, end))
        batches = Batches(
            led.range_id,
            led.machine.epoch,
            feed.session,
            feed.log,
            log.epoch_before(feed.first),
            tuple(_runs(feed.first, entries)),
            feed.high_watermark,
            feed.log_start,
        )
        self._around.send(self, feed.ordinal, batches, entries)

    def _follower(self, range_id: int, event: FollowerEvent) -> None:
        machine = self.followers[range_id]
        effects = machine.step(event, self.now_ms)
        machine.validate()
        for effect in effects:
            self._do_follower(range_id, effect)

    def _do_follower(self, range_id: int, effect: FollowerEffect) -> None:
        match effect:
            case SendLeader(ordinal, message):
                self._around.send(self, ordinal, message, ())
            case Append(batches):
                assert self._message is not None
                last = batches.runs[-1]
                run = Run(last.epoch, batches.runs[0].first, last.end)
                self._write(batches.log, self._message[1], run)
            case Cut(cut):
                done = partial(self._cut_done, range_id, cut.log)
                self.hosted[cut.log].log.cut(
                    cut.end,
                    is_reset=cut.is_reset,
                    epoch=cut.epoch,
                    then=lambda: self.do(done),
                )
            case SetLogStart(key, start):
                self.hosted[key].log.set_start(start)
            case Advanced(key, high_watermark):
                self._around.advanced(self, key, high_watermark)
            case ReportLost(key, cut_end):
                self._around.stopped(self, key, cut_end)

    def _cut_done(self, range_id: int, key: LogKey) -> None:
        self._follower(range_id, CutDone(key))
        self._open_when_idle(range_id)

    def _check(self, machines: Iterator[RangeFollower]) -> None:
        for each in machines:
            each.validate()


def keys_of(topic: TopicState) -> Iterator[tuple[LogKey, int]]:
    """The topic's logs and their ranges."""
    for slices in topic.slices:
        for index in range(len(slices.starts)):
            yield LogKey(topic.id, slices.first_partition + index), slices.range_id


def _runs(first: int, entries: tuple[Entry, ...]) -> Iterator[Run]:
    start = first
    for index, entry in enumerate(entries):
        is_last = index + 1 == len(entries) or entries[index + 1].epoch != entry.epoch
        if is_last:
            yield Run(entry.epoch, start, first + index + 1)
            start = first + index + 1
