from uuid import UUID

import pytest

from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN
from tailrace_broker.core.ring.commands import RECENT_MAX, apply_command
from tailrace_broker.model.commands import (
    CreateTopic,
    DeleteTopic,
    Fence,
    Lead,
    Stamped,
)
from tailrace_broker.model.ring_state import Refusal, Replica
from tailrace_broker.model.topic import TopicSettings
from tests.support.ring.checks import check_state
from tests.support.ring.states import done, founded, led, with_topic


@pytest.mark.parametrize("broker_count", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_new_ring_has_all_tokens_and_all_replicas_in_sync(broker_count: int, factor: int) -> None:
    state = founded(broker_count, factor)

    check_state(state)
    assert state.broker_count == broker_count
    for each in state.ranges.values():
        assert len(each.replicas) == min(factor, 3, broker_count)
        assert each.isr == tuple(Replica(ordinal, 1) for ordinal in each.replicas)
        assert (each.epoch, each.leader) == (0, None)


def test_the_first_range_of_a_ring_of_one_is_the_one_that_disks_without_a_ring_have() -> None:
    (only,) = founded(1).ranges.values()

    assert (only.id, only.start, only.end) == (0, TOKEN_MIN, TOKEN_END)


def test_a_command_is_applied_once_however_often_it_arrives() -> None:
    state = with_topic(led())
    create = Stamped(-1, CreateTopic("again", UUID(int=1), TopicSettings()))

    created = apply_command(state, create)
    deleted = done(created, DeleteTopic("again", 5))

    assert apply_command(created, create) is created
    assert apply_command(deleted, create) is deleted


def test_a_refusal_is_remembered_too() -> None:
    lead = Stamped(-1, Lead(0, 7, 0, 1))

    refused = apply_command(led(), lead)

    assert apply_command(refused, lead) is refused
    refusal = refused.recent[-1]
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "stale-epoch"


def test_the_oldest_outcome_is_forgotten_first() -> None:
    state = founded()
    for number in range(RECENT_MAX + 2):
        state = apply_command(state, Stamped(number, Fence(0, 1, is_fenced=number % 2 == 0)))

    assert list(state.recent) == [*range(2, RECENT_MAX + 2)]


def test_a_state_that_was_read_before_stays_as_it_is() -> None:
    before = with_topic(led())
    brokers, ranges, topics = dict(before.brokers), dict(before.ranges), dict(before.topics)

    done(before, Fence(1, 1), Lead(0, 1, 2, 1), CreateTopic("x", UUID(int=1), TopicSettings()))

    assert (before.brokers, before.ranges, before.topics) == (brokers, ranges, topics)
