"""A topic with its logs on this broker: opened from disk, and which partition takes what."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import structlog
from msgspec.structs import replace

from tailrace_broker.codec.journal import JournalCut
from tailrace_broker.core.log.journal_replay import JournaledBatch
from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN, find_slice, token, tokens
from tailrace_broker.core.ring.origins import origins_of
from tailrace_broker.model.counters import TopicCounts
from tailrace_broker.model.damage import Accepted, Loss, is_accepted
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    CorruptPartitionError,
    DiskFullError,
    NotLeaderError,
    NotReadyError,
    ReadFailedError,
    StorageFailedError,
    StoredDataError,
    TailraceError,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.journal.cuts import write_cuts
from tailrace_broker.storage.log.damage_file import accepted_losses, record_loss
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.log.recovery import (
    RecoveredLog,
    check_epoch,
    check_whole,
    recover_log,
)
from tailrace_broker.storage.log.rescued_tail import (
    RESCUED,
    cut_rescued,
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

    The partitions that are not sealed have each token once at most. Some have none when the topic
    was created while a step changed their ranges: they come with the step's end.
    """

    def __init__(
        self, topic: Topic, logs: Sequence[LogOrError], roles: RangeRoles, *, ordinal: int
    ) -> None:
        """`logs` by the topic's partitions; `ordinal`: of this broker."""
        self._roles = roles
        self._ordinal = ordinal
        self.counts = TopicCounts()
        self.topic = replace(topic, partitions=())
        self.logs: dict[int, LogOrError] = {}
        self._leaving: list[PartitionLog] = []
        self.alter(topic, logs)

    def alter(self, topic: Topic, logs: Sequence[LogOrError]) -> None:
        """It is another now, in whatever."""
        assert len(logs) == len(topic.partitions)
        gone_ends = {
            each.partition: each.sealed_end
            for each in self.topic.partitions
            if each.sealed_end is not None and topic.find(each.partition) is None
        }
        self.topic = topic = replace(topic, gone_ends={**self.topic.gone_ends, **gone_ends})
        self.origins = origins_of(topic)
        before, ids = self.logs, (each.partition for each in topic.partitions)
        self.logs = dict(zip(ids, logs, strict=True))
        gone = (log for each, log in before.items() if each not in self.logs)
        self._leaving += [log for log in gone if isinstance(log, PartitionLog)]
        unsealed = [partition for partition in topic.partitions if not partition.is_sealed]
        by_token = sorted(unsealed, key=lambda partition: partition.token_start)
        self._open_ids = [partition.partition for partition in by_token]
        self._unsealed = frozenset(self._open_ids)
        self._token_starts = [partition.token_start for partition in by_token]
        self._token_ends = [partition.token_end for partition in by_token]
        starts = [*self._token_starts, TOKEN_END]
        self._has_each_token = [TOKEN_MIN, *self._token_ends] == starts
        local = [each for each in self._open_ids if is_whole(self.logs[each])]
        self._turns = itertools.cycle(local or self._open_ids)
        for log in self.all_logs():
            if log.settings != topic.settings:
                log.settings = topic.settings

    def all_logs(self) -> list[PartitionLog]:
        """All that are open here, those of partitions too that other brokers lead now."""
        return [log for log in self.logs.values() if isinstance(log, PartitionLog)]

    def whole_logs(self) -> list[PartitionLog]:
        """Those that this broker serves, and that have not lost their end."""
        return list(filter(is_whole, self.logs.values()))

    def take_leaving(self) -> list[PartitionLog]:
        """Return the logs of partitions that are gone since the last call, to be closed."""
        leaving, self._leaving = self._leaving, []
        return leaving

    def decided_starts(self) -> dict[PartitionLog, int]:
        """Where those of sealed partitions begin, as the ring has committed it."""
        found = zip(self.topic.partitions, self.logs.values(), strict=True)
        return {
            log: partition.known_start
            for partition, log in found
            if partition.is_sealed and isinstance(log, PartitionLog)
        }

    @property
    def damaged_count(self) -> int:
        """Partitions that take no writes because their data is damaged."""
        return sum(map(is_damaged, self.logs.values()))

    def failure(self) -> TailraceError | None:
        """Why a log could not be opened that may be later."""
        failures = (each for each in self.logs.values() if isinstance(each, TailraceError))
        return next(filter(may_be_opened_later, failures), None)

    def log_ends(self) -> list[int | None]:
        """By partition id; null: there is no log here, or it has lost its end."""
        logs = map(self.logs.get, range(max(self.logs, default=-1) + 1))
        return [log.log_end if log is not None and is_whole(log) else None for log in logs]

    def log_of(self, partition: int) -> PartitionLog:
        """PartitionNotFoundError; NotLeaderError, NoLeaderError; CorruptPartitionError when its
        data is damaged.
        """
        log = self.logs.get(partition)
        if log is None:
            raise self.topic.no_partition(partition)
        if isinstance(log, PartitionLog):
            log.check_served()
            return log
        elsewhere = self._roles.of(self.topic.at(partition).range_id).elsewhere
        if elsewhere is not None:
            raise elsewhere(self.topic.name, partition)
        raise log.with_traceback(None)  # else it would grow by those who asked before

    def replica_of(self, partition: int) -> PartitionLog | None:
        """The log as it is here, whoever leads it; None: it is not, or is damaged.

        PartitionNotFoundError.
        """
        log = self.logs.get(partition)
        if log is None:
            raise self.topic.no_partition(partition)
        return log if isinstance(log, PartitionLog) and log.lost_end is None else None

    def open_log_of(self, partition: int) -> PartitionLog:
        """To append: as `log_of`, and NotLeaderError when the partition is sealed."""
        if partition not in self._unsealed and partition in self.logs:
            raise self.sealed_error(partition)
        return self.log_of(partition)

    def check_open(self, partition: int) -> None:
        """NotLeaderError: the partition, which there is, is sealed."""
        if partition not in self._unsealed:
            raise self.sealed_error(partition)

    def sealed_error(self, partition: int) -> NotLeaderError:
        """Return what appends to a sealed partition are answered."""
        children = self.topic.at(partition).children
        return NotLeaderError(
            f'partition {partition} of topic "{self.topic.name}" is sealed; its keys go on in '
            f"partitions {', '.join(map(str, children))}",
            topic=self.topic.name,
            partition=partition,
            leader=self._ordinal,
            children=list(children),
        )

    def partition_of_key(self, key: bytes | None) -> int:
        """The open partition that has the key's token; with no key, each that has its log here in
        turn. NotReadyError: there is none yet.
        """
        if key is None and self._open_ids:
            return next(self._turns)
        if not self._has_each_token:
            return int(self.partitions_of_keys([key or b""])[0])
        assert key is not None
        return self._open_ids[find_slice(self._token_starts, token(key))]

    def partitions_of_keys(self, keys: Sequence[bytes | str]) -> npt.NDArray[np.int32]:
        """Of each key the open partition that has its token. NotReadyError: there is none yet."""
        if len(self._open_ids) == 1 and self._has_each_token:
            return np.full(len(keys), self._open_ids[0], np.int32)
        key_tokens = tokens(keys)
        starts = np.array(self._token_starts, np.int64)
        slices = np.searchsorted(starts, key_tokens, side="right") - 1
        if not self._has_each_token:
            self._check_tokens(key_tokens, slices)
        return np.array(self._open_ids, np.int32)[slices]

    def _check_tokens(
        self, key_tokens: npt.NDArray[np.int64], slices: npt.NDArray[np.int_]
    ) -> None:
        """NotReadyError: some token has no partition yet."""
        last_tokens = np.array([end - 1 for end in self._token_ends], np.int64)
        if not len(last_tokens) or np.any(slices < 0) or np.any(key_tokens > last_tokens[slices]):
            raise NotReadyError(
                f'topic "{self.topic.name}" gets partitions for some keys when the step of the '
                "ring that is under way has ended; try again",
                topic=self.topic.name,
            )


