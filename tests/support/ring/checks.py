"""What must hold of a replicated state whatever was applied; asserted by tests and simulators."""

from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN, ring_ranges
from tailrace_broker.core.ring.commands import RECENT_MAX
from tailrace_broker.core.ring.topic_commands import TOPICS_MAX
from tailrace_broker.core.ring.topics import bounds_of, ids_of, open_ranges
from tailrace_broker.model.ring_state import (
    RangeState,
    Replica,
    RingState,
    Slices,
    StepState,
    TopicState,
)


def check_state(state: RingState) -> None:
    """AssertionError when the state breaks a rule. O(n) of all that is in it."""
    _check_brokers_and_ranges(state)
    _check_topics(state)


def _check_brokers_and_ranges(state: RingState) -> None:
    """All but the topics."""
    assert state.factor >= 1, state.factor
    assert len(state.recent) <= RECENT_MAX
    assert {*range(state.broker_count)} <= state.brokers.keys(), "a broker of the ring is unknown"
    for ordinal, broker in state.brokers.items():
        assert broker.ordinal == ordinal, broker
        assert broker.number > state.last_numbers.get(ordinal, 0), broker
        assert broker.incarnation not in state.retired, broker
    for range_id, each in state.ranges.items():
        assert each.id == range_id < state.next_range_id, each
        if each.is_sealed:
            _check_sealed(state, each)
        else:
            _check_open(state, each)
    _check_cover(state)
    if state.step is not None:
        _check_step(state, state.step)


def _check_topics(state: RingState) -> None:
    """Names, ids, and the lineage of every partition. O(partitions)."""
    assert len(state.topics) <= TOPICS_MAX
    ids = {topic.id for topic in state.topics.values()} | state.deleted.keys()
    assert len(ids) == len(state.topics) + len(state.deleted), "a topic's id is there twice"
    opened = {each.id for each in open_ranges(state)}
    for name, topic in state.topics.items():
        assert topic.name == name, topic
        held = [each.range_id for each in topic.slices] + [*topic.waits_for]
        assert len(held) == len({*held}), f"{name} has a range twice: {held}"
        assert opened <= {*held}, f"{name} lacks a range: {held}"
        for range_id in topic.waits_for:
            assert state.ranges[range_id].step is not None, f"{name} waits for {range_id}"
        _check_slices(state, topic)
        for slices in topic.slices:
            assert bool(slices.sealed_ends) == state.ranges[slices.range_id].is_sealed, slices
    for topic_id, deleted in state.deleted.items():
        assert deleted.topic.id == topic_id, deleted
        _check_slices(state, deleted.topic)


def _check_sealed(state: RingState, held: RangeState) -> None:
    assert held.sealed_epoch == held.epoch >= 1, held
    assert held.leader is None, held
    assert held.step is None, held
    assert not held.isr, held
    assert held.losses.keys() <= state.brokers.keys(), held
    assert {*held.complete} <= {*held.replicas}, held
    assert len({*held.complete}) == len(held.complete), held
    assert len({*held.replicas}) == len(held.replicas), held
    assert {*held.replicas} <= state.brokers.keys(), held
    inside = sum(each < state.broker_count for each in held.replicas)
    assert inside >= state.copies, f"{inside} brokers of the ring are to hold {held}"


def _check_open(state: RingState, led: RangeState) -> None:
    ordinals = [each.ordinal for each in led.isr]
    assert len({*ordinals}) == len(ordinals) >= state.floor, led
    assert {*ordinals} <= {*led.replicas}, led
    assert not led.complete, led
    for each in led.isr:
        if not each.is_ghost:
            _check_current(state, led, each)
    if led.leader is not None:
        assert led.epoch >= 1, led
        assert not led.leader.is_ghost, led
        assert led.leader in led.isr, led


def _check_current(state: RingState, led: RangeState, replica: Replica) -> None:
    now = led.replica_of(state.brokers[replica.ordinal])
    assert replica == now, f"{replica} in sync, and it is {now}"


