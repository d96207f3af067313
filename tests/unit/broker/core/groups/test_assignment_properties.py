"""What holds of an assignment, whatever topics, consumers and owners there were before."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.core.groups.assignment import assign
from tailrace_broker.model.group import TopicPartition

TOPICS = ["t", "u", "v"]
CONSUMERS = [f"c{number}" for number in range(8)]

Subscriptions = Mapping[str, frozenset[str]]


class Case(NamedTuple):
    """Topics and who subscribes to them."""

    tps: Mapping[str, Sequence[TopicPartition]]
    subscriptions: Subscriptions

    def assigned(self, owners: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        return assign(self.tps, self.subscriptions, owners)

    def takers(self, tp: TopicPartition) -> set[str]:
        return {
            consumer
            for consumer, topics in self.subscriptions.items()
            if any(tp in self.tps[topic] for topic in topics)
        }


@st.composite
def cases(draw: st.DrawFn) -> Case:
    counts = draw(st.lists(st.integers(0, 12), min_size=len(TOPICS), max_size=len(TOPICS)))
    tps = {
        topic: [TopicPartition(UUID(int=number), partition) for partition in range(count)]
        for number, (topic, count) in enumerate(zip(TOPICS, counts, strict=True))
    }
    topics = st.frozensets(st.sampled_from(TOPICS))
    return Case(tps, draw(st.dictionaries(st.sampled_from(CONSUMERS), topics)))


@st.composite
def owned(draw: st.DrawFn) -> tuple[Case, dict[TopicPartition, str]]:
    """A case, with any owners of before: some are gone, some do not subscribe any more."""
    case = draw(cases())
    owners = st.none() | st.sampled_from(CONSUMERS)
    drawn = {tp: draw(owners) for tps in case.tps.values() for tp in tps}
    return case, {tp: owner for tp, owner in drawn.items() if owner is not None}


@given(owned())
def test_each_partition_that_somebody_wants_has_one_owner_who_wants_it(
    drawn: tuple[Case, dict[TopicPartition, str]],
) -> None:
    case, before = drawn
    owners = case.assigned(before)

    for tp in (tp for tps in case.tps.values() for tp in tps):
        takers = case.takers(tp)
        assert owners.get(tp) in takers or (tp not in owners and not takers)


@given(owned())
def test_consumers_of_the_same_topics_differ_by_one_at_most(
    drawn: tuple[Case, dict[TopicPartition, str]],
) -> None:
    case, before = drawn
    loads = Counter(case.assigned(before).values())

    for first, topics in case.subscriptions.items():
        for second in case.subscriptions:
            if case.subscriptions[second] == topics:
                assert abs(loads[first] - loads[second]) <= 1


@given(owned())
def test_nobody_has_two_more_than_one_who_could_take_one(
    drawn: tuple[Case, dict[TopicPartition, str]],
) -> None:
    case, before = drawn
    owners = case.assigned(before)
    loads = Counter(owners.values())

    for tp, owner in owners.items():
        assert all(loads[owner] <= loads[taker] + 1 for taker in case.takers(tp))


@given(owned())
def test_an_assignment_that_holds_is_kept(drawn: tuple[Case, dict[TopicPartition, str]]) -> None:
    case, before = drawn
    owners = case.assigned(before)

    assert case.assigned(owners) == owners


@given(st.integers(0, 40), st.integers(1, 7))
def test_only_what_a_new_consumer_takes_moves(place_count: int, consumer_count: int) -> None:
    tps = {"t": [TopicPartition(UUID(int=1), partition) for partition in range(place_count)]}
    subscriptions = dict.fromkeys(CONSUMERS[:consumer_count], frozenset({"t"}))
    before = assign(tps, subscriptions, {})

    owners = assign(tps, subscriptions | {"a": frozenset({"t"})}, before)

    assert all(owner in (before[tp], "a") for tp, owner in owners.items())


@given(st.integers(0, 40), st.integers(2, 8), st.integers(0, 7))
def test_only_what_a_consumer_leaves_behind_moves(
    place_count: int, consumer_count: int, leaver_index: int
) -> None:
    tps = {"t": [TopicPartition(UUID(int=1), partition) for partition in range(place_count)]}
    subscriptions = dict.fromkeys(CONSUMERS[:consumer_count], frozenset({"t"}))
    before = assign(tps, subscriptions, {})
    leaver = CONSUMERS[leaver_index % consumer_count]
    del subscriptions[leaver]

    owners = assign(tps, subscriptions, before)

    assert all(owners[tp] == owner for tp, owner in before.items() if owner != leaver)
