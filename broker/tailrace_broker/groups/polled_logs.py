"""The logs that polls read: replicas of this broker, or logs that others lead."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.groups.group import FetchRange
from tailrace_broker.groups.remote_log import RemoteLogs
from tailrace_broker.model.errors import NotLeaderError, TailraceError
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.topics import Topics


class PolledLog(Protocol):
    """What a coordinator needs of a log."""

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""

    @property
    def high_watermark(self) -> int:
        """The end of what can be read, as far as it is known here."""

    @property
    def is_served(self) -> bool:
        """This process leads its range."""

    @property
    def knows_end(self) -> bool:
        """The high watermark is no older than one that an earlier leader has given to readers."""

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Committed batches from the one that holds `offset`."""

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It is done when the high watermark moves."""

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It does not wait any more."""


class PolledLogs:
    """Finds them."""

    def __init__(self, topics: Topics, ring: RingNode, remote_logs: RemoteLogs) -> None:
        self._topics = topics
        self._ring = ring
        self._remote_logs = remote_logs

    def of(self, fetch_range: FetchRange) -> PolledLog:
        """The replica that is here and in sync, else the leader's log. As `HostedTopic.log_of`."""
        hosted = self._topics.by_name[fetch_range.topic.name]
        partition = fetch_range.partition
        replica = hosted.replica_of(partition.partition)
        if replica is not None and self._is_in_sync(partition.range_id):
            return replica
        try:
            return hosted.log_of(partition.partition)
        except NotLeaderError:
            return self._remote_logs.log_of(hosted.topic, partition.partition)

    def _is_in_sync(self, range_id: int) -> bool:
        """This broker's replica of the range has all that is committed, or nearly so."""
        state, mine = self._ring.state, self._ring.registration
        if state is None or mine is None or range_id not in state.ranges:
            return False
        return state.ranges[range_id].replica_of(mine) in state.ranges[range_id].isr


def fits(log: PolledLog, position: int) -> bool:
    """There are records at a group's position, or will be.

    A replica may not know yet that what a group has read is committed.
    """
    is_end_known = log.is_served and log.knows_end
    return log.log_start <= position and (position <= log.high_watermark or not is_end_known)


def lost_end_error(log: PolledLog, offset: int) -> TailraceError | None:
    """Return the error of reads from this offset on; None: something is there, or will be."""
    if not isinstance(log, PartitionLog) or log.lost_end is None or offset < log.high_watermark:
        return None
    return log.lost_end_error(log.lost_end)