def _check_cover(state: RingState) -> None:
    opened = open_ranges(state)
    planned = ring_ranges(state.broker_count)
    assert [(each.start, each.end) for each in opened] == [
        (each.start, each.end) for each in planned
    ], "the open ranges are not those of the ring"
    assert (opened[0].start, opened[-1].end) == (TOKEN_MIN, TOKEN_END)
    for each, wanted in zip(opened, planned, strict=True):
        assert each.natural_leader == wanted.ordinal, each
        assert each.length_units == wanted.length_units, each
        assert each.replicas == wanted.replicas[: state.factor], each
        in_step = state.step is not None and each.id in state.step.parents
        assert (each.step is not None) == in_step, each


def _check_step(state: RingState, step: StepState) -> None:
    assert step.id < state.next_step, step
    by = {"split": 1, "join": -1, "re-slice": 0}[step.kind]
    assert step.brokers_after == step.brokers_before + by, step
    assert step.brokers_before == state.broker_count, step
    assert step.sealed.keys() == step.prepared.keys() < {*step.parents}, step
    for each in step.parents:
        assert state.ranges[each].step == step.id, step
        assert not state.ranges[each].is_sealed, step
        assert state.ranges[each].leader is not None, step
    for child in step.children:
        assert child.id < state.next_range_id, step
        assert child.id not in state.ranges, step


def _check_slices(state: RingState, topic: TopicState) -> None:
    ids = [each for slices in topic.slices for each in ids_of(slices)]
    assert ids == sorted({*ids}), f"partitions of {topic.name}: {ids}"
    assert not ids or ids[-1] + 1 == topic.next_partition, f"partitions of {topic.name}: {ids}"
    ends: dict[int, int] = {}
    known = frozenset(ids)
    links_down, links_up = set(), set()
    for slices in topic.slices:
        _check_shape(state.ranges[slices.range_id], slices)
        ends |= zip(_ids(slices), slices.sealed_ends, strict=False)
        links_down |= _links(slices, slices.children)
        ups = _links(slices, slices.parents) | _links(slices, slices.inherited)
        links_up |= {(parent, child) for child, parent in ups if parent in known}
        for index, parents in enumerate(slices.parents):
            there = [ends[each] for each in parents if each in known]
            assert slices.first_offsets[index] >= max(there, default=0), slices
            is_whole = len(there) == len(parents) and index not in slices.gone
            assert not parents or not is_whole or slices.first_offsets[index] == max(there), slices
    assert links_down == links_up, f"lineage of {topic.name}"


def _check_shape(held: RangeState, slices: Slices) -> None:
    count = len(slices.starts)
    assert slices.starts[0] == held.start, slices
    assert all(start < end for start, end in bounds_of(slices, held.end)), slices
    lineage = slices.parents, slices.inherited, slices.children
    for each in (slices.first_offsets, slices.sealed_ends, slices.cuts, *lineage):
        assert len(each) in (0, count), slices
    for cuts, (start, end) in zip(slices.cuts, bounds_of(slices, held.end), strict=False):
        assert [*cuts] == sorted({*cuts}), slices
        assert all(start < cut < end for cut in cuts), slices
    assert len(slices.sealed_ends) == len(slices.children), slices
    assert len(slices.log_starts) in (0, len(slices.sealed_ends)), slices
    firsts = slices.firsts
    for index, end in enumerate(slices.sealed_ends):
        start = slices.log_starts[index] if slices.log_starts else firsts[index]
        assert firsts[index] <= start <= end, slices
        assert bool(slices.children[index]) == (index not in slices.gone), slices
    assert {*slices.gone} < {*range(len(slices.sealed_ends or (0,)))}, slices


def _ids(slices: Slices) -> range:
    return range(slices.first_partition, slices.first_partition + len(slices.starts))


def _links(slices: Slices, others: tuple[tuple[int, ...], ...]) -> set[tuple[int, int]]:
    return {(one, other) for one, each in zip(_ids(slices), others, strict=False) for other in each}
