"""Votes and acknowledgements, counted a second time from what disks have reported, disk by disk."""

from collections.abc import Callable
from uuid import UUID

from tailrace_broker.core.raft.events import Send
from tailrace_broker.model.agreement import BlockId, Configuration, DiskId
from tailrace_broker.model.messages import AppendAnswered, VoteAnswered
from tests.simulation.ring.process import Process
from tests.simulation.ring.violation import check


class Quorums:
    """Of each disk, by term: whom it voted for, and the head that it reported of last."""

    def __init__(self) -> None:
        self._votes: dict[tuple[UUID, int], int] = {}
        self._heads: dict[tuple[UUID, int], BlockId] = {}

    def reported(self, send: Send) -> None:
        """A message leaves a process."""
        message = send.message
        if type(message) is AppendAnswered:
            self._heads[message.sender.incarnation, message.term] = message.head
        elif type(message) is VoteAnswered and message.is_granted and not message.is_pre:
            key = (message.sender.incarnation, message.term)
            known = self._votes.setdefault(key, send.ordinal)
            check(known == send.ordinal, f"{key[0]} voted for {known} and {send.ordinal}: {key[1]}")

    def check_leader(self, process: Process) -> None:
        """It has just been elected."""
        control = process.control
        assert control is not None
        term, me = control.raft.term, control.disk

        def has_voted(disk: DiskId) -> bool:
            return disk == me or self._votes.get((disk.incarnation, term)) == me.ordinal

        is_enough = _is_enough(control.raft.configuration, has_voted)
        check(is_enough, f"{process.name} leads term {term} without enough votes")

    def check_agreed(
        self,
        process: Process,
        block_id: BlockId,
        configuration: Configuration,
        has: Callable[[BlockId, BlockId], bool],
    ) -> None:
        """It has just committed the block, as leader; until then these were the voters.

        `has`: a head, and what it may descend from. Its own write is not looked at.
        """
        control = process.control
        assert control is not None
        term, me = control.raft.term, control.disk

        def has_block(disk: DiskId) -> bool:
            head = self._heads.get((disk.incarnation, term))
            return disk == me or (head is not None and has(head, block_id))

        is_enough = _is_enough(configuration, has_block)
        check(
            is_enough, f"{process.name} agrees on {block_id}, which too few disks have reported of"
        )


def _is_enough(configuration: Configuration, is_for: Callable[[DiskId], bool]) -> bool:
    groups = [configuration.voters, configuration.next_voters]
    return all(2 * sum(map(is_for, group)) > len(group) for group in groups if group)
