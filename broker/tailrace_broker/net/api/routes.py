"""Every route of every listener: the table that checks requests and describes the API."""

from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

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
    consumers,
    group_bodies,
    groups,
    losses,
    openapi,
    produce,
    read,
    ring,
    ring_history,
    status,
    topics,
    trash,
)
from tailrace_broker.net.api.consumer_headers import ConsumerHeaders, RegistrationHeaders
from tailrace_broker.net.api.produce_bodies import ProduceParameters
from tailrace_broker.net.api.producer_headers import ProducerHeaders
from tailrace_broker.net.api.redirect import RedirectHeader
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
_TOPIC_PROBLEMS = (errors.InvalidTopicNameError, errors.TopicNotFoundError, errors.NotReadyError)
_LED_PROBLEMS = (errors.NotLeaderError, errors.NoLeaderError)
_LOG_PROBLEMS = (
    *_LED_PROBLEMS,
    errors.PartitionNotFoundError,
    errors.CorruptPartitionError,
    errors.ReadFailedError,
)
_STORE_PROBLEMS = (
    errors.DiskFullError,
    errors.StorageFailedError,
    errors.NotEnoughReplicasError,
)
_KEPT_PROBLEMS = (*_LED_PROBLEMS, errors.NotReadyError, errors.CorruptPartitionError)  # of groups
_CONSUMER_PROBLEMS = (
    *_KEPT_PROBLEMS,
    errors.ConsumerNotRegisteredError,
    errors.StaleAssignmentError,
)
_RING_PROBLEMS = (
    *_COMMIT_PROBLEMS,
    errors.NotReadyError,
    errors.InvalidBodyError,
    errors.InvalidParameterError,
)
_RECORDS = {NDJSON_CONTENT_TYPE: read.RecordAnswer, JSON_CONTENT_TYPE: list[read.RecordAnswer]}


