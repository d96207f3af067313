"""Every route of every listener: the table that checks requests and describes the API."""

from collections.abc import Awaitable, Callable
from functools import cache, partial

import msgspec

from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_JSON_CONTENT_TYPE,
)
from tailrace_broker.codec.records_json import JsonRecords
from tailrace_broker.model import errors
from tailrace_broker.net.api import (
    losses,
    openapi,
    produce,
    range_losses,
    read,
    ring,
    ring_history,
    ring_plan,
    status,
    topics,
    trash,
)
from tailrace_broker.net.api.copies import COPY_ROUTES
from tailrace_broker.net.api.group_routes import GROUP_ROUTES
from tailrace_broker.net.api.produce_bodies import ProduceParameters
from tailrace_broker.net.api.producer_headers import ProducerHeaders
from tailrace_broker.net.api.range_losses import LOST_ROUTE
from tailrace_broker.net.api.redirect import RedirectHeader
from tailrace_broker.net.api.route_parts import (
    LOG_PROBLEMS,
    STORE_PROBLEMS,
    TOPIC_PROBLEMS,
    json_answer,
)
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import (
    AnswerForm,
    BodyForm,
    Call,
    Kind,
    Listeners,
    Match,
    Response,
    Route,
    matcher,
)

CLIENT_LISTENERS = Listeners.PUBLIC | Listeners.PRODUCE | Listeners.READ

_COMMIT_PROBLEMS = (errors.NotAgreedError, errors.RingRefusedError)
_RING_PROBLEMS = (
    *_COMMIT_PROBLEMS,
    errors.NotReadyError,
    errors.InvalidBodyError,
    errors.InvalidParameterError,
)
_RECORDS = {NDJSON_CONTENT_TYPE: read.RecordAnswer, JSON_CONTENT_TYPE: list[read.RecordAnswer]}


@cache
def _description() -> bytes:
    return msgspec.json.format(msgspec.json.encode(openapi.openapi(ROUTES))) + b"\n"


