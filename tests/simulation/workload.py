"""What producers, readers and administrators do to a simulated broker."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

from tailrace_broker.codec.batch import compress_columns, decompress_payload
from tailrace_broker.codec.records import unpack_columns
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import Appended, AppendOutcome, OnAppended
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    OffsetOutOfRangeError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.simulation.expectation import RETRIED, Expectation, FoundBatch, FoundLog, History, LogKey
from tests.simulation.world import SimulatedBroker, SimulatedIo, Violation, World
from tests.support.storage.batches import Event, batch_of, columns_of
from tests.support.storage.simulated_disk import BLOCK_BYTES

KIBIBYTE = 1024
VALUE_BYTES = [20, 20, 200, 3 * KIBIBYTE, 20 * KIBIBYTE]
BURST_APPENDS = 8
BURST_VALUE_BYTES = 10 * KIBIBYTE
LARGE_VALUE_BYTES = [70 * KIBIBYTE, 70 * KIBIBYTE, 200 * KIBIBYTE]
# Goes straight to the segment where `fails_writes`, in so few blocks that all may be left of it.
FAILING_BYTES = 9 * KIBIBYTE
LARGE_GROUP_BYTES = 8 * KIBIBYTE
# Of one value without a key: the batch is a block.
BLOCK_VALUE_BYTES = BLOCK_BYTES - len(batch_of([Event(b"", None)]))
DURABILITIES: list[Literal["fsync", "written"]] = ["fsync", "written"]
# Above flushMs, whose default is a second, by what the disk may take.
FLUSH_SECONDS_MAX = 3.0
RETENTION_BYTES = 128 * KIBIBYTE
TOPICS_MAX = 3
PARTITIONS_MAX = 2


class Workload:
    """One life of a broker: it is checked, then used at random."""

    def __init__(
        self,
        world: World,
        history: History,
        broker: SimulatedBroker,
        io: SimulatedIo,
        *,
        fails_writes: bool = False,
    ) -> None:
        self._world = world
        self._history = history
        self._broker = broker
        self._io = io
        self._fails_writes = fails_writes
        self._generator = world.generator
        self._number = 0
        self._under_way: set[asyncio.Future[None]] = set()

    async def check(self, *, lost_power: bool) -> None:
        """What the broker has recovered keeps what was promised."""
        found = await read_all(self._broker)
        self._history.at().check(found, lost_power=lost_power)
        self._history.note(Expectation.booted, found, lost_power=lost_power)

    async def use(self, action_count: int) -> None:
        """Do so many things at random, then wait for what is still under way."""
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (30, self._append_event),
            (6, self._append_batch),
            (6, self._append_large),
            (6, self._append_blocks),
            (6, self._append_burst),
            (10, self._pass_time),
            (4, self._settle),
            (6, self._read),
            (8, self._request),
            (4, self._retry),
            (2, self._trim),
            (2, self._alter),
            (2, self._create),
            (1, self._delete),
        ]
        if self._fails_writes:
            actions.append((20, self._append_in_vain))
        weights, calls = zip(*actions, strict=True)
        await self._create()
        for _ in range(action_count):
            (call,) = self._generator.choices(calls, weights)
            await call()
        await self._settle()

    async def append_one_by_one(self, append_count: int) -> dict[LogKey, int]:
        """Each is acknowledged before the next is sent; by log the offset of its last append.

        Whatever is damaged: all before that was acknowledged when the last was written.
        """
        await self._broker.create_topic("kept", TopicSettings(partitions_per_range=2))
        self._history.note(Expectation.creating, "kept", 2, is_fsync=True, is_trimmed=False)
        self._history.note(Expectation.created, "kept")
        last: dict[LogKey, int] = {}
        appends = [self._append_event, self._append_batch, self._append_large]
        for _ in range(append_count):
            before = {key: log.reported_end for key, log in self._history.at().logs.items()}
            await self._generator.choice(appends)()
            await self._settle()
            for key, log in self._history.at().logs.items():
                if log.reported_end > before[key]:
                    last[key] = before[key]
        return last

    async def _create(self) -> None:
        if self._broker.topic_count >= TOPICS_MAX:
            return
        name = f"t{self._world.life}-{self._next_number()}"
        count = self._generator.randint(1, PARTITIONS_MAX)
        durability = self._generator.choice(DURABILITIES)
        retention_bytes = self._generator.choice([None, RETENTION_BYTES])
        settings = TopicSettings(
            partitions_per_range=count, durability=durability, retention_bytes=retention_bytes
        )
        self._history.note(
            Expectation.creating,
            name,
            count,
            is_fsync=durability == "fsync",
            is_trimmed=retention_bytes is not None,
        )
        await self._broker.create_topic(name, settings)
        self._history.note(Expectation.created, name)

    async def _delete(self) -> None:
        if self._broker.topic_count == 1:
            return
        name = self._generator.choice(self._broker.topics()).topic.name
        self._history.note(Expectation.deleting, name)
        await self._broker.delete_topic(name)
        self._history.note(Expectation.deleted, name)

    async def _alter(self) -> None:
        """With nothing under way: it is then clear which durability an answer tells."""
        await self._settle()
        topic = self._generator.choice(self._broker.topics()).topic
        durability = self._generator.choice(DURABILITIES)
        linger_ms = self._generator.choice([0, 0, 20])
        changes = {"durability": durability, "linger_ms": linger_ms}
        if durability == "written":
            self._history.note(Expectation.altered, topic.name, is_fsync=False)
        await self._broker.alter_topic(topic.name, changes)
        self._history.note(Expectation.altered, topic.name, is_fsync=durability == "fsync")

    async def _trim(self) -> None:
        key, log = self._any_log()
        starts = [state.base_offset for state in log.segments[1:]]
        anywhere = self._generator.randint(log.log_start, log.high_watermark)
        log_start = self._generator.choice([*starts, log.high_watermark, anywhere, anywhere])
        self._history.note(Expectation.trimming, key, log_start)
        await log.trim(log_start)
        self._history.note(Expectation.trimmed, key, log.log_start)

    async def _append_event(self) -> None:
        key, log = self._any_log()
        value = self._new_value(VALUE_BYTES)
        log.append_event(None, value, self._world.now_us(), 0, self._sending(key, [value]))

    async def _request(self) -> None:
        """Of a producer that numbers its requests; the second before the first, at times."""
        key, log = self._any_log()
        sequences = [self._next_number(), self._next_number()]
        self._generator.shuffle(sequences)
        for sequence in sequences:
            producer = Producer(b"%16d" % self._world.life, sequence)
            values = [RETRIED + self._new_value(VALUE_BYTES)]
            self._history.note(Expectation.requested, producer, key, values)
            self._send_request(log, producer, key, values)

    async def _retry(self) -> None:
        """A request that was not answered before the broker died, or was long ago."""
        requests = [
            (producer, request)
            for producer, request in self._history.at().requests.items()
            if request.key[0] in {hosted.topic.name for hosted in self._broker.topics()}
        ]
        unanswered = [each for each in requests if each[1].offset is None]
        if requests:
            producer, request = self._generator.choice(unanswered or requests)
            name, partition = request.key
            log = self._broker.hosted(name).log_of(partition)
            self._send_request(log, producer, request.key, request.values)

    def _send_request(
        self, log: PartitionLog, producer: Producer, key: LogKey, values: list[bytes]
    ) -> None:
        reported = self._sending(key, values)

        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                self._history.note(Expectation.answered, producer, outcome.offset)
            reported(outcome)

        log.append_records(columns_of([Event(value, None) for value in values]), done, producer)

    async def _append_batch(self) -> None:
        key, log = self._any_log()
        values = [self._new_value(VALUE_BYTES) for _ in range(self._generator.randint(1, 5))]
        self._append_columns(key, log, values)

    async def _append_large(self) -> None:
        key, log = self._any_log()
        self._append_columns(key, log, [self._new_value(LARGE_VALUE_BYTES)])

    async def _append_burst(self) -> None:
        """Enough small ones, one after the other, that the journal takes its next file."""
        for _ in range(BURST_APPENDS):
            key, log = self._any_log()
            value = self._new_value([BURST_VALUE_BYTES])
            log.append_event(None, value, self._world.now_us(), 0, self._sending(key, [value]))
            await self._settle()

    async def _append_in_vain(self) -> None:
        """The write of a segment fails, though it may be on the disk; then a small one succeeds."""
        await self._settle()
        key, log = self._any_log()
        value = self._world.disk.failing = self._new_value([FAILING_BYTES])
        done = self._sending(key, [value], may_fail=True)
        log.append_records(columns_of([Event(value, None)]), done)
        await self._settle()
        value = self._new_value(VALUE_BYTES)
        log.append_event(None, value, self._world.now_us(), 0, self._sending(key, [value]))
        await self._settle()

    async def _append_blocks(self) -> None:
        """Batches of a block each in one write: what is left of it looks like a log's end."""
        key, log = self._any_log()
        for _ in range(self._generator.randint(1, 4)):
            self._append_columns(key, log, [self._new_value([BLOCK_VALUE_BYTES])])

    def _append_columns(self, key: LogKey, log: PartitionLog, values: list[bytes]) -> None:
        columns = columns_of([Event(value, None) for value in values])
        contents = columns if self._generator.random() < 0.5 else compress_columns(columns)
        log.append_records(contents, self._sending(key, values))

    def _sending(self, key: LogKey, values: list[bytes], *, may_fail: bool = False) -> OnAppended:
        """Note what is sent; what is called when it is there."""
        self._history.note(Expectation.sent, key, values)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(answered)
        answered.add_done_callback(self._under_way.discard)

        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                self._history.note(Expectation.reported, key, outcome.offset, values)
            elif not may_fail and not isinstance(outcome.error, TopicNotFoundError):
                raise Violation(f"{key}: an append failed: {outcome.error}")
            answered.set_result(None)

        return done

    async def _pass_time(self) -> None:
        """What was reported is flushed after a while, whatever the topic's durability."""
        seconds = self._generator.choice([0, 0, 0.0001, 0.002, FLUSH_SECONDS_MAX])
        ends = {key: log.reported_end for key, log in self._history.at().logs.items()}
        await asyncio.sleep(seconds)
        if seconds == FLUSH_SECONDS_MAX:
            for key, end_offset in ends.items():
                self._history.note(Expectation.flushed, key, end_offset)

    async def _settle(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _read(self) -> None:
        """A reader near the end, or anywhere."""
        key, log = self._any_log()
        nearest = max(log.log_start, log.high_watermark - 3)
        offset = self._generator.choice(
            [nearest, self._generator.randint(log.log_start, log.high_watermark)]
        )
        try:
            batches = await read_batches(log, offset)
        except OffsetOutOfRangeError:
            assert offset < log.log_start  # retention was faster
            return
        for batch in batches:
            self._history.note(Expectation.reported, key, batch.base_offset, batch.values)

    def _any_log(self) -> tuple[LogKey, PartitionLog]:
        hosted = self._generator.choice(self._broker.topics())
        partition = self._generator.randrange(len(hosted.logs))
        return (hosted.topic.name, partition), hosted.log_of(partition)

    def _new_value(self, sizes: list[int]) -> bytes:
        """Unlike all others, and not to be compressed."""
        size_bytes = self._generator.choice(sizes)
        name = b"%d:%d:" % (self._world.life, self._next_number())
        return name + self._generator.randbytes(size_bytes - len(name))

    def _next_number(self) -> int:
        self._number += 1
        return self._number


async def read_all(
    broker: SimulatedBroker, *, skips_damaged: bool = False
) -> dict[LogKey, FoundLog]:
    """Every log from its start to its end; Violation when one cannot be read."""
    found: dict[LogKey, FoundLog] = {}
    for hosted in broker.topics():
        for partition in range(len(hosted.logs)):
            key = (hosted.topic.name, partition)
            try:
                log = hosted.log_of(partition)
                found[key] = await _read_to_end(log, skips_damaged=skips_damaged)
            except TailraceError as error:
                if not (skips_damaged and isinstance(error, CorruptPartitionError)):
                    raise Violation(f"{key}: {error}") from error
    return found


async def _read_to_end(log: PartitionLog, *, skips_damaged: bool) -> FoundLog:
    """Again when retention is faster."""
    while True:
        found = FoundLog(log.log_start, [])
        offset = log.log_start
        with suppress(OffsetOutOfRangeError):
            while offset < log.high_watermark:
                try:
                    found.batches.extend(await read_batches(log, offset))
                except CorruptPartitionError as error:
                    if not skips_damaged:
                        raise
                    following = error.members["nextOffset"]
                    assert isinstance(following, int)
                    found = found._replace(damaged=(*found.damaged, range(offset, following)))
                    offset = following
                else:
                    offset = found.batches[-1].base_offset + len(found.batches[-1].values)
            if skips_damaged and log.lost_end is not None:
                lost = range(offset, log.lost_end.next_offset)
                found = found._replace(damaged=(*found.damaged, lost))
            return found


async def read_batches(log: PartitionLog, offset: int) -> list[FoundBatch]:
    """Some from an offset on: of the first batch, a reader drops what is below."""
    found = []
    for batch in await log.read(offset, 256 * KIBIBYTE):
        header = batch.header
        columns = decompress_payload(header, batch.contents())
        records = unpack_columns(header, columns)
        found.append(
            FoundBatch(
                max(header.base_offset, offset),
                header.epoch,
                header.previous_epoch,
                [record.value or b"" for record in records if record.offset >= offset],
            )
        )
    return found
