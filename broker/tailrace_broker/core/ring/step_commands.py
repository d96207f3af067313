"""A step of the ring: its ranges are sealed one by one, with the last one it is done, or it ends.

The leaders of its ranges report the ends that they are sealed with. They append nothing from then
on until the step is done or cancelled, or another epoch has begun.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.core.ring.arithmetic import UNITS, Range
from tailrace_broker.core.ring.copies import with_copies
from tailrace_broker.core.ring.steps import Step, overlaps, plan_step
from tailrace_broker.core.ring.topics import (
    bounds_of,
    slice_starts,
    slices_in,
    with_partitions,
)
from tailrace_broker.model.commands import AbortStep, BeginStep, Sealed
from tailrace_broker.model.ring_state import (
    EndedStep,
    LineageChange,
    RangeState,
    Refusal,
    Replica,
    RingState,
    Slices,
    StepState,
    TopicState,
)

Ends = Mapping[UUID, tuple[int, ...]]


def begin_step(state: RingState, command: BeginStep) -> RingState | Refusal:
    """The ranges that it changes are to be sealed by their leaders."""
    count = state.broker_count
    if state.step is not None:
        return step_open(state.step)
    if command.brokers_before != count:
        return Refusal(
            "stale-broker-count", f"the ring has {count} brokers, not {command.brokers_before}"
        )
    after_count = count + 1 if command.kind == "grow" else count - 1
    if not 1 <= after_count <= UNITS:
        return Refusal("invalid-parameter", f"a ring has 1 to {UNITS} brokers")
    plan = plan_step(before_count=count, after_count=after_count)
    parents, children = changed_ranges(state, plan)
    leaving = count - 1 if command.kind == "shrink" else None
    refusal = why_not_ready(state, parents, children, leaving=leaving)
    if refusal is not None:
        return refusal
    kind: LineageChange = "split" if command.kind == "grow" else "join"
    return with_step(state, kind, after_count, parents, children)


def step_open(step: StepState) -> Refusal:
    """What another step is refused with."""
    return Refusal("step-open", f"step {step.id} is under way; wait for its end")


def why_not_ready(
    state: RingState,
    parents: Iterable[RangeState],
    children: Iterable[RangeState],
    *,
    leaving: int | None = None,
) -> Refusal | None:
    """Why these cannot be sealed and followed now; None: they can. `leaving`: a broker that may
    lack what the parents have.
    """
    return _check_ready(state, parents, leaving) or _check_joining(state, children)


def with_step(
    state: RingState,
    kind: LineageChange,
    brokers_after: int,
    parents: Sequence[RangeState],
    children: tuple[RangeState, ...],
) -> RingState:
    """The state with a step begun."""
    begun = StepState(
        state.next_step,
        kind,
        state.broker_count,
        brokers_after,
        tuple(each.id for each in parents),
        children,
    )
    return replace(
        state,
        ranges={**state.ranges, **{each.id: replace(each, step=begun.id) for each in parents}},
        next_range_id=state.next_range_id + len(children),
        step=begun,
        next_step=begun.id + 1,
    )


def seal(state: RingState, command: Sealed) -> RingState | Refusal:
    """The ends of one range; with those of the last one the children come into being."""
    step = state.step
    if step is None or step.id != command.step:
        return Refusal("step-not-open", f"step {command.step} has ended")
    if command.range_id not in step.parents:
        return Refusal("range-not-found", f"step {step.id} does not change {command.range_id}")
    sealed = state.ranges[command.range_id]
    if sealed.epoch != command.epoch:
        return Refusal(
            "stale-epoch", f"range {sealed.id} is in epoch {sealed.epoch}, not {command.epoch}"
        )
    if sealed.id in step.sealed:
        return Refusal(
            "already-sealed", f"range {sealed.id} has reported its ends in step {step.id}"
        )
    refusal = _check_ends(state, sealed, command.ends) or _check_prepared(state, step, command)
    if refusal is not None:
        return refusal
    reported = replace(
        step,
        sealed={**step.sealed, sealed.id: command.ends},
        prepared={**step.prepared, sealed.id: command.prepared},
        held_after_ms=command.held_after_ms
        if step.held_after_ms is None
        else min(step.held_after_ms, command.held_after_ms),
    )
    if len(reported.sealed) < len(reported.parents):
        return replace(state, step=reported)
    return _done(state, reported)


def abort_step(state: RingState, command: AbortStep) -> RingState | Refusal:
    """As if it had not begun; the ids that it gave are not given again."""
    if state.step is None or state.step.id != command.step:
        return Refusal("step-not-open", f"step {command.step} has ended")
    return cancel_step(state, _why_late(state, state.step, command))


def cancel_step(state: RingState, why: str) -> RingState:
    """Its ranges take events again, and topics that have waited get partitions in them."""
    assert state.step is not None
    freed = {each: replace(state.ranges[each], step=None) for each in state.step.parents}
    by_token = sorted(freed.values(), key=lambda each: each.start)
    topics = {
        name: with_partitions(topic, by_token)
        for name, topic in state.topics.items()
        if topic.waits_for
    }
    return replace(
        state,
        ranges={**state.ranges, **freed},
        topics={**state.topics, **topics},
        step=None,
        last_step=_ended(state.step, why),
    )


def new_range(range_id: int, planned: Range, factor: int) -> RangeState:
    """A range of a ring whose ranges have so many copies; nobody leads it, nobody is in sync."""
    return RangeState(
        range_id,
        planned.start,
        planned.end,
        planned.length_units,
        planned.ordinal,
        planned.replicas[:factor],
        (),
    )


def changed_ranges(state: RingState, plan: Step) -> tuple[list[RangeState], tuple[RangeState, ...]]:
    """The ranges that end and those that follow, both in token order."""
    before, after = list(plan.parents), list(plan.children)
    if plan.continued is not None:
        old, new = plan.continued
        if old.replicas[: state.factor] != new.replicas[: state.factor]:
            before.append(old)
            after.append(new)
    by_start = {each.start: each for each in state.ranges.values() if not each.is_sealed}
    parents = [by_start[each.start] for each in sorted(before, key=_start)]
    children = tuple(
        new_range(state.next_range_id + index, each, state.factor)
        for index, each in enumerate(sorted(after, key=_start))
    )
    return parents, children


# --- begin ---


def _start(planned: Range) -> int:
    return planned.start


def _check_ready(
    state: RingState, parents: Iterable[RangeState], leaving: int | None
) -> Refusal | None:
    for each in parents:
        if each.leader is None or state.brokers[each.leader.ordinal].is_fenced:
            return Refusal("no-leader", f"range {each.id} has no leader; wait until it has one")
        in_sync = {replica.ordinal for replica in each.isr if not replica.is_ghost}
        missing = {*each.replicas} - in_sync - {leaving}
        if missing:
            return Refusal(
                "replica-not-in-isr",
                f"broker {min(missing)} has not caught up in range {each.id}; wait until it has",
            )
    return None


def _check_joining(state: RingState, children: Iterable[RangeState]) -> Refusal | None:
    for ordinal in sorted({each for child in children for each in child.replicas}):
        broker = state.brokers.get(ordinal)
        if broker is None or broker.is_fenced:
            return Refusal(
                "broker-not-registered", f"broker {ordinal} is not there; start it first"
            )
    return None


# --- abort ---


def _why_late(state: RingState, step: StepState, command: AbortStep) -> str:
    """Which range the others waited for, and why: as its leader says, else as the state does."""
    late = [each for each in step.parents if each not in step.sealed]
    range_id = command.range_id if command.range_id in late else late[0]
    is_own = range_id == command.range_id
    why = command.why if is_own else _what_it_lacks(state.ranges[range_id], step)
    return f"range {range_id} could not be sealed in time: {why}"


def _what_it_lacks(late: RangeState, step: StepState) -> str:
    in_sync = {replica.ordinal for replica in late.isr if not replica.is_ghost}
    missing = {*late.replicas} - in_sync - step.leaving
    if missing:
        return f"broker {min(missing)} is not in sync"
    assert late.leader is not None, late.id  # as it had when the step began; else that was ended
    return f"its leader, broker {late.leader.ordinal}, has not reported its ends"


def _ended(step: StepState, why: str = "") -> EndedStep:
    return EndedStep(
        step.id, step.kind, step.brokers_before, step.brokers_after, why, step.held_after_ms
    )


# --- sealed ---


def _check_ends(state: RingState, sealed: RangeState, ends: Ends) -> Refusal | None:
    assert sealed.leader is not None, sealed.id  # its registering would have ended the step
    expected = slices_in(state, sealed.id)
    if ends.keys() != expected.keys() or any(
        len(ends[topic_id]) != len(each.starts) for topic_id, each in expected.items()
    ):
        return Refusal(
            "wrong-partitions", f"the ends are not those of the partitions of range {sealed.id}"
        )
    for topic_id, each in expected.items():
        if any(end < first for end, first in zip(ends[topic_id], each.firsts, strict=True)):
            return Refusal("invalid-parameter", f"an end is below the first offset: {topic_id}")
    return None


def _check_prepared(state: RingState, step: StepState, command: Sealed) -> Refusal | None:
    sealed = state.ranges[command.range_id]
    for each in command.prepared:
        broker = state.brokers.get(each.ordinal)
        if broker is None or sealed.replica_of(broker) != each:
            return Refusal(
                "stale-registration", f"broker {each.ordinal} has registered again since it said so"
            )
    floor = _floor_after(state, step)
    for child in step.children:
        if _overlap(child, sealed) and len(_first_isr(child, [command.prepared])) < floor:
            return Refusal(
                "not-prepared",
                f"{floor} of brokers {child.replicas} must be prepared to hold range {child.id}",
            )
    return None


def _floor_after(state: RingState, step: StepState) -> int:
    return min(2, state.factor, step.brokers_after)


def _overlap(one: RangeState, other: RangeState) -> bool:
    return one.start < other.end and other.start < one.end


def _first_isr(child: RangeState, prepared: Iterable[tuple[Replica, ...]]) -> tuple[Replica, ...]:
    """Those of its replicas that were prepared by the leaders of all its parents.

    A child has lost nothing yet.
    """
    by_parent = ({each._replace(losses=0) for each in replicas} for replicas in prepared)
    common = set.intersection(*by_parent)
    by_ordinal = {each.ordinal: each for each in common}
    return tuple(by_ordinal[each] for each in child.replicas if each in by_ordinal)


# --- done ---


def _done(state: RingState, step: StepState) -> RingState | Refusal:
    parents = [state.ranges[each] for each in step.parents]
    children = []
    for each in step.children:
        mine = [parent for parent in parents if _overlap(each, parent)]
        isr = _first_isr(each, [step.prepared[parent.id] for parent in mine])
        if len(isr) < _floor_after(state, step):
            return Refusal("not-prepared", f"too few are prepared by all parents of {each.id}")
        children.append(_born(state, each, mine, isr))
    lineage = _Lineage(parents, children, step.sealed)
    sealed = {each.id: _sealed(each) for each in parents}
    born = {each.id: each for each in children}
    after = replace(
        state,
        broker_count=step.brokers_after,
        ranges={**state.ranges, **sealed, **born},
        topics={name: lineage.follow(topic) for name, topic in state.topics.items()},
        step=None,
        last_step=_ended(step),
    )
    return with_copies(after)


def _born(
    state: RingState, child: RangeState, parents: Iterable[RangeState], isr: tuple[Replica, ...]
) -> RangeState:
    """Led by its natural leader, else by who led a parent, else by who takes it over."""
    led = [each.leader.ordinal for each in parents if each.leader is not None]
    able = {each.ordinal: each for each in isr if not state.brokers[each.ordinal].is_fenced}
    leader = next((able[each] for each in (child.natural_leader, *led) if each in able), None)
    epoch = max(each.epoch for each in parents)
    return replace(child, isr=isr, leader=leader, epoch=epoch + (leader is not None))


def _sealed(parent: RangeState) -> RangeState:
    return replace(
        parent,
        isr=(),
        version=parent.version + 1,
        leader=None,
        step=None,
        sealed_epoch=parent.epoch,
        complete=tuple(each.ordinal for each in parent.isr if not each.is_ghost),
    )


class _Lineage:
    """Which slices follow which; topics of the same slices get the same."""

    def __init__(
        self,
        parents: Sequence[RangeState],
        children: Sequence[RangeState],
        sealed: Mapping[int, Ends],
    ) -> None:
        """Parents and children in token order."""
        self._parents = parents
        self._children = children
        self._sealed = sealed
        self._known: dict[
            tuple[int, tuple[tuple[int, ...], ...]],
            tuple[list[tuple[int, ...]], list[tuple[int, ...]]],
        ] = {}

    def follow(self, topic: TopicState) -> TopicState:
        """The topic with its partitions in the parents sealed, and such in the children."""
        if topic.waits_for:
            return with_partitions(topic, self._children)
        by_range = {each.range_id: each for each in topic.slices}
        old = [by_range[each.id] for each in self._parents]
        parents_of, children_of = self._links(topic.settings.partitions_per_range, old)
        old_ids = _ids(old)
        old_ends = [end for each in old for end in self._sealed[each.range_id][topic.id]]
        new_ids = range(topic.next_partition, topic.next_partition + len(parents_of))
        after: dict[int, Slices] = {}
        position = 0
        for each in old:
            links = children_of[position : position + len(each.starts)]
            after[each.range_id] = replace(
                each,
                sealed_ends=self._sealed[each.range_id][topic.id],
                children=tuple(tuple(new_ids[index] for index in one) for one in links),
            )
            position += len(each.starts)
        slices = [after.get(each.range_id, each) for each in topic.slices]
        slices += self._new_slices(topic, old, parents_of, old_ids, old_ends)
        return replace(topic, slices=tuple(slices), next_partition=new_ids.stop)

    def _new_slices(
        self,
        topic: TopicState,
        old: Sequence[Slices],
        parents_of: list[tuple[int, ...]],
        old_ids: list[int],
        old_ends: list[int],
    ) -> list[Slices]:
        count = topic.settings.partitions_per_range
        met = sorted({*chain.from_iterable((*each.starts, *chain(*each.cuts)) for each in old)})
        slices = []
        for number, child in enumerate(self._children):
            links = parents_of[number * count : (number + 1) * count]
            cuts = tuple(_between(met, *bounds) for bounds in _slice_bounds(child, count))
            slices.append(
                Slices(
                    child.id,
                    topic.next_partition + number * count,
                    slice_starts(child.start, child.length_units, count),
                    tuple(max(old_ends[index] for index in one) for one in links),
                    tuple(tuple(old_ids[index] for index in one) for one in links),
                    cuts=cuts if any(cuts) else (),
                )
            )
        return slices

    def _links(
        self, count: int, old: Sequence[Slices]
    ) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """By slice of the children the parents, and the other way round; as indices."""
        shape = (count, tuple(each.starts for each in old))
        if shape not in self._known:
            before = list(
                chain.from_iterable(
                    bounds_of(each, parent.end)
                    for each, parent in zip(old, self._parents, strict=True)
                )
            )
            after = list(
                chain.from_iterable(_slice_bounds(child, count) for child in self._children)
            )
            self._known[shape] = overlaps(after, before), overlaps(before, after)
        return self._known[shape]


def _ids(slices: Iterable[Slices]) -> list[int]:
    return [each.first_partition + index for each in slices for index in range(len(each.starts))]


def _between(ordered: Sequence[int], start: int, end: int) -> tuple[int, ...]:
    """Return those inside of `[start, end)`, without the start."""
    return tuple(ordered[bisect_right(ordered, start) : bisect_left(ordered, end)])


def _slice_bounds(child: RangeState, count: int) -> list[tuple[int, int]]:
    starts = slice_starts(child.start, child.length_units, count)
    return bounds_of(Slices(child.id, 0, starts), child.end)
