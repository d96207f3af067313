"""`Tailrace-Producer-Id` and `Tailrace-Sequence`: a produce request that may be sent again."""

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

from tailrace_broker.core.producers import Producer
from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.net.routes import DIGITS_MAX, INT64_MAX, Parameters, shortened

PRODUCER_ID = "Tailrace-Producer-Id"
SEQUENCE = "Tailrace-Sequence"

_NAME = re.compile(rb"[!-~]{1,128}")


class ProducerHeaders(
    Parameters, frozen=True, rename={"producer_id": PRODUCER_ID, "sequence": SEQUENCE}
):
    """Both, or none of them."""

    producer_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=128,
                pattern="^[!-~]+$",
                description="The sender's own name, with a sequence: a retry is then stored once. "
                "Decides the partition of events without a key.",
            ),
        ]
        | None
    ) = None
    sequence: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=INT64_MAX,
                description="The number of the request among the producer's; a retry has the same.",
            ),
        ]
        | None
    ) = None


class Sender(NamedTuple):
    """A producer, with the name that it gave itself."""

    name: bytes
    producer: Producer


def read_sender(name: bytes | None, sequence: bytes | None) -> Sender | None:
    """Of the headers as they came; None: there were none of them. InvalidParameterError."""
    if name is None and sequence is None:
        return None
    if name is None:
        raise _missing(PRODUCER_ID, SEQUENCE)
    if sequence is None:
        raise _missing(SEQUENCE, PRODUCER_ID)
    if not _NAME.fullmatch(name):
        raise _wrong(PRODUCER_ID, name, "1 to 128 visible ASCII characters")
    is_number = sequence.isdigit() and len(sequence) <= DIGITS_MAX
    if not is_number or int(sequence) > INT64_MAX:
        raise _wrong(SEQUENCE, sequence, f"a whole number from 0 to {INT64_MAX}")
    return Sender(name, Producer.named(name, int(sequence)))


def _missing(header: str, other: str) -> InvalidParameterError:
    return InvalidParameterError(f"{header} is missing; {other} needs it", parameter=header)


def _wrong(header: str, value: bytes, wanted: str) -> InvalidParameterError:
    shown = shortened(value.decode("latin-1"))
    return InvalidParameterError(f"{header} is {shown}; it is {wanted}", parameter=header)
