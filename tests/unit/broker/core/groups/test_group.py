"""A consumer group, case by case; in any order: test_group_properties."""

from itertools import count

import pytest

from tailrace_broker.core.groups.group import Group
from tailrace_broker.model.errors import (
    ConsumerExistsError,
    ConsumerNotRegisteredError,
    StaleAssignmentError,
    StaleDeliveryError,
)
from tailrace_broker.model.group import (
    Committed,
    Confirmation,
)
from tests.support.groups.tried_group import (
    BOOT,
    FIRST_NUMBER,
    ID,
    ONE,
    Tried,
    partition_of,
    place_of,
    topic_of,
)

# --- deliveries ---


def test_a_poll_that_names_the_delivery_confirms_it() -> None:
    tried = Tried()
    tried.join("a")
    number = tried.poll("a", ends={0: 5, 1: 3})

    tried.begin("a", number)

    assert number == FIRST_NUMBER
    assert tried.starts("a") == {0: (5, None), 1: (3, None)}


def test_a_poll_that_names_none_confirms_what_came_last() -> None:
    tried = Tried()
    tried.join("a")
    tried.poll("a", ends={0: 5})

    tried.begin("a", None)

    assert tried.position(0) == 5


@pytest.mark.parametrize("named", [0, FIRST_NUMBER - 1, FIRST_NUMBER + 1])
def test_a_poll_that_names_another_delivery_gets_the_same_again(named: int) -> None:
    tried = Tried()
    tried.join("a")
    number = tried.poll("a", ends={0: 5, 1: 3})

    again = tried.poll("a", named, ends={0: 5, 1: 3})

    assert number == again
    assert tried.starts("a") == {0: (0, 5), 1: (0, 3)}


@pytest.mark.parametrize("ends", [{0: 6}, {0: 5, 1: 1}])
def test_records_that_are_new_are_no_part_of_what_comes_again(ends: dict[int, int]) -> None:
    tried = Tried()
    tried.join("a")
    tried.poll("a", ends={0: 5})
    poll_number = tried.begin("a")

    ranges = {place_of(partition): (0, end) for partition, end in ends.items()}

    assert tried.group.deliver("a", poll_number, ranges) is None
    assert tried.group.deliver("a", poll_number, {place_of(0): (1, 5)}) is None


def test_what_cannot_be_read_again_is_delivered_later() -> None:
    tried = Tried()
    tried.join("a")
    number = tried.poll("a", ends={0: 5, 1: 3})

    again = tried.poll("a", ends={1: 2})
    tried.begin("a", again)

    assert number == again
    assert tried.starts("a") == {0: (0, None), 1: (2, None)}


def test_an_answer_of_an_older_poll_is_not_sent() -> None:
    tried = Tried()
    tried.join("a")
    poll_number = tried.begin("a")
    tried.begin("a")

    assert tried.group.deliver("a", poll_number, {place_of(0): (0, 5)}) is None


def test_an_answer_without_records_is_no_delivery() -> None:
    tried = Tried()
    tried.join("a")

    assert tried.poll("a", ends={}) is None


def test_a_poll_of_a_consumer_that_had_the_id_before_is_not_answered() -> None:
    tried = Tried()
    tried.join("a")
    poll_number = tried.begin("a")
    tried.leave("a")

    gone = tried.group.deliver("a", poll_number, {place_of(0): (0, 5)})
    tried.join("a")
    tried.begin("a")
    back = tried.group.deliver("a", poll_number, {place_of(0): (0, 5)})

    assert (gone, back) == (None, None)


def test_what_was_read_before_the_position_moved_is_not_sent() -> None:
    """As after a partition went to another consumer and back, while a poll read slowly."""
    tried = Tried(ONE)
    tried.join("a")
    poll_number = tried.begin("a")
    tried.group.fit(place_of(0), 3, 100)

    assert tried.group.deliver("a", poll_number, {place_of(0): (0, 5)}) is None


def test_what_became_another_consumers_meanwhile_is_not_sent() -> None:
    tried = Tried()
    tried.join("a")
    poll_number = tried.begin("a")
    tried.join("b")
    (moved,) = tried.starts("b")

    assert tried.group.deliver("a", poll_number, {place_of(moved): (0, 5)}) is None


def test_what_another_consumer_holds_by_now_is_not_sent() -> None:
    """It was another's for a moment, and is this one's again."""
    tried = Tried()
    tried.join("a", "b")
    poll_number = tried.begin("a")
    (tp,) = (range_.tp for range_ in tried.group.fetch_ranges("a", {"t": tried.topic}))

    tried.group.owners[tp] = "b"
    assert tried.group.deliver("b", tried.begin("b"), {tp: (0, 5)}) is not None
    tried.group.owners[tp] = "a"

    assert tried.group.deliver("a", poll_number, {tp: (0, 5)}) is None


