"""Looks whether writes end, and whether the disk has room: the ring is to know."""

from collections.abc import Callable
from time import monotonic

from tailrace_broker.core.node.events import Health

# A write that is older has stalled (`diskStallMs`).
DISK_STALL_SECONDS = 10.0
# A disk that had no room for a write is full for this long.
FULL_SECONDS = 10.0


class DiskWatch:
    """Of all that writes data: `writes_since_s` of each, `full_at_s` of what may find no room."""

    def __init__(
        self,
        writes_since_s: Callable[[], float | None],
        full_at_s: Callable[[], float | None],
        *,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        self.writers = [writes_since_s]
        self._full_at_s = full_at_s
        self._now_s = now_s

    def health(self, *, is_stopping: bool = False) -> Health:
        """As it is now."""
        now_s = self._now_s()
        began_s = [since_s for writer in self.writers if (since_s := writer()) is not None]
        full_at_s = self._full_at_s()
        return Health(
            is_stalled=any(now_s - each > DISK_STALL_SECONDS for each in began_s),
            is_full=full_at_s is not None and now_s - full_at_s < FULL_SECONDS,
            is_stopping=is_stopping,
        )
