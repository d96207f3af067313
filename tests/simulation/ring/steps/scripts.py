"""Scenarios of steps written by hand: late proposals, and a ring that lost whom it began with."""

import random
from dataclasses import dataclass
from uuid import UUID

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.model.commands import (
    Completed,
    CreateTopic,
    DeleteTopic,
    RestoreTopic,
    Sealed,
)
from tailrace_broker.model.messages import CommandForwarded
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.ring.data.faults import Use
from tests.simulation.ring.disk_faults import Wipe
from tests.simulation.ring.faults import Happening, Kill
from tests.simulation.ring.network import CALM, Endpoint, Payload
from tests.simulation.ring.scenario import Scenario
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.steps.orders import Resize
from tests.simulation.ring.steps.troubles import FIRST_LEADER, AtStep, DelayCommands
from tests.simulation.ring.work import Change, Found
from tests.simulation.ring.world import World

STEP_MS = 4000
TROUBLE_MS = 9000
# For how long the leader's commands are delayed: it proposes its ends within that.
DELAYED_MS = 500
LATE_MS = 2600  # when another leads the range
# When the step is aborted, and the next one has begun.
LATE_FOR_STEP_MS = 2500
# In place of an ordinal.
ALL = -1
SHRINK_MS = STEP_MS + 2000
LATE_COPY_MS = 250
# Since the step has begun: when it is over, and when what is left is copied.
DELETED_MS, RESTORED_MS = 60, 300
GROWN_MS = 7000  # when a ring of 4 has its sealed copies
UNTIL_REPAIRED_MS = 60_000


@dataclass(frozen=True, slots=True)
class DelaySuch(Happening):
    """Such commands of the broker, or of ALL, arrive late from now on; all else is in time."""

    command: type[Sealed | Completed]
    delay_ms: int

    def happen(self, world: World) -> None:
        world.faults["such commands delayed"] += 1

        def is_such(sender: Endpoint, message: Payload) -> bool:
            if not isinstance(message, CommandForwarded) or self.ordinal not in (
                ALL,
                sender.ordinal,
            ):
                return False
            return isinstance(decode_command(message.command).command, self.command)

        world.network.hold_back(is_such, self.delay_ms * US_PER_MS)


def late_ends_of_a_dead_leader(seed: int) -> Scenario:
    """Another leads the range in a new epoch before they arrive."""
    delay = DelayCommands(STEP_MS, 0, LATE_MS, DELAYED_MS)
    kill = Kill(STEP_MS, 0, "process", 8000)
    return _scenario(
        seed,
        AtStep(STEP_MS, FIRST_LEADER, delay, 0),
        AtStep(STEP_MS, FIRST_LEADER, kill, DELAYED_MS),
    )


def late_ends_of_an_aborted_step(seed: int) -> Scenario:
    """Its leader leads on; the next step of its range is open when they arrive."""
    delay = DelaySuch(STEP_MS, 0, Sealed, LATE_FOR_STEP_MS)
    return _scenario(seed, AtStep(STEP_MS, FIRST_LEADER, delay, 0))


def restored_during_a_copy(seed: int) -> Scenario:
    """A topic is deleted while sealed ranges are copied, and back before the copies are known."""
    delete = Change(SHRINK_MS, 0, DeleteTopic("topic-0", 1))
    restore = Change(SHRINK_MS, 0, RestoreTopic(UUID(int=1), "topic-0"))
    return _scenario(
        seed,
        DelaySuch(SHRINK_MS, ALL, Completed, LATE_COPY_MS),
        AtStep(SHRINK_MS, 0, delete, DELETED_MS),
        AtStep(SHRINK_MS, 0, restore, RESTORED_MS),
        Resize(SHRINK_MS + 1, 0, 3),
    )


def wiped_founder_of_a_grown_ring(seed: int) -> Scenario:
    """All brokers die, and broker 0, of which alone the ring was founded, has an empty disk.

    It is up when the others come back, and has heard of no leader yet when it is founded again.
    """
    generator = random.Random(f"wiped founder {seed}")
    happenings = (
        Found(300 + generator.randrange(200), 0, 1, 3),
        Use(1500, 0, 10, 0.8, 100_000),
        Change(1600, 0, CreateTopic("topic-0", UUID(int=1), TopicSettings(partitions_per_range=1))),
        Resize(2000 + generator.randrange(300), 0, 4),
        *(Kill(GROWN_MS, ordinal, "process", UNTIL_REPAIRED_MS) for ordinal in (1, 2, 3)),
        Wipe(GROWN_MS + 1, 0, 10),
    )
    return Scenario(seed, 1, 3, CALM, TROUBLE_MS, happenings, has_data=True, spare_count=3)


def _scenario(seed: int, *at_steps: Happening) -> Scenario:
    generator = random.Random(f"late ends {seed}")
    settings = TopicSettings(partitions_per_range=1)
    create = CreateTopic("topic-0", UUID(int=1), settings)
    happenings = [
        Found(300 + generator.randrange(200), generator.randrange(3), 3, 3),
        Use(1500, 0, 10, 0.8, 100_000),
        Change(1600, 0, create),
        Change(2600, 1, create),
        *at_steps,
        Resize(STEP_MS + generator.randrange(300), 0, 4),
    ]
    happenings.sort(key=lambda each: each.at_ms)
    return Scenario(seed, 3, 3, CALM, TROUBLE_MS, tuple(happenings), has_data=True, spare_count=1)
