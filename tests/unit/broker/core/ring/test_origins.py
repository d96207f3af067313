"""Which part of a request is which, in partitions that follow several others."""

from itertools import pairwise, product
from uuid import UUID

import pytest

from tailrace_broker.codec.ring_snapshot import decode_state, encode_state
from tailrace_broker.core.log.derived_ids import derived_id
from tailrace_broker.core.ring.origins import NO_MASK, masks_between, origins_of
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.commands import AlterTopic, TrimSealed
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tests.support.ring.checks import check_state
from tests.support.ring.states import done, led, resliced, stepped, with_topic

ID = b"p" * 16


def topic(*partitions: Partition) -> Topic:
    return Topic("t", UUID(int=1), TopicSettings(), partitions)


def part(number: int, start: int, end: int, *cuts: int) -> Partition:
    return Partition(number, number, 1, start, end, cuts=cuts)


def topic_in(state: RingState) -> Topic:
    return topic_of(state, state.topics["orders"])


def joined(slices: int = 1) -> RingState:
    """A ring of four that has become one of three."""
    return stepped(with_topic(led(4), partitions=slices), "shrink")


def test_partitions_that_never_met_know_producers_as_they_are() -> None:
    state = stepped(with_topic(led(registered=1)))

    assert origins_of(topic_in(state)) == {}
    assert derived_id(ID, NO_MASK) == ID


def test_a_child_is_cut_where_its_parents_met() -> None:
    partitions = topic_in(joined()).partitions
    [child] = [each for each in partitions if len(each.parents) > 1]
    first, second = sorted(
        (each for each in partitions if each.partition in child.parents),
        key=lambda each: each.token_start,
    )

    assert child.cuts == (second.token_start,)
    found = origins_of(topic_in(joined()))[child.partition]
    assert found.starts == (first.token_start, second.token_start)
    assert len({NO_MASK, *found.masks}) == 3
    assert found.of(second.token_start - 1) == found.masks[0]
    assert found.of(second.token_start) == found.masks[1]


def test_an_id_stays_what_it_is_when_the_parents_leave() -> None:
    """Else a request that is repeated over that moment is stored twice."""
    state = joined()
    before = origins_of(topic_in(state))
    assert before
    for each in [each for each in topic_in(state).partitions if each.is_sealed]:
        assert each.sealed_end is not None
        ordinal = state.ranges[each.range_id].complete[0]
        number, topic_id = state.brokers[ordinal].number, topic_in(state).topic_id
        command = TrimSealed(each.range_id, ordinal, number, {topic_id: (each.sealed_end,)})
        state = done(state, command, command)

    assert not any(each.is_sealed for each in topic_in(state).partitions)
    assert origins_of(topic_in(state)) == before
    assert decode_state(encode_state(state)) == state


def test_a_split_where_the_parents_had_met_leaves_whole_children() -> None:
    state = stepped(joined())

    opened = [each for each in topic_in(state).partitions if not each.is_sealed]
    assert [each.cuts for each in opened] == [()] * len(opened)


def test_cuts_of_parents_are_cuts_of_their_children() -> None:
    state = with_topic(led(registered=1), partitions=3)
    for slices in (2, 5, 3):
        state = resliced(done(state, AlterTopic("orders", {"partitionsPerRange": slices})))
    check_state(state)
    partitions = topic_in(state).partitions
    for child in partitions:
        for parent in (each for each in partitions if each.partition in child.parents):
            ends = parent.token_start, *parent.cuts
            assert {each for each in ends if child.token_start < each < child.token_end} <= {
                *child.cuts
            }


def test_what_an_ancestor_has_is_found_in_its_piece_and_in_no_other() -> None:
    ancestor = part(1, 0, 100, 30, 60)
    child = part(7, 20, 120, 30, 60, 100)
    pieces = [(*bounds,) for bounds in pairwise((20, 30, 60, 100))]
    old, new = origins_of(topic(ancestor))[1], origins_of(topic(child))[7]
    known = {
        derived_id(derived_id(ID, of_old), mask): number
        for (number, of_old), mask in product(enumerate(old.masks), masks_between(ancestor, child))
    }

    for number, (start, _) in enumerate(pieces):
        assert known[derived_id(ID, new.of(start))] == number
    assert derived_id(ID, new.of(100)) not in known
    assert ID not in known


@pytest.mark.parametrize(
    ("ancestor", "child", "count"),
    [
        (part(1, 0, 100), part(2, 0, 50), 1),
        (part(1, 0, 50), part(2, 0, 100, 50), 1),
        (part(1, 0, 100, 50), part(2, 50, 100), 1),
        (part(1, 0, 50), part(2, 50, 100), 0),
    ],
)
def test_masks_are_those_of_what_both_have(
    ancestor: Partition, child: Partition, count: int
) -> None:
    assert len(masks_between(ancestor, child)) == count
