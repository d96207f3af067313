"""Messages between a range's leader and its followers, as values.

Each names range and epoch. `session`: a follower's count of its attempts to follow; what belongs to
an earlier attempt is ignored. Every message may be lost, late, and arrive twice.
"""

from typing import NamedTuple
from uuid import UUID

from tailrace_broker.model.ring_state import Replica


class LogKey(NamedTuple):
    """A partition of a topic; live, or in the trash from where it can be restored."""

    topic_id: UUID
    partition: int


class EpochStart(NamedTuple):
    """The first offset of an epoch in a log."""

    epoch: int
    first: int


class Run(NamedTuple):
    """Batches of one epoch that follow each other: offsets `[first, end)`."""

    epoch: int
    first: int
    end: int


# --- follower to leader ---


class LogStanding(NamedTuple):
    """Where a follower's log ends: `epochs` of all its batches, `[start, end)`."""

    log: LogKey
    start: int
    end: int
    epochs: tuple[EpochStart, ...]


class Standing(NamedTuple):
    """Where all logs of a follower end; none of their writes is under way."""

    range_id: int
    epoch: int
    session: int
    replica: Replica
    logs: tuple[LogStanding, ...]


class LogReport(NamedTuple):
    """The end of what is written, and of what no loss of power takes."""

    log: LogKey
    written: int
    flushed: int


class Reported(NamedTuple):
    """The ends of a follower's logs, after the cut. `is_whole`: of all of them.

    `is_stopping`: the follower's process is about to stop, and asks to leave the ISR. `round`: the
    last one that it has heard in this session.
    """

    range_id: int
    epoch: int
    session: int
    replica: Replica
    logs: tuple[LogReport, ...]
    is_whole: bool = False
    is_stopping: bool = False
    round: int = 0


# --- leader to follower ---


class LogCut(NamedTuple):
    """Nothing of the log at or behind `end` counts; `epoch`: of the batch before `end`.

    `is_reset`: nothing before `end` is kept either: the leader has it no more.
    """

    log: LogKey
    end: int
    epoch: int
    is_reset: bool
    high_watermark: int
    log_start: int


class Cuts(NamedTuple):
    """The answer to a `Standing`, for each log that the leader has too."""

    range_id: int
    epoch: int
    session: int
    logs: tuple[LogCut, ...]


class Batches(NamedTuple):
    """A part of a log. `previous_epoch`: of the batch before the first. The bytes travel beside."""

    range_id: int
    epoch: int
    session: int
    log: LogKey
    previous_epoch: int
    runs: tuple[Run, ...]
    high_watermark: int
    log_start: int


class LogHead(NamedTuple):
    """What is committed of a log, and where it starts."""

    log: LogKey
    high_watermark: int
    log_start: int


class Heartbeat(NamedTuple):
    """To be answered. `logs`: those that have changed since the last one.

    `round`: how often the leader has asked whether it leads.
    """

    range_id: int
    epoch: int
    session: int
    logs: tuple[LogHead, ...]
    round: int = 0


class Restart(NamedTuple):
    """The follower must say again where it is."""

    range_id: int
    epoch: int
    session: int


# --- about the connection ---


class Credit(NamedTuple):
    """A follower takes so many more bytes of batches."""

    size_bytes: int


ToLeader = Standing | Reported
ToFollower = Cuts | Batches | Heartbeat | Restart
