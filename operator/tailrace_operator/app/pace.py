"""How long a worker waits before its next pass: pure, its clock is a number."""

from dataclasses import dataclass
from enum import Enum

from tailrace_operator.app.settings import Settings

# While waiting, the next pass comes after this share of the time without a change.
_SHARE = 0.1


class Outcome(Enum):
    """The outcome of one reconcile pass of a resource."""

    CHANGED = "changed"  # an action was applied, or must be planned again
    WAITING = "waiting"  # for something that is under way
    WELL = "well"  # or paused, or a person has to act
    FAILED = "failed"
    GONE = "gone"


@dataclass(slots=True)
class Pace:
    """The waits of one worker; another `state` means that something has moved."""

    settings: Settings
    failure_count: int = 0
    _repeat_count: int = 0
    _state: object = None
    _since_s: float = 0.0

    def next_s(self, outcome: Outcome, state: object, now_s: float) -> float:
        """Seconds to wait. An action that repeats is slowed down."""
        if state != self._state:
            self._state, self._since_s, self._repeat_count = state, now_s, 0
        self.failure_count = self.failure_count + 1 if outcome is Outcome.FAILED else 0
        if outcome is Outcome.FAILED:
            return self._backoff_s(self.failure_count)
        if outcome is Outcome.CHANGED:
            self._repeat_count += 1
            if self._repeat_count == 1:
                return 0.0
            return self._backoff_s(self._repeat_count - 1)
        if outcome is Outcome.WAITING:
            wait_s = max(self.settings.waiting_seconds, _SHARE * (now_s - self._since_s))
            return min(wait_s, self.settings.resync_seconds)
        return self.settings.resync_seconds

    def rest_s(self, outcome: Outcome) -> float:
        """Return how much of it no event cuts short: it may be the echo of the last action."""
        is_repeated = outcome is Outcome.CHANGED and self._repeat_count > 1
        is_rested = is_repeated or outcome is Outcome.FAILED
        return self.settings.waiting_seconds if is_rested else 0.0

    def _backoff_s(self, count: int) -> float:
        """Doubles from `waiting_seconds`, up to `retry_seconds_max`."""
        waiting_s = self.settings.waiting_seconds
        doubled_s = waiting_s * float(2 ** min(count - 1, 30))  # more changes nothing
        return max(waiting_s, min(doubled_s, self.settings.retry_seconds_max))
