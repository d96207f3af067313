"""What all coordinators of a broker do when the ring changes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.model.group import Confirmation, Subscription, TopicPartition
from tailrace_broker.model.topic import TopicSettings
from tests.support.broker.brokers import started_broker
from tests.support.storage.storage import Appends
from tests.support.waits import until

Ends = dict[TopicPartition, tuple[int, int]]


def leaders_say(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, ends: Ends) -> None:
    async def known_ends_of(_: Sequence[str]) -> Ends:
        return ends

    for coordinator in broker.groups._by_partition.values():
        monkeypatch.setattr(coordinator.comparison, "_ends_of", known_ends_of)


async def group_at_3(broker: LocalBroker) -> TopicPartition:
    """Have a group deal with three records."""
    await broker.create_topic("t", TopicSettings(partitions_per_range=1))
    await Appends(broker.hosted("t").log_of(0)).batch([b"0", b"1", b"2"])
    await broker.groups.register(Subscription("c", "g", ("t",), "startFromEarliest"))
    poll = await broker.groups.poll("c", Confirmation(0), 0)
    number = await broker.groups.deliver(poll, [3])
    await broker.groups.commit("c", Confirmation(number))
    return TopicPartition(broker.hosted("t").topic.topic_id, 0)


async def test_groups_follow_an_end_that_a_range_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_broker(tmp_path) as broker:
        tp = await group_at_3(broker)
        leaders_say(broker, monkeypatch, {tp: (0, 1)})
        before = broker.ring.state
        assert before is not None
        [held] = before.ranges.values()
        lossy = replace(held, lossy_epochs=(held.epoch + 1,))
        after = replace(before, ranges={held.id: lossy})
        group = broker.groups.view("g").group

        broker.groups._on_applied(None, before)
        broker.groups._on_applied(before, before)
        broker.groups._on_applied(before, after)
        await until(lambda: group.stored[tp] == 1)

        assert group.positions[tp] == 1


async def test_an_idle_group_is_compared_when_its_coordinator_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[TopicPartition]] = []
    async with started_broker(tmp_path) as broker:
        tp = await group_at_3(broker)
        [coordinator] = [each for each in broker.groups._by_partition.values() if each.by_name]

        def compare(_: object, *, known: set[TopicPartition]) -> None:
            asked.append(known)

        monkeypatch.setattr(coordinator.comparison, "compare", compare)
        await coordinator.begin()
        broker.hosted("t").log_of(0).role.elsewhere = lambda *_: AssertionError()  # type: ignore[assignment]
        await coordinator.begin()
        broker.hosted("t").logs[0].role.elsewhere = None  # type: ignore[union-attr]

    assert asked == [{tp}, set()]
