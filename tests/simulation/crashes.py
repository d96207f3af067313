"""A broker's scenario under one seed: lives, each ended by a stop, a kill, or a loss of power."""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace_broker.core.log import replica_tail
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.storage.inspection.brokers import check_files
from tests.simulation.expectation import Expectation, History, LogKey
from tests.simulation.seeds import asked_seeds
from tests.simulation.workload import LARGE_GROUP_BYTES, Workload, read_all
from tests.simulation.world import SimulatedBroker, SimulatedIo, Violation, World, make_small
from tests.support.storage.simulated_disk import BLOCK_BYTES, SimulatedDisk

# Each has 21 losses of power; 10 take half a minute on a slow machine.
SEEDS = asked_seeds()
LIVES_ON_A_DISK = 3
LOSSES_OF_POWER = 3
IMAGES_ASIDE = 3
ACTIONS_MAX = 40
APPENDS = 25
CHANGES_BEFORE_A_KILL_MAX = 120


@dataclass
class Scenario:
    """Everything that happens follows from `seed`; it fits into `directory`."""

    seed: int
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    image_count: int = 0
    fails_writes: bool = False
    trace: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = random.Random(self.seed)
        make_small(self.monkeypatch, random.Random(f"ids {self.seed}"))

    def run(self) -> None:
        """Violation when a promise is broken."""
        root = self.directory / "disk"
        root.mkdir()
        before: Expectation | None = None
        life = 0
        for _ in range(LOSSES_OF_POWER):
            world, history = self._world(root, before, life)
            self._lives(world, history, LIVES_ON_A_DISK, lost_power=before is not None)
            for _ in range(IMAGES_ASIDE):
                self._look_at(world, history)
            before, root = self._lose_power(world, history)
            life = world.life

    def fail_writes(self) -> None:
        """As `run`, and writes of segments fail now and then."""
        self.fails_writes = True
        self.monkeypatch.setattr(replica_tail, "LARGE_GROUP_BYTES", LARGE_GROUP_BYTES)
        self.run()

    def damage(self) -> None:
        """A bad block under acknowledged records."""
        self._harm(self._damage_a_block)

    def lose_files(self) -> None:
        """Of acknowledged records the journal, a file of it, a topic, a partition or the last
        segment of one is removed.
        """
        self._harm(self._remove_files)

    def _harm(self, harm: Callable[[Path], None]) -> None:
        """Acknowledged records, then harm: Violation when some are gone and nobody says so.

        What of a log is not said to be damaged has lost nothing that can be proven.
        """
        root = self.directory / "disk"
        root.mkdir()
        world, history = self._world(root, None, 0)
        last: dict[LogKey, int] = {}

        async def live(broker: SimulatedBroker, io: SimulatedIo) -> None:
            last.update(await Workload(world, history, broker, io).append_one_by_one(APPENDS))
            world.disk.is_dead = True
            io.died.set_result(None)

        world.run(live)
        harm(root)
        expected = history.at()
        for key, log in expected.logs.items():
            log.safe_end = last.get(key, 0)
        world, _ = self._world(root, None, world.life)

        async def look(broker: SimulatedBroker, io: SimulatedIo) -> None:
            found = await read_all(broker, skips_damaged=True)
            damaged = {each.topic.name for each in broker.topics()} - {name for name, _ in found}
            expected.topics -= damaged
            expected.check(found, lost_power=True)

        with suppress(CorruptMetadataError):  # the broker says so, and does not start
            world.run(look)

    def _damage_a_block(self, root: Path) -> None:
        """Of a segment or of the journal; one that holds something."""
        paths = sorted([*root.rglob("*.log"), *root.rglob("*.journal")])
        while True:
            path = self.generator.choice(paths)
            contents = bytearray(path.read_bytes())
            start = self.generator.randrange(0, len(contents), BLOCK_BYTES)
            if any(contents[start : start + BLOCK_BYTES]):
                position = self.generator.randrange(start, min(start + BLOCK_BYTES, len(contents)))
                if self.generator.random() < 0.5:
                    contents[start : start + BLOCK_BYTES] = bytes(BLOCK_BYTES)
                else:
                    contents[position] ^= 1 << self.generator.randrange(8)
                path.write_bytes(contents[: len(path.read_bytes())])
                return

    def _remove_files(self, root: Path) -> None:
        data = root / "data"
        partitions = {path.parent for path in data.glob("*/*/*.log")}
        topics = {path.parent for path in partitions}
        journal = {data / "journal", *data.glob("journal/*.journal")}
        last = {max(partition.glob("*.log")) for partition in partitions}
        path = self.generator.choice(sorted(partitions | topics | journal | last))
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _world(self, root: Path, before: Expectation | None, life: int) -> tuple[World, History]:
        disk = SimulatedDisk(root, self.seed)
        return World(disk, self.generator, life=life), History(disk.tick, before)

    def _lives(self, world: World, history: History, count: int, *, lost_power: bool) -> None:
        """Lives on one disk, each after a clean stop or a kill of the one before."""

        async def live(broker: SimulatedBroker, io: SimulatedIo) -> None:
            nonlocal lost_power
            workload = Workload(world, history, broker, io, fails_writes=self.fails_writes)
            await workload.check(lost_power=lost_power)
            lost_power = False
            await workload.use(self.generator.randrange(ACTIONS_MAX))

        for _ in range(count):
            if self.generator.random() < 0.6:
                world.disk.kill_after(self.generator.randrange(CHANGES_BEFORE_A_KILL_MAX))
            if world.run(live):
                history.note(Expectation.all_stopped)
        files = {path: path.read_bytes() for path in world.disk.root.rglob("*") if path.is_file()}
        assert world.disk.recorded_files() == {
            str(path.relative_to(world.disk.root)): contents for path, contents in files.items()
        }, "a change of the disk was not recorded"

    def _look_at(self, world: World, history: History) -> None:
        """What a loss of power leaves, and once more when it comes during the recovery."""
        life = world.life
        before, root = self._lose_power(world, history)
        aside, history = self._world(root, before, life)
        self._lives(aside, history, 1, lost_power=True)
        before, root = self._lose_power(aside, history)
        aside, history = self._world(root, before, aside.life)
        self._lives(aside, history, 1, lost_power=True)

    def _lose_power(self, world: World, history: History) -> tuple[Expectation, Path]:
        """Any time may be the last, one within a write most of all."""
        time = self.generator.randint(0, world.disk.time)
        if world.disk.under_way and self.generator.random() < 0.4:
            time = self.generator.choice(world.disk.under_way)
        self.trace.append(time)
        self.image_count += 1
        root = self.directory / f"image-{self.image_count}"
        world.disk.image(time, self.generator, root)
        check_nothing_is_missing(root)
        return history.at(time), root


def check_nothing_is_missing(root: Path) -> None:
    """`tailrace verify` takes nothing for lost that the broker has removed, or not made yet."""
    missing = [each for each in check_files(root).findings if each.position is None and each.is_bad]
    if missing:
        raise Violation(f"falsely found missing: {missing}")
