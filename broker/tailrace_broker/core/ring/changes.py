"""What a state changes of registrations, leaders, in-sync replicas and steps, in words. Pure."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tailrace_broker.model.ring_state import RangeState, Registration, Replica, RingState

Kind = Literal[
    "registered",
    "fenced",
    "heard",
    "retired",
    "leads",
    "leaderless",
    "joined",
    "left",
    "ghost",
    "loss",
    "sealed",
    "step",
]


class RingChange(NamedTuple):
    """`broker`: whom it is about; None: no broker. `range_id`, `epoch`: of a range."""

    kind: Kind
    broker: int | None
    text: str
    range_id: int | None = None
    epoch: int | None = None


class AppliedChange(NamedTuple):
    """A change as a broker applied it; `number`: of those since its start, from 1 on."""

    number: int
    at_us: int
    change: RingChange


def changes(before: RingState, after: RingState) -> list[RingChange]:
    """Return what changed of the step, of brokers by ordinal, of ranges by id, then losses.

    O(brokers, ranges) where these differ.
    """
    found = [RingChange("step", None, text) for text in _of_step(before, after)]
    if before.brokers is not after.brokers:
        for ordinal in sorted(before.brokers.keys() | after.brokers.keys()):
            was, now = before.brokers.get(ordinal), after.brokers.get(ordinal)
            found += _of_broker(ordinal, was, now)
    if before.ranges is not after.ranges:
        for range_id, owner in sorted(after.ranges.items()):
            known = before.ranges.get(range_id)
            if owner.is_sealed:
                found += _of_sealed(known, owner)
            elif known is not owner:
                found += _of_leader(known, owner)
                found += _of_isr(() if known is None else known.isr, owner)
    for text in after.accepted_losses[len(before.accepted_losses) :]:
        found.append(RingChange("loss", None, f"a loss was accepted: {text}"))
    return found


def _of_step(before: RingState, after: RingState) -> Iterator[str]:
    ended, begun = after.last_step, after.step
    if ended is not None and ended != before.last_step:
        how = f"is done: {ended.kind}, ring of {ended.brokers_after}"
        yield f"step {ended.id} " + (f"was cancelled: {ended.why}" if ended.why else how)
    if begun is not None and (before.step is None or before.step.id != begun.id):
        ranges = ", ".join(map(str, begun.parents))
        yield (
            f"step {begun.id} has begun: {begun.kind}, {begun.brokers_before} → "
            f"{begun.brokers_after} brokers; it seals ranges {ranges}"
        )


def _of_broker(
    ordinal: int, was: Registration | None, now: Registration | None
) -> Iterator[RingChange]:
    name = f"broker {ordinal}"
    if now is None:
        yield RingChange("retired", ordinal, f"{name} has left the ring")
    elif was is None or was.number != now.number:
        text = f"{name} registered process {now.number} (loss class {now.loss})"
        yield RingChange("registered", ordinal, text)
    elif now.is_fenced and not was.is_fenced:
        yield RingChange("fenced", ordinal, f"{name} is fenced: it is not heard")
    elif was.is_fenced and not now.is_fenced:
        yield RingChange("heard", ordinal, f"{name} is heard again")


def _of_leader(was: RangeState | None, now: RangeState) -> Iterator[RingChange]:
    before = None if was is None else (was.leader, was.epoch)
    if before == (now.leader, now.epoch):
        return
    place = now.id, now.epoch
    if now.leader is not None:
        ordinal = now.leader.ordinal
        text = f"range {now.id}: broker {ordinal} leads in epoch {now.epoch}"
        yield RingChange("leads", ordinal, text, *place)
    elif was is not None and was.leader is not None:
        text = f"range {now.id}: no broker leads since epoch {was.epoch} ended"
        yield RingChange("leaderless", None, text, *place)


def _of_sealed(was: RangeState | None, now: RangeState) -> Iterator[RingChange]:
    """It has no leader and no ISR any more; who copies it later is in its replicas."""
    if was is None or not was.is_sealed:
        names = ",".join(map(str, now.complete))
        text = f"range {now.id} is sealed; whole on brokers {names}"
        yield RingChange("sealed", None, text, now.id, now.epoch)


def _of_isr(before: tuple[Replica, ...], now: RangeState) -> Iterator[RingChange]:
    old = {each.ordinal: each for each in before}
    new = {each.ordinal: each for each in now.isr}
    names = ",".join(f"{each.ordinal}{'?' if each.is_ghost else ''}" for each in now.isr)
    for ordinal in sorted(old.keys() | new.keys()):
        was, found = old.get(ordinal), new.get(ordinal)
        who = f"range {now.id}: broker {ordinal}"
        place = now.id, now.epoch
        if found is None:
            yield RingChange("left", ordinal, f"{who} left the ISR, now {names}", *place)
        elif found.is_ghost:
            if was is None or not was.is_ghost or was.cause != found.cause:
                text = f"{who} is a ghost in the ISR, now {names}; cause: {found.cause}"
                yield RingChange("ghost", ordinal, text, *place)
        elif was is None or was.is_ghost:
            yield RingChange("joined", ordinal, f"{who} joined the ISR, now {names}", *place)
