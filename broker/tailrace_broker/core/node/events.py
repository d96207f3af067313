"""The events and effects of a broker's part in the ring (`core.node.control`).

`Woken`, `Unreachable`, `Durable`, `Compacted`, and the effects `Send`, `Keep`, `Replace`, are those
of the consensus machine (`core.raft.events`).
"""

from dataclasses import dataclass

from tailrace_broker.core.raft.events import (
    Compacted,
    Durable,
    Keep,
    Replace,
    Send,
    Unreachable,
    Woken,
)
from tailrace_broker.model.agreement import BlockId, Configuration, Record, Reserved, Snapshot
from tailrace_broker.model.commands import Command
from tailrace_broker.model.messages import (
    BootstrapAnswered,
    BootstrapAsked,
    Bootstrapped,
    Message,
)
from tailrace_broker.model.ring_state import RangeEnd, Refusal, RingState

# --- in ---


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of another broker."""

    message: Message


@dataclass(frozen=True, slots=True)
class Ask:
    """Apply a command; `Answer` has the outcome. A caller that stops waiting need not say so."""

    request: int
    command: Command


@dataclass(frozen=True, slots=True)
class AskState:
    """Answer when the state holds all that was committed at this moment."""

    request: int


@dataclass(frozen=True, slots=True)
class AskBootstrap:
    """Found a ring of brokers 0 to `broker_count` - 1 with so many copies of each range."""

    request: int
    broker_count: int
    factor: int


@dataclass(frozen=True, slots=True)
class AskRecovery:
    """By hand: most voters are lost for good; this broker goes on alone."""

    request: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The logs of the ranges of which this broker is a replica have been recovered.

    `ends`: what they hold. `damaged`: ranges in which committed records are damaged or missing.
    """

    ends: tuple[RangeEnd, ...] = ()
    damaged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Damaged:
    """Committed records of the range were found damaged or missing, since the logs recovered."""

    range_id: int


@dataclass(frozen=True, slots=True)
class Health:
    """What the data plane knows of this process, in place of what it said before.

    `is_stalled`: a write of data is older than `diskStallMs`: the broker falls silent until it
    ends. `is_full`, `is_stopping`: it asks to lead no range that another broker has, too.
    `is_isolated`: other brokers are heard by gossip, and not by replication: it asks to lead only
    where no broker that is fit can.
    """

    is_stalled: bool = False
    is_full: bool = False
    is_stopping: bool = False
    is_isolated: bool = False

    @property
    def can_store(self) -> bool:
        """It can store what it leads."""
        return not (self.is_stalled or self.is_full or self.is_stopping)

    @property
    def is_fit(self) -> bool:
        """Others need not lead in its place."""
        return self.can_store and not self.is_isolated


ControlEvent = (
    Woken
    | Unreachable
    | Durable
    | Compacted
    | Heard
    | Ask
    | AskState
    | AskBootstrap
    | AskRecovery
    | Recovered
    | Damaged
    | Health
)

# --- out ---


@dataclass(frozen=True, slots=True)
class CompactState:
    """As `core.raft.events.Compact`, with the state to write; what it shares is never changed."""

    number: int
    id: BlockId
    configuration: Configuration
    state: RingState
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The applied state differs now."""

    before: RingState | None
    after: RingState


@dataclass(frozen=True, slots=True)
class Answer:
    """To `request`: done, or why not."""

    request: int
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another process is this broker now, or it was retired: this one must end.

    `is_retired`: the broker has left the ring with this disk, which can never come back.
    """

    detail: str
    is_retired: bool


ControlEffect = Send | Keep | Replace | CompactState | Applied | Answer | Superseded

# --- of the bootstrap ---


@dataclass(frozen=True, slots=True)
class KeepReserved:
    """Keep `reserved` on disk, then say `Noted(asked)`."""

    reserved: Reserved
    asked: BootstrapAsked


@dataclass(frozen=True, slots=True)
class Noted:
    """What `KeepReserved` wanted is on disk."""

    asked: BootstrapAsked


@dataclass(frozen=True, slots=True)
class Take:
    """The disk begins with this initial state."""

    initial: Snapshot


@dataclass(frozen=True, slots=True)
class AppliedUpTo:
    """This broker has applied the block."""

    id: BlockId


BootstrapEvent = (
    Woken | AskBootstrap | BootstrapAsked | Noted | BootstrapAnswered | Bootstrapped | AppliedUpTo
)
BootstrapEffect = Send | Answer | KeepReserved | Take
