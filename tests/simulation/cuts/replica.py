"""The shipped storage engine as a follower; its leader is a script (`leader`).

What was asked for and reported is noted, and a crash must leave no less (`model`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
from msgspec.structs import replace

from tailrace.wire import INVENTORY_FILE
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.metadata import KnownFiles, decode_inventory
from tailrace_broker.codec.producers import ROW, Row, decode_table
from tailrace_broker.core.log import replica_tail
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.engine import open_engine
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_share import IoShare
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.kernel_aio import KernelAio
from tailrace_broker.storage.journal import journal
from tailrace_broker.storage.journal.cuts import write_cuts
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.log.recovery import recover_log
from tailrace_broker.storage.log.rescued_tail import cut_rescued, load_rescued, remove_rescued
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace
from tests.simulation.cuts.model import ModelBatch, ModelLog
from tests.simulation.world import FIRST_DAY_US, Violation
from tests.support.storage.batches import TOPIC_ID
from tests.support.storage.storage import leads_surely

KIBIBYTE = 1024
# Small, so that segments roll, and the journal's files are used again, within a few appends.
LARGE_GROUP_BYTES = 8 * KIBIBYTE
SPILL_BYTES = 16 * KIBIBYTE
FRAME_BYTES_MAX = 8 * KIBIBYTE
SEGMENT_BYTES = 12 * KIBIBYTE
JOURNAL_BYTES = 4 * 28 * KIBIBYTE
POOL_BYTES = 4 * 1024 * KIBIBYTE

FSYNC = TopicSettings(partitions_per_range=2)
DURABILITIES = (FSYNC, replace(FSYNC, durability="written"))

Change = Callable[[ModelLog], None]


class Disk(NamedTuple):
    """Where a replica's files are, and what writes them."""

    data: Path
    io: IoThreads
    is_direct: bool = True
    open_aio: Callable[[], KernelAio | None] = lambda: None


class Notes(Protocol):
    """Takes what was asked for and reported."""

    now: list[ModelLog]

    def note(self, partition: int, change: Change) -> None:
        """Of one log."""


class History:
    """What was asked for and reported, with its time, on top of what held before."""

    def __init__(self, tick: Callable[[], int], before: list[ModelLog] | None = None) -> None:
        self._tick = tick
        self._before = before or [ModelLog() for _ in DURABILITIES]
        self._notes: list[tuple[int, int, Change]] = []
        self.now = [log.copy() for log in self._before]

    def note(self, partition: int, change: Change) -> None:
        """Of one log."""
        self._notes.append((self._tick(), partition, change))
        change(self.now[partition])

    def ever(self, partition: int) -> list[ModelBatch]:
        """Each batch that this log has had, cut since or not; some repeatedly."""
        log, found = self._before[partition].copy(), list(self._before[partition].batches)
        for _, noted, change in self._notes:
            if noted == partition:
                change(log)
                found += log.batches
        return found

    def at(self, time: int) -> list[ModelLog]:
        """What held then."""
        later = History(self._tick, self._before)
        for noted, partition, change in self._notes:
            if noted <= time:
                change(later.now[partition])
        return later.now


@dataclass
class Replica:
    """One life of the follower."""

    disk: Disk
    notes: Notes
    durabilities: Sequence[TopicSettings] = DURABILITIES
    logs: list[PartitionLog] = field(default_factory=list)

    async def open(self, *, lost_power: bool, is_damaged: bool = False) -> LogResources:
        """As a broker opens its logs at a start. `is_damaged`: they may be."""
        data, io, is_direct, open_aio = self.disk
        data.mkdir(exist_ok=True)
        path = data / INVENTORY_FILE
        known = decode_inventory(path.read_bytes()) if path.exists() else KnownFiles(())
        inventory, pool = Inventory(path, known), BufferPool(POOL_BYTES)
        resources, replayed = await open_engine(
            data,
            io,
            pool,
            BatchCache(64 * KIBIBYTE),
            inventory,
            Counters(),
            now_us=lambda: FIRST_DAY_US,
            on_sealed=lambda log: None,
            segment_bytes=SEGMENT_BYTES,
            journal_bytes=JOURNAL_BYTES,
            is_direct=is_direct,
            open_aio=open_aio,
        )
        role = RangeRole(
            None, commits_alone=False, on_given_up=lambda epoch: None, prove=leads_surely
        )
        for partition, settings in enumerate(self.durabilities):
            place = place_in(data, partition)
            rescued = load_rescued(place.directory)
            recovered = await io.run(
                partial(
                    recover_log,
                    place,
                    0,
                    pool,
                    inventory,
                    is_direct=is_direct,
                    journaled=[*rescued, *replayed.batches(TOPIC_ID, partition)],
                    damaged=replayed.damaged(TOPIC_ID, partition),
                    headers_prove=not lost_power,
                    now_us=FIRST_DAY_US,
                )
            )
            is_found = recovered.lost_end or recovered.losses or recovered.damages
            if is_found and not is_damaged:
                raise Violation(f"partition {partition} is called damaged: {recovered}")
            replayed.note_opened(place, recovered)
            if rescued and recovered.journal_cut is not None:
                await io.run(
                    partial(
                        cut_rescued, place.directory, recovered.journal_cut, resources.write_file
                    )
                )
            log = PartitionLog(
                place,
                recovered.segments,
                resources,
                settings,
                role,
                start=recovered.start,
                pending=replayed.pending(recovered.pending),
                windows=recovered.windows,
                lost_end=recovered.lost_end,
            )
            resources.quarantine.recovered(log, recovered.damages, recovered.losses)
            log.on_durable(partial(self._on_durable, partition))
            self.logs.append(log)
            if rescued and not await log.spilled():
                await io.run(partial(remove_rescued, place.directory))
        await write_cuts(resources.journal, replayed.cuts)
        return resources

    async def found(self) -> list[ModelLog]:
        """What was recovered: all of it is read. Violation: the producers are not its own."""
        found = []
        for partition, log in enumerate(self.logs):
            found.append(await self._read(partition, log))
            check_windows(log, found[-1])
        return found

    async def _read(self, partition: int, log: PartitionLog) -> ModelLog:
        committed = log.high_watermark
        found = ModelLog(log.log_start, start_max=log.log_start, durable_end=log.log_end)
        found.base_epoch = log._tail.replica.end.epoch
        log.commit(log.log_end)
        offset = log.log_start
        while offset < log.log_end:
            for batch in await log.read(offset, 64 * KIBIBYTE):
                if not found.batches:
                    found.base_epoch = batch.header.previous_epoch
                found.batches.append(model_of(batch))
                offset = batch.header.end_offset
        if found.end != log.log_end or not log.log_start <= committed <= log.log_end:
            raise Violation(f"partition {partition}: ends do not fit what is read")
        log._tail.replica.high_watermark = committed  # what was read need not be committed
        return found

    def _on_durable(self, partition: int) -> None:
        end = self.logs[partition].durable_end
        self.notes.note(partition, methodcaller("flushed", end))


