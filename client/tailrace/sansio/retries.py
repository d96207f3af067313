"""Sans-IO: whether, and when, a produce request is sent again. All producers go by it.

A retry is the same request under the same sequence, which the broker stores once; without a
sequence only what was surely not stored is sent again.
"""

from tailrace.errors import ProblemError, TailraceError

# Longer than a broker takes to start again.
PATIENCE_S = 30.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
# What a proxy answers in the place of a broker that is away; its pages have no problem's type.
_PROXY_STATUSES = frozenset({502, 503, 504})


def first_sequence(id: str | None, now_us: int) -> int:
    """Of a producer that begins now. A name may have been used by an earlier run of the program,
    whose numbers must not come again: so count from the clock, which requests do not overtake.
    """
    return 0 if id is None else now_us


class Retries:
    """Of one request. `deadline_s` is by the caller's clock, as each `now_s`.

    `is_numbered`: it names its producer and sequence. Unless it `is_patient` a request that met no
    broker at all is given up at once: for a program that has not stored anything yet.
    """

    def __init__(self, deadline_s: float, *, is_numbered: bool, is_patient: bool) -> None:
        self.deadline_s = deadline_s
        self._is_numbered = is_numbered
        self._is_patient = is_patient
        self._pause_s = PAUSE_S_MIN
        self.may_be_stored = False

    def pause_s(self, error: TailraceError, now_s: float) -> float | None:
        """How long to wait before the next attempt; None: the error is the outcome.

        The error's `write_attempted` then holds for all attempts together.
        """
        is_proxy = _is_proxys(error)
        error.write_attempted = error.write_attempted or is_proxy or self.may_be_stored
        self.may_be_stored = error.write_attempted
        is_safe = self._is_numbered or not self.may_be_stored
        is_worth_it = (error.retriable or is_proxy) and (self.may_be_stored or self._is_patient)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_S_MAX)
        return pause_s if is_safe and is_worth_it and now_s + pause_s <= self.deadline_s else None


def _is_proxys(error: TailraceError) -> bool:
    return (
        isinstance(error, ProblemError)
        and error.type == "about:blank"
        and error.status in _PROXY_STATUSES
    )
