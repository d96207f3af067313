"""What a ring would go through on its way to another size, step by step. Pure; nothing is changed.

The steps are those of `step_commands`: a plan is the state with each step done, as if every leader
were there and every copy were made between the steps.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from tailrace_broker.core.ring.arithmetic import UNITS
from tailrace_broker.core.ring.copies import with_copies
from tailrace_broker.core.ring.step_commands import changed_ranges
from tailrace_broker.core.ring.step_ends import partition_count
from tailrace_broker.core.ring.steps import plan_step
from tailrace_broker.model.ring_state import RangeState, RingState


class PlannedCopy(NamedTuple):
    """Broker `ordinal` is to copy the sealed range; `bytes`: None, its size is not known here.

    A range that the plan itself seals counts with what it has now.
    """

    range_id: int
    ordinal: int
    bytes: int | None


class PlannedStep(NamedTuple):
    """A step of a plan. `continued`: the range before and after, where its replicas change."""

    kind: str
    brokers_before: int
    brokers_after: int
    parents: tuple[RangeState, ...]
    children: tuple[RangeState, ...]
    continued: tuple[RangeState, RangeState] | None
    sealed_partitions: int
    new_partitions: int
    copies: tuple[PlannedCopy, ...]


def plan_ring(
    state: RingState, broker_count: int, sizes: Mapping[int, int]
) -> Iterator[PlannedStep]:
    """The steps from the ring as it is to one of `broker_count` brokers.

    `sizes`: bytes of ranges, where they are known. O(steps * ranges).
    """
    assert 1 <= broker_count <= UNITS, broker_count
    sizes, first_planned_id = {**sizes}, state.next_range_id
    while state.broker_count != broker_count:
        grows = state.broker_count < broker_count
        state, step = _step(state, 1 if grows else -1, sizes, first_planned_id)
        yield step


def _step(
    state: RingState, by: int, sizes: dict[int, int], first_planned_id: int
) -> tuple[RingState, PlannedStep]:
    """The state after it: its ranges are whole, its topics as before.

    Ranges from `first_planned_id` on are of the plan, and have the partitions that topics want.
    """
    count = state.broker_count
    plan = plan_step(before_count=count, after_count=count + by)
    parents, children = changed_ranges(state, plan)
    ended = {
        each.id: replace(each, leader=None, isr=(), sealed_epoch=1, complete=each.replicas)
        for each in parents
    }
    after = with_copies(
        replace(
            state,
            broker_count=count + by,
            ranges={**state.ranges, **ended, **{each.id: each for each in children}},
            next_range_id=state.next_range_id + len(children),
        )
    )
    sizes |= dict.fromkeys((each.id for each in children), 0)
    per_range = sum(each.settings.partitions_per_range for each in state.topics.values())
    continued = None
    if plan.continued is not None and len(children) > len(plan.children):
        start = plan.continued[0].start
        continued = (
            next(each for each in parents if each.start == start),
            next(each for each in children if each.start == start),
        )
    step = PlannedStep(
        "split" if by > 0 else "join",
        count,
        count + by,
        tuple(parents),
        children,
        continued,
        partition_count(state, (each.id for each in parents))
        + sum(each.id >= first_planned_id for each in parents) * per_range,
        len(children) * per_range,
        tuple(_copies(state, after, sizes)),
    )
    return after, step


def _copies(before: RingState, after: RingState, sizes: Mapping[int, int]) -> Iterator[PlannedCopy]:
    """Who is to hold which sealed range from this step on."""
    for range_id, held in after.ranges.items():
        known = before.ranges.get(range_id)
        if held.is_sealed and known is not None:
            for ordinal in held.replicas:
                if ordinal not in known.replicas:
                    yield PlannedCopy(range_id, ordinal, sizes.get(range_id))
