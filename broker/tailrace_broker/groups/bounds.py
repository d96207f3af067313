"""How many groups a broker coordinates, and how many consumers a group has."""

from typing import NamedTuple

from tailrace_broker.core.groups.group import Group
from tailrace_broker.model.errors import TooManyConsumersError, TooManyGroupsError


class GroupBounds(NamedTuple):
    """`groups`: of a broker; `consumers`: of a group."""

    groups: int
    consumers: int

    def check_groups(self, count: int) -> None:
        """TooManyGroupsError: a broker that coordinates `count` groups takes no more."""
        if count >= self.groups:
            raise TooManyGroupsError(
                f"this broker coordinates {self.groups} groups, and takes no more; delete "
                "those that nobody needs (tailrace group delete), or raise TAILRACE_GROUPS_MAX"
            )

    def check_consumers(self, group: Group) -> None:
        """TooManyConsumersError: the group takes no more."""
        if len(group.members) >= self.consumers:
            raise TooManyConsumersError(
                f'group "{group.name}" has {self.consumers} consumers, and takes no more; stop '
                "those that have nothing to do, or raise TAILRACE_GROUP_CONSUMERS_MAX",
                group=group.name,
            )
