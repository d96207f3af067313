"""The metadata's leader has ranges re-sliced, one after another, until all are as topics want.

All that is to be done is in the replicated state (`core.ring.reslicing`), so another leader goes
on. After one that is cancelled there is a pause that doubles; its range comes after the others.
"""

from collections.abc import Mapping

from tailrace_broker.core.ring.reslicing import ranges_to_slice, why_not_reslice
from tailrace_broker.model.commands import Reslice
from tailrace_broker.model.ring_state import RingState, TopicState

PAUSE_MS = 1000
PAUSE_MS_MAX = 60_000


class Reslicing:
    """Decides for one broker which re-slice it proposes next. Times are of its own clock."""

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicState] = {}  # as they were last seen
        self._pending: dict[str, tuple[int, ...]] = {}  # by topic the ranges
        self._asked: Reslice | None = None
        self._asked_step = 0  # the number of the step that was asked for, or of a later one
        self._cancelled = 0  # in a row
        self._last_cancelled = -1  # the range
        self._next_ms = 0

    def due(self, state: RingState, now_ms: int) -> Reslice | None:
        """Return the re-slice to propose: of the first range that waits and can be sealed now,
        from the one that was cancelled last on.

        O(topics) where topics have changed, else O(ranges that wait).
        """
        self._see(state.topics)
        if state.step is not None:
            return None
        waiting = {range_id for ranges in self._pending.values() for range_id in ranges}
        self._judge(state, waiting, now_ms)
        if now_ms < self._next_ms:
            return None
        in_turn = sorted(waiting, key=lambda each: (each <= self._last_cancelled, each))
        ready = (each for each in in_turn if not why_not_reslice(state, state.ranges[each]))
        first = next(ready, None)
        if first is None:
            return None
        self._asked, self._asked_step = Reslice(first), state.next_step
        return self._asked

    def _see(self, topics: Mapping[str, TopicState]) -> None:
        if topics is self._topics:
            return
        pending = {}
        for name, topic in topics.items():
            is_known = self._topics.get(name) is topic
            ranges = self._pending.get(name) if is_known else ranges_to_slice(topic)
            if ranges:
                pending[name] = ranges
        self._topics, self._pending = topics, pending

    def _judge(self, state: RingState, waiting: set[int], now_ms: int) -> None:
        """Pause when the step that was asked for has come and gone, and its range still waits."""
        asked = self._asked
        if asked is None or state.next_step == self._asked_step:
            return
        self._asked = None
        if asked.range_id not in waiting:
            self._cancelled = 0
            return
        self._last_cancelled = asked.range_id
        self._next_ms = now_ms + min(PAUSE_MS * 2**self._cancelled, PAUSE_MS_MAX)
        self._cancelled += 1
