"""What goes into the consensus machine and what comes out of it (`core.raft`)."""

from dataclasses import dataclass

from tailrace_broker.model.agreement import (
    Block,
    BlockId,
    Configuration,
    DiskId,
    Record,
    Snapshot,
)
from tailrace_broker.model.messages import Message, RaftMessage

# --- in ---


@dataclass(frozen=True, slots=True)
class Woken:
    """It is `wake_at_ms`, or later."""


@dataclass(frozen=True, slots=True)
class Received:
    """From another broker. Of any age; perhaps not for the first time."""

    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A connection to this broker was reset or refused."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Durable:
    """All that was to be kept up to this number is on disk."""

    number: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Of a leader: a block with this payload. Of any other: nothing happens."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class ChangeVoters:
    """Of a leader: these are to vote.

    Nothing happens unless those who are new among them, and a majority of all, are caught up.
    """

    voters: tuple[DiskId, ...]


@dataclass(frozen=True, slots=True)
class AskRead:
    """Of a leader: answer when it is sure to be the leader still. Of any other: nothing happens."""

    request: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The snapshot that `Compact` asked for is on disk."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Initialize:
    """A disk without a ring begins with this."""

    initial: Snapshot


@dataclass(frozen=True, slots=True)
class RecoverAlone:
    """By hand: most voters are lost; this one goes on alone, with all that it has."""


RaftEvent = (
    Woken
    | Received
    | Unreachable
    | Durable
    | Propose
    | ChangeVoters
    | AskRead
    | Compacted
    | Initialize
    | RecoverAlone
)

# --- out ---


@dataclass(frozen=True, slots=True)
class Send:
    """To whatever process is this broker now."""

    ordinal: int
    message: Message


@dataclass(frozen=True, slots=True)
class Keep:
    """Write these behind what was kept before, durably, all or none; then say `Durable(number)`."""

    number: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """Keep this snapshot and these records in place of all before; then say `Durable(number)`.

    Until then what was kept before is still there, with what is kept after this.
    """

    number: int
    snapshot: Snapshot
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Compact:
    """Room is needed: keep a snapshot of the state as it is now, after the block `id`.

    `records` go on from there, as with `Replace`; what is kept later goes behind them at once.
    `Durable(number)` when they are on disk, `Compacted` when the snapshot is as well, and what was
    before has gone.
    """

    number: int
    id: BlockId
    configuration: Configuration
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """These are committed, and that is on disk; in their order, each once."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Install:
    """The state is this one now, in place of whatever it was."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class ReadReady:
    """Who has applied `height` knows all that was committed when `AskRead` came."""

    request: int
    height: int


RaftEffect = Send | Keep | Replace | Compact | Apply | Install | ReadReady
