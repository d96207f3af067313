"""`Tailrace-Producer-Id` and `Tailrace-Sequence`: a produce request that may be sent again."""

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.net.api.redirect import REDIRECT, RedirectValue
from tailrace_broker.net.http.router import DIGITS_MAX, INT64_MAX, Parameters, shortened

PRODUCER_ID = "Tailrace-Producer-Id"
SEQUENCE = "Tailrace-Sequence"

_PRODUCER_ID, _SEQUENCE = PRODUCER_ID.lower().encode(), SEQUENCE.lower().encode()
_NAME = re.compile(rb"[!-~]{1,128}")


class ProducerHeaders(
    Parameters,
    frozen=True,
    rename={"producer_id": PRODUCER_ID, "sequence": SEQUENCE, "redirect": REDIRECT},
):
    """Both of a producer, or none of them; and whether the request may be forwarded."""

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
    redirect: RedirectValue | None = None


class Sender(NamedTuple):
    """A producer, with the name that it gave itself."""

    name: bytes
    producer: Producer


def read_sender(headers: Mapping[bytes, bytes]) -> Sender | None:
    """Read the headers of a producer; None: there were none of them. InvalidParameterError."""
    name, sequence = headers.get(_PRODUCER_ID), headers.get(_SEQUENCE)
    if name is None and sequence is None:
        return None
    if name is None:
        raise _missing(PRODUCER_ID, SEQUENCE)
    if sequence is None:
        raise _missing(SEQUENCE, PRODUCER_ID)
    if not _NAME.fullmatch(name):
        raise _wrong(PRODUCER_ID, name, "1 to 128 visible ASCII characters")
    return Sender(name, Producer.named(name, read_number(SEQUENCE, sequence)))


def read_number(header: str, value: bytes) -> int:
    """A header that is a whole number from 0 on. InvalidParameterError."""
    is_number = value.isdigit() and len(value) <= DIGITS_MAX
    if not is_number or int(value) > INT64_MAX:
        raise _wrong(header, value, f"a whole number from 0 to {INT64_MAX}")
    return int(value)


def _missing(header: str, other: str) -> InvalidParameterError:
    return InvalidParameterError(f"{header} is missing; {other} needs it", parameter=header)


def _wrong(header: str, value: bytes, wanted: str) -> InvalidParameterError:
    shown = shortened(value.decode("latin-1"))
    return InvalidParameterError(f"{header} is {shown}; it is {wanted}", parameter=header)
