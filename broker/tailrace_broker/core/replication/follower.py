"""A follower of one range: says where it stands, cuts, appends what the leader sends. A machine.

It lives as long as the process and keeps nothing but ends; while this process leads the range, or
nobody does, it stands idle. When damage is found another takes its place, as soon as the ring has
given the replica another number (`Lost`). An attempt to follow is a *session*:

1. writes and cuts that are under way end, then it sends where its logs end (`Standing`);
2. the leader answers with cuts; it applies durably, then reports all its ends;
3. it appends what follows exactly, and reports ends as writes and flushes end.

While it waits for its disk in 1 and 2 it reports nothing, again and again: so it seems alive.

A gap, another previous epoch, a broken connection, silence, a failed write and a newer epoch begin
the next session. Frames of older epochs are refused; frames of epochs that this broker has not
applied are ignored: the applied state is the only promise.
"""

from collections import Counter
from collections.abc import Callable
from typing import assert_never

from tailrace_broker.core.replication.events import (
    Advanced,
    Append,
    Applied,
    Cut,
    CutDone,
    Flushed,
    FollowerEffect,
    FollowerEvent,
    HeardLeader,
    LinkLost,
    LogAdded,
    LogAltered,
    LogRemoved,
    RangeView,
    ReplicationTiming,
    ReportLost,
    SendLeader,
    SetLogStart,
    Stopping,
    Woken,
    WriteFailed,
    Wrote,
)
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.model.replication import (
    Batches,
    Cuts,
    Heartbeat,
    LogCut,
    LogKey,
    LogReport,
    LogStanding,
    Reported,
    Restart,
    Standing,
    ToFollower,
)
from tailrace_broker.model.ring_state import RangeState, Replica

NEVER_MS = 2**63 - 1


class FollowedLog:
    """`received`: the end of what was handed to be written.

    `committed`, `log_start`: as the leader said; it says either once, so a log that is still
    without those records comes to it later.
    `is_stopped`: what it took for committed is not the leader's; nothing is appended or cut.
    """

    __slots__ = ("committed", "ends", "is_stopped", "log_start", "received")

    def __init__(self, ends: LogEnds) -> None:
        self.ends = ends
        self.received = ends.written
        self.committed = ends.high_watermark
        self.log_start = ends.start
        self.is_stopped = False


