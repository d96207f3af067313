"""Who leads a range after its present leader, and when that is to be. A part of the leader.

A leader hands over when its process stops, to the first replica in the ring's order that is able to
lead; when it can write no more, to the first such replica that can; and when the natural leader has
been able to lead for long enough, to that one. It holds appends first: from then on nothing is
appended in the epoch, whatever comes of it (SAFETY 4).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tailrace_broker.core.replication.events import (
    HandOver,
    HoldAppends,
    RangeView,
    ReplicationTiming,
)
from tailrace_broker.core.replication.progress import LedLog, Progress
from tailrace_broker.model.ring_state import Replica


class Succession:
    """Of a leader in one epoch. Times are of its own clock.

    `is_stopping`: its process is about to stop. `yields_to`: the brokers of which one is to lead
    because its process can write no more. `successor`: who is to lead next; None: nobody is
    to, or can; itself: appends are held for nobody any more, and it leads on in the next epoch.
    `can_hand_over`: another replica is able to lead, or may soon be.
    """

    __slots__ = (
        "_able_since_ms", "_again_ms", "_held_ms", "_me", "_rules", "_timing", "can_hand_over",
        "is_stopping", "successor", "yields_to",
    )  # fmt: skip

    def __init__(
        self, me: Replica, timing: ReplicationTiming, now_ms: int, rules: Counter[str]
    ) -> None:
        self.is_stopping = self.can_hand_over = False
        self.yields_to: Collection[int] = ()
        self.successor: Replica | None = None
        self._me = me
        self._timing = timing
        self._rules = rules
        self._able_since_ms = now_ms  # the natural leader
        self._held_ms: int | None = None
        self._again_ms = now_ms

    @property
    def is_holding(self) -> bool:
        """Nothing more is appended in this epoch."""
        return self._held_ms is not None

    @property
    def has_begun(self) -> bool:
        """`step` is due after each event; else now and then."""
        return self.is_stopping or self.is_holding

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
        known = filter(None, map(progress.get, unfenced))
        members = [
            each for each in known if each.is_member and not each.seems_dead(clock_ms, silence_ms)
        ]
        self.can_hand_over = bool(members)
        # A member has all, when all is committed.
        able = [each.replica for each in members if each.is_following]
        successor = self.successor = self._choose(able, led.natural_leader, clock_ms)
        effects: list[HoldAppends | HandOver] = []
        if successor is None:
            return effects
        if self._held_ms is None:
            if not self.is_stopping and not all(each.is_nearly_committed for each in logs):
                return effects
            self._held_ms = clock_ms
            self._rules["leader.holds_appends"] += 1
            effects.append(HoldAppends(led.epoch))
        is_ready = successor == self._me or all(each.is_committed for each in logs)
        if is_ready and clock_ms >= self._again_ms:
            self._again_ms = clock_ms + self._timing.propose_ms
            self._rules[f"leader.{self._kind}"] += 1
            effects.append(HandOver(led.epoch, successor))
        return effects

    @property
    def _kind(self) -> str:
        if self.successor == self._me:
            return "leads_on"
        if self.is_stopping:
            return "hands_over"
        return "yields" if self.yields_to else "fails_back"

    def _choose(self, able: Sequence[Replica], natural: int, clock_ms: int) -> Replica | None:
        """Return the successor, of those that are able to lead, in the ring's order."""
        first = able[0] if able else None
        is_natural = first is not None and first.ordinal == natural
        if not is_natural:
            self._able_since_ms = clock_ms
        if self.is_stopping:
            return first
        if self.yields_to:
            first = next((each for each in able if each.ordinal in self.yields_to), None)
        elif not is_natural:
            first = None
        if self._held_ms is None:
            is_due = clock_ms - self._able_since_ms >= self._timing.failback_ms
            return first if is_due or self.yields_to else None
        is_late = clock_ms - self._held_ms >= self._timing.hand_over_ms
        return self._me if first is None or is_late else first
