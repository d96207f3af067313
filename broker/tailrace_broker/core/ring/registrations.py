"""Which process a broker is, what its disk may have lost before, and what follows for its ranges.

A broker does nothing until its registration is committed. What it led it leads no more. It stays in
sync only if its disk has kept everything since its registration before.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from tailrace_broker.core.ring.arithmetic import UNITS
from tailrace_broker.core.ring.copies import without_replica
from tailrace_broker.core.ring.step_commands import cancel_step
from tailrace_broker.core.ring.step_ends import participants
from tailrace_broker.model.commands import Fence, Register, Retire
from tailrace_broker.model.ring_state import (
    CAUSES,
    LOSSES,
    Cause,
    Loss,
    RangeState,
    Refusal,
    Registration,
    Replica,
    RingState,
    Start,
    TopicState,
)

# So many disks that have left are refused when they come back. An older one is a disk that has
# lost all: none of its starts is known.
RETIRED_MAX = 32


def register(state: RingState, command: Register) -> RingState | Refusal:
    """The process is this broker from now on, unless a newer one is."""
    if not command.starts or not 0 <= command.ordinal < UNITS:
        return Refusal("invalid-parameter", f"an ordinal is 0 to {UNITS - 1}; its start is given")
    if command.incarnation in state.retired:
        return Refusal("retired", f"broker {command.ordinal} has left the ring with this disk")
    before = state.brokers.get(command.ordinal)
    start = command.starts[-1].id
    if before is not None and before.incarnation == command.incarnation:
        if before.start == start:
            return state
        if command.boot < before.boot:
            return Refusal(
                "superseded",
                f"broker {command.ordinal} has been started again since: boot {before.boot}",
            )
    last_number = last_registration(state, command.ordinal)
    if command.replaces != last_number:
        return Refusal(
            "stale-registration",
            f"another process is broker {command.ordinal} since: registration {last_number}",
        )
    now = Registration(
        command.ordinal,
        last_number + 1,
        command.incarnation,
        command.boot,
        start,
        loss_since(before, command),
        ends=command.ends,
    )
    state = _cancelled(state, now.ordinal)
    after = replace(
        state,
        brokers={**state.brokers, now.ordinal: now},
        ranges=_ranges_after(state, before, now, command.damaged),
    )
    return after if before is None else _with_unflushed(after, before, now)


def last_registration(state: RingState, ordinal: int) -> int:
    """Its number, of a retired broker's too; 0: there has been none."""
    before = state.brokers.get(ordinal)
    return state.last_numbers.get(ordinal, 0) if before is None else before.number


def fence(state: RingState, command: Fence) -> RingState | Refusal:
    """The broker may be led over, or not any more."""
    broker = state.brokers.get(command.ordinal)
    if broker is None or broker.number != command.registration:
        return Refusal(
            "stale-registration",
            f"broker {command.ordinal} is not in registration {command.registration} now",
        )
    if broker.is_fenced == command.is_fenced:
        return state
    fenced = replace(broker, is_fenced=command.is_fenced)
    return replace(state, brokers={**state.brokers, broker.ordinal: fenced})


def retire(state: RingState, command: Retire) -> RingState | Refusal:
    """Its disk never comes back; what it held is held by others."""
    broker = state.brokers.get(command.ordinal)
    if broker is None:
        return Refusal("broker-not-found", f"broker {command.ordinal} has never registered")
    if command.registration != broker.number:
        return Refusal(
            "stale-registration", f"broker {broker.ordinal} has registered again since; try again"
        )
    if broker.ordinal < state.broker_count:
        return Refusal("in-the-ring", f"broker {broker.ordinal} is of the ring; shrink it first")
    if state.step is not None and broker.ordinal in participants(state.step, state):
        return Refusal("step-open", f"broker {broker.ordinal} takes part in the open step")
    holding = [each for each in state.ranges.values() if broker.ordinal in each.replicas]
    if holding and not command.accept_loss:
        return Refusal(
            "holds-ranges", f"broker {broker.ordinal} has a copy of range {holding[0].id}"
        )
    brokers = {**state.brokers}
    del brokers[broker.ordinal]
    return replace(
        state,
        brokers=brokers,
        ranges={
            **state.ranges,
            **{
                each.id: without_replica(each, broker.ordinal)
                for each in state.ranges.values()
                if broker.ordinal in each.replicas or broker.ordinal in each.losses
            },
        },
        retired=(*state.retired, broker.incarnation)[-RETIRED_MAX:],
        last_numbers={**state.last_numbers, broker.ordinal: broker.number},
        accepted_losses=state.accepted_losses
        + tuple(
            f"range {each.id}: broker {broker.ordinal} has left, and no other has a whole copy"
            for each in holding
            if {*each.complete} <= {broker.ordinal}
        ),
    )


