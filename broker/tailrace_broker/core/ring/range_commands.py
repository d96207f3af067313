"""Who leads a range and which replicas are in sync with it; what may follow what.

A member of an ISR that is no ghost has all that was ever acknowledged. Every rule here keeps that.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tailrace_broker.core.ring.lost_copies import accept_copy, accept_damage, fenced_holders
from tailrace_broker.core.ring.registrations import without_copy, worse
from tailrace_broker.core.ring.step_commands import cancel_step
from tailrace_broker.model.commands import AcceptLoss, ChangeIsr, Lead, Lost
from tailrace_broker.model.ring_state import RangeState, Refusal, Registration, Replica, RingState
from tailrace_broker.model.topic import NO_EPOCH


def lead(state: RingState, command: Lead) -> RingState | Refusal:
    """A new epoch of the range, led by who asks."""
    led = _open_range(state, command.range_id, command.epoch)
    if isinstance(led, Refusal):
        return led
    broker = _current(state, command.ordinal, command.registration)
    if isinstance(broker, Refusal):
        return broker
    leader = led.replica_of(broker)
    if leader.ordinal in greatest_ghosts(state, led):
        return _led(state, _lossy(led), leader, _in_place(led.isr, leader))
    if leader not in led.isr:
        return _not_in_sync(state, led, leader)
    gone = [each for each in command.without if each != leader.ordinal]
    return _led(state, led, leader, without(led.isr, gone, state.floor))


def change_isr(state: RingState, command: ChangeIsr) -> RingState | Refusal:
    """The leader's set in place of the one that it names by its version."""
    led = _open_range(state, command.range_id, command.epoch)
    if isinstance(led, Refusal):
        return led
    if led.leader is None:
        return Refusal("no-leader", f"range {led.id} has no leader; one must lead it first")
    if led.version != command.version:
        return Refusal(
            "stale-version",
            f"the ISR of range {led.id} is at version {led.version}, not {command.version}",
        )
    if state.step is not None and led.id in state.step.sealed:
        return Refusal(
            "range-sealed", f"range {led.id} has reported its ends; wait for the end of its step"
        )
    refusal = _check_members(state, led, command.isr)
    if refusal is not None:
        return refusal
    if command.isr == led.isr:
        return state
    return _with_range(state, replace(led, isr=command.isr, version=led.version + 1))


def accept_loss(state: RingState, command: AcceptLoss) -> RingState | Refusal:
    """A person has said that what this broker has is what counts."""
    led = _range_in(state, command.range_id, command.epoch)
    if isinstance(led, Refusal):
        return led
    broker = _current(state, command.ordinal, command.registration)
    if isinstance(broker, Refusal):
        return broker
    if broker.ordinal not in led.replicas:
        return Refusal(
            "not-a-replica",
            f"broker {broker.ordinal} has nothing of range {led.id}; name one of"
            f" {_names(led.replicas)}",
        )
    if led.is_sealed:
        return accept_copy(state, led, broker, command.lost)
    if command.lost:
        outcome = accept_damage(state, led, broker, command.lost)
        if isinstance(outcome, Refusal):
            return outcome
        state, led = outcome, outcome.ranges[led.id]
    able = [each for each in led.isr if not each.is_ghost and not _is_fenced(state, each)]
    if able and command.lost:
        return state
    if able:
        return Refusal(
            "not-lost",
            f"broker {able[0].ordinal} has all of range {led.id}; it can lead it without loss",
        )
    leader = led.replica_of(broker)
    others = (_lost(each) for each in led.isr if each.ordinal != leader.ordinal)
    isr = (leader,) if state.floor <= 1 else (leader, *others)
    accepted = (
        f"range {led.id}, epoch {led.epoch + 1}: what broker {leader.ordinal} has in registration "
        f"{leader.registration}"
    )
    after = _led(state, _lossy(led), leader, isr)
    return replace(after, accepted_losses=(*state.accepted_losses, accepted))


