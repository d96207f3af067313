"""Whose disk may be lost: no more than what the ring promises to bear."""

from tailrace_broker.model.agreement import Configuration, DiskId
from tests.simulation.ring.network import CALM
from tests.simulation.ring.trace import Trace
from tests.simulation.ring.world import World
from tests.support.ring.states import begin, incarnation, led


def test_who_votes_alone_after_the_open_step_keeps_its_disk() -> None:
    world = World(
        1, broker_count=3, factor=3, environment=CALM, trace=Trace(), has_data=True, spare_count=1
    )
    voters = tuple(DiskId(ordinal, incarnation(ordinal)) for ordinal in range(3))
    world.agreement.configuration = Configuration(voters)
    world.agreement.state = begin(led(3), "shrink")

    assert not world.may_lose_disk(0)
    world.agreement.state = led(3)
    assert world.may_lose_disk(0)
