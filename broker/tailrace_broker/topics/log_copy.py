"""Copies a sealed log from another broker, and goes on where an earlier copy was interrupted.

What is here already is compared with the source first, part by part: a broker that lagged when the
range was sealed may have what was never committed. If it is no beginning of the source's log, the
copy begins again. In the end all is read back from the disk and compared with what was sent.

Offsets that the source has lost, as was accepted, are lost in the copy too. What is damaged there
alone may be here, in the copy itself or in what was set aside of an earlier one. Batches are the
source's if they lead up to its batch behind the damage: that names the epoch before it, in which an
offset has one record, and so have all offsets before. At the end of a log they are the source's if
they are of the epoch that the log was sealed in: its leader has sealed all that it had appended.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.copied import chained
from tailrace_broker.model.append_outcome import (
    AppendFailed,
    AppendOutcome,
    CutFailed,
    CutOutcome,
    LogIsCut,
)
from tailrace_broker.model.errors import CorruptBatchError, NotReadyError, StorageFailedError
from tailrace_broker.model.topic import NO_EPOCH
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.reader import read_batches
from tailrace_broker.storage.segments.writer import segment_path

# Of one read, here and at the source; more when a single batch is larger.
PIECE_BYTES = 1024 * 1024
FLUSH_SECONDS = 30.0


class SealedAt(NamedTuple):
    """Where a log ends and in which epoch it was sealed, as the ring has committed it."""

    end: int
    epoch: int


class SourceEnds(NamedTuple):
    """Where the source's log begins, and where it ends."""

    log_start: int
    end: int


class Compared(NamedTuple):
    """The checksum of the source's batches from an offset on, up to `end`: a part of them.

    `is_lost`: it has none there, as was accepted; `is_damaged`: it cannot read them.
    """

    checksum: int
    end: int
    is_lost: bool = False
    is_damaged: bool = False


class DamagedPart(NamedTuple):
    """Offsets of the source up to `end`, which it cannot read; `detail` says why."""

    end: int
    detail: str


class Copied(NamedTuple):
    """What was fetched. `lost`: the offsets that come next, which the source has lost; None: all
    is there.
    """

    size_bytes: int
    lost: range | None = None


class CopySource(Protocol):
    """A whole copy elsewhere. All of it raises TailraceError."""

    async def ends(self) -> SourceEnds:
        """Return where it begins and ends."""

    async def compare(self, start: int, end: int) -> Compared:
        """Return the checksum of its batches from the one that holds `start`, below `end`."""

    async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
        """Return some batches from the one that holds `offset`; one at least.

        A range: the offsets there that are lost, as was accepted.
        """


# Reads batches of a log from the disk: from the one that holds an offset, about so many bytes.
ReadBack = Callable[[PartitionLog, int, int], Coroutine[Any, Any, list[StoredBatch]]]
# What is here of the offsets `[start, end)` beside the copy: verified batches in order, or fewer.
Spare = Callable[[int, int], Coroutine[Any, Any, Sequence[StoredBatch]]]
# Called after each piece with how long it took to write it and to fetch the next one meanwhile.
Pause = Callable[[float], Coroutine[Any, Any, None]]


async def copy_log(
    log: PartitionLog,
    source: CopySource,
    sealed: SealedAt,
    read_back: ReadBack,
    spare: Spare,
    pause: Pause,
) -> Copied:
    """Make an open log the source's, up to the next loss that it does not have.

    Without one all is durable on return, and was read back. CorruptBatchError: it was not what was
    sent. What the source raises; DiskFullError, StorageFailedError. NotReadyError: the source does
    not end where it was sealed.
    """
    loop = asyncio.get_running_loop()
    ends = await source.ends()
    if ends.end != sealed.end:
        raise NotReadyError(f"the source ends at {ends.end}, and was sealed at {sealed.end}")
    checksum = await _checksum_of_prefix(log, source, ends, sealed.epoch, read_back)
    offset = ends.log_start if checksum is None else log.log_end
    fetched_bytes, batches = 0, await _read(source, offset, ends)
    while offset < ends.end:
        began_s = loop.time()
        if isinstance(batches, DamagedPart):
            batches = await _spared(source, sealed, offset, batches, spare)
        if isinstance(batches, range):
            if checksum is None:
                await _reset(log, offset, NO_EPOCH)
            log.commit(offset)
            await _flush(log, offset)
            return Copied(fetched_bytes, range(offset, min(batches.stop, ends.end)))
        first = batches[0].header
        if checksum is None:
            await _reset(log, first.base_offset, first.previous_epoch)
            checksum = 0
        appended = _begin_append(log, batches)
        checksum = chained(map(attrgetter("header"), batches), checksum)
        fetched_bytes += sum(each.header.batch_bytes for each in batches)
        offset = batches[-1].header.end_offset
        batches = await _read(source, offset, ends)  # while those before are written
        outcome = await asyncio.shield(appended)  # it is written, cancelled or not
        if isinstance(outcome, AppendFailed):
            raise outcome.error
        assert log.log_end == offset, (log.log_end, offset)
        await pause(loop.time() - began_s)
    if checksum is None:  # nothing of it is left at the source
        await _reset(log, ends.end, NO_EPOCH)
        checksum = 0
    log.commit(ends.end)
    await _flush(log, ends.end)
    if log.log_start < ends.log_start:
        await log.trim(ends.log_start)
    if await _checksum_here(log, ends, read_back) != checksum:
        raise CorruptBatchError("what is on the disk is not what the source has sent")
    return Copied(fetched_bytes)


