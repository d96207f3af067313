"""The values of consensus: blocks on chains, who votes on them, and what a disk keeps of that.

A block names its parent, so that blocks form a tree; what has been committed is one chain of it.
"""

from typing import NamedTuple
from uuid import UUID

import msgspec


class BlockId(NamedTuple):
    """Unique: a term has one leader, which only extends its own chain. The greater is the newer."""

    term: int
    height: int


# The bootstrap; every chain of a ring starts on it.
INITIAL_ID = BlockId(0, 0)
# Where a disk is that belongs to no ring.
NOTHING = BlockId(-1, -1)


class DiskId(NamedTuple):
    """Who votes: a broker with this data directory. A new disk is a new voter."""

    ordinal: int
    incarnation: UUID


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """The voters. While they change, a majority of the next ones is needed as well."""

    voters: tuple[DiskId, ...]
    next_voters: tuple[DiskId, ...] = ()

    @property
    def is_joint(self) -> bool:
        """The voters are being changed."""
        return bool(self.next_voters)

    @property
    def disks(self) -> frozenset[DiskId]:
        """Return all disks that vote."""
        return frozenset(self.voters + self.next_voters)


# What a block holds.
EMPTY, VOTERS, COMMAND = range(3)


class Block(msgspec.Struct, frozen=True, array_like=True):
    """`payload`: a configuration (VOTERS), or what the state machine reads (COMMAND)."""

    id: BlockId
    parent: BlockId
    kind: int = EMPTY
    payload: bytes = b""


class Term(msgspec.Struct, frozen=True, array_like=True, tag="term"):
    """The term that a disk has seen, and whom it voted for in it."""

    term: int
    vote: DiskId | None = None


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="block"):
    """A block, on whatever branch."""

    block: Block


class Head(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    """The end of this disk's chain from now on."""

    id: BlockId


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """Up to here this disk's chain is committed, and applied as soon as this record is durable."""

    id: BlockId


class Reserved(msgspec.Struct, frozen=True, array_like=True, tag="reserved"):
    """An empty disk awaits this bootstrap and no other."""

    bootstrap: UUID


# What a disk keeps, in the order in which it happened; the last of a kind counts.
Record = Term | Stored | Head | Commit | Reserved


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The replicated state after the block `id`, in place of the chain up to there."""

    id: BlockId
    configuration: Configuration
    state: bytes  # codec.ring_snapshot


class Kept(msgspec.Struct, frozen=True):
    """What a disk says at a start. Without a snapshot it belongs to no ring.

    `blocks`: all above the snapshot, whole branches, in the order in which they were stored.
    `head` and `commit` are the snapshot's block, or among `blocks`.
    """

    term: Term = Term(0)
    snapshot: Snapshot | None = None
    blocks: tuple[Block, ...] = ()
    head: BlockId = NOTHING
    commit: BlockId = NOTHING
    reserved: UUID | None = None
