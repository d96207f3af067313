"""A topic with its logs on this broker: opened from disk, and which partition takes what."""

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import structlog

from tailrace_broker.core.log.journal_replay import JournaledBatch
from tailrace_broker.core.ring.arithmetic import find_slice, token, tokens
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    DiskFullError,
    NotLeaderError,
    ReadFailedError,
    StorageFailedError,
    StoredDataError,
    TailraceError,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.recovery import (
    RecoveredLog,
    check_epoch,
    check_whole,
    recover_log,
)
from tailrace_broker.storage.log.rescued_tail import (
    RESCUED,
    load_rescued,
    remove_rescued,
    save_rescued,
)
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.range_leaders import RangeRoles

# A partition's log, or why there is none here.
LogOrError = PartitionLog | TailraceError

_log = structlog.get_logger()


class HostedTopic:
    """A topic with its logs on this broker; a partition without one has an error in its place: it
    is damaged, or not open yet, or its range has no replica here.

    The partitions that are not sealed have each token once.
    """

    def __init__(
        self, topic: Topic, logs: Sequence[LogOrError], roles: RangeRoles, *, ordinal: int
    ) -> None:
        """`logs` by partition id; `ordinal`: of this broker."""
        self._roles = roles
        self._ordinal = ordinal
        self.alter(topic, logs)

    def alter(self, topic: Topic, logs: Sequence[LogOrError]) -> None:
        """It is another now, in whatever."""
        assert len(logs) == len(topic.partitions)
        self.topic = topic
        self.logs = list(logs)
        unsealed = [partition for partition in topic.partitions if not partition.is_sealed]
        by_token = sorted(unsealed, key=lambda partition: partition.token_start)
        self._open_ids = [partition.partition for partition in by_token]
        self._token_starts = [partition.token_start for partition in by_token]
        local = [each for each in self._open_ids if is_whole(logs[each])]
        self._turns = itertools.cycle(local or self._open_ids)
        for log in self.all_logs():
            if log.settings != topic.settings:
                log.settings = topic.settings

    def all_logs(self) -> list[PartitionLog]:
        """All that are open here, those of partitions too that other brokers lead now."""
        return [log for log in self.logs if isinstance(log, PartitionLog)]

    def whole_logs(self) -> list[PartitionLog]:
        """Those that this broker serves, and that have not lost their end."""
        return list(filter(is_whole, self.logs))

    @property
    def damaged_count(self) -> int:
        """Partitions that take no writes because their data is damaged."""
        return sum(map(is_damaged, self.logs))

    def failure(self) -> TailraceError | None:
        """Why a log could not be opened that may be later."""
        failures = (each for each in self.logs if isinstance(each, TailraceError))
        return next(filter(may_be_opened_later, failures), None)

    def log_ends(self) -> list[int | None]:
        """By partition id; null: there is no log here, or it has lost its end."""
        return [log.log_end if is_whole(log) else None for log in self.logs]

    def log_of(self, partition: int) -> PartitionLog:
        """PartitionNotFoundError; NotLeaderError, NoLeaderError; CorruptPartitionError when its
        data is damaged.
        """
        if not 0 <= partition < len(self.logs):
            raise self.topic.no_partition(partition)
        log = self.logs[partition]
        if isinstance(log, PartitionLog):
            log.check_served()
            return log
        elsewhere = self._roles.of(self.topic.partitions[partition].range_id).elsewhere
        if elsewhere is not None:
            raise elsewhere(self.topic.name, partition)
        raise log.with_traceback(None)  # else it would grow by those who asked before

    def replica_of(self, partition: int) -> PartitionLog | None:
        """The log as it is here, whoever leads it; None: it is not, or is damaged.

        PartitionNotFoundError.
        """
        if not 0 <= partition < len(self.logs):
            raise self.topic.no_partition(partition)
        log = self.logs[partition]
        return log if isinstance(log, PartitionLog) and log.lost_end is None else None

    def open_log_of(self, partition: int) -> PartitionLog:
        """To append: as `log_of`, and NotLeaderError when the partition is sealed."""
        log = self.log_of(partition)
        self.check_open(partition)
        return log

    def check_open(self, partition: int) -> None:
        """NotLeaderError: the partition, which there is, is sealed."""
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

    def partition_of_key(self, key: bytes | None) -> int:
        """The open partition that has the key's token; with no key, each that has its log here in
        turn.
        """
        if key is None:
            return next(self._turns)
        return self._open_ids[find_slice(self._token_starts, token(key))]

    def partitions_of_keys(self, keys: Sequence[bytes | str]) -> npt.NDArray[np.int32]:
        """Of each key the open partition that has its token."""
        if len(self._open_ids) == 1:
            return np.full(len(keys), self._open_ids[0], np.int32)
        slices = np.searchsorted(np.array(self._token_starts), tokens(keys), side="right") - 1
        return np.array(self._open_ids, np.int32)[slices]


def is_damaged(log: LogOrError) -> bool:
    """It takes no writes because what is stored of it is damaged."""
    if isinstance(log, PartitionLog):
        return log.lost_end is not None
    return isinstance(log, CorruptPartitionError)


def is_whole(log: LogOrError) -> TypeGuard[PartitionLog]:
    """This broker serves it, and it has not lost its end; a sealed one, too."""
    return isinstance(log, PartitionLog) and log.lost_end is None and log.is_served


def may_be_opened_later(failure: TailraceError) -> bool:
    """The disk has refused something, and nothing is known to be lost."""
    return isinstance(failure, DiskFullError | StorageFailedError)


