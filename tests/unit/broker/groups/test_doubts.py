"""A change of a group that is given up, and committed later in the same epoch."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.groups.groups import Groups
from tailrace_broker.model.errors import (
    DiskFullError,
    NotEnoughReplicasError,
    NotReadyError,
)
from tailrace_broker.model.group import GROUPS_TOPIC, Confirmation, Subscription, TopicPartition
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import InSync
from tests.support.broker.brokers import started_broker
from tests.support.storage.storage import Appends, FaultyDisk
from tests.support.waits import until

SHORT = InSync([0, 1, 2], [0], 3)


def wanted(consumer_id: str = "c1", group: str = "g") -> Subscription:
    return Subscription(consumer_id, group, ("t",), "startFromEarliest")


async def with_group(broker: LocalBroker) -> tuple[TopicPartition, PartitionLog]:
    """A partition with three records, of which the idle group has read none; the group's log."""
    await broker.create_topic("t", TopicSettings())
    await Appends(broker.hosted("t").log_of(0)).batch([b"0", b"1", b"2"])
    await broker.groups.register(wanted())
    await broker.groups.goodbye("c1", Confirmation(), commits=False)
    return TopicPartition(broker.hosted("t").topic.topic_id, 0), log_of(broker, "g")


def log_of(broker: LocalBroker, group: str) -> PartitionLog:
    hosted = broker._topics.internal[GROUPS_TOPIC]
    return hosted.log_of(hosted.partition_of_key(group.encode()))


async def give_up(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, change: Awaitable[object]
) -> None:
    """The change is written, and waits for other replicas, of which too few answer."""
    role, written = log.role, log.log_end
    monkeypatch.setattr(role, "_prove", AsyncMock(return_value=True))
    role.change(role.epoch, commits_alone=False)
    changing = asyncio.ensure_future(change)
    await until(lambda: log.log_end > written)
    with monkeypatch.context() as patch:
        patch.setattr(role, "_count_in_sync", lambda: SHORT)
        role.look_for_shortage()
        with pytest.raises(NotEnoughReplicasError) as raised:
            await changing
    assert raised.value.write_attempted
    role.look_for_shortage()


async def commit(broker: LocalBroker, log: PartitionLog) -> None:
    """The others have it now."""
    coordinators = broker.groups._by_partition.values()
    hosted = [each for coordinator in coordinators for each in coordinator.by_name.values()]
    assert any(each.writer.is_in_doubt for each in hosted)
    log.role.change(log.role.epoch, commits_alone=True)
    await until(lambda: not any(each.writer.is_in_doubt for each in hosted))


async def test_a_reset_that_was_given_up_is_applied_when_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_broker(tmp_path) as broker:
        tp, log = await with_group(broker)
        await give_up(log, monkeypatch, broker.groups.reset("g", {tp: 2}))
        with pytest.raises(NotReadyError, match="not known yet"):
            await broker.groups.register(wanted())
        await commit(broker, log)
        here = broker.groups.view("g").group.positions[tp]
        await broker.groups.register(wanted())
    async with started_broker(tmp_path) as broker:
        assert broker.groups.view("g").group.positions[tp] == here == 2


@pytest.mark.parametrize(
    ("change", "name", "groups_then"),
    [
        (lambda groups: groups.register(wanted("c2")), "g", {"g": {"c2"}}),
        (lambda groups: groups.register(wanted("c2", "h")), "h", {"g": set(), "h": {"c2"}}),
        (lambda groups: groups.delete("g"), "g", {}),
    ],
)
async def test_a_group_is_after_a_failover_what_it_was_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Groups], Awaitable[object]],
    name: str,
    groups_then: dict[str, set[str]],
) -> None:
    def seen(broker: LocalBroker) -> dict[str, set[str]]:
        return {view.group.name: {*view.group.members} for view in broker.groups.views()}

    async with started_broker(tmp_path) as broker:
        await with_group(broker)
        log = log_of(broker, name)
        await give_up(log, monkeypatch, change(broker.groups))
        await commit(broker, log)
        assert seen(broker) == groups_then
        if "c2" in groups_then.get(name, ()):
            await broker.groups.poll("c2", Confirmation(0), 0)
    async with started_broker(tmp_path) as broker:
        assert seen(broker) == groups_then


async def test_positions_are_stored_again_after_a_reset_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch, spares_metadata=True)
    async with started_broker(tmp_path) as broker:
        tp, _ = await with_group(broker)
        disk.fail("pwritev", errno.ENOSPC)
        with pytest.raises(DiskFullError):
            await broker.groups.reset("g", {tp: 2})
        disk.forget_faults()
        group = broker.groups.view("g").group
        group.fit(tp, 1, 3)

        assert group.uncommitted() is not None