def is_damaged(log: LogOrError) -> bool:
    """It takes no writes because what is stored of it is damaged."""
    if isinstance(log, PartitionLog):
        return log.lost_end is not None
    return isinstance(log, CorruptPartitionError)


def lacks_records(log: LogOrError) -> bool:
    """Some of what was committed cannot be read, and nobody has accepted that."""
    if isinstance(log, PartitionLog):
        return log.lost_end is not None or not all(each.is_accepted for each in log.quarantined)
    return isinstance(log, CorruptPartitionError)


def is_whole(log: LogOrError) -> TypeGuard[PartitionLog]:
    """This broker serves it, and it has not lost its end; a sealed one, too."""
    return isinstance(log, PartitionLog) and log.lost_end is None and log.is_served


def may_be_opened_later(failure: TailraceError) -> bool:
    """The disk has refused something, and nothing is known to be lost."""
    return isinstance(failure, DiskFullError | StorageFailedError)


class RolesOfRanges(Protocol):
    """What the logs that are opened have for a role."""

    def of(self, range_id: int) -> RangeRole:
        """The role in a range."""
        ...


def log_in(hosted: HostedTopic | None, partition: int) -> LogOrError | None:
    """Return a topic's log of the partition, if both are here."""
    return None if hosted is None else hosted.logs.get(partition)


