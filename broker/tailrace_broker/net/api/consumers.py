"""Consumers of groups: register, poll, commit, goodbye (docs/protocol.md, "Consumer groups")."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tailrace_broker.memory.pool import Lease
from tailrace_broker.model.damage import given_up
from tailrace_broker.model.errors import (
    InvalidParameterError,
    NotReadyError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.group import (
    SESSION_MS_DEFAULT,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    OnNewGroup,
    Subscription,
    TopicPartition,
)
from tailrace_broker.net.api.consumer_headers import read_confirmation, read_epoch
from tailrace_broker.net.api.poll_reads import Part, PollBounds, elements, lines, read_parts
from tailrace_broker.net.api.read import (
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    RECORDS_DEFAULT,
    RECORDS_MAX,
    WAIT_MS_MAX,
    RecordAnswer,
    preferred_type,
)
from tailrace_broker.net.api.record_texts import as_text, counted
from tailrace_broker.net.api.topics import json_response, parse_body
from tailrace_broker.net.broker import Broker, GroupPoll
from tailrace_broker.net.http.router import INT64_MAX, Call, Parameters, Response, shortened

NAME_CHARACTERS_MAX = 249
TOPICS_MAX = 1_000
GROUP_DEFAULT = "default"

# `Retry-After` of a poll that got nothing, in seconds: until there may be some, and when no
# partition is the consumer's.
_NO_DATA_S, _NOTHING_ASSIGNED_S = 1, 5
_POLL_TYPES = (JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, BATCH_CONTENT_TYPE)

ConsumerId = Annotated[
    str, Meta(description="The consumer's own name; `consumer_id` means the same.")
]
SessionMs = Annotated[
    int,
    Meta(
        ge=SESSION_MS_MIN,
        le=SESSION_MS_MAX,
        description="A consumer that makes no request for this long is removed; without it "
        f"{SESSION_MS_DEFAULT}.",
    ),
]
WhereNewGroupStarts = Annotated[
    OnNewGroup,
    Meta(
        description="Where the group starts in topics that it has not read yet; without it "
        "startFromLatest."
    ),
]
CreatesTopics = Annotated[
    bool,
    Meta(
        description="Whether topics that do not exist are created, where brokers create topics "
        "automatically; without it they are on port 9252 alone."
    ),
]


class ConsumerParameters(Parameters, frozen=True):
    """Of every request of a consumer."""

    aliases: ClassVar = {"consumer_id": "consumerId"}

    consumer_id: ConsumerId


class RegisterParameters(Parameters, frozen=True):
    """Of `POST /v1/consumer/register` without a body."""

    aliases: ClassVar = ConsumerParameters.aliases

    consumer_id: ConsumerId | None = None
    group: Annotated[str, Meta(description="Without it `default`.")] | None = None
    topic: Annotated[tuple[str, ...], Meta(description="Repeatable; one at least.")] = ()
    on_new_group: WhereNewGroupStarts | None = None
    session_ms: SessionMs | None = None
    create_topics: CreatesTopics | None = None


class PollParameters(ConsumerParameters, frozen=True):
    """Of `POST /v1/consumer/poll`."""

    max_records: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=RECORDS_MAX,
                description=f"Of a JSON or NDJSON answer, without it {RECORDS_DEFAULT}; a binary "
                "one ends with the batch that reaches it, when it is given.",
            ),
        ]
        | None
    ) = None
    max_bytes: Annotated[
        int,
        Meta(ge=1, le=READ_BYTES_MAX, description="Of stored batches; at least one."),
    ] = READ_BYTES_DEFAULT
    wait_ms: Annotated[
        int,
        Meta(ge=0, le=WAIT_MS_MAX, description="Wait this long for records when there are none."),
    ] = 0


class GoodbyeParameters(ConsumerParameters, frozen=True):
    """Of `POST /v1/consumer/goodbye`."""

    commit: Annotated[bool, Meta(description="Whether what it got last counts as dealt with.")] = (
        True
    )


class NewConsumer(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/consumer/register`, in place of its parameters."""

    id: Annotated[str, Meta(description="The consumer's own name.", examples=["c1"])]
    group: str = GROUP_DEFAULT
    topics: list[str]
    on_new_group: WhereNewGroupStarts = "startFromLatest"
    session_ms: SessionMs = SESSION_MS_DEFAULT
    create_topics: CreatesTopics | None = None


class RegisteredAnswer(msgspec.Struct, rename="camel"):
    """The consumer as it is registered."""

    consumer_id: str
    group: str
    topics: tuple[str, ...]
    on_new_group: str
    session_ms: int
    assignment_epoch: int


