"""A topic is altered: the metadata's leader has the ranges re-sliced, without being asked."""

from uuid import UUID

from tailrace_broker.core.ring.reslicing import ranges_to_slice
from tailrace_broker.model.commands import AlterTopic, CreateTopic, Sealed
from tailrace_broker.model.ring_state import Replica, RingState
from tailrace_broker.model.topic import TopicSettings
from tests.support.raft.control_world import World, founded


def state_of(world: World) -> RingState:
    state = world.controls[0].state
    assert state is not None
    return state


def seal(world: World) -> None:
    """As the leader of the open step's range does; the topic is empty."""
    state = state_of(world)
    assert state.step is not None
    (range_id,) = state.step.parents
    (topic,) = state.topics.values()
    (slices,) = (each for each in topic.slices if each.range_id == range_id)
    ends = {topic.id: (0,) * len(slices.starts)}
    prepared = tuple(Replica(each, 1) for each in range(3))
    sealed = Sealed(state.step.id, range_id, state.ranges[range_id].epoch, ends, prepared)
    assert world.answer(world.ask(0, sealed)) is None


def test_the_leader_of_the_metadata_has_one_range_after_another_resliced() -> None:
    world = founded(3)
    world.pass_ms(500)
    created = CreateTopic("t", UUID(int=1), TopicSettings(partitions_per_range=1))
    assert world.answer(world.ask(0, created)) is None
    assert world.answer(world.ask(1, AlterTopic("t", {"partitionsPerRange": 2}))) is None

    for _ in range(3):
        world.until(lambda: state_of(world).step is not None)
        seal(world)

    assert ranges_to_slice(state_of(world).topics["t"]) == ()
    world.pass_ms(1000)
    assert state_of(world).next_step == 3
