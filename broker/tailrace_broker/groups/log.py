"""`__groups`: the internal topic whose log keeps the consumer groups.

A group's events are in the partition that its name hashes to. The log is compacted by snapshots:
a new segment begins, every group's state is appended to it, and what is before is removed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from tailrace_broker.codec.batch import decompress_payload
from tailrace_broker.codec.groups import decode_group_event, encode_group_event
from tailrace_broker.codec.records import unpack_columns
from tailrace_broker.model.append_outcome import AppendFailed, AppendOutcome
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    NoLeaderError,
    ReadFailedError,
    TailraceError,
)
from tailrace_broker.model.group import GROUPS_TOPIC, GroupEvent
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.hosted_topic import HostedTopic
from tailrace_broker.topics.topics import Topics

# A partition of it is compacted when it is so large, and so many times its last snapshot.
COMPACTED_BYTES_MIN = 4 * 1024 * 1024
COMPACTED_GROWTH = 4
_READ_BYTES = 1024 * 1024

_log = structlog.get_logger()


class GroupLog:
    """Appends group events, and reads them at the start."""

    def __init__(self, topics: Topics, now_us: Callable[[], int]) -> None:
        self._topics = topics
        self._now_us = now_us
        self._snapshot_bytes: dict[int, int] = {}
        self._damaged: dict[int, CorruptPartitionError] = {}

    @property
    def hosted(self) -> HostedTopic | None:
        """None: no group was ever registered."""
        return self._topics.internal.get(GROUPS_TOPIC)

    async def make(self) -> HostedTopic:
        """The topic, made when it is not there. DiskFullError, StorageFailedError."""
        return self.hosted or await self._topics.internal_topic(GROUPS_TOPIC, TopicSettings())

    async def events(self) -> AsyncIterator[tuple[int, str, GroupEvent]]:
        """Yield the stored events: partition, group and group event, in each partition log's order.

        Of a damaged partition at most a part.
        """
        for partition in range(len(self.hosted.logs) if self.hosted else 0):
            try:
                async for group, event in self._read(self._log_of(partition)):
                    yield partition, group, event
            except (CorruptPartitionError, ReadFailedError, NoLeaderError) as error:
                self._damaged[partition] = CorruptPartitionError(
                    error.detail, topic=GROUPS_TOPIC, partition=partition
                )
                _log.error("groups.damaged", partition=partition, detail=error.detail)

    def partition_of(self, group: str) -> int:
        """The one that keeps it; the topic must be there. CorruptPartitionError."""
        assert self.hosted is not None
        partition = self.hosted.partition_of_key(group.encode())
        self._log_of(partition)
        return partition

    def epoch_of(self, partition: int) -> int:
        """Return the epoch of the coordinator's term: it differs after each start of the broker."""
        assert self.hosted is not None
        return self.hosted.topic.partitions[partition].epoch

    def append(
        self, group: str, event: GroupEvent, done: Callable[[TailraceError | None], None]
    ) -> None:
        """Store a group event; `done` is called in the order of the log. CorruptPartitionError."""
        log = self._log_of(self.partition_of(group))

        def stored(outcome: AppendOutcome) -> None:
            done(outcome.error if isinstance(outcome, AppendFailed) else None)

        log.append_event(group.encode(), encode_group_event(event), self._now_us(), 0, stored)

    def needs_compaction(self, partition: int) -> bool:
        """Most of it says nothing any more."""
        snapshot_bytes = self._snapshot_bytes.get(partition, 0)
        bound = max(COMPACTED_BYTES_MIN, COMPACTED_GROWTH * snapshot_bytes)
        return self._log_of(partition).size_bytes > bound

    async def compact(
        self, partition: int, append_snapshots: Callable[[], Awaitable[None]]
    ) -> None:
        """Begin a segment, have the state of every group appended, remove what is before.

        DiskFullError, StorageFailedError.
        """
        log = self._log_of(partition)
        self._snapshot_bytes[partition] = log.size_bytes  # as long as there is no smaller one
        base_offset = await log.roll()
        await append_snapshots()
        await log.trim(base_offset)
        self._snapshot_bytes[partition] = log.size_bytes
        _log.info("groups.compacted", partition=partition, size_bytes=log.size_bytes)

    def _log_of(self, partition: int) -> PartitionLog:
        """Return the log. CorruptPartitionError."""
        assert self.hosted is not None
        if partition in self._damaged:
            raise self._damaged[partition].with_traceback(None)
        return self.hosted.log_of(partition)

    async def _read(self, log: PartitionLog) -> AsyncIterator[tuple[str, GroupEvent]]:
        offset = log.log_start
        while offset < log.high_watermark or log.lost_end is not None:  # whose read raises
            for batch in await log.read(offset, _READ_BYTES):
                columns = decompress_payload(batch.header, batch.contents())
                for record in unpack_columns(batch.header, columns):
                    try:
                        event = decode_group_event(record.value or b"")
                    except CorruptBatchError as error:
                        raise log.place.damaged(error.detail) from error
                    yield (record.key or b"").decode(errors="replace"), event
                offset = batch.header.end_offset
