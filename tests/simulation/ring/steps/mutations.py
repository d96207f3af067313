"""Mutations of steps: each function takes one rule from the shipped machines."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace_broker.core.replication import sealing
from tailrace_broker.core.replication.events import LeaderEffect
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.progress import LedLog, Progress
from tailrace_broker.core.replication.sealing import Sealing
from tailrace_broker.core.replication.succession import Succession
from tailrace_broker.core.ring import (
    commands,
    copies,
    range_commands,
    step_commands,
    topic_commands,
)
from tailrace_broker.core.ring.steps import Step, plan_step
from tailrace_broker.model.commands import Sealed
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, Refusal, Replica, RingState
from tailrace_broker.model.topic import Partition
from tests.simulation.ring.data.truth import Truth
from tests.simulation.ring.steps.retention import SealedRetention

# The least that a step takes: a reopened range has taken events before the late answer.
REOPEN_MS = 20


def sealed_before_all_is_committed(patch: pytest.MonkeyPatch) -> None:
    """The leader's own end is reported, whatever others have."""

    def is_whole(key: LogKey, counted: Sequence[Progress], logs: Mapping[LogKey, LedLog]) -> bool:
        return key in logs and not logs[key].ends.under_way

    patch.setattr(sealing, "_is_whole", is_whole)


def sealed_before_it_is_flushed(patch: pytest.MonkeyPatch) -> None:
    """A `written` topic need not be."""

    def is_whole(key: LogKey, counted: Sequence[Progress], logs: Mapping[LogKey, LedLog]) -> bool:
        return key in logs and logs[key].is_committed

    patch.setattr(sealing, "_is_whole", is_whole)


def reopened_after_an_unknown_answer(patch: pytest.MonkeyPatch) -> None:
    """Who is not answered soon takes appends again, in the same epoch."""
    shipped = Sealing.step

    def step(
        self: Sealing,
        view: Any,
        succession: Succession,
        progress: Any,
        counted: Any,
        logs: Any,
        clock_ms: int,
    ) -> list[Any]:
        held_ms = succession.held_ms
        if self.has_reported and held_ms is not None and clock_ms - held_ms > REOPEN_MS:
            succession.held_ms, self.has_reported = None, False
            return []
        return shipped(self, view, succession, progress, counted, logs, clock_ms)

    patch.setattr(Sealing, "step", step)
    patch.setattr(Truth, "held", lambda self, led: None)  # only what is lost counts


def appends_go_on_after_an_abort_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    """A step that is gone ends the hold."""
    shipped = RangeLeader._close

    def close(self: RangeLeader, clock_ms: int) -> list[LeaderEffect]:
        succession = self.succession
        if self._view.step is None and succession._is_for_step:
            succession.held_ms, succession._is_for_step = None, False
            self._sealing = Sealing(self._me, self._timing, self._rules)
        return shipped(self, clock_ms)

    patch.setattr(RangeLeader, "_close", close)


def late_commit_after_reopen(patch: pytest.MonkeyPatch) -> None:
    """And ends that were proposed for a step which is gone are taken for the next one."""
    appends_go_on_after_an_abort_in_the_same_epoch(patch)
    shipped = step_commands.seal

    def seal(state: RingState, command: Sealed) -> RingState | Refusal:
        if state.step is not None:
            command = replace(command, step=state.step.id)
        return shipped(state, command)

    patch.setitem(commands._APPLY, Sealed, seal)
    patch.setattr(Truth, "held", lambda self, led: None)


def ends_of_a_wrong_epoch_accepted(patch: pytest.MonkeyPatch) -> None:
    """Nor does a new epoch cancel the step: either alone is masked by the other."""
    shipped = step_commands.seal

    def seal(state: RingState, command: Sealed) -> RingState | Refusal:
        owner = state.ranges.get(command.range_id)
        if owner is not None:
            command = replace(command, epoch=owner.epoch)
        return shipped(state, command)

    def led(
        state: RingState, led: RangeState, leader: Replica, isr: tuple[Replica, ...]
    ) -> RingState:
        version = led.version + (isr != led.isr)
        now = replace(led, epoch=led.epoch + 1, version=version, leader=leader, isr=isr)
        return replace(state, ranges={**state.ranges, led.id: now})

    patch.setitem(commands._APPLY, Sealed, seal)
    patch.setattr(range_commands, "_led", led)


def bystander_range_not_continued(patch: pytest.MonkeyPatch) -> None:
    """The range whose replicas the step changes goes on with the old ones."""

    def plan(*, before_count: int, after_count: int) -> Step:
        found = plan_step(before_count=before_count, after_count=after_count)
        return Step(found.parents, found.children, None)

    patch.setattr(step_commands, "plan_step", plan)


def sealed_copy_dropped_before_enough_are_whole(patch: pytest.MonkeyPatch) -> None:
    """Who is to hold a range counts as if it did."""

    def complete_in_ring(state: RingState, held: RangeState, *, but: int) -> int:
        return sum(each < state.broker_count and each != but for each in held.replicas)

    patch.setattr(copies, "_complete_in_ring", complete_in_ring)


def copies_lack_a_restored_topic(patch: pytest.MonkeyPatch) -> None:
    """What was copied while it was deleted passes for whole."""
    patch.setattr(topic_commands, "begun_again", lambda state, topic: state)


def children_begin_at_the_smallest_end(patch: pytest.MonkeyPatch) -> None:
    """Of their parents, so that offsets of a token come again."""
    shipped = step_commands._Lineage._new_slices

    def slices(self: Any, topic: Any, old: Any, parents_of: Any, ids: Any, ends: list[int]) -> Any:
        return shipped(self, topic, old, parents_of, ids, [min(ends)] * len(ends))

    patch.setattr(step_commands._Lineage, "_new_slices", slices)


def sealed_copies_trimmed_by_the_clock_of_each_holder(patch: pytest.MonkeyPatch) -> None:
    """Which may be days ahead; what the ring has decided does not count."""

    def start_at(self: SealedRetention, start: int, partition: Partition) -> int:
        assert partition.sealed_end is not None
        return self._random.randint(start, partition.sealed_end)

    patch.setattr(SealedRetention, "start_at", start_at)
