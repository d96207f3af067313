"""A disk in trouble: it is full, or calls of it fail; and a leader that lives with it."""

import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.model.append_outcome import (
    AppendFailed,
    CutFailed,
    CutOutcome,
    CutRefused,
    Misfit,
    MisfitReason,
)
from tests.simulation.cuts.leader import ScriptedLeader
from tests.simulation.cuts.model import ModelLog, Operation
from tests.simulation.world import Violation
from tests.support.storage.simulated_disk import Call, SimulatedDisk

FAILURE_IN_CALLS_MAX = 12
FAILURES_MAX = 3
TROUBLE_SHARE = 0.3
REPAIR_WEIGHT = 12


@dataclass
class Troubles:
    """What fails now. `counts`: how often a call failed, by its errno and by what was asked for."""

    disk: SimulatedDisk
    generator: random.Random
    counts: Counter[str]
    logs: Callable[[], Sequence[ModelLog]]
    has_met: bool = field(default=False, init=False)
    _is_over: bool = field(default=False, init=False)
    _calls_left: int = field(default=0, init=False)
    _failures_left: int = field(default=0, init=False)

    def begin(self) -> None:
        """Now and then the disk is full from now on, or a call fails, with a few that follow."""
        if self._is_over or self.generator.random() >= TROUBLE_SHARE:
            return
        if self.generator.random() < 0.5:
            self.disk.trouble = self._is_full
            return
        self._calls_left = self.generator.randrange(FAILURE_IN_CALLS_MAX)
        self._failures_left = self.generator.randint(1, FAILURES_MAX)
        self.disk.trouble = self._fails

    def end(self, *, for_good: bool = False) -> None:
        """All is well again."""
        self.disk.trouble = lambda call: None
        self._is_over = for_good

    def _is_full(self, call: Call) -> int | None:
        return self._note(errno.ENOSPC) if call.takes_space else None

    def _fails(self, _: Call) -> int | None:
        self._calls_left -= 1
        if self._calls_left >= 0 or not self._failures_left:
            return None
        self._failures_left -= 1
        return self._note(errno.EIO)

    def _note(self, number: int) -> int:
        self.has_met = True
        heads = [log.under_way[0] for log in self.logs() if log.under_way]
        is_cut = any(each.batches is None for each in heads)
        what = "a cut" if is_cut else "a batch" if heads else "nothing"
        self.counts[f"{errno.errorcode[number]} with {what} under way"] += 1
        return number


@dataclass
class TroubledLeader(ScriptedLeader):
    """Repeats a cut that has failed, and sends something else where an append has."""

    troubles: Troubles = field(kw_only=True)

    async def use(self, action_count: int) -> None:
        """In the end the disk works, and so does the log."""
        await super().use(action_count)
        self.troubles.end(for_good=True)
        for partition, log in enumerate(self.replica.logs):
            await log.spilled()
            if self._has_failed_cut(partition):
                self._repeat_cut(partition)
                await self._settle(partition)
            before = self._models[partition].end
            await self._append(partition)
            await self._settle(partition)
            if self._models[partition].end == before or self._models[partition].failed:
                raise Violation(f"{partition}: an append failed though the disk works")

    def _actions(self) -> list[tuple[int, Callable[[int], Awaitable[None]]]]:
        return [*super()._actions(), (REPAIR_WEIGHT, self._repair)]

    async def _repair(self, _: int) -> None:
        self.troubles.end()

    async def _trim(self, partition: int) -> None:
        self.troubles.end()
        await super()._trim(partition)

    # --- batches ---

    def _append_stored(self, partition: int, batches: Sequence[StoredBatch]) -> None:
        self.troubles.begin()
        super()._append_stored(partition, batches)

    def _check_acknowledged(self, partition: int) -> None:
        log, end = self.replica.logs[partition], self._models[partition].end
        if log.log_end < end:
            raise Violation(f"{partition}: it ends at {log.log_end}, {end} was acknowledged")

    def _on_append_failed(self, partition: int, outcome: AppendFailed) -> None:
        self._check_failure(partition, outcome)
        self.replica.notes.note(partition, methodcaller("has_failed"))
        model, log = self._models[partition], self.replica.logs[partition]
        self.committed[partition] = min(self.committed[partition], model.expected().end)
        if log.log_end != model.end and not self._has_failed_cut(partition):
            raise Violation(f"{partition}: it ends at {log.log_end}, not {model.end}: {outcome}")
        self.troubles.counts["failed appends"] += 1

    def _on_misfit(self, partition: int, misfit: Misfit) -> None:
        self.replica.notes.note(partition, methodcaller("refused"))
        model = self._models[partition]
        if any(each.is_in_doubt for each in model.under_way):
            return
        is_half_cut = self._has_failed_cut(partition)
        if misfit.reason is not MisfitReason.CUT_FAILED or not is_half_cut:
            raise Violation(f"{partition}: {misfit}")
        self.troubles.counts["appends after half a cut"] += 1

    # --- cuts ---

    async def _cut(self, partition: int) -> None:
        if self._has_failed_cut(partition) and self._models[partition].under_way:
            await self._settle(partition)
        model, log = self._models[partition], self.replica.logs[partition]
        has_failed = self._has_failed_cut(partition)
        is_as_it_was = log.log_end == model.end and not model.under_way
        if has_failed and not (is_as_it_was and self.generator.random() < 0.4):
            self._repeat_cut(partition)
        else:  # a newer leader cuts elsewhere
            await super()._cut(partition)

    async def _reset(self, partition: int) -> None:
        if not self._models[partition].failed:
            await super()._reset(partition)

    def _has_failed_cut(self, partition: int) -> bool:
        return any(each.batches is None for each in self._models[partition].failed)

    def _repeat_cut(self, partition: int) -> None:
        failed = [each for each in self._models[partition].failed if each.batches is None]
        lowest = min(failed, key=lambda each: (not each.is_reset, each.end))
        self._ask_cut(partition, lowest)

    def _ask_cut(self, partition: int, operation: Operation) -> None:
        self.troubles.begin()
        super()._ask_cut(partition, operation)

    def _on_cut_failed(self, partition: int, operation: Operation, outcome: CutOutcome) -> None:
        self._check_failure(partition, outcome)
        may_be_refused = operation.is_in_doubt or self._has_failed_cut(partition)
        if isinstance(outcome, CutRefused) and may_be_refused:
            self.replica.notes.note(partition, methodcaller("passed_over"))
            return
        if not isinstance(outcome, CutFailed):
            raise Violation(f"{partition}: {operation}: {outcome}")
        self.replica.notes.note(partition, methodcaller("has_failed"))
        self.troubles.counts["failed cuts"] += 1

    def _check_failure(self, partition: int, outcome: AppendFailed | CutOutcome) -> None:
        if not self.troubles.has_met:
            raise Violation(f"{partition}: nothing of the disk has failed: {outcome}")
