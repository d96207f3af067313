"""Accepts what a range has lost, so that it goes on (docs/operations.md)."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tailrace_broker.core.ring import range_commands
from tailrace_broker.core.ring.arithmetic import UNITS
from tailrace_broker.core.ring.lost_copies import fenced_holders
from tailrace_broker.model.commands import AcceptLoss
from tailrace_broker.model.errors import NoLeaderError, NotReadyError, RingRefusedError
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.ring_state import LostOffsets, Refusal, RingState
from tailrace_broker.net.api.ring import Ordinals, RangeAnswer, RangePath, range_answer, refused
from tailrace_broker.net.api.topics import json_response, parse_body
from tailrace_broker.net.broker import Broker, contents_of
from tailrace_broker.net.http.router import AnswerForm, Call, Listeners, Response, Route

# How long a broker is asked what it lacks: one that waits for its range is ready after 2 s.
ASK_SECONDS = 5.0
RETRY_SECONDS = 0.2


class RangeLossParameters(RangePath, frozen=True):
    """Of `POST /v1/ring/ranges/{range}/accept-loss`."""

    dry_run: Annotated[bool, Meta(description="`true`: only say what would be lost.")] = False


class AcceptedLoss(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/ring/ranges/{range}/accept-loss`."""

    broker: Annotated[
        int,
        Meta(
            ge=0,
            le=UNITS - 1,
            description="Which is to lead what it has; of a sealed range, whose copy is to count.",
        ),
    ]


class LostAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """Offsets of a partition that are lost."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


class AcceptedRangeAnswer(RangeAnswer, rename="camel", kw_only=True):
    """The range as it is then, and what it has lost."""

    lost: Annotated[
        list[LostAnswer],
        Meta(
            description="Of a sealed range, or the only copy, what the broker lacks, of topics not "
            "deleted."
        ),
    ]
    fenced: Annotated[
        Ordinals,
        Meta(
            description="Fenced brokers that had all of the range: one that still runs may "
            "acknowledge events until it hears of this, and they are lost."
        ),
    ]
    dry_run: bool


async def accept_loss(broker: Broker, call: Call) -> Response:
    """Have the broker that was named lead the range, or its copy count as the whole one."""
    parameters: RangeLossParameters = call.parameters
    wanted = parse_body(call.body, AcceptedLoss)
    state = await broker.ring.current()
    found = state.ranges.get(parameters.range)
    if found is None:
        known = ", ".join(map(str, sorted(state.ranges)))
        raise refused("range-not-found", f"no range {parameters.range}; there are {known}")
    registration = state.brokers.get(wanted.broker)
    if registration is None:
        known = ", ".join(map(str, sorted(state.brokers)))
        raise refused("not-registered", f"no broker {wanted.broker} is registered; {known} are")
    command = AcceptLoss(found.id, found.epoch, wanted.broker, registration.number)
    if not found.is_sealed and len(found.replicas) > 1:
        _check(state, command)
    lost = await _lost_at(broker, found.id, wanted.broker)
    command = msgspec.structs.replace(command, lost=lost)
    fenced = fenced_holders(state, found)
    if parameters.dry_run:
        _check(state, command)
    else:
        await broker.ring.change(command)
        state = broker.ring.state or state
    answer = range_answer(state, state.ranges[found.id], broker.replication_lags())
    return json_response(
        AcceptedRangeAnswer(
            **msgspec.structs.asdict(answer),
            lost=_shown(state, command.lost),
            fenced=[each for each in fenced if each != wanted.broker],
            dry_run=parameters.dry_run,
        )
    )


def _check(state: RingState, command: AcceptLoss) -> None:
    """RingRefusedError: the ring would refuse it."""
    outcome = range_commands.accept_loss(state, command)
    if isinstance(outcome, Refusal):
        raise RingRefusedError(outcome)


async def report_lost(broker: Broker, call: Call) -> Response:
    """Report to another broker what this one lacks of a range."""
    parameters: RangePath = call.parameters
    return json_response(await broker.lost_here(parameters.range))


async def _lost_at(broker: Broker, range_id: int, ordinal: int) -> tuple[LostOffsets, ...]:
    """What that broker lacks, which may just have started. RingRefusedError: it has set aside what
    may hold more.
    """
    loop = asyncio.get_running_loop()
    late_s = loop.time() + ASK_SECONDS
    while True:
        try:
            return await _ask_lost(broker, range_id, ordinal)
        except (NoLeaderError, NotReadyError):
            if loop.time() >= late_s:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def _ask_lost(broker: Broker, range_id: int, ordinal: int) -> tuple[LostOffsets, ...]:
    if ordinal == broker.ordinal:
        return tuple(await broker.lost_here(range_id))
    request = ForwardedCall(0, f"/internal/lost/{range_id}".encode(), "")
    content = await contents_of(await broker.forward_call(ordinal, request))
    return msgspec.json.decode(content, type=tuple[LostOffsets, ...])


def _shown(state: RingState, lost: Sequence[LostOffsets]) -> list[LostAnswer]:
    names = {topic.id: topic.name for topic in state.topics.values()}
    return [
        LostAnswer(
            topic=names[each.topic_id],
            partition=each.partition,
            first_offset=each.first,
            last_offset=each.end - 1,
        )
        for each in lost
        if each.topic_id in names
    ]


# Between brokers alone.
LOST_ROUTE = Route(
    "GET",
    "/internal/lost/{range}",
    Listeners(0),
    "What a broker lacks of a range.",
    (AnswerForm(200, "By topic id and partition.", {}),),
    handle=report_lost,
    parameters=RangePath,
)
