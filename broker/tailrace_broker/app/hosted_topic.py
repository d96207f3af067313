"""A topic with its logs on this broker: opened from disk, and which partition takes what."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import structlog

from tailrace_broker.core.journal_replay import JournaledBatch
from tailrace_broker.core.ring import find_slice, token
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NotLeaderError,
    PartitionNotFoundError,
    ReadFailedError,
    StoredDataError,
)
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.log_recovery import recover_log
from tailrace_broker.storage.log_resources import LogResources
from tailrace_broker.storage.partition_log import PartitionLog
from tailrace_broker.storage.rescued_tail import (
    RESCUED,
    load_rescued,
    remove_rescued,
    save_rescued,
)
from tailrace_broker.storage.segment_writer import LogPlace

_log = structlog.get_logger()


class HostedTopic:
    """A topic with its logs on this broker; a damaged partition has its error in place of a log.

    The partitions that are not sealed have each token once.
    """

    def __init__(
        self, topic: Topic, logs: list[PartitionLog | CorruptPartitionError], *, ordinal: int
    ) -> None:
        """`logs` by partition id; `ordinal`: of the broker, which leads them all."""
        assert len(logs) == len(topic.partitions)
        self.topic = topic
        self.logs = logs
        self._ordinal = ordinal
        unsealed = [partition for partition in topic.partitions if not partition.is_sealed]
        by_token = sorted(unsealed, key=lambda partition: partition.token_start)
        self._open_ids = [partition.partition for partition in by_token]
        self._token_starts = [partition.token_start for partition in by_token]
        undamaged = [each for each in self._open_ids if isinstance(logs[each], PartitionLog)]
        self._turns = itertools.cycle(undamaged or self._open_ids)

    def undamaged_logs(self) -> list[PartitionLog]:
        """All that can be read, sealed ones too."""
        return [log for log in self.logs if isinstance(log, PartitionLog)]

    def alter(self, topic: Topic) -> None:
        """Its settings are others now."""
        self.topic = topic
        for log in self.undamaged_logs():
            log.settings = topic.settings

    def log_ends(self) -> list[int | None]:
        """By partition id; null: damaged."""
        return [log.log_end if isinstance(log, PartitionLog) else None for log in self.logs]

    def log_of(self, partition: int) -> PartitionLog:
        """PartitionNotFoundError; CorruptPartitionError when its data is damaged."""
        if not 0 <= partition < len(self.logs):
            raise PartitionNotFoundError(
                f'topic "{self.topic.name}" has partitions 0 to {len(self.logs) - 1}',
                topic=self.topic.name,
                partition=partition,
            )
        log = self.logs[partition]
        if isinstance(log, CorruptPartitionError):
            raise log.with_traceback(None)  # else it would grow by those who asked before
        return log

    def open_log_of(self, partition: int) -> PartitionLog:
        """To append: as `log_of`, and NotLeaderError when the partition is sealed."""
        log = self.log_of(partition)
        found = self.topic.partitions[partition]
        if found.is_sealed:
            raise NotLeaderError(
                f'partition {partition} of topic "{self.topic.name}" is sealed; its keys go on in '
                f"partitions {', '.join(map(str, found.children))}",
                topic=self.topic.name,
                partition=partition,
                leader=self._ordinal,
                children=list(found.children),
            )
        return log

    def partition_of_key(self, key: bytes | None) -> int:
        """The open partition that has the key's token; with no key, each undamaged in turn."""
        if key is None:
            return next(self._turns)
        return self._open_ids[find_slice(self._token_starts, token(key))]


async def open_topic(
    topic: Topic, directory: DataDirectory, resources: LogResources, replayed: Replayed
) -> HostedTopic:
    """Recover the logs of a topic's partitions; those that are not sealed begin an epoch.

    DiskFullError, StorageFailedError.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            opening = [
                tasks.create_task(_open_log(topic, partition, directory, resources, replayed))
                for partition in topic.partitions
            ]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    partitions, logs = zip(*(task.result() for task in opening), strict=True)
    topic = msgspec.structs.replace(topic, partitions=partitions)
    return HostedTopic(topic, list(logs), ordinal=directory.identity.ordinal)


async def _open_log(
    topic: Topic,
    partition: Partition,
    directory: DataDirectory,
    resources: LogResources,
    replayed: Replayed,
) -> tuple[Partition, PartitionLog | CorruptPartitionError]:
    path = directory.partition_path(topic.topic_id, partition.partition)
    place = LogPlace(
        path,
        topic.name,
        topic.topic_id,
        partition.partition,
        partition.range_id,
        partition.epoch,
    )
    io = resources.io
    replayed_batches = replayed.batches(topic.topic_id, partition.partition)
    try:
        rescued = await io.run(partial(load_rescued, path))
        recover = partial(
            recover_log,
            place,
            partition.first_offset,
            resources.pool,
            is_direct=resources.is_direct,
            journaled=[*rescued, *replayed_batches],
            durable_end=replayed.durable_end(topic.topic_id, partition.partition),
            now_us=resources.now_us(),
        )
        segments, followed, windows = await io.run(recover)
        end = (followed or segments)[-1]
        sealed_end = partition.sealed_end
        if sealed_end is not None and end.end_offset < sealed_end:
            raise place.damaged(
                f"{path}: the log was sealed at offset {sealed_end}, but ends at {end.end_offset}; "
                "restore its files"
            )
    except (CorruptPartitionError, ReadFailedError) as error:
        _log.error(
            "partition.damaged",
            topic=topic.name,
            partition=partition.partition,
            detail=error.detail,
        )
        if replayed_batches:
            await _set_aside(path, replayed_batches, resources)
        return partition, place.damaged(error.detail)
    if sealed_end is None:
        # The boot's, but epochs of a log never fall: the file that counts boots may be an old copy,
        # or a full disk did not take it. The journal counts, too.
        journal_boot = replayed.replay.last_boot + 1
        epoch = max(partition.epoch, directory.identity.boot, journal_boot, end.last_epoch)
        partition = msgspec.structs.replace(partition, epoch=epoch)
        place = replace(place, epoch=epoch)
    log = PartitionLog(
        place,
        segments,
        resources,
        topic.settings,
        pending=replayed.pending(followed),
        windows=windows,
        sealed_end=sealed_end,
    )
    if rescued and not await log.spilled():
        try:
            await io.run(partial(remove_rescued, path))
        except StoredDataError as error:  # the next start finds that they are in the segments
            _log.warning("rescued.kept", file=str(path / RESCUED), detail=error.detail)
    return partition, log


async def _set_aside(
    path: Path, batches: Sequence[JournaledBatch], resources: LogResources
) -> None:
    """What the journal holds of a damaged partition. The others go on when it fails."""
    stored = [batch.stored for batch in batches]
    try:
        await resources.io.run(partial(save_rescued, path, stored, resources.write_file))
    except StoredDataError as error:  # it stays in the journal until that goes on
        _log.error("rescue.failed", file=str(path / RESCUED), detail=error.detail)
