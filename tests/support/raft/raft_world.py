"""Several consensus machines with disks and a network in memory, and what must hold among them.

The machines are the real ones. A disk does its writes one by one, when asked; a crash loses those
that it has not done. The replicated state is the list of commands, kept as text.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tailrace_broker.core.raft.events import (
    Apply,
    AskRead,
    ChangeVoters,
    Compact,
    Compacted,
    Durable,
    Initialize,
    Install,
    Keep,
    Propose,
    RaftEffect,
    RaftEvent,
    ReadReady,
    Received,
    Replace,
    Send,
    Unreachable,
    Woken,
)
from tailrace_broker.core.raft.raft import Raft, RaftTiming
from tailrace_broker.model.agreement import (
    COMMAND,
    INITIAL_ID,
    NOTHING,
    Block,
    BlockId,
    Commit,
    Configuration,
    DiskId,
    Head,
    Kept,
    Record,
    Snapshot,
    Stored,
    Term,
)
from tailrace_broker.model.messages import Follow, RaftMessage

TIMING = RaftTiming(heartbeat_ms=250, election_ms=1000)
FOLLOW_MS = 500


def disk_id(ordinal: int, incarnation: int = 1) -> DiskId:
    """A voter of tests."""
    return DiskId(ordinal, UUID(int=100 * ordinal + incarnation))


def initial_of(*disks: DiskId, state: bytes = b"") -> Snapshot:
    """What a ring of these begins with."""
    return Snapshot(INITIAL_ID, Configuration(disks), state)


@dataclass(slots=True)
class MemoryDisk:
    """What a data directory keeps. `writes`: on their way to it, oldest first."""

    id: DiskId
    snapshot: Snapshot | None = None
    records: list[Record] = field(default_factory=list)
    writes: list[Keep | Replace | Compact] = field(default_factory=list)
    # A compaction whose snapshot is being written, and what is to follow it.
    compaction: tuple[Snapshot, list[Record]] | None = None

    def write(self, state: bytes) -> int:
        """Do the oldest write; its number. `state`: for a compaction."""
        write = self.writes.pop(0)
        match write:
            case Keep(_, records):
                self.records += records
                if self.compaction is not None:
                    self.compaction[1].extend(records)
            case Replace(_, snapshot, records):
                assert self.compaction is None
                self.snapshot, self.records = snapshot, list(records)
            case Compact(_, block_id, configuration, records):
                assert self.compaction is None
                self.compaction = (Snapshot(block_id, configuration, state), list(records))
        return write.number

    def end_compaction(self) -> Snapshot:
        """The snapshot is there; what was before it goes."""
        assert self.compaction is not None
        self.snapshot, self.records = self.compaction
        self.compaction = None
        return self.snapshot

    def crash(self) -> None:
        """What was on its way is lost."""
        self.writes.clear()
        self.compaction = None

    def kept(self) -> Kept:
        """What a start finds."""
        term, blocks = Term(0), []
        head = commit = NOTHING if self.snapshot is None else self.snapshot.id
        for record in self.records:
            match record:
                case Term():
                    term = record
                case Stored(block):
                    blocks.append(block)
                case Head(block_id):
                    head = block_id
                case Commit(block_id):
                    commit = block_id
        return Kept(term, self.snapshot, tuple(blocks), head, commit)


class Node:
    """A broker: its disk, its machine while it runs, and the state that it has applied."""

    def __init__(self, world: "World", disk: MemoryDisk) -> None:
        self.world = world
        self.disk = disk
        self.raft: Raft | None = None
        self.state: bytes = b""
        self.applied = NOTHING
        self.compacting: list[bytes] = []  # states that are to be written
        self.reads: dict[int, int] = {}  # answered: by request

    def start(self) -> Raft:
        """From what is on the disk."""
        kept = self.disk.kept()
        world = self.world
        self.raft = Raft(
            self.disk.id,
            kept,
            TIMING,
            world.random,
            world.now_ms,
            world.rules,
            compact_bytes=world.compact_bytes,
        )
        self.state = b"" if kept.snapshot is None else kept.snapshot.state
        self.applied = NOTHING if kept.snapshot is None else kept.snapshot.id
        self._apply(self.raft.applied_blocks_at_start())
        assert self.applied == self.raft.applied == kept.commit
        world.voters |= self.raft.configuration.disks
        return self.raft

    def stop(self) -> None:
        """Without warning."""
        self.raft = None
        self.compacting.clear()
        self.disk.crash()

    def step(self, event: RaftEvent) -> list[RaftEffect]:
        """And do what it says, as far as that takes no time."""
        if self.raft is None:
            return []
        effects = self.raft.step(event, self.world.now_ms)
        self.raft.validate()
        if self.world.watch is not None:
            self.world.watch(self, event, effects)
        for effect in effects:
            self._do(effect)
        assert self.applied == self.raft.applied
        self.world.check(self)
        return effects

    def write(self, count: int = 1) -> list[RaftEffect]:
        """Let the disk do writes, and acknowledge them in one."""
        number = 0
        for _ in range(min(count, len(self.disk.writes))):
            is_compaction = isinstance(self.disk.writes[0], Compact)
            number = self.disk.write(self.compacting.pop(0) if is_compaction else b"")
        return self.step(Durable(number)) if number else []

    def end_compaction(self) -> None:
        """The snapshot that it was asked for is on disk."""
        if self.disk.compaction is not None:
            self.step(Compacted(self.disk.end_compaction()))

    def _do(self, effect: RaftEffect) -> None:
        match effect:
            case Keep() | Replace():
                self.disk.writes.append(effect)
            case Compact(_, block_id):
                assert block_id == self.applied
                self.disk.writes.append(effect)
                self.compacting.append(self.state)
            case Apply(blocks):
                self._apply(blocks)
            case Install(snapshot):
                self.state, self.applied = snapshot.state, snapshot.id
                self.world.committed(snapshot.id)
            case ReadReady(request, height):
                assert height >= self.world.asked[request], request
                self.reads[request] = height
            case Send(ordinal, message):
                self.world.send(self.disk.id.ordinal, ordinal, message)

    def _apply(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            assert block.parent == self.applied, (block.parent, self.applied)
            if block.kind == COMMAND:
                self.state += block.payload + b"\n"
            self.applied = block.id
            self.world.committed(block.id)


class World:
    """`mail`: what is under way: from, to and what. `cut`: (from, to) that get nothing."""

    def __init__(
        self, voter_count: int = 3, *, seed: int = 0, compact_bytes: int = 1024 * 1024
    ) -> None:
        self.random = Random(seed)
        self.now_ms = 1000
        self.rules: Counter[str] = Counter()
        self.compact_bytes = compact_bytes
        self.mail: list[tuple[int, int, RaftMessage]] = []
        self.cut: set[tuple[int, int]] = set()
        self.nodes: dict[int, Node] = {}
        self.voters: set[DiskId] = set()  # who was ever meant to vote
        self.watch: Callable[[Node, RaftEvent, list[RaftEffect]], None] | None = None
        self.leaders: dict[int, DiskId] = {}  # by term
        self.blocks: dict[int, BlockId] = {}  # committed, by height
        self.states: dict[BlockId, bytes] = {}
        self.asked: dict[int, int] = {}  # what was committed when a read was asked, by request
        initial = initial_of(*map(disk_id, range(voter_count)))
        for ordinal in range(voter_count):
            self.add(MemoryDisk(disk_id(ordinal), initial))

    def add(self, disk: MemoryDisk) -> Node:
        """Start a broker; another one of its ordinal is gone with its disk."""
        node = self.nodes[disk.id.ordinal] = Node(self, disk)
        node.start()
        return node

    def __getitem__(self, ordinal: int) -> Raft:
        raft = self.nodes[ordinal].raft
        assert raft is not None
        return raft

    def send(self, sender: int, ordinal: int, message: object) -> None:
        """To whom it may reach."""
        assert sender != ordinal
        assert isinstance(message, RaftMessage)
        if ordinal in self.nodes and (sender, ordinal) not in self.cut:
            self.mail.append((sender, ordinal, message))

    # --- what must hold ---

    def committed(self, block_id: BlockId) -> None:
        """A height has one block, for ever."""
        found = self.blocks.setdefault(block_id.height, block_id)
        assert found == block_id, (found, block_id)

    def check(self, node: Node) -> None:
        """A term has one leader, and a block one state."""
        raft = node.raft
        assert raft is not None
        if raft.role == "leader":
            assert self.leaders.setdefault(raft.term, node.disk.id) == node.disk.id, raft.term
        self.voters |= raft.configuration.disks
        if node.applied >= INITIAL_ID:
            assert self.states.setdefault(node.applied, node.state) == node.state, node.applied

    # --- time passes, nothing is lost ---

    def deliver(self, count: int | None = None) -> None:
        """The oldest messages."""
        for sender, ordinal, message in self.mail[:count]:
            self.mail.pop(0)
            if (sender, ordinal) not in self.cut:
                self.nodes[ordinal].step(Received(message))

    def settle(self) -> None:
        """Deliver and write until nothing is under way; no time passes."""
        for _ in range(10_000):
            if not self.mail and not any(node.disk.writes for node in self.nodes.values()):
                return
            self.deliver(len(self.mail))
            for node in self.nodes.values():
                node.write(len(node.disk.writes))
                node.end_compaction()
        raise AssertionError("they never stop talking")

    def settle_node(self, ordinal: int) -> None:
        """Let its disk do all that it has; its messages are lost."""
        node = self.nodes[ordinal]
        while node.disk.writes:
            node.write(len(node.disk.writes))
        self.mail.clear()

    def wake(self) -> None:
        """Go to the moment when the next is to be woken, and wake it."""
        running = [node for node in self.nodes.values() if node.raft is not None]
        wakes = [node.raft.wake_at_ms for node in running if node.raft is not None]
        follow_ms = self.now_ms - self.now_ms % FOLLOW_MS + FOLLOW_MS
        self.now_ms = max(self.now_ms, min(*wakes, follow_ms))
        for node in running:
            assert node.raft is not None
            if node.raft.wake_at_ms <= self.now_ms:
                node.step(Woken())
            needs_leader = node.raft.leader is None or not node.raft.is_voter
            if self.now_ms == follow_ms and needs_leader:
                self.follow(node)

    def follow(self, node: Node) -> None:
        """Somebody has reported it who leads."""
        leader = self.leader
        if node.raft is not None and leader is not None and node is not leader:
            follow = Follow(node.raft.term, node.disk.id, node.applied)
            self.send(node.disk.id.ordinal, leader.disk.id.ordinal, follow)

    def run(self, duration_ms: int) -> None:
        """Let time pass; messages and writes take none."""
        end_ms = self.now_ms + duration_ms
        self.settle()
        while self.now_ms < end_ms:
            self.wake()
            self.settle()

    @property
    def leader(self) -> Node | None:
        """Who leads in the newest term, and is established."""
        leading = [node for node in self.nodes.values() if node.raft and node.raft.is_established]
        return max(leading, key=lambda node: node.raft.term if node.raft else 0, default=None)

    def elect(self, ordinal: int | None = None) -> Node:
        """Wait for a leader; this one, by waking it first."""
        if ordinal is not None:
            self.now_ms = max(self.now_ms, self[ordinal].wake_at_ms)
            self.nodes[ordinal].step(Woken())
            self.settle()
        else:
            for _ in range(100):
                if self.leader is not None:
                    break
                self.run(100)
        leader = self.leader
        assert leader is not None
        assert ordinal in (None, leader.disk.id.ordinal)
        return leader

    # --- what is asked ---

    def propose(self, ordinal: int, payload: bytes) -> list[RaftEffect]:
        return self.nodes[ordinal].step(Propose(payload))

    def change_voters(self, ordinal: int, *disks: DiskId) -> list[RaftEffect]:
        return self.nodes[ordinal].step(ChangeVoters(disks))

    def ask_read(self, ordinal: int, request: int) -> list[RaftEffect]:
        self.asked[request] = max(self.blocks, default=0)
        return self.nodes[ordinal].step(AskRead(request))

    def found(self, ordinal: int, initial: Snapshot) -> list[RaftEffect]:
        return self.nodes[ordinal].step(Initialize(initial))

    def lose_connection(self, ordinal: int, to: int) -> None:
        self.nodes[ordinal].step(Unreachable(to))


def sent(effects: list[RaftEffect]) -> list[RaftMessage]:
    """What goes to other brokers, in its order."""
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, RaftMessage)
    ]


def hear(world: World, ordinal: int, message: RaftMessage) -> list[RaftEffect]:
    """What follows when a broker takes in a message."""
    return world.nodes[ordinal].step(Received(message))
