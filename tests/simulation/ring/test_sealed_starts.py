"""Where copies of sealed logs may begin: behind what their leaders or the ring have removed."""

import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.replication import LogKey
from tests.simulation.ring.data.model_log import ModelLog
from tests.simulation.ring.data.replicas import Replicas
from tests.simulation.ring.disk import Disk, Identity
from tests.simulation.ring.network import CALM
from tests.simulation.ring.trace import Trace
from tests.simulation.ring.violation import Violation
from tests.simulation.ring.world import World
from tests.support.ring.states import incarnation, led, stepped, with_topic

START = 13


@pytest.fixture
def sealed() -> tuple[Replicas, LogKey]:
    """A range is sealed, as all but broker 0 know: it leads, and has not heard of it."""
    world = World(
        1, broker_count=3, factor=3, environment=CALM, trace=Trace(), has_data=True, spare_count=1
    )
    state = world.agreement.state = stepped(with_topic(led(registered=1)))
    topic = state.topics["orders"]
    partition = next(each for each in topic_of(state, topic).partitions if each.is_sealed)
    key = LogKey(topic.id, partition.partition)
    assert 0 in state.ranges[partition.range_id].complete
    for ordinal in state.brokers:
        disk = Disk(Identity(incarnation(ordinal), 1, (), 0, is_clean=False), world.generator)
        disk.logs[key] = ModelLog(world.schedule, world.generator)
        world.disks[ordinal] = disk
    assert world.replicas is not None
    world.replicas.sealed.check()
    return world.replicas, key


def check_again(replicas: Replicas) -> None:
    """As at the next state."""
    replicas.world.agreement.state = replace(replicas.state)
    replicas.sealed.check()


def test_a_leader_removes_records_until_it_hears_that_its_range_is_sealed(
    sealed: tuple[Replicas, LogKey],
) -> None:
    replicas, key = sealed
    replicas.world.disks[0].logs[key].set_aside(START)
    replicas.sealed.moved_start(key, START)

    check_again(replicas)


def test_no_copy_begins_behind_what_its_leaders_have_left(sealed: tuple[Replicas, LogKey]) -> None:
    replicas, key = sealed
    replicas.sealed.moved_start(key, START)
    replicas.world.disks[0].logs[key].set_aside(START + 1)

    with pytest.raises(Violation, match=f"up to {START + 1}, and the ring has decided {START}"):
        check_again(replicas)
