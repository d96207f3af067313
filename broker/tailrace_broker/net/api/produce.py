"""A produce request -> appends -> its answer; the same for every door (docs/protocol.md)."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_JSON_CONTENT_TYPE,
    Flag,
)
from tailrace_broker.codec.columns import (
    PAYLOAD_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    HeaderColumns,
    RecordColumns,
    column_of_lengths,
    column_of_one,
    column_of_values,
    offsets_of_lengths,
    pack_columns,
    pack_events,
)
from tailrace_broker.codec.keyed_ndjson import parse_key_path, split_keyed_lines
from tailrace_broker.codec.ndjson import check_json, split_lines
from tailrace_broker.codec.ready_batch import parse_ready_batch
from tailrace_broker.codec.records_binary import ProducedRecords, RecordHeaders, parse_records
from tailrace_broker.codec.records_json import bad_record, parse_json_records
from tailrace_broker.model.errors import (
    BodyTooLargeError,
    InvalidBodyError,
    InvalidParameterError,
    TailraceError,
)
from tailrace_broker.model.topic import Topic
from tailrace_broker.net.api.producer_headers import Sender, read_sender
from tailrace_broker.net.broker import Broker, HostedTopic
from tailrace_broker.net.http.problems import problem_members
from tailrace_broker.net.http.router import (
    PARTITION_MAX,
    Answer,
    Call,
    Parameters,
    TopicName,
    shortened,
)
from tailrace_broker.net.http.timestamps import TIMESTAMP_FORMS, read_timestamp

# A producer's clock may be ahead by this much; more is a mistake (nanoseconds for microseconds).
TIMESTAMP_AHEAD_US_MAX = 3_600_000_000
# Plain integers: an operation on an enum costs a microsecond, a third of an event's JSON check.
_JSON_VALUES = int(Flag.JSON_VALUES)
_BROKER_TIMESTAMPS = int(Flag.BROKER_TIMESTAMPS)

# Of a request's records for one partition, up to here a loop is cheaper than vector operations.
FEW_RECORDS = 64

# The member of an answer whose request created the topic.
_CREATED = "topicCreated"

Indices = npt.NDArray[np.intp]
T = TypeVar("T")
_TopicCreated = Annotated[
    bool | msgspec.UnsetType, Meta(description="Only when this very request created the topic.")
]
_Append = Callable[[Broker, HostedTopic, Call, Sender | None, Answer], None]


class ProduceParameters(Parameters, frozen=True):
    """Of `POST /v1/topic/{topic}/messages`."""

    topic: TopicName
    partition_key: Annotated[
        str | None, Meta(description="Decides the partition; without it the broker picks one.")
    ] = None
    key_path: Annotated[
        str | None,
        Meta(description="NDJSON: the field that is each event's key, like `.customer.id`."),
    ] = msgspec.field(default=None, name="key")
    timestamp: Annotated[str, Meta(description=f"Of the events: {TIMESTAMP_FORMS}.")] | None = None
    partition: (
        Annotated[
            int, Meta(ge=0, le=PARTITION_MAX, description="For a ready-made batch, which needs it.")
        ]
        | None
    ) = None

    @property
    def key(self) -> bytes | None:
        """Any bytes, as they were percent-encoded."""
        key = self.partition_key
        return None if key is None else key.encode("utf-8", "surrogateescape")


class ProducedAnswer(msgspec.Struct, rename="camel"):
    """What is stored in one partition, `duplicate`: already; `offset` is the first record's."""

    topic: str
    partition: int
    offset: int
    count: int
    durability: str
    copies: int
    duplicate: bool | msgspec.UnsetType = msgspec.UNSET
    topic_created: _TopicCreated = msgspec.UNSET


class PartitionAnswer(msgspec.Struct, rename="camel"):
    """One partition of a request for several: `problem` in place of what a success has."""

    topic: str
    partition: int
    count: int
    offset: int | msgspec.UnsetType = msgspec.UNSET
    durability: str | msgspec.UnsetType = msgspec.UNSET
    copies: int | msgspec.UnsetType = msgspec.UNSET
    duplicate: bool | msgspec.UnsetType = msgspec.UNSET
    topic_created: _TopicCreated = msgspec.UNSET
    problem: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def produce(broker: Broker, call: Call, answer: Answer) -> None:
    """Append what a request brings; `answer(status, body, error)` is called once, maybe later.

    Requests for one partition are appended in the order of these calls.
    """
    append, foreign = _APPENDS[call.content_type]
    try:
        _check(broker, call, foreign)
        sender = read_sender(call.headers)
    except TailraceError as error:
        answer(0, b"", error)
    else:
        use = partial(_use, append, broker, call, sender, answer)
        broker.with_topic(call.parameters.topic, use)


