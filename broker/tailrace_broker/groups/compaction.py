"""Compacts the partitions of `__groups` when most of what they hold says nothing any more."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import structlog

from tailrace_broker.groups.log import GroupLog
from tailrace_broker.groups.writer import GroupWriter
from tailrace_broker.model.errors import CorruptPartitionError, TailraceError
from tailrace_broker.topics.topics import Topics

_log = structlog.get_logger()


class GroupCompaction:
    """One at a time in a partition."""

    def __init__(
        self,
        log: GroupLog,
        topics: Topics,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        writers_of: Callable[[int], Sequence[GroupWriter]],
    ) -> None:
        """`writers_of`: all groups that a partition keeps."""
        self._log = log
        self._topics = topics
        self._spawn = spawn
        self._writers_of = writers_of
        self._under_way: set[int] = set()

    def look(self, partition: int) -> None:
        """Compact if the log has grown enough."""
        if partition in self._under_way:
            return
        try:
            if not self._log.needs_compaction(partition):
                return
        except CorruptPartitionError:
            return
        self._under_way.add(partition)
        self._spawn(self._compact(partition))

    async def _compact(self, partition: int) -> None:
        try:
            await self._log.compact(partition, partial(self._append_snapshots, partition))
        except TailraceError as error:  # when it has grown further it is tried again
            _log.warning("compaction.failed", partition=partition, detail=error.detail)
        finally:
            self._under_way.discard(partition)

    async def _append_snapshots(self, partition: int) -> None:
        """Append a snapshot of each group, without positions in topics that are gone for good."""
        writers = self._writers_of(partition)
        read = {topic_id for writer in writers for topic_id in writer.topic_ids()}
        gone = await self._topics.gone(read)
        try:
            async with asyncio.TaskGroup() as tasks:
                for writer in writers:
                    tasks.create_task(writer.append_snapshot(gone))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
