"""A follower's scenario under one seed: lives, each ended by a stop, a kill, or a loss of power."""

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path

import pytest

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.storage.files.direct_file import sync_file_system
from tests.simulation.cuts.leader import ScriptedLeader
from tests.simulation.cuts.model import ModelLog
from tests.simulation.cuts.replica import (
    DURABILITIES,
    Disk,
    History,
    Replica,
    check_memory,
    check_recovered,
    make_small,
)
from tests.simulation.cuts.rot import Rot
from tests.simulation.cuts.troubles import TroubledLeader, Troubles
from tests.simulation.seeds import asked_seeds
from tests.simulation.world import SimulatedIo, World
from tests.support.storage.simulated_disk import SimulatedDisk

# `make test` has 10: 200 scenarios, and 100 each in trouble and with a flipped bit, which take two
# minutes of one slow core.
SCENARIOS_PER_SEED = 20
SEEDS = asked_seeds(SCENARIOS_PER_SEED)
LIVES = 2
LOSSES_OF_POWER = 2
IMAGES_ASIDE = 2
ACTIONS_MAX = 30
CHANGES_BEFORE_A_KILL_MAX = 100

# By partition; half of the seeds have it.
Sent = list[list[StoredBatch]] | None


@dataclass
class FollowerWorld(World):
    """A disk and its time, over several lives of a follower.

    `lost_power`: since a process has looked at what is there. `sent`: what leaders have sent, where
    later ones know it.
    """

    lost_power: bool = False
    sent: Sent = None
    counts: Counter[str] | None = None  # of what fails; None: nothing does

    def live(self, history: History, action_count: int) -> bool:
        """One life. False when it was killed."""

        async def whole_life(io: SimulatedIo) -> None:
            data = self.disk.root / "data"
            replica = Replica(Disk(data, io), history)
            resources = await replica.open(lost_power=self.lost_power)
            await io.run(partial(sync_file_system, data))
            found = await replica.found()
            check_recovered(history.now, found, lost_power=self.lost_power)
            for partition, model in enumerate(found):
                history.note(partition, methodcaller("recovered", model))
            self.lost_power = False
            sequence = 1000 * self.life
            epoch = max(log.last_epoch for log in history.now) + 1
            await self._leader(replica, history, epoch, sequence).use(action_count)
            check_recovered(history.now, await replica.found(), lost_power=False)
            await asyncio.sleep(0)  # the loop forgets what was read last
            check_memory(resources, replica.logs)
            for log in replica.logs:
                await log.close()
            if await resources.flusher.flush_all():
                for partition, log in enumerate(replica.logs):
                    history.note(partition, methodcaller("flushed", log.log_end))
            resources.close()

        self.disk.trouble = lambda call: None
        return self.run_life(whole_life)

    def _leader(
        self, replica: Replica, history: History, epoch: int, sequence: int
    ) -> ScriptedLeader:
        if self.counts is None:
            return ScriptedLeader(replica, self.generator, epoch, sequence, sent=self.sent)
        troubles = Troubles(self.disk, self.generator, self.counts, lambda: history.now)
        return TroubledLeader(
            replica, self.generator, epoch, sequence, sent=self.sent, troubles=troubles
        )


@dataclass
class Scenario:
    """Everything that happens follows from `seed`; it fits into `directory`."""

    seed: int
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    image_count: int = 0
    counts: Counter[str] | None = None

    def __post_init__(self) -> None:
        self.generator = random.Random(self.seed)
        ids = random.Random(f"ids {self.seed}")
        self.monkeypatch.setattr(os, "urandom", ids.randbytes)
        make_small(self.monkeypatch)

    def run(self) -> None:
        """Violation when the disk is not what it may be."""
        root = self.directory / "disk"
        root.mkdir()
        before: list[ModelLog] | None = None
        life = 0
        sent: Sent = [[] for _ in DURABILITIES] if self.seed % 2 else None
        for _ in range(LOSSES_OF_POWER):
            world, history = self._world(root, before, life, sent)
            for _ in range(LIVES):
                self._live(world, history)
            for _ in range(IMAGES_ASIDE):
                self._look_at(world, history)
            before, root = self._lose_power(world, history)
            life = world.life

    def run_in_trouble(self) -> None:
        """As `run`; now and then the disk is full, or calls of it fail."""
        self.counts = Counter()
        self.run()

    def flip_a_bit(self) -> None:
        """In what is stored; found by a start, or by who reads, or cuts, in a running process."""
        self.counts = Counter()
        root = self.directory / "disk"
        root.mkdir()
        world, history = self._world(root, None, 0, None)
        rot = Rot(world, self.generator, history, self.counts)
        rot.live(self.generator.randrange(ACTIONS_MAX), is_killed=self.generator.random() < 0.5)
        rot.look(is_running=self.generator.random() < 0.5)

    def _world(
        self, root: Path, before: list[ModelLog] | None, life: int, sent: Sent
    ) -> tuple[FollowerWorld, History]:
        disk = SimulatedDisk(root, self.seed)
        world = FollowerWorld(
            disk,
            self.generator,
            life=life,
            lost_power=before is not None,
            sent=sent,
            counts=self.counts,
        )
        return world, History(disk.tick, before)

    def _live(self, world: FollowerWorld, history: History) -> None:
        if self.generator.random() < 0.6:
            world.disk.kill_after(self.generator.randrange(CHANGES_BEFORE_A_KILL_MAX))
        world.live(history, self.generator.randrange(ACTIONS_MAX))

    def _look_at(self, world: FollowerWorld, history: History) -> None:
        """What a loss of power leaves, and once more when it comes during the recovery."""
        before, root = self._lose_power(world, history)
        sent = world.sent and [list(each) for each in world.sent]
        aside, history = self._world(root, before, world.life, sent)
        self._live(aside, history)
        before, root = self._lose_power(aside, history)
        aside, history = self._world(root, before, aside.life, sent)
        aside.live(history, 0)

    def _lose_power(self, world: FollowerWorld, history: History) -> tuple[list[ModelLog], Path]:
        """Any time may be the last, one within a write or between removals most of all."""
        disk = world.disk
        time = self.generator.randint(0, disk.time)
        if disk.under_way and self.generator.random() < 0.5:
            time = self.generator.choice(disk.under_way)
        elif disk.removed and self.generator.random() < 0.7:
            time = self.generator.choice(disk.removed)
        self.image_count += 1
        root = self.directory / f"image{self.image_count}"
        disk.image(time, self.generator, root)
        return history.at(time), root
