"""What a broker's process does for replication: `RangeReplicas` over model logs.

The shell in small: it hands states, messages and the ends of writes to the machine and executes
its effects. Roles change in the turn in which a state is applied.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, assert_never

from tailrace_broker.core.replication.events import (
    Advance,
    Advanced,
    Append,
    Cut,
    CutDone,
    Feed,
    Flushed,
    HoldAppends,
    LeadProven,
    LogStartMoved,
    PeerView,
    RangeView,
    ReplicationTiming,
    ReportLost,
    SetLogStart,
    Stopping,
    Suspected,
    Woken,
    WriteFailed,
    Wrote,
    view_of,
)
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.range_events import (
    BeganLeading,
    EndedLeading,
    HeardPeer,
    LinkBroke,
    LogClosed,
    LogOpened,
    NeedLog,
    OfRange,
    ProposeCommand,
    ProveLead,
    RangesEvent,
    RemoveLog,
    SendPeer,
    StateApplied,
)
from tailrace_broker.core.replication.ranges import RangeReplicas, logs_of
from tailrace_broker.model.commands import Command
from tailrace_broker.model.replication import Batches, LogKey, Restart, Run, ToFollower, ToLeader
from tailrace_broker.model.ring_state import (
    RangeEnd,
    RangeState,
    Replica,
    RingState,
    TopicState,
)
from tailrace_broker.model.topic import NO_EPOCH
from tests.simulation.ring.data.model_log import Entry, ModelLog
from tests.simulation.ring.schedule import US_PER_MS, Schedule

PIECE_ENTRIES = 5
FLUSH_US = (300 * US_PER_MS, 3000 * US_PER_MS)
OPEN_US = 2000
READ_US = 5000
Message = ToFollower | ToLeader
Logs = dict[LogKey, ModelLog]
# Gets the offset of what is committed; None: it is not known whether it ever will be.
OnAppended = Callable[[int | None], None]


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

    def doing(self, host: "Host", of_range: OfRange) -> bool:
        """Whether it lives to do this."""

    def opened(self, host: "Host", led: "Led") -> None:
        """It leads from now on."""

    def proven(self, host: "Host", led: "Led") -> None:
        """It led when it was asked last."""

    def closed(self, host: "Host", led: "Led") -> None:
        """It leads no more."""

    def held(self, host: "Host", led: "Led") -> None:
        """It appends nothing more in this epoch."""

    def hosts(self, host: "Host") -> None:
        """The logs that it has open may be others now."""

    def begins_write(self, host: "Host", led: "Led", key: LogKey) -> None:
        """As leader it begins to write a batch there."""

    def wrote_own(self, host: "Host", led: "Led", key: LogKey, offset: int) -> None:
        """As leader it has written a batch there."""

    def acknowledged(self, host: "Host", led: "Led", key: LogKey, offset: int) -> None:
        """To a producer."""

    def advanced(self, host: "Host", key: LogKey, high_watermark: int) -> None:
        """It takes all below for committed."""

    def moved_start(self, key: LogKey, start: int) -> None:
        """As leader it has removed what is before."""

    def stopped(self, host: "Host", key: LogKey, cut_end: int) -> None:
        """It has found that what it took for committed is not."""


class Led(NamedTuple):
    """A range that the host leads."""

    range_id: int
    machine: RangeLeader


class Hosted(NamedTuple):
    """A log, of this range."""

    range_id: int
    ends: LogEnds
    log: ModelLog


class HandedOut(NamedTuple):
    """Up to which offset this leader has begun to write, to a log that was opened with these."""

    leader: RangeLeader
    ends: LogEnds
    end: int


class Host:
    """One process. `logs`: its disk's, as recovered; `hosted`: those of its ranges."""

    def __init__(
        self, ordinal: int, name: str, logs: Logs, timing: ReplicationTiming, around: Surroundings
    ) -> None:
        self.ordinal = ordinal
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.led: dict[int, Led] = {}
        self.hosted: dict[LogKey, Hosted] = {}
        self.live: dict[LogKey, None] = {}
        self.ranges = RangeReplicas(ordinal, timing, around.rules, _is_open)
        self.logs = logs
        self._around = around
        self._state: RingState | None = None
        self._is_synced: dict[LogKey, bool] = {}
        self._firsts: dict[LogKey, int] = {}  # of logs that follow others
        self._hosted_before: dict[LogKey, Hosted] = {}  # the last state
        self._waiting: dict[LogKey, deque[int]] = {}  # ends that producers wait for
        self._appends: dict[LogKey, dict[int, OnAppended]] = {}  # by offset, what is under way
        self._handed: dict[LogKey, HandedOut] = {}
        self._entries: tuple[Entry, ...] = ()  # of the message that is taken in
        self._backlog: list[Callable[[], None]] = []
        self._wake_us = -1
        self._clock_ahead_ms = around.random.randrange(1_000_000)
        self._flush_us = around.random.choice(FLUSH_US)
        for key in sorted(logs):
            self._step(LogOpened(key, logs[key].recovered()))
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
        self._wake_when_due()

    # --- the state ---

    def apply(self, state: RingState, number: int | None) -> None:
        """`number`: of this process's registration; None: not applied yet, it serves nothing."""
        before, self._state = self._state, state
        if before is None or before.topics is not state.topics:
            self.live = {key: None for each in state.topics.values() for key, _ in logs_of(each)}
        if before is None or (before.topics, before.deleted) != (state.topics, state.deleted):
            topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
            self._is_synced = {
                key: each.settings.durability == "fsync"
                for each in topics
                for key, _ in logs_of(each)
            }
            self._firsts = first_offsets(topics)
        self._hosted_before = self.hosted
        self._step(StateApplied(state, None if number is None else Replica(self.ordinal, number)))
        if self.is_alive and (before is None or before.step is None) and state.step is not None:
            for key, hosted in self.hosted.items():
                # Also where retention has left nothing to flush: that is to be reported.
                if self._is_in_step(hosted) and hosted.ends.flushed < hosted.ends.written:
                    self._flush(key)

    def close(self, key: LogKey) -> None:
        """It is damaged, as the ring knows: it is opened again, empty."""
        self._step(LogClosed(key))
        self._waiting.pop(key, None)
        self._give_up(key)
        self.logs[key].set_aside(self._firsts.get(key, 0))
        self._open(key)

    def _note_hosted(self) -> None:
        self.hosted = {
            key: Hosted(range_id, ends, self.logs[key])
            for range_id, replica in self.ranges.ranges.items()
            for key, ends in replica.ends.items()
        }
        self._around.hosts(self)

    def view(self, range_id: int) -> RangeView:
        """The range as it is applied."""
        assert self._state is not None
        return view_of(self._state, range_id)

    def is_synced(self, key: LogKey) -> bool:
        """Whether offsets of the log count when they are flushed."""
        return self._is_synced[key]

    # --- events ---

    def receive(self, message: Message, entries: tuple[Entry, ...]) -> None:
        """A message has arrived."""
        self._entries = entries
        self._step(HeardPeer(message))

    def link_lost(self, ordinal: int) -> None:
        """The connection to that broker broke."""
        self._step(LinkBroke(ordinal))

    def stop(self) -> None:
        """The process is about to stop."""
        self._step(Stopping())

    def note_peers(self, peers: PeerView) -> None:
        """What gossip says of the other brokers."""
        self._step(peers)

    def prove_lead(self, range_id: int) -> None:
        """Somebody wants to know the ends of its logs."""
        self._step(ProveLead(range_id))

    def suspect(self, ordinal: int) -> None:
        """That broker seems dead."""
        self._step(Suspected(ordinal))

    def produce(
        self, key: LogKey, value: int, size_bytes: int, then: OnAppended | None = None
    ) -> bool:
        """Begin to write a batch, as leader; False: it cannot now."""
        run = self.hand_out(key) if self.is_alive else None
        if run is None:
            return False
        ends = self.hosted[key].ends
        self._around.begins_write(self, self.led[self.hosted[key].range_id], key)
        committed = min(ends.high_watermark, ends.flushed)
        if then is not None:
            self._appends.setdefault(key, {})[run.first] = then
        self._write(key, (Entry(run.epoch, value, committed, size_bytes),), run)
        return True

    def hand_out(self, key: LogKey) -> Run | None:
        """The offset of a write that begins now; None: nothing can be appended there now."""
        replica = self.ranges.range_of(key)
        leader = None if replica is None else replica.leader
        if replica is None or leader is None or leader.is_given_up or replica.is_holding:
            return None
        if key not in replica.ends or key not in self.live:
            return None
        ends = replica.ends[key]
        handed = self._handed.get(key)
        is_first = handed is None or handed.leader is not leader or handed.ends is not ends
        first = ends.written if handed is None or is_first else max(ends.written, handed.end)
        self._handed[key] = HandedOut(leader, ends, first + 1)
        self.ranges.begin_write(key)
        return Run(leader.epoch, first, first + 1)

    def is_committed(self, key: LogKey) -> bool:
        """As leader: no producer waits for what was appended there."""
        return not self._waiting.get(key) and not self.hosted[key].ends.under_way

    def move_start(self, key: LogKey, start: int) -> None:
        """Retention, at the leader."""
        hosted = self.hosted.get(key)
        if hosted is None or hosted.range_id not in self.led:
            return
        if hosted.ends.start < start <= hosted.ends.high_watermark:
            hosted.log.set_start(start)
            self._around.moved_start(key, start)
            self._step(LogStartMoved(key, start))

    def _step(self, event: RangesEvent) -> None:
        effects = self.ranges.step(event, self.now_ms)
        if isinstance(event, StateApplied | LogOpened | LogClosed):
            self.ranges.validate()
            self._note_hosted()
        else:
            for range_id in {each.range_id for each in effects}:
                self.ranges.ranges[range_id].validate()
        for effect in effects:
            if not self.is_alive or not self._around.doing(self, effect):
                return
            self._do(effect)
        self._wake_when_due()

    def _wake_when_due(self) -> None:
        """One waking is set at a time; a later one sets itself when it comes too early."""
        schedule = self._around.schedule
        due_us = (self.ranges.wake_at_ms - self._clock_ahead_ms) * US_PER_MS
        if self._wake_us < schedule.now_us or due_us < self._wake_us:
            self._wake_us = max(due_us, schedule.now_us + 1)
            schedule.at(self._wake_us, partial(self._wake, self._wake_us))

    def _wake(self, set_for_us: int) -> None:
        if not self.is_alive or self.is_paused or set_for_us != self._wake_us:
            return
        self._wake_us = -1
        if self.now_ms >= self.ranges.wake_at_ms:
            self._step(Woken())
        else:
            self._wake_when_due()

    # --- the disk ---

    def _write(self, key: LogKey, entries: tuple[Entry, ...], run: Run) -> None:
        is_durable = self.is_synced(key) and self._around.random.random() < 0.5
        done = partial(self._wrote, key, run, sum(each.size_bytes for each in entries))
        self.hosted[key].log.append(
            run.first,
            entries,
            is_durable=is_durable,
            then=lambda well: self.do(partial(done, well)),
        )

    def _wrote(self, key: LogKey, run: Run, size_bytes: int, is_well: bool) -> None:
        hosted = self.hosted.get(key)
        if hosted is None:
            return
        if not is_well:
            failed = self._appends.get(key, {}).pop(run.first, None)
            self._step(WriteFailed(key))
            if failed is not None:
                failed(None)
            return
        led = self.led.get(hosted.range_id)
        if led is not None:
            self._waiting.setdefault(key, deque()).append(run.end)
            self._around.wrote_own(self, led, key, run.first)
        durable = min(hosted.log.durable, run.end)
        self._step(Wrote(key, run, durable, size_bytes))
        is_urgent = self.is_synced(key) or self._is_in_step(hosted)
        if is_urgent and hosted.log.durable < run.end:
            self._flush(key)

    def _is_in_step(self, hosted: Hosted) -> bool:
        """So nobody waits for its flush."""
        assert self._state is not None
        return self._state.ranges[hosted.range_id].step is not None

    def _give_up(self, key: LogKey) -> None:
        """Nobody says any more what becomes of what is under way there."""
        for then in self._appends.pop(key, {}).values():
            then(None)

    def _flush(self, key: LogKey) -> None:
        def flushed(end: int) -> None:
            self._step(Flushed(key, end))

        self.hosted[key].log.flush(lambda end: self.do(partial(flushed, end)))

    def _flush_later(self) -> None:
        def flush() -> None:
            if self.is_alive:
                for key, hosted in self.hosted.items():
                    # For a step also where retention has left nothing to flush.
                    is_owed = self._is_in_step(hosted) and hosted.ends.flushed < hosted.ends.written
                    if is_owed or hosted.log.durable < hosted.log.end:
                        self._flush(key)
                self._flush_later()

        self._around.schedule.after(self._flush_us, flush)

    def _open(self, key: LogKey) -> None:
        """The log is made, on a disk that takes its time."""

        def opened() -> None:
            if key not in self.logs:
                self.logs[key] = log = self._around.new_log(self.ordinal, key)
                log.set_aside(self._firsts.get(key, 0))
            self._step(LogOpened(key, self.logs[key].recovered()))

        delay_us = self._around.random.randrange(OPEN_US)
        self._around.schedule.after(delay_us, lambda: self.do(opened))

    # --- effects ---

    def _do(self, of_range: OfRange) -> None:
        range_id, epoch, effect = of_range.range_id, of_range.epoch, of_range.effect
        match effect:
            case SendPeer(ordinal, message):
                self._around.send(self, ordinal, message, ())
            case Feed():
                self._read(range_id, epoch, effect)
            case Append(batches):
                last = batches.runs[-1]
                run = Run(last.epoch, batches.runs[0].first, last.end)
                self._write(batches.log, self._entries, run)
            case Advance(key, high_watermark):
                self._around.advanced(self, key, high_watermark)
                waiting = self._waiting.get(key, deque())
                while waiting and waiting[0] <= high_watermark:
                    offset = waiting.popleft() - 1
                    self._around.acknowledged(self, self.led[range_id], key, offset)
                    appended = self._appends.get(key, {}).pop(offset, None)
                    if appended is not None:
                        appended(offset)
            case Advanced(key, high_watermark):
                self._around.advanced(self, key, high_watermark)
            case Cut(cut):
                self.hosted[cut.log].log.cut(
                    cut.end,
                    is_reset=cut.is_reset,
                    epoch=cut.epoch,
                    then=lambda: self.do(lambda: self._step(CutDone(cut.log))),
                )
            case SetLogStart(key, start):
                self.hosted[key].log.set_start(start)
            case ReportLost(key, cut_end):
                self._around.stopped(self, key, cut_end)
            case ProposeCommand(command):
                self._around.ask(self, command)
            case BeganLeading():
                machine = self.ranges.ranges[range_id].leader
                assert machine is not None
                led = self.led[range_id] = Led(range_id, machine)
                self._around.opened(self, led)
            case LeadProven():
                self._around.proven(self, self.led[range_id])
            case HoldAppends():
                self._around.held(self, self.led[range_id])
            case EndedLeading():
                led = self.led.pop(range_id)
                hosted_ever = {**self._hosted_before, **self.hosted}
                keys = [key for key, each in hosted_ever.items() if each.range_id == range_id]
                for key in keys:
                    self._waiting.pop(key, None)
                self._around.closed(self, led)
                for key in keys:
                    self._give_up(key)
            case NeedLog(key):
                self._open(key)
            case RemoveLog(key):
                self.logs.pop(key, None)
                self._waiting.pop(key, None)
                self._give_up(key)
            case _:
                assert_never(effect)

    def _read(self, range_id: int, epoch: int, feed: Feed) -> None:
        """What is near is in memory; the rest is read from the disk, which takes a while."""
        feeds = partial(self._feed, range_id, epoch, feed)
        if feed.end is None:
            delay_us = self._around.random.randrange(READ_US)
            self._around.schedule.after(delay_us, lambda: self.do(feeds))
        else:
            feeds()

    def _feed(self, range_id: int, epoch: int, feed: Feed) -> None:
        led = self.led.get(range_id)
        if led is None or led.machine.epoch != epoch or feed.log not in self.hosted:
            return
        log = self.hosted[feed.log].log
        end = feed.first + PIECE_ENTRIES if feed.end is None else feed.end
        if feed.first < log.start:  # retention was faster: the follower is to stand again
            restart = Restart(range_id, epoch, feed.session)
            self._around.send(self, feed.ordinal, restart, ())
            return
        entries = tuple(log.read(feed.first, end))
        batches = Batches(
            range_id,
            epoch,
            feed.session,
            feed.log,
            log.epoch_before(feed.first),
            tuple(_runs(feed.first, entries)),
            feed.high_watermark,
            feed.log_start,
        )
        self._around.send(self, feed.ordinal, batches, entries)


