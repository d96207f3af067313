"""What a ring lacks to be whole: a leader, every broker current, the right voters, led ranges."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace_broker.core.node.bootstrap import voter_count
from tailrace_broker.core.ring.reslicing import ranges_to_slice
from tailrace_broker.model.agreement import DiskId

if TYPE_CHECKING:
    from tests.simulation.ring.process import Process
    from tests.simulation.ring.world import World


def missing(world: "World") -> str | None:
    """The first thing that the ring still lacks."""
    return next(_missing(world), None)


def present(world: "World") -> "list[Process]":
    """Of each broker the process that is to stay, as soon as it listens."""
    return [
        process
        for process in world.processes
        if process.disk is world.disks[process.ordinal] and process.control is not None
    ]


def _missing(world: "World") -> Iterator[str]:
    processes = present(world)
    if len(processes) < world.broker_count:
        yield f"only {[process.name for process in processes]} are up"
    elif not any(each.control and each.control.raft.is_established for each in processes):
        yield "the metadata has no leader"
    else:
        for process in processes:
            yield from _missing_of(world, process)
        yield from _missing_voters(world)
        yield from _missing_leaders(world)
        yield from _missing_steps(world)


def _missing_of(world: "World", process: "Process") -> Iterator[str]:
    control = process.control
    assert control is not None
    if control.registration is None:
        yield f"{process.name} is not registered"
    elif control.registration.is_fenced:
        yield f"{process.name} is fenced"
    elif control.raft.applied.height < world.agreement.height:
        yield f"{process.name} has applied {control.raft.applied} of {world.agreement.height}"


def _missing_voters(world: "World") -> Iterator[str]:
    configuration, state = world.agreement.configuration, world.agreement.state
    assert state is not None
    wanted = {
        DiskId(ordinal, world.disks[ordinal].identity.incarnation)
        for ordinal in range(voter_count(state.broker_count))
    }
    if configuration is None or configuration.is_joint or configuration.disks != wanted:
        yield f"who votes is {configuration}, not {sorted(wanted)}"


def _missing_leaders(world: "World") -> Iterator[str]:
    state = world.agreement.state
    assert state is not None
    for each in state.ranges.values():
        if each.is_sealed:
            continue
        able = [replica for replica in each.isr if not replica.is_ghost]
        if each.leader is None and able:
            yield f"range {each.id} has no leader, though {able} could lead it"
        if each.leader is not None:
            leader = world.newest(each.leader.ordinal)
            if leader is None or leader.control is None or leader.control.leads(each.id) is None:
                yield f"range {each.id} is led by {each.leader}, which does not know"


def _missing_steps(world: "World") -> Iterator[str]:
    state, operator = world.agreement.state, world.operator
    assert state is not None
    if state.step is not None:
        yield f"step {state.step.id} is open"
    if operator is not None and state.broker_count != operator.wanted_count:
        yield f"the ring has {state.broker_count} brokers, not {operator.wanted_count}"
    elif operator is not None and not operator.is_done:
        yield "a broker that has left the ring is not retired"
    for topic in state.topics.values():
        waiting = ranges_to_slice(topic)
        if waiting:
            yield f"{topic.name} has not the partitions that it is to have in ranges {waiting}"
