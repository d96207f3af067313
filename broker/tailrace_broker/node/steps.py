"""Steps of the ring: one is asked for here, and answered when the applied state shows its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from tailrace_broker.core.ring.step_ends import StepEnd, StepReport, step_end
from tailrace_broker.model.commands import BeginStep, StepKind
from tailrace_broker.model.errors import RingRefusedError, StepNotTakenError
from tailrace_broker.model.ring_state import RingState, StepState
from tailrace_broker.node.ring import RingNode

# A step takes milliseconds once the replicas of its ranges are near; clients wait for 30 s.
STEP_S_MAX = 10.0
REMEMBERED = 16
# A step that was refused for these may be taken later.
PASSING = frozenset({"step-open", "no-leader", "replica-not-in-isr", "broker-not-registered"})


@dataclass(slots=True)
class _Seen:
    """A step as it was last seen; times are when this broker applied what began and ended it."""

    step: StepState
    began_s: float
    end: StepEnd | None = None
    ended_s: float = 0.0

    def times_ms(self, end: StepEnd) -> tuple[int, int | None]:
        """How long it took, and for how long of that appends were held, as its leaders know."""
        duration_ms = round((self.ended_s - self.began_s) * 1000)
        held_after_ms = end.held_after_ms
        pause_ms = None if held_after_ms is None else max(duration_ms - held_after_ms, 0)
        return duration_ms, pause_ms


class RingSteps:
    """The last steps that this process has seen; it asks for others."""

    def __init__(
        self,
        ring: RingNode,
        now_s: Callable[[], float] = monotonic,
        *,
        seconds_max: float = STEP_S_MAX,
    ) -> None:
        """`seconds_max`: how long the end of a step is waited for."""
        self._ring = ring
        self._now_s = now_s
        self._seconds_max = seconds_max
        self._seen: dict[int, _Seen] = {}
        self._changed = asyncio.Event()
        ring.on_applied.append(self._on_applied)

    def age_ms(self, step: int) -> int | None:
        """For how long this broker has known an open step; None: it does not know it."""
        seen = self._seen.get(step)
        return None if seen is None else round((self._now_s() - seen.began_s) * 1000)

    def times_ms(self, step: int) -> tuple[int | None, int | None]:
        """How long a step took, and held appends, that has ended; None: it was not seen here."""
        seen = self._seen.get(step)
        return (None, None) if seen is None or seen.end is None else seen.times_ms(seen.end)

    async def take(self, kind: StepKind, brokers_before: int) -> StepReport:
        """Have the ring take a step, and wait for its end.

        StepNotTakenError, RingRefusedError, NotAgreedError, NotReadyError.
        """
        known = self._ring.state
        first = 0 if known is None else known.next_step
        try:
            await self._ring.change(BeginStep(kind, brokers_before))
        except RingRefusedError as error:
            if error.refusal.reason not in PASSING:
                raise
            raise StepNotTakenError(error.detail, reason=error.refusal.reason) from None
        seen = self._begun(first, kind, brokers_before)
        await self._until_ended(seen)
        assert seen.end is not None
        if seen.end.why:
            raise StepNotTakenError(
                f"step {seen.step.id} was cancelled: {seen.end.why}; the ring is as it was",
                reason="cancelled",
                step=seen.step.id,
            )
        end = seen.end
        return StepReport(end.step, *seen.times_ms(end), end.sealed_partitions, end.new_partitions)

    async def _until_ended(self, seen: _Seen) -> None:
        try:
            async with asyncio.timeout(self._seconds_max):
                while seen.end is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            ranges = ", ".join(map(str, sorted({*seen.step.parents} - seen.step.sealed.keys())))
            raise StepNotTakenError(
                f"step {seen.step.id} has not ended within {self._seconds_max:.0f} s: it waits for "
                f"the leaders of ranges {ranges}; GET /v1/ring shows it",
                reason="under-way",
                step=seen.step.id,
            ) from None

    def _begun(self, first: int, kind: StepKind, brokers_before: int) -> _Seen:
        """The step that was asked for: the last such one of step `first` and later."""
        wanted = "split" if kind == "grow" else "join", brokers_before
        found = [
            seen
            for number, seen in self._seen.items()
            if number >= first and (seen.step.kind, seen.step.brokers_before) == wanted
        ]
        if not found:  # it has come and gone in what this broker took in at once
            raise StepNotTakenError(
                "the step has ended before this broker knew of it; GET /v1/ring shows how",
                reason="under-way",
            )
        return found[-1]

    def _on_applied(self, before: RingState | None, after: RingState) -> None:
        end = None if before is None else step_end(before, after)
        if end is not None and end.step.id in self._seen:
            seen = self._seen[end.step.id]
            seen.end, seen.ended_s = end, self._now_s()
            self._changed.set()
        if after.step is not None:
            known = self._seen.get(after.step.id)
            if known is None:
                self._seen[after.step.id] = _Seen(after.step, self._now_s())
                if len(self._seen) > REMEMBERED:
                    del self._seen[next(iter(self._seen))]
            else:
                known.step = after.step
