"""Which of its parents had a token of a partition."""

from uuid import UUID

from tailrace_broker.core.log.derived_ids import derived_id
from tailrace_broker.core.ring.origins import Origins, origins_of
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tests.support.ring.states import led, stepped, with_topic

ID = b"p" * 16


def topic(*partitions: Partition) -> Topic:
    return Topic("t", UUID(int=1), TopicSettings(), partitions)


def part(number: int, start: int, end: int, *parents: int) -> Partition:
    return Partition(number, number, 1, start, end, parents=parents)


def test_a_topic_without_joined_partitions_has_no_origins() -> None:
    split = topic(part(0, 0, 100), part(1, 0, 50, 0), part(2, 50, 100, 0))

    assert origins_of(split) == {}


def test_a_token_has_come_from_the_parent_that_had_it() -> None:
    joined = topic(part(0, 0, 40), part(1, 40, 100), part(2, 0, 100, 0, 1))

    found = origins_of(joined)

    assert found == {2: Origins((0, 40), ((0,), (1,)))}
    assert [found[2].of(token) for token in (0, 39, 40, 99)] == [(0,), (0,), (1,), (1,)]


def test_what_has_come_the_same_way_is_one_piece_and_goes_on_in_children() -> None:
    lineage = topic(
        part(0, 0, 40),
        part(1, 40, 100),
        part(2, 0, 100, 0, 1),
        part(3, 0, 30, 2),
        part(4, 30, 100, 2),
        part(5, 0, 100, 3, 4),
        part(6, 0, 20, 0),  # nothing in common with the others
    )

    found = origins_of(lineage)

    assert found[3] == Origins((0,), ((0,),))
    assert found[4] == Origins((30, 40), ((0,), (1,)))
    assert found[5] == Origins((0, 30, 40), ((0, 3), (0, 4), (1, 4)))
    assert 6 not in found


def test_a_ring_that_grows_and_shrinks_gives_each_token_one_origin() -> None:
    state = with_topic(led(3, 1, registered=1), partitions=3)
    state = stepped(stepped(state), "shrink")
    partitions = topic_of(state, state.topics["orders"]).partitions

    found = origins_of(topic(*partitions))

    assert found
    for number, origins in found.items():
        assert origins.starts[0] == partitions[number].token_start
        assert [*origins.starts] == sorted(origins.starts)
        for start, links in zip(origins.starts, origins.links, strict=True):
            parent = partitions[links[-1]]
            assert parent.token_start <= start < parent.token_end


def test_an_id_names_the_way_it_has_come() -> None:
    assert derived_id(ID, ()) == ID
    assert derived_id(derived_id(ID, (1,)), (2,)) == derived_id(ID, (1, 2))
    assert len({ID, derived_id(ID, (1,)), derived_id(ID, (2,)), derived_id(ID, (1, 2))}) == 4


def test_tokens_that_no_parent_had_came_from_the_one_that_is_gone() -> None:
    left = topic(part(1, 5, 10), part(2, 0, 10, 0, 1))

    assert origins_of(left) == {2: Origins((0, 5), ((0,), (1,)))}


def test_of_parents_that_are_all_gone_nothing_is_known() -> None:
    assert origins_of(topic(part(2, 0, 10, 0, 1))) == {}


def test_what_came_through_a_later_parent_is_known_by_that() -> None:
    """A parent before one that is gone may have had tokens of another parent, too."""
    left = topic(part(0, 0, 10), part(2, 5, 10, 0), part(3, 0, 10, 1, 2, 0))

    assert origins_of(left) == {3: Origins((0, 5), ((0,), (2,)))}


def test_who_came_through_an_only_parent_keeps_his_name_when_it_is_gone() -> None:
    """What was before it is left: its parent, which had all of the tokens."""
    before = topic(part(0, 0, 20), part(1, 0, 10, 0), part(2, 0, 10, 1))
    left = topic(part(0, 0, 20), part(2, 0, 10, 1, 0))

    assert origins_of(left) == origins_of(before) == {}
