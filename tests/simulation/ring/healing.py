"""After all trouble: everything that is broken is repaired, and the ring must be whole in time."""

from uuid import UUID

from tailrace_broker.model.commands import CreateTopic
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.ring.process import Process
from tests.simulation.ring.schedule import US_PER_MS, US_PER_S
from tests.simulation.ring.violation import check
from tests.simulation.ring.wholeness import missing
from tests.simulation.ring.world import World

HEALED_WITHIN_S = 30
LOOK_EVERY_US = 250 * US_PER_MS
FOUND_EVERY_US = 2 * US_PER_S


def heal(world: World) -> None:
    """No more faults; every broker has its process."""
    world.say("everything is repaired")
    world.network.heal()
    for disk in world.disks.values():
        disk.slowness_us = disk.data_slowness_us = 0
        disk.recovery_us = disk.logs_recovery_us = 0
    if world.replicas is not None:
        world.replicas.healed()
    if world.operator is not None:
        world.operator.at_next_step.clear()
    for process in list(world.processes):
        process.death = None
        if process.is_paused:
            process.resume()
        process.stall(is_stalled=False)
        process.fill(is_full=False)
    for ordinal in range(world.broker_count):
        world.start(ordinal)


def recover(world: World) -> None:
    """Violation when the ring is not whole within the time that it has."""
    healed_us = world.schedule.now_us
    deadline_us = healed_us + HEALED_WITHIN_S * US_PER_S
    next_bootstrap_us = healed_us
    while (lacking := missing(world) or _missing_data(world)) is not None:
        now_us = world.schedule.now_us
        check(now_us < deadline_us, f"{HEALED_WITHIN_S} s after everything was repaired: {lacking}")
        if now_us >= next_bootstrap_us and _is_unfounded(world):
            next_bootstrap_us = now_us + FOUND_EVERY_US
            _found(world)
        world.schedule.run(now_us + LOOK_EVERY_US)
    _use(world, deadline_us)
    world.healed_ms = (world.schedule.now_us - healed_us) // US_PER_MS


def _missing_data(world: World) -> str | None:
    return None if world.replicas is None else world.replicas.missing()


def _use(world: World, deadline_us: int) -> None:
    """Through every broker a topic is created, and the state read; again, if its process ends."""
    asked: dict[int, tuple[Process, list[int]]] = {}
    while True:
        for ordinal in range(world.broker_count):
            process = asked[ordinal][0] if ordinal in asked else None
            if process is None or not process.is_alive:
                process = world.newest(ordinal)
                if process is not None and process.control is not None:
                    asked[ordinal] = process, _ask(world, process)
        requests = [request for _, each in asked.values() for request in each]
        if len(asked) == world.broker_count and world.clients.answers.keys() >= {*requests}:
            break
        waiting = [process.name for process, _ in asked.values()]
        check(world.schedule.now_us < deadline_us, f"no answers though all is well: {waiting}")
        world.schedule.run(world.schedule.now_us + LOOK_EVERY_US)
    for request in requests:
        refusal = world.clients.answers[request]
        check(refusal is None, f"refused though all is well: {refusal}")


def _ask(world: World, process: Process) -> list[int]:
    name = f"last-{process.ordinal}-{process.number}"
    topic_id = UUID(int=process.number, version=5)
    command = CreateTopic(name, topic_id, TopicSettings(partitions_per_range=1))
    return [
        world.clients.ask(process, command, waits=True),
        world.clients.ask_state(process, waits=True),
    ]


def _is_unfounded(world: World) -> bool:
    """A broker is empty, and nobody can let it in."""
    return any(p.control is None or p.control.state is None for p in world.processes)


def _found(world: World) -> None:
    """As large as the ring is, if there is one: of a smaller one nobody else need be a broker."""
    process, state = world.newest(0), world.agreement.state
    if process is not None and process.control is not None:
        broker_count = world.founded_count if state is None else state.broker_count
        world.clients.found(process, broker_count, world.factor)
