"""In what state a range is, for answers: whether somebody leads it now."""

from tailrace_broker.model.ring_state import RangeState, Replica, RingState


def is_good(state: RingState, one: RangeState, replica: Replica) -> bool:
    """It is this very process that is in sync, and it is not taken for dead."""
    registration = state.brokers.get(replica.ordinal)
    return (
        registration is not None
        and one.replica_of(registration) == replica
        and not registration.is_fenced
    )


def condition_of(state: RingState, one: RangeState) -> str:
    """open; sealed; leaderless, until a replica leads; waiting, since no replica can lead."""
    if one.is_sealed:
        return "sealed"
    if one.leader is not None and is_good(state, one, one.leader):
        return "open"
    return "leaderless" if any(is_good(state, one, replica) for replica in one.isr) else "waiting"
