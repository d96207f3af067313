"""What clients do: found the ring, and create, alter, delete, restore and read at any broker."""

import random
from dataclasses import dataclass
from uuid import UUID

from tailrace_broker.model.commands import (
    AlterTopic,
    Command,
    CreateTopic,
    DeleteTopic,
    PurgeTopics,
    RestoreTopic,
)
from tailrace_broker.model.topic import TopicSettings
from tests.simulation.ring.faults import Happening
from tests.simulation.ring.world import World

TOPICS = 6
RETENTION_MS = 60_000


@dataclass(frozen=True, slots=True)
class Found(Happening):
    """Somebody has a ring founded."""

    broker_count: int
    factor: int

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None and process.control is not None:
            world.counts["founding asked"] += 1
            world.clients.found(process, self.broker_count, self.factor)


@dataclass(frozen=True, slots=True)
class Change(Happening):
    """Somebody has a command applied."""

    command: Command

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None and process.control is not None:
            world.counts["asked"] += 1
            world.clients.ask(process, self.command)


@dataclass(frozen=True, slots=True)
class Purge(Happening):
    """Somebody has a topic purged if its broker knows it as deleted, and one that never was."""

    topic_id: UUID
    other_id: UUID  # no two commands are equal

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None and process.control is not None:
            state = process.control.state
            found = None if state is None else state.deleted.get(self.topic_id)
            deleted_us = {self.other_id: 0}
            if found is not None:
                deleted_us[self.topic_id] = found.deleted_us
            Change(self.at_ms, self.ordinal, PurgeTopics(deleted_us)).happen(world)


@dataclass(frozen=True, slots=True)
class Read(Happening):
    """Somebody wants to know what is committed now."""

    def happen(self, world: World) -> None:
        process = world.newest(self.ordinal)
        if process is not None and process.control is not None:
            world.clients.ask_state(process)


def make_work(generator: random.Random, at_ms: int, broker_count: int, *, number: int) -> Happening:
    """One of these; no two commands with different numbers are equal."""
    ordinal = generator.randrange(broker_count)
    name = f"topic-{generator.randrange(TOPICS)}"
    topic_id = UUID(int=number, version=4)
    kind = generator.random()
    if kind < 0.4:
        return Read(at_ms, ordinal)
    if kind < 0.65:
        settings = TopicSettings(
            partitions_per_range=generator.choice((1, 4)),
            durability="written" if generator.random() < 0.1 else "fsync",
        )
        return Change(at_ms, ordinal, CreateTopic(name, topic_id, settings))
    if kind < 0.8:
        changes: dict[str, int | bool | str | None] = {"retentionMs": RETENTION_MS + number}
        return Change(at_ms, ordinal, AlterTopic(name, changes))
    if kind < 0.95:
        return Change(at_ms, ordinal, DeleteTopic(name, at_ms * 1000 + number))
    earlier = UUID(int=generator.randrange(number), version=4)
    if kind < 0.98:
        return Change(at_ms, ordinal, RestoreTopic(earlier, f"again-{number}"))
    return Purge(at_ms, ordinal, earlier, topic_id)
