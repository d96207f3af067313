"""The events and effects of all replicas of one process (`ranges` in this folder).

Completions of the disk are those of `events`, and so are `Suspected`, `PeerView`, `LogStartMoved`,
`Stopping` and `Woken`.
"""

from dataclasses import dataclass

from tailrace_broker.core.replication.events import (
    Advance,
    Advanced,
    Append,
    Cut,
    CutDone,
    Feed,
    Flushed,
    HoldAppends,
    LeadProven,
    LogStartMoved,
    PeerView,
    ReportLost,
    SetLogStart,
    Stopping,
    Suspected,
    Woken,
    WriteFailed,
    Wrote,
)
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.model.commands import AbortStep, ChangeIsr, Lead, Sealed
from tailrace_broker.model.replication import LogKey, ToFollower, ToLeader
from tailrace_broker.model.ring_state import Replica, RingState

# --- in ---


@dataclass(frozen=True, slots=True)
class StateApplied:
    """The applied state. `me`: this process as it is registered there; None: not yet."""

    state: RingState
    me: Replica | None


@dataclass(frozen=True, slots=True)
class LogOpened:
    """The log is open: recovered at the start, or made after `NeedLog`."""

    log: LogKey
    ends: LogEnds


@dataclass(frozen=True, slots=True)
class LogClosed:
    """The log is closed, to be set aside as damaged. `LogOpened` follows when it is open again."""

    log: LogKey


@dataclass(frozen=True, slots=True)
class HeardPeer:
    """A message of another broker. The bytes of `Batches` stay with the caller."""

    message: ToLeader | ToFollower


@dataclass(frozen=True, slots=True)
class LinkBroke:
    """The connection to that broker broke; what was on it may be lost."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class ProveLead:
    """Somebody wants to be sure that this process still leads the range."""

    range_id: int


LogEvent = Wrote | WriteFailed | Flushed | CutDone | LogStartMoved | LogClosed
RangesEvent = (
    StateApplied | LogOpened | LogClosed | HeardPeer | LinkBroke | Suspected | PeerView | Stopping
    | ProveLead | Woken | Wrote | WriteFailed | Flushed | CutDone | LogStartMoved
)  # fmt: skip

# --- out ---


@dataclass(frozen=True, slots=True)
class NeedLog:
    """Open the log, or make it; then `LogOpened`, when nothing of it is under way."""

    log: LogKey


@dataclass(frozen=True, slots=True)
class RemoveLog:
    """The topic was purged. What is under way for the log need not be reported."""

    log: LogKey


@dataclass(frozen=True, slots=True)
class BeganLeading:
    """From now on its logs hand out offsets."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EndedLeading:
    """Nothing is acknowledged for this epoch any more: fail what waits."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SendPeer:
    """Send this to the broker."""

    ordinal: int
    message: ToLeader | ToFollower


@dataclass(frozen=True, slots=True)
class ProposeCommand:
    """Ask the ring for this command, unless the same is under way."""

    command: ChangeIsr | Lead | Sealed | AbortStep


RangeEffect = (
    NeedLog | RemoveLog | BeganLeading | EndedLeading | SendPeer | ProposeCommand
    | Feed | Advance | Append | Cut | Advanced | HoldAppends | SetLogStart | ReportLost
    | LeadProven
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OfRange:
    """An effect, and the range and the applied epoch that it belongs to."""

    range_id: int
    epoch: int
    effect: RangeEffect
