"""Groups over a step, on a real broker: what the parents of a partition say of them goes on."""

import asyncio
from pathlib import Path

import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.groups.coordinator import PartitionCoordinator
from tailrace_broker.groups.log import GroupLog
from tailrace_broker.model.commands import Command, InheritedAll, TrimSealed
from tailrace_broker.model.errors import (
    DiskFullError,
    NoLeaderError,
    NotAgreedError,
    NotReadyError,
    RingRefusedError,
)
from tailrace_broker.model.group import GROUPS_TOPIC, Confirmation, Subscription, TopicPartition
from tailrace_broker.model.ring_state import Refusal
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.net.api.groups import list_groups
from tailrace_broker.net.http.router import Call
from tailrace_broker.node.ring import RingNode
from tests.support.broker.brokers import started_broker
from tests.support.ring.split_on_disk import ends_of, split_on_disk
from tests.support.storage.storage import Appends
from tests.support.waits import until

GROUPS = [f"group-{number}" for number in range(8)]


def wanted(group: str) -> Subscription:
    return Subscription(f"consumer of {group}", group, ("t",), "startFromEarliest")


async def read_some(broker: LocalBroker, group: str, count: int) -> None:
    """Register, and commit so many records of partition 0."""
    await broker.groups.register(wanted(group))
    consumer_id = wanted(group).consumer_id
    poll = await broker.groups.poll(consumer_id, Confirmation(0), 0)
    ends = [each.start + (count if each.tp.partition == 0 else 0) for each, _ in poll.fetch_ranges]
    number = await broker.groups.deliver(poll, ends)
    await broker.groups.commit(consumer_id, Confirmation(number))


async def with_groups(root: Path) -> None:
    """Of the groups each has read one record more than the one before; the last is deleted."""
    async with started_broker(root) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=2))
        for partition in range(2):
            await Appends(broker.hosted("t").log_of(partition)).batch([b"0"] * 10)
        for count, group in enumerate(GROUPS, 1):
            await read_some(broker, group, count)
        await broker.groups.goodbye(wanted(GROUPS[-1]).consumer_id, Confirmation(0), commits=False)
        await broker.groups.delete(GROUPS[-1])
        ends = ends_of(broker)
    split_on_disk(root, ends)


def positions(broker: LocalBroker) -> dict[str, int]:
    """By group, in the sealed partition 0."""
    place = TopicPartition(broker.hosted("t").topic.topic_id, 0)
    return {view.group.name: view.group.stored[place] for view in broker.groups.views()}


def record_count(broker: LocalBroker) -> int:
    """Of all open partitions of `__groups`."""
    hosted = broker._topics.internal[GROUPS_TOPIC]
    opened = [each for each in hosted.topic.partitions if not each.is_sealed]
    logs = [hosted.log_of(each.partition) for each in opened]
    return sum(log.log_end - log.log_start for log in logs)


EXPECTED = {group: count for count, group in enumerate(GROUPS[:-1], 1)}


def test_groups_go_on_in_the_children_of_their_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        await with_groups(tmp_path)
        for _ in range(2):
            async with started_broker(tmp_path) as broker:
                hosted = broker._topics.internal[GROUPS_TOPIC]
                for group in GROUPS[:-1]:
                    await broker.groups.register(wanted(group))
                partitions = {view.coordinator for view in broker.groups.views()}

                assert positions(broker) == EXPECTED
                opened = [each for each in hosted.topic.partitions if not each.is_sealed]
                assert partitions <= {each.partition for each in opened}

    asyncio.run(scenario())


