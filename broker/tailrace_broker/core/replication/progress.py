"""What the leader of a range knows of one other replica. No decision is made here."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from tailrace_broker.core.replication.log_ends import LogEnds, common_end
from tailrace_broker.model.replication import LogCut, LogKey, LogReport, LogStanding
from tailrace_broker.model.ring_state import Replica


class FollowerLag(NamedTuple):
    """How far a replica is behind its leader, as the leader knows it.

    `records`: that its logs lack, of all logs of the range; None: it has not reported in this
    epoch. `ms`: how long the oldest write waits that it must acknowledge; None: it is not known.
    """

    ordinal: int
    records: int | None
    ms: int | None


class LedLog:
    """A log of a range that this process leads.

    `start_end`: its end when the epoch began. `near_from`: from here on less than so many bytes are
    behind, all of which this epoch has written. `known_start`: a follower's log starts there, as an
    earlier leader decided.
    """

    __slots__ = (
        "_near_bytes_max", "_recent", "_recent_bytes", "ends", "is_synced", "known_start",
        "min_isr", "near_from", "start_end",
    )  # fmt: skip

    def __init__(
        self, ends: LogEnds, *, is_synced: bool, min_isr: int, near_bytes_max: int
    ) -> None:
        self.ends = ends
        self.is_synced = is_synced
        self.min_isr = min_isr
        self.start_end = self.near_from = ends.written
        self.known_start = ends.start
        self._near_bytes_max = near_bytes_max
        self._recent: deque[tuple[int, int]] = deque()  # end and size of writes since `near_from`
        self._recent_bytes = 0

    def wrote(self, end: int, size_bytes: int) -> None:
        """A batch of this epoch is written. O(1) in the long run."""
        self.ends.written = end
        self._recent.append((end, size_bytes))
        self._recent_bytes += size_bytes
        while self._recent_bytes > self._near_bytes_max:
            self.near_from, first_bytes = self._recent.popleft()
            self._recent_bytes -= first_bytes

    def cut_of(self, theirs: LogStanding) -> LogCut:
        """Where a follower's log parts from this one. O(epochs)."""
        mine = self.ends
        if theirs.epochs:
            end = common_end(mine.known_epochs(), mine.written, theirs.epochs, theirs.end)
        else:
            end = min(theirs.end, mine.written)
        is_reset = end is None or end < mine.start
        if end is None or is_reset:
            end = mine.start
        epoch = mine.epoch_before(end)
        return LogCut(theirs.log, end, epoch, is_reset, mine.high_watermark, mine.start)

    def learn_start(self, theirs: LogStanding) -> None:
        """Note where a follower's log starts, unless that is in a past that was given up."""
        shared = self.cut_of(theirs)
        if not shared.is_reset and theirs.start <= shared.end:
            self.known_start = max(self.known_start, theirs.start)

    @property
    def caught_up_end(self) -> int:
        """What a replica must hold to be in sync."""
        return max(self.ends.high_watermark, self.start_end)

    @property
    def is_nearly_committed(self) -> bool:
        """Soon all is: what is not yet is small."""
        return self.ends.high_watermark >= self.near_from

    @property
    def is_committed(self) -> bool:
        """All that was ever appended is."""
        return not self.ends.under_way and self.ends.high_watermark == self.ends.written


