"""What this broker has seen of its ring: the last changes, and how long ranges had no leader.

Times are of its own clock: another broker applies the same change earlier or later.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from time import monotonic

from tailrace_broker.core.ring.changes import AppliedChange, changes
from tailrace_broker.model.ring_state import RangeState, RingState
from tailrace_broker.net.api.range_states import condition_of
from tailrace_broker.node.ring import RingNode

CHANGES_MAX = 1000


class RingWatch:
    """`counts`: changes by kind, of ranges that this broker led when it had applied them."""

    def __init__(
        self,
        ring: RingNode,
        ordinal: int,
        now_us: Callable[[], int],
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """`ordinal`: of this broker."""
        self.counts: Counter[str] = Counter()
        self.history: deque[AppliedChange] = deque(maxlen=CHANGES_MAX)
        self._ring = ring
        self._ordinal = ordinal
        self._now_us, self._now_s = now_us, now_s
        self._number = 0
        self._leaderless_since_s: dict[int, float] = {}
        self._leaderless_s = 0.0  # of those that have a leader again
        ring.on_applied.append(self._on_applied)
        ring.on_silent.append(lambda _: self._look())

    @property
    def leaderless_count(self) -> int:
        """Ranges that no broker leads now, or whose leader seems dead."""
        self._look()
        return len(self._leaderless_since_s)

    @property
    def leaderless_seconds(self) -> float:
        """How long ranges had no leader, of all ranges together."""
        self._look()
        now_s = self._now_s()
        return self._leaderless_s + sum(now_s - at_s for at_s in self._leaderless_since_s.values())

    def _on_applied(self, before: RingState | None, after: RingState) -> None:
        if before is not None:
            at_us = self._now_us()
            for change in changes(before, after):
                self._number += 1
                self.history.append(AppliedChange(self._number, at_us, change))
                owner = after.ranges.get(-1 if change.range_id is None else change.range_id)
                if owner is not None and owner.leader is not None:
                    self.counts[change.kind] += owner.leader.ordinal == self._ordinal
        self._look()

    def _look(self) -> None:
        """Note which ranges have no leader now."""
        state, now_s = self._ring.state, self._now_s()
        since_s = self._leaderless_since_s
        ranges = {} if state is None else state.ranges
        alive = self._ring.view().alive
        found = {
            each.id for each in ranges.values() if state and self._is_leaderless(state, each, alive)
        }
        for range_id in found - since_s.keys():
            since_s[range_id] = now_s
        for range_id in since_s.keys() - found:
            self._leaderless_s += now_s - since_s.pop(range_id)

    def _is_leaderless(self, state: RingState, one: RangeState, alive: Mapping[int, bool]) -> bool:
        if one.is_sealed:
            return False
        if one.leader is None or condition_of(state, one) != "open":
            return True
        return one.leader.ordinal != self._ordinal and alive.get(one.leader.ordinal) is False
