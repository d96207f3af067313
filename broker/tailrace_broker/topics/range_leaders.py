"""Who leads which partition, seen from one broker: itself, or whom to ask instead."""

from collections.abc import Callable

from tailrace_broker.model.errors import NoLeaderError, NotLeaderError, TailraceError
from tailrace_broker.model.ring_state import RangeState, Registration, RingState
from tailrace_broker.model.topic import Partition, Topic


def why_elsewhere(
    state: RingState,
    mine: Registration | None,
    topic: Topic,
    partition: Partition,
    url_of: Callable[[int], str],
) -> TailraceError | None:
    """What to answer who wants this partition of this broker; None: its log is here.

    `url_of`: the public door of a broker. A sealed partition is read from any whole copy.
    """
    found = state.ranges[partition.range_id]
    leader = _reader(found, mine) if found.is_sealed else _leader(found, mine)
    if mine is not None and leader == mine.ordinal:
        return None
    place = f'partition {partition.partition} of topic "{topic.name}"'
    if leader is None:
        return NoLeaderError(
            f"no broker leads {place} now; try again, and if it stays so look at range {found.id} "
            "of GET /v1/ring",
            topic=topic.name,
            partition=partition.partition,
            range=found.id,
        )
    url = url_of(leader)
    return NotLeaderError(
        f"broker {leader} leads {place}; ask it at {url}",
        topic=topic.name,
        partition=partition.partition,
        leader=leader,
        leaderUrl=url,
    )


def _leader(found: RangeState, mine: Registration | None) -> int | None:
    """The broker that leads; of this one only this very process counts."""
    leader = found.leader
    if leader is None:
        return None
    if mine is not None and leader.ordinal == mine.ordinal:
        return leader.ordinal if leader.registration == mine.number else None
    return leader.ordinal


def _reader(found: RangeState, mine: Registration | None) -> int | None:
    """A broker with a whole copy of a sealed range, this one if it can."""
    copies = found.complete or found.replicas
    if mine is not None and mine.ordinal in copies:
        return mine.ordinal
    return next(iter(copies), None)
