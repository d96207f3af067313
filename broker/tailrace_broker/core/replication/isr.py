"""Which sets of in-sync replicas a leader proposes. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace_broker.core.replication.progress import Progress
from tailrace_broker.core.ring.range_commands import without
from tailrace_broker.model.commands import ChangeIsr
from tailrace_broker.model.ring_state import Replica


@dataclass(slots=True)
class Proposal:
    """Members that join count until it is answered, or can never commit. It is repeated."""

    command: ChangeIsr
    joins: tuple[Replica, ...]
    again_ms: int


def admitted(isr: Sequence[Replica], joins: Iterable[Replica]) -> tuple[Replica, ...]:
    """The ISR with these replicas, each in the place of its own older entry, else last."""
    after = list(isr)
    for replica in joins:
        place = next((i for i, each in enumerate(after) if each.ordinal == replica.ordinal), None)
        if place is None:
            after.append(replica)
        else:
            after[place] = replica
    return tuple(after)


def shrunk(
    isr: Sequence[Replica], me: Replica, gone: Iterable[int], floor: int
) -> tuple[Replica, ...]:
    """The ISR without those brokers, as far as `floor` members that are no ghosts remain."""
    assert me in isr, (isr, me)
    return without(isr, gone, floor)


def to_leave(
    isr: Sequence[Replica],
    me: Replica,
    progress: Mapping[int, Progress],
    lags: Callable[[Progress], bool],
) -> list[int]:
    """Members that are to leave: ghosts first, who never report, then who lags."""
    gone = []
    for each in sorted(isr, key=lambda each: not each.is_ghost):
        if each == me:
            continue
        found = progress.get(each.ordinal)
        if found is None or found.replica != each or lags(found):
            gone.append(each.ordinal)
    return gone
