"""Compacts a partition of `__groups` when most of what it holds says nothing any more."""

import asyncio
from collections.abc import Callable, Container, Coroutine, Sequence
from typing import Any
from uuid import UUID

import structlog

from tailrace_broker.groups.log import GroupLog
from tailrace_broker.groups.writer import GroupWriter
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.topics.topics import Topics

_log = structlog.get_logger()


class GroupCompaction:
    """One at a time."""

    def __init__(
        self,
        log: GroupLog,
        topics: Topics,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        writers: Callable[[], Sequence[GroupWriter]],
    ) -> None:
        """`writers`: of all groups that the log keeps."""
        self._log = log
        self._topics = topics
        self._spawn = spawn
        self._writers = writers
        self._is_under_way = False

    def look(self) -> None:
        """Compact if the log has grown enough."""
        if not self._is_under_way and self._log.needs_compaction:
            self._is_under_way = True
            self._spawn(self._compact())

    async def _compact(self) -> None:
        try:
            await self._log.compact(self._append_living)
        except TailraceError as error:  # when it has grown further it is tried again
            partition = self._log.partition
            _log.warning("compaction.failed", partition=partition, detail=error.detail)
        finally:
            self._is_under_way = False

    async def _append_living(self) -> None:
        """Append the snapshots without positions in topics that are gone for good."""
        read = {topic_id for writer in self._writers() for topic_id in writer.topic_ids()}
        await self.append_snapshots(self._topics.gone(read))

    async def append_snapshots(self, gone: Container[UUID] = ()) -> None:
        """Append a snapshot of each group. As `GroupLog.append`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for writer in self._writers():
                    tasks.create_task(writer.append_snapshot(gone))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