def loss_since(before: Registration | None, command: Register) -> Loss:
    """The worst of all starts since the registered one; `disk` when that one is not known."""
    if before is None or before.incarnation != command.incarnation:
        return "disk"
    since = _starts_since(before, command.starts)
    if since is None:
        return "disk"
    return max((each.loss for each in since), key=LOSSES.index)


def _starts_since(before: Registration, starts: Sequence[Start]) -> Sequence[Start] | None:
    for index, each in enumerate(starts):
        if each.id == before.start:
            return starts[index + 1 :]
    return None


def _ranges_after(
    state: RingState, before: Registration | None, now: Registration, damaged: Sequence[int]
) -> dict[int, RangeState]:
    unflushed = (
        _ranges_with_unflushed(state, before) if before and now.loss == "power" else frozenset()
    )
    ranges = {**state.ranges}
    for each in state.ranges.values():
        if now.ordinal in each.losses:  # they are counted by registration
            losses = {key: count for key, count in each.losses.items() if key != now.ordinal}
            each = ranges[each.id] = replace(each, losses=losses)
        if each.is_sealed:
            is_damaged = each.id in damaged and len(each.complete) > 1
            if now.ordinal in each.complete and (now.loss == "disk" or is_damaged):
                ranges[each.id] = without_copy(each, now.ordinal)
            continue
        # What the only copy has lost nobody has: none can be elected in its place.
        is_only = len(each.isr) == 1
        cause = worse(now.loss, "damage") if each.id in damaged and not is_only else now.loss
        stays = cause not in ("damage", "disk") and (each.id not in unflushed or is_only)
        if not any(entry.ordinal == now.ordinal for entry in each.isr):
            continue  # nor does it lead
        # A ghost's next registration too ends what was proposed for the one before.
        isr = tuple(_entry_after(entry, before, now, cause, stays=stays) for entry in each.isr)
        leads = each.leader is not None and each.leader.ordinal == now.ordinal
        leader = None if leads else each.leader
        ranges[each.id] = replace(each, isr=isr, version=each.version + 1, leader=leader)
    return ranges


def _entry_after(
    entry: Replica, before: Registration | None, now: Registration, cause: Cause, *, stays: bool
) -> Replica:
    if entry.ordinal != now.ordinal:
        return entry
    if entry.is_ghost:
        return entry._replace(cause=worse(entry.cause or "disk", cause))
    is_known = before is not None and entry.registration == before.number
    if stays and is_known:
        return Replica(now.ordinal, now.number)
    return entry._replace(is_ghost=True, cause=cause if is_known else "disk")


def worse(one: Cause, other: Cause) -> Cause:
    """A ghost's cause only worsens."""
    return max(one, other, key=CAUSES.index)


def without_copy(held: RangeState, ordinal: int) -> RangeState:
    """A sealed range whose copy there is not whole."""
    return replace(held, complete=tuple(copy for copy in held.complete if copy != ordinal))


def _ranges_with_unflushed(state: RingState, before: Registration) -> frozenset[int]:
    """Where a loss of power costs acknowledged records; of deleted topics too, which come back."""
    topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
    return frozenset(
        slices.range_id
        for topic in topics
        if topic.settings.durability == "written"
        or (before.ordinal, before.number) in topic.unflushed
        for slices in topic.slices
    )


def _with_unflushed(state: RingState, before: Registration, now: Registration) -> RingState:
    """What the process before may not have flushed this one may not have either, if it has it."""
    old = before.ordinal, before.number

    def after(topic: TopicState) -> TopicState:
        others = tuple(each for each in topic.unflushed if each != old)
        new = ((now.ordinal, now.number),) if now.loss == "process" else ()
        return replace(topic, unflushed=others + new)

    topics = {name: after(topic) for name, topic in state.topics.items() if old in topic.unflushed}
    deleted = {
        key: replace(each, topic=after(each.topic))
        for key, each in state.deleted.items()
        if old in each.topic.unflushed
    }
    if not (topics or deleted):
        return state
    return replace(state, topics={**state.topics, **topics}, deleted={**state.deleted, **deleted})


def _cancelled(state: RingState, ordinal: int) -> RingState:
    """Without the step in which the broker takes part: what it has said for it does not hold."""
    if state.step is None or ordinal not in participants(state.step, state):
        return state
    return cancel_step(state, f"broker {ordinal} has registered again")