def _check(broker: Broker, call: Call, foreign: Sequence[str]) -> None:
    """Before the topic may be created by this request."""
    for field in foreign:
        if getattr(call.parameters, field) is not None:
            name = _WIRE_NAMES[field]
            raise InvalidParameterError(
                f"{name} says nothing for {call.content_type}; leave it out", parameter=name
            )
    parameters: ProduceParameters = call.parameters
    if parameters.timestamp is not None:
        _timestamp_of(broker, parameters)
    if parameters.key_path is not None:
        _check_key_path(parameters)
    if not call.body:
        raise InvalidBodyError("the body is empty; nothing was stored")


def _check_key_path(parameters: ProduceParameters) -> None:
    key_path = parameters.key_path
    assert key_path is not None
    if parameters.partition_key is not None:
        raise InvalidParameterError(
            "partitionKey and key both say which keys the events have; give one", parameter="key"
        )
    try:
        parse_key_path(key_path)
    except ValueError as error:
        raise InvalidParameterError(
            f"key is {shortened(key_path)}; {error}", parameter="key"
        ) from error


def _use(
    append: _Append,
    broker: Broker,
    call: Call,
    sender: Sender | None,
    answer: Answer,
    hosted: HostedTopic | None,
    error: TailraceError | None,
    is_new: bool,
) -> None:
    """Append once the topic is there."""
    if is_new:
        answer = partial(_answer_created, answer)
    if hosted is None:
        answer(0, b"", error)
        return
    try:
        append(broker, hosted, call, sender, answer)
    except TailraceError as refused:
        answer(0, b"", refused)


def _append_event(
    broker: Broker, hosted: HostedTopic, call: Call, sender: Sender | None, answer: Answer
) -> None:
    """application/json: one event, coalesced with other requests' events."""
    parameters: ProduceParameters = call.parameters
    timestamp_us, flags = _timestamp_of(broker, parameters)
    if hosted.topic.settings.json_check:
        check_json(call.body)
        flags |= _JSON_VALUES
    key = parameters.key
    partition = hosted.partition_of_key(_placing_key(key, sender))
    done = partial(_answer_one, answer, hosted.topic, partition, 1)
    hosted.log_of(partition).append_event(
        key, bytes(call.body), timestamp_us, flags, done, sender and sender.producer
    )
    broker.counters.produced_events += 1


def _append_lines(
    broker: Broker, hosted: HostedTopic, call: Call, sender: Sender | None, answer: Answer
) -> None:
    """application/x-ndjson: a batch of its own; with keys in the lines, one a partition."""
    parameters: ProduceParameters = call.parameters
    if parameters.key_path is not None:
        _append_keyed_lines(broker, hosted, call, sender, answer)
        return
    timestamp_us, flags = _timestamp_of(broker, parameters)
    json_check = hosted.topic.settings.json_check
    if json_check:
        flags |= _JSON_VALUES
    values, lengths = split_lines(call.body, json_check=json_check)
    count = len(lengths)
    _check_payload(broker, len(values) + count * len(parameters.key or b""), count)
    columns = pack_columns(
        column_of_lengths(values, lengths),
        column_of_one(parameters.key, count),
        np.full(count, timestamp_us, np.int64),
        flags=flags,
    )
    partition = hosted.partition_of_key(_placing_key(parameters.key, sender))
    done = partial(_answer_one, answer, hosted.topic, partition, count)
    hosted.log_of(partition).append_columns(columns, done, sender and sender.producer)
    broker.counters.produced_events += count


def _append_keyed_lines(
    broker: Broker, hosted: HostedTopic, call: Call, sender: Sender | None, answer: Answer
) -> None:
    """application/x-ndjson, each line's key taken out of it."""
    timestamp_us, flags = _timestamp_of(broker, call.parameters)
    lines = split_keyed_lines(call.body, parse_key_path(call.parameters.key_path))
    count = len(lines.values)
    keys = list(map(lines.keys.__getitem__, lines.key_indices.tolist()))
    _check_payload(broker, len(call.body) + sum(map(len, keys)), count)
    if hosted.topic.settings.json_check:
        flags |= _JSON_VALUES
    times_us = np.full(count, timestamp_us, np.int64)
    records = ProducedRecords([*keys], [*lines.values], times_us, None)
    partitions = hosted.partitions_of_keys(lines.keys)[lines.key_indices]
    _append_by_partition(broker, hosted, records, partitions, flags, sender, answer)


def _append_records(
    broker: Broker, hosted: HostedTopic, call: Call, sender: Sender | None, answer: Answer
) -> None:
    """records+binary: a batch for each partition that the records' keys belong to."""
    records = parse_records(call.body)
    _check_payload(broker, len(call.body), len(records.keys))
    _append_by_key(broker, hosted, records, 0, sender, answer)


