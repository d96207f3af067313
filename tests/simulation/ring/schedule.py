"""Virtual time: what happens next, and nothing in between."""

from collections.abc import Callable
from heapq import heappop, heappush

US_PER_MS = 1000
US_PER_S = 1_000_000


class Schedule:
    """What will happen, in its order; of two things at one moment the one that was set first."""

    def __init__(self) -> None:
        self.now_us = 0
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_us: int, happen: Callable[[], None]) -> None:
        """It happens `delay_us` from now."""
        self._count += 1
        heappush(self._waiting, (self.now_us + delay_us, self._count, happen))

    def at(self, when_us: int, happen: Callable[[], None]) -> None:
        """It happens then, or now when that is over."""
        self.after(max(0, when_us - self.now_us), happen)

    def run(self, until_us: int) -> None:
        """All that happens before `until_us`; then it is that."""
        waiting = self._waiting
        while waiting and waiting[0][0] < until_us:
            self.now_us, _, happen = heappop(waiting)
            happen()
        self.now_us = max(self.now_us, until_us)
