"""Errors -> RFC 9457 problem documents. The only place that knows their HTTP statuses."""

from copy import copy
from typing import NamedTuple

import msgspec

from tailrace_broker.model import errors
from tailrace_broker.model.errors import MethodNotAllowedError, TailraceError
from tailrace_broker.net.http.router import Response
from tailrace_broker.net.outside import Outside

ProblemMember = str | int | bool | list[int]

PROBLEM_PATH = "/v1/problems/"
PROBLEM_CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class Problem(NamedTuple):
    """What every document of this type says, and when it is sent."""

    slug: str
    status: int
    title: str
    when: str


# The most derived class that is listed counts.
PROBLEMS: dict[type[TailraceError], Problem] = {
    errors.InvalidTopicNameError: Problem(
        "invalid-topic-name",
        400,
        "Invalid topic name",
        "it is not 1 to 249 of `A-Z a-z 0-9 . _ -`, it is `.` or `..`, or it starts with `__`",
    ),
    errors.InvalidRecordError: Problem(
        "invalid-record", 400, "Line {line} is not JSON", "a value is not JSON"
    ),
    errors.InvalidRequestError: Problem(
        "invalid-request",
        400,
        "Invalid HTTP request",
        "the bytes are not strict HTTP/1.1; the connection is closed",
    ),
    errors.InvalidBodyError: Problem(
        "invalid-body",
        400,
        "Invalid body",
        "an empty body, a malformed body of records, a malformed batch or JSON request, a line "
        "without the key that `key` names",
    ),
    errors.InvalidParameterError: Problem(
        "invalid-parameter",
        400,
        "Invalid {parameter}",
        "a parameter or field is unknown, missing or out of bounds",
    ),
    errors.SecretRequiredError: Problem(
        "secret-required",
        401,
        "Secret required",
        "the request changes the ring, which has a secret, and does not name it as bearer token",
    ),
    errors.ForeignHostError: Problem(
        "foreign-host",
        403,
        "Unknown host",
        "the broker listens on a loopback address, and `Host` is not a name of loopback, not the "
        "broker's, and not in `TAILRACE_ALLOWED_HOSTS`",
    ),
    errors.ForeignOriginError: Problem(
        "foreign-origin",
        403,
        "Foreign origin",
        "a web page wants to change something, and `Origin` is neither the broker's own nor in "
        "`TAILRACE_ALLOWED_ORIGINS`",
    ),
    errors.TopicNotFoundError: Problem(
        "topic-not-found",
        404,
        "No such topic",
        "the topic does not exist, and this request does not create it",
    ),
    errors.PartitionNotFoundError: Problem(
        "partition-not-found", 404, "No such partition", "the topic has no such partition"
    ),
    errors.PathNotFoundError: Problem("not-found", 404, "No such path", "no such path here"),
    errors.MethodNotAllowedError: Problem(
        "method-not-allowed", 405, "Method not allowed", "`Allow` names the path's methods"
    ),
    errors.NotAcceptableError: Problem(
        "not-acceptable", 406, "Not acceptable", "the path has no answer of the type in `Accept`"
    ),
    errors.RequestTimeoutError: Problem(
        "request-timeout",
        408,
        "Request timeout",
        "the head did not arrive within `TAILRACE_HEADER_SECONDS`, or the whole request within "
        "`TAILRACE_REQUEST_SECONDS`; the connection is closed",
    ),
    errors.NotInTrashError: Problem(
        "not-in-trash", 404, "Not in the trash", "no deleted topic of this name or id is there"
    ),
    errors.TopicExistsError: Problem(
        "topic-exists",
        409,
        "Topic exists",
        "a topic of this name exists with other settings; or at all, where one is restored",
    ),
    errors.SequenceUnknownError: Problem(
        "sequence-unknown",
        409,
        "Sequence unknown",
        "the producer's sequence is so far back that it is not known whether it was stored",
    ),
    errors.SequenceReusedError: Problem(
        "sequence-reused",
        409,
        "Sequence reused",
        "the producer sent another number of events under this sequence before",
    ),
    errors.ConsumerExistsError: Problem(
        "consumer-exists",
        400,
        "Consumer exists",
        "a consumer of this id is registered with another group, other topics or other options",
    ),
    errors.ConsumerNotRegisteredError: Problem(
        "consumer-not-registered",
        409,
        "Consumer not registered",
        "the consumer was never registered, has said goodbye, or was not seen for `sessionMs`",
    ),
    errors.StaleAssignmentError: Problem(
        "stale-assignment",
        409,
        "Stale assignment",
        "another process has registered under this consumer id since",
    ),
    errors.StaleDeliveryError: Problem(
        "stale-delivery",
        409,
        "Stale delivery",
        "the delivery that is to be committed is not the last one of the consumer, or with "
        "`coordinatorChanged` is from before a failover or a step of the ring; nothing was "
        "committed, and the next poll gives its records again",
    ),
    errors.GroupNotFoundError: Problem(
        "group-not-found", 404, "No such group", "no consumer group of this name"
    ),
    errors.GroupNotIdleError: Problem(
        "group-not-idle",
        409,
        "Group not idle",
        "the group has consumers; what was asked needs it to have none",
    ),
    errors.NothingLostError: Problem(
        "nothing-lost",
        409,
        "End not lost",
        "the partition has not lost its end, and takes events or is sealed; damaged offsets before "
        "the end are given up with `ring accept-loss`",
    ),
    errors.GroupKindError: Problem(
        "group-kind",
        409,
        "Other kind of group",
        "a reader such as Spark keeps the group's offsets itself, and consumers or a reset were "
        "asked for; or the group is one of consumers, and a reader published its offsets",
    ),
    errors.RingExistsError: Problem(
        "ring-exists",
        409,
        "Ring exists",
        "a broker that the ring is to be founded with, belongs to a ring already",
    ),
    errors.RingRefusedError: Problem(
        "ring-refused",
        409,
        "Refused by the ring",
        "what was asked does not fit the ring's committed state; `reason` says in what",
    ),
    errors.BodyTooLargeError: Problem(
        "body-too-large",
        413,
        "Body too large",
        "over `TAILRACE_MAX_REQUEST_BYTES`, or over 500,000 events or record headers, or events "
        "and their keys over 32 MiB; `line` is the first of NDJSON that alone is too large",
    ),
    errors.UnsupportedMediaTypeError: Problem(
        "unsupported-media-type",
        415,
        "Unsupported media type",
        "the path takes no body of this content type, without one, or with a `Content-Encoding`",
    ),
    errors.OffsetOutOfRangeError: Problem(
        "offset-out-of-range",
        416,
        "Offset out of range",
        "the offset is below the log start or above the end",
    ),
    errors.ExpectationFailedError: Problem(
        "expectation-failed", 417, "Expectation failed", "`Expect` is not `100-continue`"
    ),
    errors.NotLeaderError: Problem(
        "not-leader",
        421,
        "Not the leader",
        "another broker leads the partition: ask at `leaderUrl`; or it is sealed: produce to one "
        "of its `children`",
    ),
    errors.ProduceMemoryFullError: Problem(
        "produce-memory-full",
        429,
        "Produce memory full",
        "requests in flight hold all of `TAILRACE_PRODUCE_MEMORY_BYTES`",
    ),
    errors.TooManyProducersError: Problem(
        "too-many-producers",
        429,
        "Too many producers",
        "10,000 producers with an id have sent to the partition in the last 10 minutes",
    ),
    errors.TooManyGroupsError: Problem(
        "too-many-groups",
        429,
        "Too many groups",
        "the broker coordinates `TAILRACE_GROUPS_MAX` groups; delete those that nobody needs",
    ),
    errors.TooManyConsumersError: Problem(
        "too-many-consumers",
        429,
        "Too many consumers",
        "the group has `TAILRACE_GROUP_CONSUMERS_MAX` consumers",
    ),
    errors.HeaderTooLargeError: Problem(
        "header-too-large",
        431,
        "Header too large",
        "request line and headers are over 16 KiB, mostly by a long `partitionKey`; the "
        "connection is closed",
    ),
    errors.CorruptPartitionError: Problem(
        "corrupt-partition",
        503,
        "Stored data is damaged",
        "stored data of the partition is damaged below its high watermark",
    ),
    errors.ReadMemoryFullError: Problem(
        "read-memory-full",
        503,
        "Read memory full",
        "answers that their readers have not taken held all of `TAILRACE_READ_MEMORY_BYTES` for "
        "`TAILRACE_ANSWER_SECONDS`",
    ),
    errors.TooManyConnectionsError: Problem(
        "too-many-connections",
        503,
        "Too many connections",
        "`TAILRACE_CONNECTIONS_MAX` are open; the connection is closed",
    ),
    errors.TooManyForwardedError: Problem(
        "too-many-forwarded",
        503,
        "Too many forwarded requests",
        "`TAILRACE_FORWARDED_MAX` requests wait for the leaders to which this broker forwarded "
        "them",
    ),
    errors.OutcomeUnknownError: Problem(
        "outcome-unknown",
        503,
        "Outcome unknown",
        "the leader to which the events were forwarded is not heard any more: they may be stored; "
        "with a producer id and a sequence the broker repeats it, and sends no such answer before "
        "`TAILRACE_FORWARD_SECONDS`",
    ),
    errors.NotReadyError: Problem(
        "not-ready",
        503,
        "Not ready",
        "still recovering, or stopping; or not in the ring yet, or most of its voters are away",
    ),
    errors.NoLeaderError: Problem(
        "no-leader",
        503,
        "No leader",
        "no broker leads the partition now; one will, or the range waits for its brokers",
    ),
    errors.NotEnoughReplicasError: Problem(
        "not-enough-replicas",
        503,
        "Not enough replicas",
        "fewer replicas of the partition answer than must have each event; with "
        "`writeAttempted` it may be stored all the same",
    ),
    errors.NotAgreedError: Problem(
        "not-agreed",
        503,
        "Not agreed",
        "most of the voters could not be asked in time; what was asked for may still come about, "
        "and is applied once when it is asked for again",
    ),
    errors.StepNotTakenError: Problem(
        "step-not-taken",
        503,
        "Step not taken",
        "the ring is not ready for the step, has given it up, or has not ended it in time; "
        "`reason` says which: why it was refused, `cancelled`, or `under-way`",
    ),
    errors.BrokerUnreachableError: Problem(
        "broker-unreachable",
        503,
        "Broker unreachable",
        "a broker that the ring is to be founded with does not answer",
    ),
    errors.ReadFailedError: Problem(
        "read-failed", 500, "Read failed", "a file cannot be opened or read"
    ),
    errors.StorageFailedError: Problem(
        "storage-failed",
        500,
        "Storage failed",
        "a write failed; unknown whether it was stored",
    ),
    errors.DiskFullError: Problem(
        "disk-full", 507, "Disk full", "nothing of the request was stored; reads go on"
    ),
}
_INTERNAL = Problem("internal", 500, "Internal error", "a defect of the broker")


