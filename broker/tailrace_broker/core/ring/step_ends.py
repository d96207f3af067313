"""How a step of the ring has ended, read from the states before and after. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from tailrace_broker.model.ring_state import RingState, StepState


class StepReport(NamedTuple):
    """A step that is done. `duration_ms`: from its beginning to its end, as one broker saw them.

    `pause_ms`: the longest time for which a leader held appends; None: not known.
    """

    step: StepState
    duration_ms: int
    pause_ms: int | None
    sealed_partitions: int
    new_partitions: int


class StepEnd(NamedTuple):
    """`why`: it was cancelled; empty: it is done. `held_after_ms`: as of `EndedStep`."""

    step: StepState
    why: str
    sealed_partitions: int = 0
    new_partitions: int = 0
    held_after_ms: int | None = None


def step_end(before: RingState, after: RingState) -> StepEnd | None:
    """How the step of the state before has ended; None: there was none, or it is still open."""
    step = before.step
    if step is None or (after.step is not None and after.step.id == step.id):
        return None
    children = [each.id for each in step.children]
    last = after.last_step
    if last is not None and last.id == step.id:
        why, held_after_ms = last.why, last.held_after_ms
    else:  # an id is not given again
        is_done = all(each in after.ranges for each in children)
        why, held_after_ms = "" if is_done else "another step has ended since", None
    if why:
        return StepEnd(step, why)
    return StepEnd(
        step,
        "",
        sealed_partitions=partition_count(after, step.parents),
        new_partitions=partition_count(after, children),
        held_after_ms=held_after_ms,
    )


def participants(step: StepState, state: RingState) -> set[int]:
    """The brokers that hold what it changes, before or after."""
    touched = [*(state.ranges[each] for each in step.parents), *step.children]
    return {ordinal for each in touched for ordinal in each.replicas}


def partition_count(state: RingState, ranges: Iterable[int]) -> int:
    """Count the partitions that all topics have in these ranges. O(topics * ranges)."""
    wanted = frozenset(ranges)
    return sum(
        slices.partition_count
        for topic in state.topics.values()
        for slices in topic.slices
        if slices.range_id in wanted
    )
