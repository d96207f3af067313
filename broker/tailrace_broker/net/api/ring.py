"""The ring, as committed and as this broker sees it -> answers, and what people do to it by hand
(docs/operations.md, "A ring of several brokers").
"""

from collections.abc import Mapping, Sequence
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from tailrace_broker.core.replication.progress import FollowerLag
from tailrace_broker.core.ring.arithmetic import UNITS
from tailrace_broker.model.commands import Retire, StepKind
from tailrace_broker.model.errors import (
    InvalidParameterError,
    RingRefusedError,
    StepNotTakenError,
)
from tailrace_broker.model.ring_state import (
    EndedStep,
    RangeState,
    Refusal,
    Registration,
    RingState,
    StepState,
)
from tailrace_broker.net.api.range_states import condition_of
from tailrace_broker.net.api.topics import json_response, parse_body
from tailrace_broker.net.broker import Broker, Ring, RingView, Steps
from tailrace_broker.net.http.router import Call, Parameters, Response

RANGE_ID_MAX = 2**31 - 1

Ordinals = list[int]


class MetadataAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """How much of the replicated state this broker has; brokers by their ordinals."""

    term: int
    leader: Annotated[int | None, Meta(description="Of the agreement; null: none is known.")]
    voters: Ordinals
    next_voters: Annotated[Ordinals, Meta(description="Who is to vote, while others do.")]
    height: Annotated[int | None, Meta(description="Committed, as far as this broker knows.")]
    applied: Annotated[int | None, Meta(description="What its answers are made of.")]
    log_bytes: Annotated[int, Meta(description="On its disk, until they are compacted.")]


class RegistrationAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """The process that a broker is now."""

    ordinal: int
    registration: Annotated[int, Meta(description="Grows by one with each process.")]
    incarnation: Annotated[UUID, Meta(description="Of its disk.")]
    boot: int
    loss: Annotated[
        str,
        Meta(
            description="What its data may have lost since the registration before: `clean`, "
            "`process`, `power`, `disk`."
        ),
    ]
    fenced: Annotated[bool, Meta(description="Not heard: others may lead its ranges.")]
    alive: Annotated[bool, Meta(description="Heard of a moment ago, by the broker that answers.")]
    height: Annotated[int | None, Meta(description="What it had applied when it was heard of.")]


class ReplicaAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """An in-sync replica."""

    ordinal: int
    registration: int
    ghost: Annotated[bool, Meta(description="It may have lost data, and never leads.")]
    cause: Annotated[
        str | None,
        Meta(
            description="Why it is a ghost: `clean`, `process`, `power`, `damage` (committed "
            "records were found damaged), `disk` (it has a new one)."
        ),
    ]


class FollowerAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A replica that does not lead, as the leader of its range knows it."""

    ordinal: int
    lag_records: Annotated[
        int | None,
        Meta(description="That it lacks; null: it has not reported to this leader yet."),
    ]
    lag_ms: Annotated[
        int | None,
        Meta(
            description="How long the oldest write waits that it must acknowledge; null: not "
            "known, as of a replica that is not in sync."
        ),
    ]


class RangeAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A range of tokens."""

    id: int
    start: str
    end: Annotated[str, Meta(description="The first token behind it.")]
    epoch: int
    leader: int | None
    replicas: Ordinals
    isr: list[ReplicaAnswer]
    followers: Annotated[
        list[FollowerAnswer] | None,
        Meta(description="How far they are behind; null: another broker leads the range."),
    ]
    complete: Annotated[
        Ordinals | None,
        Meta(description="Of a sealed range the replicas that hold all of it; null: it is open."),
    ]
    state: Annotated[
        str,
        Meta(
            description="`open`; `sealed`; `leaderless`: until a replica leads; `waiting`: no "
            "replica is known to be whole, and it waits for its brokers, or for `accept-loss`."
        ),
    ]


class StepAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A change of the ring that is under way."""

    id: int
    kind: Annotated[str, Meta(description="`split`, `join` or `re-slice`.")]
    brokers_before: int
    brokers_after: int
    parents: Annotated[list[int], Meta(description="Ranges that it replaces.")]
    sealed: Annotated[list[int], Meta(description="Those of them that take no more events.")]
    phase: Annotated[
        str,
        Meta(
            description="`waiting`: for the replicas of its ranges to be near; `sealing`: some of "
            "its ranges take no more events."
        ),
    ]
    age_ms: Annotated[
        int | None, Meta(description="Since this broker knows of it; null: it has just begun.")
    ]


class LastStepAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """The step that has ended last."""

    id: int
    kind: str
    brokers_before: int
    brokers_after: int
    cancelled: Annotated[str | None, Meta(description="Why; null: it is done.")]
    duration_ms: Annotated[
        int | None, Meta(description="As this broker saw it; null: it did not run then.")
    ]
    pause_ms: Annotated[
        int | None,
        Meta(description="The longest time for which a leader held appends; null: not known."),
    ]


class RingDescription(msgspec.Struct, rename="camel", kw_only=True):
    """The ring; that of a broker that is in none yet has no id and no committed state."""

    name: str
    state: Annotated[
        str,
        Meta(
            description="Of the broker that answers: `starting` until it has read which ring it is "
            "in, `waiting to be founded`, `waiting to be admitted`, `waiting to be registered`, "
            "`member`."
        ),
    ]
    cluster_id: UUID | None
    brokers: Annotated[int | None, Meta(description="How many belong to it.")]
    factor: Annotated[int | None, Meta(description="Brokers in the ISR of a range.")]
    copies: Annotated[int, Meta(description="Of each event on brokers' disks, when all are well.")]
    metadata: MetadataAnswer
    registrations: list[RegistrationAnswer]
    ranges: list[RangeAnswer]
    step: StepAnswer | None
    last_step: Annotated[LastStepAnswer | None, Meta(description="Null: there was none.")]


class RingParameters(Parameters, frozen=True):
    """Of `GET /v1/ring`."""

    consistent: Annotated[
        bool,
        Meta(
            description="`true`: all that was committed up to now; needs a majority of the voters."
        ),
    ] = False


class RangePath(Parameters, frozen=True):
    """Of `/v1/ring/ranges/{range}`."""

    range: Annotated[int, Meta(ge=0, le=RANGE_ID_MAX, description="The range's id.")]


class BrokerPath(Parameters, frozen=True):
    """Of `/v1/ring/brokers/{broker}`."""

    broker: Annotated[int, Meta(ge=0, le=UNITS - 1, description="The broker's ordinal.")]


class Retirement(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of `POST /v1/ring/brokers/{broker}/retire`."""

    accept_loss: Annotated[
        bool, Meta(description="True: what only this broker has is gone, and may be.")
    ] = False


