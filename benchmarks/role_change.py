"""What does a change of role of 2,000 partitions cost the event loop?

In this process: a range with the logs of 2,000 partitions, each of which has appended in its epoch,
as after a start under load. Then the range is led by another broker, and by this one again in the
next epoch: the roles are computed from the replicated state, and each log ends its appends. What is
measured is the one turn of the event loop in which a block is applied; nothing else runs in it.

Sketch, CPU µs:

| step                                                    | µs             |
|---------------------------------------------------------|----------------|
| the roles of all ranges, those that differ              | 20             |
| a log: its appends ended, its waiting readers woken     | 2,000 x 1      |
| a log that leads again: an object at its next append    | not in the turn|

Bound: the calls into the logs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from uuid import UUID

from msgspec.structs import replace

from benchmarks.report import Row
from tailrace_broker.codec.metadata import KnownFiles
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.ring.commands import initial_state
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.append_outcome import Appended, AppendOutcome
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.ring_state import Registration, Replica, RingState
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.engine import open_engine
from tailrace_broker.storage.files.direct_file import has_direct_io
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.log.batch_cache import BatchCache
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.range_leaders import RangeRoles
from tests.support.storage.storage import leads_surely

PARTITION_COUNT = 2_000
CHANGE_COUNT = 20
TOPIC_ID = UUID(int=1)
BROKERS = [
    Registration(ordinal, 1, UUID(int=2 + ordinal), 1, UUID(int=9 + ordinal), "disk")
    for ordinal in range(3)
]
MINE = BROKERS[0]
OTHER = Replica(1, 1)
AIMS = {"deposed_ms": 20, "leads_again_ms": 20}
MIB = 1 << 20


def run() -> Iterator[Row]:
    """Ask once."""
    figures = asyncio.run(_figures())
    asked = f"a change of role of {PARTITION_COUNT:,} partitions, CPU of its turn of the loop"
    yield Row("role_change", asked, figures, AIMS)


async def _figures() -> dict[str, float]:
    deposed_ms, again_ms = [], []
    state = initial_state(UUID(int=8), len(BROKERS), 1, BROKERS)
    (first, *_) = state.ranges
    roles = RangeRoles(
        lambda ordinal: f"http://broker-{ordinal}", lambda *_: None, lambda _: leads_surely()
    )
    roles.apply(_led(state, first, 1, Replica(0, 1)), MINE)
    async with _resources() as (resources, directory):
        settings = TopicSettings(partitions_per_range=1)
        logs = [
            PartitionLog(
                LogPlace(directory / str(number), "topic", TOPIC_ID, number, first),
                [SegmentState(0, 0)],
                resources,
                settings,
                roles.of(first),
            )
            for number in range(PARTITION_COUNT)
        ]
        for epoch in range(1, 2 * CHANGE_COUNT, 2):
            await _append_to_each(logs)
            deposed_ms.append(_change_ms(roles, _led(state, first, epoch + 1, OTHER)))
            again_ms.append(_change_ms(roles, _led(state, first, epoch + 2, Replica(0, 1))))
    return {
        "deposed_ms": median(deposed_ms),
        "deposed_max_ms": max(deposed_ms),
        "leads_again_ms": median(again_ms),
        "leads_again_max_ms": max(again_ms),
    }


def _led(state: RingState, range_id: int, epoch: int, leader: Replica) -> RingState:
    owner = replace(state.ranges[range_id], epoch=epoch, leader=leader)
    return replace(state, ranges={**state.ranges, range_id: owner})


def _change_ms(roles: RangeRoles, state: RingState) -> float:
    start_s = time.thread_time()
    roles.apply(state, MINE)
    return (time.thread_time() - start_s) * 1e3


async def _append_to_each(logs: list[PartitionLog]) -> None:
    """An event, stored: each log has begun to take appends in its epoch."""
    loop = asyncio.get_running_loop()
    stored: asyncio.Future[None] = loop.create_future()
    left = len(logs)

    def done(outcome: AppendOutcome) -> None:
        nonlocal left
        assert isinstance(outcome, Appended), outcome
        left -= 1
        if not left:
            stored.set_result(None)

    for log in logs:
        log.append_event(b"key", b"1", 0, 0, done)
    await stored


@asynccontextmanager
async def _resources() -> AsyncIterator[tuple[LogResources, Path]]:
    """What logs share, over a directory that is removed at the end."""
    io = IoThreads(2, _raise)
    io.start()
    with TemporaryDirectory(dir=".") as name:
        directory = Path(name)
        resources, _ = await open_engine(
            directory,
            io,
            BufferPool(64 * MIB),
            BatchCache(16 * MIB),
            Inventory(directory / "inventory.json", KnownFiles(())),
            Counters(),
            now_us=lambda: time.time_ns() // 1000,
            on_sealed=lambda _: None,
            segment_bytes=256 * MIB,
            journal_bytes=64 * MIB,
            is_direct=has_direct_io(directory),
        )
        try:
            yield resources, directory
        finally:
            await asyncio.to_thread(io.stop)
            resources.close()


def _raise(bug: BaseException) -> None:
    raise bug