def problem_status(error: TailraceError) -> int:
    """The HTTP status of an error's answer."""
    return PROBLEMS.get(type(error), _INTERNAL).status


def problem_members(error: TailraceError) -> dict[str, str | int | bool | list[int]]:
    """The problem document as a dict, names as on the wire."""
    problem = PROBLEMS.get(type(error), _INTERNAL)
    members = {name: _encodable(value) for name, value in error.members.items()}
    return {
        "type": f"{PROBLEM_PATH}{problem.slug}",
        "title": problem.title.format_map(members),
        "status": problem.status,
        "detail": error.detail.encode(errors="replace").decode(),
        **members,
        "retriable": error.retriable,
        "writeAttempted": error.write_attempted,
    }


def seen_from(outside: Outside | None, error: TailraceError) -> TailraceError:
    """Return the error with a URL of the leader that whoever asks can reach."""
    leader, url = error.members.get("leader"), error.members.get("leaderUrl")
    if outside is None or not isinstance(leader, int) or not isinstance(url, str):
        return error
    seen = copy(error)
    seen.members = {**error.members, "leaderUrl": outside.url_of(leader)}
    seen.detail = error.detail.replace(url, outside.url_of(leader))
    return seen


def problem_response(error: TailraceError) -> Response:
    """An error as an answer."""
    status = problem_status(error)
    headers = {}
    if status in {429, 503} and error.retriable:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, MethodNotAllowedError):
        headers["allow"] = error.allowed
    if "contentEncoding" in error.members:
        headers["accept-encoding"] = "identity"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode(problem_members(error)) + b"\n"
    return Response((body,), PROBLEM_CONTENT_TYPE, status, headers)


def _encodable(value: ProblemMember) -> ProblemMember:
    """Remove the surrogates that represent bytes of the peer which were no UTF-8 (PEP 383)."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
