"""Fetches the sealed ranges that this broker is to hold and does not, from any whole copy.

One log after the other, at most half of the time: what is live comes first. A log that is whole is
closed again; when all logs of a range are, the ring is asked for `Completed`, and with the state
that says so they are opened and served like any other. An interruption costs the piece that was
under way: the next start goes on with what is on the disk.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace

from tailrace_broker.core.ring.copies import copies_to_make
from tailrace_broker.core.ring.topics import ids_of, slices_in, topic_of, topic_with_id
from tailrace_broker.model.commands import Completed
from tailrace_broker.model.damage import Accepted, Loss
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    NoLeaderError,
    NotReadyError,
    StoredDataError,
    TailraceError,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, RingState
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.log.damage_file import accepted_losses, record_loss
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.hosted_topic import open_logs
from tailrace_broker.topics.log_copy import CopySource, ReadBack, SealedAt, copy_log, reading_back
from tailrace_broker.topics.set_aside_log import SetAsideLog

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 30.0
PAUSE_SECONDS_MAX = 1.0

T = TypeVar("T")
# Makes the way to the copy of a log on another broker.
SourceOf = Callable[[int, LogKey], CopySource]
# Whether somebody needs the files of a topic's partition.
Needs = Callable[[UUID, Partition], bool]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_log = structlog.get_logger()


class SealedCopies:
    """State changes on the event loop only. `copied_bytes`: fetched by this process."""

    def __init__(
        self,
        ring: RingNode,
        directory: DataDirectory,
        log_of: Callable[[LogKey], PartitionLog | None],
        reached: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`log_of` returns a log that is open here; `reached` waits until what this broker had of
        a range, and is not whole, is closed.
        """
        self.copied_bytes = 0
        self._ring = ring
        self._directory = directory
        self._log_of = log_of
        self._reached = reached
        self._resources: LogResources | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Logs that this process has found whole, with its number in their range then.
        self._whole: dict[LogKey, tuple[int, int]] = {}
        self._needed: list[Needs] = []
        self._copying: _Copying | None = None
        ring.on_applied.append(lambda _, __: self._changed.set())

    def begin(self, resources: LogResources, source_of: SourceOf, spawn: Spawn) -> None:
        """Fetch what is missing, now and whenever it is."""
        self._resources = resources
        self._task = spawn(self._run(source_of))

    async def close(self) -> None:
        """Fetch no more; what was fetched stays. The log that is open is closed first: cancelled
        while the disk opens or closes it, that would go on.
        """
        if self._task is not None:
            async with self.stopped(lambda _, __: True):
                self._task.cancel()
                await asyncio.wait([self._task])

    @asynccontextmanager
    async def stopped(self, needs: Needs) -> AsyncIterator[None]:
        """Meanwhile no such log is fetched: its files may be read, opened, moved and removed."""
        self._needed.append(needs)
        try:
            copying = self._copying
            if copying is not None and needs(copying.topic_id, copying.partition):
                if copying.part is not None:
                    copying.part.cancel()
                await copying.closed.wait()
            yield
        finally:
            self._needed.remove(needs)

    def whole_log(self, key: LogKey) -> PartitionLog:
        """A sealed log of which this broker has a whole copy, for another. NoLeaderError."""
        log, state, mine = self._log_of(key), self._ring.state, self._ring.registration
        if log is not None and state is not None and mine is not None:
            held = state.ranges.get(log.place.range_id)
            if held is not None and mine.ordinal in held.complete and log.lost_end is None:
                return log
        raise NoLeaderError("this broker has no whole copy of the partition")

    async def _run(self, source_of: SourceOf) -> None:
        loop = asyncio.get_running_loop()
        retries: dict[int, _Retry] = {}
        while True:
            self._changed.clear()
            wanted = self._wanted()
            retries = {each.id: retries[each.id] for each in wanted if each.id in retries}
            for held in wanted:
                retry = retries.get(held.id)
                if retry is not None and retry.held == held and loop.time() < retry.at_s:
                    continue
                if await self._fetch(held, source_of):
                    retries.pop(held.id, None)
                else:
                    pause_s = RETRY_SECONDS_MIN if retry is None else 2 * retry.pause_s
                    pause_s = min(pause_s, RETRY_SECONDS_MAX)
                    retries[held.id] = _Retry(held, pause_s, loop.time() + pause_s)
            next_s = min((each.at_s for each in retries.values()), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._changed.wait()

    def _wanted(self) -> list[RangeState]:
        state, mine = self._ring.state, self._ring.registration
        return [] if state is None or mine is None else copies_to_make(state, mine.ordinal)

    async def _fetch(self, held: RangeState, source_of: SourceOf) -> bool:
        """Whether the range is whole here, and the ring knows."""
        mine = self._ring.registration
        assert mine is not None
        number = held.replica_of(mine).number
        began_bytes = self.copied_bytes
        try:
            while missing := self._missing(held, number):
                for key in missing:
                    found = self._found(key)
                    if found is not None:  # its topic is there still
                        await self._fetch_log(held, *found, source_of)
                        self._whole[key] = number
            await self._ring.change(Completed(held.id, mine.ordinal, *number))
        except (TailraceError, OSError) as error:
            detail = error.detail if isinstance(error, TailraceError) else str(error)
            _log.info("copy.interrupted", range=held.id, detail=detail)
            return False
        _log.info("copy.completed", range=held.id, bytes=self.copied_bytes - began_bytes)
        self._forget(held)
        return True

    def _missing(self, held: RangeState, number: tuple[int, int]) -> list[LogKey]:
        """Logs of the range that are not whole; the topics are those that there are now."""
        state = self._ring.state
        assert state is not None
        return [key for key in _logs_in(state, held.id) if self._whole.get(key) != number]

    def _found(self, key: LogKey) -> tuple[Topic, Partition] | None:
        state = self._ring.state
        assert state is not None
        found = topic_with_id(state, key.topic_id)
        if found is None:
            return None
        topic = topic_of(state, found)
        partition = topic.find(key.partition)
        return None if partition is None else (topic, partition)

    async def _fetch_log(
        self, held: RangeState, topic: Topic, partition: Partition, source_of: SourceOf
    ) -> None:
        """From the first that answers of those that have it. TailraceError."""
        assert self._resources is not None
        key, read_back = _key_of(topic, partition), reading_back(self._resources)
        error: TailraceError = NotReadyError(f"nobody has a whole copy of range {held.id}")
        for ordinal in self._sources(held.id):
            source = source_of(ordinal, key)
            try:
                await self._copy(topic, partition, source, read_back)
            except StoredDataError:
                raise  # the disk here is at fault, or what is on it
            except TailraceError as refusal:
                error = refusal
            except msgspec.MsgspecError:
                error = NotReadyError(f"broker {ordinal} gave an answer that cannot be read")
            else:
                return
        raise error

    async def _copy(
        self, topic: Topic, partition: Partition, source: CopySource, read_back: ReadBack
    ) -> None:
        """All of a log, over each of the source's losses. TailraceError, MsgspecError."""
        assert self._resources is not None
        key = _key_of(topic, partition)
        lost: range | None = None
        aside = self._set_aside(topic, partition)
        assert partition.sealed_end is not None
        sealed = SealedAt(partition.sealed_end, partition.epoch)
        copying = self._copying = _Copying(topic.topic_id, partition, asyncio.Event())
        try:
            await self._unless_stopped(copying, self._reached())  # its files are where they belong
            if self._found(key) is None:
                raise NotReadyError("the topic of the log that is copied was deleted")
            while True:
                log = await self._open(topic, partition, lost)
                is_interrupted = True
                try:
                    part = copy_log(log, source, sealed, read_back, aside.batches, _pause)
                    copied = await self._unless_stopped(copying, part)
                    self.copied_bytes += copied.size_bytes
                    self._directory.damaged.unreset.discard(key)
                    is_interrupted = False
                finally:
                    if is_interrupted:
                        # What the disk has no space for is set aside. In the journal it would come
                        # to the segments at any time, over what the next log has there.
                        log.give_up(NotReadyError("the copy of the log was interrupted"))
                    await log.close()
                lost = copied.lost
                if lost is None:
                    return
        finally:
            self._copying = None
            copying.closed.set()

    async def _unless_stopped(self, copying: "_Copying", part: Coroutine[Any, Any, T]) -> T:
        """What this part of a copy gives. NotReadyError: somebody else needs the log."""
        if self._is_needed(copying.topic_id, copying.partition):
            part.close()
            raise _stopped(copying.partition)
        copying.part = task = asyncio.create_task(part)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            copying.part = None
        if task.cancelled():
            raise _stopped(copying.partition)
        return task.result()

    def _is_needed(self, topic_id: UUID, partition: Partition) -> bool:
        return any(needs(topic_id, partition) for needs in self._needed)

    def _set_aside(self, topic: Topic, partition: Partition) -> SetAsideLog:
        assert self._resources is not None
        path = self._directory.damaged.set_aside_path(_key_of(topic, partition))
        place = LogPlace.of(path, topic, partition)
        return SetAsideLog(place, partition.first_offset, self._resources)

    def _sources(self, range_id: int) -> list[int]:
        """Those that are heard first."""
        state = self._ring.state
        assert state is not None
        silent = self._ring.silent()
        held = state.ranges.get(range_id)
        complete = () if held is None else held.complete
        return sorted(complete, key=lambda ordinal: ordinal in silent)

    async def _open(self, topic: Topic, partition: Partition, lost: range | None) -> PartitionLog:
        """As a log that goes on, whatever is there of it; `lost`: behind these. TailraceError."""
        assert self._resources is not None
        key = _key_of(topic, partition)
        if self._is_needed(topic.topic_id, partition):
            raise _stopped(partition)
        if self._log_of(key) is not None:
            raise NotReadyError("the log of the role before is not closed yet")
        path = self._directory.partition_path(*key)
        record = partial(_note_lost, path, lost, self._resources.now_us())
        accepted = await self._resources.io.run(record)
        growing = replace(partition, sealed_end=None, children=())
        opened = await open_logs(
            topic,
            [growing],
            self._directory,
            self._resources,
            _CopyRoles(),
            Replayed(),
            {key: accepted},
        )
        log = opened[partition.partition]
        if isinstance(log, PartitionLog):
            return log
        raise log

    def _forget(self, held: RangeState) -> None:
        state = self._ring.state
        assert state is not None
        for key in _logs_in(state, held.id):
            self._whole.pop(key, None)


class _Retry(NamedTuple):
    """A range that could not be fetched as it was then, and when it is tried again."""

    held: RangeState
    pause_s: float
    at_s: float


@dataclass(slots=True)
class _Copying:
    """A log that may be open to be fetched, until it is `closed`.

    `part`: what may be cancelled of that; None: nothing now.
    """

    topic_id: UUID
    partition: Partition
    closed: asyncio.Event
    part: asyncio.Task[Any] | None = None


class _CopyRoles:
    """Of logs that are copied: they take what is sent to them, and nobody reads them."""

    def of(self, range_id: int) -> RangeRole:
        """The role in a range."""
        return RangeRole(
            None,
            _is_copied,
            commits_alone=False,
            on_given_up=lambda _: None,
            prove=_lead_nothing,
        )


def _stopped(partition: Partition) -> NotReadyError:
    return NotReadyError(f"what is here of partition {partition.partition} is needed as it is")


def _is_copied(topic: str, partition: int) -> TailraceError:
    return NotReadyError(f'partition {partition} of topic "{topic}" is still copied to this broker')


async def _lead_nothing() -> bool:
    return False


def _logs_in(state: RingState, range_id: int) -> Iterator[LogKey]:
    """The logs of the range, of topics that are not deleted. O(topics)."""
    for topic_id, slices in slices_in(state, range_id).items():
        yield from (LogKey(topic_id, each) for each in ids_of(slices))


def _note_lost(path: Path, lost: range | None, now_us: int) -> Accepted:
    """Record what the source has lost; all that is known to be lost of the copy. Blocks.

    CorruptPartitionError, ReadFailedError; DiskFullError, StorageFailedError.
    """
    if lost is not None:
        record_loss(path, Loss(lost.start, lost.stop, now_us))
    try:
        return accepted_losses(path)
    except CorruptMetadataError:
        return ()  # the log is set aside


def _key_of(topic: Topic, partition: Partition) -> LogKey:
    return LogKey(topic.topic_id, partition.partition)


async def _pause(took_s: float) -> None:
    """As long as the piece took: half of the time is for what is live."""
    await asyncio.sleep(min(took_s, PAUSE_SECONDS_MAX))
