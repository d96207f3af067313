"""A sealed range of which no whole copy is left: a person accepts what is lost of it.

The copy that is named counts as whole from then on, and the others are made from it: the offsets
that it lacks are missing in all of them, and readers learn that this was accepted. So they do of a
range that takes events and has one copy, whose damage nobody can heal.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from tailrace_broker.core.ring.copies import live_copies, without_deleted
from tailrace_broker.core.ring.topics import slices_in
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import (
    LostOffsets,
    RangeState,
    Refusal,
    Registration,
    RingState,
)

# What the ring keeps of a loss in words.
_SHOWN_MAX = 10
# Of a log that takes events.
_NO_END = 2**63 - 1


def accept_copy(
    state: RingState, held: RangeState, broker: Registration, lost: Sequence[LostOffsets]
) -> RingState | Refusal:
    """What this broker has of a sealed range is a whole copy, without what is `lost`."""
    whole = live_copies(state, held)
    others = [each for each in whole if each != broker.ordinal]
    if others or (whole and not lost):
        return Refusal(
            "not-lost",
            f"broker {(others or whole)[0]} has all of range {held.id}, as far as it is known",
        )
    refusal = _check_lost(state, held, lost)
    if refusal is not None:
        return refusal
    accepted = tuple(sorted({*held.accepted, *lost}))
    # What the others have said, or are about to, was of a copy that had more, or less.
    after = {each: held.losses.get(each, 0) + 1 for each in held.replicas if each != broker.ordinal}
    held = replace(
        held, complete=(broker.ordinal,), accepted=accepted, losses={**held.losses, **after}
    )
    after_all = _with_loss(state, held, f"range {held.id}, sealed", broker, lost)
    return without_deleted(after_all, held.id)


def accept_damage(
    state: RingState, led: RangeState, broker: Registration, lost: Sequence[LostOffsets]
) -> RingState | Refusal:
    """What is `lost` of the only copy of a range that takes events is lost."""
    if len(led.replicas) > 1:
        return Refusal(
            "not-lost", f"other brokers have copies of range {led.id}; damage is fetched from them"
        )
    refusal = _check_lost(state, led, lost)
    if refusal is not None:
        return refusal
    led = replace(led, accepted=tuple(sorted({*led.accepted, *lost})))
    return _with_loss(state, led, f"range {led.id}", broker, lost)


def fenced_holders(state: RingState, held: RangeState) -> list[int]:
    """The fenced brokers that have all of the range: one that runs may still acknowledge events."""
    in_sync = [each.ordinal for each in held.isr if not each.is_ghost]
    whole = held.complete if held.is_sealed else in_sync
    brokers = (state.brokers.get(each) for each in whole)
    return [each.ordinal for each in brokers if each is not None and each.is_fenced]


def accepted_losses_in(state: RingState) -> dict[LogKey, tuple[tuple[int, int], ...]]:
    """By log the offsets `[first, end)` that are lost, as was accepted. O(ranges)."""
    found: dict[LogKey, tuple[tuple[int, int], ...]] = {}
    for held in state.ranges.values():
        for topic_id, partition, first, end in held.accepted:
            key = LogKey(topic_id, partition)
            found[key] = (*found.get(key, ()), (first, end))
    return found


def accepted_since(before: RingState, after: RingState) -> set[LogKey]:
    """The logs of which more is accepted to be lost. O(ranges) where these differ."""
    if before.ranges is after.ranges:
        return set()
    known, now = accepted_losses_in(before), accepted_losses_in(after)
    return {key for key, accepted in now.items() if known.get(key) != accepted}


def _with_loss(
    state: RingState,
    after: RangeState,
    where: str,
    broker: Registration,
    lost: Sequence[LostOffsets],
) -> RingState:
    said = f"{where}: what broker {broker.ordinal} has in registration {broker.number}"
    return replace(
        state,
        ranges={**state.ranges, after.id: after},
        accepted_losses=(*state.accepted_losses, f"{said}; lost: {_text(state, lost)}"),
    )


def _check_lost(state: RingState, owner: RangeState, lost: Sequence[LostOffsets]) -> Refusal | None:
    """Refuse what is not of the range."""
    bounds = dict(_bounds(state, owner.id))
    for each in lost:
        first, end = bounds.get(LogKey(each.topic_id, each.partition), (0, 0))
        if not first <= each.first < each.end <= end:
            return Refusal(
                "wrong-partitions",
                f"offsets {each.first} to {each.end - 1} of partition {each.partition} are not of "
                f"range {owner.id}; see what is lost again",
            )
    return None


def _bounds(state: RingState, range_id: int) -> Iterator[tuple[LogKey, tuple[int, int]]]:
    """Of each log of the range where it began, and where it was sealed if it was."""
    for topic_id, slices in slices_in(state, range_id).items():
        ends = slices.sealed_ends or (_NO_END,) * len(slices.starts)
        pairs = zip(slices.firsts, ends, strict=True)
        for partition, pair in enumerate(pairs, slices.first_partition):
            yield LogKey(topic_id, partition), pair


def _text(state: RingState, lost: Sequence[LostOffsets]) -> str:
    names = {topic.id: topic.name for topic in state.topics.values()}
    shown = [
        f"{names[each.topic_id]}/{each.partition} offsets {each.first} to {each.end - 1}"
        for each in lost[:_SHOWN_MAX]
    ]
    hidden = [f"and {len(lost) - _SHOWN_MAX} more"] if len(lost) > _SHOWN_MAX else []
    return ", ".join(chain(shown, hidden)) or "nothing of a topic that there is"
