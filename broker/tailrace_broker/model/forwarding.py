"""Messages between a broker that took a request and the leader that executes it, as values.

The first one dials and numbers its requests; numbers grow, and an answer names that of its request.
`turn`: how often the sender has begun again with what waits for a partition. After a refusal the
leader refuses all of the same turn, so that nothing passes what was refused.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from tailrace_broker.model.replication import LogKey

# Members of a problem document.
ErrorMembers = Mapping[str, str | int | bool | list[int]]

# As batches and their headers hold them: what a message brings is packed without another look.
_Uint16 = Annotated[int, Meta(ge=0, lt=2**16)]
_Uint32 = Annotated[int, Meta(ge=0, lt=2**32)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Sequence = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_ProducerId = Annotated[bytes, Meta(max_length=16)]

# --- from the broker that forwards ---


class TurnOf(NamedTuple):
    """A partition, and the sender's turn with it."""

    log: LogKey
    turn: int


class ForwardedEvent(NamedTuple):
    """A single event. `place`: index of its partition in the message; no producer: empty."""

    place: int
    value: bytes
    key: bytes | None
    timestamp_us: _Int64
    flags: _Uint16
    producer_id: _ProducerId
    sequence: _Sequence


class ForwardedEvents(NamedTuple):
    """Single events of one turn of the event loop, numbered from `first` on."""

    first: int
    places: tuple[TurnOf, ...]
    events: tuple[ForwardedEvent, ...]


class ForwardedBatch(NamedTuple):
    """A request's records; the payload, compressed and checksummed for good, travels beside.

    The fields are those of a `BatchBody`; no producer: empty.
    """

    number: int
    place: TurnOf
    producer_id: _ProducerId
    sequence: _Sequence
    record_count: _Uint32
    flags: _Uint16
    codec: int
    uncompressed_bytes: _Uint32
    payload_crc: _Uint32
    first_timestamp_us: _Int64
    largest_timestamp_us: _Int64


# The method of a call for what a sealed log remembers of its producers; no listener knows it.
PRODUCERS = "PRODUCERS"


class ForwardedCall(NamedTuple):
    """A request as it came, a GET mostly. Its number is one among such requests of the link.

    `target`: path and query. `headers`: Tailrace's own, by name in lower case.
    """

    number: int
    target: bytes
    accept: str
    method: str = "GET"
    content_type: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class CallMore(NamedTuple):
    """The last part has been taken: send the next."""

    number: int


class CallCancelled(NamedTuple):
    """Nobody waits for the answer any more, or it has not reached who asked."""

    number: int


# --- from the leader ---


class StoredAppend(NamedTuple):
    """A request whose records are stored, from `offset` on."""

    number: int
    offset: int
    is_duplicate: bool
    copies: int


class FailedRequest(NamedTuple):
    """A request that failed; `error`: the name of its class."""

    number: int
    error: str
    detail: str
    members: ErrorMembers
    write_attempted: bool


class InheritedAppend(NamedTuple):
    """A request whose records are stored in an ancestor of the partition, from `offset` on."""

    number: int
    partition: int
    offset: int


class AppendAnswers(NamedTuple):
    """Of one turn of the event loop."""

    stored: tuple[StoredAppend, ...]
    failed: tuple[FailedRequest, ...] = ()
    inherited: tuple[InheritedAppend, ...] = ()


class CallAnswer(NamedTuple):
    """The head of an answer, and the first part of its body beside."""

    number: int
    status: int
    content_type: str
    headers: Mapping[str, str]
    is_last: bool


class CallPart(NamedTuple):
    """The next part of a body, beside."""

    number: int
    is_last: bool


class CallFailed(NamedTuple):
    """No answer, or no end of it."""

    failure: FailedRequest


ToServer = ForwardedEvents | ForwardedBatch | ForwardedCall | CallMore | CallCancelled
ToForwarder = AppendAnswers | CallAnswer | CallPart | CallFailed
