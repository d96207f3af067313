"""What the leader of a term does: it takes what is to be committed, counts, and answers reads."""

from collections import deque
from collections.abc import Mapping

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.raft.chain import BLOCK_OVERHEAD_BYTES
from tailrace_broker.core.raft.events import ReadReady
from tailrace_broker.core.raft.feeding import Feeding
from tailrace_broker.core.raft.progress import VoterProgress
from tailrace_broker.core.raft.quorum import is_quorum, quorum_height
from tailrace_broker.core.raft.state import RaftState
from tailrace_broker.model.agreement import (
    COMMAND,
    VOTERS,
    Block,
    BlockId,
    Configuration,
    DiskId,
)
from tailrace_broker.model.messages import AppendAnswered, Follow, SliceTaken

# Of blocks that are not committed yet: beyond that nothing is proposed.
OPEN_BYTES_MAX = 1024 * 1024
# Beyond that nobody is answered who asks; it asks again.
READS_MAX = 1000


class Leading:
    """A leader's term. `is_over`: it must step down, though no other leader is known."""

    def __init__(self, state: RaftState, *, kind: int, payload: bytes, number: int) -> None:
        """Its first block is of this kind. Nothing is sent before write `number` is durable."""
        self.is_over = False
        self._state = state
        self._feeding = Feeding(state, number)
        self._reads: deque[tuple[int, int]] = deque()  # requests, and the rounds that they need
        state.leader = state.me
        state.rules["leader.elected"] += 1
        tail = state.chain.between(state.commit, state.chain.head)
        self._open_bytes = _size_of(tail)
        self._add(kind, payload)
        self._feeding.feed_all()

    @property
    def is_established(self) -> bool:
        """A block of its own term is committed, and so is all before it."""
        return self._state.commit.term == self._state.term

    @property
    def progress(self) -> Mapping[DiskId, VoterProgress]:
        """Return the progress of all other disks, voters and learners."""
        return self._feeding.progress

    @property
    def heartbeat_at_ms(self) -> int:
        """Return when the leader is to be woken."""
        return self._feeding.heartbeat_at_ms

    # --- what is asked of it ---

    def propose(self, payload: bytes) -> None:
        """A command; nothing happens while too much is open."""
        if self._open_bytes + len(payload) > OPEN_BYTES_MAX:
            self._state.rules["propose.refused"] += 1
            return
        self._add(COMMAND, payload)
        self._feeding.feed_all()

    def change_voters(self, voters: tuple[DiskId, ...]) -> None:
        """Change the voters by way of both majorities, once new ones are caught up."""
        state = self._state
        now = state.chain.configuration
        if (
            not self.is_established
            or now.is_joint
            or state.chain.configuration_height > state.commit.height
            or not voters
            or len({disk.ordinal for disk in voters}) < len(voters)
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
        self._feeding.feed_all()

    def ask_read(self, request: int) -> None:
        """Answered by a round that begins after it was asked."""
        if len(self._reads) >= READS_MAX:
            self._state.rules["read.refused"] += 1
            return
        is_quiet = not self._reads
        self._reads.append((request, self._feeding.round + 1))
        if is_quiet:
            self._feeding.begin_round()
        self._answer_reads()

    # --- what it hears ---

    def appended(self, message: AppendAnswered) -> None:
        """Handle how far a disk is; in this term."""
        chain = self._state.chain
        progress = self._feeding.hear(message.sender, message.round)
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
            self._feeding.go_back(progress, message.commit if known is None else known)
        self._count()
        self._feeding.feed(progress)
        self._answer_reads()

    def slice_taken(self, message: SliceTaken) -> None:
        """Handle how much of the snapshot a disk has; in this term."""
        progress = self._feeding.hear(message.sender, message.round)
        snapshot = progress.snapshot
        if snapshot is not None and message.id == snapshot.id:
            if message.position == len(snapshot.state):
                progress.snapshot = None
                progress.go_back(snapshot.id)
                if self._state.chain.has(snapshot.id):
                    progress.match(snapshot.id)
                self._count()
                self._feeding.feed(progress)
            elif message.position > progress.position:
                progress.position = message.position
                self._feeding.send_slice(progress)
            else:
                # Of old, or it has begun again: it is asked with the next heartbeat.
                progress.position = message.position
        self._answer_reads()

    def follow(self, message: Follow) -> None:
        """A disk that is not fed, as far as it knows."""
        is_new = message.sender not in self.progress
        progress = self._feeding.see(message.sender)
        if is_new:
            self._feeding.go_back(progress, message.commit)
        self._feeding.feed(progress, is_due=True)

    def missed(self, disk: DiskId) -> None:
        """It asks for votes: it hears no leader, and may not know that it votes no more."""
        self._feeding.feed(self._feeding.see(disk), is_due=True)

    def unreachable(self, ordinal: int) -> None:
        """A connection to that broker broke."""
        self._feeding.unreachable(ordinal)

    def written(self) -> None:
        """More of its own blocks may be durable."""
        self._count()
        self._answer_reads()
        self._feeding.written()

    def wake(self) -> None:
        """A heartbeat is due; and so is a check of the heartbeats received."""
        state = self._state
        heard = self._feeding.heard_within(state.timing.election_ms)
        if not is_quorum(state.chain.configuration, heard):
            state.rules["quorum.lost"] += 1
            self.is_over = True
            return
        if state.is_disk_stalled:  # the others agree without it, but it applies nothing
            state.rules["disk.stalled"] += 1
            self.is_over = True
            return
        self._feeding.forget_learners()
        self._feeding.begin_round()

    # --- the chain ---

    def _add(self, kind: int, payload: bytes) -> None:
        state = self._state
        head = state.chain.head
        state.append(Block(BlockId(state.term, head.height + 1), head, kind, payload))
        self._open_bytes += len(payload) + BLOCK_OVERHEAD_BYTES
        if kind == VOTERS:
            self._feeding.watch_voters()

    def _count(self) -> None:
        """Commit what enough voters have; of its own term, since another's may still be lost."""
        state, chain = self._state, self._state.chain
        height = quorum_height(chain.configuration, self._height_of)
        if height <= state.commit.height:
            return
        block_id = chain.at(height)
        if block_id.term != state.term:
            state.rules["commit.own_term_only"] += 1
            return
        was_open = chain.configuration_height > state.commit.height
        committed = chain.between(state.commit, block_id)
        state.advance_commit(block_id)
        self._open_bytes -= _size_of(committed)
        if chain.configuration_height <= height:
            self._voters_committed(chain.configuration, was_open=was_open)
        self._feeding.feed_all(is_due=True)

    def _voters_committed(self, configuration: Configuration, *, was_open: bool) -> None:
        """Go on after voters are committed; `was_open`: they were committed just now."""
        state = self._state
        if configuration.is_joint:
            self._add(VOTERS, encode_configuration(Configuration(configuration.next_voters)))
            return
        state.rules["joint.done"] += was_open
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

    # --- reads ---

    def _answer_reads(self) -> None:
        state = self._state
        if not self._reads or not self.is_established:
            return
        answered_round = quorum_height(state.chain.configuration, self._round_of)
        while self._reads and self._reads[0][1] <= answered_round:
            request, _ = self._reads.popleft()
            state.effects.append(ReadReady(request, state.commit.height))
        if self._reads and self._reads[0][1] > self._feeding.round:
            self._feeding.begin_round()

    def _round_of(self, disk: DiskId) -> int:
        """The last round that it has answered; itself even the next."""
        if disk == self._state.me:
            return self._feeding.round + 1
        return self.progress[disk].round


def _size_of(blocks: tuple[Block, ...]) -> int:
    return sum(len(block.payload) + BLOCK_OVERHEAD_BYTES for block in blocks)
