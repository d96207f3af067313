"""`Tailrace-Delivery` and `Tailrace-Assignment-Epoch`: what a consumer says of what it got."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from tailrace_broker.model.group import Confirmation
from tailrace_broker.net.api.producer_headers import read_number
from tailrace_broker.net.http.router import INT64_MAX, Parameters

DELIVERY = "Tailrace-Delivery"
ASSIGNMENT_EPOCH = "Tailrace-Assignment-Epoch"

_DELIVERY, _ASSIGNMENT_EPOCH = DELIVERY.lower().encode(), ASSIGNMENT_EPOCH.lower().encode()


_NAMES = {"delivery": DELIVERY, "assignment_epoch": ASSIGNMENT_EPOCH}


class RegistrationHeaders(Parameters, frozen=True, rename=_NAMES):
    """Of a registration that is repeated."""

    assignment_epoch: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=INT64_MAX,
                description="What the registration said: this is a heartbeat of a consumer "
                "that must still be there, and joins no group.",
            ),
        ]
        | None
    ) = None


class ConsumerHeaders(Parameters, frozen=True, rename=_NAMES):
    """Either can be left out."""

    delivery: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=INT64_MAX,
                description="The delivery that the consumer has dealt with, 0: none. Without it "
                "whatever was delivered last counts as dealt with.",
            ),
        ]
        | None
    ) = None
    assignment_epoch: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=INT64_MAX,
                description="What the registration, or the answer before, said: a process whose "
                "consumer id another has taken is refused.",
            ),
        ]
        | None
    ) = None


def read_confirmation(headers: Mapping[bytes, bytes]) -> Confirmation:
    """Read the headers of a confirmation. InvalidParameterError."""
    delivery = headers.get(_DELIVERY)
    return Confirmation(
        None if delivery is None else read_number(DELIVERY, delivery), read_epoch(headers)
    )


def read_epoch(headers: Mapping[bytes, bytes]) -> int | None:
    """The assignment that the consumer knows of. InvalidParameterError."""
    epoch = headers.get(_ASSIGNMENT_EPOCH)
    return None if epoch is None else read_number(ASSIGNMENT_EPOCH, epoch)
