"""When enough voters acknowledge: a majority of them, and of the next ones while they change."""

from collections.abc import Callable, Container

from tailrace_broker.model.agreement import Configuration, DiskId


def is_quorum(configuration: Configuration, disks: Container[DiskId]) -> bool:
    """Return whether these are enough. Without voters nobody is."""
    return _is_majority(configuration.voters, disks) and (
        not configuration.next_voters or _is_majority(configuration.next_voters, disks)
    )


def quorum_height(configuration: Configuration, height_of: Callable[[DiskId], int]) -> int:
    """The greatest height, or whatever grows, that enough voters have reached."""
    height = _majority_height(configuration.voters, height_of)
    if configuration.next_voters:
        return min(height, _majority_height(configuration.next_voters, height_of))
    return height


def _is_majority(voters: tuple[DiskId, ...], disks: Container[DiskId]) -> bool:
    return 2 * sum(voter in disks for voter in voters) > len(voters)


def _majority_height(voters: tuple[DiskId, ...], height_of: Callable[[DiskId], int]) -> int:
    # Of 3 the second, of 4 the third, of 5 the third.
    return sorted(map(height_of, voters), reverse=True)[len(voters) // 2]
