"""A stopped broker's ring after a step: what it had is sealed, and goes on in two ranges.

Of the ring of two that the step makes only this broker is kept, and it leads both ranges.
"""

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.core.ring.topics import slices_in
from tailrace_broker.model.commands import BeginStep, Sealed
from tailrace_broker.model.ring_state import Replica, RingState
from tests.support.ring.ring_disk import put_ring_state, ring_state_on
from tests.support.ring.states import done, register

Ends = Mapping[UUID, tuple[int, ...]]


def ends_of(broker: LocalBroker) -> Ends:
    """Of the open partitions of all topics, also of the ring's own, in the order of their ids."""
    return {
        hosted.topic.topic_id: tuple(
            hosted.log_of(each.partition).log_end
            for each in hosted.topic.partitions
            if not each.is_sealed
        )
        for hosted in broker._topics.local.all_hosted()
    }


def split_on_disk(root: Path, ends: Ends) -> None:
    """Seal the only open range at these ends."""
    state = done(ring_state_on(root), register(1), BeginStep("grow", 1))
    assert state.step is not None
    (parent,) = state.step.parents
    topic_ids = slices_in(state, parent)
    prepared = tuple(Replica(ordinal, each.number) for ordinal, each in state.brokers.items())
    sealed = {topic_id: ends[topic_id] for topic_id in topic_ids}
    state = done(state, Sealed(state.step.id, parent, state.ranges[parent].epoch, sealed, prepared))
    put_ring_state(root, _alone(state))


def _alone(state: RingState) -> RingState:
    mine = state.brokers[0]
    ranges = {
        range_id: owner
        if owner.is_sealed
        else replace(
            owner, natural_leader=0, replicas=(0,), isr=(Replica(0, mine.number),), leader=None
        )
        for range_id, owner in state.ranges.items()
    }
    return replace(state, broker_count=1, brokers={0: mine}, ranges=ranges)
