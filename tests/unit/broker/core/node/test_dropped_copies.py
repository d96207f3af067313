"""A broker has left a ring: the metadata's leader drops its copies, and it may retire."""

from tailrace_broker.core.ring.copies import copies_to_make
from tailrace_broker.model.commands import BeginStep, Completed, Retire, Sealed
from tailrace_broker.model.ring_state import Replica, RingState
from tests.support.raft.control_world import World, founded


def state_at(world: World, ordinal: int) -> RingState:
    state = world.controls[ordinal].state
    assert state is not None
    return state


def shrink(world: World) -> None:
    """The last broker leaves; what there is has no partitions."""
    assert world.answer(world.ask(0, BeginStep("shrink", 4))) is None
    step = state_at(world, 0).step
    assert step is not None
    for range_id in step.parents:
        state = state_at(world, 0)
        prepared = tuple(Replica(each, 1) for each in range(3))
        sealed = Sealed(step.id, range_id, state.ranges[range_id].epoch, {}, prepared)
        assert world.answer(world.ask(0, sealed)) is None
    assert state_at(world, 0).broker_count == 3


def test_copies_of_who_has_left_are_dropped_when_others_are_whole() -> None:
    world = founded(4)
    world.pass_ms(500)
    shrink(world)
    world.pass_ms(500)
    refusal = world.answer(world.ask(0, Retire(3, 1)))
    assert refusal is not None
    assert refusal.reason == "holds-ranges"

    for ordinal in range(3):
        for held in copies_to_make(state_at(world, ordinal), ordinal):
            completed = Completed(held.id, ordinal, 1, held.losses.get(ordinal, 0))
            assert world.answer(world.ask(ordinal, completed)) is None
    world.until(lambda: all(3 not in each.replicas for each in state_at(world, 0).ranges.values()))
    assert world.answer(world.ask(0, Retire(3, 1))) is None
