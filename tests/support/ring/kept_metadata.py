"""What stopped brokers' disks say of the metadata, block by block, and whether they agree."""

from pathlib import Path

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.codec.ring_snapshot import decode_state
from tailrace_broker.core.raft.metadata_log import MetadataLog
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.agreement import COMMAND, Block, BlockId, Kept
from tailrace_broker.model.ring_state import RingState


def metadata_directory(data_dir: Path) -> Path:
    """Where a broker keeps what was committed."""
    return data_dir / "data/metadata"


def kept_on(data_dir: Path) -> Kept:
    """What a stopped broker's disk says."""
    files = {path.name: path.read_bytes() for path in metadata_directory(data_dir).iterdir()}
    kept, _ = MetadataLog.recover(files)
    return kept


def committed_blocks(kept: Kept) -> list[Block]:
    """Above the snapshot, in the order of their heights."""
    assert kept.snapshot is not None
    by_id = {block.id: block for block in kept.blocks}
    chain: list[Block] = []
    block_id: BlockId = kept.commit
    while block_id != kept.snapshot.id:
        chain.append(by_id[block_id])
        block_id = by_id[block_id].parent
    return chain[::-1]


def committed_state(kept: Kept, height: int) -> RingState:
    """As it was at a height that the disk has not left behind, and knows to be committed."""
    assert kept.snapshot is not None
    assert kept.snapshot.id.height <= height <= kept.commit.height
    state = decode_state(kept.snapshot.state)
    for block in committed_blocks(kept):
        if block.kind == COMMAND and block.id.height <= height:
            state = apply_command(state, decode_command(block.payload))
    return state


def assert_same_chain(disks: list[Kept]) -> None:
    """No height has two committed blocks."""
    by_height: dict[int, Block] = {}
    for kept in disks:
        for block in committed_blocks(kept):
            assert by_height.setdefault(block.id.height, block) == block


def assert_same_state(disks: list[Kept]) -> RingState:
    """Disks have the same state at the last height that all know to be committed; that state.

    One whose snapshot is later still cannot say.
    """
    height = min(kept.commit.height for kept in disks)
    able = [disk for disk in disks if disk.snapshot and disk.snapshot.id.height <= height]
    first, *others = [committed_state(kept, height) for kept in able]
    assert all(other == first for other in others), f"states differ at height {height}"
    return first
