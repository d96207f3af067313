"""What is asserted of committed states finds what no command makes."""

from typing import Any

import pytest
from msgspec.structs import replace

from tailrace_broker.model.commands import Fence
from tailrace_broker.model.ring_state import RangeState, Replica, RingState, TopicState
from tests.support.ring.checks import check_state
from tests.support.ring.states import begin, done, led, stepped, with_topic

STATE = done(stepped(with_topic(led(registered=2))), Fence(0, 1))
SEALED, OPEN = STATE.ranges[0], STATE.ranges[1]
TOPIC = STATE.topics["orders"]


def with_range(changed: RangeState, **fields: Any) -> RingState:
    return replace(STATE, ranges={**STATE.ranges, changed.id: replace(changed, **fields)})


def with_slices(index: int, **fields: Any) -> RingState:
    slices = list(TOPIC.slices)
    slices[index] = replace(slices[index], **fields)
    return with_orders(slices=tuple(slices))


def with_orders(**fields: Any) -> RingState:
    topic: TopicState = replace(TOPIC, **fields)
    return replace(STATE, topics={"orders": topic})


def test_a_state_that_commands_have_made_holds() -> None:
    check_state(STATE)
    check_state(begin(STATE))


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(replace(STATE, broker_count=3), id="ranges of another ring"),
        pytest.param(replace(STATE, brokers={}), id="unknown brokers"),
        pytest.param(
            replace(STATE, retired=(STATE.brokers[0].incarnation,)), id="a broker that has left"
        ),
        pytest.param(replace(STATE, last_numbers={0: 1}), id="a number given again"),
        pytest.param(replace(STATE, next_range_id=2), id="an id to be given again"),
        pytest.param(with_range(SEALED, leader=Replica(0, 1)), id="a sealed range led"),
        pytest.param(with_range(SEALED, complete=(7,)), id="a copy elsewhere"),
        pytest.param(with_range(OPEN, isr=OPEN.isr[:1]), id="an ISR below the floor"),
        pytest.param(with_range(OPEN, isr=OPEN.isr * 2), id="a member twice"),
        pytest.param(with_range(OPEN, isr=(*OPEN.isr, Replica(4, 1))), id="a member elsewhere"),
        pytest.param(
            with_range(OPEN, isr=tuple(each._replace(registration=7) for each in OPEN.isr)),
            id="a member of an older registration",
        ),
        pytest.param(with_range(OPEN, leader=Replica(1, 2)), id="a leader that is not in sync"),
        pytest.param(with_range(OPEN, epoch=0), id="a leader without an epoch"),
        pytest.param(with_range(OPEN, start=5), id="tokens that nobody has"),
        pytest.param(with_range(OPEN, replicas=(1, 2)), id="other replicas"),
        pytest.param(with_range(OPEN, step=1), id="a step that is not"),
        pytest.param(replace(begin(STATE), next_step=1), id="a step to be there again"),
        pytest.param(with_orders(name="other"), id="another name"),
        pytest.param(with_orders(slices=TOPIC.slices[:-1]), id="a range without partitions"),
        pytest.param(with_orders(next_partition=9), id="a partition missing"),
        pytest.param(with_orders(waits_for=(1,)), id="partitions in a range, and to be there"),
        pytest.param(with_slices(0, children=((), ())), id="children that do not know it"),
        pytest.param(with_slices(0, sealed_ends=(100,)), id="an end missing"),
        pytest.param(with_slices(0, sealed_ends=(), children=()), id="a sealed range's ends"),
        pytest.param(with_slices(-1, first_offsets=(1, 1)), id="another first offset"),
        pytest.param(with_slices(1, starts=(5, 6)), id="slices elsewhere"),
        pytest.param(with_slices(1, first_partition=0), id="a partition's id twice"),
    ],
)
def test_a_state_that_breaks_a_rule_is_found(state: RingState) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_state(state)


def test_a_topic_is_there_once() -> None:
    twice = replace(STATE, topics={**STATE.topics, "other": replace(TOPIC, name="other")})

    with pytest.raises(AssertionError, match="twice"):
        check_state(twice)
