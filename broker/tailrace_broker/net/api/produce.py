"""A produce request -> appends -> its answer; the same for every listener (docs/protocol.md)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from operator import itemgetter
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
from tailrace_broker.core.forwarding.partition_queue import is_sealed
from tailrace_broker.core.log.derived_ids import derived_id
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.core.ring.arithmetic import token, tokens
from tailrace_broker.core.ring.origins import NO_MASK
from tailrace_broker.model.append_outcome import Appended, AppendFailed, AppendOutcome
from tailrace_broker.model.errors import (
    InvalidBodyError,
    InvalidParameterError,
    NotReadyError,
    TailraceError,
)
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
from tailrace_broker.net.broker import Broker, OpenTopic
from tailrace_broker.net.http.problems import problem_members
from tailrace_broker.net.http.router import AnswerCallback, Call, Response
from tailrace_broker.net.logs import Appends

# The member of an answer whose request created the topic.
_CREATED = "topicCreated"
# Numbers of parts are partitions, or these.
_ELSEWHERE = -1
_FINER = 1 << 30
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
        sender = None
        if call.headers:
            sender = read_sender(call.headers)
            wants_redirect(call)
    except TailraceError as error:
        answer(error)
    else:
        topic = call.parameters.topic
        hosted = broker.present(topic)
        if hosted is not None:
            _append(_Request(broker, call, sender, hosted, answer, format_))
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
    format_: "_Format"
    is_new: bool = False

    def producer_at(self, partition: int, key: bytes | None) -> Producer | None:
        """Return the producer of a request that may be sent again, as the partition knows it."""
        sender = self.sender
        if sender is None or partition not in self.hosted.origins:
            return sender and sender.producer
        placing = key if key is not None else sender.name
        return _derived(sender.producer, self.hosted.origins[partition].of(token(placing)))

    def producer_with(self, mask: int) -> Producer | None:
        """Likewise, of a part whose keys are of one piece of the partition."""
        sender = self.sender
        return sender and _derived(sender.producer, mask)

    def partition_of(self, key: bytes | None) -> int:
        """Return the partition.

        Without a key the producer's name decides, so that a retry meets itself.
        """
        placing = self.sender.name if key is None and self.sender is not None else key
        return self.hosted.partition_of_key(placing)

    def read(self) -> Any:
        """Return what the body brings."""
        return self.format_.read(self.broker, self.call, self.hosted.topic)

    def appends_to(self, partition: int, moved: TailraceError | None) -> Appends:
        """Where to append to a partition; raises why that cannot be. `moved`: see `Broker`."""
        if self.call.headers and wants_redirect(self.call):
            with suppress(NotReadyError):  # it is led here, and is about to be open
                log = self.hosted.open_log_of(partition)
                if log.is_led:
                    return log
        return self.broker.appends_to(self.hosted, partition, moved)

    def note_taken(self, event_count: int) -> None:
        """So many events go to logs; fewer than none: they go to others instead."""
        self.broker.counters.produced_events += event_count
        self.hosted.counts.produced_events += event_count

    def answer_one(self, partition: int, count: int, outcome: AppendOutcome) -> None:
        """Answer a request whose records are all in one partition."""
        if isinstance(outcome, Appended):
            self.answer(Response((self.stored(partition, count, outcome), b"\n")))
        elif is_sealed(outcome.error) and self.format_.by_key:
            self.note_taken(-count)
            _append(self, outcome.error)  # to the child that has the key
        else:
            self.answer_error(outcome.error)

    def answer_error(self, error: TailraceError) -> None:
        """Answer the request with a problem."""
        self.answer(_marked(error) if self.is_new else error)

    def stored(self, partition: int, count: int, stored: Appended) -> bytes:
        """Return as JSON what is stored in one partition."""
        topic = self.hosted.topic
        if stored.partition is not None:
            partition = stored.partition  # an ancestor has them
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
        _append(_Request(broker, call, sender, hosted, answer, format_, is_new))


def _marked(error: TailraceError) -> TailraceError:
    """A copy, for others may share the error, that says too that the request created its topic."""
    marked = copy(error)
    marked.members = error.members | {_CREATED: True}
    return marked


def _append(request: _Request, moved: TailraceError | None = None) -> None:
    try:
        request.format_.append(request, request.read(), moved)
    except TailraceError as error:
        request.answer_error(error)
    else:
        if moved is None:
            request.hosted.counts.produced_bytes += len(request.call.body)


def _append_event(request: _Request, body: EventBody, moved: TailraceError | None) -> None:
    """Coalesced with other requests' events."""
    key = request.call.parameters.key
    partition = request.partition_of(key)
    done = partial(request.answer_one, partition, 1)
    producer = request.producer_at(partition, key)
    request.appends_to(partition, moved).append_event(key, *body, done, producer)
    request.note_taken(1)