def _append_json_records(
    broker: Broker, hosted: HostedTopic, call: Call, sender: Sender | None, answer: Answer
) -> None:
    """records+json: as records+binary."""
    records, timestamps, values_are_json = parse_json_records(call.body)
    _check_payload(broker, len(call.body), len(records.keys))
    if timestamps:
        times_us = [_time_of_record(index, each) for index, each in enumerate(timestamps)]
        records = replace(records, timestamps_us=np.array(times_us, np.int64))
    flags = _JSON_VALUES if values_are_json else 0
    _append_by_key(broker, hosted, records, flags, sender, answer)


def _time_of_record(index: int, timestamp: int | str) -> int:
    try:
        return read_timestamp(timestamp)
    except InvalidParameterError as error:
        raise bad_record(index, error.detail) from error


def _append_by_key(
    broker: Broker,
    hosted: HostedTopic,
    records: ProducedRecords,
    flags: int,
    sender: Sender | None,
    answer: Answer,
) -> None:
    """A batch for each partition that the records' keys belong to."""
    if records.timestamps_us is None:
        times_us = np.full(len(records.keys), broker.now_us(), np.int64)
        records, flags = replace(records, timestamps_us=times_us), flags | _BROKER_TIMESTAMPS
    else:
        _check_not_ahead(broker, int(records.timestamps_us.max()))
    partition_by_key = {
        key: hosted.partition_of_key(_placing_key(key, sender)) for key in set(records.keys)
    }
    partitions = np.array([partition_by_key[key] for key in records.keys], np.int32)
    _append_by_partition(broker, hosted, records, partitions, flags, sender, answer)


def _append_by_partition(
    broker: Broker,
    hosted: HostedTopic,
    records: ProducedRecords,
    partitions: npt.NDArray[np.int32],
    flags: int,
    sender: Sender | None,
    answer: Answer,
) -> None:
    """A batch for each partition; `partitions`: of each record."""
    order = np.argsort(partitions, kind="stable")  # the request's order within a partition
    found, starts = np.unique(partitions[order], return_index=True)
    appends = [
        (partition, len(chosen), _columns_of(records, chosen, flags))
        for partition, chosen in zip(found.tolist(), np.split(order, starts[1:]), strict=True)
    ]
    collected = _Collected(hosted.topic, len(appends), answer)
    for partition, count, columns in appends:
        done = partial(collected.add, partition, count)
        try:
            log = hosted.open_log_of(partition)
        except TailraceError as error:
            done(-1, error)
        else:
            log.append_columns(columns, done, sender and sender.producer)
            broker.counters.produced_events += count


def _append_batch(
    broker: Broker, hosted: HostedTopic, call: Call, sender: Sender | None, answer: Answer
) -> None:
    """A ready-made batch: checked, and stored as it is under a header of the leader's."""
    partition: int | None = call.parameters.partition
    if partition is None:
        raise InvalidParameterError(
            "partition is missing; a ready-made batch names its partition", parameter="partition"
        )
    log = hosted.open_log_of(partition)
    batch = parse_ready_batch(call.body)
    _check_not_ahead(broker, batch.largest_timestamp_us)
    done = partial(_answer_one, answer, hosted.topic, partition, batch.record_count)
    log.append_batch(batch, done, sender and sender.producer)
    broker.counters.produced_events += batch.record_count


# By content type: how it is appended, and the parameters that say nothing for it.
_APPENDS: dict[str, tuple[_Append, tuple[str, ...]]] = {
    JSON_CONTENT_TYPE: (_append_event, ("key_path", "partition")),
    NDJSON_CONTENT_TYPE: (_append_lines, ("partition",)),
    RECORDS_CONTENT_TYPE: (
        _append_records,
        ("partition_key", "key_path", "timestamp", "partition"),
    ),
    RECORDS_JSON_CONTENT_TYPE: (
        _append_json_records,
        ("partition_key", "key_path", "timestamp", "partition"),
    ),
    BATCH_CONTENT_TYPE: (_append_batch, ("partition_key", "key_path", "timestamp")),
}
_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(ProduceParameters)}


class _Collected:
    """Gathers the outcomes of one request's partitions; answers when the last is there."""

    def __init__(self, topic: Topic, partition_count: int, answer: Answer) -> None:
        self._topic = topic
        self._missing = partition_count
        self._answer = answer
        self._elements: dict[int, msgspec.Raw] = {}
        self._errors: list[TailraceError] = []

    def add(
        self,
        partition: int,
        count: int,
        offset: int,
        error: TailraceError | None,
        *,
        is_duplicate: bool = False,
    ) -> None:
        if error is None:
            element = _produced(self._topic, partition, offset, count, is_duplicate=is_duplicate)
        else:
            self._errors.append(error)
            failed = {"topic": self._topic.name, "partition": partition, "count": count}
            element = msgspec.json.encode({**failed, "problem": problem_members(error)})
        self._elements[partition] = msgspec.Raw(element)
        self._missing -= 1
        if self._missing:
            return
        if len(self._errors) == len(self._elements):
            self._answer(0, b"", self._errors[0])
        else:
            body = msgspec.json.encode([self._elements[key] for key in sorted(self._elements)])
            self._answer(207 if self._errors else 200, body, None)


