"""The events and effects of a range's replication (`leader`, `follower` in this folder)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.ring.steps import OpenStep, open_step
from tailrace_broker.model.commands import AbortStep, ChangeIsr, Sealed
from tailrace_broker.model.replication import (
    Batches,
    LogCut,
    LogKey,
    Run,
    ToFollower,
    ToLeader,
)
from tailrace_broker.model.ring_state import RangeState, Replica, RingState


class ReplicationTiming(NamedTuple):
    """`heads_ms`: followers hear so soon what is committed, for those who read there.

    `lag_ms`: a member of the ISR that lags this long leaves it (`replicaLagMs`).

    `silence_ms`: a follower that hears nothing for this long stands again; `stand_ms`: when its
    standing is not answered, and twice as long each time, up to `stand_ms_max`: else nobody could
    follow whose leader takes longer to answer. A follower that waits for its disk says every
    `stand_ms` that it is there. `propose_ms`: what was proposed is proposed again.
    `failback_ms`: a natural leader that was in sync for this long leads again. `hand_over_ms`: a
    leader that has held appends for it this long leads on, in the next epoch. `isolated_ms`: a
    leader that no replica has answered for this long, though gossip hears them, leaves the range to
    one that is not isolated. It is above `silence_ms` by as much as gossip and shells need to
    report that to all, and below `lag_ms`: until then no member has left the ISR. `step_ms`: a
    leader that has held appends for a step of the ring this long has it aborted; `step_wait_ms`:
    so it has when it could not even begin to hold them.
    """

    heartbeat_ms: int = 100
    heads_ms: int = 2
    lag_ms: int = 3000
    silence_ms: int = 1000
    stand_ms: int = 300
    stand_ms_max: int = 3000
    propose_ms: int = 500
    near_bytes: int = 64 * 1024
    failback_ms: int = 30_000
    hand_over_ms: int = 1000
    isolated_ms: int = 2500
    step_ms: int = 2000
    step_wait_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class RangeView:
    """A range as it is applied. `current`: what names each of its replicas now, by ordinal.

    `fenced`: those of them that may not lead now. `step`: the open one that changes the range.
    """

    range: RangeState
    floor: int
    current: Mapping[int, Replica]
    fenced: frozenset[int] = frozenset()
    step: OpenStep | None = None


def view_of(state: RingState, range_id: int) -> RangeView:
    """What the machines see of a range."""
    found = state.ranges[range_id]
    current = {
        ordinal: found.replica_of(state.brokers[ordinal])
        for ordinal in found.replicas
        if ordinal in state.brokers
    }
    fenced = frozenset(ordinal for ordinal in current if state.brokers[ordinal].is_fenced)
    return RangeView(found, state.floor, current, fenced, open_step(state, range_id))


# --- in, both ---


@dataclass(frozen=True, slots=True)
class Applied:
    """A state in which the range, or a registration of one of its replicas, differs."""

    view: RangeView


@dataclass(frozen=True, slots=True)
class LogAdded:
    """The replica has this log: of a live topic, or of one that can be restored.

    `is_synced`: offsets count when they are flushed. `min_isr`: in force, at most the factor.
    """

    log: LogKey
    ends: LogEnds
    is_synced: bool
    min_isr: int


@dataclass(frozen=True, slots=True)
class LogAltered:
    """The topic has other settings."""

    log: LogKey
    is_synced: bool
    min_isr: int


@dataclass(frozen=True, slots=True)
class LogRemoved:
    """The topic was purged."""

    log: LogKey


@dataclass(frozen=True, slots=True)
class Wrote:
    """A write of the log has ended well; all below `flushed` is durable."""

    log: LogKey
    run: Run
    flushed: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A write has failed: the log ends where it began. Writes that wait behind it fail too."""

    log: LogKey


@dataclass(frozen=True, slots=True)
class Flushed:
    """All below `end` is durable."""

    log: LogKey
    end: int


