"""Who reads which partition, case by case; in general: test_assignment_properties."""

from collections import Counter
from uuid import UUID

from tailrace_broker.core.groups.assignment import assign
from tailrace_broker.model.group import TopicPartition


def places_of(topic: int, partition_count: int) -> list[TopicPartition]:
    return [TopicPartition(UUID(int=topic), partition) for partition in range(partition_count)]


def test_a_chain_of_topics_is_evened_out() -> None:
    """What a gives to b, b gives to c."""
    topics = {"t": places_of(1, 9), "u": places_of(2, 3)}
    before = dict.fromkeys(topics["t"], "a") | dict.fromkeys(topics["u"], "b")

    owners = assign(topics, {"a": {"t"}, "b": {"t", "u"}, "c": {"u"}}, before)

    assert Counter(owners.values()) == {"a": 5, "b": 4, "c": 3}


def test_many_consumers_share_many_partitions() -> None:
    """Also when one has had all of them."""
    topics = {"t": places_of(1, 2000)}
    subscriptions = {f"c{number}": {"t"} for number in range(200)}

    for before in ({}, dict.fromkeys(topics["t"], "c0")):
        owners = assign(topics, subscriptions, before)

        assert {*Counter(owners.values()).values()} == {10}


def test_a_partition_stays_while_another_that_nobody_had_can_move() -> None:
    """What is above the fair share moves first, else some move that need not."""
    (t0, t1), (u0, u1, u2) = places_of(1, 2), places_of(2, 3)
    subscriptions = {"a": {"t", "u"}, "b": {"t", "u"}, "c": {"t"}}

    owners = assign({"t": [t0, t1], "u": [u0, u1, u2]}, subscriptions, {t0: "b", u1: "c"})

    assert owners == {t0: "b", t1: "c", u0: "a", u1: "b", u2: "a"}