def _json(status: int, description: str, schema: Any = None) -> AnswerForm:
    return AnswerForm(status, description, {JSON_CONTENT_TYPE: schema})


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
            _json(
                200,
                "Stored; of records with a key each an array, one element a partition.",
                produce.ProducedAnswer | list[produce.ProducedAnswer],
            ),
            _json(
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
            *_TOPIC_PROBLEMS,
            *_LOG_PROBLEMS,
            *_STORE_PROBLEMS,
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
            *_TOPIC_PROBLEMS,
            *_LOG_PROBLEMS,
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
            *_TOPIC_PROBLEMS,
            *_LOG_PROBLEMS,
            errors.TooManyForwardedError,
            errors.ReadMemoryFullError,
            errors.NotAcceptableError,
        ),
        kind=Kind.READ,
    ),
    *(
        Route(
            method,
            "/v1/consumer/register",
            Listeners.PUBLIC | Listeners.READ,
            "Register a consumer with its group; safe to repeat with the same values.",
            (_json(200, "The consumer.", consumers.RegisteredAnswer),),
            handle=consumers.register,
            parameters=consumers.RegisterParameters,
            headers=RegistrationHeaders,
            bodies=(BodyForm(JSON_CONTENT_TYPE, "In place of parameters.", consumers.NewConsumer),),
            problems=(
                *_KEPT_PROBLEMS,
                *_STORE_PROBLEMS,
                errors.ConsumerExistsError,
                errors.GroupKindError,
                errors.ConsumerNotRegisteredError,
                errors.StaleAssignmentError,
                errors.InvalidBodyError,
                errors.InvalidTopicNameError,
                errors.TopicNotFoundError,
            ),
            is_body_optional=True,
            handle_at_read=consumers.register_and_create,
        )
        for method in ("POST", "PUT")
    ),
    Route(
        "POST",
        "/v1/consumer/poll",
        Listeners.PUBLIC | Listeners.READ,
        "Take what a consumer has not read yet; the next poll confirms it.",
        (
            AnswerForm(
                200,
                "Records; whole batches when `Accept` asks for them.",
                {
                    JSON_CONTENT_TYPE: list[consumers.PolledPartition],
                    NDJSON_CONTENT_TYPE: consumers.PolledRecord,
                    BATCH_CONTENT_TYPE: None,
                },
            ),
            AnswerForm(204, "There are none now; `Retry-After` says when to ask again."),
        ),
        handle=consumers.poll,
        parameters=consumers.PollParameters,
        headers=ConsumerHeaders,
        problems=(
            *_CONSUMER_PROBLEMS,
            errors.ReadFailedError,
            errors.ReadMemoryFullError,
            errors.NotAcceptableError,
        ),
        kind=Kind.READ,
        is_given_up=True,
    ),
    Route(
        "POST",
        "/v1/consumer/commit",
        Listeners.PUBLIC | Listeners.READ,
        "Confirm what was delivered; answered when this is on disk.",
        (AnswerForm(204, "Stored."),),
        handle=consumers.commit,
        parameters=consumers.ConsumerParameters,
        headers=ConsumerHeaders,
        problems=(*_CONSUMER_PROBLEMS, *_STORE_PROBLEMS, errors.StaleDeliveryError),
    ),
    Route(
        "POST",
        "/v1/consumer/goodbye",
        Listeners.PUBLIC | Listeners.READ,
        "Remove a consumer; others of its group get its partitions.",
        (_json(200, "Removed.", dict[str, str]),),
        handle=consumers.goodbye,
        parameters=consumers.GoodbyeParameters,
        headers=ConsumerHeaders,
        problems=(*_CONSUMER_PROBLEMS, *_STORE_PROBLEMS),
    ),
    Route(
        "GET",
        "/v1/groups",
        Listeners.PUBLIC,
        "All consumer groups, sorted by name.",
        (_json(200, "The groups.", group_bodies.GroupsAnswer),),
        handle=groups.list_groups,
        problems=(errors.NotReadyError, errors.ReadMemoryFullError),
    ),
    Route(
        "GET",
        "/v1/groups/{group}",
        Listeners.PUBLIC,
        "Describe a consumer group.",
        (_json(200, "The group.", group_bodies.GroupDescription),),
        handle=groups.describe_group,
        parameters=group_bodies.GroupPath,
        problems=(errors.NotReadyError, errors.GroupNotFoundError, errors.ReadMemoryFullError),
    ),
    Route(
        "DELETE",
        "/v1/groups/{group}",
        Listeners.PUBLIC,
        "Forget a consumer group that has no consumers.",
        (AnswerForm(204, "Deleted."),),
        handle=groups.delete_group,
        parameters=group_bodies.GroupPath,
        problems=(
            *_KEPT_PROBLEMS,
            *_STORE_PROBLEMS,
            errors.GroupNotFoundError,
            errors.GroupNotIdleError,
        ),
    ),
    Route(
        "POST",
        "/v1/groups/{group}/reset",
        Listeners.PUBLIC,
        "Move a consumer group that has no consumers.",
        (_json(200, "What was moved.", group_bodies.GroupResetAnswer),),
        handle=groups.reset_group,
        parameters=group_bodies.GroupPath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "Where to.", group_bodies.GroupReset),),
        problems=(
            *_TOPIC_PROBLEMS,
            *_LOG_PROBLEMS,
            *_STORE_PROBLEMS,
            errors.GroupNotFoundError,
            errors.GroupNotIdleError,
            errors.GroupKindError,
            errors.InvalidBodyError,
            errors.ReadMemoryFullError,
        ),
    ),
    Route(
        "PUT",
        "/v1/groups/{group}/offsets",
        Listeners.PUBLIC,
        "Report how far a reader is that keeps its offsets itself.",
        (AnswerForm(204, "Stored."),),
        handle=groups.publish_offsets,
        parameters=group_bodies.GroupPath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "The offsets.", group_bodies.PublishedOffsets),),
        problems=(
            *_TOPIC_PROBLEMS,
            *_STORE_PROBLEMS,
            errors.PartitionNotFoundError,
            errors.CorruptPartitionError,
            errors.GroupNotIdleError,
            errors.GroupKindError,
            errors.InvalidBodyError,
        ),
    ),
    Route(
        "GET",
        "/v1/offsets",
        Listeners.PUBLIC | Listeners.READ,
        "Where each partition begins and ends.",
        (_json(200, "By topic and partition.", topics.OffsetsAnswer),),
        handle=topics.list_offsets,
        parameters=topics.OffsetsParameters,
        headers=RedirectHeader,
        problems=(*_TOPIC_PROBLEMS, errors.CorruptPartitionError, errors.ReadFailedError),
    ),
    Route(
        "GET",
        "/v1/topics",
        Listeners.PUBLIC,
        "All topics, sorted by name.",
        (_json(200, "The topics.", topics.TopicsAnswer),),
        handle=topics.list_topics,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "POST",
        "/v1/topics",
        Listeners.PUBLIC,
        "Create a topic; safe to repeat with the same settings.",
        (
            _json(201, "Created.", topics.TopicAnswer),
            _json(200, "It exists with these settings.", topics.TopicAnswer),
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
            *_STORE_PROBLEMS,
        ),
    ),
    Route(
        "GET",
        "/v1/topics/{topic}",
        Listeners.PUBLIC,
        "Describe a topic.",
        (_json(200, "The topic.", topics.TopicDescription),),
        handle=topics.describe_topic,
        parameters=topics.TopicPath,
        headers=RedirectHeader,
        problems=_TOPIC_PROBLEMS,
    ),
    Route(
        "PATCH",
        "/v1/topics/{topic}",
        Listeners.PUBLIC,
        "Change a topic's settings.",
        (_json(200, "The topic as it is now.", topics.TopicAnswer),),
        handle=topics.alter_topic,
        parameters=topics.TopicPath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "What changes.", topics.TopicChanges),),
        problems=(
            *_TOPIC_PROBLEMS,
            *_COMMIT_PROBLEMS,
            errors.InvalidBodyError,
            *_STORE_PROBLEMS,
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
        problems=(*_TOPIC_PROBLEMS, *_COMMIT_PROBLEMS, *_STORE_PROBLEMS),
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/partitions/{partition}/accept-loss",
        Listeners.PUBLIC,
        "Let a partition that has lost its end go on behind it: events are lost.",
        (_json(200, "What is lost.", losses.LossAnswer),),
        handle=losses.accept_loss,
        parameters=losses.LossParameters,
        problems=(*_TOPIC_PROBLEMS, *_LOG_PROBLEMS, *_STORE_PROBLEMS, errors.NothingLostError),
        is_admin=True,
    ),
    Route(
        "GET",
        "/v1/trash",
        Listeners.PUBLIC,
        "Deleted topics whose data is still there.",
        (_json(200, "The latest deletion first.", trash.TrashAnswer),),
        handle=trash.list_trash,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "POST",
        "/v1/trash/{topic}/restore",
        Listeners.PUBLIC,
        "Bring a deleted topic back, with its id and its records.",
        (_json(200, "The topic.", topics.TopicDescription),),
        handle=trash.restore_topic,
        parameters=trash.RestoreParameters,
        problems=(
            errors.NotInTrashError,
            errors.TopicExistsError,
            errors.InvalidTopicNameError,
            errors.NotReadyError,
            *_COMMIT_PROBLEMS,
            *_STORE_PROBLEMS,
        ),
    ),
    Route(
        "GET",
        "/v1/brokers",
        Listeners.PUBLIC,
        "The ring and its brokers.",
        (_json(200, "The ring.", status.BrokersAnswer),),
        handle=status.brokers,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "GET",
        "/v1/ring",
        Listeners.PUBLIC,
        "The ring's committed state: brokers, ranges, who leads; answered before all is ready.",
        (_json(200, "The ring.", ring.RingDescription),),
        handle=ring.describe_ring,
        parameters=ring.RingParameters,
        problems=(errors.NotReadyError, errors.NotAgreedError),
    ),
    Route(
        "GET",
        "/v1/ring/history",
        Listeners.PUBLIC,
        "The last changes of leaders, ISRs, ghosts and registrations, as this broker applied them.",
        (_json(200, "The changes.", ring_history.RingHistory),),
        handle=ring_history.list_changes,
    ),
    Route(
        "POST",
        "/v1/ring/found",
        Listeners.PUBLIC,
        "Found a ring of brokers that are empty; safe to repeat.",
        (_json(200, "The ring.", ring.RingDescription),),
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
        "/v1/ring/ranges/{range}/accept-loss",
        Listeners.PUBLIC,
        "Let a broker lead a range of which no whole replica is left: events may be lost.",
        (_json(200, "The range.", ring.RangeAnswer),),
        handle=ring.accept_loss,
        parameters=ring.RangePath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "Which broker.", ring.AcceptedLoss),),
        problems=_RING_PROBLEMS,
        is_admin=True,
    ),
    Route(
        "POST",
        "/v1/ring/metadata/recover",
        Listeners.PUBLIC,
        "Go on with this voter alone when most are lost for good.",
        (_json(200, "The ring.", ring.RingDescription),),
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
        (_json(200, "It does.", dict[str, str]),),
        handle=status.status,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "GET",
        "/ready",
        Listeners.PUBLIC | Listeners.METRICS,
        "Whether the broker serves, for a readiness probe.",
        (_json(200, "It does.", dict[str, bool]),),
        handle=status.ready,
        problems=(errors.NotReadyError,),
    ),
    Route(
        "GET",
        "/live",
        Listeners.PUBLIC | Listeners.METRICS,
        "The process answers, for a liveness probe.",
        (_json(200, "It does.", dict[str, bool]),),
        handle=status.live,
    ),
    Route(
        "GET",
        "/v1/problems/{type}",
        Listeners.PUBLIC,
        "What a problem type means.",
        (_json(200, "The type.", status.ProblemAnswer),),
        handle=status.problem,
        parameters=status.ProblemPath,
    ),
    Route(
        "GET",
        "/v1/openapi.json",
        Listeners.PUBLIC,
        "This description, OpenAPI 3.1.",
        (_json(200, "The description."),),
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
def read_matcher() -> Match:
    """Return how a read finds its route that another broker has taken."""
    return matcher([route for route in ROUTES if route.method == "GET"])


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
