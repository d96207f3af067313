"""Runs a scenario: the world under its happenings, then healed. Its end follows from it alone."""

import traceback
from collections import Counter
from typing import NamedTuple
from unittest.mock import patch

from tailrace_broker.core.raft import feeding as raft_feeding
from tests.simulation.ring.groups.patches import simulated_time
from tests.simulation.ring.healing import heal, recover
from tests.simulation.ring.scenario import Scenario
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.trace import Trace
from tests.simulation.ring.violation import Violation
from tests.simulation.ring.world import World

# So that a snapshot is sent in slices, and what a broker missed in several messages.
MESSAGE_BYTES = 2048


class Outcome(NamedTuple):
    """How a scenario ended; `failure` None: as it should."""

    seed: int
    failure: str | None
    virtual_ms: int
    healed_ms: int
    steps: int
    faults: Counter[str]
    rules: Counter[str]
    counts: Counter[str]


def run(scenario: Scenario, trace: Trace | None = None) -> Outcome:
    """From empty disks to a ring that is whole again."""
    trace = Trace() if trace is None else trace
    world = World(
        scenario.seed,
        broker_count=scenario.broker_count,
        factor=scenario.factor,
        environment=scenario.environment,
        trace=trace,
        has_data=scenario.has_data,
        has_groups=scenario.has_groups,
        spare_count=scenario.spare_count,
    )
    failure = None
    try:
        with patch.object(raft_feeding, "MESSAGE_BYTES_MAX", MESSAGE_BYTES), simulated_time(world):
            _run(world, scenario)
    except AssertionError as error:
        failure = _explain(world, error)
        trace.line(world.schedule.now_us, failure)
    finally:
        if world.replicas is not None and world.replicas.groups is not None:
            world.replicas.groups.close()
    return Outcome(
        scenario.seed,
        failure,
        world.schedule.now_us // US_PER_MS,
        world.healed_ms,
        world.step_count,
        world.faults,
        world.rules,
        world.counts,
    )


def _run(world: World, scenario: Scenario) -> None:
    world.begin()
    for happening in scenario.happenings:
        world.schedule.run(happening.at_ms * US_PER_MS)
        world.say(f"* {happening}")
        happening.happen(world)
    world.schedule.run(scenario.trouble_ms * US_PER_MS)
    heal(world)
    recover(world)
    if world.replicas is not None:
        world.replicas.truth.check_end()


def _explain(world: World, error: AssertionError) -> str:
    """What, when, and where, when a machine itself says so."""
    when = f"{world.schedule.now_us / 1e6:.4f} s"
    who = world.last_process.name if world.last_process is not None else "nobody"
    if isinstance(error, Violation):
        return f"{when}, after a step of {who}: {error}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{when}, in {who}: {place.filename}:{place.lineno}: {place.line} ({error})"
