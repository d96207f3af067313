"""A bit of what is stored flips. It is never served, and never taken for a cut or an end.

Each offset that was committed is served as it was sent, or reported as damaged. A start may also be
refused, and so may a cut.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tailrace_broker.model.append_outcome import CutOutcome, LogIsCut
from tailrace_broker.model.damage import unreadable
from tailrace_broker.model.errors import CorruptMetadataError, CorruptPartitionError
from tailrace_broker.storage.files.direct_file import sync_file_system
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.simulation.cuts.leader import ScriptedLeader
from tests.simulation.cuts.model import ModelBatch, ModelLog
from tests.simulation.cuts.replica import KIBIBYTE, Disk, History, Replica, model_of
from tests.simulation.world import SimulatedIo, Violation, World

SUFFIXES = {".log", ".journal", ".idx"}


@dataclass
class Rot:
    """`counts`: where bits were flipped, and what was found."""

    world: World
    generator: random.Random
    history: History
    counts: Counter[str]
    committed: list[int] = field(default_factory=list)
    may_undo_cuts: bool = False  # they stand in the journal, which a start reads

    def live(self, action_count: int, *, is_killed: bool) -> None:
        """A life without trouble; all but its last two batches is committed, provably."""

        async def whole_life(io: SimulatedIo) -> None:
            replica = Replica(Disk(self.world.disk.root / "data", io), self.history)
            resources = await replica.open(lost_power=False)
            leader = ScriptedLeader(replica, self.generator, 1, 0)
            await leader.use(action_count)
            await leader.prove()
            self.committed = list(leader.committed)
            if is_killed:
                self.world.disk.is_dead = True
                io.died.set_result(None)
                return
            for log in replica.logs:
                await log.close()
            await resources.flusher.flush_all()
            resources.close()

        self.world.run_life(whole_life)

    def look(self, *, is_running: bool) -> None:
        """At all that is stored, after a flip. `is_running`: it is flipped after the start."""

        async def whole_life(io: SimulatedIo) -> None:
            data = self.world.disk.root / "data"
            replica = Replica(Disk(data, io), self.history)
            if not is_running:
                self.may_undo_cuts = self._flip().suffix == ".journal"
            try:
                resources = await replica.open(lost_power=False, is_damaged=True)
            except (CorruptMetadataError, CorruptPartitionError):
                self.counts["starts that were refused"] += 1
                return
            await io.run(partial(sync_file_system, data))
            if is_running:
                self._flip()
            for partition, log in enumerate(replica.logs):
                await self._check(partition, log)
            if is_running:
                for partition, log in enumerate(replica.logs):
                    await self._cut(partition, log)
            resources.close()

        self.world.run_life(whole_life)

    def _flip(self) -> Path:
        """A bit of a block in which something is stored; of which file."""
        files = [each for each in self.world.disk.root.rglob("*") if each.suffix in SUFFIXES]
        path = self.generator.choice(sorted(each for each in files if any(each.read_bytes())))
        contents = bytearray(path.read_bytes())
        position = self.generator.choice([at for at, byte in enumerate(contents) if byte])
        contents[position] ^= 1 << self.generator.randrange(8)
        path.write_bytes(contents)
        self.counts[f"bits of a {path.suffix[1:]} file"] += 1
        return path

    async def _check(self, partition: int, log: PartitionLog) -> None:
        """Each offset is served as it was sent, or reported as damaged."""
        model = self.history.now[partition]
        if log.log_start != model.start:
            raise Violation(f"partition {partition}: it starts at {log.log_start}, of {model}")
        log.commit(log.log_end)
        offset, end = log.log_start, log.log_end
        while offset < end:
            try:
                batches = await log.read(offset, 64 * KIBIBYTE)
            except CorruptPartitionError as error:
                damaged = unreadable(error)
                self.counts["reads that met damage"] += 1
                if damaged is None:
                    assert log.lost_end is not None
                    break
                offset = damaged.stop
                continue
            for batch in batches:
                self._check_served(partition, model, model_of(batch))
                offset = batch.header.end_offset
        if log.lost_end is not None:
            self.counts["logs without their end"] += 1
        elif end < self.committed[partition]:
            raise Violation(
                f"partition {partition}: a flipped bit is its end: it ends at {end}, not at "
                f"{self.committed[partition]} or above"
            )
        elif end > model.end:
            raise Violation(f"partition {partition}: it ends at {end}, behind {model.end}")

    def _check_served(self, partition: int, model: ModelLog, found: ModelBatch) -> None:
        """What nothing proves to be committed may be missing, with the cut of what was before it.

        The leader cuts that again. A flip elsewhere than in the journal brings nothing back.
        """
        is_committed = found.base_offset < self.committed[partition]
        may_be_old = self.may_undo_cuts and not is_committed
        if found not in (self.history.ever(partition) if may_be_old else model.batches):
            raise Violation(f"partition {partition}: a flipped bit is served: {found}")

    async def _cut(self, partition: int, log: PartitionLog) -> None:
        """At the end of a batch. When it is done the log ends there, and what is left is right."""
        model = self.history.now[partition]
        batch = self.generator.choice(model.batches)
        outcomes: list[CutOutcome] = []
        log.cut(batch.end_offset, batch.epoch, outcomes.append, is_reset=False)
        await log.drained()
        (outcome,) = outcomes
        self.counts[f"cuts: {type(outcome).__name__}"] += 1
        if isinstance(outcome, LogIsCut):
            if log.log_end != batch.end_offset:
                raise Violation(f"partition {partition}: cut at {log.log_end}, not at {batch}")
            self.committed[partition] = min(self.committed[partition], batch.end_offset)
            await self._check(partition, log)
