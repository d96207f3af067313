"""A batch is compressed by its leader alone, and by nobody decompressed on its way to three disks.

Three brokers in this process, with the links between them, so that calls of the codec are counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.codec.columns import RecordColumns, column_of_values, pack_columns
from tailrace_broker.model.append_outcome import Appended, AppendOutcome
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.broker.brokers import start_ring
from tests.support.waits import until

TOPIC = "t"
BATCHES = 20
RECORDS = 100  # in each batch
LARGE_BYTES = 2_000  # of a value: the batch goes straight to the segment

pytestmark = pytest.mark.integration


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the codec was called, by the name of its function."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(lz4.block, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **options)

        return call

    for name in ("compress", "decompress"):
        monkeypatch.setattr(lz4.block, name, counted(name))
    return counts


def records(number: int, value_bytes: int) -> RecordColumns:
    """Return records that compress well."""
    values = [f"{number} {each}".encode().ljust(value_bytes) for each in range(RECORDS)]
    keys = column_of_values([b"k"] * RECORDS)
    return pack_columns(column_of_values(values), keys, np.zeros(RECORDS, np.int64))


def logs_of(broker: LocalBroker) -> list[PartitionLog]:
    """Return the broker's replicas of the topic."""
    logs = [log for log in broker.hosted(TOPIC).logs.values() if isinstance(log, PartitionLog)]
    assert len(logs) == 3
    return logs


async def append(log: PartitionLog, columns: RecordColumns) -> None:
    """Wait until the ring has committed the batch."""
    done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
    log.append_records(columns, done.set_result)
    assert isinstance(await done, Appended)


@pytest.mark.parametrize("value_bytes", [20, LARGE_BYTES], ids=["journal", "segment"])
async def test_a_batch_is_compressed_once_in_the_whole_ring(
    tmp_path: Path, calls: Counter[str], value_bytes: int
) -> None:
    async with AsyncExitStack() as stack:
        brokers = await start_ring(stack, tmp_path, 3)
        await brokers[0].create_topic(TOPIC, TopicSettings(partitions_per_range=1))
        await until(lambda: all(broker.topic_count == 1 for broker in brokers))
        await until(lambda: all(any(log.is_served for log in logs_of(each)) for each in brokers))
        calls.clear()

        led = [log for broker in brokers for log in logs_of(broker) if log.is_served]
        assert len(led) == 3
        for number in range(BATCHES):
            for log in led:
                await append(log, records(number, value_bytes))
        await until(
            lambda: all(
                log.high_watermark == BATCHES * RECORDS
                for broker in brokers
                for log in logs_of(broker)
            )
        )

        assert calls == {"compress": len(led) * BATCHES}
