"""What a broker owes the ring, seen from the agreed state and from who seems to be alive.

All of it is asked for with conditional commands, so that what is seen wrongly, or late, can be
refused: gossip and silence are hints, and the state decides.
"""

from collections.abc import Callable, Iterator, Mapping

from tailrace_broker.core.node.bootstrap import voter_count
from tailrace_broker.model.agreement import Configuration, DiskId
from tailrace_broker.model.commands import Fence, Lead
from tailrace_broker.model.ring_state import RangeState, Registration, Replica, RingState


def ranges_to_lead(
    state: RingState, mine: Registration, is_alive: Callable[[int], bool]
) -> Iterator[Lead]:
    """Ranges that nobody leads, or somebody who seems dead or is fenced, and this broker should.

    Of those that may, the first alive in the ring's order does: the natural leader, if it can.
    """
    for each in state.ranges.values():
        if mine.ordinal not in each.replicas or each.is_sealed:
            continue
        leader = None if each.leader is None else each.leader.ordinal
        if leader == mine.ordinal or (leader is not None and _is_well(state, leader, is_alive)):
            continue
        if each.epoch == 0 and _waits_for_natural_leader(state, each, mine):
            continue
        candidates = _candidates(state, each, mine, is_alive)
        first = next((o for o in each.replicas if o in candidates and o != leader), None)
        if first != mine.ordinal or not _is_answered(state, each, mine.ordinal, is_alive):
            continue
        without = () if leader is None else (leader,)
        yield Lead(each.id, each.epoch, mine.ordinal, mine.number, without)


def brokers_to_fence(
    state: RingState,
    heard_at_ms: Mapping[DiskId, int],
    *,
    me: int,
    since_ms: int,
    session_ms: int,
    now_ms: int,
) -> Iterator[Fence]:
    """As the metadata's leader since `since_ms`: who is silent too long, and who is back."""
    for each in state.brokers.values():
        if each.ordinal == me:
            if each.is_fenced:
                yield Fence(me, each.number, is_fenced=False)
            continue
        heard_ms = heard_at_ms.get(DiskId(each.ordinal, each.incarnation), since_ms)
        silent_ms = now_ms - max(heard_ms, since_ms)
        if not each.is_fenced and silent_ms > session_ms:
            yield Fence(each.ordinal, each.number)
        elif each.is_fenced and heard_ms > since_ms and now_ms - heard_ms < session_ms // 2:
            yield Fence(each.ordinal, each.number, is_fenced=False)


def wanted_voters(state: RingState, configuration: Configuration) -> tuple[DiskId, ...] | None:
    """The disks that are to vote now; None: they do, or their change is under way."""
    if configuration.is_joint:
        return None
    present = {each.ordinal: each for each in configuration.voters}
    for ordinal in range(voter_count(state.broker_count)):
        found = state.brokers.get(ordinal)
        if found is not None:
            present[ordinal] = DiskId(ordinal, found.incarnation)
    wanted = tuple(present[o] for o in range(voter_count(state.broker_count)) if o in present)
    return None if wanted == configuration.voters else wanted


def takeovers(before: RingState | None, after: RingState) -> Iterator[int]:
    """The brokers that have lost a range's lead to another one."""
    if before is None or before.ranges is after.ranges:
        return
    for range_id, now in after.ranges.items():
        was = before.ranges.get(range_id)
        if was is None or was is now or was.leader is None or now.leader is None:
            continue
        if was.leader.ordinal != now.leader.ordinal:
            yield was.leader.ordinal


def _is_well(state: RingState, ordinal: int, is_alive: Callable[[int], bool]) -> bool:
    found = state.brokers.get(ordinal)
    return found is not None and not found.is_fenced and is_alive(ordinal)


def _waits_for_natural_leader(state: RingState, found: RangeState, mine: Registration) -> bool:
    """A range that is new: who should lead it may just not have been heard of yet."""
    natural = state.brokers.get(found.natural_leader)
    if natural is None or natural.is_fenced or mine.ordinal == natural.ordinal:
        return False
    return Replica(natural.ordinal, natural.number) in found.isr


def _candidates(
    state: RingState, found: RangeState, mine: Registration, is_alive: Callable[[int], bool]
) -> set[int]:
    """Brokers whose lead the state would accept, as far as they seem alive."""
    able = set()
    for replica in found.isr:
        registered = state.brokers.get(replica.ordinal)
        if replica.is_ghost or registered is None or registered.is_fenced:
            continue
        is_here = replica.ordinal == mine.ordinal or is_alive(replica.ordinal)
        if registered.number == replica.registration and is_here:
            able.add(replica.ordinal)
    return able


def _is_answered(
    state: RingState, found: RangeState, ordinal: int, is_alive: Callable[[int], bool]
) -> bool:
    """Another replica is there, if the range has more than one: alone, nothing could be kept."""
    others = [each for each in found.replicas if each != ordinal]
    return not others or any(map(is_alive, others))