def lost(state: RingState, command: Lost) -> RingState | Refusal:
    """What the broker has of the range is less now: it has another number in it, and is a ghost.

    What it reported before, and what was proposed of it, goes by the old number. If it led, it
    stops. Of the only copy nobody makes a ghost: none could be elected in its place.
    """
    held = state.ranges.get(command.range_id)
    if held is None:
        return Refusal("range-not-found", f"there is no range {command.range_id}")
    broker = state.brokers.get(command.ordinal)
    number = (command.registration, command.losses)
    if broker is None or held.replica_of(broker).number != number:
        return Refusal(
            "stale-registration",
            f"broker {command.ordinal} has registered again, or has reported the loss",
        )
    if command.ordinal not in held.replicas:
        return Refusal("not-a-replica", f"broker {command.ordinal} has nothing of range {held.id}")
    if held.holders == (command.ordinal,):
        return Refusal("only-copy", f"nobody else has what range {held.id} has lost")
    if held.is_sealed:
        # What it has said of its copy, and what may still arrive, does not hold any more.
        lacking = without_copy(held, command.ordinal)
        return _with_range(state, replace(lacking, losses=_losses_after(held, command.ordinal)))
    if held.step is not None:
        state = cancel_step(state, f"a replica of range {held.id} has found damage")
        held = state.ranges[held.id]
    return _with_range(state, _after_loss(held, command.ordinal))


def _after_loss(held: RangeState, ordinal: int) -> RangeState:
    isr = tuple(_damaged(each) if each.ordinal == ordinal else each for each in held.isr)
    leads = held.leader is not None and held.leader.ordinal == ordinal
    return replace(
        held,
        isr=isr,
        version=held.version + 1,
        leader=None if leads else held.leader,
        losses=_losses_after(held, ordinal),
    )


def _losses_after(held: RangeState, ordinal: int) -> dict[int, int]:
    return {**held.losses, ordinal: held.losses.get(ordinal, 0) + 1}


def _damaged(member: Replica) -> Replica:
    cause = worse(member.cause or "damage", "damage")
    return member._replace(is_ghost=True, cause=cause)


def greatest_ghosts(state: RingState, led: RangeState) -> set[int]:
    """The brokers that may lead a range of ghosts: those that have most, by what they recovered.

    Nobody, unless each member is a ghost whose broker has said since what it has: by registering,
    or by `lost`. Only ghosts that have lost nothing but power compare: what they flushed they have,
    all that `fsync` topics committed.
    """
    if not all(
        each.is_ghost and led.replica_of(state.brokers[each.ordinal]).number > each.number
        for each in led.isr
    ):
        return set()
    ends = {
        each.ordinal: _recovered_end(state.brokers[each.ordinal], led)
        for each in led.isr
        if each.cause == "power"
    }
    greatest = max(ends.values(), default=None)
    return {ordinal for ordinal, end in ends.items() if end == greatest}


def _recovered_end(broker: Registration, led: RangeState) -> tuple[int, int]:
    """Its last epoch there, and the sum of its ends.

    Whoever recovered before it knew of the range, a child of a step, had stored nothing in it.
    """
    found = next((each for each in broker.ends if each.range_id == led.id), None)
    return (NO_EPOCH, 0) if found is None else found[1:]


def without(isr: Sequence[Replica], gone: Iterable[int], floor: int) -> tuple[Replica, ...]:
    """The ISR without those brokers, as far as `floor` members that are no ghosts remain."""
    kept = tuple(isr)
    for ordinal in gone:
        rest = tuple(each for each in kept if each.ordinal != ordinal)
        if _count_whole(rest) >= floor:
            kept = rest
    return kept


def _open_range(state: RingState, range_id: int, epoch: int) -> RangeState | Refusal:
    found = state.ranges.get(range_id)
    if found is not None and found.is_sealed:
        return Refusal("range-sealed", f"range {range_id} is sealed; its children go on")
    return _range_in(state, range_id, epoch)


