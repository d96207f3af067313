"""Which partitions may be followed when: never a child before all its parents are at their ends."""

from tailrace.cli.follow import Lineage


def lineage(parents_by_partition: dict[int, tuple[int, ...]]) -> Lineage:
    made = Lineage()
    for partition, parents in parents_by_partition.items():
        made.add(partition, parents)
    return made


def test_partitions_without_parents_start_at_once_and_once() -> None:
    followed = lineage({0: (), 1: ()})

    assert followed.take_startable() == [0, 1]
    assert followed.take_startable() == []


def test_a_child_waits_for_all_its_parents() -> None:
    followed = lineage({0: (), 1: (), 2: (0, 1)})
    started = [followed.take_startable()]
    followed.finish(0)
    started.append(followed.take_startable())
    followed.finish(1)
    started.append(followed.take_startable())

    assert started == [[0, 1], [], [2]]


def test_parents_that_are_not_followed_are_not_waited_for() -> None:
    assert lineage({5: (2, 3)}).take_startable() == [5]


def test_children_may_become_known_when_their_parent_ends() -> None:
    followed = lineage({0: ()})
    followed.take_startable()

    assert followed.add(1, (0,))
    assert not followed.add(1, (0,))
    followed.finish(0)
    assert followed.take_startable() == [1]
