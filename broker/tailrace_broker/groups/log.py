"""A partition of `__groups`, the internal topic whose log keeps the consumer groups.

A group's events are in the partition that its name hashes to, and the broker that leads the
partition coordinates the group. The log is compacted by snapshots: a new segment begins, every
group's state is appended to it, and what is before is removed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from tailrace_broker.codec.batch import decompress_payload
from tailrace_broker.codec.groups import decode_group_event, encode_group_event
from tailrace_broker.codec.records import unpack_columns
from tailrace_broker.model.append_outcome import AppendFailed, AppendOutcome
from tailrace_broker.model.errors import CorruptBatchError, NoLeaderError, TailraceError
from tailrace_broker.model.group import GroupEvent
from tailrace_broker.storage.log.partition_log import PartitionLog

# A partition of it is compacted when it is so large, and so many times its last snapshot.
COMPACTED_BYTES_MIN = 4 * 1024 * 1024
COMPACTED_GROWTH = 4
_READ_BYTES = 1024 * 1024

_log = structlog.get_logger()


class GroupLog:
    """Appends group events, and reads them, in the epoch in which this process leads the log."""

    def __init__(self, log: PartitionLog, epoch: int, now_us: Callable[[], int]) -> None:
        self.partition = log.place.partition
        self.epoch = epoch
        self._log = log
        self._now_us = now_us
        self._snapshot_bytes = 0

    @property
    def is_led(self) -> bool:
        """The epoch has not ended; the only copy of a log goes on in the next one."""
        role = self._log.role
        return self._log.is_served and (role.commits_alone or role.epoch == self.epoch)

    def check_led(self) -> None:
        """NotLeaderError, NoLeaderError."""
        if not self.is_led:
            self._log.check_served()
            place = self._log.place
            raise NoLeaderError(
                f"the broker has just become the coordinator of groups in partition "
                f"{place.partition} of {place.topic} again, and reads them; try again",
                topic=place.topic,
                partition=place.partition,
                range=place.range_id,
            )

    async def knows_end(self) -> bool:
        """Once all is known to be committed that an earlier leader has acknowledged; False: the
        epoch has ended before.
        """
        while self.is_led and not self._log.knows_end:
            changed = asyncio.get_running_loop().create_future()
            self._log.add_waiter(changed)
            try:
                await changed
            finally:
                self._log.remove_waiter(changed)
        return self.is_led

    async def events(self) -> AsyncIterator[tuple[str, GroupEvent]]:
        """Yield the stored events: group and group event, in the log's order.

        CorruptPartitionError, ReadFailedError.
        """
        log = self._log
        offset = log.log_start
        while offset < log.high_watermark or log.lost_end is not None:  # whose read raises
            batches = await log.read(offset, _READ_BYTES)
            if not batches:  # the epoch has ended
                return
            for batch in batches:
                columns = decompress_payload(batch.header, batch.contents())
                for record in unpack_columns(batch.header, columns):
                    try:
                        event = decode_group_event(record.value or b"")
                    except CorruptBatchError as error:
                        raise log.place.damaged(error.detail) from error
                    yield (record.key or b"").decode(errors="replace"), event
                offset = batch.header.end_offset

    def append(
        self, group: str, event: GroupEvent, done: Callable[[TailraceError | None], None]
    ) -> None:
        """Store a group event; `done` is called in the order of the log. NoLeaderError."""
        self.check_led()

        def stored(outcome: AppendOutcome) -> None:
            done(outcome.error if isinstance(outcome, AppendFailed) else None)

        self._log.append_event(group.encode(), encode_group_event(event), self._now_us(), 0, stored)

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
