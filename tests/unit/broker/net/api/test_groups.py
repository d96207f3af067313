"""Groups as they are shown: what is asked of their logs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.model.errors import ReadMemoryFullError
from tailrace_broker.model.group import Subscription
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.net.api.group_bodies import GroupPath
from tailrace_broker.net.api.groups import describe_group
from tailrace_broker.net.http.router import Call
from tests.support.broker.brokers import started_broker
from tests.support.storage.storage import Appends

PARTITIONS = 40
READS_AT_ONCE = 16


async def describe(broker: LocalBroker) -> Any:
    """A group that has read nothing of many partitions."""
    await broker.create_topic("t", TopicSettings(partitions_per_range=PARTITIONS))
    await broker.groups.register(Subscription("c", "g", ("t",), "startFromEarliest"))
    for partition in range(PARTITIONS):
        await Appends(broker.hosted("t").log_of(partition)).batch([b"0"])
    return await describe_group(broker, Call(GroupPath(group="g"), "", "", b""))


async def test_some_logs_are_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    async with started_broker(tmp_path) as broker:
        under_way = 0

        async def run(read: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal under_way
            under_way += 1
            counts.append(under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return await read()

        monkeypatch.setattr(broker.read_memory, "run", run)
        await describe(broker)
    assert len(counts) == PARTITIONS
    assert max(counts) == READS_AT_ONCE


async def test_without_read_memory_a_group_is_not_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_broker(tmp_path) as broker:

        async def run(_: Callable[[], Awaitable[Any]]) -> Any:
            raise ReadMemoryFullError("held by others")

        monkeypatch.setattr(broker.read_memory, "run", run)
        with pytest.raises(ReadMemoryFullError):
            await describe(broker)
