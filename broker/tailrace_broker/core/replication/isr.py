"""Which sets of in-sync replicas a leader proposes. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
