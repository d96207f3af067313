"""The routes of consumers and groups."""

from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tailrace_broker.model import errors
from tailrace_broker.net.api import consumers, group_bodies, groups
from tailrace_broker.net.api.consumer_headers import ConsumerHeaders, RegistrationHeaders
from tailrace_broker.net.api.group_routing import (
    of_consumer,
    of_group,
    of_registration,
    retried,
)
from tailrace_broker.net.api.route_parts import (
    LED_PROBLEMS,
    LOG_PROBLEMS,
    STORE_PROBLEMS,
    TOPIC_PROBLEMS,
    json_answer,
)
from tailrace_broker.net.http.router import AnswerForm, BodyForm, Kind, Listeners, Route

_KEPT_PROBLEMS = (*LED_PROBLEMS, errors.NotReadyError, errors.CorruptPartitionError)
_CONSUMER_PROBLEMS = (
    *_KEPT_PROBLEMS,
    errors.ConsumerNotRegisteredError,
    errors.StaleAssignmentError,
)

GROUP_ROUTES: tuple[Route, ...] = (
    *(
        Route(
            method,
            "/v1/consumer/register",
            Listeners.PUBLIC | Listeners.READ,
            "Register a consumer with its group; safe to repeat with the same values.",
            (json_answer(200, "The consumer.", consumers.RegisteredAnswer),),
            handle=of_registration(consumers.register),
            parameters=consumers.RegisterParameters,
            headers=RegistrationHeaders,
            bodies=(BodyForm(JSON_CONTENT_TYPE, "In place of parameters.", consumers.NewConsumer),),
            problems=(
                *_KEPT_PROBLEMS,
                *STORE_PROBLEMS,
                errors.ConsumerExistsError,
                errors.GroupKindError,
                errors.TooManyGroupsError,
                errors.TooManyConsumersError,
                errors.ConsumerNotRegisteredError,
                errors.StaleAssignmentError,
                errors.InvalidBodyError,
                errors.InvalidTopicNameError,
                errors.TopicNotFoundError,
            ),
            is_body_optional=True,
            handle_at_read=of_registration(consumers.register_and_create, creates_topics=True),
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
        handle=of_consumer(consumers.poll),
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
        handle=of_consumer(consumers.commit),
        parameters=consumers.ConsumerParameters,
        headers=ConsumerHeaders,
        problems=(*_CONSUMER_PROBLEMS, *STORE_PROBLEMS, errors.StaleDeliveryError),
    ),
    Route(
        "POST",
        "/v1/consumer/goodbye",
        Listeners.PUBLIC | Listeners.READ,
        "Remove a consumer; others of its group get its partitions.",
        (json_answer(200, "Removed.", dict[str, str]),),
        handle=of_consumer(consumers.goodbye, is_repeatable=False),
        parameters=consumers.GoodbyeParameters,
        headers=ConsumerHeaders,
        problems=(*_CONSUMER_PROBLEMS, *STORE_PROBLEMS),
    ),
    Route(
        "GET",
        "/v1/groups",
        Listeners.PUBLIC,
        "All consumer groups, sorted by name.",
        (json_answer(200, "The groups.", group_bodies.GroupsAnswer),),
        handle=retried(groups.list_groups),
        problems=(errors.NotReadyError, errors.ReadMemoryFullError),
    ),
    Route(
        "GET",
        "/v1/groups/{group}",
        Listeners.PUBLIC,
        "Describe a consumer group.",
        (json_answer(200, "The group.", group_bodies.GroupDescription),),
        handle=of_group(groups.describe_group),
        parameters=group_bodies.GroupPath,
        problems=(errors.NotReadyError, errors.GroupNotFoundError, errors.ReadMemoryFullError),
    ),
    Route(
        "DELETE",
        "/v1/groups/{group}",
        Listeners.PUBLIC,
        "Forget a consumer group that has no consumers.",
        (AnswerForm(204, "Deleted."),),
        handle=of_group(groups.delete_group),
        parameters=group_bodies.GroupPath,
        problems=(
            *_KEPT_PROBLEMS,
            *STORE_PROBLEMS,
            errors.GroupNotFoundError,
            errors.GroupNotIdleError,
        ),
    ),
    Route(
        "POST",
        "/v1/groups/{group}/reset",
        Listeners.PUBLIC,
        "Move a consumer group that has no consumers.",
        (json_answer(200, "What was moved.", group_bodies.GroupResetAnswer),),
        handle=of_group(groups.reset_group),
        parameters=group_bodies.GroupPath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "Where to.", group_bodies.GroupReset),),
        problems=(
            *TOPIC_PROBLEMS,
            *LOG_PROBLEMS,
            *STORE_PROBLEMS,
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
        handle=of_group(groups.publish_offsets),
        parameters=group_bodies.GroupPath,
        bodies=(BodyForm(JSON_CONTENT_TYPE, "The offsets.", group_bodies.PublishedOffsets),),
        problems=(
            *TOPIC_PROBLEMS,
            *STORE_PROBLEMS,
            errors.PartitionNotFoundError,
            errors.CorruptPartitionError,
            errors.GroupNotIdleError,
            errors.GroupKindError,
            errors.TooManyGroupsError,
            errors.InvalidBodyError,
        ),
    ),
)
