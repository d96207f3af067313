"""A produce request -> appends -> its answer; the same for every door (docs/protocol.md)."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
import numpy as np
import numpy.typing as npt

from tailrace.wire import (
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    Flag,
)
from tailrace_broker.codec.columns import (
    HeaderColumns,
    RecordColumns,
    column_of_lengths,
    column_of_one,
    column_of_values,
    offsets_of_lengths,
    pack_columns,
)
from tailrace_broker.codec.ndjson import check_json, split_lines
from tailrace_broker.codec.records_binary import ProducedRecords, RecordHeaders, parse_records
from tailrace_broker.model.errors import (
    BodyTooLargeError,
    HeaderTooLargeError,
    InvalidBodyError,
    InvalidParameterError,
    PathNotFoundError,
    RequestTimeoutError,
    TailraceError,
    UnsupportedMediaTypeError,
)
from tailrace_broker.net.api import Broker, HostedTopic
from tailrace_broker.net.problems import problem_members

# Request line and headers together.
HEADER_BYTES_MAX = 16 * 1024
# A producer's clock may be ahead by this much; more is a mistake (nanoseconds for microseconds).
TIMESTAMP_AHEAD_US_MAX = 3_600_000_000
# Bound of a batch before compression: offsets, timestamps and keys are added to the body's values.
PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
_COLUMN_BYTES_PER_RECORD = 16
# Plain integers: an operation on an enum costs a microsecond, a third of an event's JSON check.
_JSON_VALUES = int(Flag.JSON_VALUES)
_BROKER_TIMESTAMPS = int(Flag.BROKER_TIMESTAMPS)

# The status and body of an answer that is not an error.
Answer = Callable[[int, bytes, TailraceError | None], None]
Body = bytes | bytearray
Indices = npt.NDArray[np.intp]
T = TypeVar("T")
_Append = Callable[["Broker", "HostedTopic", "ProduceTarget", Body, Answer], None]


class ProduceTarget(NamedTuple):
    """What the request line of a produce says."""

    topic: str
    key: bytes | None
    timestamp_us: int | None


_PATH = re.compile(rb"/v1/topic/([^/?#]*)/messages", re.ASCII)


def parse_target(target: bytes) -> ProduceTarget:
    """Read path and query; PathNotFoundError, InvalidParameterError.

    Short ones are cached: producers repeat the same few targets, a key each.
    """
    if len(target) <= _CACHED_TARGET_BYTES_MAX:
        return _parse_short_target(target)
    return _parse_target(target)


def _parse_target(target: bytes) -> ProduceTarget:
    path, _, query = target.partition(b"?")
    match = _PATH.fullmatch(path)
    if not match:
        raise PathNotFoundError(f"no path {path.decode(errors='replace')} at this door")
    topic = unquote_to_bytes(match[1]).decode(errors="replace")
    key: bytes | None = None
    timestamp_us: int | None = None
    seen: set[bytes] = set()
    for pair in filter(None, query.split(b"&")):
        name, _, value = pair.partition(b"=")
        shown = name.decode(errors="replace")
        if name in seen:
            raise InvalidParameterError(f"{shown} is given twice", parameter=shown)
        seen.add(name)
        value = unquote_to_bytes(value.replace(b"+", b" "))
        if name == b"partitionKey":
            key = value
        elif name == b"timestamp":
            timestamp_us = _parse_timestamp(value)
        else:
            raise InvalidParameterError(
                f'no parameter "{shown}"; a produce takes partitionKey and timestamp',
                parameter=shown,
            )
    return ProduceTarget(topic, key, timestamp_us)


_CACHED_TARGET_BYTES_MAX = 256
_parse_short_target = lru_cache(maxsize=4096)(_parse_target)


def produce(
    broker: Broker, target: ProduceTarget, content_type: str, body: Body, answer: Answer
) -> None:
    """Append what a request brings; `answer(status, body, error)` is called once, maybe later.

    Requests for one partition are appended in the order of these calls.
    """

    append = _APPENDS.get(content_type.partition(";")[0].strip().lower())
    if append is None:
        known = ", ".join(_APPENDS)
        error = UnsupportedMediaTypeError(
            f"content-type {content_type} is not one of: {known}", contentType=content_type
        )
        answer(0, b"", error)
    elif not body:
        answer(0, b"", InvalidBodyError("the body is empty; nothing was stored"))
    else:
        use = partial(_use, append, broker, target, body, answer)
        broker.with_topic(target.topic, use)


def _use(
    append: _Append,
    broker: Broker,
    target: ProduceTarget,
    body: Body,
    answer: Answer,
    hosted: HostedTopic | None,
    error: TailraceError | None,
) -> None:
    """Append once the topic is there."""
    if hosted is None:
        answer(0, b"", error)
        return
    try:
        append(broker, hosted, target, body, answer)
    except TailraceError as refused:
        answer(0, b"", refused)


def check_body_size(broker: Broker, body_bytes: int) -> None:
    """BodyTooLargeError when a body is over the limit."""
    if body_bytes > broker.max_request_bytes:
        raise BodyTooLargeError(
            f"the body is over {broker.max_request_bytes} bytes; send fewer events a request",
            maxRequestBytes=broker.max_request_bytes,
        )


def header_too_large() -> HeaderTooLargeError:
    """Why a request with a long head is refused."""
    return HeaderTooLargeError(f"request line and headers are over {HEADER_BYTES_MAX} bytes")


def request_timeout(broker: Broker) -> RequestTimeoutError:
    """Why a request that does not arrive is given up."""
    return RequestTimeoutError(
        f"the request did not arrive whole within {broker.request_seconds} s; nothing was stored"
    )


def _append_event(
    broker: Broker, hosted: HostedTopic, target: ProduceTarget, body: Body, answer: Answer
) -> None:
    """application/json: one event, coalesced with other requests' events."""
    timestamp_us, flags = _timestamp(broker, target.timestamp_us)
    if hosted.topic.settings.json_check:
        check_json(body)
        flags |= _JSON_VALUES
    partition = hosted.partition_of_key(target.key)
    done = partial(_answer_one, answer, target.topic, partition, 1)
    hosted.log_of(partition).append_event(target.key, bytes(body), timestamp_us, flags, done)
    broker.counters.produced_events += 1


