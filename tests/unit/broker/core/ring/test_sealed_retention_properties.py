"""Sealed partitions leave in any order while rings grow, shrink, and re-slice their ranges."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_broker.codec.ring_snapshot import decode_state, encode_state
from tailrace_broker.core.node.reslicing import Reslicing
from tailrace_broker.core.ring.sealed_retention import decider_of, decision
from tailrace_broker.core.ring.topics import ids_of, slices_in, topic_of
from tailrace_broker.model.commands import AlterTopic, InheritedAll, Sealed
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, Replica, RingState
from tailrace_broker.model.topic import Topic, slices_of
from tests.support.ring.states import begin, done, led, with_topic

STEPS = 40
BROKERS_MAX = 5
PAUSE_MS = 100_000  # after which a re-slice is asked for again


def seal_all(state: RingState, chance: Random) -> RingState:
    """The open step is done; some partitions have got no record."""
    step = state.step
    assert step is not None
    prepared = tuple(Replica(ordinal, each.number) for ordinal, each in state.brokers.items())
    for range_id in step.parents:
        ends = {
            topic_id: tuple(
                first + chance.choice((0, 0, 1, 7))
                for first in slices.first_offsets or (0,) * len(slices.starts)
            )
            for topic_id, slices in slices_in(state, range_id).items()
        }
        epoch = state.ranges[range_id].epoch
        state = done(state, Sealed(step.id, range_id, epoch, ends, prepared))
    return state


def trim(state: RingState, held: RangeState, chance: Random | None) -> RingState:
    """Its log starts move; without chance all of it goes."""
    topics = {each.id: topic_of(state, each) for each in state.topics.values()}

    def start_of(key: LogKey) -> int | None:
        partition = topics[key.topic_id].at(key.partition)
        end = partition.sealed_end
        assert end is not None
        return chance.choice((None, partition.first_offset, end, end, end)) if chance else end

    ordinal = decider_of(state, held)
    assert ordinal is not None
    command = decision(state, held, state.brokers[ordinal], start_of, lambda _: True)
    return state if command is None else done(state, command)


def inherit(state: RingState, partition: int) -> RingState:
    return done(state, InheritedAll(state.topics["__groups"].id, partition))


def check_order(topic: Topic) -> None:
    """Whoever follows children comes from each partition to all that had its tokens later."""
    places = slices_of(topic)
    reached: dict[int, set[int]] = {}
    for one in reversed(topic.partitions):
        children = reached[one.partition] = {*one.children}
        for child in one.children:
            children |= reached[child]
        for later in topic.partitions:
            is_of_range = later.range_id == one.range_id
            shares = later.token_start < one.token_end and one.token_start < later.token_end
            if later.partition > one.partition and shares and not is_of_range:
                assert later.partition in children, (one, later)
            assert not is_of_range or places[later.partition].slices == places[one.partition].slices


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_what_leaves_breaks_no_order_and_in_the_end_all_has_left(seed: int) -> None:
    chance, reslicing = Random(seed), Reslicing()
    state = with_topic(with_topic(led(chance.randint(1, 3), registered=3)), "__groups")
    for number in range(STEPS):
        sealed = [each for each in state.ranges.values() if each.is_sealed]
        kind = chance.choice(("grow", "shrink", "alter", "re-slice", "inherit", "trim", "trim"))
        if kind == "grow" and state.broker_count < min(BROKERS_MAX, len(state.brokers)):
            state = seal_all(begin(state), chance)
        elif kind == "shrink" and state.broker_count > 1:
            state = seal_all(begin(state, "shrink"), chance)
        elif kind == "alter":
            name, count = chance.choice([*state.topics]), chance.randint(1, 4)
            state = done(state, AlterTopic(name, {"partitionsPerRange": count}))
        elif kind == "inherit":
            slices = chance.choice(state.topics["__groups"].slices)
            state = inherit(state, chance.choice(ids_of(slices)))
        elif kind == "trim" and sealed:
            state = trim(state, chance.choice(sealed), chance)
        wanted = reslicing.due(state, number * PAUSE_MS)
        if wanted is not None and kind == "re-slice":
            state = seal_all(done(state, wanted), chance)
        check_order(topic_of(state, state.topics["orders"]))
        assert decode_state(encode_state(state)) == state
    for slices in state.topics["__groups"].slices:
        for partition in () if slices.sealed_ends else ids_of(slices):
            state = inherit(state, partition)
    for held in [each for each in state.ranges.values() if each.is_sealed]:
        state = trim(state, held, None)
        if held.id in state.ranges:  # nothing is left, but what had records stays for a while
            state = trim(state, held, None)
    assert not any(each.is_sealed for each in state.ranges.values())
