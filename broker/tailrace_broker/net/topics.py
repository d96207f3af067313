"""Topics and where their partitions begin and end -> answers (docs/protocol.md, "Topics")."""

import re
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from tailrace_broker.core.ring import TOKEN_MIN, UNITS, find_slice, slice_bounds
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    InvalidBodyError,
    InvalidParameterError,
)
from tailrace_broker.model.topic import (
    PARTITIONS_PER_RANGE_DEFAULT,
    PARTITIONS_PER_RANGE_MAX,
    Partition,
    Topic,
    TopicSettings,
)
from tailrace_broker.net.api import Broker, HostedTopic, PartitionLog
from tailrace_broker.net.routes import INT64_MAX, Call, Parameters, Response, TopicName

# How msgspec names the field that does not fit.
_FIELD = re.compile(r"(?:field `|at `\$\.)([^`]+)`")

# Checked by TopicSettings, whose sentence is better than msgspec's.
_PARTITION_BOUNDS = {"minimum": 1, "maximum": PARTITIONS_PER_RANGE_MAX}


class NewTopic(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of `POST /v1/topics`."""

    name: Annotated[str, Meta(description="1 to 249 of A-Z a-z 0-9 . _ -", examples=["orders"])]
    partitions_per_range: Annotated[int, Meta(extra_json_schema=_PARTITION_BOUNDS)] = (
        PARTITIONS_PER_RANGE_DEFAULT
    )
    json_check: Annotated[bool, Meta(description="Refuse values that are not JSON.")] = True


class TopicChanges(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of `PATCH /v1/topics/{topic}`: what is to be changed."""

    json_check: bool | msgspec.UnsetType = msgspec.UNSET
    partitions_per_range: Annotated[
        int | msgspec.UnsetType, Meta(description="Cannot be changed in this version.")
    ] = msgspec.UNSET


class TopicAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A topic."""

    name: str
    id: UUID
    partitions_per_range: int
    json_check: bool
    durability: str
    partitions: int
    copies: int


class TopicsAnswer(msgspec.Struct):
    """All topics, sorted by name."""

    topics: list[TopicAnswer]


class PartitionState(msgspec.Struct, rename="camel", kw_only=True):
    """Where a partition begins and ends; null where damage hides it."""

    partition: int
    range: int
    epoch: int
    first_offset: int
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    state: Annotated[str, Meta(description="open, sealed or damaged")]
    parents: list[int]
    children: list[int]
    timestamp_offset: Annotated[
        int | msgspec.UnsetType | None,
        Meta(description="With `timestamp`: of the first record of that time or later."),
    ] = msgspec.UNSET


class PartitionDetails(PartitionState, kw_only=True):
    """A partition as `GET /v1/topics/{topic}` describes it."""

    slice: int
    slices: int
    token_start: str
    token_end: str
    leader: int
    isr: list[int]
    size_bytes: int | None


class TopicDescription(TopicAnswer, kw_only=True):
    """A topic with its partitions."""

    partition_details: list[PartitionDetails]


class TopicOffsets(msgspec.Struct):
    """The partitions of one topic."""

    topic: str
    partitions: list[PartitionState]


class OffsetsAnswer(msgspec.Struct):
    """The answer of `GET /v1/offsets`."""

    topics: list[TopicOffsets]


class TopicPath(Parameters, frozen=True):
    """Of `/v1/topics/{topic}`."""

    topic: TopicName


class OffsetsParameters(Parameters, frozen=True):
    """Of `GET /v1/offsets`."""

    topic: Annotated[tuple[str, ...], Meta(description="Repeatable; without it all topics.")] = ()
    timestamp: (
        Annotated[
            int,
            Meta(ge=0, le=INT64_MAX, description="Adds `timestampOffset`; µs since the epoch."),
        ]
        | None
    ) = None


async def list_topics(broker: Broker, _: Call) -> Response:
    """All topics."""
    return json_response(TopicsAnswer([_answer(hosted.topic) for hosted in broker.topics()]))


async def create_topic(broker: Broker, call: Call) -> Response:
    """201 when it is new, 200 when it exists with the same settings."""
    wanted = _parse(call.body, NewTopic, "a topic has name, partitionsPerRange and jsonCheck")
    settings = TopicSettings(wanted.partitions_per_range, wanted.json_check)
    topic, is_new = await broker.create_topic(wanted.name, settings)
    return json_response(_answer(topic), status=201 if is_new else 200)


async def describe_topic(broker: Broker, call: Call) -> Response:
    """A topic with its partitions."""
    hosted = broker.hosted(call.parameters.topic)
    details = [_details(hosted, partition) for partition in hosted.topic.partitions]
    members = msgspec.structs.asdict(_answer(hosted.topic))
    return json_response(TopicDescription(**members, partition_details=details))


async def alter_topic(broker: Broker, call: Call) -> Response:
    """The topic with its changed settings."""
    topic = broker.hosted(call.parameters.topic).topic
    changes = _parse(call.body, TopicChanges, "jsonCheck can be changed")
    given = {
        name: value
        for name, value in msgspec.structs.asdict(changes).items()
        if value is not msgspec.UNSET
    }
    settings = msgspec.structs.replace(topic.settings, **given)
    return json_response(_answer(await broker.alter_topic(topic.name, settings)))


async def delete_topic(broker: Broker, call: Call) -> Response:
    """204 when the topic is gone."""
    await broker.delete_topic(call.parameters.topic)
    return Response(content_type="", status=204)


async def list_offsets(broker: Broker, call: Call) -> Response:
    """Where each partition of some topics begins and ends."""
    parameters: OffsetsParameters = call.parameters
    names = dict.fromkeys(parameters.topic)
    hosted = [broker.hosted(name) for name in names] or list(broker.topics())
    topics = []
    for each in hosted:
        states = [_state(each, partition) for partition in each.topic.partitions]
        if parameters.timestamp is not None:
            for state in states:
                log = _log_or_none(each, state["partition"])
                found = await log.find_timestamp(parameters.timestamp) if log else None
                state["timestamp_offset"] = found
        topics.append(TopicOffsets(each.topic.name, [PartitionState(**state) for state in states]))
    return json_response(OffsetsAnswer(topics))


def json_response(answer: object, *, status: int = 200) -> Response:
    """An answer's struct as JSON."""
    return Response((msgspec.json.encode(answer),), status=status)


def _parse(body: bytes | bytearray, kind: type[Any], known: str) -> Any:
    """InvalidParameterError names a field; InvalidBodyError when it is not even JSON."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = f"{error}; {known}"
        field = _FIELD.search(str(error)) if isinstance(error, msgspec.ValidationError) else None
        if field:
            raise InvalidParameterError(detail, parameter=field[1]) from error
        raise InvalidBodyError(detail) from error


def _answer(topic: Topic) -> TopicAnswer:
    return TopicAnswer(
        name=topic.name,
        id=topic.topic_id,
        partitions_per_range=topic.settings.partitions_per_range,
        json_check=topic.settings.json_check,
        durability="fsync",
        partitions=len(topic.partitions),
        copies=1,
    )


def _state(hosted: HostedTopic, partition: Partition) -> dict[str, Any]:
    """The members of a PartitionState."""
    log = _log_or_none(hosted, partition.partition)
    is_sealed = partition.sealed_end is not None
    return {
        "partition": partition.partition,
        "range": partition.range_id,
        "epoch": partition.epoch,
        "first_offset": partition.first_offset,
        "log_start": log and log.log_start,
        "high_watermark": log and log.high_watermark,
        "log_end": log and log.log_end,
        "state": "damaged" if log is None else "sealed" if is_sealed else "open",
        "parents": list(partition.parents),
        "children": list(partition.children),
    }


def _details(hosted: HostedTopic, partition: Partition) -> PartitionDetails:
    log = _log_or_none(hosted, partition.partition)
    slices = hosted.topic.settings.partitions_per_range
    starts = [start for start, _ in slice_bounds(TOKEN_MIN, UNITS, slices)]
    return PartitionDetails(
        **_state(hosted, partition),
        slice=find_slice(starts, partition.token_start),
        slices=slices,
        token_start=str(partition.token_start),
        token_end=str(partition.token_end),
        leader=0,
        isr=[0],
        size_bytes=None if log is None else log.size_bytes,
    )


def _log_or_none(hosted: HostedTopic, partition: int) -> PartitionLog | None:
    """None: the partition's data is damaged."""
    try:
        return hosted.log_of(partition)
    except CorruptPartitionError:
        return None