def _append_lines(
    broker: Broker, hosted: HostedTopic, target: ProduceTarget, body: Body, answer: Answer
) -> None:
    """application/x-ndjson: a batch of its own."""
    timestamp_us, flags = _timestamp(broker, target.timestamp_us)
    json_check = hosted.topic.settings.json_check
    if json_check:
        flags |= _JSON_VALUES
    values, lengths = split_lines(body, json_check=json_check)
    count = len(lengths)
    _check_payload(broker, len(values) + count * len(target.key or b""), count)
    columns = pack_columns(
        column_of_lengths(values, lengths),
        column_of_one(target.key, count),
        np.full(count, timestamp_us, np.int64),
        flags=flags,
    )
    partition = hosted.partition_of_key(target.key)
    done = partial(_answer_one, answer, target.topic, partition, count)
    hosted.log_of(partition).append_columns(columns, done)
    broker.counters.produced_events += count


def _append_records(
    broker: Broker, hosted: HostedTopic, target: ProduceTarget, body: Body, answer: Answer
) -> None:
    """records+binary: a batch for each partition that the records' keys belong to."""
    for name, given in (("partitionKey", target.key), ("timestamp", target.timestamp_us)):
        if given is not None:
            raise InvalidParameterError(
                f"records+binary carries its own keys and timestamps; leave out {name}",
                parameter=name,
            )
    records = parse_records(body)
    _check_payload(broker, len(body), len(records.keys))
    if records.timestamps_us is not None:
        _timestamp(broker, int(records.timestamps_us.max()))
    partition_by_key = {key: hosted.partition_of_key(key) for key in set(records.keys)}
    partitions = np.array([partition_by_key[key] for key in records.keys], np.int32)
    order = np.argsort(partitions, kind="stable")  # the request's order within a partition
    found, starts = np.unique(partitions[order], return_index=True)
    appends = [
        (partition, len(chosen), _columns_of(broker, records, chosen))
        for partition, chosen in zip(found.tolist(), np.split(order, starts[1:]), strict=True)
    ]
    collected = _Collected(target.topic, len(appends), answer)
    for partition, count, columns in appends:
        done = partial(collected.add, partition, count)
        try:
            log = hosted.log_of(partition)
        except TailraceError as error:
            done(-1, error)
        else:
            log.append_columns(columns, done)
            broker.counters.produced_events += count


