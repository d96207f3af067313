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


class _Prefix(NamedTuple):
    """What is here is the beginning of the source's log, with this checksum.

    `needs_batch`: only the next batch proves it, which must name its last epoch; appends check it.
    """

    checksum: int
    needs_batch: bool = False


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
# What is here of the offsets `[start, end)` beside the copy: some verified batches in order, from
# the one that holds `start` on; none when that is not here.
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
    checksum, needs_batch = None, False
    prefix = await _find_prefix(log, source, ends, sealed.epoch, read_back)
    if prefix is not None:
        checksum, needs_batch = prefix
    spares = _Spares(source, sealed, spare)
    offset = ends.log_start if checksum is None else log.log_end
    fetched_bytes, batches = 0, await _read(source, offset, ends)
    while offset < ends.end:
        began_s = loop.time()
        if isinstance(batches, DamagedPart):
            batches = await spares.part(offset, batches)
        if isinstance(batches, range):
            if needs_batch:
                raise _unproven(offset)
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
        needs_batch = False
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


async def _find_prefix(
    log: PartitionLog,
    source: CopySource,
    ends: SourceEnds,
    sealed_epoch: int,
    read_back: ReadBack,
) -> _Prefix | None:
    """None: what is here is empty, or no beginning of the source's log."""
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
                is_of_seal = headers[-1].epoch == sealed_epoch
                if offset == log.log_end and (is_of_seal or offset < ends.end):
                    return _Prefix(chained(headers, checksum), needs_batch=not is_of_seal)
                is_proven = False
                if offset != compared.end:
                    break
            elif chained(headers) != compared.checksum or offset != compared.end:
                return None
            else:
                is_proven = True
            checksum = chained(headers, checksum)
        if not is_proven:  # it may be the last copy: it stays, and waits
            raise _unproven(offset)
        return _Prefix(checksum)
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


class _Spares:
    """What the source cannot read, from here: piece by piece, since a span may be of any size."""

    def __init__(self, source: CopySource, sealed: SealedAt, spare: Spare) -> None:
        self._source = source
        self._sealed = sealed
        self._spare = spare
        self._proven_end = 0  # what is here to there is the source's

    async def part(self, offset: int, damaged: DamagedPart) -> Sequence[StoredBatch]:
        """The batches that come next. NotReadyError: they are not here, or are others."""
        end = min(damaged.end, self._sealed.end)
        if end > self._proven_end:
            await self._prove(offset, end, damaged)
            self._proven_end = end
        return await self._batches(offset, end, damaged)

    async def _prove(self, offset: int, end: int, damaged: DamagedPart) -> None:
        """By the last batch before the end; all are there."""
        last_epoch = NO_EPOCH
        while offset < end:
            last = (await self._batches(offset, end, damaged))[-1].header
            offset, last_epoch = last.end_offset, last.epoch
        is_last = end == self._sealed.end
        epoch = self._sealed.epoch if is_last else _epoch_before(await self._source.read(end))
        if (offset, last_epoch) != (end, epoch):
            raise NotReadyError(damaged.detail)

    async def _batches(self, offset: int, end: int, damaged: DamagedPart) -> Sequence[StoredBatch]:
        found = await self._spare(offset, end)
        if not found or found[0].header.base_offset != offset:
            raise NotReadyError(damaged.detail)
        return found


def _unproven(offset: int) -> NotReadyError:
    return NotReadyError(f"the source is damaged, and nothing proves what is here at {offset}")


def _epoch_before(batches: Sequence[StoredBatch] | range | DamagedPart) -> int | None:
    return None if isinstance(batches, range | DamagedPart) else batches[0].header.previous_epoch


def _losses_of(log: PartitionLog) -> dict[int, int]:
    """By their first offsets the ends of its losses that were accepted."""
    return {each.first_offset: each.end_offset for each in log.quarantined if each.is_accepted}


async def _reset(log: PartitionLog, offset: int, epoch: int) -> None:
    """It is empty from now on, and begins there, behind a batch of this epoch."""
    done: asyncio.Future[CutOutcome] = asyncio.get_running_loop().create_future()
    log.cut(offset, epoch, done.set_result, is_reset=True)
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
