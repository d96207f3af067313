"""What a follower's log may be after a crash, by what its leader asked for and was told.

Writes and cuts end in the order in which they were asked for. Those that were reported count. Of
what was under way any first part may be done, and of the next one a part: the first batches of a
write; of a cut, the log down to anywhere above its end, or all of it. A loss of power takes any
tail of what was not durable besides.

A write or a cut that failed is not in the log. Until the next one of the log has ended well, a
start may still find it, or a part of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.simulation.world import Violation


class ModelBatch(NamedTuple):
    """A batch that a leader sent."""

    base_offset: int
    end_offset: int
    epoch: int
    digest: bytes  # of what is stored
    sequence: int


@dataclass(slots=True)
class Operation:
    """Append `batches`, or (None) cut at `end`."""

    batches: Sequence[ModelBatch] | None
    end: int = 0
    epoch: int = 0
    is_reset: bool = False
    is_in_doubt: bool = False  # what it was to follow has failed


@dataclass(slots=True)
class ModelLog:
    """`batches` from `start` on: all that was reported. `under_way`: what was not."""

    start: int = 0
    base_epoch: int = 0  # of the batch before `start`
    start_max: int = 0  # a trim to here has begun
    batches: list[ModelBatch] = field(default_factory=list)
    durable_end: int = 0
    under_way: list[Operation] = field(default_factory=list)
    failed: list[Operation] = field(default_factory=list)  # since another has ended well

    @property
    def end(self) -> int:
        """Behind the last batch."""
        return self.batches[-1].end_offset if self.batches else self.start

    @property
    def last_epoch(self) -> int:
        """Of the last batch."""
        return self.batches[-1].epoch if self.batches else self.base_epoch

    def expected(self) -> "ModelLog":
        """The log once all that is under way is done."""
        log = self.copy()
        for operation in self.under_way:
            log.apply(operation)
        return log

    def copy(self) -> "ModelLog":
        """Another that changes on its own."""
        return replace(
            self,
            batches=list(self.batches),
            under_way=list(self.under_way),
            failed=list(self.failed),
        )

    def apply(self, operation: Operation) -> None:
        """Do it."""
        if operation.batches is not None:
            self.batches += operation.batches
            return
        if operation.is_reset:
            self.batches, self.start, self.base_epoch = [], operation.end, operation.epoch
            self.start_max = self.durable_end = operation.end
        self.batches = [each for each in self.batches if each.end_offset <= operation.end]
        self.durable_end = min(self.durable_end, operation.end)

    # --- notes ---

    def asked(self, operation: Operation) -> None:
        """It may be done from now on."""
        self.under_way.append(operation)

    def done(self, count: int) -> None:
        """So many of those under way are."""
        for _ in range(count):
            self.apply(self.under_way.pop(0))
            self.failed = []

    def refused(self) -> None:
        """The last that was asked for: nothing of it is begun."""
        self.under_way.pop()

    def passed_over(self) -> Operation:
        """The first of those under way: nothing of it is begun. Others may have relied on it."""
        for operation in self.under_way[1:]:
            operation.is_in_doubt = True
        return self.under_way.pop(0)

    def has_failed(self) -> None:
        """The first of those under way."""
        self.failed.append(self.passed_over())

    @property
    def cut_end(self) -> int | None:
        """The lowest end of all cuts that are under way, or have failed."""
        cuts = [each.end for each in (*self.failed, *self.under_way) if each.batches is None]
        return min(cuts, default=None)

    def flushed(self, end: int) -> None:
        """No loss of power takes what is below."""
        self.durable_end = max(self.durable_end, min(end, self.end))

    def trimming(self, start: int) -> None:
        """What is below may go."""
        self.start_max = max(self.start_max, start)

    def trimmed(self, start: int) -> None:
        """What is below is gone."""
        kept = [each for each in self.batches if each.end_offset > start]
        gone = self.batches[: len(self.batches) - len(kept)]
        self.base_epoch = max((each.epoch for each in gone), default=self.base_epoch)
        self.start, self.batches = start, kept

    def recovered(self, found: "ModelLog") -> None:
        """After a crash this is all, durably."""
        self.start, self.start_max, self.base_epoch = found.start, found.start_max, found.base_epoch
        self.batches, self.durable_end = list(found.batches), found.durable_end
        self.under_way, self.failed = [], []

    # --- after a crash ---

    def check(self, found: "ModelLog", *, lost_power: bool) -> None:
        """Violation: it is nothing that a crash may leave."""
        reasons = []
        for state, least, is_exact in self._states():
            reason = _difference(state, least, is_exact, found, lost_power=lost_power)
            if reason is None:
                return
            reasons.append(reason)
        raise Violation("; or ".join(reasons))

    def _states(self) -> Iterator[tuple["ModelLog", int, bool]]:
        """What may be there, a prefix of it down to an end at least; or all of it."""
        state = self.copy()
        yield from self._after_failures()
        for operation in (*self.under_way, None):
            if operation is None:
                yield state, state.end, True
                return
            cuts = [each.end for each in state.failed if each.batches is None]
            least = min([state.end, *cuts])
            if operation.batches is not None:
                longer = state.copy()
                longer.apply(operation)
                yield longer, least, False
            elif operation.is_reset:
                yield state.copy(), state.start, False
            else:
                yield state.copy(), min(operation.end, least), False
            state.apply(operation)
            state.failed = []

    def _after_failures(self) -> Iterator[tuple["ModelLog", int, bool]]:
        """What failed writes and cuts may have left, by themselves and one behind the other."""
        if not self.failed:
            return
        least, longer = self.end, self.copy()
        for operation in self.failed:
            if operation.batches is None:
                least = min(least, self.start if operation.is_reset else operation.end)
        yield self.copy(), least, least == self.end
        under_way = self.under_way if longer.failed[-1].batches is not None else []
        # Some of one write may be answered later.
        for index, operation in enumerate((*self.failed, *under_way)):
            follows = operation.batches and operation.batches[0].base_offset == longer.end
            if index >= len(self.failed) and not follows:
                return
            if operation.batches is None:
                reset = self.copy()
                reset.apply(operation)
                yield reset, reset.end, True
                continue
            longer = longer if follows else self.copy()
            longer.apply(operation)
            yield longer.copy(), least, False


def _difference(
    state: ModelLog, least: int, is_exact: bool, found: ModelLog, *, lost_power: bool
) -> str | None:
    """Why `found` is not this state, or a part of it."""
    if not min(state.start, state.start_max) <= found.start <= max(state.start, state.start_max):
        return f"it starts at {found.start}, not at {state.start} to {state.start_max}"
    if lost_power:
        least = min(least, max(state.durable_end, state.start))
    expected = [each for each in state.batches if each.end_offset > found.start]
    count = len(found.batches)
    if found.batches != expected[:count]:
        wrong = next(
            (ours for ours, theirs in zip(found.batches, expected, strict=False) if ours != theirs),
            found.batches[min(len(expected), count - 1)],
        )
        return f"offset {wrong.base_offset} of epoch {wrong.epoch} should not be there"
    if found.end < max(least, found.start):
        return f"it ends at {found.end}, before {least}"
    if is_exact and not lost_power and found.end != max(state.end, found.start):
        return f"it ends at {found.end}, not at {state.end}"
    return None
