"""Mutations of groups over steps: each function takes one rule from the shipped code."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tailrace_broker.core.groups import group
from tailrace_broker.core.groups.state import PositionOf, is_done
from tailrace_broker.core.log.parent_windows import AncestorWindows, ParentWindows
from tailrace_broker.core.log.producers import WindowLimits
from tailrace_broker.groups import coordinator, stored_groups
from tailrace_broker.groups.coordinator import Coordinated, PartitionCoordinator
from tailrace_broker.groups.log import GroupLog
from tailrace_broker.groups.stored_groups import GroupsLog, GroupsReader, StoredGroups
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.topic import Partition, Topic


def child_served_before_its_second_parent(patch: pytest.MonkeyPatch) -> None:
    """One parent that is read to its end suffices."""

    def readable(topic: Topic, position_of: PositionOf) -> list[Partition]:
        done = {each.partition for each in topic.partitions if is_done(topic, each, position_of)}
        return [each for each in topic.partitions if not each.parents or done & {*each.parents}]

    patch.setattr(group, "readable", readable)


def child_served_beside_its_parents(patch: pytest.MonkeyPatch) -> None:
    """Nothing that was sealed is waited for."""
    patch.setattr(group, "readable", lambda topic, position_of: topic.partitions)


def child_of_groups_answers_before_its_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The leader of a new partition of `__groups` begins without groups."""

    async def read(
        reader: GroupsReader, topic: Topic, partition: Partition, log: GroupsLog, end: int
    ) -> StoredGroups:
        stored = await shipped(reader, topic, partition, log, end)
        return StoredGroups({}) if stored.is_inherited else stored

    shipped = stored_groups.read_groups
    patch.setattr(coordinator, "read_groups", read)


def groups_of_one_parent_only(patch: pytest.MonkeyPatch) -> None:
    """Of two parents of a partition of `__groups` the first is read."""

    async def read(
        reader: GroupsReader, topic: Topic, partition: Partition, log: GroupsLog, end: int
    ) -> StoredGroups:
        less = replace(partition, parents=partition.parents[:1])
        return await shipped(reader, topic, less, log, end)

    shipped = stored_groups.read_groups
    patch.setattr(coordinator, "read_groups", read)


def coordinator_outlives_its_partition(patch: pytest.MonkeyPatch) -> None:
    """It goes on when its partition of `__groups` is sealed."""

    def is_led(self: GroupLog) -> bool:
        role = self._log.role
        return self._log.is_served and role.epoch in (None, self.epoch)

    patch.setattr(GroupLog, "is_led", property(is_led))


def children_begin_at_latest(patch: pytest.MonkeyPatch) -> None:
    """A partition that a group sees later is read from where it ends now."""

    def rebalance(self: PartitionCoordinator, found: Coordinated) -> None:
        known = {*found.group.positions}
        shipped(self, found)
        for name, topic in found.topics.items():
            for log in self._topics.by_name[name].all_logs():
                tp = TopicPartition(topic.topic_id, log.place.partition)
                if tp in found.group.positions and tp not in known:
                    found.group._move(tp, log.high_watermark)

    shipped = PartitionCoordinator._rebalance
    patch.setattr(PartitionCoordinator, "_rebalance", rebalance)


def windows_not_handed_to_children(patch: pytest.MonkeyPatch) -> None:
    """A child takes for new what its parents have stored."""
    patch.setattr(ParentWindows, "find", lambda self, producer, count, now_us: None)


def windows_of_one_parent_only(patch: pytest.MonkeyPatch) -> None:
    """Of two parents a child asks one."""

    def init(
        self: ParentWindows, ancestors: Sequence[AncestorWindows] = (), *limits: WindowLimits
    ) -> None:
        shipped(self, ancestors[:1], *limits)

    shipped = ParentWindows.__init__
    patch.setattr(ParentWindows, "__init__", init)