async def _describe(_: Broker, __: Call) -> Response:
    return Response((_description(),))


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/topic/{topic}/messages",
        Listeners.PUBLIC | Listeners.PRODUCE,
        "Store events; answered when they are on disk.",
        (
            json_answer(
                200,
                "Stored; of records with a key each an array, one element a partition.",
                produce.ProducedAnswer | list[produce.ProducedAnswer],
            ),
            json_answer(
                207,
                "Records with a key each, when some partitions failed.",
                list[produce.PartitionAnswer],
            ),
        ),
        immediate=produce.produce,
        parameters=ProduceParameters,
        headers=ProducerHeaders,
        bodies=(
            BodyForm(JSON_CONTENT_TYPE, "One event."),
            BodyForm(
                NDJSON_CONTENT_TYPE,
                "One event a line, all of one key, or with `key` each of its own.",
            ),
            BodyForm(RECORDS_CONTENT_TYPE, "Records with a key each: docs/formats.md."),
            BodyForm(RECORDS_JSON_CONTENT_TYPE, "Records with a key each.", JsonRecords),
            BodyForm(BATCH_CONTENT_TYPE, "A ready-made batch: docs/formats.md."),
        ),
        problems=(
            *TOPIC_PROBLEMS,
            *LOG_PROBLEMS,
            *STORE_PROBLEMS,
            errors.InvalidRecordError,
            errors.InvalidBodyError,
            errors.SequenceUnknownError,
            errors.SequenceReusedError,
            errors.TooManyProducersError,
            errors.TooManyForwardedError,
            errors.OutcomeUnknownError,
        ),
        kind=Kind.PRODUCE,
    ),
    Route(
        "GET",
        "/v1/topic/{topic}/partitions/{partition}/records",
        Listeners.PUBLIC | Listeners.READ,
        "Read a partition from an offset or a time on.",
        (
            AnswerForm(
                200,
                "Records; whole batches when `Accept` asks for them.",
                {**_RECORDS, BATCH_CONTENT_TYPE: None},
            ),
        ),
        handle=read.read_partition,
        parameters=read.ReadParameters,
        headers=RedirectHeader,
        problems=(
            *TOPIC_PROBLEMS,
            *LOG_PROBLEMS,
            errors.TooManyForwardedError,
            errors.OffsetOutOfRangeError,
            errors.ReadMemoryFullError,
            errors.NotAcceptableError,
        ),
        kind=Kind.READ,
    ),
    Route(
        "GET",
        "/v1/topic/{topic}/records",
        Listeners.PUBLIC | Listeners.READ,
        "Of the last records of each partition the newest, oldest first.",
        (AnswerForm(200, "Records.", _RECORDS),),
        handle=read.read_last,
        parameters=read.LastParameters,
        headers=RedirectHeader,
        problems=(
            *TOPIC_PROBLEMS,
            *LOG_PROBLEMS,
            errors.TooManyForwardedError,
            errors.ReadMemoryFullError,
            errors.NotAcceptableError,
        ),
        kind=Kind.READ,
    ),
    *GROUP_ROUTES,
    Route(
        "GET",
        "/v1/offsets",
        Listeners.PUBLIC | Listeners.READ,
        "Where each partition begins and ends.",
        (json_answer(200, "By topic and partition.", topics.OffsetsAnswer),),
        handle=topics.list_offsets,
        parameters=topics.OffsetsParameters,
        headers=RedirectHeader,
        problems=(*TOPIC_PROBLEMS, errors.CorruptPartitionError, errors.ReadFailedError),
    ),
    Route(
        "GET",
        "/v1/topics",
        Listeners.PUBLIC,
        "All topics, sorted by name.",
        (json_answer(200, "The topics.", topics.TopicsAnswer),),
        handle=topics.list_topics,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "POST",
        "/v1/topics",
        Listeners.PUBLIC,
        "Create a topic; safe to repeat with the same settings.",
        (
            json_answer(201, "Created.", topics.TopicAnswer),
            json_answer(200, "It exists with these settings.", topics.TopicAnswer),
        ),
        handle=topics.create_topic,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "The topic.", topics.NewTopic),),
        problems=(
            errors.InvalidTopicNameError,
            errors.InvalidParameterError,
            errors.InvalidBodyError,
            errors.TopicExistsError,
            errors.NotReadyError,
            *_COMMIT_PROBLEMS,
            *STORE_PROBLEMS,
        ),
    ),
    Route(
        "GET",
        "/v1/topics/{topic}",
        Listeners.PUBLIC,
        "Describe a topic.",
        (json_answer(200, "The topic.", topics.TopicDescription),),
        handle=topics.describe_topic,
        parameters=topics.TopicPath,
        headers=RedirectHeader,
        problems=TOPIC_PROBLEMS,
    ),
    Route(
        "PATCH",
        "/v1/topics/{topic}",
        Listeners.PUBLIC,
        "Change a topic's settings.",
        (json_answer(200, "The topic as it is now.", topics.TopicAnswer),),
        handle=topics.alter_topic,
        parameters=topics.TopicPath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "What changes.", topics.TopicChanges),),
        problems=(
            *TOPIC_PROBLEMS,
            *_COMMIT_PROBLEMS,
            errors.InvalidBodyError,
            *STORE_PROBLEMS,
        ),
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}",
        Listeners.PUBLIC,
        "Delete a topic; its data stays in the trash for a while.",
        (AnswerForm(204, "Deleted."),),
        handle=topics.delete_topic,
        parameters=topics.TopicPath,
        problems=(*TOPIC_PROBLEMS, *_COMMIT_PROBLEMS, *STORE_PROBLEMS),
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/partitions/{partition}/accept-loss",
        Listeners.PUBLIC,
        "Let a partition that has lost its end go on behind it: events are lost.",
        (json_answer(200, "What is lost.", losses.LossAnswer),),
        handle=losses.accept_loss,
        parameters=losses.LossParameters,
        problems=(*TOPIC_PROBLEMS, *LOG_PROBLEMS, *STORE_PROBLEMS, errors.NothingLostError),
        is_admin=True,
    ),
    Route(
        "GET",
        "/v1/trash",
        Listeners.PUBLIC,
        "Deleted topics whose data is still there.",
        (json_answer(200, "The latest deletion first.", trash.TrashAnswer),),
        handle=trash.list_trash,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "POST",
        "/v1/trash/{topic}/restore",
        Listeners.PUBLIC,
        "Bring a deleted topic back, with its id and its records.",
        (json_answer(200, "The topic.", topics.TopicDescription),),
        handle=trash.restore_topic,
        parameters=trash.RestoreParameters,
        problems=(
            errors.NotInTrashError,
            errors.TopicExistsError,
            errors.InvalidTopicNameError,
            errors.NotReadyError,
            *_COMMIT_PROBLEMS,
            *STORE_PROBLEMS,
        ),
    ),
    Route(
        "GET",
        "/v1/brokers",
        Listeners.PUBLIC,
        "The ring and its brokers.",
        (json_answer(200, "The ring.", status.BrokersAnswer),),
        handle=status.brokers,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "GET",
        "/v1/ring",
        Listeners.PUBLIC,
        "The ring's committed state: brokers, ranges, who leads; answered before all is ready.",
        (json_answer(200, "The ring.", ring.RingDescription),),
        handle=ring.describe_ring,
        parameters=ring.RingParameters,
        problems=(errors.NotReadyError, errors.NotAgreedError),
    ),
    Route(
        "GET",
        "/v1/ring/history",
        Listeners.PUBLIC,
        "The last changes of leaders, ISRs, ghosts and registrations, as this broker applied them.",
        (json_answer(200, "The changes.", ring_history.RingHistory),),
        handle=ring_history.list_changes,
    ),
    Route(
        "GET",
        "/v1/ring/plan",
        Listeners.PUBLIC,
        "The steps in which the ring would grow or shrink; nothing is changed.",
        (json_answer(200, "The plan.", ring_plan.RingPlanAnswer),),
        handle=ring_plan.plan,
        parameters=ring_plan.PlanParameters,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "POST",
        "/v1/ring/brokers/{broker}/retire",
        Listeners.PUBLIC,
        "Let a broker that has left the ring go for good: its disk can never come back.",
        (json_answer(200, "The ring.", ring.RingDescription),),
        handle=ring.retire_broker,
        parameters=ring.BrokerPath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "Whether copies may be lost.", ring.Retirement),),
        problems=(*_RING_PROBLEMS, errors.StepNotTakenError),
        is_admin=True,
    ),
    Route(
        "POST",
        "/v1/ring/found",
        Listeners.PUBLIC,
        "Found a ring of brokers that are empty; safe to repeat.",
        (json_answer(200, "The ring.", ring.RingDescription),),
        handle=ring.found_ring,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "How many brokers.", ring.NewRing),),
        problems=(
            *_RING_PROBLEMS,
            errors.RingExistsError,
            errors.BrokerUnreachableError,
        ),
        is_admin=True,
    ),
    Route(
        "POST",
        "/v1/ring/steps",
        Listeners.PUBLIC,
        "Grow or shrink the ring by one broker; answered when it has.",
        (json_answer(200, "The step.", ring.StepResult),),
        handle=ring.take_step,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "Which step.", ring.NewStep),),
        problems=(*_RING_PROBLEMS, errors.StepNotTakenError),
        is_admin=True,
    ),
    Route(
        "POST",
        "/v1/ring/ranges/{range}/accept-loss",
        Listeners.PUBLIC,
        "Go on with what a broker has of a range of which no whole replica, or copy, is left.",
        (json_answer(200, "The range.", range_losses.AcceptedRangeAnswer),),
        handle=range_losses.accept_loss,
        parameters=range_losses.RangeLossParameters,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "Which broker.", range_losses.AcceptedLoss),),
        problems=(
            *_RING_PROBLEMS,
            errors.CorruptPartitionError,
            errors.ReadFailedError,
            errors.NoLeaderError,
        ),
        is_admin=True,
    ),
    Route(
        "POST",
        "/v1/ring/metadata/recover",
        Listeners.PUBLIC,
        "Go on with this voter alone when most are lost for good.",
        (json_answer(200, "The ring.", ring.RingDescription),),
        handle=ring.recover_metadata,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "That it is meant.", ring.Recovery),),
        problems=_RING_PROBLEMS,
        is_admin=True,
    ),
    Route(
        "GET",
        "/status",
        CLIENT_LISTENERS,
        "Whether the broker serves.",
        (json_answer(200, "It does.", dict[str, str]),),
        handle=status.status,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "GET",
        "/ready",
        Listeners.PUBLIC | Listeners.METRICS,
        "Whether the broker serves, for a readiness probe.",
        (json_answer(200, "It does.", dict[str, bool]),),
        handle=status.ready,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "GET",
        "/live",
        Listeners.PUBLIC | Listeners.METRICS,
        "The process answers, for a liveness probe.",
        (json_answer(200, "It does.", dict[str, bool]),),
        handle=status.live,
    ),
    Route(
        "GET",
        "/v1/problems/{type}",
        Listeners.PUBLIC,
        "What a problem type means.",
        (json_answer(200, "The type.", status.ProblemAnswer),),
        handle=status.problem,
        parameters=status.ProblemPath,
    ),
    Route(
        "GET",
        "/v1/openapi.json",
        Listeners.PUBLIC,
        "This description, OpenAPI 3.1.",
        (json_answer(200, "The description."),),
        handle=_describe,
    ),
    Route(
        "GET",
        "/docs",
        Listeners.PUBLIC,
        "This description as a page.",
        (AnswerForm(200, "The page.", {"text/html": None}),),
        handle=openapi.page,
    ),
    Route(
        "GET",
        "/",
        Listeners.PUBLIC,
        "To the page.",
        (AnswerForm(302, "See `/docs`."),),
        handle=openapi.redirect,
    ),
)


@cache
def forwarded_matcher() -> Match:
    """Return how a request finds its route that another broker has taken; appends go elsewhere."""
    public = [route for route in ROUTES if route.handle and not route.is_admin]
    return matcher([*public, *COPY_ROUTES, LOST_ROUTE])


def listener_matchers(
    render_metrics: Callable[[], Awaitable[bytes]], *, public_port: int
) -> dict[Listeners, Match]:
    """Return how each port finds its routes; `render_metrics` makes Prometheus' text format."""
    metrics = Route(
        "GET",
        "/metrics",
        Listeners.METRICS,
        "Prometheus' text format.",
        (AnswerForm(200, "The metrics.", {"text/plain": None}),),
        handle=partial(status.metrics, render_metrics),
    )
    routes = (*ROUTES, metrics)
    return {
        listener: matcher(
            [route.at(listener) for route in routes if route.listeners & listener],
            public_port=public_port,
            takes_untyped=listener is Listeners.PRODUCE,  # as PolarStreams' clients know it
        )
        for listener in Listeners
    }