def check_memory(resources: LogResources, logs: Sequence[PartitionLog]) -> None:
    """Violation of 14: a quota is exceeded, or what nobody holds any more has not come back.

    Nothing is under way, and nobody reads.
    """
    pool, cache = resources.pool, resources.cache
    held = {"I/O": pool._io, "read": pool.read, "catch-up": pool.catch_up}
    for name, quota in held.items():
        if quota.used_bytes:
            raise Violation(f"14: {quota.used_bytes} bytes of the {name} quota are held")
        if quota._free_bytes > quota.capacity_bytes:
            raise Violation(f"14: the {name} quota keeps {quota._free_bytes} bytes")
    if cache.cached_bytes > cache._capacity_bytes:
        raise Violation(f"14: {cache.cached_bytes} bytes are cached")
    receiving = resources.receiving
    assert isinstance(receiving, IoShare)
    if receiving._free != 2 * resources.io.count:
        raise Violation(f"14: of the threads' jobs for followers {receiving._free} are free")
    for partition, log in enumerate(logs):
        pending = log._tail.pending
        counted = sum(batch.header.batch_bytes for batch in pending.batches)
        if not counted == log.pending_bytes == log._tail.replica.pending_bytes <= JOURNAL_BYTES:
            raise Violation(f"14: partition {partition} has {counted} pending bytes: {pending}")


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Let frames and groups of the journal be as small as its files."""
    patch.setattr(journal, "FRAME_BYTES_MAX", FRAME_BYTES_MAX)
    patch.setattr(replica_tail, "SPILL_BYTES", SPILL_BYTES)
    patch.setattr(replica_tail, "LARGE_GROUP_BYTES", LARGE_GROUP_BYTES)


def place_in(data: Path, partition: int) -> LogPlace:
    """A replica's log."""
    directory = data / str(TOPIC_ID) / str(partition)
    return LogPlace(directory, "topic", TOPIC_ID, partition, 0)


def check_recovered(
    expected: Sequence[ModelLog], found: Sequence[ModelLog], *, lost_power: bool
) -> None:
    """Violation: these logs are not what a crash may leave."""
    for partition, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        try:
            ours.check(theirs, lost_power=lost_power)
        except Violation as error:
            raise Violation(f"partition {partition}: {error}") from error


def model_of(batch: StoredBatch) -> ModelBatch:
    """A batch as it is compared."""
    header = batch.header
    stored = bytes(batch.contents())
    (entry,) = decode_table(stored[128 : 128 + header.producer_table_bytes])
    digest = blake2b(stored, digest_size=16).digest()
    return ModelBatch(header.base_offset, header.end_offset, header.epoch, digest, entry.sequence)


def check_windows(log: PartitionLog, model: ModelLog) -> None:
    """What of the log is known of producers, and nothing else but what was trimmed."""
    windows = log._tail.replica.windows
    producers = () if windows is None else windows.checkpoint(log.log_end).producers
    rows = [Row._make(row) for state in producers for row in ROW.iter_unpack(state.rows)]
    known = {(row.sequence, row.offset) for row in rows if row.offset >= model.start}
    there = {(each.sequence, each.base_offset) for each in model.batches}
    there = {(sequence, offset) for sequence, offset in there if offset >= model.start}
    if known != there:
        raise Violation(f"producers are known by {known - there}, and not by {there - known}")
