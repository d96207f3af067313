"""All replicas of ranges that one process has: what it leads, follows, sends, writes. A machine.

The shell feeds it applied states, messages, what the disk has completed, suspicions and ticks, and
executes the effects in their order, each with the range that it belongs to. It does nothing before
the process is registered. Roles change in the step that applies a state.

Every log that a registered process needs is asked for with `NeedLog`, unless it was opened before:
a shell reports what it has recovered before the first state, and asks no disk for it again.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from itertools import chain
from typing import assert_never

from tailrace_broker.core.replication.events import (
    CutDone,
    Flushed,
    LogStartMoved,
    PeerView,
    ReplicationTiming,
    Stopping,
    Suspected,
    Woken,
    WriteFailed,
    Wrote,
    view_of,
)
from tailrace_broker.core.replication.follower import NEVER_MS
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.progress import FollowerLag
from tailrace_broker.core.replication.range_events import (
    EndedLeading,
    HeardPeer,
    LinkBroke,
    LogClosed,
    LogOpened,
    NeedLog,
    OfRange,
    ProveLead,
    RangeEffect,
    RangesEvent,
    StateApplied,
)
from tailrace_broker.core.replication.range_replica import LogRules, RangeReplica
from tailrace_broker.core.ring.topics import ids_of
from tailrace_broker.model.replication import LogKey, Standing, ToFollower, ToLeader
from tailrace_broker.model.ring_state import RangeState, Replica, RingState, TopicState

# Of a state: what decides which logs a range has.
_OF_LOGS = ("topics", "deleted", "ranges")


class RangeReplicas:
    """`ranges`: by id, those of which this process has a replica. `wake_at_ms`: see `Woken`.

    `is_isolated`: none of those that gossip hears answers what this process leads; since then it
    has heard none of them, so that nobody makes it lead what it could not commit.
    """

    def __init__(
        self,
        ordinal: int,
        timing: ReplicationTiming,
        rules: Counter[str],
        holds: Callable[[RangeState], bool] = lambda _: True,
    ) -> None:
        """`holds` says of which ranges it has replicas, of those that the ring gives it."""
        self.ranges: dict[int, RangeReplica] = {}
        self.is_isolated = False
        self._holds = holds
        self._ordinal = ordinal
        self._timing = timing
        self._rules = rules
        self._state: RingState | None = None
        self._range_of: dict[LogKey, int] = {}
        self._early: list[Standing] = []  # of children of the open step
        self._recovered: dict[LogKey, LogEnds] = {}  # open, and not asked for yet

    @property
    def wake_at_ms(self) -> int:
        """When `Woken` is due."""
        return min((each.wake_at_ms for each in self.ranges.values()), default=NEVER_MS)

    def validate(self) -> None:
        """Assert what always holds."""
        for range_id, replica in self.ranges.items():
            replica.validate()
            assert all(self._range_of[key] == range_id for key in replica.ends)

    def leads(self, range_id: int) -> int | None:
        """The epoch in which this process leads the range and feeds it; None: it does not."""
        replica = self.ranges.get(range_id)
        leader = None if replica is None else replica.leader
        return None if leader is None or leader.is_given_up else leader.epoch

    def lags(self, now_ms: int) -> dict[int, list[FollowerLag]]:
        """By range that this process leads, how far its followers are behind."""
        return {
            range_id: replica.leader.lags(now_ms)
            for range_id, replica in self.ranges.items()
            if replica.leader is not None
        }

    @property
    def is_needed(self) -> bool:
        """While the process stops: others may soon do without it, and cannot yet."""
        return any(each.is_needed for each in self.ranges.values())

    def range_of(self, key: LogKey) -> RangeReplica | None:
        """The replica that holds the log; None: this process does not have it."""
        range_id = self._range_of.get(key)
        return None if range_id is None else self.ranges[range_id]

    def begin_write(self, key: LogKey) -> None:
        """A leader's log has handed out offsets. `Wrote` or `WriteFailed` must follow, in order."""
        replica = self.range_of(key)
        if replica is not None and key in replica.ends:
            assert not replica.is_holding, key
            replica.ends[key].under_way += 1

    def step(self, event: RangesEvent, now_ms: int) -> list[OfRange]:
        """Take in an event; the effects are to be executed in their order."""
        match event:
            case StateApplied(state, me):
                return [] if me is None else self._on_state(state, me, now_ms)
            case HeardPeer(message):
                replica = self.ranges.get(message.range_id)
                if replica is None:
                    self._keep_early(message)
                    return []
                return self._of(message.range_id, replica.heard(message, now_ms))
            case Wrote() | WriteFailed() | Flushed() | CutDone() | LogStartMoved() | LogClosed():
                range_id = self._range_of.get(event.log)
                if range_id is None:
                    return []
                return self._of(range_id, self.ranges[range_id].on_log(event, now_ms))
            case LogOpened(key, ends):
                return self._on_opened(key, ends, now_ms)
            case LinkBroke(ordinal):
                return self._of_all(lambda replica: replica.link_broke(ordinal, now_ms))
            case Suspected():
                return self._of_all(lambda replica: replica.note(event, now_ms))
            case PeerView():
                effects = self._of_all(lambda replica: replica.note(event, now_ms))
                self._note_isolation(now_ms)
                return effects
            case ProveLead(range_id):
                replica = self.ranges.get(range_id)
                return [] if replica is None else self._of(range_id, replica.prove_lead(now_ms))
            case Stopping():
                return self._of_all(lambda replica: replica.stop(now_ms))
            case Woken():
                return self._of_all(lambda replica: replica.wake(now_ms))
            case _:
                assert_never(event)

    # --- the applied state ---

    def _on_state(self, state: RingState, me: Replica, now_ms: int) -> list[OfRange]:
        before, self._state = self._state, state
        effects: list[OfRange] = []
        mine = {
            each.id
            for each in state.ranges.values()
            if self._ordinal in each.replicas and self._holds(each)
        }
        for range_id in [each for each in self.ranges if each not in mine]:
            effects += self._leave(range_id)
        for range_id in sorted(mine - self.ranges.keys()):
            self.ranges[range_id] = RangeReplica(self._ordinal, range_id, self._timing, self._rules)
        if before is None or any(
            getattr(before, part) is not getattr(state, part) for part in _OF_LOGS
        ):
            effects += self._want_logs(state, now_ms)
        if before is None:
            self._recovered.clear()  # of what is left the topics are gone
        for range_id, replica in self.ranges.items():
            view = view_of(state, range_id)
            mine_there = me._replace(losses=view.range.losses.get(me.ordinal, 0))
            effects += self._of(range_id, replica.apply(view, mine_there, now_ms))
        early, self._early = self._early, []
        for standing in early:
            replica_there = self.ranges.get(standing.range_id)
            if replica_there is not None:
                effects += self._of(standing.range_id, replica_there.heard(standing, now_ms))
            elif state.step is not None:
                self._early.append(standing)
        return effects

    def _keep_early(self, message: ToLeader | ToFollower) -> None:
        """Of a child that a follower knows before its leader does: it need not say it again."""
        step = None if self._state is None else self._state.step
        children = () if step is None else (each.id for each in step.children)
        if isinstance(message, Standing) and message.range_id in children:
            self._rules["replicas.early_standing"] += 1
            self._early.append(message)
        else:
            self._rules["replicas.other_range"] += 1

    def _want_logs(self, state: RingState, now_ms: int) -> list[OfRange]:
        """Have each range hold what its topics have in it; asked for is what is not open."""
        wanted = _wanted(state, self.ranges)
        self._range_of = {key: range_id for range_id, logs in wanted.items() for key in logs}
        effects: list[OfRange] = []
        for range_id, logs in wanted.items():
            replica = self.ranges[range_id]
            for each in replica.want(logs, now_ms):
                if isinstance(each, NeedLog) and each.log in self._recovered:
                    ends = self._recovered.pop(each.log)
                    effects += self._of(range_id, replica.add(each.log, ends, now_ms))
                else:
                    effects += self._of(range_id, [each])
        return effects

    def _leave(self, range_id: int) -> list[OfRange]:
        """The range is gone, or has other replicas: nothing follows from what is under way."""
        leader = self.ranges.pop(range_id).leader
        if leader is None:
            return []
        return [OfRange(range_id, leader.epoch, EndedLeading(leader.epoch))]

    def _on_opened(self, key: LogKey, ends: LogEnds, now_ms: int) -> list[OfRange]:
        range_id = self._range_of.get(key)
        if range_id is not None:
            return self._of(range_id, self.ranges[range_id].opened(key, ends, now_ms))
        if self._state is None:  # later ones were purged while they were opened
            self._recovered[key] = ends
        return []

    # --- isolation ---

    def _note_isolation(self, now_ms: int) -> None:
        """What it leads says whether it is heard; when it leads nothing, what it follows."""
        led, followed = set[bool | None](), set[bool | None]()
        for each in self.ranges.values():
            (followed if each.leader is None else led).add(each.is_heard(now_ms))
        if True in led:
            self.is_isolated = False
        elif False in led:
            self._rules["replicas.isolated"] += not self.is_isolated
            self.is_isolated = True
        elif True in followed or False not in followed:
            self.is_isolated = False

    # --- the ranges ---

    def _of_all(self, step: Callable[[RangeReplica], list[RangeEffect]]) -> list[OfRange]:
        return [
            each
            for range_id, replica in self.ranges.items()
            for each in self._of(range_id, step(replica))
        ]

    def _of(self, range_id: int, effects: list[RangeEffect]) -> list[OfRange]:
        epoch = self.ranges[range_id].epoch
        return [OfRange(range_id, epoch, each) for each in effects]


def _wanted(state: RingState, range_ids: Container[int]) -> dict[int, dict[LogKey, LogRules]]:
    """By range the logs of all topics, of those in the trash too. O(partitions)."""
    wanted: dict[int, dict[LogKey, LogRules]] = {
        each: {} for each in state.ranges if each in range_ids
    }
    for topic in chain(state.topics.values(), (each.topic for each in state.deleted.values())):
        min_isr = min(topic.settings.min_in_sync_replicas, state.copies)
        rules = LogRules(topic.settings.durability == "fsync", min_isr)
        for key, range_id in logs_of(topic):
            if range_id in wanted:
                wanted[range_id][key] = rules
    return wanted


def logs_of(topic: TopicState) -> Iterator[tuple[LogKey, int]]:
    """The topic's logs and their ranges."""
    for slices in topic.slices:
        for partition in ids_of(slices):
            yield LogKey(topic.id, partition), slices.range_id
