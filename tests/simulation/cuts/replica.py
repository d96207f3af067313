"""The shipped storage engine as a follower, on a simulated disk; its leader is a script.

The leader appends stored batches, changes epochs, cuts and resets. It knows from answers what is
written, durable and cut, and a crash must leave no less (`model`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from tailrace.wire import INVENTORY_FILE
from tailrace_broker.codec.batch import StoredBatch, stamp_batch, verified_batches
from tailrace_broker.codec.metadata import KnownFiles, decode_inventory
from tailrace_broker.codec.producers import ROW, Row, TableEntry, decode_table, encode_table
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.append_outcome import (
    Appended,
    AppendOutcome,
    CutOutcome,
    LogIsCut,
    Misfit,
)
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.engine import open_engine
from tailrace_broker.storage.files.direct_file import sync_file_system
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.log.recovery import recover_log
from tailrace_broker.storage.segments.writer import LogPlace
from tests.simulation.cuts.model import ModelBatch, ModelLog, Operation
from tests.simulation.world import FIRST_DAY_US, SimulatedIo, Violation, World
from tests.support.storage.batches import TOPIC_ID, Event, body_of, place_of

KIBIBYTE = 1024
# Small, so that segments roll, and the journal's files are used again, within a few appends.
LARGE_GROUP_BYTES = 8 * KIBIBYTE
SPILL_BYTES = 16 * KIBIBYTE
FRAME_BYTES_MAX = 8 * KIBIBYTE
SEGMENT_BYTES = 12 * KIBIBYTE
JOURNAL_BYTES = 4 * 28 * KIBIBYTE
POOL_BYTES = 4 * 1024 * KIBIBYTE
VALUE_BYTES = [20, 20, 200, 3 * KIBIBYTE]
LARGE_VALUE_BYTES = [9 * KIBIBYTE, 20 * KIBIBYTE]
FLUSH_SECONDS_MAX = 3.0

FSYNC = TopicSettings(partitions_per_range=2)
DURABILITIES = [FSYNC, replace(FSYNC, durability="written")]
PRODUCER_ID = bytes(16)

Note = tuple[int, int, Callable[[ModelLog], None]]


class History:
    """What was asked for and reported, with its time, on top of what held before."""

    def __init__(self, tick: Callable[[], int], before: list[ModelLog] | None = None) -> None:
        self._tick = tick
        self._before = before or [ModelLog() for _ in DURABILITIES]
        self._notes: list[Note] = []
        self.now = deepcopy(self._before)

    def note(self, partition: int, change: Callable[[ModelLog], None]) -> None:
        """Of one log."""
        self._notes.append((self._tick(), partition, change))
        change(self.now[partition])

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

    world: World
    history: History
    io: SimulatedIo
    logs: list[PartitionLog] = field(default_factory=list)

    async def open(self, *, lost_power: bool) -> Any:
        """As a broker opens its logs at a start."""
        data = self.world.disk.root / "data"
        data.mkdir(exist_ok=True)
        path = data / INVENTORY_FILE
        known = decode_inventory(path.read_bytes()) if path.exists() else KnownFiles(())
        inventory, pool = Inventory(path, known), BufferPool(POOL_BYTES)
        resources, replayed = await open_engine(
            data,
            self.io,
            pool,
            BatchCache(64 * KIBIBYTE),
            inventory,
            Counters(),
            now_us=lambda: FIRST_DAY_US,
            on_sealed=lambda log: None,
            segment_bytes=SEGMENT_BYTES,
            journal_bytes=JOURNAL_BYTES,
            is_direct=True,
            open_aio=lambda: None,
        )
        role = RangeRole(None, commits_alone=False, on_given_up=lambda epoch: None)
        for partition, settings in enumerate(DURABILITIES):
            directory = data / str(TOPIC_ID) / str(partition)
            place = LogPlace(directory, "topic", TOPIC_ID, partition, 0)
            recovered = await self.io.run(
                partial(
                    recover_log,
                    place,
                    0,
                    pool,
                    inventory,
                    is_direct=True,
                    journaled=replayed.batches(TOPIC_ID, partition),
                    damaged=replayed.damaged(TOPIC_ID, partition),
                    headers_prove=not lost_power,
                    now_us=FIRST_DAY_US,
                )
            )
            if recovered.lost_end or recovered.losses or recovered.damages:
                raise Violation(f"{partition}: {recovered}")
            log = PartitionLog(
                place,
                recovered.segments,
                resources,
                settings,
                role,
                start=recovered.start,
                pending=replayed.pending(recovered.pending),
                windows=recovered.windows,
            )
            log.on_durable(partial(self._on_durable, partition))
            self.logs.append(log)
        await self.io.run(partial(sync_file_system, data))
        return resources

    async def check(self, expected: list[ModelLog], *, lost_power: bool) -> None:
        """What was recovered is what the crash may leave; it is the truth from now on."""
        for partition, log in enumerate(self.logs):
            found = await self._read(partition, log)
            try:
                expected[partition].check(found, lost_power=lost_power)
            except Violation as error:
                raise Violation(f"partition {partition}: {error}") from error
            check_windows(log, found)
            self.history.note(partition, partial(_replace, found))

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
        self.history.note(partition, partial(_flushed, end))


@dataclass
class ScriptedLeader:
    """Drives one life of a follower."""

    replica: Replica
    epoch: int
    next_sequence: int
    committed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = self.replica.world.generator
        self._under_way: set[asyncio.Future[Any]] = set()
        self.committed = [log.high_watermark for log in self.replica.logs]

    @property
    def _models(self) -> list[ModelLog]:
        return self.replica.history.now

    async def use(self, action_count: int) -> None:
        """Do so many things at random, then wait for what is under way."""
        actions: list[tuple[int, Callable[[int], Awaitable[None]]]] = [
            (20, self._append),
            (8, self._append_large),
            (10, self._cut),
            (2, self._reset),
            (5, self._commit),
            (8, self._pass_time),
            (4, self._settle),
            (4, self._spill),
            (2, self._trim),
        ]
        weights, calls = zip(*actions, strict=True)
        for _ in range(action_count):
            (call,) = self.generator.choices(calls, weights)
            await call(self.generator.randrange(len(DURABILITIES)))
        await self._settle(0)

    # --- batches ---

    async def _append(self, partition: int) -> None:
        self._send(partition, VALUE_BYTES)

    async def _append_large(self, partition: int) -> None:
        self._send(partition, LARGE_VALUE_BYTES)

    def _send(self, partition: int, sizes: list[int]) -> None:
        """Send one to three batches in a message."""
        expected = self._models[partition].expected()
        if self.generator.random() < 0.1:
            self.epoch += 1
        batches: list[StoredBatch] = []
        offset, epoch = expected.end, expected.last_epoch
        self.epoch = max(self.epoch, epoch)
        is_catching_up = self.generator.random() < 0.3
        for _ in range(self.generator.randint(1, 3)):
            if is_catching_up:  # others have committed it
                self.committed[partition] = offset
            batches.append(self._batch(partition, offset, epoch, self.generator.choice(sizes)))
            offset, epoch = batches[-1].header.end_offset, self.epoch
        operation = Operation([model_of(batch) for batch in batches])
        note = self.replica.history.note
        note(partition, lambda log: log.asked(operation))
        answered = self._asked()

        def done(outcome: AppendOutcome) -> None:
            if not isinstance(outcome, Appended):
                raise Violation(f"{partition}: an append failed: {outcome}")
            note(partition, lambda log: log.done(1))
            end = self.replica.logs[partition].durable_end
            note(partition, partial(_flushed, end))
            answered.set_result(None)

        misfit = self.replica.logs[partition].append_stored(batches, done)
        if isinstance(misfit, Misfit):
            raise Violation(f"{partition}: {misfit}")

    def _batch(self, partition: int, offset: int, previous: int, size: int) -> StoredBatch:
        count = self.generator.randint(1, 3)
        values = [self.generator.randbytes(size // count) for _ in range(count)]
        table = encode_table([TableEntry(PRODUCER_ID, self.next_sequence, 0, count)])
        self.next_sequence += 1
        place = place_of(
            partition=partition,
            base_offset=offset,
            epoch=self.epoch,
            previous_epoch=previous,
            append_time_us=FIRST_DAY_US,
            high_watermark=self.committed[partition],
        )
        body = body_of([Event(value, None) for value in values], producer_table=table)
        (batch,) = verified_batches(memoryview(b"".join(stamp_batch(body, place).buffers)))
        return batch

    # --- cuts ---

    async def _cut(self, partition: int) -> None:
        """A new leader's log differs from this one somewhere above what is committed."""
        expected = self._models[partition].expected()
        batches = expected.batches[-self.generator.choice([4, 8, 100]) :]
        ends = [each.end_offset for each in batches]
        if [each.base_offset for each in batches[:1]] == [expected.start]:
            ends.append(expected.start)
        ends = [end for end in ends if end >= self.committed[partition]]
        if not ends:
            return
        end = self.generator.choice(ends)
        kept = [each.epoch for each in expected.batches if each.end_offset <= end]
        self.epoch += self.generator.randint(0, 1) or end < expected.end
        epoch = kept[-1] if kept else expected.base_epoch
        self._ask_cut(partition, Operation(None, end, epoch))

    async def _reset(self, partition: int) -> None:
        """A new leader has nothing of this log."""
        expected = self._models[partition].expected()
        end = expected.start + self.generator.randint(0, 2 * (expected.end - expected.start) + 3)
        end = max(end, self.committed[partition])
        epoch = max(self.epoch, expected.last_epoch)
        self.epoch = epoch + 1
        self.committed[partition] = end
        self._ask_cut(partition, Operation(None, end, epoch, is_reset=True))

    def _ask_cut(self, partition: int, operation: Operation) -> None:
        note = self.replica.history.note
        note(partition, lambda log: log.asked(operation))
        answered = self._asked()

        def done(outcome: CutOutcome) -> None:
            if outcome != LogIsCut(operation.end):
                raise Violation(f"{partition}: {operation}: {outcome}")
            note(partition, lambda log: log.done(1))
            log = self.replica.logs[partition]
            note(partition, partial(_flushed, log.durable_end))
            model = self._models[partition]
            if log.log_end != model.end:
                raise Violation(f"{partition}: a cut log ends at {log.log_end}, not {model.end}")
            check_windows(log, model)
            answered.set_result(None)

        self.replica.logs[partition].cut(
            operation.end, operation.epoch, done, is_reset=operation.is_reset
        )

    # --- the rest ---

    async def _commit(self, partition: int) -> None:
        """Not above where it is being cut; where others have it, above what is durable here."""
        model = self._models[partition]
        least = min([each.end for each in model.under_way if each.batches is None], default=2**62)
        counted = min(model.durable_end, model.end, least)
        if self.generator.random() < 0.3:
            counted = min(model.expected().end, least)
        if counted > self.committed[partition]:
            self.committed[partition] = self.generator.randint(self.committed[partition], counted)
            self.replica.logs[partition].commit(self.committed[partition])

    async def _pass_time(self, _: int) -> None:
        await asyncio.sleep(self.generator.choice([0, 0, 0.0001, 0.002, FLUSH_SECONDS_MAX]))

    async def _settle(self, _: int) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _spill(self, partition: int) -> None:
        await self.replica.logs[partition].spilled()

    async def _trim(self, partition: int) -> None:
        """With nothing under way, as retention would below the high watermark."""
        await self._settle(partition)
        log = self.replica.logs[partition]
        starts = [each.base_offset for each in log.segments[1:]]
        starts = [start for start in starts if start <= log.high_watermark]
        if log.high_watermark > log.log_start:
            starts.append(self.generator.randint(log.log_start + 1, log.high_watermark))
        if starts:
            start = self.generator.choice(starts)
            note = self.replica.history.note
            note(partition, lambda model: model.trimming(start))
            await log.trim(start)
            note(partition, partial(_trimmed, log.log_start))

    def _asked(self) -> "asyncio.Future[None]":
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(answered)
        answered.add_done_callback(self._under_way.discard)
        return answered


def model_of(batch: StoredBatch) -> ModelBatch:
    """A batch as it is compared."""
    header = batch.header
    stored = bytes(batch.contents())
    (entry,) = decode_table(stored[128 : 128 + header.producer_table_bytes])
    return ModelBatch(header.base_offset, header.end_offset, header.epoch, stored, entry.sequence)


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


def _replace(found: ModelLog, log: ModelLog) -> None:
    log.start, log.start_max, log.base_epoch = found.start, found.start_max, found.base_epoch
    log.batches, log.durable_end, log.under_way = list(found.batches), found.durable_end, []


def _flushed(end: int, log: ModelLog) -> None:
    log.flushed(end)


def _trimmed(start: int, log: ModelLog) -> None:
    kept = [each for each in log.batches if each.end_offset > start]
    log.base_epoch = max([each.epoch for each in log.batches if each not in kept], default=0)
    log.start, log.batches = start, kept
