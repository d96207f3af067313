"""A step that is asked for: until the applied state shows its end, or for a bounded time."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.core.ring.step_ends import StepReport
from tailrace_broker.model.commands import (
    AbortStep,
    AlterTopic,
    BeginStep,
    Command,
    Reslice,
    Sealed,
    Stamped,
)
from tailrace_broker.model.errors import RingRefusedError, StepNotTakenError
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.node.steps import REMEMBERED, RingSteps
from tests.support.ring.states import begin, done, led, sealed, with_topic

GROWING = with_topic(led(registered=1))
_ids = count(10**6)


class FixedRing:
    """Commits what it is asked for, and `then`: later, or before anybody sees the first."""

    def __init__(self, state: RingState, *then: Command, at_once: bool = False) -> None:
        self.state = state
        self.on_applied: list[Callable[[RingState | None, RingState], None]] = []
        self._then = then
        self._at_once = at_once

    async def change(self, command: Command) -> None:
        stamped = Stamped(next(_ids), command)
        after = apply_command(self.state, stamped)
        refusal = after.recent[stamped.id]
        if refusal is not None:
            raise RingRefusedError(refusal)
        if self._at_once:
            self.show(done(after, *self._then))
            return
        self.show(after)
        for each in self._then:
            asyncio.get_running_loop().call_soon(self.commit, each)

    def commit(self, command: Command) -> None:
        self.show(done(self.state, command))

    def show(self, after: RingState) -> None:
        before, self.state = self.state, after
        for call in self.on_applied:
            call(before, after)


class Clock:
    """12 ms later each time."""

    def __init__(self) -> None:
        self._now_s = 100.0

    def __call__(self) -> float:
        self._now_s += 0.012
        return self._now_s


def seals(before: RingState, kind: str = "grow") -> list[Sealed]:
    """What the leaders say in the step that is about to begin."""
    begun = begin(before, kind)
    assert begun.step is not None
    return [sealed(begun, range_id) for range_id in begun.step.parents]


def steps_of(ring: Any, *, seconds_max: float = 10.0) -> RingSteps:
    return RingSteps(ring, Clock(), seconds_max=seconds_max)


def take(ring: Any, *, kind: Any = "grow", brokers: int = 3, seconds_max: float = 10.0) -> Any:
    return asyncio.run(steps_of(ring, seconds_max=seconds_max).take(kind, brokers))


def not_taken(ring: Any, *, seconds_max: float = 10.0) -> StepNotTakenError:
    with pytest.raises(StepNotTakenError) as raised:
        take(ring, seconds_max=seconds_max)
    assert (raised.value.retriable, raised.value.write_attempted) == (True, False)
    return raised.value


def test_a_step_is_answered_when_its_last_range_is_sealed() -> None:
    ring = FixedRing(GROWING, *seals(GROWING))
    report: StepReport = take(ring)

    assert (report.step.kind, report.step.parents) == ("split", (0,))
    assert [each.id for each in report.step.children] == [3, 4]
    assert (report.duration_ms, report.sealed_partitions, report.new_partitions) == (12, 2, 4)
    assert report.pause_ms == 12
    assert ring.state.broker_count == 4


@pytest.mark.parametrize(("held_after_ms", "pause_ms"), [(0, 12), (5, 7), (90, 0)])
def test_a_step_pauses_from_where_a_leader_has_held_appends(
    held_after_ms: int, pause_ms: int
) -> None:
    """Another broker may have seen a shorter step than the leader."""
    [one] = seals(GROWING)
    ring = FixedRing(GROWING, replace(one, held_after_ms=held_after_ms))
    steps = steps_of(ring)
    assert asyncio.run(steps.take("grow", 3)).pause_ms == pause_ms

    assert steps.times_ms(0) == (12, pause_ms)
    assert steps.times_ms(1) == (None, None)


def test_a_step_that_is_cancelled_says_why() -> None:
    error = not_taken(FixedRing(GROWING, AbortStep(0, 0, "broker 1 is not heard")))

    assert error.members == {"reason": "cancelled", "step": 0}
    assert error.detail == (
        "step 0 was cancelled: range 0 could not be sealed in time: broker 1 is not heard; the "
        "ring is as it was"
    )


def test_another_step_of_a_ring_of_that_size_is_not_the_one_that_was_asked_for() -> None:
    wanting = done(GROWING, AlterTopic("orders", {"partitionsPerRange": 4}))
    ring = FixedRing(wanting, AbortStep(0), Reslice(1), at_once=True)

    assert not_taken(ring, seconds_max=0.01).members == {"reason": "under-way"}
    assert ring.state.step is not None


def test_who_waits_long_enough_learns_what_for() -> None:
    state = with_topic(led(4, registered=1))
    first, *_ = seals(state)
    ring = FixedRing(state, first)
    with pytest.raises(StepNotTakenError) as raised:
        take(ring, brokers=4, seconds_max=0.01)

    assert raised.value.members == {"reason": "under-way", "step": 0}
    assert ring.state.step is not None
    [missing] = {*ring.state.step.parents} - {first.range_id}
    assert f"leaders of ranges {missing};" in raised.value.detail


def test_what_came_and_went_in_one_change_is_not_reported_as_taken() -> None:
    error = not_taken(FixedRing(GROWING, AbortStep(0), at_once=True))

    assert error.members == {"reason": "under-way"}


@pytest.mark.parametrize(
    ("state", "reason"),
    [(begin(GROWING), "step-open"), (with_topic(led()), "broker-not-registered")],
)
def test_what_passes_is_worth_another_try(state: RingState, reason: str) -> None:
    assert not_taken(FixedRing(state)).members == {"reason": reason}


def test_what_does_not_pass_is_refused() -> None:
    with pytest.raises(RingRefusedError) as raised:
        take(FixedRing(GROWING), brokers=7)

    assert (raised.value.refusal.reason, raised.value.retriable) == ("stale-broker-count", False)


def test_an_open_step_has_an_age() -> None:
    ring = FixedRing(GROWING)
    steps = steps_of(ring)
    assert steps.age_ms(0) is None

    ring.commit(BeginStep("grow", 3))
    assert steps.age_ms(0) == 12


def test_only_the_last_steps_are_remembered() -> None:
    ring = FixedRing(GROWING)
    steps = steps_of(ring)
    for number in range(REMEMBERED + 1):
        ring.commit(BeginStep("grow", 3))
        ring.commit(AbortStep(number))

    assert steps.age_ms(0) is None
    assert steps.age_ms(1) is not None
