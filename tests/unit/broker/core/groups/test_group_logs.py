"""A consumer group, its logs and its coordinator, case by case."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.model.errors import GroupKindError, GroupNotIdleError
from tailrace_broker.model.group import (
    Committed,
    GroupSnapshot,
    Joined,
    Left,
    OnNewGroup,
    Subscription,
    TopicPartition,
)
from tests.support.groups.tried_group import (
    ID,
    ONE,
    Tried,
    partition_of,
    place_of,
    topic_of,
)

# --- where a group starts ---


@pytest.mark.parametrize(
    ("on_new_group", "start"), [("startFromLatest", 100), ("startFromEarliest", 40)]
)
def test_a_new_group_starts_where_its_first_consumer_says(
    on_new_group: OnNewGroup, start: int
) -> None:
    """What retention had removed before is not lost to it."""
    tried = Tried(ONE)
    tried.logs = {place_of(0): (40, 100)}
    tried.join("a", on_new_group=on_new_group)

    tried.group.fit(place_of(0), 40, 100)

    assert (tried.position(0), tried.group.lost) == (start, 0)


def test_latest_is_where_the_log_ended_when_the_group_began() -> None:
    """Whoever registers later, after whatever restart."""
    tried = Tried(ONE)
    tried.join("a", on_new_group="startFromLatest")
    tried.leave("a")
    tried.group = tried.restarted()
    tried.logs = {place_of(0): (0, 500)}

    tried.join("b", on_new_group="startFromLatest")

    assert tried.starts("b") == {0: (100, None)}


def test_partitions_that_came_while_nobody_read_are_read_from_their_starts() -> None:
    tried = Tried(ONE)
    tried.join("a", on_new_group="startFromLatest")
    tried.leave("a")
    tried.topic = topic_of(partition_of(0, sealed=100), partition_of(1, 0, first=100))
    tried.logs = {place_of(0): (0, 100), place_of(1): (100, 500)}

    tried.join("a", on_new_group="startFromLatest")

    assert tried.starts("a") == {1: (100, None)}


def test_the_parents_of_a_group_that_starts_at_the_end_are_done() -> None:
    """Also damaged ones, whose logs nobody knows."""
    lineage = topic_of(partition_of(0, sealed=60), partition_of(1, 0, first=60))
    tried = Tried(lineage)
    tried.logs = {place_of(1): (60, 90)}

    tried.join("a", on_new_group="startFromLatest")

    assert tried.starts("a") == {1: (90, None)}


def test_a_damaged_partition_is_read_from_its_start() -> None:
    tried = Tried(ONE)
    tried.logs = {}

    tried.join("a", on_new_group="startFromLatest")

    assert tried.starts("a") == {0: (0, None)}


def test_a_topic_that_is_made_again_is_read_from_its_start() -> None:
    tried = Tried(ONE)
    tried.join("a", on_new_group="startFromLatest")

    tried.topic = topic_of(partition_of(0), topic_id=UUID(int=2))
    has_changed = tried.rebalance()

    assert has_changed
    assert tried.starts("a") == {0: (0, None)}


# --- lineage ---


def test_a_child_waits_for_all_its_parents() -> None:
    joined = topic_of(
        partition_of(0, sealed=5), partition_of(1, sealed=3), partition_of(2, 0, 1, first=5)
    )
    tried = Tried(joined)
    tried.join("a")
    number = tried.poll("a", ends={0: 5, 1: 2})

    assert tried.group.reads_sealed
    number = tried.poll("a", number, ends={1: 3})
    assert 2 not in tried.starts("a")
    tried.begin("a", number)

    assert tried.rebalance()  # what is done is nobody's
    assert tried.starts("a") == {2: (5, None)}
    assert not tried.group.reads_sealed


def test_a_child_of_a_parent_without_records_waits_for_its_grandparents() -> None:
    chain = topic_of(
        partition_of(0, sealed=5),
        partition_of(1, 0, first=5, sealed=5),
        partition_of(2, 1, first=5),
    )
    tried = Tried(chain)
    tried.join("a")

    assert tried.starts("a") == {0: (0, None)}
    number = tried.poll("a", ends={0: 5})
    tried.begin("a", number)
    tried.rebalance()

    assert tried.starts("a") == {2: (5, None)}


# --- what logs do ---


def test_what_retention_removed_unread_is_counted() -> None:
    tried = Tried(ONE)
    tried.join("a")

    tried.group.fit(place_of(0), 30, 100)
    tried.group.fit(place_of(0), 40, 100)

    assert tried.starts("a") == {0: (40, None)}
    committed = tried.group.uncommitted()
    assert committed == Committed({ID: {0: 40}}, 40)
    tried.apply(committed)
    assert tried.restarted().lost == 40


def test_losses_alone_are_stored_too() -> None:
    tried = Tried(ONE)
    tried.join("a")
    tried.group.lost = 3

    assert tried.group.uncommitted() == Committed({}, 3)


def test_what_retention_removed_is_no_part_of_a_delivery_any_more() -> None:
    tried = Tried()
    tried.join("a")
    number = tried.poll("a", ends={0: 50, 1: 3})

    tried.group.fit(place_of(0), 30, 100)
    tried.group.validate()
    assert tried.starts("a") == {0: (30, 50), 1: (0, 3)}
    tried.begin("a", number)

    assert tried.starts("a") == {0: (50, None), 1: (3, None)}


def test_a_delivery_of_which_nothing_is_left_has_ended() -> None:
    tried = Tried(ONE)
    tried.join("a")
    tried.poll("a", ends={0: 50})

    tried.group.fit(place_of(0), 70, 100)
    tried.group.validate()

    assert tried.starts("a") == {0: (70, None)}


def test_what_a_log_lost_with_its_end_is_not_waited_for() -> None:
    """Also after the next restart, when the log has grown beyond the old position."""
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 80})
    tried.begin("a", number)
    committed = tried.group.uncommitted()
    assert committed is not None
    tried.apply(committed)

    tried.group.fit(place_of(0), 0, 60)
    committed = tried.group.uncommitted()
    assert committed == Committed({ID: {0: 60}}, 0)
    tried.apply(committed)

    assert tried.position(0) == 60
    assert tried.restarted().positions == {place_of(0): 60}


def test_a_position_that_comes_back_while_it_is_being_stored_stays_there() -> None:
    """What comes into the log above it is new, and not skipped."""
    tried = Tried(ONE)
    tried.join("a")
    first = tried.poll("a", ends={0: 60})
    second = tried.poll("a", first, ends={0: 80})
    stored = tried.group.uncommitted()
    assert stored is not None
    tried.saved(stored)
    tried.begin("a", second)
    committed = tried.group.uncommitted()
    assert committed is not None

    tried.group.fit(place_of(0), 0, 60)
    tried.saved(committed)

    assert tried.starts("a") == {0: (60, None)}
    later = tried.group.uncommitted()
    assert later == Committed({ID: {0: 60}}, 0)
    tried.saved(later)
    assert tried.restarted().positions == {place_of(0): 60}


def test_what_is_lost_for_good_is_passed_over_once_and_counted() -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 30})
    assert number is not None
    tried.poll("a", number, ends={})

    moved = [tried.group.pass_over(place_of(0), range(30, 50)) for _ in range(2)]

    assert moved == [True, False]
    assert tried.starts("a") == {0: (50, None)}
    assert tried.group.uncommitted() == Committed({ID: {0: 50}}, 20, {"a": number})


@pytest.mark.parametrize("lost", [range(31, 50), range(10, 30)])
def test_what_is_lost_elsewhere_moves_no_position(lost: range) -> None:
    tried = Tried(ONE)
    tried.join("a")
    tried.poll("a", tried.poll("a", ends={0: 30}), ends={})

    assert not tried.group.pass_over(place_of(0), lost)
    assert not tried.group.pass_over(place_of(7), range(0, 50))
    assert (tried.starts("a"), tried.group.lost) == ({0: (30, None)}, 0)


@pytest.mark.parametrize(
    ("lost", "left", "count"),
    [
        (range(0, 20), (20, 50), 20),
        (range(0, 60), (60, None), 60),  # nothing of it is left
        (range(20, 40), (0, 20), 0),  # the rest comes later
        (range(20, 60), (0, 20), 0),
        (range(50, 60), (0, 50), 0),
    ],
)
def test_a_delivery_is_repeated_without_what_is_lost_for_good(
    lost: range, left: tuple[int, int | None], count: int
) -> None:
    tried = Tried()
    tried.join("a")
    number = tried.poll("a", ends={0: 50, 1: 3})

    has_changed = tried.group.pass_over(place_of(0), lost)
    tried.group.validate()

    end = left[1] or left[0]
    assert tried.starts("a") == {0: (left[0], end) if left[1] else (60, 60), 1: (0, 3)}
    assert has_changed == (lost.start < 50)
    assert tried.group.lost == count
    assert tried.poll("a", number, ends={}) is None
    assert tried.starts("a") == {0: (end, None), 1: (3, None)}


def test_a_partition_that_ends_with_what_is_lost_for_good_is_done() -> None:
    """Its children are read."""
    tried = Tried(topic_of(partition_of(0, sealed=40), partition_of(1, 0, first=40)))
    tried.join("a")
    tried.poll("a", tried.poll("a", ends={0: 30}), ends={})

    assert tried.group.pass_over(place_of(0), range(30, 40))
    tried.rebalance()

    assert tried.starts("a") == {1: (40, None)}


def test_the_position_of_a_partition_that_is_not_known_is_its_start() -> None:
    tried = Tried(ONE)

    tried.group.fit(place_of(0), 30, 100)

    assert (tried.position(0), tried.group.lost) == (30, 0)


def test_a_deleted_topics_part_of_a_delivery_is_dropped() -> None:
    other = topic_of(partition_of(0), partition_of(1), name="u", topic_id=UUID(int=2))
    tried = Tried(ONE)
    both = {"t": ONE, "u": other}
    joined = tried.group.join(tried.subscription("a", "t", "u"), both, tried.logs, 0)
    assert joined is not None
    tried.group.apply(joined, 0)
    tried.rebalance(ONE, other)
    poll_number = tried.begin("a")
    others = [TopicPartition(other.topic_id, partition) for partition in (0, 1)]
    tried.group.deliver("a", poll_number, dict.fromkeys([place_of(0), *others], (0, 5)))

    tried.rebalance(ONE)
    assert tried.starts("a") == {0: (0, 5)}
    tried.rebalance(replace(ONE, topic_id=UUID(int=3)))

    assert tried.group.members["a"].delivery is None


# --- what the coordinator changes ---


def test_a_reset_moves_an_idle_group() -> None:
    tried = Tried()
    tried.join("a")
    tried.leave("a")

    tried.apply(tried.group.reset({place_of(0): 70, place_of(1): 20}))
    tried.apply(tried.group.reset({place_of(0): 10}))

    assert [tried.position(0), tried.position(1)] == [10, 20]
    assert tried.restarted().positions == {place_of(0): 10, place_of(1): 20}


def test_a_group_with_consumers_is_not_reset() -> None:
    tried = Tried(ONE)
    tried.join("a")

    for change in (
        lambda: tried.group.reset({}),
        lambda: tried.group.publish("spark", {}),
        tried.group.delete,
    ):
        with pytest.raises(GroupNotIdleError, match="has consumers: 1") as refused:
            change()
    assert refused.value.members == {"group": "g", "members": 1}
    assert tried.group.uncommitted() is None


def test_a_reset_that_a_consumer_came_before_is_too_late() -> None:
    tried = Tried(ONE)
    moved = tried.group.reset({place_of(0): 70})
    tried.join("a")
    tried.poll("a", ends={0: 5})

    tried.apply(moved)

    assert tried.starts("a") == {0: (0, 5)}


def test_old_positions_are_not_stored_behind_a_reset() -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 5})
    tried.begin("a", number)
    tried.leave("a")
    assert tried.group.uncommitted() is not None

    moved = tried.group.reset({place_of(0): 0})
    assert tried.group.uncommitted() is None
    tried.apply(moved)

    assert tried.group.uncommitted() is None
    assert tried.position(0) == 0


def test_positions_are_stored_again_when_a_reset_has_failed() -> None:
    tried = Tried(ONE)
    tried.join("a")
    tried.begin("a", tried.poll("a", ends={0: 5}))
    tried.leave("a")

    moved = tried.group.reset({place_of(0): 0})
    tried.group.failed(Left("a", 9, "goodbye"))
    assert tried.group.uncommitted() is None
    tried.group.failed(moved)

    assert tried.group.uncommitted() == Committed({ID: {0: 5}}, 0)


def test_a_reader_that_keeps_its_offsets_says_how_far_it_is() -> None:
    tried = Tried(ONE)

    tried.apply(tried.group.publish("spark", {place_of(0): 12}))
    tried.apply(tried.group.publish("spark", {place_of(0): 14}))

    assert (tried.group.source, tried.position(0)) == ("spark", 14)


@pytest.mark.parametrize(
    ("name", "source", "remedy"),
    [
        ("g", "spark", "a new checkpointLocation and startingOffsets"),
        ("spark:archive", "spark", "a new checkpointLocation and startingOffsets"),
        ("g", "flink", 'kept by its reader, "flink"'),
    ],
)
def test_a_group_whose_reader_keeps_its_offsets_takes_no_consumer_and_no_reset(
    name: str, source: str, remedy: str
) -> None:
    tried = Tried(ONE, name)
    tried.apply(tried.group.publish(source, {place_of(0): 12}))

    for change in (lambda: tried.join("a"), lambda: tried.group.reset({place_of(0): 0})):
        with pytest.raises(GroupKindError, match=remedy) as refused:
            change()
        assert refused.value.members == {"group": name, "source": source}
    assert (tried.group.source, tried.position(0)) == (source, 12)
    tried.apply(tried.group.delete())
    assert tried.group.source is None


def test_a_name_of_spark_takes_no_consumer_before_it_has_published() -> None:
    tried = Tried(ONE, "spark:archive")

    with pytest.raises(GroupKindError, match="Spark's checkpoint"):
        tried.join("a")

    assert tried.group.members == {}


def test_a_reader_does_not_write_over_what_consumers_have_confirmed() -> None:
    tried = Tried(ONE)
    tried.join("a")
    tried.begin("a", tried.poll("a", ends={0: 5}))
    tried.leave("a")

    with pytest.raises(GroupKindError, match="choose another groupId") as refused:
        tried.group.publish("spark", {place_of(0): 12})

    assert refused.value.members == {"group": "g"}
    assert (tried.group.source, tried.position(0)) == (None, 5)


def test_a_name_of_spark_that_consumers_had_taken_is_published_again() -> None:
    tried = Tried(ONE, "spark:archive")
    subscription = Subscription("a", "spark:archive", ("t",))
    tried.apply(Joined(subscription, 1, {ID: {0: 3}}))
    tried.leave("a")

    tried.apply(tried.group.publish("spark", {place_of(0): 12}))

    assert (tried.group.source, tried.position(0)) == ("spark", 12)


def test_a_deleted_group_begins_again() -> None:
    tried = Tried(ONE)
    tried.join("a")
    tried.group.fit(place_of(0), 30, 100)
    tried.leave("a")

    tried.apply(tried.group.delete())

    assert tried.group.stored == {}
    assert tried.group.lost == 0
    tried.join("a", on_new_group="startFromLatest")
    assert tried.starts("a") == {0: (100, None)}


def test_a_snapshot_is_all_that_a_start_needs() -> None:
    tried = Tried()
    tried.join("a", "b")
    tried.leave("b")
    number = tried.poll("a", ends={0: 5})
    assert number is not None
    tried.begin("a", number)
    tried.apply(Committed({ID: {0: 5}, UUID(int=9): {0: 1}}, 3, {"a": number, "b": 1}))
    before = tried.group.snapshot({UUID(int=9)})

    tried.events = [Committed({ID: {0: 77}}, 99), before, Left("nobody", 9, "goodbye")]
    restarted = tried.restarted()

    assert before == GroupSnapshot(
        3, ((tried.subscription("a"), 1),), {ID: {0: 5, 1: 0}}, lost=3, confirmed={"a": number}
    )
    assert restarted.snapshot() == before
    assert restarted.positions == {place_of(0): 5, place_of(1): 0}
    restarted.lost += 1
    assert restarted.uncommitted() == Committed({}, 4)  # no reset is under way
