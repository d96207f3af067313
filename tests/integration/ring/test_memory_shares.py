"""Brokers of a ring in the test's own process: a follower receives whatever its producers hold."""

import asyncio
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.core.replication.events import WriteFailed
from tailrace_broker.model.append_outcome import Appended, AppendOutcome
from tailrace_broker.model.errors import ProduceMemoryFullError
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics import replicas
from tailrace_broker.topics.replicas import Replicas
from tests.support.broker.brokers import start_ring
from tests.support.waits import until

pytestmark = pytest.mark.integration

MEBIBYTE = 1024 * 1024
PARTITIONS = 24
VALUE = bytes(100_000)  # goes straight to the segment


async def pair(
    stack: AsyncExitStack, root: Path, partitions_per_range: int = 1
) -> tuple[LocalBroker, LocalBroker]:
    """Two with a topic, of whose partitions each leads half and follows half, in sync."""
    first, second = await start_ring(stack, root, 2)
    await first.create_topic("t", TopicSettings(partitions_per_range=partitions_per_range))

    def is_in_sync() -> bool:
        state = first.ring.state
        return state is not None and all(len(each.isr) == 2 for each in state.ranges.values())

    await until(lambda: second.topic_count == 1 and is_in_sync())
    return first, second


def logs_of(broker: LocalBroker) -> list[PartitionLog]:
    """Of the topic's partitions."""
    return [log for log in broker.hosted("t").logs.values() if isinstance(log, PartitionLog)]


def ends_of(broker: LocalBroker) -> dict[int, int]:
    """Where the log of each partition ends, when the topic is there."""
    return {log.place.partition: log.log_end for log in logs_of(broker)}


def led_log(broker: LocalBroker) -> PartitionLog:
    """The log of the partition that it leads."""
    (log,) = [log for log in logs_of(broker) if log.is_served]
    return log


def append(log: PartitionLog, value: bytes = VALUE) -> list[AppendOutcome]:
    """What becomes of an event."""
    outcomes: list[AppendOutcome] = []
    log.append_event(b"key", value, 1, 0, outcomes.append)
    return outcomes


async def test_a_follower_receives_while_its_producers_hold_all_of_their_memory(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        leader, follower = await pair(stack, tmp_path)
        follower.take_produce_memory(follower.produce_memory_bytes)
        with pytest.raises(ProduceMemoryFullError):
            follower.check_produce_memory(1)
        outcomes = append(led_log(leader))
        await until(lambda: outcomes != [])
        assert outcomes == [Appended(0, copies=2)]
        follower.return_produce_memory(follower.produce_memory_bytes)


async def test_producers_are_taken_in_while_a_follower_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is received counts as such, until it is written, and not as what producers hold."""
    received: list[int] = []
    took = Replicas._append

    def take(self: Replicas, batches: Any, incoming: Any) -> None:
        received.append(self.received_bytes)
        took(self, batches, incoming)

    monkeypatch.setattr(Replicas, "_append", take)

    async with AsyncExitStack() as stack:
        leader, follower = await pair(stack, tmp_path)
        outcomes = append(led_log(leader))
        await until(lambda: outcomes != [])
        assert received[-1] >= len(VALUE) // 250  # compressed
        assert follower.received_bytes == follower.produce_memory_used_bytes == 0
        follower.check_produce_memory(follower.produce_memory_bytes)


async def test_receiving_that_takes_from_producing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation of the first test: the leader's append is not answered."""
    refused: list[int] = []
    take = Replicas._append
    budget: list[LocalBroker] = []

    def take_from_producing(self: Replicas, batches: Any, incoming: Any) -> None:
        try:
            budget[0].check_produce_memory(len(incoming.payload))
        except ProduceMemoryFullError:
            refused.append(len(incoming.payload))
            incoming.link.consumed(len(incoming.payload))
            self._step(WriteFailed(batches.log))
            return
        take(self, batches, incoming)

    monkeypatch.setattr(replicas.Replicas, "_append", take_from_producing)

    async with AsyncExitStack() as stack:
        leader, follower = await pair(stack, tmp_path)
        budget.append(follower)
        follower.take_produce_memory(follower.produce_memory_bytes)
        outcomes = append(led_log(leader))
        await until(lambda: len(refused) > 2)
        assert outcomes == []
        follower.return_produce_memory(follower.produce_memory_bytes)
        await until(lambda: outcomes == [Appended(0, copies=2)])


def test_a_replica_that_lacks_much_of_many_partitions_keeps_its_link(tmp_path: Path) -> None:
    """More than a link queues, which would take it for too slow."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            leader, follower = await pair(stack, tmp_path, partitions_per_range=PARTITIONS)
            logs = [log for log in logs_of(leader) if log.is_served]
            outcomes = [append(log, os.urandom(MEBIBYTE)) for log in logs]
            await until(lambda: all(outcomes))
            await stack.pop_all().aclose()
        shutil.rmtree(tmp_path / "1")
        async with AsyncExitStack() as stack:
            leader, follower = await start_ring(stack, tmp_path, 2)
            ends = {log.place.partition: log.log_end for log in logs if log.log_end}
            assert len(ends) == PARTITIONS
            await until(lambda: ends.items() <= ends_of(follower).items())
            assert leader.catch_up_bytes > PARTITIONS * MEBIBYTE

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert [line for line in lines if line["event"] == "replication.refused"] == []
