"""What goes into a broker's part in the ring and what comes out of it (`core.control`).

`Woken`, `Unreachable`, `Durable`, `Compacted` go in, and `Send`, `Keep`, `Replace` come out as they
do of the consensus machine (`core.raft_events`).
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
from tailrace_broker.model.agreement import BlockId, Configuration, Record
from tailrace_broker.model.commands import Command
from tailrace_broker.model.messages import Message
from tailrace_broker.model.ring_state import Refusal, RingState

# --- in ---


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of another broker."""

    message: Message


@dataclass(frozen=True, slots=True)
class Ask:
    """Carry out a command; `Answer` tells the outcome. Who gives up waiting needs not tell."""

    request: int
    command: Command


@dataclass(frozen=True, slots=True)
class AskState:
    """Answered when the state holds all that was agreed at this moment."""

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


ControlEvent = (
    Woken | Unreachable | Durable | Compacted | Heard | Ask | AskState | AskBootstrap | AskRecovery
)

# --- out ---


@dataclass(frozen=True, slots=True)
class CompactState:
    """As `core.raft_events.Compact`, with the state to write; what it shares is never changed."""

    number: int
    id: BlockId
    configuration: Configuration
    state: RingState
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """`control.state` is another now."""

    before: RingState | None
    after: RingState


@dataclass(frozen=True, slots=True)
class Answer:
    """To `request`: done, or why not."""

    request: int
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another process is this broker now, or it was retired: this one must end."""

    detail: str


ControlEffect = Send | Keep | Replace | CompactState | Applied | Answer | Superseded
