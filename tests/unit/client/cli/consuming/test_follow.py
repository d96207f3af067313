"""Which partitions may be followed when: never a child before all its parents are at their ends."""

import pytest

from tailrace.cli.consuming.follow import (
    Lineage,
    Sealed,
    children_of_gone,
    sealed_end,
    start_of_child,
)
from tailrace.cli.consuming.pages import Key
from tailrace.errors import PartitionDamagedError
from tailrace.values import Fetched, PartitionOffsets


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


def child(partition: int, log_start: int | None = 100, *, state: str = "open") -> PartitionOffsets:
    ends = None if log_start is None else 200
    return PartitionOffsets("t", partition, 3, 2, 100, log_start, ends, ends, state, (0,))


def test_a_partition_has_ended_when_all_its_children_are_listed() -> None:
    """Who lists them may not have heard of the step yet."""
    page = Fetched(b"", 100, 100, 0, 1, is_sealed=True, children=(1, 2))

    assert sealed_end(key_of(0), page, [child(1), child(3)]) is None
    ended = sealed_end(key_of(0), page, [child(1), child(2), child(3)])
    assert ended == Sealed(key_of(0), [child(1), child(2)])


def test_a_partition_that_is_gone_is_continued_by_those_that_name_it_or_by_newer_ones() -> None:
    """Its children may be gone, too."""
    named = [child(4), child(5)]

    assert children_of_gone(key_of(0), named) == named
    assert children_of_gone(key_of(3), [child(1), *named]) == named
    assert children_of_gone(key_of(9), named) == []
    assert children_of_gone(("other", 0), named) == []


def test_a_child_begins_at_its_first_record_whether_somebody_leads_it_or_not() -> None:
    assert start_of_child(child(1, 150)) == 150
    assert start_of_child(child(1, None, state="leaderless")) == 100
    with pytest.raises(PartitionDamagedError):
        start_of_child(child(1, None, state="damaged"))
