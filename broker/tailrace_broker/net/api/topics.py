"""Topics and where their partitions begin and end -> answers (docs/protocol.md, "Topics")."""

import asyncio
import re
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from itertools import compress
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from tailrace_broker.codec.json_body import UnfitBodyError, decode_body
from tailrace_broker.core.ring.reslicing import ranges_to_slice
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    InvalidBodyError,
    InvalidParameterError,
    NoLeaderError,
    OverloadError,
    StoredDataError,
    TailraceError,
    TopicExistsError,
)
from tailrace_broker.model.ring_state import RangeState
from tailrace_broker.model.topic import (
    BOUNDS,
    CODECS,
    DURABILITIES,
    NEW_TOPIC,
    Partition,
    Slice,
    Topic,
    TopicSettings,
    slices_of,
)
from tailrace_broker.net.api.range_states import condition_of, server_of
from tailrace_broker.net.api.redirect import wants_redirect
from tailrace_broker.net.broker import Broker, OpenTopic
from tailrace_broker.net.http.router import Call, Parameters, Response, TopicName
from tailrace_broker.net.http.timestamps import TIMESTAMP_FORMS, read_timestamp
from tailrace_broker.net.logs import OpenLog

T = TypeVar("T", bound=msgspec.Struct)

# How long other brokers have to say where the partitions end that they lead.
LEADER_SECONDS = 2.0

_FIELD_END = re.compile(r"[.\[]")


def _bounds(field: str) -> dict[str, int]:
    """Describe bounds; TopicSettings checks them, whose sentence is better than msgspec's."""
    return {"minimum": BOUNDS[field].least, "maximum": BOUNDS[field].most}


class TopicChanges(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The body of `PATCH /v1/topics/{topic}`: what is to be changed."""

    partitions_per_range: Annotated[
        int | UnsetType,
        Meta(
            description="At first 4; the ranges of the ring follow a change one after another.",
            extra_json_schema=_bounds("partitions_per_range"),
        ),
    ] = UNSET
    json_check: Annotated[
        bool | UnsetType, Meta(description="Refuse values that are not JSON; at first true.")
    ] = UNSET
    compression: Annotated[
        str | UnsetType,
        Meta(
            description="Of batches that it makes smaller; at first lz4.",
            extra_json_schema={"enum": list(CODECS)},
        ),
    ] = UNSET
    durability: Annotated[
        str | UnsetType,
        Meta(
            description="When a produce is answered: fsync (at first): its records are on disk; "
            "written: the operating system has them, and flushes later.",
            extra_json_schema={"enum": list(DURABILITIES)},
        ),
    ] = UNSET
    flush_ms: Annotated[
        int | UnsetType,
        Meta(
            description="With written: what is not flushed is, after this long; at first 1,000.",
            extra_json_schema=_bounds("flush_ms"),
        ),
    ] = UNSET
    flush_bytes: Annotated[
        int | UnsetType,
        Meta(
            description="With written: or when it is so much; at first 16 MiB.",
            extra_json_schema=_bounds("flush_bytes"),
        ),
    ] = UNSET
    linger_ms: Annotated[
        int | UnsetType,
        Meta(
            description="How long single events wait for others to share a batch; at first 0.",
            extra_json_schema=_bounds("linger_ms"),
        ),
    ] = UNSET
    linger_bytes: Annotated[
        int | UnsetType,
        Meta(
            description="They wait no longer once they have so many bytes; 0 (at first): no bound.",
            extra_json_schema=_bounds("linger_bytes"),
        ),
    ] = UNSET
    retention_ms: Annotated[
        int | UnsetType | None,
        Meta(
            description="Records stay this long at least; 60,000 or more, or null: for ever; "
            "at first 7 days.",
            extra_json_schema=_bounds("retention_ms"),
        ),
    ] = UNSET
    retention_bytes: Annotated[
        int | UnsetType | None,
        Meta(
            description="A partition keeps so many bytes at least; 1 MiB or more, or null "
            "(at first): all.",
            extra_json_schema=_bounds("retention_bytes"),
        ),
    ] = UNSET
    min_in_sync_replicas: Annotated[
        int | UnsetType,
        Meta(
            description="Replicas that must be in sync, or produces are refused; at most the "
            "ring's copies are in force; at first 2.",
            extra_json_schema=_bounds("min_in_sync_replicas"),
        ),
    ] = UNSET


class NewTopic(TopicChanges, rename="camel", forbid_unknown_fields=True):
    """The body of `POST /v1/topics`."""

    name: Annotated[str, Meta(description="1 to 249 of A-Z a-z 0-9 . _ -", examples=["orders"])]


class TopicAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A topic."""

    name: str
    id: UUID
    partitions_per_range: int
    json_check: bool
    compression: str
    durability: str
    flush_ms: int
    flush_bytes: int
    linger_ms: int
    linger_bytes: int
    retention_ms: int | None
    retention_bytes: int | None
    min_in_sync_replicas: int
    partitions: Annotated[int, Meta(description="Sealed ones too.")]
    sealed_partitions: Annotated[int, Meta(description="Of these, which take no more records.")]
    copies: int
    ranges_to_slice: Annotated[
        int, Meta(description="In which it does not have `partitionsPerRange` partitions yet.")
    ]


class TopicsAnswer(msgspec.Struct):
    """All topics, sorted by name."""

    topics: list[TopicAnswer]


class PartitionState(msgspec.Struct, rename="camel", kw_only=True):
    """Where a partition begins and ends; null where damage hides it, or its leader is silent."""

    partition: int
    range: int
    epoch: int
    leader: Annotated[int | None, Meta(description="Its ordinal; null: no broker leads now.")]
    leader_url: Annotated[
        str | UnsetType,
        Meta(description="When another broker leads it, or has a sealed one."),
    ] = UNSET
    first_offset: int
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    state: Annotated[
        str,
        Meta(
            description="open, sealed, damaged; waiting, leaderless: as its range, which no broker "
            "leads now, or whose new leader does not know its end yet."
        ),
    ]
    parents: list[int]
    children: list[int]
    timestamp_offset: Annotated[
        int | UnsetType | None,
        Meta(description="With `timestamp`: of the first record of that time or later."),
    ] = UNSET


Row = TypeVar("Row", bound=PartitionState)


class QuarantinedBatch(msgspec.Struct, rename="camel"):
    """Records that cannot be read, and where the damage begins."""

    first_offset: int
    last_offset: int
    file: str
    byte: int
    accepted: Annotated[bool, Meta(description="They are lost for good; somebody accepted that.")]


class PartitionDetails(PartitionState, kw_only=True):
    """A partition as `GET /v1/topics/{topic}` describes it."""

    slice: int
    slices: int
    token_start: str
    token_end: str
    isr: list[int]
    size_bytes: int | None
    quarantined: Annotated[
        list[QuarantinedBatch], Meta(description="What was met of damage, at the start or since.")
    ]


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
        Annotated[str, Meta(description=f"Adds `timestampOffset`; {TIMESTAMP_FORMS}.")] | None
    ) = None


