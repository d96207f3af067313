"""A partition of `__groups`, the internal topic whose log keeps the consumer groups.

A group's events are in the partition that its name hashes to, and the broker that leads the
partition coordinates the group. What they say `groups.stored_groups` reads. The log is compacted by
snapshots: a new segment begins, every group's state is appended to it, and what is before is
removed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.groups import encode_group_event
from tailrace_broker.model.append_outcome import AppendFailed, AppendOutcome
from tailrace_broker.model.group import GroupRecord, GroupsInherited
from tailrace_broker.storage.log.partition_log import PartitionLog

# A partition of it is compacted when it is so large, and so many times its last snapshot.
COMPACTED_BYTES_MIN = 4 * 1024 * 1024
COMPACTED_GROWTH = 4

_log = structlog.get_logger()


class GroupLog:
    """Appends group events, and reads them, in the epoch in which this process leads the log."""

    def __init__(self, log: PartitionLog, epoch: int, now_us: Callable[[], int]) -> None:
        self.partition, self.range_id = log.place.partition, log.place.range_id
        self.epoch = epoch
        self._log = log
        self._now_us = now_us
        self._snapshot_bytes = 0

    @property
    def is_led(self) -> bool:
        """The epoch has not ended; the only copy of a log goes on in the next one.

        A sealed log has no epoch any more: its groups go on in others.
        """
        role = self._log.role
        is_same = role.epoch == self.epoch or (role.commits_alone and role.epoch is not None)
        return self._log.is_served and is_same

    def check_led(self) -> None:
        """NotLeaderError, NoLeaderError."""
        if not self.is_led:
            self._log.check_served()
            place = self._log.place
            raise place.no_leader(
                f"partition {place.partition} of {place.topic} is sealed, or the broker has just "
                "become the coordinator of its groups again; try again"
            )

    async def check_surely_led(self) -> None:
        """As `check_led`; NoLeaderError: another broker may lead by now, and have delivered more.

        Who leads in a later epoch has proven nothing before this call: two majorities of the
        replicas share one. The partition's children may have others: they follow it once its
        leader, which holds appends by then, has proposed its end.
        """
        place, role = self._log.place, self._log.role
        if role.is_held and role.is_in_step:
            raise place.no_leader(
                f"partition {place.partition} of {place.topic} is being sealed, and its groups may "
                "go on in others; try again"
            )
        await self._log.check_led()
        self.check_led()

    async def knows_end(self) -> bool:
        """Once all is known to be committed that an earlier leader has acknowledged; False: the
        epoch has ended before.
        """
        return await self._until(lambda: self._log.knows_end)

    async def has_committed(self, end_offset: int) -> bool:
        """Once all below this offset is committed; False: the epoch has ended before."""
        return await self._until(lambda: self._log.high_watermark >= end_offset)

    async def _until(self, is_so: Callable[[], bool]) -> bool:
        """Return when the high watermark has made it so; False: the epoch has ended before."""
        while self.is_led and not is_so():
            changed = asyncio.get_running_loop().create_future()
            self._log.add_waiter(changed)
            try:
                await changed
            finally:
                self._log.remove_waiter(changed)
        return self.is_led

    @property
    def log_start(self) -> int:
        """The first record that is kept."""
        return self._log.log_start

    @property
    def read_end(self) -> int:
        """How far it is to be read; what has lost its end raises there."""
        return self._log.high_watermark + (self._log.lost_end is not None)

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Committed batches from the one that holds `offset`; none when the epoch has ended."""
        return await self._log.read(offset, max_bytes)

    def append(
        self, group: str, event: GroupRecord, done: Callable[[AppendFailed | None], None]
    ) -> None:
        """Store a record; `done` is called in the order of the log. NoLeaderError."""
        self.check_led()

        def stored(outcome: AppendOutcome) -> None:
            done(outcome if isinstance(outcome, AppendFailed) else None)

        self._log.append_event(group.encode(), encode_group_event(event), self._now_us(), 0, stored)

    async def append_inherited(self) -> None:
        """Store that the groups of the parents are all here. As `append`; what it has failed by."""
        stored: asyncio.Future[AppendFailed | None] = asyncio.get_running_loop().create_future()
        self.append("", GroupsInherited(), stored.set_result)
        failed = await stored
        if failed is not None:
            raise failed.error

    @property
    def needs_compaction(self) -> bool:
        """Most of it says nothing any more."""
        bound = max(COMPACTED_BYTES_MIN, COMPACTED_GROWTH * self._snapshot_bytes)
        return self.is_led and self._log.size_bytes > bound

    async def compact(self, append_snapshots: Callable[[], Awaitable[None]]) -> None:
        """Begin a segment, have the state of every group appended, remove what is before.

        DiskFullError, StorageFailedError, NoLeaderError.
        """
        log = self._log
        self._snapshot_bytes = log.size_bytes  # as long as there is no smaller one
        base_offset = await log.roll()
        await append_snapshots()
        self.check_led()
        await log.trim(min(base_offset, log.high_watermark))
        self._snapshot_bytes = log.size_bytes
        _log.info("groups.compacted", partition=self.partition, size_bytes=log.size_bytes)