def _append_lines(
    request: _Request, body: RecordColumns | KeyedBody, moved: TailraceError | None
) -> None:
    """A batch of its own; with keys in the lines, one for each partition that they belong to."""
    if isinstance(body, KeyedBody):
        _append_each(request, body)
        return
    key = request.call.parameters.key
    partition = request.partition_of(key)
    done = partial(request.answer_one, partition, body.record_count)
    producer = request.producer_at(partition, key)
    request.appends_to(partition, moved).append_records(body, done, producer)
    request.note_taken(body.record_count)


def _append_records(request: _Request, body: RecordsBody, _: TailraceError | None) -> None:
    """A batch for each partition that the records' keys belong to."""
    _append_each(request, body)


def _partitions_of(request: _Request, keys: Sequence[bytes | None]) -> Int32s:
    """Return the partition of each record; records without a key have one partition."""
    partitions = request.hosted.partitions_of_keys([key or b"" for key in keys])
    if None in keys:
        is_null = np.array([key is None for key in keys])
        partitions[is_null] = request.partition_of(None)
    return partitions


def _append_each(request: _Request, body: KeyedBody | RecordsBody) -> None:
    """A batch for each partition."""
    placed = _placed(request, body)
    parts = _split(body, placed.numbers)
    collected = _Collected(request, placed.numbers, len(parts))
    for number, columns in parts:
        collected.append(number, placed.place_of(number), columns)


class _Placed(NamedTuple):
    """The part of the request that each record belongs to: its partition, or one of `finer`."""

    numbers: Int32s
    finer: Mapping[int, "_Place"]

    def place_of(self, number: int) -> "_Place":
        return self.finer.get(number) or _Place(number, NO_MASK)


class _Place(NamedTuple):
    """A partition, and the mask of ids in the piece of it that the keys of a part are of."""

    partition: int
    mask: int


def _placed(request: _Request, body: KeyedBody | RecordsBody) -> _Placed:
    """Of a producer's request what has come from several parents of a partition is several parts:
    each of the parents may have its own.
    """
    keys = body.lines.keys if isinstance(body, KeyedBody) else body.records.keys
    if isinstance(body, KeyedBody):
        partitions = request.hosted.partitions_of_keys(body.lines.keys)
    else:
        partitions = _partitions_of(request, body.records.keys)
    origins, sender = request.hosted.origins, request.sender
    found = origins.keys() & set(partitions.tolist()) if origins and sender is not None else ()
    if not found or sender is None:
        return _Placed(partitions, {})
    key_tokens = tokens([sender.name if key is None else key for key in keys])
    numbers, finer = partitions.copy(), dict[int, _Place]()
    for partition in sorted(found):
        mine, here = origins[partition], partitions == partition
        first = _FINER + len(finer)
        numbers[here] = first + np.searchsorted(mine.starts, key_tokens[here], side="right") - 1
        finer |= {first + at: _Place(partition, mask) for at, mask in enumerate(mine.masks)}
    return _Placed(numbers, finer)


