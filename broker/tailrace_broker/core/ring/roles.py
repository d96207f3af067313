"""What one broker is in each range, computed from the replicated state alone."""

from typing import NamedTuple

from tailrace_broker.model.ring_state import RangeState, Registration, RingState


class Leading(NamedTuple):
    """This process leads the range in this epoch."""

    epoch: int


class Following(NamedTuple):
    """This process does not lead the range. `leader`: the broker to ask instead, if there is one.

    A sealed range has no leader: any broker with a whole copy is asked, this one if it has one.
    """

    epoch: int
    leader: int | None


Role = Leading | Following


def roles(state: RingState, mine: Registration | None) -> dict[int, Role]:
    """The role of the process with this registration, by range id. O(ranges)."""
    return {range_id: _role(owner, mine) for range_id, owner in state.ranges.items()}


def copies_of(owner: RangeState) -> tuple[int, ...]:
    """The brokers that have logs of the range: its replicas, of a sealed one the whole copies."""
    return (owner.complete or owner.replicas) if owner.is_sealed else owner.replicas


def is_replicated(owner: RangeState) -> bool:
    """Several brokers keep its logs, and one of them says what is committed."""
    return len(owner.replicas) > 1 and not owner.is_sealed


def _role(owner: RangeState, mine: Registration | None) -> Role:
    if owner.sealed_epoch is not None:
        return Following(owner.sealed_epoch, _reader(owner, mine))
    leader = owner.leader
    if leader is None or mine is None or leader.ordinal != mine.ordinal:
        return Following(owner.epoch, None if leader is None else leader.ordinal)
    if leader == owner.replica_of(mine):
        return Leading(owner.epoch)
    return Following(owner.epoch, None)  # an earlier process of this broker led it


def _reader(owner: RangeState, mine: Registration | None) -> int | None:
    """A broker with a whole copy of a sealed range, this one if it can."""
    copies = copies_of(owner)
    if mine is not None and mine.ordinal in copies:
        return mine.ordinal
    return next(iter(copies), None)
