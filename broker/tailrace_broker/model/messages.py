"""The messages between brokers about the ring: one struct each, none trusted to arrive.

Every message may be lost, doubled, delayed or overtaken. `sender` is the disk that speaks; who
reads counts votes and acknowledgements by it. Encoding: `codec.peer`.
"""

from typing import NamedTuple
from uuid import UUID

import msgspec

from tailrace_broker.model.agreement import Block, BlockId, Configuration, DiskId, Snapshot


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="message"):
    pass


# --- election ---


class VoteAsked(_Message, frozen=True, tag=1):
    """`is_pre`: would you vote for me in `term`? Nobody's term changes by the question."""

    term: int
    sender: DiskId
    head: BlockId
    is_pre: bool = False


class VoteAnswered(_Message, frozen=True, tag=2):
    """Sent when the vote is on disk. `term`: the one asked about, or a newer one of the sender."""

    term: int
    sender: DiskId
    is_granted: bool
    is_pre: bool = False


# --- the log ---


class Append(_Message, frozen=True, tag=3):
    """The leader's chain from `parent` on; no blocks: a heartbeat.

    `round` counts the leader's rounds of heartbeats; answers name it, so that the leader knows
    who has heard it since it asked.
    """

    term: int
    sender: DiskId
    parent: BlockId
    blocks: tuple[Block, ...]
    commit: BlockId
    round: int


class AppendAnswered(_Message, frozen=True, tag=4):
    """Sent when it is on disk. `head`: the sender's; `commit`: up to where it has applied.

    Not accepted: the parent is unknown there; begin after `commit`.
    """

    term: int
    sender: DiskId
    is_accepted: bool
    head: BlockId
    commit: BlockId
    round: int


class SnapshotSlice(_Message, frozen=True, tag=5):
    """A part of a snapshot, for a broker that lacks blocks that the leader has no more."""

    term: int
    sender: DiskId
    id: BlockId
    configuration: Configuration
    position: int
    size_bytes: int
    contents: bytes
    round: int


class SliceTaken(_Message, frozen=True, tag=6):
    """`position`: of the slice that comes next; the whole size: it is on disk and in force."""

    term: int
    sender: DiskId
    id: BlockId
    position: int
    round: int


class Follow(_Message, frozen=True, tag=7):
    """Send me your chain from `commit` on: of a broker that hears no leader, or is no voter."""

    term: int
    sender: DiskId
    commit: BlockId


# --- requests to the leader ---


class CommandForwarded(_Message, frozen=True, tag=8):
    """A command (codec.commands). Sent again until the sender has applied it: it carries an id."""

    sender: DiskId
    command: bytes


class ReadAsked(_Message, frozen=True, tag=9):
    """How much must I have applied to know all that is committed now?"""

    sender: DiskId
    request: int


class ReadAnswered(_Message, frozen=True, tag=10):
    """`height`: applied by the asker, its state holds all that was committed when it asked."""

    sender: DiskId
    request: int
    height: int


# --- bootstrap ---


class BootstrapAsked(_Message, frozen=True, tag=11):
    """Are you empty? Then await the bootstrap of this id, and no other."""

    sender: DiskId
    bootstrap: UUID


class BootstrapAnswered(_Message, frozen=True, tag=12):
    """`is_empty`: the sender awaits this bootstrap. Else `initial`: what it was founded with."""

    sender: DiskId
    bootstrap: UUID
    boot: int
    start: UUID
    is_empty: bool
    initial: Snapshot | None = None


class Bootstrapped(_Message, frozen=True, tag=13):
    """The bootstrap; taken by who awaits it and is named in it with its present disk."""

    sender: DiskId
    bootstrap: UUID
    initial: Snapshot


# --- gossip ---


class Hint(NamedTuple):
    """What is known of a broker. The greater (boot, beat) is the newer. `is_fit`: it may lead."""

    ordinal: int
    incarnation: UUID
    boot: int
    beat: int
    height: int  # applied
    is_fit: bool = True


class Digest(_Message, frozen=True, tag=14):
    """Hints, and whom the sender takes for the leader. At most 1,400 bytes when encoded."""

    sender: DiskId
    hints: tuple[Hint, ...]
    term: int
    leader: int | None


RaftMessage = (
    VoteAsked | VoteAnswered | Append | AppendAnswered | SnapshotSlice | SliceTaken | Follow
)
Message = (
    RaftMessage
    | CommandForwarded
    | ReadAsked
    | ReadAnswered
    | BootstrapAsked
    | BootstrapAnswered
    | Bootstrapped
    | Digest
)