class RangeFollower:
    """`wake_at_ms`: when `Woken` is due."""

    def __init__(
        self, ordinal: int, timing: ReplicationTiming, rules: Counter[str], *, session: int = 0
    ) -> None:
        """As broker `ordinal`. Nothing is followed before a state is applied.

        `session`: of the one in whose place it comes; what was sent for that does not count.
        """
        self.wake_at_ms = NEVER_MS
        self._ordinal = ordinal
        self._timing = timing
        self._rules = rules
        self._logs: dict[LogKey, FollowedLog] = {}
        self._range: RangeState | None = None
        self._me: Replica | None = None
        self._leader: int | None = None  # whom to follow; None: nobody
        self._is_stopping = False  # as each report says
        self.session = session
        self._round = 0  # of the leader's, as heard in this session
        self._stand_ms = timing.stand_ms  # doubles while nobody answers
        self._step: Callable[[ToFollower, int], list[FollowerEffect]] | None = None
        self._under_way: set[LogKey] = set()  # must end before it stands
        self._cutting: set[LogKey] = set()

    @property
    def is_following(self) -> bool:
        """It appends what the leader sends."""
        return self._step == self._on_following

    @property
    def is_answered(self) -> bool:
        """Its leader answers, or has not been asked for long."""
        return 2 * self._stand_ms < self._timing.stand_ms_max

    def validate(self) -> None:
        """Assert what always holds."""
        for log in self._logs.values():
            log.ends.validate()
        assert not self._cutting or self._step == self._on_cutting
        assert self._leader != self._ordinal

    def step(self, event: FollowerEvent, now_ms: int) -> list[FollowerEffect]:
        """Take in an event. A frame costs O(runs in it)."""
        match event:
            case HeardLeader(message):
                return self._on_heard(message, now_ms)
            case Wrote():
                return self._on_wrote(event, now_ms)
            case Flushed(key, end):
                return self._on_flushed(key, end)
            case WriteFailed(key):
                return self._on_write_failed(key, now_ms)
            case CutDone(key):
                return self._on_cut(key, now_ms)
            case Applied(view):
                return self._on_applied(view, now_ms)
            case Woken():
                return self._on_woken(now_ms)
            case LinkLost():
                self._rules["follower.link_lost"] += 1
                return self._begin(now_ms)
            case LogAdded(key, ends):
                return self._on_added(key, ends, now_ms)
            case LogRemoved(key):
                return self._on_removed(key, now_ms)
            case LogAltered():
                return []
            case Stopping():
                self._is_stopping = True
                return [self._reported(())] if self.is_following else []
            case _:
                assert_never(event)

    # --- whom to follow ---

    def _on_applied(self, view: RangeView, now_ms: int) -> list[FollowerEffect]:
        before, me = self._range, self._me
        now = self._range = view.range
        self._me = view.current.get(self._ordinal)
        is_same = before is not None and before.epoch == now.epoch and before.leader == now.leader
        if is_same and me == self._me:
            return []
        leader = None if now.leader is None else now.leader.ordinal
        self._leader = None if leader == self._ordinal or self._me is None else leader
        self._stand_ms = self._timing.stand_ms
        return self._begin(now_ms)

    def _begin(self, now_ms: int) -> list[FollowerEffect]:
        """Follow again. What was sent for an earlier session does not count any more."""
        self.session += 1
        self._cutting.clear()
        self._step = None
        self._under_way.clear()
        self.wake_at_ms = NEVER_MS
        if self._leader is None:
            return []
        self._under_way.update(key for key, log in self._logs.items() if log.ends.under_way)
        return self._stand_when_idle(now_ms)

    def _on_woken(self, now_ms: int) -> list[FollowerEffect]:
        """Say that it is there while its disk takes long; else nobody has answered."""
        if now_ms < self.wake_at_ms:
            return []
        if not self._under_way and not self._cutting:
            if self._step == self._on_standing:  # a leader that answers later still is waited for
                self._stand_ms = min(2 * self._stand_ms, self._timing.stand_ms_max)
            return self._begin(now_ms)
        self._rules["follower.is_busy"] += 1
        self.wake_at_ms = now_ms + self._timing.stand_ms
        return [self._reported(())]

    def _stand_when_idle(self, now_ms: int) -> list[FollowerEffect]:
        if self._under_way:
            self._rules["follower.waits_for_own_writes"] += 1
            self.wake_at_ms = min(self.wake_at_ms, now_ms + self._timing.stand_ms)
            return []
        return self._stand(now_ms)

    def _stand(self, now_ms: int) -> list[FollowerEffect]:
        assert self._range is not None
        assert self._me is not None
        assert self._leader is not None
        logs = []
        for key, log in self._logs.items():
            ends = log.ends
            log.received, log.committed = ends.written, ends.high_watermark
            log.log_start = ends.start
            logs.append(LogStanding(key, ends.start, ends.written, ends.known_epochs()))
        self._step = self._on_standing
        self._round = 0
        self.wake_at_ms = now_ms + self._stand_ms
        owner = self._range
        standing = Standing(owner.id, owner.epoch, self.session, self._me, tuple(logs))
        return [SendLeader(self._leader, standing)]

    def _ended(self, key: LogKey, now_ms: int) -> list[FollowerEffect]:
        """A write or a cut has ended that kept it from standing."""
        if key not in self._under_way or self._logs[key].ends.under_way:
            return []
        self._under_way.discard(key)
        return self._stand_when_idle(now_ms)

    # --- logs ---

    def _on_added(self, key: LogKey, ends: LogEnds, now_ms: int) -> list[FollowerEffect]:
        """Stand again where the leader may know of it already."""
        self._logs[key] = FollowedLog(ends)
        if ends.under_way and self._leader is not None and self._step is None:
            self._under_way.add(key)
        return self._begin(now_ms) if self._step is not None else []

    def _on_removed(self, key: LogKey, now_ms: int) -> list[FollowerEffect]:
        del self._logs[key]
        effects: list[FollowerEffect] = []
        if key in self._under_way:
            self._under_way.discard(key)
            effects += self._stand_when_idle(now_ms)
        if key in self._cutting:
            effects += self._cut_ended(key, now_ms)
        return effects

    # --- messages ---

    def _on_heard(self, message: ToFollower, now_ms: int) -> list[FollowerEffect]:
        owner = self._range
        if owner is None or message.epoch != owner.epoch:
            is_older = owner is not None and message.epoch < owner.epoch
            self._rules["follower.refused_epoch" if is_older else "follower.ignored_epoch"] += 1
            return []
        if message.session != self.session or self._step is None:
            self._rules["follower.ignored_session"] += 1
            # It answers all the same: else it seems dead while sessions follow each other quickly.
            return [] if self._leader is None else [self._reported(())]
        return self._step(message, now_ms)

    def _on_standing(self, message: ToFollower, now_ms: int) -> list[FollowerEffect]:
        if not isinstance(message, Cuts):
            return []
        self._step = self._on_cutting
        self._stand_ms = self._timing.stand_ms
        self.wake_at_ms = now_ms + self._timing.stand_ms  # a cut takes as long as the disk does
        effects: list[FollowerEffect] = []
        for cut in message.logs:
            log = self._logs.get(cut.log)
            if log is not None and not log.is_stopped:
                effects += self._cut(cut, log)
        return effects if self._cutting else [*effects, *self._follow(now_ms)]

    def _cut(self, cut: LogCut, log: FollowedLog) -> list[FollowerEffect]:
        ends = log.ends
        if cut.end < ends.high_watermark and not self._is_lossy(ends):
            log.is_stopped = True
            self._rules["follower.stopped"] += 1
            return [ReportLost(cut.log, cut.end)]
        if cut.end < ends.start:
            cut = cut._replace(is_reset=True)
        is_cut = cut.is_reset or cut.end < ends.written
        if cut.end < ends.high_watermark:
            self._rules["follower.lowered_high_watermark"] += 1
            ends.high_watermark = log.committed = cut.end
        if is_cut:
            self._rules["follower.cut"] += 1
            if cut.is_reset:
                ends.reset(cut.end, cut.epoch)
                log.committed = log.log_start = cut.end
            ends.cut(cut.end)
            log.received = ends.written
            ends.under_way += 1
            self._cutting.add(cut.log)
        if ends.written == ends.start:  # nothing here says what stood before
            ends.base_epoch = cut.epoch
        effects: list[FollowerEffect] = [Cut(cut)] if is_cut else []
        return [*effects, *self._learn(cut.log, log, cut.high_watermark, cut.log_start)]

    def _is_lossy(self, ends: LogEnds) -> bool:
        """Whether an epoch after the log's last one, up to the present, began with loss."""
        assert self._range is not None
        return any(epoch > ends.last_epoch for epoch in self._range.lossy_epochs)

    def _on_cutting(self, message: ToFollower, now_ms: int) -> list[FollowerEffect]:
        return self._begin(now_ms) if isinstance(message, Restart) else []

    def _on_cut(self, key: LogKey, now_ms: int) -> list[FollowerEffect]:
        """The cut is durable: from now on its ends may be reported."""
        log = self._logs.get(key)
        if log is None:
            return []
        log.ends.under_way -= 1
        if key in self._cutting:
            return self._cut_ended(key, now_ms)
        return self._ended(key, now_ms)

    def _cut_ended(self, key: LogKey, now_ms: int) -> list[FollowerEffect]:
        self._cutting.discard(key)
        return [] if self._cutting else self._follow(now_ms)

    def _follow(self, now_ms: int) -> list[FollowerEffect]:
        self._step = self._on_following
        self.wake_at_ms = now_ms + self._timing.silence_ms
        reports = tuple(
            LogReport(key, log.ends.written, log.ends.flushed)
            for key, log in self._logs.items()
            if not log.is_stopped
        )
        return [self._reported(reports, is_whole=True)]

    def _on_following(self, message: ToFollower, now_ms: int) -> list[FollowerEffect]:
        self.wake_at_ms = now_ms + self._timing.silence_ms
        match message:
            case Batches():
                return self._on_batches(message, now_ms)
            case Heartbeat(logs=heads, round=number):
                self._round = max(self._round, number)
                effects: list[FollowerEffect] = []
                for key, high_watermark, log_start in heads:
                    log = self._logs.get(key)
                    if log is not None and not log.is_stopped:
                        effects += self._learn(key, log, high_watermark, log_start)
                return [*effects, self._reported(())]
            case Restart():
                return self._begin(now_ms)
            case Cuts():
                return []
            case _:
                assert_never(message)

    def _on_batches(self, batches: Batches, now_ms: int) -> list[FollowerEffect]:
        """Append what follows the log exactly, in offset and in epoch."""
        key = batches.log
        log = self._logs.get(key)
        if log is None or log.is_stopped:
            return []  # it stands again when the topic comes to be here
        runs = batches.runs
        if runs[-1].end <= log.received:
            self._rules["follower.known_batch"] += 1
            return self._learn(key, log, batches.high_watermark, batches.log_start)
        is_next = runs[0].first == log.received
        if not is_next or batches.previous_epoch != log.ends.last_epoch:
            self._rules["follower.other_epoch" if is_next else "follower.gap"] += 1
            return self._begin(now_ms)
        for run in runs:
            assert run.first == log.received, batches
            log.ends.begin_epoch(run.epoch, run.first)
            log.received = run.end
        log.ends.under_way += 1
        learned = self._learn(key, log, batches.high_watermark, batches.log_start)
        return [Append(batches), *learned]

    # --- the own log ---

    def _on_wrote(self, wrote: Wrote, now_ms: int) -> list[FollowerEffect]:
        key, log = wrote.log, self._logs.get(wrote.log)
        if log is None:
            return []
        ends = log.ends
        ends.under_way -= 1
        if wrote.run.epoch > ends.last_epoch:  # it was written as the leader of an earlier epoch
            ends.begin_epoch(wrote.run.epoch, wrote.run.first)
        ends.written = wrote.run.end
        ends.flushed = max(ends.flushed, min(wrote.flushed, ends.written))
        return [*self._advance(key, log), *self._report(key, log), *self._ended(key, now_ms)]

    def _on_flushed(self, key: LogKey, end: int) -> list[FollowerEffect]:
        log = self._logs.get(key)
        if log is None:
            return []
        log.ends.flushed = max(log.ends.flushed, min(end, log.ends.written))
        return self._report(key, log)

    def _on_write_failed(self, key: LogKey, now_ms: int) -> list[FollowerEffect]:
        """The log ends before it; the leader sends it again."""
        log = self._logs.get(key)
        if log is None:
            return []
        log.ends.under_way -= 1
        log.received = log.ends.written
        log.ends.cut(log.ends.written)
        self._rules["follower.write_failed"] += 1
        return self._begin(now_ms)

    def _learn(
        self, key: LogKey, log: FollowedLog, high_watermark: int, log_start: int
    ) -> list[FollowerEffect]:
        log.committed = max(log.committed, high_watermark)
        log.log_start = max(log.log_start, log_start)
        return self._advance(key, log)

    def _advance(self, key: LogKey, log: FollowedLog) -> list[FollowerEffect]:
        """What is committed of what is here, and what of that retention has removed."""
        ends = log.ends
        effects: list[FollowerEffect] = []
        end = min(log.committed, ends.written)
        if end > ends.high_watermark:
            ends.high_watermark = end
            effects.append(Advanced(key, end))
        start = min(log.log_start, ends.high_watermark)
        if start > ends.start:
            ends.move_start(start)
            self._rules["follower.log_start"] += 1
            effects.append(SetLogStart(key, start))
        return effects

    def _report(self, key: LogKey, log: FollowedLog) -> list[FollowerEffect]:
        if not self.is_following or log.is_stopped:
            return []
        return [self._reported((LogReport(key, log.ends.written, log.ends.flushed),))]

    def _reported(self, logs: tuple[LogReport, ...], *, is_whole: bool = False) -> SendLeader:
        owner, me, leader = self._range, self._me, self._leader
        assert owner is not None
        assert me is not None
        assert leader is not None
        reported = Reported(
            owner.id,
            owner.epoch,
            self.session,
            me,
            logs,
            is_whole=is_whole,
            is_stopping=self._is_stopping,
            round=self._round,
        )
        return SendLeader(leader, reported)
