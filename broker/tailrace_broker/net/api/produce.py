"""A produce request -> appends -> its answer; the same for every listener (docs/protocol.md)."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_JSON_CONTENT_TYPE,
)
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.by_partition import PartitionRecords, split_keyed_lines, split_records
from tailrace_broker.codec.columns import Int32s, RecordColumns
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import Appended, AppendFailed, AppendOutcome
from tailrace_broker.model.errors import InvalidBodyError, InvalidParameterError, TailraceError
from tailrace_broker.model.topic import Topic
from tailrace_broker.net.api.produce_bodies import (
    EventBody,
    KeyedBody,
    ProduceParameters,
    RecordsBody,
    read_batch,
    read_event,
    read_json_records,
    read_lines,
    read_records,
)
from tailrace_broker.net.api.producer_headers import Sender, read_sender
from tailrace_broker.net.api.redirect import wants_redirect
from tailrace_broker.net.broker import Appends, Broker, OpenTopic
from tailrace_broker.net.http.problems import problem_members
from tailrace_broker.net.http.router import AnswerCallback, Call, Response

# The member of an answer whose request created the topic.
_CREATED = "topicCreated"
_CREATED_MEMBER = b',"topicCreated":true'
_STORED = b'{"topic":"%s","partition":%d,"offset":%d,"count":%d,"durability":"%s","copies":%d%s%s}'

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


def produce(broker: Broker, call: Call, answer: AnswerCallback) -> None:
    """Append what a request brings; `answer` is called once, maybe later.

    Requests for one partition are appended in the order of these calls.
    """
    format_ = _FORMATS[call.content_type]
    try:
        _check(call, format_.foreign)
        sender = read_sender(call.headers)
        wants_redirect(call)
    except TailraceError as error:
        answer(error)
    else:
        topic = call.parameters.topic
        hosted = broker.present(topic)
        if hosted is not None:
            _append(format_, _Request(broker, call, sender, hosted, answer))
        else:
            use = partial(_use, format_, broker, call, sender, answer)
            check = partial(format_.read, broker, call)
            broker.with_topic(topic, use, check)


class _Request(NamedTuple):
    """A produce request whose topic is there; `is_new`: since this very request."""

    broker: Broker
    call: Call
    sender: Sender | None
    hosted: OpenTopic
    answer: AnswerCallback
    is_new: bool = False

    @property
    def producer(self) -> Producer | None:
        """Return the producer of a request that may be sent again."""
        return self.sender and self.sender.producer

    def partition_of(self, key: bytes | None) -> int:
        """Return the partition.

        Without a key the producer's name decides, so that a retry meets itself.
        """
        placing = self.sender.name if key is None and self.sender is not None else key
        return self.hosted.partition_of_key(placing)

    def appends_to(self, partition: int) -> Appends:
        """Where to append to a partition; raises why that cannot be."""
        if wants_redirect(self.call):
            return self.hosted.open_log_of(partition)
        return self.broker.appends_to(self.hosted, partition)

    def answer_one(self, partition: int, count: int, outcome: AppendOutcome) -> None:
        """Answer a request whose records are all in one partition."""
        if isinstance(outcome, Appended):
            self.answer(Response((self.stored(partition, count, outcome), b"\n")))
        else:
            self.answer_error(outcome.error)

    def answer_error(self, error: TailraceError) -> None:
        """Answer the request with a problem."""
        self.answer(_marked(error) if self.is_new else error)

    def stored(self, partition: int, count: int, stored: Appended) -> bytes:
        """Return as JSON what is stored in one partition."""
        topic = self.hosted.topic
        # Neither a topic's name nor its durability has a character that JSON escapes.
        return _STORED % (
            topic.name.encode(),
            partition,
            stored.offset,
            count,
            topic.settings.durability.encode(),
            stored.copies,
            b',"duplicate":true' if stored.is_duplicate else b"",
            _CREATED_MEMBER if self.is_new else b"",
        )

    def failed(self, partition: int, count: int, error: TailraceError) -> bytes:
        """Why nothing is stored in one of several partitions, as JSON."""
        element = {"topic": self.hosted.topic.name, "partition": partition, "count": count}
        problem = {"problem": problem_members(error)}
        created = {_CREATED: True} if self.is_new else {}
        return msgspec.json.encode(element | problem | created)


def _check(call: Call, foreign: Sequence[str]) -> None:
    """Check what needs neither the topic nor the body."""
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
    format_: "_Format",
    broker: Broker,
    call: Call,
    sender: Sender | None,
    answer: AnswerCallback,
    hosted: OpenTopic | None,
    error: TailraceError | None,
    is_new: bool,
) -> None:
    """Append once the topic is there."""
    if hosted is None:
        assert error is not None
        answer(_marked(error) if is_new else error)
    else:
        _append(format_, _Request(broker, call, sender, hosted, answer, is_new))


def _marked(error: TailraceError) -> TailraceError:
    """A copy, for others may share the error, that says too that the request created its topic."""
    marked = copy(error)
    marked.members = error.members | {_CREATED: True}
    return marked


def _append(format_: "_Format", request: _Request) -> None:
    try:
        body = format_.read(request.broker, request.call, request.hosted.topic)
        format_.append(request, body)
    except TailraceError as error:
        request.answer_error(error)


def _append_event(request: _Request, body: EventBody) -> None:
    """Coalesced with other requests' events."""
    key = request.call.parameters.key
    partition = request.partition_of(key)
    done = partial(request.answer_one, partition, 1)
    request.appends_to(partition).append_event(key, *body, done, request.producer)
    request.broker.counters.produced_events += 1


