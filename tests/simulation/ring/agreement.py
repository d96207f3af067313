"""What must be true of the brokers' agreement after every step, whatever happened.

It sees processes from outside, and what they give to their disks. The committed chain is built
once, from the first broker that takes a block for committed; all others are compared with it.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import combinations
from uuid import UUID

import msgspec

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.codec.configuration import decode_configuration
from tailrace_broker.core.node.control import Control
from tailrace_broker.core.node.events import ControlEvent, Heard
from tailrace_broker.core.raft.raft import Raft
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.agreement import (
    COMMAND,
    INITIAL_ID,
    VOTERS,
    Block,
    BlockId,
    Configuration,
    DiskId,
    Stored,
)
from tailrace_broker.model.commands import Stamped
from tailrace_broker.model.messages import Append, SnapshotSlice
from tailrace_broker.model.ring_state import Refusal, RingState
from tests.simulation.ring.process import Process
from tests.simulation.ring.quorums import Quorums
from tests.simulation.ring.registrations import Registrations
from tests.simulation.ring.violation import check
from tests.support.ring.checks import check_state

# Of a state: what commands seldom change, and its checks look at.
CHECKED = ("brokers", "ranges", "topics", "deleted", "step", "broker_count")

_encode_state = msgspec.msgpack.Encoder().encode


class Agreement:
    """The committed chain and its states, who led when, and what each process was last seen at."""

    def __init__(
        self,
        registrations: Registrations,
        changed: Callable[[RingState, RingState], None] | None = None,
    ) -> None:
        """`changed`: gets the states before and after a change."""
        self.initial: Configuration | None = None
        self.configuration: Configuration | None = None  # committed
        self.committed: list[BlockId] = []
        self.commands: list[tuple[int, Stamped, Refusal | None]] = []  # with height and outcome
        self.state: RingState | None = None  # after the last of `committed`
        self.quorums = Quorums()
        self._registrations = registrations
        self._changed = changed
        self._blocks: dict[BlockId, Block] = {}
        self._encoded: list[bytes] = []
        self._leaders: dict[int, str] = {}
        self._seen: dict[int, tuple[object, ...]] = {}
        self._followed: dict[int, tuple[BlockId, DiskId | None]] = {}
        self._voters: dict[int, Configuration] = {}  # in force at each process
        self._voters_before = Configuration(())
        self._applied: set[int] = set()
        self._alone: Configuration | None = None
        self._stillborn: set[UUID] = set()
        self._reported: set[BlockId] = set()  # blocks of which another broker may know

    @property
    def height(self) -> int:
        """Of the last block that any broker took for committed."""
        return len(self.committed) - 1

    def stored(self, blocks: Iterable[Block]) -> None:
        """A process gives these to its disk."""
        for block in blocks:
            known = self._blocks.setdefault(block.id, block)
            if known != block:
                check(block.id not in self._reported, f"two blocks are {block.id}")
                self._blocks[block.id] = known = block
            if known is block and block.kind == VOTERS:
                self._check_voters(block)

    def reported(self, process: Process, message: Append) -> None:
        """A leader speaks: from now on others count on its term, and on these blocks."""
        self._leads(process, message.term)
        for block in message.blocks:
            self._reported.add(block.id)

    def recovers_alone(self, process: Process) -> None:
        """By hand: it alone votes from now on."""
        assert process.control is not None
        self._alone = Configuration((process.control.disk,))

    def look(self, process: Process, event: ControlEvent | None = None) -> None:
        """After a step of it, by this event; None: after its start."""
        control = process.control
        assert control is not None
        control.validate()
        raft = control.raft
        if isinstance(event, Heard) and isinstance(event.message, Append | SnapshotSlice):
            self._check_followed(process.number, raft, event.message)
        self._followed[process.number] = (raft.head, raft.leader)
        seen = (raft.role, raft.term, raft.commit, raft.applied)
        self._voters_before = self._voters.get(process.number, raft.configuration)
        self._voters[process.number] = raft.configuration
        before = self._seen.get(process.number)
        if seen == before:
            return
        self._seen[process.number] = seen
        disk = process.disk
        check(raft.applied >= disk.applied or before is not None, f"forgot: {disk.applied}")
        disk.applied = max(disk.applied, raft.applied)
        if raft.applied >= INITIAL_ID and self._is_of_the_ring(control):
            self._follow(process, raft.commit)
            self._check_chain(raft.commit, "takes for agreed")
            if before is None or before[3] != raft.applied:
                self._check_state(control)
        if raft.is_established:
            self._leads(process, raft.term)
        if raft.role == "leader" and (before is None or before[:2] != seen[:2]):
            self._check_leader(process, control)

    def _check_followed(self, number: int, raft: Raft, message: Append | SnapshotSlice) -> None:
        """Who leads no more is not followed."""
        if message.term < raft.term:
            head, leader = self._followed[number]
            check(
                raft.head == head, f"a head moved for the leader of the older term {message.term}"
            )
            is_followed = raft.leader == message.sender != leader
            check(not is_followed, f"the leader of the older term {message.term} is followed")

    def _is_of_the_ring(self, control: Control) -> bool:
        """Not of one whose bootstrap came to nothing, since only disks that are gone took it."""
        state = control.state
        assert state is not None
        if self.state is not None and self.state.cluster_id != state.cluster_id:
            if state.cluster_id in self._stillborn:
                check(control.raft.commit == INITIAL_ID, "a bootstrap that had ended goes on")
                return False
            check(self.height == 0, "two rings were founded")
            self._stillborn.add(self.state.cluster_id)
            self.state = None
            self.committed.clear()
            self._encoded.clear()
        if self.state is None:
            check(
                control.raft.applied == INITIAL_ID, "a ring begins with more than its initial state"
            )
            self.initial = control.raft.configuration
            self.state = state
            self.configuration = control.raft.configuration
            self.committed.append(INITIAL_ID)
            self._encoded.append(_encode_state(state))
            self._registrations.founded(state)
        return True

    def _follow(self, process: Process, block_id: BlockId) -> None:
        """Build the committed chain up to there."""
        new: list[Block] = []
        is_leader = process.control is not None and process.control.raft.role == "leader"
        while block_id.height > self.height:
            check(block_id in self._blocks, f"{block_id} is agreed, and was never on a disk")
            new.append(self._blocks[block_id])
            block_id = new[-1].parent
        if new:
            self._check_chain(block_id, "has a block on top of")
        if new and is_leader:
            self._check_counted(process, new)
        for block in reversed(new):
            self._agree(block)

    def _check_counted(self, process: Process, new: list[Block]) -> None:
        """By the voters until now; by the next ones when both sets have just committed that."""
        voters = self._voters_before
        for block in new:
            is_of_voters = block.kind == VOTERS and decode_configuration(block.payload) == voters
            if is_of_voters and voters.is_joint:
                self.quorums.check_agreed(process, block.id, voters, self._has)
                voters = Configuration(voters.next_voters)
        self.quorums.check_agreed(process, new[0].id, voters, self._has)

    def _agree(self, block: Block) -> None:
        check(block.id.height == len(self.committed), f"heights have a hole below {block.id}")
        before = self.state
        assert before is not None
        if block.kind == VOTERS:
            self.configuration = decode_configuration(block.payload)
        if block.kind == COMMAND:
            stamped = decode_command(block.payload)
            self.state = apply_command(before, stamped)
            is_again = stamped.id in self._applied
            check(not is_again or self.state == before, f"done twice: {stamped}")
            self._applied.add(stamped.id)
            self.commands.append((block.id.height, stamped, self.state.recent[stamped.id]))
            if any(getattr(self.state, part) is not getattr(before, part) for part in CHECKED):
                check_state(self.state)
                self._registrations.changed(before, self.state, stamped.command)
                if self._changed is not None:
                    self._changed(before, self.state)
        self.committed.append(block.id)
        self._reported.add(block.id)
        changed = self.state is not before
        self._encoded.append(_encode_state(self.state) if changed else self._encoded[-1])

    def _check_chain(self, block_id: BlockId, what: str) -> None:
        committed = self.committed[block_id.height]
        check(committed == block_id, f"one {what} {block_id}, another {committed}")

    def _check_state(self, control: Control) -> None:
        height = control.raft.applied.height
        encoded = _encode_state(control.state)
        check(encoded == self._encoded[height], f"states at {height} are not equal")

    def _check_leader(self, process: Process, control: Control) -> None:
        term = control.raft.term
        self.quorums.check_leader(process)
        if self.committed and self.committed[-1].term < term:
            check(
                self._has(control.raft.head, self.committed[-1]),
                f"the leader of term {term} lacks {self.committed[-1]}, which is agreed",
            )

    def _leads(self, process: Process, term: int) -> None:
        known = self._leaders.setdefault(term, process.name)
        check(known == process.name, f"term {term} has two leaders, {known} and {process.name}")

    def _has(self, head: BlockId, ancestor: BlockId) -> bool:
        while head.height > ancestor.height and head in self._blocks:
            head = self._blocks[head].parent
        return head == ancestor

    def _check_voters(self, block: Block) -> None:
        after = decode_configuration(block.payload)
        if after == self._alone:
            return
        before = self._configuration_below(block)
        if before is not None:
            check(_quorums_meet(before, after), f"voters change at once: {before} to {after}")

    def _configuration_below(self, block: Block) -> Configuration | None:
        parent = block.parent
        while parent != INITIAL_ID:
            below = self._blocks.get(parent)
            if below is None:
                return None  # what a snapshot has replaced
            if below.kind == VOTERS:
                return decode_configuration(below.payload)
            parent = below.parent
        return self.initial


def stored_blocks(records: Iterable[object]) -> list[Block]:
    """The blocks among what a disk is to keep."""
    return [record.block for record in records if isinstance(record, Stored)]


@lru_cache(maxsize=1000)
def _quorums_meet(one: Configuration, other: Configuration) -> bool:
    """No decision of the one can be taken without somebody who decides in the other."""
    return all(
        not any(quorum.isdisjoint(against) for against in _quorums(other))
        for quorum in _quorums(one)
    )


def _quorums(configuration: Configuration) -> list[frozenset[DiskId]]:
    """The smallest ones; of a joint configuration a majority of each side together."""
    quorums = _majorities(configuration.voters)
    if not configuration.is_joint:
        return quorums
    return [one | other for one in quorums for other in _majorities(configuration.next_voters)]


def _majorities(voters: tuple[DiskId, ...]) -> list[frozenset[DiskId]]:
    return [frozenset(each) for each in combinations(voters, len(voters) // 2 + 1)]
