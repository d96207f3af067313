"""The role of a broker in each range, from the replicated state."""

import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring.roles import (
    Following,
    Leading,
    Role,
    is_replicated,
    reader_of,
    roles,
)
from tailrace_broker.model.ring_state import RangeState, Replica
from tests.support.ring.states import led as ring


@pytest.mark.parametrize(
    ("leader", "number", "role"),
    [
        (Replica(0, 1), 1, Leading(1)),
        (Replica(1, 1), 1, Following(1, 1)),
        (None, 1, Following(1, None)),
        (Replica(0, 1), 2, Following(1, None)),  # an earlier process of this broker led
    ],
)
def test_only_the_process_that_the_state_names_leads(
    leader: Replica | None, number: int, role: Role
) -> None:
    state = ring(2, 1)
    led = replace(state.ranges[0], leader=leader, epoch=1)
    state = replace(state, ranges={**state.ranges, 0: led})

    assert roles(state, replace(state.brokers[0], number=number))[0] == role


def test_a_process_that_is_not_registered_leads_nothing() -> None:
    state = ring(1, 1)

    assert roles(state, None) == {0: Following(1, 0)}


@pytest.mark.parametrize(
    ("complete", "replicas", "reader"),
    [((0, 1), (0, 1), 0), ((1,), (0, 1), 1), ((), (1, 0), None), ((), (), None)],
)
def test_a_sealed_range_is_read_from_a_whole_copy(
    complete: tuple[int, ...], replicas: tuple[int, ...], reader: int | None
) -> None:
    state = ring(2, 1)
    sealed: RangeState = replace(
        state.ranges[0], leader=None, sealed_epoch=1, complete=complete, replicas=replicas
    )
    state = replace(state, ranges={**state.ranges, 0: sealed})

    assert roles(state, state.brokers[0])[0] == Following(1, reader)
    assert sealed.holders == complete


def test_a_sealed_range_is_read_from_a_broker_that_lives() -> None:
    state = ring(3, 1)
    sealed: RangeState = replace(
        state.ranges[0], leader=None, sealed_epoch=1, complete=(7, 1, 2), replicas=(0, 1, 2)
    )
    fenced = replace(state.brokers[1], is_fenced=True)

    assert reader_of(state, sealed, 0) == 1
    assert reader_of(state, sealed, 2) == 2
    assert reader_of(replace(state, brokers={**state.brokers, 1: fenced}), sealed, 0) == 2


def test_every_replica_of_an_open_range_has_its_logs() -> None:
    owner = ring(4, 3).ranges[0]

    assert owner.holders == owner.replicas
    assert len(owner.replicas) == 3


def test_a_range_with_several_replicas_is_replicated_until_it_is_sealed() -> None:
    owner = ring(4, 3).ranges[0]

    assert is_replicated(owner)
    assert not is_replicated(replace(owner, sealed_epoch=1))
    assert not is_replicated(ring(4, 1).ranges[0])