_APPENDS: dict[str, _Append] = {
    JSON_CONTENT_TYPE: _append_event,
    NDJSON_CONTENT_TYPE: _append_lines,
    RECORDS_CONTENT_TYPE: _append_records,
}


class _Collected:
    """Gathers the outcomes of one request's partitions; answers when the last is there."""

    def __init__(self, topic: str, partition_count: int, answer: Answer) -> None:
        self._topic = topic
        self._missing = partition_count
        self._answer = answer
        self._elements: dict[int, msgspec.Raw] = {}
        self._errors: list[TailraceError] = []

    def add(self, partition: int, count: int, offset: int, error: TailraceError | None) -> None:
        if error is None:
            element = _produced(self._topic, partition, offset, count)
        else:
            self._errors.append(error)
            failed = {"topic": self._topic, "partition": partition, "count": count}
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


def _columns_of(broker: Broker, records: ProducedRecords, chosen: Indices) -> RecordColumns:
    """The chosen records as one batch's columns."""
    pick = _picker(chosen)
    if records.timestamps_us is None:
        timestamps_us = np.full(len(chosen), broker.now_us(), np.int64)
        flags = _BROKER_TIMESTAMPS
    else:
        timestamps_us, flags = records.timestamps_us[chosen], 0
    return pack_columns(
        column_of_values(pick(records.values)),
        column_of_values(pick(records.keys)),
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
    return lambda values: [values[index] for index in indices]


def _answer_one(
    answer: Answer,
    topic: str,
    partition: int,
    count: int,
    offset: int,
    error: TailraceError | None,
) -> None:
    if error is None:
        answer(200, _produced(topic, partition, offset, count), None)
    else:
        answer(0, b"", error)


def _produced(topic: str, partition: int, offset: int, count: int) -> bytes:
    # A topic's name has no character that JSON escapes.
    return (
        b'{"topic":"%s","partition":%d,"offset":%d,"count":%d,"durability":"fsync","copies":1}'
        % (topic.encode(), partition, offset, count)
    )


def _timestamp(broker: Broker, given_us: int | None) -> tuple[int, int]:
    """The time of a request's records, and the flag that says whose it is."""
    now_us = broker.now_us()
    if given_us is None:
        return now_us, _BROKER_TIMESTAMPS
    if given_us > now_us + TIMESTAMP_AHEAD_US_MAX:
        raise InvalidParameterError(
            f"timestamp {given_us} is more than an hour ahead of the broker's clock ({now_us}); "
            "it is in microseconds since the epoch",
            parameter="timestamp",
        )
    return given_us, 0


def _check_payload(broker: Broker, data_bytes: int, count: int) -> None:
    """Refuse a request whose columns would be much larger than its body: a long key."""
    if data_bytes + count * _COLUMN_BYTES_PER_RECORD > PAYLOAD_BYTES_MAX:
        raise BodyTooLargeError(
            f"the events with their keys are over {PAYLOAD_BYTES_MAX} bytes; send fewer a request",
            maxRequestBytes=broker.max_request_bytes,
        )


def _parse_timestamp(value: bytes) -> int:
    if value.isdigit() and len(value) <= 18:
        return int(value)
    raise InvalidParameterError(
        f"timestamp {value.decode(errors='replace')} is not a number of microseconds since the "
        "epoch",
        parameter="timestamp",
    )
