"""In what state a range is, for answers: whether somebody leads it now."""

from tailrace_broker.core.ring.roles import reader_of
from tailrace_broker.model.ring_state import RangeState, Replica, RingState
from tailrace_broker.net.broker import Broker


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


def server_of(broker: Broker, range_id: int) -> int | None:
    """Return who leads a range; of a sealed one a broker with a whole copy. None: nobody now."""
    state = broker.ring.state
    found = None if state is None else state.ranges.get(range_id)
    if state is None or found is None:
        return None
    if found.is_sealed:
        return reader_of(state, found, broker.ordinal)
    return None if found.leader is None else found.leader.ordinal
