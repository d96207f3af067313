"""A produce request -> appends -> its answer; the same for every door (docs/protocol.md)."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, TypeVar, cast

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
)
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.columns import (
    HeaderColumns,
    RecordColumns,
    column_of_values,
    offsets_of_lengths,
    pack_columns,
    pack_events,
)
from tailrace_broker.codec.records_binary import ProducedRecords, RecordHeaders
from tailrace_broker.model.errors import InvalidBodyError, InvalidParameterError, TailraceError
from tailrace_broker.model.topic import Topic
from tailrace_broker.net.api.produce_bodies import (
    EventBody,
    ProduceParameters,
    RecordsBody,
    read_batch,
    read_event,
    read_json_records,
    read_lines,
    read_records,
)
from tailrace_broker.net.api.producer_headers import Sender, read_sender
from tailrace_broker.net.broker import Broker, HostedTopic
from tailrace_broker.net.http.problems import problem_members
from tailrace_broker.net.http.router import Answer, Call

# Of a request's records for one partition, up to here a loop is cheaper than vector operations.
FEW_RECORDS = 64

# The member of an answer whose request created the topic.
_CREATED = "topicCreated"

Indices = npt.NDArray[np.intp]
T = TypeVar("T")
_TopicCreated = Annotated[
    bool | msgspec.UnsetType, Meta(description="Only when this very request created the topic.")
]


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
    format_ = _FORMATS[call.content_type]
    try:
        _check(call, format_.foreign)
        sender = read_sender(call.headers)
    except TailraceError as error:
        answer(0, b"", error)
    else:
        topic = call.parameters.topic
        hosted = broker.present(topic)
        if hosted is not None:
            _append(format_, broker, call, sender, hosted, answer)
        else:
            append = partial(_append, format_, broker, call, sender)
            check = partial(format_.read, broker, call)
            broker.with_topic(topic, partial(_use, append, answer), check)


def _check(call: Call, foreign: Sequence[str]) -> None:
    """What can be said without the topic and the body."""
    parameters = call.parameters
    for field in foreign:
        if getattr(parameters, field) is not None:
            name = _WIRE_NAMES[field]
            raise InvalidParameterError(
                f"{name} says nothing for {call.content_type}; leave it out", parameter=name
            )
    if not call.body:
        raise InvalidBodyError("the body is empty; nothing was stored")


def _use(
    append: Callable[[HostedTopic, Answer], None],
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
    else:
        append(hosted, answer)


def _append(
    format_: "_Format",
    broker: Broker,
    call: Call,
    sender: Sender | None,
    hosted: HostedTopic,
    answer: Answer,
) -> None:
    read, append, _ = format_
    try:
        append(broker, hosted, call, read(broker, call, hosted.topic), sender, answer)
    except TailraceError as error:
        answer(0, b"", error)


def _append_event(
    broker: Broker,
    hosted: HostedTopic,
    call: Call,
    body: EventBody,
    sender: Sender | None,
    answer: Answer,
) -> None:
    """Coalesced with other requests' events."""
    key = call.parameters.key
    partition = hosted.partition_of_key(_placing_key(key, sender))
    done = partial(_answer_one, answer, hosted.topic, partition, 1)
    hosted.log_of(partition).append_event(key, *body, done, sender and sender.producer)
    broker.counters.produced_events += 1


def _append_lines(
    broker: Broker,
    hosted: HostedTopic,
    call: Call,
    body: RecordColumns | RecordsBody,
    sender: Sender | None,
    answer: Answer,
) -> None:
    """A batch of its own; with keys in the lines, one for each partition that they belong to."""
    if isinstance(body, RecordsBody):
        _append_records(broker, hosted, call, body, sender, answer)
        return
    partition = hosted.partition_of_key(_placing_key(call.parameters.key, sender))
    done = partial(_answer_one, answer, hosted.topic, partition, body.record_count)
    hosted.log_of(partition).append_columns(body, done, sender and sender.producer)
    broker.counters.produced_events += body.record_count


def _append_records(
    broker: Broker,
    hosted: HostedTopic,
    _: Call,
    body: RecordsBody,
    sender: Sender | None,
    answer: Answer,
) -> None:
    """A batch for each partition that the records' keys belong to."""
    records = body.records
    partitions = _partitions_of(hosted, records.keys, sender)
    _append_by_partition(broker, hosted, records, partitions, body.flags, sender, answer)


def _partitions_of(
    hosted: HostedTopic, keys: Sequence[bytes | None], sender: Sender | None
) -> npt.NDArray[np.int32]:
    """Of each record; those without a key have one partition."""
    partitions = hosted.partitions_of_keys([key or b"" for key in keys])
    if None in keys:
        is_null = np.array([key is None for key in keys])
        partitions[is_null] = hosted.partition_of_key(_placing_key(None, sender))
    return partitions


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
    broker: Broker,
    hosted: HostedTopic,
    call: Call,
    body: BatchBody,
    sender: Sender | None,
    answer: Answer,
) -> None:
    """Stored as it is under a header of the leader's."""
    partition: int = call.parameters.partition
    done = partial(_answer_one, answer, hosted.topic, partition, body.record_count)
    log = hosted.open_log_of(partition)
    log.append_batch(body, done, sender and sender.producer)
    broker.counters.produced_events += body.record_count


class _Format(NamedTuple):
    """A content type: how its body is read, with which parameters that say nothing for it, and how
    what was read is appended.
    """

    read: Callable[[Broker, Call, Topic], Any]
    append: Callable[[Broker, HostedTopic, Call, Any, Sender | None, Answer], None]
    foreign: tuple[str, ...]


_FORMATS = {
    JSON_CONTENT_TYPE: _Format(read_event, _append_event, ("key_path", "partition")),
    NDJSON_CONTENT_TYPE: _Format(read_lines, _append_lines, ("partition",)),
    RECORDS_CONTENT_TYPE: _Format(
        read_records, _append_records, ("partition_key", "key_path", "timestamp", "partition")
    ),
    RECORDS_JSON_CONTENT_TYPE: _Format(
        read_json_records, _append_records, ("partition_key", "key_path", "timestamp", "partition")
    ),
    BATCH_CONTENT_TYPE: _Format(
        read_batch, _append_batch, ("partition_key", "key_path", "timestamp")
    ),
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
