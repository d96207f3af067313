"""Sans-IO: builds the requests about the ring, and reads their answers (docs/protocol.md).

As `tailrace.protocol.requests`, whose rules hold here too.
"""

from typing import Any

from tailrace.protocol.requests import Answer, Request, json_request, parse_json
from tailrace.protocol.ring_values import (
    AcceptedLoss,
    LastStep,
    LostOffsets,
    PlannedCopy,
    PlannedRange,
    PlannedStep,
    RangeDetails,
    RangeFollower,
    RangeReplica,
    Registration,
    RingChange,
    RingDetails,
    RingMetadata,
    RingPlan,
    RingStep,
    StepResult,
)
from tailrace.values import from_document


def ring_request(*, consistent: bool = False) -> Request:
    """`consistent`: all that was committed up to now, which needs a majority of the voters."""
    return Request("GET", "/v1/ring?consistent=true" if consistent else "/v1/ring")


def ring_history_request() -> Request:
    """Of the broker that is asked."""
    return Request("GET", "/v1/ring/history")


def found_request(brokers: int) -> Request:
    """Of brokers 0 to `brokers` - 1."""
    return json_request("POST", "/v1/ring/found", {"brokers": brokers})


def step_request(kind: str, brokers_before: int) -> Request:
    """`kind`: grow or shrink; `brokers_before`: how many the ring has until then."""
    document = {"kind": kind, "brokersBefore": brokers_before}
    return json_request("POST", "/v1/ring/steps", document)


def ring_plan_request(brokers: int) -> Request:
    """Of the steps to so many brokers."""
    return Request("GET", f"/v1/ring/plan?brokers={brokers}")


def retire_request(broker: int, *, accept_loss: bool = False) -> Request:
    """`broker`: one that has left the ring."""
    target = f"/v1/ring/brokers/{broker}/retire"
    return json_request("POST", target, {"acceptLoss": accept_loss})


def accept_loss_request(range_id: int, broker: int, *, dry_run: bool = False) -> Request:
    """`broker`: which is to lead what it has; of a sealed range, whose copy is to count."""
    target = f"/v1/ring/ranges/{range_id}/accept-loss{'?dryRun=true' if dry_run else ''}"
    return json_request("POST", target, {"broker": broker})


def recover_metadata_request(*, accept_loss: bool) -> Request:
    """Refused unless `accept_loss`."""
    return json_request("POST", "/v1/ring/metadata/recover", {"accept_loss": accept_loss})


def parse_ring(answer: Answer) -> RingDetails:
    """Registrations by ordinal, ranges in token order."""
    return parse_json(answer, _ring)


def parse_ring_history(answer: Answer) -> list[RingChange]:
    """The oldest first."""

    def changes(document: Any) -> list[RingChange]:
        return [from_document(RingChange, each) for each in document["changes"]]

    return parse_json(answer, changes)


def parse_step_result(answer: Answer) -> StepResult:
    """What the step has changed."""
    return parse_json(answer, lambda document: from_document(StepResult, document))


def parse_ring_plan(answer: Answer) -> RingPlan:
    """Its steps are in their order."""
    return parse_json(answer, _plan)


def parse_accepted_loss(answer: Answer) -> AcceptedLoss:
    """The range as it is now, and what it lacks."""
    return parse_json(answer, _accepted)


def _ring(document: Any) -> RingDetails:
    step, last_step = document["step"], document.get("lastStep")
    return from_document(
        RingDetails,
        document,
        metadata=from_document(RingMetadata, document["metadata"]),
        registrations=tuple(
            from_document(Registration, registration) for registration in document["registrations"]
        ),
        ranges=tuple(map(_range, document["ranges"])),
        step=None if step is None else from_document(RingStep, step),
        last_step=None if last_step is None else from_document(LastStep, last_step),
    )


def _plan(document: Any) -> RingPlan:
    return from_document(RingPlan, document, steps=tuple(map(_planned_step, document["steps"])))


def _planned_step(document: Any) -> PlannedStep:
    return from_document(
        PlannedStep,
        document,
        sealed_ranges=tuple(from_document(PlannedRange, each) for each in document["sealedRanges"]),
        new_ranges=tuple(from_document(PlannedRange, each) for each in document["newRanges"]),
        copies=tuple(from_document(PlannedCopy, each) for each in document["copies"]),
    )


def _range(document: Any) -> RangeDetails:
    isr = tuple(from_document(RangeReplica, each) for each in document["isr"])
    lags = document.get("followers")
    followers = lags and tuple(from_document(RangeFollower, each) for each in lags)
    return from_document(RangeDetails, document, isr=isr, followers=followers)


def _accepted(document: Any) -> AcceptedLoss:
    lost = tuple(from_document(LostOffsets, each) for each in document["lost"])
    fenced = tuple(document["fenced"])
    return AcceptedLoss(_range(document), lost, fenced, document["dryRun"])
