"""Which partitions may be followed when: never a child before all its parents are at their ends."""

from tailrace.cli.consuming.follow import Lineage
from tailrace.cli.consuming.pages import Key


def lineage(parents_by_partition: dict[int, tuple[int, ...]]) -> Lineage:
    made = Lineage()
    for partition, parents in parents_by_partition.items():
        made.add(key_of(partition), [key_of(parent) for parent in parents])
    return made


def key_of(partition: int) -> Key:
    return "t", partition


def startable(followed: Lineage) -> list[int]:
    """Their numbers."""
    return [partition for _, partition in followed.take_startable()]


def test_partitions_without_parents_start_at_once_and_once() -> None:
    followed = lineage({0: (), 1: ()})

    assert startable(followed) == [0, 1]
    assert startable(followed) == []


def test_a_child_waits_for_all_its_parents() -> None:
    followed = lineage({0: (), 1: (), 2: (0, 1)})
    started = [startable(followed)]
    followed.finish(key_of(0))
    started.append(startable(followed))
    followed.finish(key_of(1))
    started.append(startable(followed))

    assert started == [[0, 1], [], [2]]


def test_parents_that_are_not_followed_are_not_waited_for() -> None:
    assert startable(lineage({5: (2, 3)})) == [5]


def test_children_may_become_known_when_their_parent_ends() -> None:
    followed = lineage({0: ()})
    startable(followed)

    assert followed.add(key_of(1), [key_of(0)])
    assert not followed.add(key_of(1), [key_of(0)])
    followed.finish(key_of(0))
    assert startable(followed) == [1]
