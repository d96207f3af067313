"""Twice a second: what gossip says of other brokers, for the ranges that this process has.

Replication hears of it, and it counts who of an ISR answers: an ISR never falls below its floor, so
it may name the dead.
"""

import asyncio
from collections.abc import Callable

from tailrace_broker.core.replication.events import PeerView
from tailrace_broker.core.replication.ranges import RangeReplicas
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.range_role import InSync
from tailrace_broker.topics.range_leaders import RangeRoles

WATCH_SECONDS = 0.5


class ReplicaWatch:
    """Of one process; it looks again and again until it is stopped."""

    def __init__(
        self,
        ring: RingNode,
        roles: RangeRoles,
        machine: RangeReplicas,
        step: Callable[[PeerView], None],
    ) -> None:
        """`step` hands the machine its event."""
        self._ring = ring
        self._roles = roles
        self._machine = machine
        self._step = step
        self._timer: asyncio.TimerHandle | None = None
        roles.count_in_sync = self.count_in_sync

    def look(self) -> None:
        """Now, and from now on."""
        self._step(self._ring.peer_view())
        self._ring.set_isolated(is_isolated=self._machine.is_isolated)
        for range_id in self._machine.ranges:
            self._roles.of(range_id).look_for_shortage()
        self._timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, self.look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def count_in_sync(self, range_id: int) -> InSync | None:
        """Count who of an ISR answers; None: this process does not lead the range."""
        state, replica = self._ring.state, self._machine.ranges.get(range_id)
        if state is None or replica is None or replica.leader is None:
            return None
        members = [each.ordinal for each in state.ranges[range_id].isr if not each.is_ghost]
        silent = self._ring.silent()
        return InSync(members, [each for each in members if each not in silent], state.copies)
