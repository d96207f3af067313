"""Sans-IO: builds the requests about the ring, and reads their answers (docs/protocol.md).

As `tailrace.protocol.requests`, whose rules hold here too.
"""

from typing import Any

from tailrace.protocol.requests import Answer, Request, json_request, parse_json
from tailrace.protocol.ring_values import (
    RangeDetails,
    RangeFollower,
    RangeReplica,
    Registration,
    RingChange,
    RingDetails,
    RingMetadata,
    RingStep,
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


def accept_loss_request(range_id: int, broker: int) -> Request:
    """`broker`: which is to lead what it has."""
    target = f"/v1/ring/ranges/{range_id}/accept-loss"
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


def parse_range(answer: Answer) -> RangeDetails:
    """As it is now."""
    return parse_json(answer, _range)


def _ring(document: Any) -> RingDetails:
    step = document["step"]
    return from_document(
        RingDetails,
        document,
        metadata=from_document(RingMetadata, document["metadata"]),
        registrations=tuple(
            from_document(Registration, registration) for registration in document["registrations"]
        ),
        ranges=tuple(map(_range, document["ranges"])),
        step=None if step is None else from_document(RingStep, step),
    )


def _range(document: Any) -> RangeDetails:
    isr = tuple(from_document(RangeReplica, each) for each in document["isr"])
    lags = document.get("followers")
    followers = lags and tuple(from_document(RangeFollower, each) for each in lags)
    return from_document(RangeDetails, document, isr=isr, followers=followers)
