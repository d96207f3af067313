"""Groups of whose topics retention has taken whole partitions."""

from msgspec.structs import replace

from tailrace_broker.model.group import Confirmation
from tailrace_broker.model.topic import Topic
from tests.support.groups.tried_group import Tried, partition_of, place_of, topic_of

LINEAGE = topic_of(partition_of(0, sealed=100), partition_of(1, 0, first=100))


def without_first() -> Topic:
    """The topic when its first partition, which ended at 100, is gone."""
    return replace(LINEAGE, partitions=LINEAGE.partitions[1:], gone_ends={0: 100})


def behind() -> Tried:
    """A group of one consumer that has dealt with 60 records of the first partition."""
    tried = Tried(LINEAGE)
    tried.logs = {place_of(0): (0, 100), place_of(1): (100, 200)}
    tried.join("a")
    tried.begin("a", tried.poll("a", ends={0: 60}))
    return tried


def store(tried: Tried) -> None:
    """What the coordinator does now and then."""
    event = tried.group.uncommitted()
    assert event is not None
    tried.apply(event)


def test_what_was_not_read_of_a_partition_that_is_gone_is_lost_and_counted() -> None:
    tried = behind()

    tried.topic = without_first()
    assert tried.rebalance()

    assert tried.group.lost == 40
    assert tried.starts("a") == {1: (100, None)}


def test_a_position_there_is_forgotten_once_its_end_is_stored() -> None:
    tried = behind()
    tried.topic = without_first()
    tried.rebalance()
    tried.rebalance()
    assert tried.group.positions[place_of(0)] == 100

    store(tried)

    assert place_of(0) not in tried.group.positions
    assert place_of(0) not in tried.group.stored
    assert tried.group.lost == 40
    again = tried.restarted()
    assert again.lost == 40


def test_where_a_partition_ended_that_went_before_a_start_nobody_knows() -> None:
    """Its coordinator has begun since."""
    tried = behind()
    store(tried)
    tried.group = tried.restarted()
    tried.topic = replace(without_first(), gone_ends={})

    tried.rebalance()

    assert place_of(0) not in tried.group.positions
    assert tried.group.lost == 0


def emptied() -> Topic:
    """The topic when retention has removed all of its first partition, which has not left yet."""
    first, second = LINEAGE.partitions
    return replace(LINEAGE, partitions=(replace(first, log_start=100), second))


def test_what_a_group_without_consumers_had_not_read_is_lost_and_counted() -> None:
    tried = behind()
    tried.group.confirm("a", Confirmation(), 0)
    tried.leave("a")

    tried.group.follow([emptied()])

    tried.group.validate()
    assert tried.group.lost == 40
    assert tried.group.positions[place_of(0)] == 100


def test_partitions_that_come_and_go_without_consumers_are_counted() -> None:
    tried = behind()
    tried.group.confirm("a", Confirmation(), 0)
    tried.leave("a")
    middle = topic_of(
        partition_of(0, sealed=100), partition_of(1, 0, first=100, sealed=170), partition_of(2, 1)
    )
    first, second, third = middle.partitions

    tried.group.follow([middle])
    tried.group.follow([replace(middle, partitions=(first, replace(second, log_start=170), third))])
    store(tried)
    tried.group.follow([replace(middle, partitions=(first, third))])

    tried.group.validate()
    assert tried.group.lost == 70
    assert place_of(1) not in tried.group.positions
    assert tried.group.positions[place_of(0)] == 60


def test_a_coordinator_that_starts_when_a_partition_is_about_to_leave_counts() -> None:
    tried = behind()
    tried.group.confirm("a", Confirmation(), 0)
    store(tried)
    tried.group = tried.restarted()

    tried.topic = emptied()
    tried.rebalance()

    assert tried.group.lost == 40


def test_an_open_delivery_ends_with_the_records_of_its_partition() -> None:
    tried = behind()
    assert tried.poll("a", ends={0: 90}) is not None

    tried.topic = emptied()
    tried.rebalance()

    assert tried.starts("a") == {1: (100, None)}
    assert tried.group.lost == 40


def test_topics_that_a_group_does_not_know_are_not_followed() -> None:
    tried = Tried(LINEAGE)

    tried.group.follow([emptied()])

    assert tried.group.positions == {}
    assert tried.group.lost == 0


def test_the_positions_of_a_reader_are_its_own() -> None:
    tried = Tried(LINEAGE, name="spark:q")
    tried.group.apply(tried.group.publish("spark", {place_of(0): 60}), 0)

    tried.group.follow([emptied()])

    assert tried.group.positions == {place_of(0): 60}
    assert tried.group.lost == 0


def test_a_delivery_of_a_partition_that_is_gone_is_not_asked_for_again() -> None:
    tried = behind()
    assert tried.poll("a", ends={0: 90}) is not None
    tried.topic = without_first()

    tried.rebalance()

    tried.group.validate()
    assert tried.starts("a") == {1: (100, None)}


def test_a_group_that_had_only_partitions_that_are_gone_keeps_its_place() -> None:
    tried = behind()
    store(tried)
    tried.leave("a")
    later = topic_of(partition_of(2, 1, first=200), partition_of(3, 1, first=200))
    tried.topic = replace(later, gone_ends={0: 100, 1: 200})
    tried.logs = {place_of(2): (200, 500), place_of(3): (200, 500)}

    tried.join("a", on_new_group="startFromLatest")

    assert tried.starts("a") == {2: (200, None), 3: (200, None)}


def test_a_new_group_has_not_lost_what_was_removed_before_it_came() -> None:
    """Nobody says where the copy here begins: it is damaged."""
    first, second = LINEAGE.partitions
    tried = Tried(replace(LINEAGE, partitions=(replace(first, log_start=50), second)))
    del tried.logs[place_of(0)]

    tried.join("a")

    assert tried.group.positions[place_of(0)] == 50