def first_offsets(topics: Iterable[TopicState]) -> dict[LogKey, int]:
    """Of partitions that follow others."""
    return {
        LogKey(topic.id, slices.first_partition + index): first
        for topic in topics
        for slices in topic.slices
        for index, first in enumerate(slices.first_offsets)
    }


def _is_open(owner: RangeState) -> bool:
    """A sealed range has no role: its logs never change."""
    return not owner.is_sealed


def recovered_ends(ordinal: int, logs: Logs, state: RingState) -> tuple[RangeEnd, ...]:
    """What a registration says of each range: of its logs the last epoch, and the sum of ends."""
    ends = {
        owner.id: RangeEnd(owner.id, NO_EPOCH, 0)
        for owner in state.ranges.values()
        if ordinal in owner.replicas and not owner.is_sealed
    }
    topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
    for topic in topics:
        for key, range_id in logs_of(topic):
            log = logs.get(key)
            if log is not None and not state.ranges[range_id].is_sealed:
                known = ends.get(range_id, RangeEnd(range_id, NO_EPOCH, 0))
                epoch = max(known.last_epoch, log.last_epoch)
                ends[range_id] = RangeEnd(range_id, epoch, known.end + log.end)
    return tuple(ends.values())


def _runs(first: int, entries: tuple[Entry, ...]) -> Iterator[Run]:
    start = first
    for index, entry in enumerate(entries):
        is_last = index + 1 == len(entries) or entries[index + 1].epoch != entry.epoch
        if is_last:
            yield Run(entry.epoch, start, first + index + 1)
            start = first + index + 1
