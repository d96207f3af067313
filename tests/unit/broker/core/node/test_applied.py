"""The state that a disk has committed."""

from uuid import UUID

import pytest

from tailrace_broker.codec.commands import encode_command
from tailrace_broker.codec.ring_snapshot import encode_state
from tailrace_broker.core.node.applied import state_at
from tailrace_broker.core.ring.commands import initial_state
from tailrace_broker.model.agreement import (
    COMMAND,
    INITIAL_ID,
    Block,
    BlockId,
    Configuration,
    DiskId,
    Kept,
    Snapshot,
)
from tailrace_broker.model.commands import CreateTopic, Stamped
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.ring_state import Registration
from tailrace_broker.model.topic import TopicSettings

DISK = UUID(int=1)
FIRST, SECOND, UNCOMMITTED = BlockId(1, 1), BlockId(1, 2), BlockId(1, 3)


def create(block_id: BlockId, parent: BlockId, name: str) -> Block:
    command = CreateTopic(name, UUID(int=block_id.height), TopicSettings())
    payload = encode_command(Stamped(block_id.height, command))
    return Block(block_id, parent, COMMAND, payload)


def kept(*blocks: Block) -> Kept:
    mine = Registration(0, 1, DISK, 1, UUID(int=2), "disk")
    state = initial_state(UUID(int=3), 1, 1, [mine])
    snapshot = Snapshot(INITIAL_ID, Configuration((DiskId(0, DISK),)), encode_state(state))
    return Kept(snapshot=snapshot, blocks=blocks, head=UNCOMMITTED, commit=SECOND)


def test_committed_commands_are_applied_to_the_snapshot() -> None:
    empty = Block(FIRST, INITIAL_ID)
    state = state_at(kept(empty, create(SECOND, FIRST, "a"), create(UNCOMMITTED, SECOND, "b")))

    assert state is not None
    assert list(state.topics) == ["a"]


def test_a_disk_without_a_snapshot_belongs_to_no_ring() -> None:
    assert state_at(Kept()) is None


def test_a_chain_that_lacks_a_block_is_refused() -> None:
    with pytest.raises(CorruptMetadataError, match="is missing of what the ring agreed"):
        state_at(kept(create(SECOND, FIRST, "a")))