class PolledPartition(msgspec.Struct, rename="camel"):
    """Records of a partition in a row; the first has offset `startOffset`."""

    topic: str
    partition: int
    token: Annotated[str, Meta(description="Where the partition's range starts.")]
    range_index: Annotated[int, Meta(description="Which slice of the range it is.")]
    version: Annotated[int, Meta(description="The range's epoch.")]
    start_offset: Annotated[str, Meta(description="A decimal number.")]
    values: list[Any]
    keys: list[str | dict[str, str] | None]
    timestamps: list[str]
    base64_values: Annotated[
        list[int] | msgspec.UnsetType,
        Meta(description="Indexes of the values that are not JSON, when there are some."),
    ] = msgspec.UNSET


class PolledRecord(RecordAnswer, kw_only=True):
    """A record with its topic."""

    topic: str


async def register(broker: Broker, call: Call, *, creates_topics: bool = False) -> Response:
    """The consumer, and the assignment epoch that it has joined in.

    `creates_topics`: where the request does not say.
    """
    asked, wanted = subscription_of(call)
    creates_topics = creates_topics if asked is None else asked
    known_epoch = read_epoch(call.headers)
    epoch = await broker.groups.register(wanted, known_epoch, creates_topics=creates_topics)
    members = msgspec.structs.asdict(wanted)
    return json_response(RegisteredAnswer(**members, assignment_epoch=epoch))


async def register_and_create(broker: Broker, call: Call) -> Response:
    """Create topics that do not exist, as PolarStreams' clients expect it."""
    return await register(broker, call, creates_topics=True)


async def poll(broker: Broker, call: Call) -> Response:
    """Return what the consumer may read now; it counts as delivered when it has left."""
    parameters: PollParameters = call.parameters
    content_type = preferred_type(call.accept, _POLL_TYPES)
    said = read_confirmation(call.headers)
    ends_s = asyncio.get_running_loop().time() + parameters.wait_ms / 1000
    polled = await broker.groups.poll(parameters.consumer_id, said, parameters.wait_ms)
    lease = broker.read_memory.lease()
    polled, parts = await _read(broker, polled, lease, _bounds(parameters, content_type), ends_s)
    ends = [part.end for part in parts]
    delivery = await broker.groups.deliver(polled, ends) if parts else None
    if delivery is None:
        return _nothing(polled)
    for part in parts:
        with suppress(NotReadyError, TopicNotFoundError):
            counts = broker.hosted(part.fetch_range.topic.name).counts
            counts.read_records += part.end - part.fetch_range.start
    body: Sequence[bytes | memoryview] | AsyncIterator[bytes]
    headers = _headers(polled, delivery)
    if content_type == BATCH_CONTENT_TYPE:
        batches = [batch for part in parts for batch in part.batches]
        body = [buffer for batch in batches for buffer in batch.buffers if buffer]
        broker.counters.read_bytes += sum(map(len, body))
        headers |= _start_offsets(parts) | _end_offsets(parts)
    else:
        texts = elements(parts) if content_type == JSON_CONTENT_TYPE else lines(parts)
        body = counted(broker, as_text(texts, content_type))
    withdraw = partial(broker.groups.withdraw, polled, delivery)
    # Whether an answer has arrived at another broker is not known when that dies. Who names its
    # deliveries gets this one again.
    is_withdrawn = not call.is_forwarded or said.delivery is None
    return Response(body, content_type, 200, headers, lease, withdraw if is_withdrawn else None)


async def commit(broker: Broker, call: Call) -> Response:
    """204 when what was delivered is stored as dealt with."""
    parameters: ConsumerParameters = call.parameters
    await broker.groups.commit(parameters.consumer_id, read_confirmation(call.headers))
    return Response(content_type="", status=204)


async def goodbye(broker: Broker, call: Call) -> Response:
    """The consumer is removed; others get its partitions."""
    parameters: GoodbyeParameters = call.parameters
    said = read_confirmation(call.headers)
    await broker.groups.goodbye(parameters.consumer_id, said, commits=parameters.commit)
    return json_response({})


def check_name(name: str, parameter: str) -> None:
    """Check a name of a group, a consumer, a source. InvalidParameterError."""
    is_visible = name.isprintable() and " " not in name and "/" not in name
    if not is_visible or not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidParameterError(
            f"{parameter} is {shortened(name)}; it is 1 to {NAME_CHARACTERS_MAX} visible "
            "characters without /",
            parameter=parameter,
        )