def _range_in(state: RingState, range_id: int, epoch: int) -> RangeState | Refusal:
    """In this epoch, open or sealed."""
    found = state.ranges.get(range_id)
    if found is None:
        return Refusal("range-not-found", f"there is no range {range_id}")
    if found.epoch != epoch:
        return Refusal("stale-epoch", f"range {range_id} is in epoch {found.epoch}, not {epoch}")
    return found


def _current(state: RingState, ordinal: int, registration: int) -> Registration | Refusal:
    broker = state.brokers.get(ordinal)
    if broker is None or broker.number != registration:
        return Refusal(
            "stale-registration",
            f"broker {ordinal} is not in registration {registration} now; start it again",
        )
    if broker.is_fenced:
        return Refusal("fenced", f"broker {ordinal} is fenced until it is heard again")
    return broker


def _in_place(isr: Sequence[Replica], leader: Replica) -> tuple[Replica, ...]:
    return tuple(leader if each.ordinal == leader.ordinal else each for each in isr)


def _lost(replica: Replica) -> Replica:
    """A ghost: what counts without it has been decided by a person."""
    return replica._replace(is_ghost=True, cause=replica.cause or "disk")


def _lossy(led: RangeState) -> RangeState:
    """The next epoch begins although committed records may be missing."""
    return replace(led, lossy_epochs=(*led.lossy_epochs, led.epoch + 1))


def _not_in_sync(state: RingState, led: RangeState, leader: Replica) -> Refusal:
    if all(each.is_ghost for each in led.isr):
        return Refusal(
            "all-ghosts",
            f"all in-sync replicas of range {led.id} may have lost records; a person can accept "
            f"the loss: tailrace ring accept-loss {led.id}",
        )
    text = f"broker {leader.ordinal} may lack records of range {led.id}"
    fenced = fenced_holders(state, led)
    if fenced:
        text += (
            f"; {_names(fenced)} have all of it and are fenced: start them again, or stop them "
            "before a person accepts the loss, since what they acknowledge until then is lost"
        )
    return Refusal("not-in-isr", text)


def _led(state: RingState, led: RangeState, leader: Replica, isr: tuple[Replica, ...]) -> RingState:
    if led.step is not None:
        state = cancel_step(state, f"range {led.id} has begun epoch {led.epoch + 1}")
    now = replace(
        led,
        epoch=led.epoch + 1,
        version=led.version + (isr != led.isr),
        leader=leader,
        isr=isr,
        step=None,
    )
    return _with_range(state, now)


def _check_members(state: RingState, led: RangeState, isr: tuple[Replica, ...]) -> Refusal | None:
    ordinals = {each.ordinal for each in isr}
    if len(ordinals) < len(isr) or led.leader not in isr:
        return Refusal("invalid-isr", "each member once, and the leader among them")
    for each in isr:
        if each in led.isr:
            continue
        if each.is_ghost or each.ordinal not in led.replicas:
            return Refusal("invalid-isr", f"{each} is no replica of range {led.id}, or a ghost")
        if led.replica_of(state.brokers[each.ordinal]) != each:
            return Refusal(
                "stale-registration",
                f"broker {each.ordinal} has registered again, or has lost records",
            )
    leaves = any(each.ordinal not in ordinals for each in led.isr)
    if leaves and _count_whole(isr) < state.floor:
        return Refusal(
            "below-floor", f"{state.floor} members that are no ghosts must remain in the ISR"
        )
    return None


def _count_whole(isr: Iterable[Replica]) -> int:
    return sum(not each.is_ghost for each in isr)


def _is_fenced(state: RingState, replica: Replica) -> bool:
    return state.brokers[replica.ordinal].is_fenced


def _names(ordinals: Iterable[int]) -> str:
    return "brokers " + ", ".join(map(str, ordinals))


def _with_range(state: RingState, changed: RangeState) -> RingState:
    return replace(state, ranges={**state.ranges, changed.id: changed})
