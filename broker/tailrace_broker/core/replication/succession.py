"""Who leads a range after its present leader, and when that is to be. A part of the leader.

A leader hands over when its process stops, to the first replica in the ring's order that is able to
lead; when it can write no more, to the first such replica that can; and when the natural leader has
been able to lead for long enough, to that one. It holds appends first: from then on nothing is
appended in the epoch, whatever comes of it (SAFETY 4).

A leader that no other replica answers, though gossip hears them, is isolated: it can commit
nothing, so it cannot hand over either. It leaves the range to another member of the ISR, as if it
were dead: what it has not committed was acknowledged to nobody.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from tailrace_broker.core.replication.events import (
    HandOver,
    HoldAppends,
    PeerView,
    RangeView,
    ReplicationTiming,
    Stopping,
)
from tailrace_broker.core.replication.progress import LedLog, Progress
from tailrace_broker.core.ring.range_commands import without
from tailrace_broker.model.ring_state import Replica


class Succession:
    """Of a leader in one epoch. Times are of its own clock.

    `is_stopping`: its process is about to stop. `peers`: what gossip says of other brokers.
    `successor`: who is to lead next; None: nobody is to, or can; itself: appends are held for
    nobody any more, and it leads on in the next epoch. `can_hand_over`: another replica is able to
    lead, or may soon be. `held_ms`: since when it has held appends.
    """

    __slots__ = (
        "_able_since_ms", "_again_ms", "_is_for_step", "_me", "_rules", "_timing",
        "can_hand_over", "held_ms", "is_stopping", "peers", "successor",
    )  # fmt: skip

    def __init__(
        self, me: Replica, timing: ReplicationTiming, now_ms: int, rules: Counter[str]
    ) -> None:
        self.is_stopping = self.can_hand_over = False
        self.peers = PeerView()
        self.successor: Replica | None = None
        self._me = me
        self._timing = timing
        self._rules = rules
        self._able_since_ms = now_ms  # the natural leader
        self.held_ms: int | None = None
        self._is_for_step = False
        self._again_ms = now_ms

    @property
    def is_holding(self) -> bool:
        """Nothing more is appended in this epoch."""
        return self.held_ms is not None

    @property
    def has_begun(self) -> bool:
        """`step` is due after each event; else now and then."""
        return self.is_stopping or self.is_holding

    def note(self, event: Stopping | PeerView) -> None:
        """This process is about to stop, or gossip says something else of others."""
        if isinstance(event, PeerView):
            self.peers = event
        else:
            self.is_stopping = True

    def hold_for_step(self, epoch: int, clock_ms: int) -> list[HoldAppends]:
        """Append nothing more: the range is to be sealed; where it is not, lead on."""
        self._is_for_step = True
        return self._hold(epoch, clock_ms)

    def _hold(self, epoch: int, clock_ms: int) -> list[HoldAppends]:
        self.held_ms = clock_ms
        self._rules["leader.holds_appends"] += 1
        return [HoldAppends(epoch)]

    def validate(self) -> None:
        """Assert what always holds."""
        assert self.is_holding or self.successor != self._me

    def step(
        self,
        view: RangeView,
        progress: Mapping[int, Progress],
        logs: Collection[LedLog],
        clock_ms: int,
    ) -> list[HoldAppends | HandOver]:
        """Hold appends for a successor; propose it when all that was appended is committed."""
        led, silence_ms = view.range, self._timing.silence_ms
        unfenced = [each for each in led.replicas if each not in view.fenced]
        known = [each for each in map(progress.get, unfenced) if each is not None]
        members = [
            each for each in known if each.is_member and not each.seems_dead(clock_ms, silence_ms)
        ]
        self.can_hand_over = bool(members)
        # A member has all, when all is committed.
        able = [each.replica for each in members if each.is_following]
        successor = self.successor = self._choose(able, view, clock_ms)
        effects: list[HoldAppends | HandOver] = []
        if successor is None:
            if self._is_unheard(progress, clock_ms, self._timing.isolated_ms):
                effects += self._leave(view, known, clock_ms)
            return effects
        if self.held_ms is None:
            if not self.is_stopping and not all(each.is_nearly_committed for each in logs):
                return effects
            effects += self._hold(led.epoch, clock_ms)
        is_ready = successor == self._me or all(each.is_committed for each in logs)
        if is_ready and clock_ms >= self._again_ms:
            self._again_ms = clock_ms + self._timing.propose_ms
            self._rules[f"leader.{self._kind}"] += 1
            effects.append(HandOver(led.epoch, successor))
        return effects

    def is_heard(self, progress: Mapping[int, Progress], clock_ms: int) -> bool | None:
        """Whether another replica answers; None: not known yet, or gossip hears none of them."""
        silence_ms = self._timing.silence_ms
        if any(
            each.is_following and clock_ms - each.heard_ms <= silence_ms
            for each in progress.values()
        ):
            return True
        return False if self._is_unheard(progress, clock_ms, silence_ms) else None

    def _is_unheard(self, progress: Mapping[int, Progress], clock_ms: int, unheard_ms: int) -> bool:
        """For so long no other replica has answered in this epoch, and gossip hears one."""
        if self.peers.heard.isdisjoint(progress):
            return False
        return clock_ms - max(each.heard_ms for each in progress.values()) > unheard_ms

    def _leave(self, view: RangeView, known: Iterable[Progress], clock_ms: int) -> list[HandOver]:
        """Leave the range to the first member that is not isolated, too; else lead on.

        This process has all that was acknowledged: it leaves the ISR to members that are heard.
        """
        members = [each.replica for each in known if each.is_member]
        heard = [each for each in members if each.ordinal in self.peers.heard]
        remain = without(view.range.isr, [self._me.ordinal], view.floor)
        successor = next((each for each in members if each.ordinal in self.peers.able), None)
        if successor is None or self.is_holding or clock_ms < self._again_ms:
            return []
        if not {*remain} <= {self._me, *heard}:
            self._rules["leader.stays_for_a_member"] += 1
            return []
        self._again_ms = clock_ms + self._timing.propose_ms
        self._rules["leader.isolated"] += 1
        return [HandOver(view.range.epoch, successor, leaves=True)]

    @property
    def _yields_to(self) -> Collection[int]:
        """The brokers of which one is to lead, because this process can write no more."""
        return () if self.peers.can_store else self.peers.able

    @property
    def _kind(self) -> str:
        if self.successor == self._me:
            return "leads_on"
        if self.is_stopping:
            return "hands_over"
        return "yields" if self._yields_to else "fails_back"

    def _choose(self, able: Sequence[Replica], view: RangeView, clock_ms: int) -> Replica | None:
        """Return the successor, of those that are able to lead, in the ring's order.

        While a step changes the range nobody gets it back: that would cancel the step.
        """
        first = able[0] if able else None
        is_natural = first is not None and first.ordinal == view.range.natural_leader
        if not is_natural:
            self._able_since_ms = clock_ms
        if self.is_stopping:
            return first
        yields_to = self._yields_to
        if yields_to:
            first = next((each for each in able if each.ordinal in yields_to), None)
        elif not is_natural or self._is_for_step or view.step is not None:
            first = None
        if self.held_ms is None:
            is_due = clock_ms - self._able_since_ms >= self._timing.failback_ms
            return first if is_due or yields_to else None
        is_late = clock_ms - self.held_ms >= self._timing.hand_over_ms
        return self._me if first is None or is_late else first
