"""When the ranges of a ring may have changed their leaders, for the history of a group."""

import threading
from time import monotonic_ns

from tests.support.groups.group_history import Span
from tests.support.ring.local_ring import LocalRing

WATCH_S = 0.05


class LeaderChanges:
    """When ranges, and with them coordinators, may have changed their leaders.

    A new coordinator knows no open delivery, and what polls have confirmed as far as it was stored.
    """

    def __init__(self, ring: LocalRing) -> None:
        self.spans: list[Span] = []
        self._ring = ring
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "LeaderChanges":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        known, known_ns = self._epochs(), monotonic_ns()
        while not self._is_over.wait(WATCH_S):
            begun_ns = monotonic_ns()
            epochs = self._epochs()
            if epochs and epochs != known:
                self.spans.append(Span(known_ns, monotonic_ns()))
                known = epochs
            if epochs:
                known_ns = begun_ns

    def _epochs(self) -> list[int]:
        """Of the ranges; none: nobody can say."""
        return [each["epoch"] for each in self._ring.ranges()]