def _append_lines(request: _Request, body: RecordColumns | KeyedBody) -> None:
    """A batch of its own; with keys in the lines, one for each partition that they belong to."""
    if isinstance(body, KeyedBody):
        lines, timestamp_us, flags = body
        partitions = request.hosted.partitions_of_keys(lines.keys)
        _append_each(request, split_keyed_lines(lines, partitions, timestamp_us, flags=flags))
        return
    partition = request.partition_of(request.call.parameters.key)
    done = partial(request.answer_one, partition, body.record_count)
    request.appends_to(partition).append_columns(body, done, request.producer)
    request.broker.counters.produced_events += body.record_count


def _append_records(request: _Request, body: RecordsBody) -> None:
    """A batch for each partition that the records' keys belong to."""
    partitions = _partitions_of(request, body.records.keys)
    _append_each(request, split_records(body.records, partitions, flags=body.flags))


def _partitions_of(request: _Request, keys: Sequence[bytes | None]) -> Int32s:
    """Return the partition of each record; records without a key have one partition."""
    partitions = request.hosted.partitions_of_keys([key or b"" for key in keys])
    if None in keys:
        is_null = np.array([key is None for key in keys])
        partitions[is_null] = request.partition_of(None)
    return partitions


def _append_each(request: _Request, parts: Sequence[PartitionRecords]) -> None:
    """A batch for each partition."""
    collected = _Collected(request, len(parts))
    for partition, columns in parts:
        count = columns.record_count
        done = partial(collected.add, partition, count)
        try:
            log = request.appends_to(partition)
        except TailraceError as error:
            done(AppendFailed(error))
        else:
            log.append_columns(columns, done, request.producer)
            request.broker.counters.produced_events += count


def _append_batch(request: _Request, body: BatchBody) -> None:
    """Appended as it is under a header of the leader's."""
    partition: int = request.call.parameters.partition
    done = partial(request.answer_one, partition, body.record_count)
    request.appends_to(partition).append_batch(body, done, request.producer)
    request.broker.counters.produced_events += body.record_count


class _Format(NamedTuple):
    """A content type: how its body is read, with which parameters that say nothing for it, and how
    what was read is appended.
    """

    read: Callable[[Broker, Call, Topic], Any]
    append: Callable[[_Request, Any], None]
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

    def __init__(self, request: _Request, partition_count: int) -> None:
        self._request = request
        self._missing = partition_count
        self._elements: dict[int, bytes] = {}
        self._errors: list[TailraceError] = []

    def add(self, partition: int, count: int, outcome: AppendOutcome) -> None:
        request = self._request
        if isinstance(outcome, Appended):
            self._elements[partition] = request.stored(partition, count, outcome)
        else:
            self._errors.append(outcome.error)
            self._elements[partition] = request.failed(partition, count, outcome.error)
        self._missing -= 1
        if self._missing:
            return
        if len(self._errors) == len(self._elements):
            request.answer_error(self._errors[0])
        else:
            elements = [self._elements[key] for key in sorted(self._elements)]
            body = b"[%s]\n" % b",".join(elements)
            request.answer(Response((body,), status=207 if self._errors else 200))