def test_a_withdrawn_delivery_is_not_confirmed() -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 5})
    assert number is not None
    poll_number = tried.group.members["a"].poll_number

    tried.group.withdraw("a", poll_number, number + 1)
    tried.group.withdraw("nobody", poll_number, number)
    assert tried.starts("a") == {0: (0, 5)}
    tried.group.withdraw("a", poll_number, number)
    tried.group.withdraw("a", poll_number, number)
    tried.begin("a", None)

    assert tried.position(0) == 0


def test_a_delivery_that_was_asked_for_again_is_not_withdrawn_by_the_first_answer() -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 5})
    assert number is not None
    first_turn = tried.group.members["a"].poll_number
    tried.begin("a")

    tried.group.withdraw("a", first_turn, number)

    assert tried.starts("a") == {0: (0, 5)}


def test_no_number_is_used_twice_by_the_groups_of_a_coordinator() -> None:
    """A consumer that has come from another group may name what it got there."""
    numbers = count(1)
    deliveries = set()
    for name in ("g1", "g2"):
        tried = Tried(ONE)
        tried.group = Group(name, BOOT, numbers)
        tried.join("a")
        deliveries.add(tried.poll("a", ends={0: 5}))

    assert len(deliveries) == 2


# --- commits ---


@pytest.mark.parametrize("is_named", [True, False])
def test_a_commit_confirms_and_can_be_repeated(is_named: bool) -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 5})

    for _ in range(2):
        tried.group.confirm("a", Confirmation(number if is_named else None), 0)

    assert tried.position(0) == 5


def test_a_commit_of_nothing_confirms_nothing() -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 5})
    tried.poll("a", number, ends={0: 8})

    tried.group.confirm("a", Confirmation(0), 0)

    assert tried.position(0) == 5


def test_a_commit_of_another_delivery_is_refused() -> None:
    tried = Tried(ONE)
    tried.join("a")
    first = tried.poll("a", ends={0: 5})
    assert first is not None
    tried.poll("a", first, ends={0: 8})

    tried.group.confirm("a", Confirmation(first), 0)
    for named, coordinator_changed in ((first + 99, False), (first - (1 << 40), True)):
        with pytest.raises(StaleDeliveryError, match="nothing was committed") as refused:
            tried.group.confirm("a", Confirmation(named), 0)
        assert refused.value.members == {
            "delivery": named,
            "coordinatorChanged": coordinator_changed,
        }

    assert tried.position(0) == 5


def test_a_commit_that_is_repeated_at_the_next_coordinator_is_done_already() -> None:
    tried = Tried(ONE)
    tried.join("a", "b")
    first = tried.poll("a", ends={0: 5})
    assert first is not None
    tried.group.confirm("a", Confirmation(first), 0)
    committed = tried.group.uncommitted()
    assert committed is not None
    tried.apply(committed)
    second = tried.poll("a", first, ends={0: 8})
    assert second is not None
    tried.group.confirm("a", Confirmation(second), 0)  # which is not stored

    restarted = tried.restarted()
    restarted.confirm("a", Confirmation(first), 0)
    with pytest.raises(StaleDeliveryError):
        restarted.confirm("a", Confirmation(second), 0)
    with pytest.raises(StaleDeliveryError):
        restarted.confirm("b", Confirmation(first), 0)

    assert restarted.positions == {place_of(0): 5}
    assert restarted.uncommitted() is None


def test_who_registers_again_has_confirmed_nothing() -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 5})
    tried.begin("a", number)
    committed = tried.group.uncommitted()
    assert committed is not None
    tried.leave("a")
    tried.apply(committed)  # was on its way
    tried.join("a")

    with pytest.raises(StaleDeliveryError):
        tried.restarted().confirm("a", Confirmation(number), 0)


def test_positions_that_are_not_stored_are_reported_until_they_are() -> None:
    tried = Tried(ONE)
    tried.join("a")
    number = tried.poll("a", ends={0: 5})
    assert number is not None
    tried.begin("a", number)

    committed = tried.group.uncommitted()
    assert committed == Committed({ID: {0: 5}}, 0, {"a": number})
    tried.apply(committed)

    assert tried.group.uncommitted() is None
    assert tried.restarted().positions == {place_of(0): 5}


def test_a_commit_that_is_stored_late_takes_nothing_back() -> None:
    tried = Tried(ONE)
    tried.join("a")
    first = tried.poll("a", ends={0: 5})
    second = tried.poll("a", first, ends={0: 8})
    assert second is not None
    committed = tried.group.uncommitted()
    assert committed is not None
    tried.begin("a", second)

    tried.apply(committed)

    assert tried.position(0) == 8
    assert tried.group.uncommitted() == Committed({ID: {0: 8}}, 0, {"a": second})


# --- consumers come and go ---


