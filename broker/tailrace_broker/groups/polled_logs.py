"""The logs that polls read: replicas of this broker, or logs that others lead."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.groups.group import FetchRange, Group
from tailrace_broker.groups.remote_log import RemoteLogs
from tailrace_broker.groups.stored_groups import GroupsLog
from tailrace_broker.model.damage import given_up
from tailrace_broker.model.errors import (
    NotLeaderError,
    NotReadyError,
    OverloadError,
    TailraceError,
)
from tailrace_broker.model.group import GROUPS_TOPIC, TopicPartition
from tailrace_broker.model.topic import Partition
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

    async def check_end(self) -> None:
        """NoLeaderError: another broker may lead by now, or this one is new: more is committed."""

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
        self.heard = remote_logs.heard

    def of(self, fetch_range: FetchRange) -> PolledLog:
        """The replica that is here and in sync, else the leader's log. As `HostedTopic.log_of`."""
        hosted = self._topics.by_name[fetch_range.topic.name]
        partition = fetch_range.partition
        if hosted.topic.find(partition.partition) is None:  # the group does not know it yet
            raise NotReadyError("a partition of the group is gone; it goes on in the others")
        replica = hosted.replica_of(partition.partition)
        if replica is not None and self._is_in_sync(partition.range_id):
            return replica
        try:
            return hosted.log_of(partition.partition)
        except NotLeaderError:
            return self._remote_logs.log_of(hosted.topic, partition.partition)

    def of_all(
        self,
        fetch_ranges: Sequence[FetchRange],
        unreadable: Mapping[TopicPartition, TailraceError],
    ) -> tuple[list[tuple[FetchRange, PolledLog]], TailraceError | None]:
        """Return logs to read, whether there is something or not yet; and what is damaged,
        `unreadable` too.
        """
        logs: list[tuple[FetchRange, PolledLog]] = []
        problem: TailraceError | None = None
        for fetch_range in fetch_ranges:
            if fetch_range.tp in unreadable:
                problem = problem or unreadable[fetch_range.tp]
                continue
            try:
                log = self.of(fetch_range)
            except TailraceError as error:  # there is none now
                problem = problem or error
            else:
                lost = lost_end_error(log, fetch_range.start)
                if lost is not None:
                    problem = problem or lost
                    continue
                logs.append((fetch_range, log))
        return logs, problem

    def whole(self) -> dict[TopicPartition, PartitionLog]:
        """All whose ends are known here; the files of others may be restored."""
        return {
            TopicPartition(hosted.topic.topic_id, log.place.partition): log
            for hosted in self._topics.by_name.values()
            for log in hosted.whole_logs()
            if log.knows_end
        }

    async def find_sealed(self, partition: Partition) -> GroupsLog:
        """Find the log of a sealed partition of `__groups`: here if all of it is. TailraceError."""
        assert partition.sealed_end is not None
        replica = self._topics.internal[GROUPS_TOPIC].replica_of(partition.partition)
        if replica is not None and replica.high_watermark >= partition.sealed_end:
            return replica
        return await self._remote_logs.find_sealed(
            GROUPS_TOPIC, partition.partition, partition.sealed_end
        )

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


async def fit(group: Group, tp: TopicPartition, log: PolledLog) -> bool:
    """Bring a position to where there are records, or will be; whether it has moved.

    Not back to the end of a log that another broker may lead by now, and have appended to.
    """
    position = group.positions.get(tp, log.log_start)
    if position > log.high_watermark:
        try:
            await log.check_end()
        except OverloadError:
            return False
    before = group.positions.get(tp)
    group.fit(tp, log.log_start, log.high_watermark)
    return group.positions[tp] != before


def pass_over_losses(
    group: Group, unreadable: Mapping[TopicPartition, TailraceError]
) -> dict[TopicPartition, TailraceError]:
    """Move a group over what is lost for good, as somebody has accepted; the rest of `unreadable`.

    Whoever leads the partition has said so: its log may be elsewhere.
    """
    return {
        tp: error
        for tp, error in unreadable.items()
        if (lost := given_up(error)) is None or not group.pass_over(tp, lost)
    }


async def wait_at(logs: Sequence[PolledLog], waiter: asyncio.Future[None], ends_s: float) -> None:
    """Wait until there may be something, or time is up."""
    for log in logs:
        log.add_waiter(waiter)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends_s):
                await waiter
    finally:
        for log in logs:
            log.remove_waiter(waiter)


def lost_end_error(log: PolledLog, offset: int) -> TailraceError | None:
    """Return the error of reads from this offset on; None: something is there, or will be."""
    if not isinstance(log, PartitionLog) or log.lost_end is None or offset < log.high_watermark:
        return None
    return log.lost_end_error(log.lost_end)
