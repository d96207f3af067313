"""How a leader feeds the other disks its chain, or its snapshot, and knows who hears it."""

from collections.abc import Mapping

from tailrace_broker.core.raft.progress import VoterProgress
from tailrace_broker.core.raft.state import LONG_AGO_MS, RaftState
from tailrace_broker.core.raft.ticks import next_tick_ms
from tailrace_broker.model.agreement import NOTHING, Block, BlockId, DiskId
from tailrace_broker.model.messages import Append, SnapshotSlice

MESSAGE_BYTES_MAX = 64 * 1024
LEARNER_SILENT_MS = 30_000


class Feeding:
    """The voters, and whoever else asks to be fed: learners, who are never counted.

    Heartbeats go to all in rounds; an answer names the round of what it answers.
    """

    def __init__(self, state: RaftState, number: int) -> None:
        """Nothing is sent before write `number` is durable."""
        self.round = 0
        self.heartbeat_at_ms = next_tick_ms(state.now_ms, state.timing.heartbeat_ms)
        self._state = state
        self._number = number
        self._progress: dict[DiskId, VoterProgress] = {}
        self.watch_voters()

    @property
    def progress(self) -> Mapping[DiskId, VoterProgress]:
        """Return the progress of all other disks."""
        return self._progress

    # --- who is fed ---

    def watch_voters(self) -> None:
        """Feed those of the configuration in force."""
        state = self._state
        for disk in sorted(state.chain.configuration.disks - self._progress.keys() - {state.me}):
            progress = VoterProgress(disk, state.chain.head, state.now_ms)
            progress.is_replaced = disk.ordinal == state.me.ordinal
            self._progress[disk] = progress

    def forget_learners(self) -> None:
        """Those that have not been seen for long."""
        state = self._state
        voters = state.chain.configuration.disks
        for disk, progress in list(self._progress.items()):
            if disk not in voters and state.now_ms - progress.seen_at_ms > LEARNER_SILENT_MS:
                state.rules["learner.forgotten"] += 1
                del self._progress[disk]

    def see(self, disk: DiskId) -> VoterProgress:
        """It has said anything; whoever it is, it is fed from now on."""
        state = self._state
        progress = self._progress.get(disk)
        if progress is None:
            state.rules["learner.found"] += 1
            progress = self._progress[disk] = VoterProgress(disk, state.chain.head, LONG_AGO_MS)
        progress.seen_at_ms = state.now_ms
        for other, its in self._progress.items():
            if other.ordinal == disk.ordinal:
                its.is_replaced = other != disk
        return progress

    def hear(self, disk: DiskId, round: int) -> VoterProgress:
        """Note that a disk has answered."""
        progress = self.see(disk)
        progress.heard_at_ms = self._state.now_ms
        progress.round = max(progress.round, round)
        return progress

    def heard_within(self, duration_ms: int) -> set[DiskId]:
        """Return which disks have answered in that time, this one included."""
        since_ms = self._state.now_ms - duration_ms
        heard = {disk for disk, its in self._progress.items() if its.heard_at_ms >= since_ms}
        return heard | {self._state.me}

    # --- what is sent ---

    def begin_round(self) -> None:
        """Send a heartbeat to all."""
        self.round += 1
        heartbeat_ms = self._state.timing.heartbeat_ms
        self.heartbeat_at_ms = next_tick_ms(self._state.now_ms, heartbeat_ms)
        for progress in self._progress.values():
            if progress.snapshot is None:
                self.feed(progress, is_due=True)
            else:
                self.send_slice(progress)

    def feed_all(self, *, is_due: bool = False) -> None:
        """Send everyone what it lacks."""
        for progress in self._progress.values():
            self.feed(progress, is_due=is_due)

    def feed(self, progress: VoterProgress, *, is_due: bool = False) -> None:
        """Send a disk blocks that it lacks, within its window; at least a heartbeat if `is_due`."""
        if self._number or progress.is_replaced or progress.snapshot is not None:
            return
        state, chain = self._state, self._state.chain
        if not chain.has(progress.sent):
            state.rules["snapshot.sent"] += 1
            progress.snapshot = state.snapshot
            progress.position = 0
            self.send_slice(progress)
            return
        while progress.sent != chain.head and progress.has_room:
            blocks, size_bytes = chain.after(progress.sent, MESSAGE_BYTES_MAX)
            self._send_blocks(progress, blocks)
            progress.send(blocks[-1].id, size_bytes)
            is_due = False
        if is_due:
            self._send_blocks(progress, ())

    def send_slice(self, progress: VoterProgress) -> None:
        """The next of its snapshot."""
        if self._number or progress.is_replaced:
            return
        state, snapshot, position = self._state, progress.snapshot, progress.position
        assert snapshot is not None
        message = SnapshotSlice(
            state.term,
            state.me,
            snapshot.id,
            snapshot.configuration,
            position,
            len(snapshot.state),
            snapshot.state[position : position + MESSAGE_BYTES_MAX],
            self.round,
        )
        state.send(progress.disk.ordinal, message)

    def _send_blocks(self, progress: VoterProgress, blocks: tuple[Block, ...]) -> None:
        state = self._state
        message = Append(state.term, state.me, progress.sent, blocks, state.commit, self.round)
        state.send(progress.disk.ordinal, message)

    # --- what was lost ---

    def go_back(self, progress: VoterProgress, block_id: BlockId) -> None:
        """Go back to a block that the other disk has, or to a snapshot."""
        chain = self._state.chain
        if not chain.has(block_id) and block_id.height >= chain.base.height:
            self._state.rules["commit.unknown"] += 1
            return
        progress.go_back(block_id)
        # What was sent before will be refused as well.
        self.round += 1
        progress.reset_round = self.round

    def unreachable(self, ordinal: int) -> None:
        """Give up the messages to a disk: they are lost."""
        for disk, progress in self._progress.items():
            if disk.ordinal == ordinal and progress.matched != NOTHING:
                progress.go_back(progress.matched)

    def written(self) -> None:
        """Send what waited for the disk, if all before it is durable."""
        if self._number and self._state.disk.durable >= self._number:
            self._number = 0
            self.feed_all()