async def open_logs(
    topic: Topic,
    partitions: Iterable[Partition],
    directory: DataDirectory,
    resources: LogResources,
    roles: RolesOfRanges,
    replayed: Replayed,
    accepted: Mapping[LogKey, Accepted],
) -> dict[int, LogOrError]:
    """Recover the logs of these partitions of the topic, by id.

    A damaged one has its error; so has one that the disk refuses something for now. `accepted`:
    what is known to be lost of sealed ones.
    """
    async with asyncio.TaskGroup() as tasks:
        opening = {
            each.partition: tasks.create_task(
                _open_log(
                    topic,
                    each,
                    directory,
                    resources,
                    roles,
                    replayed,
                    accepted.get(LogKey(topic.topic_id, each.partition), ()),
                )
            )
            for each in partitions
        }
    return {partition: task.result() for partition, task in opening.items()}


async def _open_log(
    topic: Topic,
    partition: Partition,
    directory: DataDirectory,
    resources: LogResources,
    roles: RolesOfRanges,
    replayed: Replayed,
    accepted: Accepted,
) -> LogOrError:
    path = directory.partition_path(topic.topic_id, partition.partition)
    place = LogPlace.of(path, topic, partition)
    role = roles.of(partition.range_id)
    recover: Callable[..., _Found] = _recover
    if not role.commits_alone:
        recover = partial(_recover_replica, accepted=accepted)
    elif partition.is_sealed:
        recover = partial(_recover_sealed, accepted=accepted)
    batches = replayed.batches(topic.topic_id, partition.partition)
    try:
        found = await resources.io.run(
            partial(recover, place, partition, directory, resources, replayed)
        )
        await _cut_given_up(place, found, resources, replayed)
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
    resources.quarantine.recovered(log, recovered.damages, recovered.losses, accepted)
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
    has_rescued: bool


async def _cut_given_up(
    place: LogPlace, found: _Found, resources: LogResources, replayed: Replayed
) -> None:
    """Before the log takes anything; in the journal with others' at the end of a start.

    Later the journal may still have what was set aside beside the segments. DiskFullError,
    StorageFailedError.
    """
    end_offset = found.log.journal_cut
    replayed.note_opened(place, found.log)
    if end_offset is None or not found.has_rescued:
        return
    if not replayed.files:
        cut = JournalCut(place.topic_id.bytes, place.partition, end_offset)
        await write_cuts(resources.journal, [cut])
    await resources.io.run(partial(cut_rescued, place.directory, end_offset, resources.write_file))


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


def _recover_sealed(
    place: LogPlace,
    partition: Partition,
    directory: DataDirectory,
    resources: LogResources,
    replayed: Replayed,
    *,
    accepted: Accepted,
) -> _Found:
    """Blocks. A damaged copy is marked: where other brokers have it, it is fetched again.

    What was recorded as accepted before is no damage. What this start accepts, since its journal
    has lost something, is: so the mark is there before the record.
    """
    key, damaged = place.key, directory.damaged
    damaged.is_to_be_set_aside(key)  # it is known from now on if it is
    recover = partial(_recover, place, partition, directory, resources)
    is_marked_first = replayed.replay.is_lossy and key not in damaged.known
    if is_marked_first:
        damaged.mark(key)
    try:
        known = [*accepted, *accepted_losses(place.directory)]
        found = recover(replayed)
        lost, end = found.log.lost_end, partition.sealed_end
        if lost is not None and end is not None and is_accepted(accepted, lost.first_offset, end):
            loss = Loss(lost.first_offset, lost.next_offset, resources.now_us())
            record_loss(place.directory, loss)
            found = recover(replayed)
    except (CorruptPartitionError, CorruptMetadataError, ReadFailedError) as error:
        damaged.mark(key)
        if isinstance(error, CorruptMetadataError):
            raise place.damaged(f"{place.directory}: {error.detail}") from error
        raise
    with suppress(CorruptPartitionError):
        check_whole(place, found.log, known)
        if is_marked_first:
            damaged.remove(key)
        return found
    damaged.mark(key)
    return found


def _recover_replica(
    place: LogPlace,
    partition: Partition,
    directory: DataDirectory,
    resources: LogResources,
    replayed: Replayed,
    *,
    accepted: Accepted,
) -> _Found:
    """Blocks. A damaged log is set aside for an empty one: other replicas have what it held."""
    key = place.key
    recover = partial(_recover, place, partition, directory, resources)
    if not directory.damaged.is_to_be_set_aside(key):
        try:
            found = recover(replayed, headers_prove=not directory.has_lost_power)
            check_whole(place, found.log, accepted)
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