async def list_topics(broker: Broker, _: Call) -> Response:
    """Return all topics."""
    return json_response(
        TopicsAnswer([_answer(broker, hosted.topic) for hosted in broker.topics()])
    )


async def create_topic(broker: Broker, call: Call) -> Response:
    """201 when it is new, 200 when it exists with the settings that are given."""
    wanted = parse_body(call.body, NewTopic)
    given = _given(wanted)
    name = given.pop("name")
    try:
        topic, is_new = await broker.create_topic(name, replace(NEW_TOPIC, **given))
    except TopicExistsError:
        topic, is_new = broker.hosted(name).topic, False
        _check_settings(topic, replace(topic.settings, **given))
    return json_response(_answer(broker, topic), status=201 if is_new else 200)


def _check_settings(topic: Topic, wanted: TopicSettings) -> None:
    """TopicExistsError names what is not as wanted, and says what can be done."""
    asked = msgspec.to_builtins(wanted)
    others = {
        name: msgspec.json.encode(value).decode()
        for name, value in msgspec.to_builtins(topic.settings).items()
        if asked[name] != value
    }
    if not others:
        return
    other_settings = ", ".join(f"{name} {value}" for name, value in others.items())
    raise TopicExistsError(
        f'topic "{topic.name}" exists with {other_settings}; alter it, or choose another name',
        topic=topic.name,
    )


async def describe_topic(broker: Broker, call: Call) -> Response:
    """A topic with its partitions."""
    hosted = broker.hosted(call.parameters.topic)
    led, url_of = await _led_ranges([hosted]), urls_for(broker, call)
    slices = slices_of(hosted.topic)  # a step may have ended meanwhile
    details = [
        _details(broker, hosted, partition, slices[partition.partition], led, url_of)
        for partition in hosted.topic.partitions
    ]
    if not wants_redirect(call):
        answers = await _ask_leaders(broker, details, call.target)
        for answer in answers:
            with suppress(msgspec.DecodeError):  # of another version
                theirs = msgspec.json.decode(answer, type=TopicDescription)
                details = _completed(details, theirs.partition_details)
    members = msgspec.structs.asdict(_answer(broker, hosted.topic))
    return json_response(TopicDescription(**members, partition_details=details))