def _split(body: KeyedBody | RecordsBody, numbers: Int32s) -> Sequence[PartitionRecords]:
    if isinstance(body, KeyedBody):
        lines, timestamp_us, flags = body
        return split_keyed_lines(lines, numbers, timestamp_us, flags=flags)
    return split_records(body.records, numbers, flags=body.flags)


def _append_batch(request: _Request, body: BatchBody, moved: TailraceError | None) -> None:
    """Appended as it is under a header of the leader's."""
    partition: int = request.call.parameters.partition
    done = partial(request.answer_one, partition, body.record_count)
    producer = request.sender and request.sender.producer
    request.appends_to(partition, moved).append_records(body, done, producer)
    request.note_taken(body.record_count)


def _derived(producer: Producer, mask: int) -> Producer:
    """Return the producer as a piece of a partition knows it."""
    return Producer(derived_id(producer.id, mask), producer.sequence)


class _Format(NamedTuple):
    """A content type: how its body is read, with which parameters that say nothing for it, and how
    what was read is appended. `by_key`: the keys of its events say where they go.
    """

    read: Callable[[Broker, Call, Topic], Any]
    append: Callable[[_Request, Any, TailraceError | None], None]
    foreign: tuple[str, ...]
    by_key: bool = True


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
        read_batch, _append_batch, ("partition_key", "key_path", "timestamp"), by_key=False
    ),
}
_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(ProduceParameters)}


class _Collected:
    """Gathers the outcomes of one request's parts; answers when the last is there.

    A part is what is appended at once to one partition. Its number is below 0 if it was made when
    the partition of another was sealed.
    """

    def __init__(self, request: _Request, part_of: Int32s, part_count: int) -> None:
        """`part_of`: of each record the number of its part."""
        self._request = request
        self._part_of = part_of
        self._missing = part_count
        self._elements: list[tuple[int, bytes]] = []  # by partition
        self._errors: list[TailraceError] = []
        self._moved_count = 0

    def append(
        self,
        number: int,
        place: _Place,
        columns: RecordColumns,
        moved: TailraceError | None = None,
    ) -> None:
        """Append a part."""
        partition, count = place.partition, columns.record_count
        done = partial(self._add, number, partition, count)
        try:
            log = self._request.appends_to(partition, moved)
        except TailraceError as error:
            done(AppendFailed(error))
        else:
            log.append_records(columns, done, self._request.producer_with(place.mask))
            self._request.note_taken(count)

    def _add(self, number: int, partition: int, count: int, outcome: AppendOutcome) -> None:
        request = self._request
        if isinstance(outcome, Appended):
            self._elements.append((partition, request.stored(partition, count, outcome)))
        elif is_sealed(outcome.error):
            request.note_taken(-count)
            self._move(number, partition, count, outcome.error)
            return
        else:
            self._errors.append(outcome.error)
            self._elements.append((partition, request.failed(partition, count, outcome.error)))
        self._missing -= 1
        if self._missing:
            return
        if len(self._errors) == len(self._elements):
            attempted = (each for each in self._errors if each.write_attempted)
            request.answer_error(next(attempted, self._errors[0]))
        else:
            self._elements.sort(key=itemgetter(0))
            body = b"[%s]\n" % b",".join(element for _, element in self._elements)
            request.answer(Response((body,), status=207 if self._errors else 200))

    def _move(self, number: int, partition: int, count: int, moved: TailraceError) -> None:
        """The partition of a part was sealed before it took it: its records go on by their keys."""
        try:
            body = self._request.read()
        except TailraceError as error:  # the topic was altered meanwhile
            self._add(number, partition, count, AppendFailed(error))
            return
        placed = _placed(self._request, body)
        is_moved = self._part_of == number
        numbers = np.where(is_moved, placed.numbers, _ELSEWHERE).astype(np.int32)
        parts = [part for part in _split(body, numbers) if part.partition != _ELSEWHERE]
        self._missing += len(parts) - 1
        for found, columns in parts:
            self._moved_count += 1
            self._part_of = np.where(numbers == found, -self._moved_count, self._part_of)
            self.append(-self._moved_count, placed.place_of(found), columns, moved)
