"""The replicas of this broker, run on its logs and on its links to other brokers.

`core.replication.RangeReplicas` decides; here its effects are applied in their order, and what
comes of them is given to it. All of it runs on the event loop. Ranges with one replica do not pass
here: their logs commit alone.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, assert_never

import structlog

from tailrace_broker.codec.batch import StoredBatch, verified_batches
from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.core.log.tail_events import OwnWrite, Write, WriteFailed, Written
from tailrace_broker.core.replication import events
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
    ReplicationTiming,
    ReportLost,
    SetLogStart,
    Stopping,
    Suspected,
    Woken,
    Wrote,
)
from tailrace_broker.core.replication.follower import NEVER_MS
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.progress import FollowerLag
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
from tailrace_broker.core.replication.ranges import RangeReplicas
from tailrace_broker.core.ring.roles import is_replicated
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.append_outcome import (
    Appended,
    AppendOutcome,
    CutOutcome,
    LogIsCut,
)
from tailrace_broker.model.commands import Command, Lead
from tailrace_broker.model.errors import CorruptBatchError, DiskFullError, TailraceError
from tailrace_broker.model.replication import (
    Batches,
    Cuts,
    EpochStart,
    Heartbeat,
    LogKey,
    Reported,
    Restart,
    Run,
    Standing,
    ToFollower,
    ToLeader,
)
from tailrace_broker.model.ring_state import (
    Registration,
    Replica,
    RingState,
)
from tailrace_broker.model.topic import NO_EPOCH
from tailrace_broker.net.replication.followed_leader import LeaderUser
from tailrace_broker.net.replication.link import Bytes, Link
from tailrace_broker.net.replication.links import ForwardedUser, ReplicationLinks
from tailrace_broker.node.ring import RingNode, RingSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.feeding import LogFeeds, runs_of
from tailrace_broker.topics.lead_proofs import LeadProofs
from tailrace_broker.topics.range_leaders import RangeRoles
from tailrace_broker.topics.replica_cuts import ReplicaCuts
from tailrace_broker.topics.replica_watch import ReplicaWatch

# Until a log that was set aside is reset again, after the disk has refused it.
RETRY_SECONDS = 1.0
# Until a log that is asked for is looked at again, while it writes.
OPENED_SECONDS = 0.02
# How long a stop waits for other replicas to take what is acknowledged by them.
STOP_SECONDS = 1.0
# How long it waits before that for others to lead, and to do without this broker.
HAND_OVER_SECONDS = 1.0

_log = structlog.get_logger()


class _Incoming(NamedTuple):
    """A message with its batches, and where it came from."""

    event: RangesEvent
    payload: memoryview
    link: Link | None


class Replicas:
    """State changes on the event loop only."""

    def __init__(
        self,
        ordinal: int,
        ring: RingNode,
        roles: RangeRoles,
        log_of: Callable[[LogKey], PartitionLog | None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        *,
        on_damaged: Callable[[LogPlace], None],
        catch_up_memory: ReadMemory,
    ) -> None:
        """`log_of` returns a log of this broker that is open; `on_damaged` is called with one that
        lacks committed records. `catch_up_memory` is for what is read for followers.
        """
        self.rules: Counter[str] = Counter()
        self._ordinal = ordinal
        self._ring = ring
        self._roles = roles
        self._log_of = log_of
        self._spawn = spawn
        self._on_damaged = on_damaged
        self._loop = asyncio.get_running_loop()
        timing = ReplicationTiming(failback_ms=ring.failback_ms)
        self._machine = RangeReplicas(ordinal, timing, self.rules, is_replicated)
        self._feeds = LogFeeds(log_of, self._machine.leads, self, catch_up_memory, spawn)
        self._watch = ReplicaWatch(ring, roles, self._machine, self._step)
        self._proofs = LeadProofs(lambda range_id: self._step(ProveLead(range_id)))
        self._cuts = ReplicaCuts(log_of, lambda key: self._step(CutDone(key)), on_damaged)
        self._links: ReplicationLinks | None = None
        self._incoming: deque[_Incoming] = deque()
        self._resetting: dict[LogKey, PartitionLog] = {}
        self._asked: list[Command] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = NEVER_MS
        self._is_timer_due = False  # to be set again, for what happened in this loop iteration
        self._left: asyncio.Event | None = None  # set when others can do without this broker
        self._is_stopped = False
        ring.on_silent.append(lambda ordinal: self._step(Suspected(ordinal)))

    # --- life ---

    async def listen(
        self, settings: RingSettings, forwarder: LeaderUser, forwarded: ForwardedUser
    ) -> ReplicationLinks:
        """Accept followers, and follow; and what is forwarded. PortInUseError."""
        self._links = ReplicationLinks(
            self._ordinal,
            address_of=settings.replication_address_of,
            secret=settings.secret,
            cluster_id=self._ring.cluster_id,
            user=self,
            forwarder=forwarder,
            forwarded=forwarded,
            spawn=self._spawn,
        )
        await self._links.listen(settings.host, settings.replication_port)
        self._watch.look()
        return self._links

    async def hand_over(self) -> None:
        """Have others lead, and do without this broker; bounded, and as far as they can."""
        self._left = asyncio.Event()
        self._step(Stopping())
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._left.wait()
        except TimeoutError:
            _log.warning("replicas.needed", reason="the others have not taken over in time")

    async def stop(self, logs: Iterable[PartitionLog]) -> None:
        """Wait a little for what others must take; then lead and follow nothing more."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                for log in logs:
                    await log.drained()
        except TimeoutError:
            _log.warning("replicas.behind", reason="appends end that other replicas have not taken")
        self._is_stopped = True
        self._feeds.stop()
        self._cuts.stop()
        for range_id in self._machine.ranges:
            self._roles.lead(range_id, None)
        self._watch.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._links is not None:
            await self._links.close()

    @property
    def catch_up_bytes(self) -> int:
        """Bytes of batches sent to followers that were far behind."""
        return self._feeds.catch_up_bytes

    @property
    def received_bytes(self) -> int:
        """Batches of leaders that are not written yet."""
        return 0 if self._links is None else self._links.received_bytes

    def lags(self) -> dict[int, list[FollowerLag]]:
        """By range that this process leads, how far its followers are behind."""
        return self._machine.lags(self._now_ms())

    async def prove_lead(self, range_id: int) -> bool:
        """Whether this process leads the range, and has all that anybody acknowledged before."""
        return self._machine.leads(range_id) is not None and await self._proofs.prove(range_id)

    # --- what happens ---

    def apply(self, state: RingState, mine: Registration | None) -> None:
        """Take the roles of this state, in this turn."""
        if self._is_stopped:
            return
        me = None if mine is None else Replica(mine.ordinal, mine.number)
        self._step(StateApplied(state, me))
        if self._links is not None:
            self._links.follow(self._leaders(state))

    def opened(self, log: PartitionLog) -> None:
        """A log is open and idle."""
        if log.role.commits_alone:
            return
        key = log.place.key
        log.on_own_write(partial(self._own_write, key))
        log.on_durable(partial(self._flushed, log))
        log.on_trimmed = partial(self._trimmed, key)
        base_epoch, epochs = log.epochs()
        ends = LogEnds(
            log.log_start,
            log.log_end,
            log.durable_end,
            log.high_watermark,
            [EpochStart(*each) for each in epochs],
            base_epoch,
        )
        self._step(LogOpened(key, ends))

    def closed(self, key: LogKey) -> None:
        """The log takes no part until it has been opened again."""
        self._step(LogClosed(key))

    def reset(self, log: PartitionLog, done: Callable[[], None]) -> None:
        """An empty log is open: take out of the journal what it was; then it takes part.

        Again and again, until that is durable, or the log is gone. It may be asked for repeatedly.
        """
        key = log.place.key
        if self._resetting.get(key) is not log:
            self._resetting[key] = log
            self._reset(log, done)

    def _reset(self, log: PartitionLog, done: Callable[[], None]) -> None:
        key = log.place.key
        if self._resetting.get(key) is not log:
            return  # another one is open
        if self._log_of(key) is not log or self._is_stopped:
            del self._resetting[key]
            return

        def ended(outcome: CutOutcome) -> None:
            if isinstance(outcome, LogIsCut):
                del self._resetting[key]
                done()
                self._go_on_with(key)
            else:
                _log.error("replica.unreset", partition=key.partition, detail=str(outcome))
                self._loop.call_later(RETRY_SECONDS, self._reset, log, done)

        log.cut(log.log_start, NO_EPOCH, ended, is_reset=True)

    def _go_on_with(self, key: LogKey) -> None:
        """Report a log that is open, and was not reported when it was opened.

        Its topic was deleted and restored at once, or it was set aside.
        """
        log, replica = self._log_of(key), self._machine.range_of(key)
        if log is None or key in self._resetting or replica is None or key in replica.ends:
            return
        if log.is_writing:
            self._loop.call_later(OPENED_SECONDS, self._go_on_with, key)
        else:
            self.opened(log)

    def on_leader(self, link: Link, ordinal: int, frame: LinkFrame) -> None:
        """A leader's message."""
        message = frame.message
        assert isinstance(message, Cuts | Batches | Heartbeat | Restart)
        self._step(HeardPeer(message), frame.payload, link)

    def on_follower(self, ordinal: int, message: ToLeader) -> None:
        """A follower's message."""
        self._step(HeardPeer(message))

    def on_link_changed(self, ordinal: int) -> None:
        """The link to that leader is there, or was lost."""
        self._step(LinkBroke(ordinal))

    def _leaders(self, state: RingState) -> set[int]:
        """Whom this broker follows."""
        return {
            each.leader.ordinal
            for each in state.ranges.values()
            if each.leader is not None and self._ordinal in each.replicas and is_replicated(each)
        } - {self._ordinal}

    def _own_write(self, key: LogKey, event: OwnWrite) -> None:
        match event:
            case Write():
                self._machine.begin_write(key)
            case Written(batches):
                self._wrote(key, batches)
            case WriteFailed(error):
                self._write_failed(key, error)
            case _:
                assert_never(event)

    def _wrote(self, key: LogKey, batches: Sequence[StoredBatch]) -> None:
        log = self._log_of(key)
        first, last = batches[0].header, batches[-1].header
        size_bytes = sum(each.header.batch_bytes for each in batches)
        run = Run(last.epoch, first.base_offset, last.end_offset)
        durable_end = first.base_offset if log is None else log.durable_end
        self._step(Wrote(key, run, durable_end, size_bytes))

    def _write_failed(self, key: LogKey, error: TailraceError) -> None:
        """Of a full disk nothing was written, nor sent: its offsets are free."""
        replica = self._machine.range_of(key)
        if replica is None:
            return
        is_led = replica.leader is not None
        if is_led and isinstance(error, DiskFullError) and key in replica.ends:
            replica.ends[key].under_way -= 1
        else:
            self._step(events.WriteFailed(key))

    def _flushed(self, log: PartitionLog) -> None:
        self._step(Flushed(log.place.key, log.durable_end))

    def _trimmed(self, key: LogKey, log_start: int) -> None:
        """Retention has removed what is before, unless the machine has asked for it."""
        replica = self._machine.range_of(key)
        ends = None if replica is None else replica.ends.get(key)
        if ends is not None and log_start > ends.start:
            self._step(LogStartMoved(key, log_start))

    # --- the machine's shell ---

    def _step(
        self,
        event: RangesEvent,
        payload: memoryview = memoryview(b""),  # noqa: B008  immutable
        link: Link | None = None,
    ) -> None:
        """One event at a time: what an effect brings about comes after the effects beside it."""
        if self._is_stopped:
            return
        self._incoming.append(_Incoming(event, payload, link))
        if len(self._incoming) > 1:
            return
        while self._incoming and not self._is_stopped:
            incoming = self._incoming[0]
            effects = self._machine.step(incoming.event, self._now_ms())
            is_taken = False
            for each in effects:
                is_taken |= isinstance(each.effect, Append)
                self._do(each, incoming)
            if incoming.link is not None and len(incoming.payload) and not is_taken:
                incoming.link.consumed(len(incoming.payload))
            self._incoming.popleft()
        if not self._is_timer_due:
            self._is_timer_due = True
            self._loop.call_soon(self._set_timer)

    def _set_timer(self) -> None:
        """Once an iteration of the event loop, for all its steps: to ask all ranges costs much."""
        self._is_timer_due = False
        if self._left is not None and not self._machine.is_needed:
            self._left.set()
        due_ms = self._machine.wake_at_ms
        if due_ms == self._timer_at_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = due_ms
        if due_ms != NEVER_MS and not self._is_stopped:
            # Half a millisecond later: `_now_ms` is cut, and would be below it.
            self._timer = self._loop.call_at((due_ms + 0.5) / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._step(Woken())

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _do(self, of_range: OfRange, incoming: _Incoming) -> None:
        range_id, epoch, effect = of_range.range_id, of_range.epoch, of_range.effect
        match effect:
            case SendPeer(ordinal, message):
                self._send(ordinal, message)
            case Feed():
                self._feeds.feed(of_range, effect)
            case Append(batches):
                self._append(batches, incoming)
            case Advance(key, high_watermark) | Advanced(key, high_watermark):
                log = self._log_of(key)
                if log is not None:
                    log.commit(high_watermark)
            case Cut(cut):
                self._cuts.begin(cut)
            case SetLogStart(key, start):
                self._spawn(self._trim(key, start))
            case ProposeCommand(command):
                if command not in self._asked:
                    if isinstance(command, Lead) and self._ordinal in command.without:
                        _log.warning("range.isolated", range=range_id, successor=command.ordinal)
                    self._asked.append(command)
                    self._spawn(self._propose(command))
            case BeganLeading():
                _log.info("range.led", range=range_id, epoch=epoch)
                self._roles.lead(range_id, epoch)
            case HoldAppends():
                _log.info("range.held", range=range_id, epoch=epoch)
                self._roles.of(range_id).hold()
            case EndedLeading(ended_epoch):
                _log.info("range.released", range=range_id, epoch=ended_epoch)
                self._roles.lead(range_id, None)
                self._proofs.ended(range_id)
            case LeadProven():
                self._proofs.proven(range_id)
            case ReportLost(key, cut_end):
                self._diverged(key, cut_end)
            case NeedLog(key):
                self._go_on_with(key)
            case RemoveLog():
                pass  # its topic is closed as the ring has agreed
            case _:
                assert_never(effect)

    def _diverged(self, key: LogKey, leader_end: int) -> None:
        log = self._log_of(key)
        if log is None:
            return
        _log.error(
            "replica.diverged",
            topic=log.place.topic,
            partition=key.partition,
            leader_end=leader_end,
            reason="committed records of this replica are not in the leader's log",
        )
        self._on_damaged(log.place)

    def _send(self, ordinal: int, message: ToLeader | ToFollower) -> None:
        if not isinstance(message, Standing | Reported):
            self.send_follower(ordinal, message)
        elif self._links is not None:
            self._links.send_leader(ordinal, message)

    # --- for the feeds ---

    def send_follower(
        self, ordinal: int, message: ToFollower, payload: Sequence[Bytes] = ()
    ) -> None:
        """Send a message, with the bytes of its batches, sooner or later or never."""
        if self._links is not None:
            self._links.send_follower(ordinal, message, payload)

    def has_follower(self, ordinal: int) -> bool:
        """There is a link from that broker."""
        return self._links is not None and self._links.has_follower(ordinal)

    def has_room(self, ordinal: int) -> bool:
        """There is one, and no more batches wait on it than that broker takes at once."""
        return self._links is not None and self._links.has_room(ordinal)

    def call_when_taken(self, ordinal: int, call: Callable[[], None]) -> None:
        """`call` when that broker has taken the batches sent so far, or has no link."""
        if self._links is not None:
            self._links.call_when_taken(ordinal, call)

    async def _propose(self, command: Command) -> None:
        """Ask the ring. The machine asks again while it needs it."""
        try:
            await self._ring.change(command)
        except TailraceError as error:
            _log.info("replicas.refused", command=type(command).__name__, detail=error.detail)
        finally:
            self._asked.remove(command)

    # --- the own logs ---

    def _append(self, batches: Batches, incoming: _Incoming) -> None:
        """Write what a leader has sent, unchanged."""
        key, link, payload = batches.log, incoming.link, incoming.payload
        log = self._log_of(key)
        assert link is not None
        failed = partial(self._step, events.WriteFailed(key))
        try:
            stored = verified_batches(payload)
            if tuple(runs_of(stored)) != batches.runs:
                raise CorruptBatchError("the batches are not those that the message names")
        except CorruptBatchError as error:
            _log.error("replica.refused", peer=link.ordinal, detail=str(error))
            link.consumed(len(payload))
            link.abort()
            failed()
            return

        def done(outcome: AppendOutcome) -> None:
            link.consumed(len(payload))
            if isinstance(outcome, Appended):
                self._wrote(key, stored)
            else:
                failed()

        misfit = None if log is None else log.append_stored(stored, done)
        if log is None or misfit is not None:
            _log.warning("replica.misfit", partition=key.partition, detail=str(misfit))
            link.consumed(len(payload))
            failed()

    async def _trim(self, key: LogKey, start: int) -> None:
        log = self._log_of(key)
        if log is None or not log.log_start < start <= log.high_watermark:
            return
        try:
            await log.trim(start)
        except TailraceError as error:
            _log.warning("replica.untrimmed", partition=key.partition, detail=error.detail)