def subscription_of(call: Call) -> tuple[bool | None, Subscription]:
    """Read the query or body, and whether it creates topics. InvalidParameterError."""
    by_query: RegisterParameters = call.parameters
    if call.body:
        wanted = _by_body(call.body, by_query)
    else:
        if by_query.consumer_id is None:
            raise InvalidParameterError("consumerId is missing", parameter="consumerId")
        wanted = NewConsumer(
            id=by_query.consumer_id,
            group=GROUP_DEFAULT if by_query.group is None else by_query.group,
            topics=list(by_query.topic),
            on_new_group=by_query.on_new_group or "startFromLatest",
            session_ms=by_query.session_ms or SESSION_MS_DEFAULT,
            create_topics=by_query.create_topics,
        )
    check_name(wanted.id, "id" if call.body else "consumerId")
    check_name(wanted.group, "group")
    topics = tuple(sorted(set(wanted.topics)))
    if not 1 <= len(topics) <= TOPICS_MAX:
        name = "topics" if call.body else "topic"
        raise InvalidParameterError(
            f"{len(topics)} topics are given; 1 to {TOPICS_MAX} it can be", parameter=name
        )
    subscription = Subscription(
        wanted.id, wanted.group, topics, wanted.on_new_group, wanted.session_ms
    )
    return wanted.create_topics, subscription


def saying_whether_to_create(call: Call) -> Call:
    """Return the registration with what port 9252 takes for granted: it creates topics."""
    asked, _ = subscription_of(call)
    if asked is not None:
        return call
    if not call.body:
        return call._replace(target=call.target + b"&createTopics=true")
    wanted = msgspec.structs.replace(parse_body(call.body, NewConsumer), create_topics=True)
    return call._replace(body=msgspec.json.encode(wanted))


def _by_body(body: bytes | bytearray, by_query: RegisterParameters) -> NewConsumer:
    for field in msgspec.structs.fields(by_query):
        if getattr(by_query, field.name) != field.default:
            raise InvalidParameterError(
                f"{field.encode_name} is given beside a body; give all in one of them",
                parameter=field.encode_name,
            )
    return parse_body(body, NewConsumer)


def _bounds(parameters: PollParameters, content_type: str) -> PollBounds:
    is_text = content_type != BATCH_CONTENT_TYPE
    records_max = parameters.max_records or (RECORDS_DEFAULT if is_text else INT64_MAX)
    return PollBounds(parameters.max_bytes, records_max, is_text)


async def _read(
    broker: Broker, group_poll: GroupPoll, lease: Lease, bounds: PollBounds, ends_s: float
) -> tuple[GroupPoll, list[Part]]:
    """What a poll delivers, no parts: nothing. What cannot be read is left out, and others are
    waited for; CorruptPartitionError and ReadFailedError when nothing else has come. What is lost
    for good is passed over at once: others may have records all the time.
    """
    unreadable: dict[TopicPartition, TailraceError] = {}
    while True:
        began_s = monotonic()
        parts = await read_parts(broker.read_memory, lease, group_poll, bounds)
        broker.counters.fetch_seconds.add(monotonic() - began_s)
        are_empty = all(part.end == part.fetch_range.start for part in parts)
        met = {
            part.fetch_range.tp: part.problem
            for part in parts
            if part.problem is not None and part.end == part.fetch_range.start
        }
        passed = {tp: error for tp, error in met.items() if given_up(error) is not None}
        if not are_empty and not passed:
            return group_poll, parts
        if not met:
            break
        unreadable |= {tp: met[tp] for tp in met.keys() - passed.keys()}
        left_ms = round(1000 * max(0, ends_s - asyncio.get_running_loop().time()))
        group_poll = await broker.groups.poll_on(group_poll, unreadable | passed, left_ms)
    if group_poll.problem is not None:
        raise group_poll.problem.with_traceback(None)  # others share it
    return group_poll, []


def _nothing(found: GroupPoll) -> Response:
    """204: there is nothing now."""
    seconds = _NO_DATA_S if found.is_assigned else _NOTHING_ASSIGNED_S
    headers = _headers(found, found.confirmed) | {"retry-after": str(seconds)}
    return Response(content_type="", status=204, headers=headers)


def _headers(found: GroupPoll, delivery: int) -> dict[str, str]:
    return {
        "tailrace-delivery": str(delivery),
        "tailrace-assignment-epoch": str(found.epoch),
    }


def _start_offsets(parts: Sequence[Part]) -> dict[str, str]:
    """Where batches begin before what is delivered: from which offset on records are new."""
    return _by_partition(
        "tailrace-start-offsets",
        [
            (part, part.fetch_range.start)
            for part in parts
            if part.batches and part.batches[0].header.base_offset < part.fetch_range.start
        ],
    )


def _end_offsets(parts: Sequence[Part]) -> dict[str, str]:
    """Where batches go on behind what is delivered, whose first answer was text."""
    return _by_partition(
        "tailrace-end-offsets",
        [
            (part, part.end)
            for part in parts
            if part.batches and part.batches[-1].header.end_offset > part.end
        ],
    )


def _by_partition(name: str, offsets: Sequence[tuple[Part, int]]) -> dict[str, str]:
    """Return a header, or none."""
    texts = [
        f"{part.fetch_range.topic.name}/{part.fetch_range.partition.partition}:{offset}"
        for part, offset in offsets
    ]
    return {name: ",".join(texts)} if texts else {}
