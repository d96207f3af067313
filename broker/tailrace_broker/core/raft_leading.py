"""What the leader of a term does: it feeds the others its chain, counts, and asks who hears it."""

from collections import deque

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.chain import BLOCK_OVERHEAD_BYTES
from tailrace_broker.core.quorum import agreed_height, is_quorum
from tailrace_broker.core.raft_events import ReadReady
from tailrace_broker.core.raft_progress import Progress
from tailrace_broker.core.raft_state import LONG_AGO_MS, RaftState
from tailrace_broker.model.agreement import (
    COMMAND,
    EMPTY,
    NOTHING,
    VOTERS,
    Block,
    BlockId,
    Configuration,
    DiskId,
)
from tailrace_broker.model.messages import Append, Appended, Follow, SliceTaken, SnapshotSlice

MESSAGE_BYTES_MAX = 64 * 1024
# Of blocks that are not agreed yet: beyond that nothing is proposed.
OPEN_BYTES_MAX = 1024 * 1024
LEARNER_SILENT_MS = 30_000


class Leading:
    """A leader's term. `is_over`: it must step down, though no other leader is known."""

    def __init__(
        self, state: RaftState, *, kind: int = EMPTY, payload: bytes = b"", number: int = 0
    ) -> None:
        """Its first block is of this kind. Nothing is sent before write `number` is durable."""
        self.progress: dict[DiskId, Progress] = {}
        self.is_over = False
        self.heartbeat_at_ms = state.now_ms + state.timing.heartbeat_ms
        self._state = state
        self._number = number
        self._round = 0
        self._reads: deque[tuple[int, int]] = deque()  # requests, and the rounds that they need
        self._speakers: dict[int, DiskId] = {}  # who speaks for a broker
        state.leader = state.me
        state.rules["leader.elected"] += 1
        tail = state.chain.between(state.commit, state.chain.head)
        self._open_bytes = _size_of(tail)
        self._watch_voters()
        self._add(kind, payload)
        self._send_all()

    @property
    def is_established(self) -> bool:
        """A block of its own term is agreed, and so is all before it."""
        return self._state.commit.term == self._state.term

    # --- what is asked of it ---

    def propose(self, payload: bytes) -> None:
        """A command; nothing happens while too much is open."""
        if self._open_bytes + len(payload) > OPEN_BYTES_MAX:
            self._state.rules["propose.refused"] += 1
            return
        self._add(COMMAND, payload)
        self._send_all()

    def change_voters(self, voters: tuple[DiskId, ...]) -> None:
        """By way of both majorities; nothing happens unless the new ones are caught up."""
        state = self._state
        now = state.chain.configuration
        if (
            not self.is_established
            or now.is_joint
            or state.chain.configuration_height > state.commit.height
            or not voters
            or len(set(voters)) < len(voters)
            or set(voters) == set(now.voters)
        ):
            state.rules["voters.refused"] += 1
            return
        caught_up = {disk for disk in voters if self._is_caught_up(disk)}
        if not caught_up >= set(voters) - set(now.voters) or not is_quorum(
            Configuration(voters), caught_up
        ):
            state.rules["voters.not_caught_up"] += 1
            return
        state.rules["joint.begun"] += 1
        self._add(VOTERS, encode_configuration(Configuration(now.voters, voters)))
        self._send_all()

    def ask_read(self, request: int) -> None:
        """Answered by a round that begins after it was asked."""
        is_quiet = not self._reads
        self._reads.append((request, self._round + 1))
        if is_quiet:
            self._begin_round()
        self._answer_reads()

    # --- what it hears ---

    def appended(self, message: Appended) -> None:
        """Where a disk stands; in this term."""
        chain = self._state.chain
        progress = self._hear(message.sender, message.round)
        known: BlockId | None = None
        if chain.has(message.head):
            known = message.head
        elif chain.has(message.commit):
            known = message.commit
        if known is not None:
            progress.match(known)
            if progress.snapshot is not None:
                progress.snapshot = None
                progress.go_back(known)
        if not message.is_accepted and message.round >= progress.reset_round:
            self._go_back(progress, message.commit if known is None else known)
        self._count()
        self._feed(progress)
        self._answer_reads()

    def slice_taken(self, message: SliceTaken) -> None:
        """How much of the snapshot a disk has; in this term."""
        progress = self._hear(message.sender, message.round)
        snapshot = progress.snapshot
        if snapshot is not None and message.id == snapshot.id:
            if message.position == len(snapshot.state):
                progress.snapshot = None
                progress.go_back(snapshot.id)
                if self._state.chain.has(snapshot.id):
                    progress.match(snapshot.id)
                self._count()
                self._feed(progress)
            elif message.position > progress.position:
                progress.position = message.position
                self._send_slice(progress)
            else:
                # Of old, or it has begun anew: it is asked with the next sign of life.
                progress.position = message.position
        self._answer_reads()

    def follow(self, message: Follow) -> None:
        """A disk that is not fed, as far as it knows."""
        is_new = message.sender not in self.progress
        progress = self._see(message.sender)
        if is_new:
            self._go_back(progress, message.commit)
        self._feed(progress, is_due=True)

    def missed(self, disk: DiskId) -> None:
        """It asks for votes: it hears no leader, and may not know that it votes no more."""
        self._feed(self._see(disk), is_due=True)

    def unreachable(self, ordinal: int) -> None:
        """What was on its way there is lost."""
        for disk, progress in self.progress.items():
            if disk.ordinal == ordinal and progress.matched != NOTHING:
                progress.go_back(progress.matched)

    def written(self) -> None:
        """More of its own blocks may be durable."""
        self._count()
        self._answer_reads()
        if self._number and self._state.disk.durable >= self._number:
            self._number = 0
            self._send_all()

    def wake(self) -> None:
        """A sign of life is due; and a look at who gave one."""
        state = self._state
        now_ms, timing = state.now_ms, state.timing
        heard = {
            disk
            for disk, progress in self.progress.items()
            if now_ms - progress.heard_at_ms <= timing.election_ms
        }
        if not is_quorum(state.chain.configuration, heard | {state.me}):
            state.rules["quorum.lost"] += 1
            self.is_over = True
            return
        self._forget_learners()
        self._begin_round()

    # --- the chain ---

    def _add(self, kind: int, payload: bytes) -> None:
        state = self._state
        head = state.chain.head
        state.append(Block(BlockId(state.term, head.height + 1), head, kind, payload))
        self._open_bytes += len(payload) + BLOCK_OVERHEAD_BYTES
        if kind == VOTERS:
            self._watch_voters()

    def _watch_voters(self) -> None:
        state = self._state
        for disk in sorted(state.chain.configuration.disks - self.progress.keys() - {state.me}):
            progress = Progress(disk, state.chain.head, state.now_ms)
            progress.is_replaced = disk.ordinal == state.me.ordinal
            self.progress[disk] = progress

    def _count(self) -> None:
        """Agree on what enough voters have; of its own term, since another's may still be lost."""
        state, chain = self._state, self._state.chain
        height = agreed_height(chain.configuration, self._height_of)
        if height <= state.commit.height:
            return
        block_id = chain.at(height)
        if block_id.term != state.term:
            state.rules["commit.own_term_only"] += 1
            return
        was_open = chain.configuration_height > state.commit.height
        agreed = chain.between(state.commit, block_id)
        state.advance_commit(block_id)
        self._open_bytes -= _size_of(agreed)
        if was_open and chain.configuration_height <= height:
            self._voters_agreed(chain.configuration)
        self._send_all(is_due=True)

    def _voters_agreed(self, configuration: Configuration) -> None:
        state = self._state
        if configuration.is_joint:
            self._add(VOTERS, encode_configuration(Configuration(configuration.next_voters)))
            return
        state.rules["joint.done"] += 1
        if state.me not in configuration.voters:
            self.is_over = True

    def _height_of(self, disk: DiskId) -> int:
        if disk == self._state.me:
            return self._state.disk.head.height
        return self.progress[disk].matched.height

    def _is_caught_up(self, disk: DiskId) -> bool:
        state = self._state
        if disk == state.me:
            return True
        progress = self.progress.get(disk)
        return (
            progress is not None
            and progress.matched.height >= state.commit.height
            and state.now_ms - progress.heard_at_ms <= state.timing.election_ms
        )

    # --- others ---

    def _see(self, disk: DiskId) -> Progress:
        state = self._state
        progress = self.progress.get(disk)
        if progress is None:
            state.rules["learner.found"] += 1
            progress = self.progress[disk] = Progress(disk, state.chain.head, LONG_AGO_MS)
        progress.seen_at_ms = state.now_ms
        if self._speakers.get(disk.ordinal) != disk:
            self._speakers[disk.ordinal] = disk
            for other, its in self.progress.items():
                if other.ordinal == disk.ordinal:
                    its.is_replaced = other != disk
        return progress

    def _hear(self, disk: DiskId, round: int) -> Progress:
        progress = self._see(disk)
        progress.heard_at_ms = self._state.now_ms
        progress.round = max(progress.round, round)
        return progress

    def _go_back(self, progress: Progress, block_id: BlockId) -> None:
        """To a block that the other disk has; or a snapshot, if this one lacks what follows."""
        chain = self._state.chain
        if not chain.has(block_id) and block_id.height >= chain.base.height:
            self._state.rules["commit.unknown"] += 1
            return
        progress.go_back(block_id)
        # What was sent before will be refused as well.
        self._round += 1
        progress.reset_round = self._round

    def _forget_learners(self) -> None:
        state = self._state
        voters = state.chain.configuration.disks
        for disk, progress in list(self.progress.items()):
            if disk not in voters and state.now_ms - progress.seen_at_ms > LEARNER_SILENT_MS:
                state.rules["learner.forgotten"] += 1
                del self.progress[disk]

    # --- feeding ---

    def _begin_round(self) -> None:
        self._round += 1
        self.heartbeat_at_ms = self._state.now_ms + self._state.timing.heartbeat_ms
        for progress in self.progress.values():
            if progress.snapshot is None:
                self._feed(progress, is_due=True)
            else:
                self._send_slice(progress)

    def _send_all(self, *, is_due: bool = False) -> None:
        for progress in self.progress.values():
            self._feed(progress, is_due=is_due)

    def _feed(self, progress: Progress, *, is_due: bool = False) -> None:
        """What it lacks, as far as there is room on the way; nothing new is sent if `is_due`."""
        if self._number or progress.is_replaced or progress.snapshot is not None:
            return
        state, chain = self._state, self._state.chain
        if not chain.has(progress.sent):
            state.rules["snapshot.sent"] += 1
            progress.snapshot = state.snapshot
            progress.position = 0
            self._send_slice(progress)
            return
        while progress.sent != chain.head and progress.has_room:
            blocks, size_bytes = chain.after(progress.sent, MESSAGE_BYTES_MAX)
            self._send_blocks(progress, blocks)
            progress.send(blocks[-1].id, size_bytes)
            is_due = False
        if is_due:
            self._send_blocks(progress, ())

    def _send_blocks(self, progress: Progress, blocks: tuple[Block, ...]) -> None:
        state = self._state
        message = Append(state.term, state.me, progress.sent, blocks, state.commit, self._round)
        state.send(progress.disk.ordinal, message)

    def _send_slice(self, progress: Progress) -> None:
        state, snapshot, position = self._state, progress.snapshot, progress.position
        if self._number or progress.is_replaced:
            return
        assert snapshot is not None
        message = SnapshotSlice(
            state.term,
            state.me,
            snapshot.id,
            snapshot.configuration,
            position,
            len(snapshot.state),
            snapshot.state[position : position + MESSAGE_BYTES_MAX],
            self._round,
        )
        state.send(progress.disk.ordinal, message)

    # --- reads ---

    def _answer_reads(self) -> None:
        state = self._state
        if not self._reads or not self.is_established:
            return
        while self._reads and self._is_answered(self._reads[0][1]):
            request, _ = self._reads.popleft()
            state.effects.append(ReadReady(request, state.commit.height))
        if self._reads and self._reads[0][1] > self._round:
            self._begin_round()

    def _is_answered(self, round: int) -> bool:
        heard = {disk for disk, progress in self.progress.items() if progress.round >= round}
        return is_quorum(self._state.chain.configuration, heard | {self._state.me})


def _size_of(blocks: tuple[Block, ...]) -> int:
    return sum(len(block.payload) + BLOCK_OVERHEAD_BYTES for block in blocks)