async def alter_topic(broker: Broker, call: Call) -> Response:
    """The topic with its changed settings."""
    changes = _given(parse_body(call.body, TopicChanges))
    return json_response(_answer(broker, await broker.alter_topic(call.parameters.topic, changes)))


async def delete_topic(broker: Broker, call: Call) -> Response:
    """204 when the topic is gone."""
    await broker.delete_topic(call.parameters.topic)
    return Response(content_type="", status=204)


async def list_offsets(broker: Broker, call: Call) -> Response:
    """Return where each partition of some topics begins and ends."""
    parameters: OffsetsParameters = call.parameters
    names = dict.fromkeys(parameters.topic)
    hosted = [broker.hosted(name) for name in names] or list(broker.topics())
    time_us = None if parameters.timestamp is None else read_timestamp(parameters.timestamp)
    topics, led, url_of = [], await _led_ranges(hosted), urls_for(broker, call)
    for each in hosted:
        states = [
            _state(broker, each, partition, led, url_of) for partition in each.topic.partitions
        ]
        if time_us is not None:
            for state in states:
                log = log_or_none(each, state["partition"])
                offset = await log.find_timestamp(time_us) if log else None
                state["timestamp_offset"] = offset
        topics.append(TopicOffsets(each.topic.name, [PartitionState(**state) for state in states]))
    if not wants_redirect(call):
        await _complete_offsets(broker, topics, call.target)
    return json_response(OffsetsAnswer(topics))


async def _led_ranges(topics: Iterable[OpenTopic]) -> set[int]:
    """Those of their ranges that this process leads, surely."""
    logs = {
        partition.range_id: log
        for hosted in topics
        for partition in hosted.topic.partitions
        if (log := log_or_none(hosted, partition.partition)) is not None
    }

    async def is_led(log: OpenLog) -> bool:
        try:
            await log.check_led()
        except NoLeaderError:
            return False
        return True

    led = await asyncio.gather(*map(is_led, logs.values()))
    return set(compress(logs, led))


async def _complete_offsets(broker: Broker, topics: list[TopicOffsets], target: bytes) -> None:
    """Put in what the leaders of partitions know of them."""
    rows = [row for topic in topics for row in topic.partitions]
    for answer in await _ask_leaders(broker, rows, target):
        with suppress(msgspec.DecodeError):  # of another version
            theirs = msgspec.json.decode(answer, type=OffsetsAnswer)
            known = {topic.topic: topic.partitions for topic in theirs.topics}
            for topic in topics:
                topic.partitions = _completed(topic.partitions, known.get(topic.topic, []))


async def _ask_leaders(
    broker: Broker, rows: Sequence[PartitionState], target: bytes
) -> list[bytes]:
    """Return what other brokers that lead some of the partitions answer; without those that do not.

    All of them are asked at once.
    """
    servers = {server_of(broker, row.range) for row in rows if row.leader_url is not UNSET}
    asking = [
        _ask_leader(broker, each, target)
        for each in servers
        if each is not None and each != broker.ordinal
    ]
    return list(filter(None, await asyncio.gather(*asking)))


async def _ask_leader(broker: Broker, leader: int, target: bytes) -> bytes | None:
    """None: it does not answer, or not soon."""
    with suppress(TailraceError, TimeoutError):
        async with asyncio.timeout(LEADER_SECONDS):
            return await broker.ask_broker(leader, target)
    return None


def _completed(rows: Sequence[Row], known: Sequence[Row]) -> list[Row]:
    """The same rows, each as its leader describes it where that has answered."""
    by_leader = {row.partition: row for row in known if row.leader_url is UNSET}
    return [
        replace(by_leader[row.partition], leader_url=row.leader_url)
        if row.partition in by_leader and row.leader_url is not UNSET
        else row
        for row in rows
    ]


def json_response(answer: object, *, status: int = 200) -> Response:
    """An answer's struct as JSON, with a line feed for readers in a shell."""
    return Response((msgspec.json.encode(answer) + b"\n",), status=status)


def parse_body(body: bytes | bytearray, kind: type[T]) -> T:
    """InvalidParameterError names a field; InvalidBodyError when it is not even JSON."""
    try:
        return decode_body(body, kind)
    except UnfitBodyError as error:
        if error.path:
            parameter = _FIELD_END.split(error.path)[0]
            raise InvalidParameterError(error.detail, parameter=parameter) from error
        raise InvalidBodyError(error.detail) from error