def test_a_consumer_that_registers_again_is_the_same_and_is_there() -> None:
    tried = Tried(ONE)
    tried.join("a")

    again = tried.group.join(tried.subscription("a"), {"t": ONE}, tried.logs, 500_000)

    assert again is None
    assert tried.group.next_expiry_us() == 1_500_000


def test_an_id_is_one_consumers() -> None:
    tried = Tried(ONE)
    tried.join("a")

    with pytest.raises(ConsumerExistsError, match="other values"):
        tried.group.join(tried.subscription("a", "t", "u"), {"t": ONE}, tried.logs, 0)


def test_who_is_not_registered_is_asked_to_register() -> None:
    tried = Tried(ONE)

    with pytest.raises(ConsumerNotRegisteredError, match="register, then poll again"):
        tried.begin("a")
    with pytest.raises(ConsumerNotRegisteredError):
        tried.group.leave("a", "goodbye")


def test_who_is_not_seen_for_its_session_is_removed() -> None:
    tried = Tried(ONE)
    tried.join("a", "b")
    tried.group.touch("b", 1)

    assert tried.group.expired(999_999) == []
    assert tried.group.expired(1_000_000) == ["a"]
    assert tried.group.next_expiry_us() == 1_000_000
    assert Group("g", BOOT).next_expiry_us() is None


def test_a_process_whose_id_another_has_taken_is_reported() -> None:
    tried = Tried(ONE)
    tried.join("a")
    tried.leave("a")
    tried.join("a")

    with pytest.raises(StaleAssignmentError, match="another process has taken its id"):
        tried.begin("a", epoch=1)
    tried.begin("a", epoch=3)


def test_a_partition_moves_when_it_is_confirmed() -> None:
    tried = Tried()
    tried.join("a")
    number = tried.poll("a", ends={0: 5, 1: 3})

    tried.join("b")
    held, had_freed = tried.starts("b"), tried.group.has_freed
    tried.begin("a", number)

    assert (held, had_freed, tried.group.has_freed) == ({}, False, True)
    assert len(tried.starts("a")) == len(tried.starts("b")) == 1


def test_what_a_consumer_confirms_and_keeps_wakes_no_other() -> None:
    tried = Tried()
    tried.join("a")
    number = tried.poll("a", ends={0: 5, 1: 3})
    tried.begin("a", number)

    assert not tried.group.has_freed


def test_a_partition_moves_when_its_consumer_is_removed() -> None:
    tried = Tried(ONE)
    tried.join("a", "b")
    tried.poll("a", ends={0: 5})
    assert (tried.group.is_owner("a"), tried.group.is_owner("b")) == (True, False)

    tried.leave("a")

    assert tried.starts("b") == {0: (0, None)}


def test_two_that_register_at_once_are_both_registered() -> None:
    """Each was decided before the other was stored: the first says where the group starts."""
    tried = Tried()
    latest = tried.decide_join("a", on_new_group="startFromLatest")
    earliest = tried.decide_join("b", on_new_group="startFromEarliest")

    tried.apply(latest)
    epoch = tried.group.epoch
    tried.apply(earliest)

    assert tried.group.epoch > epoch
    assert [tried.position(0), tried.position(1)] == [100, 100]
    assert len(tried.starts("a")) == len(tried.starts("b")) == 1
    assert tried.restarted().positions == tried.group.positions


def test_one_id_that_is_registered_twice_at_once_is_the_firsts() -> None:
    tried = Tried(ONE)
    first, second = tried.decide_join("a"), tried.decide_join("a")

    tried.apply(first)
    tried.poll("a", ends={0: 5})
    tried.apply(second)

    assert tried.group.epoch == 1
    assert tried.starts("a") == {0: (0, 5)}


def test_children_that_came_between_two_registrations_are_read_from_their_starts() -> None:
    tried = Tried(ONE)
    first = tried.decide_join("a", on_new_group="startFromLatest")
    tried.topic = topic_of(partition_of(0, sealed=100), partition_of(1, 0, first=100))
    tried.logs = {place_of(0): (0, 100), place_of(1): (100, 150)}
    second = tried.decide_join("b", on_new_group="startFromLatest")

    tried.apply(first)
    tried.apply(second)

    assert [tried.position(0), tried.position(1)] == [100, 100]
    assert tried.restarted().positions == {place_of(0): 100}


def test_a_consumer_that_leaves_twice_leaves_once() -> None:
    tried = Tried(ONE)
    tried.join("a", "b")
    left = tried.group.leave("a", "goodbye")

    tried.apply(left)
    epoch = tried.group.epoch
    tried.apply(left)

    assert tried.group.epoch == epoch
    assert list(tried.group.members) == ["b"]


def test_a_removal_that_is_stored_late_spares_who_has_come_back() -> None:
    tried = Tried(ONE)
    tried.join("a")
    late = tried.group.leave("a", "expired")
    tried.leave("a")
    tried.join("a")

    tried.apply(late)

    assert list(tried.group.members) == ["a"]
