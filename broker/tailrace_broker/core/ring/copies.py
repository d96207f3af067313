"""Copies of sealed ranges: who is to hold one, who does, and who need not any more.

A sealed range never changes, so a copy of it is made from any whole one, and no leader is needed.
`RangeState.replicas` of a sealed range are to hold it, `complete` are those of them that do. With
the end of each step others take the places of brokers that are not of the ring any more, and a
ring that has grown below its factor holds what is sealed as often as what is written.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tailrace_broker.core.ring.arithmetic import Range, find_slice, ring_ranges, zone_class
from tailrace_broker.model.commands import Completed, DropCopy
from tailrace_broker.model.ring_state import RangeState, Refusal, RingState, TopicState


def completed(state: RingState, command: Completed) -> RingState | Refusal:
    """The broker's copy is whole: it may be read, and counts when another one is dropped."""
    held = _sealed_range(state, command.range_id)
    if isinstance(held, Refusal):
        return held
    broker = state.brokers.get(command.ordinal)
    number = (command.registration, command.losses)
    if broker is None or held.replica_of(broker).number != number:
        return Refusal(
            "stale-registration",
            f"broker {command.ordinal} has registered again, has found damage, or a topic was "
            "restored since",
        )
    if command.ordinal not in held.replicas:
        return Refusal(
            "not-a-replica", f"broker {command.ordinal} is not to hold range {held.id} any more"
        )
    if command.ordinal in held.complete:
        return state
    whole = replace(held, complete=(*held.complete, command.ordinal))
    return without_deleted(_with_range(state, whole), held.id)


def drop_copy(state: RingState, command: DropCopy) -> RingState | Refusal:
    """The broker need not hold it any more: enough brokers of the ring do.

    It has another number in the range from now on: it may be wanted there again.
    """
    held = _sealed_range(state, command.range_id)
    if isinstance(held, Refusal):
        return held
    if command.ordinal not in held.replicas:
        return Refusal("not-a-replica", f"broker {command.ordinal} is not to hold range {held.id}")
    others = _complete_in_ring(state, held, but=command.ordinal)
    if others < state.copies:
        return Refusal(
            "too-few-copies",
            f"{others} other brokers of the ring hold range {held.id}; {state.copies} must",
        )
    count = held.losses.get(command.ordinal, 0) + 1
    dropped = without_replica(held, command.ordinal)
    dropped = replace(dropped, losses={**dropped.losses, command.ordinal: count})
    return without_deleted(_with_range(state, dropped), held.id)


def live_copies(state: RingState, held: RangeState) -> list[int]:
    """The brokers with whole copies that are registered and not fenced, in replica order."""
    whole = (state.brokers.get(each) for each in held.replicas if each in held.complete)
    return [each.ordinal for each in whole if each is not None and not each.is_fenced]


def others_heard(state: RingState, held: RangeState, ordinal: int) -> list[int]:
    """The other brokers that have a copy, or make one, and are not fenced, in replica order."""
    there = (state.brokers.get(each) for each in held.replicas if each != ordinal)
    return [each.ordinal for each in there if each is not None and not each.is_fenced]


def without_deleted(state: RingState, range_id: int) -> RingState:
    """Copies are of topics that there are: those in the trash cannot be restored any more."""
    lacking = {
        key: replace(each, topic=replace(each.topic, lacks_copies=True))
        for key, each in state.deleted.items()
        if any(slices.range_id == range_id for slices in each.topic.slices)
    }
    return replace(state, deleted={**state.deleted, **lacking}) if lacking else state


def begun_again(state: RingState, topic: TopicState) -> RingState:
    """Have copies that are under way begin again: they may lack the topic that was restored.

    Their brokers get another number in the range, so what they are about to say does not hold.
    """
    again = {}
    for slices in topic.slices:
        held = state.ranges[slices.range_id]
        lacking = {*held.replicas} - {*held.complete}
        if held.is_sealed and lacking:
            losses = {each: held.losses.get(each, 0) + 1 for each in sorted(lacking)}
            again[held.id] = replace(held, losses={**held.losses, **losses})
    return replace(state, ranges={**state.ranges, **again}) if again else state


def without_replica(held: RangeState, ordinal: int) -> RangeState:
    """A sealed range that the broker is not to hold any more."""
    return replace(
        held,
        replicas=tuple(each for each in held.replicas if each != ordinal),
        complete=tuple(each for each in held.complete if each != ordinal),
        losses={key: count for key, count in held.losses.items() if key != ordinal},
    )


def with_copies(state: RingState) -> RingState:
    """Each sealed range is to be held by as many brokers of the ring as a new one. O(ranges)."""
    planned = ring_ranges(state.broker_count)
    starts = [each.start for each in planned]
    extended = {}
    for held in state.ranges.values():
        if held.is_sealed:
            replicas = _replicas_after(state, held, planned, starts)
            if replicas != held.replicas:
                extended[held.id] = replace(held, replicas=replicas)
    return replace(state, ranges={**state.ranges, **extended}) if extended else state


def copies_to_drop(state: RingState) -> Iterator[DropCopy]:
    """The copies of brokers that have left the ring, as soon as enough others are whole."""
    for held in state.ranges.values():
        if held.is_sealed:
            for ordinal in held.replicas:
                is_outside = ordinal >= state.broker_count
                if is_outside and _complete_in_ring(state, held, but=ordinal) >= state.copies:
                    yield DropCopy(held.id, ordinal)


def copies_to_make(state: RingState, ordinal: int) -> list[RangeState]:
    """The sealed ranges that the broker is to hold, and does not yet, by id."""
    return [
        held
        for _, held in sorted(state.ranges.items())
        if held.is_sealed and ordinal in held.replicas and ordinal not in held.complete
    ]


def _replicas_after(
    state: RingState, held: RangeState, planned: Sequence[Range], starts: Sequence[int]
) -> tuple[int, ...]:
    """Clockwise from its tokens the next brokers, of zone classes without a copy if there are."""
    replicas = held.replicas
    inside = [each for each in replicas if each < state.broker_count]
    first = find_slice(starts, held.start)
    order = [each.ordinal for each in (*planned[first:], *planned[:first])]
    while len(inside) < state.copies:
        classes = {zone_class(each) for each in inside}
        free = [each for each in order if each not in inside]
        added = next((each for each in free if zone_class(each) not in classes), free[0])
        inside.append(added)
        replicas = (*replicas, added)
    return replicas


def _sealed_range(state: RingState, range_id: int) -> RangeState | Refusal:
    held = state.ranges.get(range_id)
    if held is None:
        return Refusal("range-not-found", f"there is no range {range_id}")
    if not held.is_sealed:
        return Refusal("range-open", f"range {range_id} is open: its leader says who has it")
    return held


def _complete_in_ring(state: RingState, held: RangeState, *, but: int) -> int:
    return sum(each < state.broker_count and each != but for each in held.complete)


def _with_range(state: RingState, changed: RangeState) -> RingState:
    return replace(state, ranges={**state.ranges, changed.id: changed})
