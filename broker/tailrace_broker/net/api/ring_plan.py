"""What a ring would go through on its way to another size, as far as this broker can say."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from tailrace_broker.core.ring.arithmetic import UNITS
from tailrace_broker.core.ring.plans import PlannedStep, plan_ring
from tailrace_broker.model.errors import InvalidParameterError, NotReadyError
from tailrace_broker.model.ring_state import RangeState, RingState
from tailrace_broker.net.api.topics import json_response
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import Call, Parameters, Response

STEPS_MAX = 100  # of a plan, which is made at once


class PlanParameters(Parameters, frozen=True):
    """Of `GET /v1/ring/plan`."""

    brokers: Annotated[int, Meta(ge=1, le=UNITS, description="How many the ring is to have.")]


class PlannedRangeAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A range of tokens that a step seals, or makes."""

    id: Annotated[int, Meta(description="If no step is cancelled until then.")]
    start: str
    end: Annotated[str, Meta(description="The first token behind it.")]
    leader: Annotated[int, Meta(description="Its natural one.")]
    replicas: list[int]


class PlannedCopyAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A copy of a sealed range that a broker has to make after the step."""

    range: int
    broker: int
    bytes: Annotated[
        int | None, Meta(description="Null: this broker has no copy, and does not know.")
    ]


class PlannedStepAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A step of the plan; it copies nothing itself."""

    kind: Annotated[str, Meta(description="`split` or `join`.")]
    brokers_before: int
    brokers_after: int
    sealed_ranges: list[PlannedRangeAnswer]
    new_ranges: list[PlannedRangeAnswer]
    continued: Annotated[
        list[int] | None,
        Meta(description="The range of the same tokens and other replicas: before, and after."),
    ]
    sealed_partitions: Annotated[int, Meta(description="Of all topics, internal ones too.")]
    new_partitions: int
    copies: list[PlannedCopyAnswer]


class RingPlanAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """All that changes on the way; without steps: the ring has that size."""

    brokers: Annotated[int, Meta(description="How many belong to the ring now.")]
    brokers_after: int
    missing: Annotated[
        list[int], Meta(description="Brokers that are to join, and are not registered.")
    ]
    topics: Annotated[int, Meta(description="How many there are, internal ones too.")]
    steps: list[PlannedStepAnswer]
    sealed_partitions: Annotated[int, Meta(description="Of all steps; likewise below.")]
    new_partitions: int
    copy_bytes: Annotated[int, Meta(description="Of the copies whose size is known.")]
    copies_unknown: Annotated[int, Meta(description="How many copies have an unknown size.")]


async def plan(broker: Broker, call: Call) -> Response:
    """The steps to a ring of so many brokers."""
    parameters: PlanParameters = call.parameters
    broker.check_ready()
    state = broker.ring.state
    if state is None:
        raise NotReadyError("this broker is in no ring yet")
    if abs(parameters.brokers - state.broker_count) > STEPS_MAX:
        raise InvalidParameterError(
            f"the ring has {state.broker_count} brokers, and a plan at most {STEPS_MAX} steps",
            parameter="brokers",
        )
    steps = list(plan_ring(state, parameters.brokers, _sizes(broker, state)))
    joining = range(state.broker_count, parameters.brokers)
    copies = [copy for step in steps for copy in step.copies]
    return json_response(
        RingPlanAnswer(
            brokers=state.broker_count,
            brokers_after=parameters.brokers,
            missing=[each for each in joining if not _is_there(state, each)],
            topics=len(state.topics),
            steps=[*map(_step, steps)],
            sealed_partitions=sum(step.sealed_partitions for step in steps),
            new_partitions=sum(step.new_partitions for step in steps),
            copy_bytes=sum(copy.bytes or 0 for copy in copies),
            copies_unknown=sum(copy.bytes is None for copy in copies),
        )
    )


def _is_there(state: RingState, ordinal: int) -> bool:
    broker = state.brokers.get(ordinal)
    return broker is not None and not broker.is_fenced


def _sizes(broker: Broker, state: RingState) -> dict[int, int]:
    """Bytes of the ranges of which this broker has all logs."""
    sizes = dict.fromkeys(state.ranges, 0)
    for hosted in broker.topics():
        for partition in hosted.topic.partitions:
            log = hosted.replica_of(partition.partition)
            if log is None:
                sizes.pop(partition.range_id, None)
            elif partition.range_id in sizes:
                sizes[partition.range_id] += log.size_bytes
    return sizes


def _step(step: PlannedStep) -> PlannedStepAnswer:
    return PlannedStepAnswer(
        kind=step.kind,
        brokers_before=step.brokers_before,
        brokers_after=step.brokers_after,
        sealed_ranges=_ranges(step.parents),
        new_ranges=_ranges(step.children),
        continued=None if step.continued is None else [each.id for each in step.continued],
        sealed_partitions=step.sealed_partitions,
        new_partitions=step.new_partitions,
        copies=[
            PlannedCopyAnswer(range=each.range_id, broker=each.ordinal, bytes=each.bytes)
            for each in step.copies
        ],
    )


def _ranges(ranges: Iterable[RangeState]) -> list[PlannedRangeAnswer]:
    return [
        PlannedRangeAnswer(
            id=each.id,
            start=str(each.start),
            end=str(each.end),
            leader=each.natural_leader,
            replicas=list(each.replicas),
        )
        for each in ranges
    ]