def _given(body: msgspec.Struct) -> dict[str, Any]:
    """The members that a body has."""
    members = msgspec.structs.asdict(body)
    return {name: value for name, value in members.items() if value is not UNSET}


def _answer(broker: Broker, topic: Topic) -> TopicAnswer:
    state = broker.ring.state
    assert state is not None, "there is a topic"
    known = state.topics.get(topic.name)
    return TopicAnswer(
        name=topic.name,
        id=topic.topic_id,
        **msgspec.structs.asdict(topic.settings),
        partitions=len(topic.partitions),
        sealed_partitions=sum(each.is_sealed for each in topic.partitions),
        copies=state.copies,
        ranges_to_slice=0 if known is None else len(ranges_to_slice(known)),
    )


def _state(
    broker: Broker,
    hosted: OpenTopic,
    partition: Partition,
    led: Container[int],
    url_of: Callable[[int], str],
) -> dict[str, Any]:
    """The members of a PartitionState. `led`: the ranges whose ends are known here."""
    log = log_or_none(hosted, partition.partition)
    is_unknown = log is not None and not (partition.range_id in led and log.knows_end)
    if is_unknown:
        log = None
    is_sealed, is_hidden = partition.is_sealed, is_damaged(hosted, partition)
    known_start = partition.known_start if is_sealed and not is_hidden else None
    members = {
        "partition": partition.partition,
        "range": partition.range_id,
        "epoch": partition.epoch,
        "first_offset": partition.first_offset,
        "log_start": log.log_start if log else known_start,
        "high_watermark": log.high_watermark if log else partition.sealed_end,
        "log_end": log.log_end if log else partition.sealed_end,
        "state": "sealed" if is_sealed else "open",
        "parents": list(partition.parents),
        "children": list(partition.children),
    }
    if is_hidden:
        members["state"] = "damaged"
    elif log is None and not is_sealed:
        members["state"] = "leaderless" if is_unknown else _condition(broker, partition)
    server = server_of(broker, partition.range_id)
    if server is not None and server != broker.ordinal:
        members["leader_url"] = url_of(server)
    return {**members, "leader": None if is_sealed else server}


def _details(
    broker: Broker,
    hosted: OpenTopic,
    partition: Partition,
    part: Slice,
    led: Container[int],
    url_of: Callable[[int], str],
) -> PartitionDetails:
    log = log_or_none(hosted, partition.partition)
    range_state = _range(broker, partition)
    return PartitionDetails(
        **_state(broker, hosted, partition, led, url_of),
        slice=part.number,
        slices=part.slices,
        token_start=str(partition.token_start),
        token_end=str(partition.token_end),
        isr=[]
        if range_state is None
        else [each.ordinal for each in range_state.isr if not each.is_ghost],
        size_bytes=None if log is None else log.size_bytes,
        quarantined=[
            QuarantinedBatch(
                each.first_offset,
                each.end_offset - 1,
                str(each.path),
                each.position,
                each.is_accepted,
            )
            for each in (log.quarantined if log else ())
        ],
    )


def urls_for(broker: Broker, call: Call) -> Callable[[int], str]:
    """Return what names the URL of a broker at which the sender of this request reaches it."""
    outside = broker.outside if call.is_outside else None
    if outside is not None:
        return outside.url_of
    return lambda ordinal: url_at(*broker.address_of(ordinal))


def url_at(host: str, port: int) -> str:
    """Return the URL of a broker's public listener."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _range(broker: Broker, partition: Partition) -> RangeState | None:
    state = broker.ring.state
    return None if state is None else state.ranges.get(partition.range_id)


def _condition(broker: Broker, partition: Partition) -> str:
    """Return the condition of a partition whose log is not here."""
    state, range_state = broker.ring.state, _range(broker, partition)
    return "open" if state is None or range_state is None else condition_of(state, range_state)


def is_damaged(hosted: OpenTopic, partition: Partition) -> bool:
    """Return whether its data is damaged, or it has lost its end."""
    try:
        return hosted.log_of(partition.partition).lost_end is not None
    except CorruptPartitionError:
        return True
    except (OverloadError, StoredDataError):
        return False


def log_or_none(hosted: OpenTopic, partition: int) -> OpenLog | None:
    """None: another broker leads the partition, or none does, or its data is damaged."""
    try:
        return hosted.log_of(partition)
    except (OverloadError, StoredDataError):
        return None