class Progress:
    """One replica, in one registration. Times are of the leader's own clock.

    - `has_reported`: whole, after its cut, in this epoch: its ends count;
    - `is_following`: in its present session too, so that it is fed;
    - `is_member`: of the ISR as applied;
    - `sent`: by log, up to where; `fetching`: logs of which a piece from the disk is on its way;
    - `is_suspected`, `is_stopping`: its process seems dead, or has said that it is about to stop;
    - `round`: the last of the leader's that it has answered;
    - `owed`: writes that it must acknowledge as a member of the ISR;
    - `far`: logs in which it is not near; `lacking`: logs in which a candidate is not caught up;
    - `uncompared`: logs that it stood with, and that were not open here: their ends do not count.
    """

    __slots__ = (
        "_reports", "candidate_since_ms", "far", "fetching", "has_reported", "heard_ms",
        "is_following", "is_member", "is_stopping", "is_suspected", "lacking", "not_before_ms",
        "owed", "replica", "round", "sent", "session", "uncompared",
    )  # fmt: skip

    def __init__(self, replica: Replica, now_ms: int) -> None:
        self.replica = replica
        self.session = -1
        self.round = 0
        self.has_reported = self.is_following = self.is_member = False
        self.is_suspected = self.is_stopping = False
        self.heard_ms = now_ms
        self.sent: dict[LogKey, int] = {}
        self.fetching: set[LogKey] = set()
        self.owed: deque[tuple[int, LogKey, int]] = deque()
        self.far: set[LogKey] = set()
        self.candidate_since_ms: int | None = None
        self.lacking: set[LogKey] = set()
        self.not_before_ms = now_ms
        self.uncompared: set[LogKey] = set()
        self._reports: dict[LogKey, tuple[int, int]] = {}

    @property
    def is_going(self) -> bool:
        """It is to leave the ISR, and not to join it."""
        return self.is_suspected or self.is_stopping

    def seems_dead(self, clock_ms: int, silence_ms: int) -> bool:
        """Or it is about to stop."""
        return self.is_going or clock_ms - self.heard_ms > silence_ms

    def begin_session(self, session: int, clock_ms: int) -> None:
        """It says where it stands: nothing is on its way to it.

        The first of an epoch counts as heard; a later one may come because it hears no answer.
        """
        if self.session < 0:
            self.heard_ms = clock_ms
        self.session = session
        self.is_following = False
        self.sent.clear()
        self.fetching.clear()
        self.uncompared.clear()

    def is_late_candidate(self, clock_ms: int, lag_ms: int) -> bool:
        """It has held the high watermark up for long."""
        since_ms = self.candidate_since_ms
        return since_ms is not None and clock_ms - since_ms > lag_ms

    def check_candidate(self, key: LogKey, log: LedLog) -> None:
        """Note whether a candidate is caught up in the log."""
        if self.candidate_since_ms is None:
            return
        if self.counted(key, is_synced=log.is_synced) < log.caught_up_end:
            self.lacking.add(key)
        else:
            self.lacking.discard(key)

    def end_candidacy(self) -> None:
        """Its ends do not count for that any more."""
        self.candidate_since_ms = None
        self.lacking.clear()

    def report(self, report: LogReport) -> None:
        """Ends only grow within an epoch, in whatever order reports arrive."""
        written, flushed = self._reports.get(report.log, (0, 0))
        self._reports[report.log] = max(written, report.written), max(flushed, report.flushed)

    def written(self, key: LogKey) -> int:
        """The end of what it has written."""
        return self._reports.get(key, (0, 0))[0]

    def counted(self, key: LogKey, *, is_synced: bool) -> int:
        """The end that the topic's durability counts."""
        return self._reports.get(key, (0, 0))[is_synced]

    def lags_since_ms(self) -> int:
        """When its oldest write that is not acknowledged began, or when it was last heard."""
        return min(self.owed[0][0], self.heard_ms) if self.owed else self.heard_ms

    def lag(self, logs: Mapping[LogKey, LedLog], clock_ms: int) -> FollowerLag:
        """What it lacks of the leader's logs. O(logs)."""
        if not self.has_reported:
            return FollowerLag(self.replica.ordinal, None, None)
        lacking = (log.ends.written - self.written(key) for key, log in logs.items())
        records = sum(max(each, 0) for each in lacking)
        ms = clock_ms - self.owed[0][0] if self.owed else None
        return FollowerLag(self.replica.ordinal, records, ms if records else 0)

    def remove(self, key: LogKey) -> None:
        """The log is gone."""
        self._reports.pop(key, None)
        self.sent.pop(key, None)
        self.fetching.discard(key)
        self.far.discard(key)
        self.lacking.discard(key)
        self.owed = deque(each for each in self.owed if each[1] != key)
