"""The last changes of the ring's state, as this broker applied them -> an answer."""

from typing import Annotated

import msgspec
from msgspec import Meta

from tailrace_broker.codec.records import format_timestamp
from tailrace_broker.core.ring.changes import AppliedChange, Kind
from tailrace_broker.net.api.topics import json_response
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import Call, Response


class ChangeAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A change of a registration, a leader, an ISR or a step."""

    number: Annotated[int, Meta(description="Of the changes since the broker's start, from 1 on.")]
    at: Annotated[str, Meta(description="When this broker applied it, by its clock.")]
    kind: Annotated[
        Kind,
        Meta(
            description="`registered`, `fenced`, `heard` (no longer fenced), `retired`: of the "
            "broker; `leads`, `leaderless`, `joined`, `left`, `ghost`, `sealed`: of the range; "
            "`step`: it has begun, is done, or was cancelled; `loss`: a person has accepted it."
        ),
    ]
    broker: Annotated[int | None, Meta(description="Whom it is about; null: no broker leads.")]
    range: int | None
    epoch: Annotated[int | None, Meta(description="Of the range, after the change.")]
    text: Annotated[str, Meta(description="All of it in words.")]


class RingHistory(msgspec.Struct, rename="camel"):
    """What the broker that answers has applied since its start."""

    changes: Annotated[list[ChangeAnswer], Meta(description="The last 1,000, the oldest first.")]


async def list_changes(broker: Broker, _: Call) -> Response:
    """Changes of leaders, ISRs, ghosts, registrations and steps."""
    return json_response(RingHistory([_answer(each) for each in broker.ring_history()]))


def _answer(applied: AppliedChange) -> ChangeAnswer:
    change = applied.change
    return ChangeAnswer(
        number=applied.number,
        at=format_timestamp(applied.at_us).decode(),
        kind=change.kind,
        broker=change.broker,
        range=change.range_id,
        epoch=change.epoch,
        text=change.text,
    )