class NewRing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/ring/found`."""

    brokers: Annotated[
        int, Meta(ge=1, le=UNITS, description="It begins with brokers 0 to this, exclusive.")
    ]


class Recovery(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of `POST /v1/ring/metadata/recover`."""

    accept_loss: Annotated[
        bool, Meta(description="True: what only the lost voters knew to be committed is gone.")
    ]


class NewStep(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of `POST /v1/ring/steps`."""

    kind: Annotated[StepKind, Meta(description="By the broker after the last one, or by that.")]
    brokers_before: Annotated[
        int,
        Meta(
            ge=1,
            le=UNITS,
            description="How many belong to the ring now: a repeated request is not a second step.",
        ),
    ]


class StepResult(msgspec.Struct, rename="camel", kw_only=True):
    """A step that the ring has taken. No event was copied."""

    step: int
    kind: Annotated[str, Meta(description="`split` or `join`.")]
    brokers: Annotated[int, Meta(description="How many belong to the ring now.")]
    duration_ms: Annotated[int, Meta(description="Of all of it.")]
    pause_ms: Annotated[
        int | None,
        Meta(description="The longest time for which a leader held appends; null: not known."),
    ]
    sealed_ranges: list[int]
    new_ranges: list[int]
    sealed_partitions: Annotated[int, Meta(description="Of all topics, internal ones too.")]
    new_partitions: int


async def describe_ring(broker: Broker, call: Call) -> Response:
    """The ring; answered by a broker that is in none, too."""
    parameters: RingParameters = call.parameters
    ring = broker.ring
    state = await ring.current() if parameters.consistent else ring.state
    return json_response(_description(broker, state))


async def found_ring(broker: Broker, call: Call) -> Response:
    """The ring, when all of its first brokers are in it; safe to repeat."""
    wanted = parse_body(call.body, NewRing)
    await broker.ring.found(wanted.brokers)
    return json_response(_description(broker, broker.ring.state))


async def take_step(broker: Broker, call: Call) -> Response:
    """What the step has changed, once it has."""
    wanted = parse_body(call.body, NewStep)
    done = await broker.steps.take(wanted.kind, wanted.brokers_before)
    step = done.step
    return json_response(
        StepResult(
            step=step.id,
            kind=step.kind,
            brokers=step.brokers_after,
            duration_ms=done.duration_ms,
            pause_ms=done.pause_ms,
            sealed_ranges=list(step.parents),
            new_ranges=[each.id for each in step.children],
            sealed_partitions=done.sealed_partitions,
            new_partitions=done.new_partitions,
        )
    )


async def retire_broker(broker: Broker, call: Call) -> Response:
    """The ring without a broker that holds nothing any more."""
    parameters: BrokerPath = call.parameters
    wanted, ordinal = parse_body(call.body, Retirement), parameters.broker
    state = await broker.ring.current()
    known = state.brokers.get(ordinal)
    if ordinal >= state.broker_count and ordinal in broker.ring.view().voters:
        raise StepNotTakenError(
            f"broker {ordinal} still votes on the metadata, until others do", reason="votes"
        )
    number = 0 if known is None else known.number
    try:
        await broker.ring.change(Retire(ordinal, number, wanted.accept_loss))
    except RingRefusedError as error:
        if error.refusal.reason not in ("holds-ranges", "step-open", "stale-registration"):
            raise
        raise StepNotTakenError(error.detail, reason=error.refusal.reason) from None
    return json_response(_description(broker, broker.ring.state))


async def recover_metadata(broker: Broker, call: Call) -> Response:
    """The ring, of which this broker is the only voter now."""
    if not parse_body(call.body, Recovery).accept_loss:
        raise InvalidParameterError(
            "acceptLoss is false; true says that what only the lost voters knew may be lost",
            parameter="acceptLoss",
        )
    _check_voters_are_away(broker.ring)
    await broker.ring.recover_alone()
    return json_response(_description(broker, broker.ring.state))


def _check_voters_are_away(ring: Ring) -> None:
    """RingRefusedError while most of them are heard: they would go on beside this one."""
    view = ring.view()
    alive = [voter for voter in view.voters if is_alive(ring, view, voter)]
    if 2 * len(alive) > len(view.voters):
        shown = ", ".join(map(str, alive))
        raise refused(
            "voters-alive",
            f"most voters are alive ({shown}), so nothing needs to be recovered; stop those that "
            "are lost for good",
        )


# --- what the answers are made of -----------------------------------------------------------------


def is_alive(ring: Ring, view: RingView, ordinal: int) -> bool:
    """Return whether a broker is alive; the one that answers is."""
    own = ring.registration
    return (own is not None and own.ordinal == ordinal) or view.alive.get(ordinal, False)


def _description(broker: Broker, state: RingState | None) -> RingDescription:
    view, lags = broker.ring.view(), broker.replication_lags()
    registrations = sorted(state.brokers.items()) if state else ()
    ranges = sorted(state.ranges.values(), key=lambda range_: range_.start) if state else ()
    return RingDescription(
        name=broker.client_view.ring_name,
        state=_state_of(broker.ring, view),
        cluster_id=None if state is None else state.cluster_id,
        brokers=None if state is None else state.broker_count,
        factor=None if state is None else state.factor,
        copies=1 if state is None else state.copies,
        metadata=MetadataAnswer(
            term=view.term,
            leader=view.leader,
            voters=list(view.voters),
            next_voters=list(view.next_voters),
            height=None if state is None else view.commit,
            applied=None if state is None else view.applied,
            log_bytes=view.log_bytes,
        ),
        registrations=[_registration(broker.ring, view, each) for _, each in registrations],
        ranges=[range_answer(state, range_, lags) for range_ in ranges] if state else [],
        step=_step(state.step, broker.steps) if state and state.step else None,
        last_step=_last_step(state.last_step, broker.steps) if state and state.last_step else None,
    )


def _state_of(ring: Ring, view: RingView) -> str:
    """A broker that hears of a leader is to be admitted to its ring."""
    if not ring.is_loaded:
        return "starting"
    if ring.state is None:
        return "waiting to be founded" if view.leader is None else "waiting to be admitted"
    return "waiting to be registered" if ring.registration is None else "member"


def _registration(ring: Ring, view: RingView, one: Registration) -> RegistrationAnswer:
    is_own = ring.registration is not None and ring.registration.ordinal == one.ordinal
    hint = view.hints.get(one.ordinal)
    if hint is not None and hint.incarnation != one.incarnation:
        hint = None  # an empty disk in its place
    return RegistrationAnswer(
        ordinal=one.ordinal,
        registration=one.number,
        incarnation=one.incarnation,
        boot=one.boot,
        loss=one.loss,
        fenced=one.is_fenced,
        alive=is_alive(ring, view, one.ordinal),
        height=view.applied if is_own else hint and hint.height,
    )


def range_answer(
    state: RingState, one: RangeState, lags: Mapping[int, Sequence[FollowerLag]]
) -> RangeAnswer:
    """A range for answers."""
    return RangeAnswer(
        id=one.id,
        start=str(one.start),
        end=str(one.end),
        epoch=one.epoch,
        leader=one.leader and one.leader.ordinal,
        replicas=list(one.replicas),
        isr=[
            ReplicaAnswer(
                ordinal=each.ordinal,
                registration=each.registration,
                ghost=each.is_ghost,
                cause=each.cause,
            )
            for each in one.isr
        ],
        followers=[
            FollowerAnswer(ordinal=each.ordinal, lag_records=each.records, lag_ms=each.ms)
            for each in sorted(lags[one.id])
        ]
        if one.id in lags
        else None,
        complete=list(one.complete) if one.is_sealed else None,
        state=condition_of(state, one),
    )


def _step(step: StepState, steps: Steps) -> StepAnswer:
    return StepAnswer(
        id=step.id,
        kind=step.kind,
        brokers_before=step.brokers_before,
        brokers_after=step.brokers_after,
        parents=list(step.parents),
        sealed=sorted(step.sealed),
        phase="sealing" if step.sealed else "waiting",
        age_ms=steps.age_ms(step.id),
    )


def _last_step(step: EndedStep, steps: Steps) -> LastStepAnswer:
    duration_ms, pause_ms = steps.times_ms(step.id)
    return LastStepAnswer(
        id=step.id,
        kind=step.kind,
        brokers_before=step.brokers_before,
        brokers_after=step.brokers_after,
        cancelled=step.why or None,
        duration_ms=duration_ms,
        pause_ms=pause_ms,
    )


def refused(reason: str, detail: str) -> RingRefusedError:
    """What the answer of a request is that the ring would refuse."""
    return RingRefusedError(Refusal(reason, detail))