def reading_back(resources: LogResources) -> ReadBack:
    """From the disk, whatever memory has. CorruptBatchError, ReadFailedError."""

    async def read_back(log: PartitionLog, offset: int, max_bytes: int) -> list[StoredBatch]:
        segments, reading = log.segments, resources.catch_up
        state = segments[bisect_right(segments, offset, key=attrgetter("base_offset")) - 1]
        read = partial(
            read_batches,
            resources.files,
            segment_path(log.place.directory, state.base_offset),
            state,
            reading.memory,
            offset=offset,
            end_offset=state.end_offset,
            max_bytes=max_bytes,
        )
        return await reading.io.run(read)

    return read_back


async def _checksum_of_prefix(
    log: PartitionLog,
    source: CopySource,
    ends: SourceEnds,
    sealed_epoch: int,
    read_back: ReadBack,
) -> int | None:
    """The checksum of what is here; None: it is empty, or no beginning of the source's log."""
    if not log.log_start <= ends.log_start < log.log_end <= ends.end:
        return None
    await _spill(log)
    offset, checksum, losses = ends.log_start, 0, _losses_of(log)
    is_proven = True  # by what follows, where the source is damaged
    with suppress(CorruptBatchError):
        while offset < log.log_end:
            compared = await source.compare(offset, log.log_end)
            if compared.is_lost:
                if not is_proven:
                    break
                if losses.get(offset) != compared.end:
                    return None
                offset = compared.end
                continue
            headers = []
            while offset < min(compared.end, log.log_end):
                batches = await read_back(log, offset, PIECE_BYTES)
                headers += [
                    each.header for each in batches if each.header.base_offset < compared.end
                ]
                offset = headers[-1].end_offset
            if compared.is_damaged:
                # A batch that is appended here must name the epoch.
                is_followed = log.log_end < ends.end or headers[-1].epoch == sealed_epoch
                is_proven = offset == compared.end == log.log_end and is_followed
                if offset != compared.end:
                    break
            elif chained(headers) != compared.checksum or offset != compared.end:
                return None
            else:
                is_proven = True
            checksum = chained(headers, checksum)
        if not is_proven:  # it may be the last copy: it stays, and waits
            raise NotReadyError(
                f"the source is damaged, and nothing proves what is here at {offset}"
            )
        return checksum
    return None


async def _checksum_here(log: PartitionLog, ends: SourceEnds, read_back: ReadBack) -> int:
    offset, checksum, losses = ends.log_start, 0, _losses_of(log)
    while offset < ends.end:
        if offset in losses:
            offset = losses[offset]
            continue
        batches = await read_back(log, offset, PIECE_BYTES)
        checksum = chained(map(attrgetter("header"), batches), checksum)
        offset = batches[-1].header.end_offset
    return checksum


async def _spared(
    source: CopySource, sealed: SealedAt, offset: int, damaged: DamagedPart, spare: Spare
) -> Sequence[StoredBatch]:
    """What the source cannot read, from here. NotReadyError: it is not here, or is another."""
    end = min(damaged.end, sealed.end)
    found = await spare(offset, end)
    if found and (found[0].header.base_offset, found[-1].header.end_offset) == (offset, end):
        is_last = end == sealed.end
        epoch = sealed.epoch if is_last else _epoch_before(await source.read(end))
        if found[-1].header.epoch == epoch:
            return found
    raise NotReadyError(damaged.detail)


def _epoch_before(batches: Sequence[StoredBatch] | range | DamagedPart) -> int | None:
    return None if isinstance(batches, range | DamagedPart) else batches[0].header.previous_epoch


def _losses_of(log: PartitionLog) -> dict[int, int]:
    """By their first offsets the ends of its losses that were accepted."""
    return {each.first_offset: each.end_offset for each in log.quarantined if each.is_accepted}


async def _reset(log: PartitionLog, offset: int, epoch: int) -> None:
    """It is empty from now on, and begins there, behind a batch of this epoch."""
    done: asyncio.Future[CutOutcome] = asyncio.get_running_loop().create_future()
    log.cut(offset, epoch, done.set_result, is_reset=True, may_lose=True)
    outcome = await asyncio.shield(done)
    if isinstance(outcome, CutFailed):
        raise outcome.error
    assert isinstance(outcome, LogIsCut), outcome  # it may lose all, and nobody leads it


async def _read(
    source: CopySource, offset: int, ends: SourceEnds
) -> Sequence[StoredBatch] | range | DamagedPart:
    """The piece of the source that begins there; nothing behind its end."""
    return await source.read(offset) if offset < ends.end else ()


def _begin_append(
    log: PartitionLog, batches: Sequence[StoredBatch]
) -> "asyncio.Future[AppendOutcome]":
    """Append them; the outcome comes when they are written. StorageFailedError: they misfit."""
    done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
    misfit = log.append_stored(batches, done.set_result)
    if misfit is not None:
        raise StorageFailedError(f"a batch does not follow what was copied before: {misfit}")
    return done


async def _flush(log: PartitionLog, end: int) -> None:
    """Until all of it is durable, in the segments. DiskFullError, StorageFailedError."""
    await _spill(log)
    is_durable = False
    with suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_SECONDS):
            is_durable = await log.flush_all()
    if not is_durable or log.durable_end < end:
        raise StorageFailedError("the disk has not made a copy durable in time")


async def _spill(log: PartitionLog) -> None:
    failed = await log.spilled()
    if failed is not None:
        raise failed
