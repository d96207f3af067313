"""This process's replica of one range: its follower, and its leader while it leads. A machine.

Both share the ends of the logs, which stay open over roles and epochs. A leader is made when all
logs are open and none of their writes is under way; it ends in the step in which another epoch is
applied. While there is one it gets what the disk reports, else the follower does.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple, assert_never

from tailrace_broker.core.replication.events import (
    Advance,
    Applied,
    AskProof,
    CutDone,
    Feed,
    FollowerEvent,
    GiveUpEpoch,
    HandOver,
    HeardFollower,
    HeardLeader,
    HoldAppends,
    LeaderEffect,
    LeaderEvent,
    LeadProven,
    LinkLost,
    LogAdded,
    LogAltered,
    LogRemoved,
    LogStartMoved,
    PeerView,
    Propose,
    RangeView,
    ReplicationTiming,
    SendFollower,
    SendLeader,
    SetLogStart,
    Stopping,
    Suspected,
    Woken,
)
from tailrace_broker.core.replication.follower import RangeFollower
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.range_events import (
    BeganLeading,
    EndedLeading,
    LogClosed,
    LogEvent,
    NeedLog,
    ProposeCommand,
    RangeEffect,
    RemoveLog,
    SendPeer,
)
from tailrace_broker.core.ring.range_commands import without
from tailrace_broker.model.commands import Lead
from tailrace_broker.model.replication import (
    LogKey,
    Reported,
    Standing,
    ToFollower,
    ToLeader,
)
from tailrace_broker.model.ring_state import Replica

# Whoever loses the lead again and again gets it back later each time: up to 32 times as late, and
# by default that many are remembered for as long as they then take.
FAILOVER_MEMORY_MS = 7_200_000
FAILOVERS_REMEMBERED = 6


class LogRules(NamedTuple):
    """What holds for a log of the range."""

    is_synced: bool
    min_isr: int


class RangeReplica:
    """`leader` None: this process does not lead the range, or not yet. `view`: as last applied."""

    def __init__(
        self, ordinal: int, range_id: int, timing: ReplicationTiming, rules: Counter[str]
    ) -> None:
        self.view: RangeView | None = None
        self.leader: RangeLeader | None = None
        self.follower = RangeFollower(ordinal, timing, rules)
        self.ends: dict[LogKey, LogEnds] = {}  # of the logs that are open
        self._ordinal = ordinal
        self._range_id = range_id
        self._timing = timing
        self._rules = rules
        self._wanted: Mapping[LogKey, LogRules] = {}
        self._leads_as: Replica | None = None  # as soon as all logs are open and idle
        self._early: dict[int, Standing] = {}  # of followers that know the next epoch already
        self._is_stopping = False
        self._failovers_ms: deque[int] = deque(maxlen=FAILOVERS_REMEMBERED)
        self._peers = PeerView()

    @property
    def wake_at_ms(self) -> int:
        """When `Woken` is due."""
        due_ms = self.follower.wake_at_ms
        return due_ms if self.leader is None else min(due_ms, self.leader.wake_at_ms)

    @property
    def epoch(self) -> int:
        """As it is applied."""
        return 0 if self.view is None else self.view.range.epoch

    def validate(self) -> None:
        """Assert what always holds."""
        self.follower.validate()
        assert self.ends.keys() <= self._wanted.keys()
        assert self._leads_as is None or not self._is_ready
        if self.leader is not None:
            self.leader.validate()
            assert self._leads_as is None
            assert self.leader.epoch == self.epoch

    @property
    def is_holding(self) -> bool:
        """This process leads, and appends nothing before it has applied a newer epoch."""
        return self.leader is not None and self.leader.succession.is_holding

    @property
    def is_needed(self) -> bool:
        """While the process stops: somebody is to lead in its place, or can miss it in the ISR."""
        if self.leader is not None:
            return self.leader.succession.can_hand_over
        view = self.view
        if view is None or view.range.leader is None or not self.follower.is_answered:
            return False
        return without(view.range.isr, [self._ordinal], view.floor) != view.range.isr

    # --- what is applied ---

    def apply(self, view: RangeView, me: Replica, now_ms: int) -> list[RangeEffect]:
        """Change roles where the range, or a registration of its replicas, differs.

        After `want`: what the range has is known by then.
        """
        if view == self.view:
            return self._lead_when_ready(now_ms)
        self._note_failover(view, now_ms)
        self.view = view
        effects: list[RangeEffect] = []
        leader, leads = self.leader, view.range.leader == me
        if leader is not None and (not leads or leader.epoch != view.range.epoch):
            effects.append(EndedLeading(leader.epoch))
            self.leader = leader = None
        self._leads_as = me if leads and leader is None else None
        effects += self._to_follower(Applied(view), now_ms)
        if leader is not None:
            effects += self._to_leader(leader, Applied(view), now_ms)
        return effects + self._lead_when_ready(now_ms)

    def _note_failover(self, view: RangeView, now_ms: int) -> None:
        """Note when the natural leader loses the lead, or leaves, as far as this process sees."""
        natural = view.range.natural_leader
        was, now = (None if each is None else each.range.leader for each in (self.view, view))
        if was is not None and was.ordinal == natural and (now is None or now.ordinal != natural):
            self._failovers_ms.append(now_ms)

    def is_heard(self, now_ms: int) -> bool | None:
        """Whether it hears whom it must hear, on the links of replication.

        As leader another replica, else the leader. None: it does not know, or nobody is there.
        """
        if self.leader is not None:
            return self.leader.is_heard(now_ms)
        leader = None if self.view is None else self.view.range.leader
        if leader is None or leader.ordinal not in self._peers.heard:
            return None
        return self.follower.is_following

    def want(self, logs: Mapping[LogKey, LogRules], now_ms: int) -> list[RangeEffect]:
        """Have all logs that the range has now, and no others."""
        before, self._wanted = self._wanted, logs
        effects: list[RangeEffect] = []
        for key in [each for each in before if each not in logs]:
            effects.append(RemoveLog(key))
            if self.ends.pop(key, None) is not None:
                effects += self._to_both(LogRemoved(key), now_ms)
        for key, rules in logs.items():
            known = before.get(key)
            if known is None:
                effects.append(NeedLog(key))
            elif key in self.ends and known[:2] != rules[:2]:
                altered = LogAltered(key, rules.is_synced, rules.min_isr)
                effects += self._to_both(altered, now_ms)
        return effects

    def add(self, key: LogKey, ends: LogEnds, now_ms: int) -> list[RangeEffect]:
        """A log that is wanted was open already."""
        assert key not in self.ends, key
        self.ends[key] = ends
        return self._to_both(self._added(key), now_ms)

    def opened(self, key: LogKey, ends: LogEnds, now_ms: int) -> list[RangeEffect]:
        """A log that was asked for is open."""
        return [*self.add(key, ends, now_ms), *self._lead_when_ready(now_ms)]

    # --- events ---

    def on_log(self, event: LogEvent, now_ms: int) -> list[RangeEffect]:
        """To the role that the process has; what was purged meanwhile concerns nobody."""
        if event.log not in self.ends:
            return []
        if isinstance(event, LogClosed):  # nor does this process lead until it is open again
            del self.ends[event.log]
            return self._to_both(LogRemoved(event.log), now_ms)
        leader = self.leader
        if leader is None:
            if isinstance(event, LogStartMoved):
                return []  # retention is the leader's
            effects = self._to_follower(event, now_ms)
            return effects + self._lead_when_ready(now_ms)
        assert not isinstance(event, CutDone), "a leader's log is not cut"
        return self._to_leader(leader, event, now_ms)

    def heard(self, message: ToLeader | ToFollower, now_ms: int) -> list[RangeEffect]:
        """A message of another replica."""
        if not isinstance(message, Standing | Reported):
            return self._to_follower(HeardLeader(message), now_ms)
        if self.leader is not None and message.epoch <= self.leader.epoch:
            return self._to_leader(self.leader, HeardFollower(message), now_ms)
        if isinstance(message, Standing) and message.epoch >= self.epoch:
            self._early[message.replica.ordinal] = message
            self._rules["replica.early_standing"] += 1
        return []

    def link_broke(self, ordinal: int, now_ms: int) -> list[RangeEffect]:
        """Stand again, if it was the leader's."""
        leader = None if self.view is None else self.view.range.leader
        if leader is None or leader.ordinal != ordinal:
            return []
        return self._to_follower(LinkLost(), now_ms)

    def note(self, event: Suspected | PeerView, now_ms: int) -> list[RangeEffect]:
        """What is known of other brokers matters to the leader, this one or the next."""
        if isinstance(event, PeerView):
            self._peers = event
        return [] if self.leader is None else self._to_leader(self.leader, event, now_ms)

    def prove_lead(self, now_ms: int) -> list[RangeEffect]:
        """Ask the others whether this process still leads."""
        return [] if self.leader is None else self._to_leader(self.leader, AskProof(), now_ms)

    def stop(self, now_ms: int) -> list[RangeEffect]:
        """The process is about to stop: others are to lead, and to do without this replica."""
        self._is_stopping = True
        effects = self._to_follower(Stopping(), now_ms)
        if self.leader is not None:
            effects += self._to_leader(self.leader, Stopping(), now_ms)
        return effects

    def wake(self, now_ms: int) -> list[RangeEffect]:
        """Do what is due."""
        effects: list[RangeEffect] = []
        if self.leader is not None and now_ms >= self.leader.wake_at_ms:
            effects += self._to_leader(self.leader, Woken(), now_ms)
        if now_ms >= self.follower.wake_at_ms:
            effects += self._to_follower(Woken(), now_ms)
        return effects

    # --- leading ---

    @property
    def _is_ready(self) -> bool:
        """All logs are open, and nothing that an earlier role has begun is under way."""
        are_open = self.ends.keys() == self._wanted.keys()
        return are_open and not any(each.under_way for each in self.ends.values())

    def _lead_when_ready(self, now_ms: int) -> list[RangeEffect]:
        me, view = self._leads_as, self.view
        if me is None or view is None:
            return []
        if not self._is_ready:
            self._rules["replica.waits_to_lead"] += 1
            return []
        self._leads_as = None
        damping = _damping(self._failovers_ms, now_ms)
        timing = self._timing._replace(failback_ms=self._timing.failback_ms << damping)
        leader = self.leader = RangeLeader(me, view, timing, now_ms, self._rules)
        leader.succession.peers = self._peers
        effects: list[RangeEffect] = [BeganLeading(leader.epoch)]
        for key in self.ends:
            effects += self._to_leader(leader, self._added(key), now_ms)
        early, self._early = self._early, {}
        for standing in early.values():
            effects += self._to_leader(leader, HeardFollower(standing), now_ms)
        if self._is_stopping:  # the leader before did not know
            effects += self._to_leader(leader, Stopping(), now_ms)
        return effects

    def _added(self, key: LogKey) -> LogAdded:
        rules = self._wanted[key]
        return LogAdded(key, self.ends[key], rules.is_synced, rules.min_isr)

    # --- the machines ---

    def _to_both(self, event: LogAdded | LogAltered | LogRemoved, now_ms: int) -> list[RangeEffect]:
        effects = self._to_follower(event, now_ms)
        if self.leader is not None:
            effects += self._to_leader(self.leader, event, now_ms)
        return effects

    def _to_follower(self, event: FollowerEvent, now_ms: int) -> list[RangeEffect]:
        return [
            SendPeer(each.ordinal, each.message) if isinstance(each, SendLeader) else each
            for each in self.follower.step(event, now_ms)
        ]

    def _to_leader(self, leader: RangeLeader, event: LeaderEvent, now_ms: int) -> list[RangeEffect]:
        return [self._of_leader(each) for each in leader.step(event, now_ms)]

    def _of_leader(self, effect: LeaderEffect) -> RangeEffect:
        match effect:
            case SendFollower(ordinal, message):
                return SendPeer(ordinal, message)
            case Propose(command):
                return ProposeCommand(command)
            case GiveUpEpoch(epoch):
                assert self.view is not None
                me = self.view.range.leader
                assert me is not None
                return ProposeCommand(Lead(self._range_id, epoch, me.ordinal, me.registration))
            case HandOver(epoch, successor, leaves):
                number, gone = successor.registration, (self._ordinal,) if leaves else ()
                return ProposeCommand(Lead(self._range_id, epoch, successor.ordinal, number, gone))
            case Feed() | Advance() | HoldAppends() | SetLogStart() | LeadProven():
                return effect
            case _:
                assert_never(effect)


def _damping(moments_ms: Iterable[int], now_ms: int) -> int:
    """How often to double a time: what happened once costs nothing."""
    return max(0, sum(now_ms - at_ms < FAILOVER_MEMORY_MS for at_ms in moments_ms) - 1)
