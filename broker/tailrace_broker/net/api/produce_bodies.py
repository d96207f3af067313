"""The body of a produce request, by content type -> what is appended, or why it is refused.

`topic` is the one that the body is for, or the one that the request would create: nothing here
needs a log, so that a refused request creates nothing.
"""

from dataclasses import replace
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from tailrace.wire import Flag
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.columns import (
    PAYLOAD_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    RecordColumns,
    column_of_lengths,
    column_of_one,
    pack_columns,
)
from tailrace_broker.codec.keyed_ndjson import (
    KeyedLines,
    KeyPath,
    parse_key_path,
    read_keyed_lines,
)
from tailrace_broker.codec.ndjson import check_json, split_lines
from tailrace_broker.codec.ready_batch import parse_ready_batch
from tailrace_broker.codec.records_binary import ProducedRecords, parse_records
from tailrace_broker.codec.records_json import bad_record, parse_json_records
from tailrace_broker.model.errors import BodyTooLargeError, InvalidParameterError
from tailrace_broker.model.topic import Topic
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import PARTITION_MAX, Call, Parameters, TopicName, shortened
from tailrace_broker.net.http.timestamps import TIMESTAMP_FORMS, read_timestamp

# A producer's clock may be ahead by this much; more is a mistake (nanoseconds for microseconds).
TIMESTAMP_AHEAD_US_MAX = 3_600_000_000
# Plain integers: an operation on an enum costs a microsecond, a third of an event's JSON check.
_JSON_VALUES = int(Flag.JSON_VALUES)
_BROKER_TIMESTAMPS = int(Flag.BROKER_TIMESTAMPS)

EventBody = tuple[bytes, int, int]  # value, time, flags


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


class RecordsBody(NamedTuple):
    """Records that have their times, and the flags of their batches."""

    records: ProducedRecords
    flags: int


class KeyedBody(NamedTuple):
    """Lines with keys in them, the time of all, and the flags of their batches."""

    lines: KeyedLines
    timestamp_us: int
    flags: int


def read_event(broker: Broker, call: Call, topic: Topic) -> EventBody:
    """Read a body of application/json."""
    timestamp_us, flags = _timestamp_of(broker, call.parameters)
    if topic.settings.json_check:
        check_json(call.body)
        flags |= _JSON_VALUES
    return bytes(call.body), timestamp_us, flags


def read_lines(broker: Broker, call: Call, topic: Topic) -> RecordColumns | KeyedBody:
    """application/x-ndjson, with one key or a key in each line."""
    parameters: ProduceParameters = call.parameters
    if parameters.key_path is not None:
        return _read_keyed_lines(broker, call, topic)
    timestamp_us, flags = _timestamp_of(broker, parameters)
    json_check = topic.settings.json_check
    values, lengths = split_lines(call.body, json_check=json_check)
    count = len(lengths)
    _check_payload(broker, len(values) + count * len(parameters.key or b""), count)
    return pack_columns(
        column_of_lengths(values, lengths),
        column_of_one(parameters.key, count),
        np.full(count, timestamp_us, np.int64),
        flags=flags | _JSON_VALUES if json_check else flags,
    )


def _read_keyed_lines(broker: Broker, call: Call, topic: Topic) -> KeyedBody:
    timestamp_us, flags = _timestamp_of(broker, call.parameters)
    lines = read_keyed_lines(call.body, _key_path_of(call.parameters))
    key_bytes = len("".join(lines.keys).encode())
    _check_payload(broker, len(call.body) + key_bytes, len(lines.keys))
    if topic.settings.json_check:
        flags |= _JSON_VALUES
    return KeyedBody(lines, timestamp_us, flags)


def read_records(broker: Broker, call: Call, _: Topic) -> RecordsBody:
    """Read a body of records+binary."""
    records = parse_records(call.body)
    _check_payload(broker, len(call.body), len(records.keys))
    return _with_times(broker, records, 0)


def read_json_records(broker: Broker, call: Call, _: Topic) -> RecordsBody:
    """Read a body of records+json."""
    records, timestamps, values_are_json = parse_json_records(call.body)
    _check_payload(broker, len(call.body), len(records.keys))
    if timestamps:
        times_us = [_time_of_record(index, timestamp) for index, timestamp in enumerate(timestamps)]
        records = replace(records, timestamps_us=np.array(times_us, np.int64))
    return _with_times(broker, records, _JSON_VALUES if values_are_json else 0)


def read_batch(broker: Broker, call: Call, topic: Topic) -> BatchBody:
    """A ready-made batch, which names its partition."""
    partition: int | None = call.parameters.partition
    if partition is None:
        raise InvalidParameterError(
            "partition is missing; a ready-made batch names its partition", parameter="partition"
        )
    topic.at(partition)
    batch = parse_ready_batch(call.body)
    _check_not_ahead(broker, batch.largest_timestamp_us)
    return batch


def _key_path_of(parameters: ProduceParameters) -> KeyPath:
    key_path = parameters.key_path
    assert key_path is not None
    if parameters.partition_key is not None:
        raise InvalidParameterError(
            "partitionKey and key both say which keys the events have; give one", parameter="key"
        )
    try:
        return parse_key_path(key_path)
    except ValueError as error:
        raise InvalidParameterError(
            f"key is {shortened(key_path)}; {error}", parameter="key"
        ) from error


def _with_times(broker: Broker, records: ProducedRecords, flags: int) -> RecordsBody:
    if records.timestamps_us is None:
        times_us = np.full(len(records.keys), broker.now_us(), np.int64)
        return RecordsBody(replace(records, timestamps_us=times_us), flags | _BROKER_TIMESTAMPS)
    _check_not_ahead(broker, int(records.timestamps_us.max()))
    return RecordsBody(records, flags)


def _time_of_record(index: int, timestamp: int | str) -> int:
    try:
        return read_timestamp(timestamp)
    except InvalidParameterError as error:
        raise bad_record(index, error.detail) from error


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