@dataclass(frozen=True, slots=True)
class Woken:
    """It is `wake_at_ms`."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """This process is about to stop: others are to lead, and to do without it."""


# --- in, leader ---


@dataclass(frozen=True, slots=True)
class HeardFollower:
    """A message of a follower."""

    message: ToLeader


@dataclass(frozen=True, slots=True)
class Suspected:
    """The broker seems dead."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class PeerView:
    """What gossip says of the other brokers, until it says something else.

    `heard`: whose registered process is. `able`: who of them may lead. `can_store` False: this
    process can write no more, and one of those is to lead in its place.
    """

    heard: frozenset[int] = frozenset()
    able: frozenset[int] = frozenset()
    can_store: bool = True


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Retention has removed what is before."""

    log: LogKey
    start: int


@dataclass(frozen=True, slots=True)
class AskProof:
    """Somebody wants to be sure that this process still leads; `LeadProven` follows, if it does."""


LeaderEvent = (
    Applied
    | LogAdded
    | LogAltered
    | LogRemoved
    | Wrote
    | WriteFailed
    | Flushed
    | Woken
    | HeardFollower
    | Suspected
    | PeerView
    | LogStartMoved
    | AskProof
    | Stopping
)

# --- in, follower ---


@dataclass(frozen=True, slots=True)
class HeardLeader:
    """A message of a leader."""

    message: ToFollower


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection to the leader broke; what was on it may be lost."""


@dataclass(frozen=True, slots=True)
class CutDone:
    """The cut is durable."""

    log: LogKey


FollowerEvent = (
    Applied
    | LogAdded
    | LogAltered
    | LogRemoved
    | Wrote
    | WriteFailed
    | Flushed
    | Woken
    | HeardLeader
    | LinkLost
    | CutDone
    | Stopping
)

# --- out, leader ---


@dataclass(frozen=True, slots=True)
class SendFollower:
    """Send this to the broker."""

    ordinal: int
    message: ToFollower


@dataclass(frozen=True, slots=True)
class Feed:
    """Send batches of the log from `first` on: `[first, end)`, as `Batches`.

    `end` None: the follower is far behind; as much as one read of the disk returns.
    """

    ordinal: int
    session: int
    log: LogKey
    first: int
    end: int | None
    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Advance:
    """All below is committed: acknowledge it, let it be read."""

    log: LogKey
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the ring for this change; the same again does no harm."""

    command: ChangeIsr | Sealed | AbortStep


@dataclass(frozen=True, slots=True)
class GiveUpEpoch:
    """Offsets of this epoch may stand on the disk: have the range led in a newer one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HoldAppends:
    """Append nothing until a newer epoch is applied; what waits to be appended waits on."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Have the range led by this replica in the next epoch; the same again does no harm.

    `leaves`: and this one leave the ISR, as far as the floor lets it: nobody hears it.
    """

    epoch: int
    successor: Replica
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class SetLogStart:
    """Keep the partition's start on disk, remove what is before."""

    log: LogKey
    start: int


@dataclass(frozen=True, slots=True)
class LeadProven:
    """When the last `AskProof` came, nobody led in a newer epoch and had acknowledged anything."""

    epoch: int


LeaderEffect = (
    SendFollower | Feed | Advance | Propose | GiveUpEpoch | HoldAppends | HandOver | SetLogStart
    | LeadProven
)  # fmt: skip

# --- out, follower ---


@dataclass(frozen=True, slots=True)
class SendLeader:
    """Send this to the broker."""

    ordinal: int
    message: ToLeader


@dataclass(frozen=True, slots=True)
class Append:
    """Write the batches of this message behind the log's last write; then `Wrote`."""

    batches: Batches


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the log durably; then `CutDone`."""

    cut: LogCut


@dataclass(frozen=True, slots=True)
class Advanced:
    """The follower knows that all below is committed."""

    log: LogKey
    high_watermark: int


@dataclass(frozen=True, slots=True)
class ReportLost:
    """What this replica took for committed is not in the leader's log: the partition stands still.

    Never cut away: a person, or `Lost`, decides.
    """

    log: LogKey
    cut_end: int


FollowerEffect = SendLeader | Append | Cut | SetLogStart | Advanced | ReportLost
