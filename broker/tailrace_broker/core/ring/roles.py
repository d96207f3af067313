"""What one broker is in each range, computed from the replicated state alone."""

from dataclasses import dataclass

from tailrace_broker.model.ring_state import RangeState, Registration, RingState


@dataclass(frozen=True, slots=True)
class Leading:
    """This process leads the range in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Following:
    """This process does not lead the range. `leader`: the broker to ask instead, if there is one.

    A sealed range has no leader: any broker with a whole copy is asked, this one if it has one.
    """

    epoch: int
    leader: int | None


Role = Leading | Following


def roles(state: RingState, mine: Registration | None) -> dict[int, Role]:
    """The role of the process with this registration, by range id. O(ranges)."""
    return {range_id: _role(state, owner, mine) for range_id, owner in state.ranges.items()}


def is_elsewhere(owner: RangeState, ordinal: int) -> bool:
    """Other brokers have what this one, a replica, has said to have of the range, or is to have."""
    return ordinal in owner.replicas and owner.holders != (ordinal,)


def is_replicated(owner: RangeState) -> bool:
    """Several brokers keep its logs, and one of them says what is committed."""
    return len(owner.replicas) > 1 and not owner.is_sealed


def _role(state: RingState, owner: RangeState, mine: Registration | None) -> Role:
    if owner.sealed_epoch is not None:
        reader = reader_of(state, owner, None if mine is None else mine.ordinal)
        return Following(owner.sealed_epoch, reader)
    leader = owner.leader
    if leader is None or mine is None or leader.ordinal != mine.ordinal:
        return Following(owner.epoch, None if leader is None else leader.ordinal)
    if leader == owner.replica_of(mine):
        return Leading(owner.epoch)
    return Following(owner.epoch, None)  # an earlier process of this broker led it


def reader_of(state: RingState, owner: RangeState, ordinal: int | None) -> int | None:
    """A broker with a whole copy of a sealed range: this one if it has one, else one that lives.

    None: nobody has, and what is there may be too little, or what was never committed.
    """
    copies = owner.holders
    if ordinal in copies:
        return ordinal
    living = (each for each in copies if each in state.brokers)
    return min(
        living, key=lambda each: (state.brokers[each].is_fenced, copies.index(each)), default=None
    )