async def open_logs(
    topic: Topic,
    partitions: Iterable[Partition],
    directory: DataDirectory,
    resources: LogResources,
    roles: RangeRoles,
    replayed: Replayed,
) -> dict[int, LogOrError]:
    """Recover the logs of these partitions of the topic, by id.

    A damaged one has its error; so has one that the disk refuses something for now.
    """
    async with asyncio.TaskGroup() as tasks:
        opening = {
            each.partition: tasks.create_task(
                _open_log(topic, each, directory, resources, roles, replayed)
            )
            for each in partitions
        }
    return {partition: task.result() for partition, task in opening.items()}


async def _open_log(
    topic: Topic,
    partition: Partition,
    directory: DataDirectory,
    resources: LogResources,
    roles: RangeRoles,
    replayed: Replayed,
) -> LogOrError:
    path = directory.partition_path(topic.topic_id, partition.partition)
    place = LogPlace(
        path,
        topic.name,
        topic.topic_id,
        partition.partition,
        partition.range_id,
    )
    role = roles.of(partition.range_id)
    recover = _recover if role.commits_alone else _recover_replica
    batches = replayed.batches(topic.topic_id, partition.partition)
    try:
        found = await resources.io.run(
            partial(recover, place, partition, directory, resources, replayed)
        )
    except (CorruptPartitionError, ReadFailedError) as error:
        detail = error.detail
        if isinstance(error, ReadFailedError):
            detail = _unreadable_text(place, detail)
        await _report_damage(place, detail, batches, resources)
        return place.damaged(detail)
    except (DiskFullError, StorageFailedError) as error:
        return error
    recovered = found.log
    log = PartitionLog(
        place,
        recovered.segments,
        resources,
        topic.settings,
        role,
        start=recovered.start,
        pending=replayed.pending(recovered.pending),
        windows=recovered.windows,
        sealed_end=None if recovered.lost_end else partition.sealed_end,
        lost_end=recovered.lost_end,
    )
    resources.quarantine.recovered(log, recovered.damages, recovered.losses)
    if recovered.lost_end is not None:
        detail = log.lost_end_error(recovered.lost_end).detail
        await _report_damage(place, detail, batches, resources)
        return log
    if found.has_rescued and not await log.spilled():
        try:
            await resources.io.run(partial(remove_rescued, path))
        except StoredDataError as error:  # the next start finds that they are in the segments
            _log.warning("rescued.kept", file=str(path / RESCUED), detail=error.detail)
    return log


class _Found(NamedTuple):
    """A log as a start finds it. `has_rescued`: some of it was set aside beside the segments."""

    log: RecoveredLog
    has_rescued: bool = False


def _recover(
    place: LogPlace,
    partition: Partition,
    directory: DataDirectory,
    resources: LogResources,
    replayed: Replayed,
    *,
    headers_prove: bool = True,
) -> _Found:
    """Blocks. Raises as `recover_log` and `check_epoch`."""
    topic_id, number = place.topic_id, place.partition
    rescued = load_rescued(place.directory)
    recovered = recover_log(
        place,
        partition.first_offset,
        resources.pool,
        directory.inventory,
        is_direct=resources.is_direct,
        journaled=[*rescued, *replayed.batches(topic_id, number)],
        damaged=replayed.damaged(topic_id, number),
        exact_end=partition.sealed_end
        if partition.is_sealed
        else replayed.exact_end(topic_id, number),
        is_journal_lossy=replayed.replay.is_lossy,
        headers_prove=headers_prove,
        now_us=resources.now_us(),
    )
    check_epoch(place, partition.epoch, recovered)
    return _Found(recovered, bool(rescued))


def _recover_replica(
    place: LogPlace,
    partition: Partition,
    directory: DataDirectory,
    resources: LogResources,
    replayed: Replayed,
) -> _Found:
    """Blocks. A damaged log is set aside for an empty one: other replicas have what it held."""
    key = LogKey(place.topic_id, place.partition)
    recover = partial(_recover, place, partition, directory, resources)
    if not directory.damaged.is_to_be_set_aside(key):
        try:
            found = recover(replayed, headers_prove=not directory.has_lost_power)
            check_whole(place, found.log)
            return found
        except (CorruptPartitionError, ReadFailedError) as error:
            _log.error(
                "partition.damaged",
                topic=place.topic,
                partition=place.partition,
                detail=error.detail,
            )
    directory.damaged.set_aside(key)
    _log.warning("partition.replaced", topic=place.topic, partition=place.partition)
    return recover(Replayed())


def _unreadable_text(place: LogPlace, detail: str) -> str:
    """`detail`: the path and what the operating system says of it."""
    return (
        f'partition {place.partition} of topic "{place.topic}" cannot be opened: {detail}. Stop '
        "the broker and restore this file from a copy; or, to go on without it, move it out of the "
        "data directory, start the broker, and if the partition is damaged then: tailrace topic "
        f"accept-loss {place.topic} {place.partition}"
    )


async def _report_damage(
    place: LogPlace, detail: str, batches: Sequence[JournaledBatch], resources: LogResources
) -> None:
    """Log that the partition takes no writes, and keep its batches of the journal."""
    _log.error("partition.damaged", topic=place.topic, partition=place.partition, detail=detail)
    if batches:
        await set_aside(place.directory, batches, resources)


async def set_aside(path: Path, batches: Sequence[JournaledBatch], resources: LogResources) -> None:
    """What the journal holds of a partition without a log. The others go on when it fails."""
    stored = [batch.stored for batch in batches]
    try:
        await resources.io.run(partial(save_rescued, path, stored, resources.write_file))
    except StoredDataError as error:  # it stays in the journal until that goes on
        _log.error("rescue.failed", file=str(path / RESCUED), detail=error.detail)