def _columns_of(records: ProducedRecords, chosen: Indices, flags: int) -> RecordColumns:
    """The chosen records as one batch's columns."""
    pick = _picker(chosen)
    assert records.timestamps_us is not None, "each record has its time here"
    timestamps_us = records.timestamps_us[chosen]
    values, keys = pick(records.values), pick(records.keys)
    if len(values) <= FEW_RECORDS and records.headers is None and None not in values:
        present = cast(list[bytes], values)
        return pack_events(present, keys, timestamps_us.tolist(), flags=flags)
    return pack_columns(
        column_of_values(values),
        column_of_values(keys),
        timestamps_us,
        headers=records.headers and _headers_of(records.headers, chosen),
        flags=flags,
    )


def _headers_of(headers: RecordHeaders, chosen: Indices) -> HeaderColumns:
    """The chosen records' headers as columns."""
    counts = headers.counts[chosen]
    firsts = offsets_of_lengths(headers.counts)[:-1][chosen]
    list_offsets = offsets_of_lengths(counts)
    # The i-th header of a record is at its first one's place plus i.
    places = np.repeat(firsts - list_offsets[:-1], counts) + np.arange(list_offsets[-1])
    pick = _picker(places)
    return HeaderColumns(
        list_offsets, column_of_values(pick(headers.keys)), column_of_values(pick(headers.values))
    )


def _picker(places: Indices) -> Callable[[Sequence[T]], list[T]]:
    """Takes these places of a sequence, in this order."""
    indices = places.tolist()
    if len(indices) < 2:  # else `itemgetter` gives a tuple
        return lambda values: [values[index] for index in indices]
    get = itemgetter(*indices)
    return lambda values: list(get(values))


def _answer_one(
    answer: Answer,
    topic: Topic,
    partition: int,
    count: int,
    offset: int,
    error: TailraceError | None,
    *,
    is_duplicate: bool = False,
) -> None:
    if error is None:
        body = _produced(topic, partition, offset, count, is_duplicate=is_duplicate)
        answer(200, body, None)
    else:
        answer(0, b"", error)


def _answer_created(answer: Answer, status: int, body: bytes, error: TailraceError | None) -> None:
    """Answer a request that created its topic: each element says so, and so does a problem."""
    if error is not None:
        error = copy(error)  # others may share it
        error.members = error.members | {_CREATED: True}
    else:
        said = msgspec.json.decode(body)
        for element in said if isinstance(said, list) else [said]:
            element[_CREATED] = True
        body = msgspec.json.encode(said)
    answer(status, body, error)


def _placing_key(key: bytes | None, sender: Sender | None) -> bytes | None:
    """What decides the partition: without a key the producer's name, so that a retry meets it."""
    return sender.name if key is None and sender is not None else key


def _produced(
    topic: Topic, partition: int, offset: int, count: int, *, is_duplicate: bool
) -> bytes:
    # Neither a topic's name nor its durability has a character that JSON escapes.
    return b'{"topic":"%s","partition":%d,"offset":%d,"count":%d,"durability":"%s","copies":1%s' % (
        topic.name.encode(),
        partition,
        offset,
        count,
        topic.settings.durability.encode(),
        b',"duplicate":true}' if is_duplicate else b"}",
    )


def _timestamp_of(broker: Broker, parameters: ProduceParameters) -> tuple[int, int]:
    """The time of a request's records, and the flag that says whose it is."""
    if parameters.timestamp is None:
        return broker.now_us(), _BROKER_TIMESTAMPS
    given_us = read_timestamp(parameters.timestamp)
    _check_not_ahead(broker, given_us)
    return given_us, 0


def _check_not_ahead(broker: Broker, given_us: int) -> None:
    now_us = broker.now_us()
    if given_us > now_us + TIMESTAMP_AHEAD_US_MAX:
        raise InvalidParameterError(
            f"timestamp {given_us} is more than an hour ahead of the broker's clock ({now_us}); "
            "it is in microseconds since the epoch",
            parameter="timestamp",
        )


def _check_payload(broker: Broker, data_bytes: int, count: int) -> None:
    """Refuse a request whose columns would be much larger than its body: a long key."""
    if data_bytes + count * RECORD_OVERHEAD_BYTES > PAYLOAD_BYTES_MAX:
        raise BodyTooLargeError(
            f"the events with their keys are over {PAYLOAD_BYTES_MAX} bytes; send fewer a request",
            maxRequestBytes=broker.max_request_bytes,
        )
