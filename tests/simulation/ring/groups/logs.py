"""The logs of one process as the shipped shell knows them, over those of the model."""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import Appended, AppendFailed, AppendOutcome, OnAppended
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import (
    CorruptBatchError,
    NotReadyError,
    StorageFailedError,
    TailraceError,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.storage.segments.writer import LogPlace
from tests.simulation.ring.data.host import Host, Hosted
from tests.simulation.ring.groups.loop import ProcessLoop
from tests.simulation.ring.groups.records import Records

# Of a record in a log that is compacted by its size.
RECORD_BYTES = 200
READ_SECONDS_MAX = 0.005


class ReplicaLog(PartitionLog):
    """One log while it is open: who leads it, and how far it is committed, the model says.

    It does what `PartitionLog` does with its role; the tail of the log is the model's.
    """

    __slots__ = (
        "_append_settings",
        "_generator",
        "_loop",
        "_queue",
        "_waiting",
        "host",
        "hosted",
        "key",
        "records",
        "sealed_end",
    )

    def __init__(
        self,
        host: Host,
        key: LogKey,
        hosted: Hosted,
        role: RangeRole,
        records: Records,
        generator: random.Random,
        loop: ProcessLoop,
        *,
        topic: str,
        settings: TopicSettings,
        sealed_end: int | None = None,
    ) -> None:
        """`topic`: its name."""
        self.sealed_end = sealed_end
        self.host, self.key, self.hosted, self.records = host, key, hosted, records
        self._generator = generator
        self._loop = loop
        self.place = LogPlace(Path(), topic, key.topic_id, key.partition, hosted.range_id)
        self.role = role
        self.lost_end = None
        self._append_settings = settings
        self._gone = self._withheld = None
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order of their coming
        self._queue: deque[tuple[int, OnAppended]] = deque()  # until the next epoch
        self._end_before = self.log_end
        role.add(self)

    @property
    def settings(self) -> TopicSettings:
        """Of its topic."""
        return self._append_settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._append_settings = settings

    @property
    def high_watermark(self) -> int:
        """What is committed, as far as this replica knows."""
        return self.hosted.ends.high_watermark if self.sealed_end is None else self.sealed_end

    @property
    def log_start(self) -> int:
        """The first offset that is kept; of a sealed log no machine knows it."""
        return self.hosted.ends.start if self.sealed_end is None else self.hosted.log.start

    @property
    def log_end(self) -> int:
        """What is written."""
        return self.hosted.ends.written

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        return RECORD_BYTES * len(self.hosted.log.entries)

    @property
    def quarantined(self) -> Sequence[Damage]:
        """What is damaged is set aside as a whole."""
        return ()

    def closed(self) -> None:
        """Another one is open in its place, or none."""
        self._gone = NotReadyError("the log is being opened")
        self.role.remove(self)
        self._refuse()
        self._wake_waiters()

    def seal(self, end_offset: int, reason: TailraceError) -> None:
        """All that waits, and all that comes, is refused."""
        if self.log_end != end_offset:
            raise CorruptBatchError(f"the log ends at {self.log_end}, not at {end_offset}")
        self.sealed_end = end_offset
        queue, self._queue = self._queue, deque()
        for _, done in queue:
            done(AppendFailed(reason))

    def advanced(self) -> None:
        """The high watermark has moved."""
        self._wake_waiters()

    # --- its role ---

    def on_role_changed(self) -> None:
        """What waited for the epoch to end is appended in the next, or refused."""
        self._end_before = self.log_end
        if self.role.epoch is None:
            self._refuse()
        elif not self.role.is_held:
            queue, self._queue = self._queue, deque()
            for number, done in queue:
                self._append(number, done)
        self._wake_waiters()

    def on_shortage(self) -> None:
        """What waits, waits."""

    def flush(self) -> None:
        """The host flushes."""

    def _refuse(self) -> None:
        queue, self._queue = self._queue, deque()
        for _, done in queue:
            done(AppendFailed(self._gone or self.role.refusal(self.place)))

    # --- appends and reads ---

    def append_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: OnAppended,
        producer: Producer | None = None,
    ) -> None:
        """A batch of its own."""
        if self._gone is not None or self.role.epoch is None:
            done(AppendFailed(self._gone or self.role.refusal(self.place)))
        else:
            self._append(self.records.add(key, value), done)

    def _append(self, number: int, done: OnAppended) -> None:
        ended = partial(self._appended, done)
        if self.role.is_held or not self.host.produce(self.key, number, RECORD_BYTES, ended):
            self._queue.append((number, done))

    def _appended(self, done: OnAppended, offset: int | None) -> None:
        outcome: AppendOutcome
        if offset is not None:
            outcome = Appended(offset)
        elif self.role.epoch is None:
            outcome = AppendFailed(self.role.interrupted(self.place, is_deposed=True))
        else:
            outcome = AppendFailed(StorageFailedError("the write has failed"))
        with self._loop.running():
            done(outcome)

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Some batches, in a while."""
        self._check_here()
        self._check_range(offset)
        await asyncio.sleep(READ_SECONDS_MAX * self._generator.random())
        self._check_here()
        self._check_range(offset)
        end = min(self.high_watermark, offset + max(1, max_bytes // RECORD_BYTES))
        place, entries = self.place, self.hosted.log.read(offset, end)
        return [
            self.records.batch(self.key, place.range_id, offset + index, entry)
            for index, entry in enumerate(entries)
        ]

    async def wait_beyond(self, offset: int) -> None:
        """Until the high watermark is above, or somebody else is to be asked."""
        while self.high_watermark <= offset and self._gone is None and self.is_served:
            waiter = asyncio.get_running_loop().create_future()
            self.add_waiter(waiter)
            try:
                await waiter
            finally:
                self.remove_waiter(waiter)

    async def roll(self) -> int:
        """There are no segments."""
        return self.log_end

    async def trim(self, log_start: int) -> None:
        """At once."""
        self.host.move_start(self.key, log_start)

    # --- who waits ---

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It is done when the high watermark moves."""
        self._waiting[waiter] = None

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """It does not wait any more."""
        self._waiting.pop(waiter, None)

    def _wake_waiters(self) -> None:
        for waiter in [*self._waiting]:
            if not waiter.done():
                waiter.set_result(None)