def test_the_parents_leave_when_their_children_have_stored_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the ring does not take for now it is asked again."""
    change, refusals = RingNode.change, [NotAgreedError("nobody leads")]

    async def refuse(self: RingNode, command: Command) -> None:
        if isinstance(command, InheritedAll) and refusals:
            raise refusals.pop()
        await change(self, command)

    async def scenario() -> None:
        await with_groups(tmp_path)
        monkeypatch.setattr(RingNode, "change", refuse)
        async with started_broker(tmp_path) as broker:
            hosted = broker._topics.internal[GROUPS_TOPIC]
            await until(lambda: not any(each.is_sealed for each in hosted.topic.partitions))
            assert all(not each.parents for each in hosted.topic.partitions)
            assert positions(broker) == EXPECTED

    asyncio.run(scenario())


def test_what_the_ring_refuses_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, asked = RingNode.change, []

    async def refuse(self: RingNode, command: Command) -> None:
        if isinstance(command, InheritedAll):
            asked.append(command.partition)
            raise RingRefusedError(Refusal("topic-not-found", "it is gone"))
        await change(self, command)

    async def scenario() -> None:
        await with_groups(tmp_path)
        monkeypatch.setattr(RingNode, "change", refuse)
        async with started_broker(tmp_path) as broker:
            hosted = broker._topics.internal[GROUPS_TOPIC]
            children = {each.partition for each in hosted.topic.partitions if each.parents}
            await until(lambda: {*asked} == children)
            assert positions(broker) == EXPECTED

    asyncio.run(scenario())
    assert len(asked) == len({*asked})


def test_what_is_inherited_is_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        await with_groups(tmp_path)
        counts = []
        for _ in range(2):
            async with started_broker(tmp_path) as broker:
                counts.append(record_count(broker))

        assert counts[0] == counts[1]

    asyncio.run(scenario())


def test_what_was_not_stored_to_its_end_is_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: GroupLog) -> None:
        raise NoLeaderError("the epoch ends")

    async def scenario() -> None:
        await with_groups(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(GroupLog, "append_inherited", fail)
            async with started_broker(tmp_path) as broker:
                assert list(broker.groups.views()) == []
        async with started_broker(tmp_path) as broker:
            for group in EXPECTED:
                await broker.groups.register(wanted(group))
            assert positions(broker) == EXPECTED

    asyncio.run(scenario())


def test_a_disk_that_is_full_for_a_moment_keeps_no_group_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, refusals = GroupLog.append_inherited, [DiskFullError("no room")] * 8

    async def refuse(self: GroupLog) -> None:
        if refusals:
            raise refusals.pop()
        await store(self)

    async def scenario() -> None:
        await with_groups(tmp_path)
        monkeypatch.setattr(GroupLog, "append_inherited", refuse)
        async with started_broker(tmp_path) as broker:
            await until(lambda: not refusals and not broker.groups._loading)
            for group in EXPECTED:
                await broker.groups.register(wanted(group))
            assert positions(broker) == EXPECTED

    asyncio.run(scenario())


def test_groups_that_are_being_read_are_not_left_out_of_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: GroupLog) -> None:
        raise NoLeaderError("the epoch ends")

    async def scenario() -> None:
        await with_groups(tmp_path)
        monkeypatch.setattr(GroupLog, "append_inherited", fail)
        async with started_broker(tmp_path) as broker:
            with pytest.raises(NotReadyError):
                await list_groups(broker, Call(None, "", "", b"", is_forwarded=True))
            with pytest.raises(NotReadyError):  # nor does it say that nobody knows a consumer
                await broker.groups.poll("consumer of group-0", Confirmation(0), 0)

    asyncio.run(scenario())


def test_a_waiting_poll_ends_with_its_partition_and_goes_on_in_the_child(tmp_path: Path) -> None:
    """What a step does to a coordinator, in one turn: its role has no epoch any more."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await broker.create_topic("t", TopicSettings(partitions_per_range=1))
            await broker.groups.register(wanted("g"))
            waiting = asyncio.create_task(
                broker.groups.poll("consumer of g", Confirmation(0), 60_000)
            )
            await asyncio.sleep(0)
            (coordinator,) = [each for each in broker.groups._by_partition.values() if each.by_name]
            role = coordinator.log._log.role
            role.change(None, None, commits_alone=True)
            broker.groups._look()
            with pytest.raises(NoLeaderError, match="sealed"):
                await waiting

    asyncio.run(scenario())


@pytest.mark.parametrize("is_there", [True, False], ids=["at once", "at its start"])
def test_a_coordinator_counts_what_its_groups_without_consumers_have_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """Retention takes all ten records of both sealed partitions; group n has read n of one."""
    shipped = PartitionCoordinator.on_topic_changed

    def lost(broker: LocalBroker) -> dict[str, int]:
        return {view.group.name: view.group.lost for view in broker.groups.views()}

    async def trim(broker: LocalBroker) -> None:
        ring, topic_id = broker._topics._ring, broker.hosted("t").topic.topic_id
        assert ring.registration is not None
        await ring.change(TrimSealed(0, 0, ring.registration.number, {topic_id: (10, 10)}))

    async def scenario() -> None:
        await with_groups(tmp_path)
        async with started_broker(tmp_path) as broker:
            for group in GROUPS[:-1]:
                await broker.groups.register(wanted(group))  # waits until it is coordinated
                await broker.groups.goodbye(
                    wanted(group).consumer_id, Confirmation(0), commits=False
                )
            if not is_there:
                monkeypatch.setattr(PartitionCoordinator, "on_topic_changed", lambda _, __: None)
            await trim(broker)
            if is_there:
                await until(lambda: lost(broker) == expected)
        monkeypatch.setattr(PartitionCoordinator, "on_topic_changed", shipped)
        async with started_broker(tmp_path) as broker:
            await broker.groups.register(wanted(GROUPS[0]))
            await until(lambda: lost(broker) == expected)
            await trim(broker)
            await until(lambda: broker.hosted("t").topic.find(0) is None)
        async with started_broker(tmp_path) as broker:
            await broker.groups.register(wanted(GROUPS[0]))
            assert lost(broker) == expected

    expected = {group: 20 - count for group, count in EXPECTED.items()}
    asyncio.run(scenario())
