"""What a disk does with the blocks and snapshots of its term's leader."""

from tailrace_broker.codec.configuration import decode_configuration
from tailrace_broker.core.raft.state import RaftState
from tailrace_broker.model.agreement import VOTERS, Block, BlockId, Configuration, DiskId, Snapshot
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.messages import Append, SliceTaken, SnapshotSlice

SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024


class Following:
    """Takes the chain that the leader sends, and gathers slices of its snapshot."""

    def __init__(self, state: RaftState) -> None:
        self.is_compacting = False
        self._state = state
        self._slices_of: tuple[DiskId, BlockId, int] | None = None
        self._contents = bytearray()

    # --- blocks ---

    def append(self, message: Append) -> None:
        """Handle an append of this term's leader."""
        state = self._state
        if state.is_installing:
            return
        if not _is_chain(message.parent, message.blocks):
            state.rules["append.malformed"] += 1
            return
        new = self._above_commit(message)
        if new is None:
            state.reply(message.sender.ordinal, message.round, is_accepted=False)
            return
        parent, blocks = new
        self._forget_slices()
        is_new = self._take(blocks)
        last = blocks[-1].id if blocks else parent
        self._learn_commit(message.commit, last)
        if is_new:
            state.promise_reply(message.sender.ordinal, message.round)
        else:
            state.reply(message.sender.ordinal, message.round, is_accepted=True)

    def _above_commit(self, message: Append) -> tuple[BlockId, tuple[Block, ...]] | None:
        """The part of the message that is not committed yet; None: it does not fit this chain."""
        state = self._state
        parent, blocks, commit = message.parent, message.blocks, state.commit
        if state.snapshot is None:
            return None
        committed_count = commit.height - parent.height
        if committed_count > 0:
            if len(blocks) < committed_count:
                state.rules["append.old"] += 1
                return parent, ()
            parent, blocks = blocks[committed_count - 1].id, blocks[committed_count:]
        if parent.height == commit.height and parent != commit:
            # Only a ring that was recovered by hand can have committed something else.
            state.rules["commit.refused"] += 1
            return None
        if not state.chain.knows(parent):
            state.rules["append.refused"] += 1
            return None
        return parent, blocks

    def _take(self, blocks: tuple[Block, ...]) -> bool:
        """Take blocks; return whether there was anything to keep."""
        state = self._state
        chain = state.chain
        is_new = False
        for block in blocks:
            if not chain.knows(block.id):
                chain.add(block)
                state.disk.keep_block(block)
                is_new = True
        if blocks and not chain.has(blocks[-1].id):
            state.move_head(blocks[-1].id)
            is_new = True
        return is_new

    def _learn_commit(self, commit: BlockId, last: BlockId) -> None:
        """`last` is on the leader's chain, as `commit` is: the lower of them is committed."""
        state = self._state
        committed = min(commit, last, key=lambda block_id: block_id.height)
        if committed.height > state.commit.height and state.chain.has(committed):
            state.advance_commit(committed)

    # --- snapshots ---

    def take_slice(self, message: SnapshotSlice) -> None:
        """Handle a slice of this term's leader. The answer names the next slice."""
        state = self._state
        if state.chain.knows(message.id):
            self._commit(message.id)
        if message.id.height <= state.commit.height:
            self._answer(message, message.size_bytes)
            return
        if state.is_installing or self.is_compacting:
            return
        if message.size_bytes > SNAPSHOT_BYTES_MAX:
            state.rules["snapshot.too_large"] += 1
            return
        key = (message.sender, message.id, message.size_bytes)
        if self._slices_of != key:
            self._slices_of = key
            self._contents.clear()
        if message.position == len(self._contents):
            self._contents += message.contents
        else:
            state.rules["slice.refused"] += 1
        if len(self._contents) >= message.size_bytes:
            self._install(message.id, message.configuration)
            self._answer(message, message.size_bytes)
        else:
            self._answer(message, len(self._contents))

    def _forget_slices(self) -> None:
        """No snapshot is needed, or it is whole."""
        self._slices_of = None
        self._contents = bytearray()

    def _commit(self, block_id: BlockId) -> None:
        """A snapshot's block is committed; blocks behind it may have been counted, and stay."""
        state = self._state
        if block_id.height > state.commit.height:
            if not state.chain.has(block_id):
                state.move_head(block_id)
            state.advance_commit(block_id)

    def _install(self, block_id: BlockId, configuration: Configuration) -> None:
        state = self._state
        snapshot = Snapshot(block_id, configuration, bytes(self._contents))
        self._forget_slices()
        state.rules["snapshot.installed"] += 1
        state.install(snapshot)

    def _answer(self, message: SnapshotSlice, position: int) -> None:
        state = self._state
        taken = SliceTaken(state.term, state.me, message.id, position, message.round)
        if state.is_disk_stalled:
            state.rules["disk.silent"] += 1
        elif position < message.size_bytes:
            state.send_term(message.sender.ordinal, taken)
        else:
            state.promise(message.sender.ordinal, taken)


def _is_chain(parent: BlockId, blocks: tuple[Block, ...]) -> bool:
    """Each block follows the one before, and can be read as far as this machine reads them."""
    for block in blocks:
        if block.parent != parent or block.id.height != parent.height + 1:
            return False
        if block.id.term < parent.term:
            return False
        if block.kind == VOTERS:
            try:
                decode_configuration(block.payload)
            except CorruptMetadataError:
                return False
        parent = block.id
    return True
