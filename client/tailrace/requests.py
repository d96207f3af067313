"""Sans-IO: builds the requests of docs/protocol.md and reads their answers; opens no socket.

Each `*_request` has a `parse_*`: problems are raised as `ProblemError`, a success that does not
read as the protocol says as `UnexpectedAnswerError`. Shells (`sync`) move the bytes.
"""

import json
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

from tailrace.errors import (
    PartitionDamagedError,
    ProblemError,
    UnexpectedAnswerError,
    problem_error,
)
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    COLUMN_ALIGNMENT_BYTES,
    FORMAT_VERSION,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_HEADER,
    RECORDS_MAGIC,
    RecordsFlag,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Parsed = TypeVar("Parsed")
Value = TypeVar("Value", bound="DataclassInstance")
NULL_LENGTH = -1  # of a null key or value in a records+binary body
# A 404 that is about the path, and not about a topic or a partition.
_NO_SUCH_PATH = ("not-found", "about:blank")
# Members whose name in JSON is not ours in camelCase.
_WIRE_NAMES = {"range_id": "range", "now_us": "now", "timestamp_us": "timestamp"}


@dataclass(frozen=True, slots=True)
class Request:
    """What to send; the shell adds `Host` and `Content-Length`."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's settings and size; `copies` of each record on brokers' disks."""

    name: str
    id: str
    partitions_per_range: int
    json_check: bool
    durability: str
    partitions: int
    copies: int


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where a partition begins and ends; `state`: open, sealed (readable, closed) or damaged.

    All three ends are None when it is damaged. `timestamp_offset`: the first offset whose record
    is not older than the time that was asked for; None when there is none, or no time was asked.
    """

    topic: str
    partition: int
    range_id: int
    epoch: int
    first_offset: int
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    state: str
    parents: tuple[int, ...]
    children: tuple[int, ...] = ()
    timestamp_offset: int | None = None

    def readable(self) -> range:
        """The offsets [`log_start`, `high_watermark`); PartitionDamagedError when it has none."""
        if self.log_start is None or self.high_watermark is None:
            raise PartitionDamagedError(self.topic, self.partition, self.state)
        return range(self.log_start, self.high_watermark)


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    """A partition with its place in the ring and its size; ends and size None when damaged.

    It owns tokens [`token_start`, `token_end`): texts, since JavaScript's numbers are too small.
    """

    partition: int
    range_id: int
    slice: int
    slices: int
    token_start: str
    token_end: str
    leader: int | None
    isr: tuple[int, ...]
    epoch: int
    first_offset: int
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    size_bytes: int | None
    parents: tuple[int, ...]
    children: tuple[int, ...]
    state: str


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """One topic and each of its partitions."""

    topic: TopicInfo
    partition_details: tuple[PartitionDetails, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """What holds for all brokers together."""

    name: str
    cluster_id: str
    version: str
    ranges: int
    under_replicated: int
    metadata_leader: int | None
    metadata_term: int


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker: what it holds, its disk, since when it runs.

    `durable_write_ms`: of one block, measured at its start; None: it could not be.
    """

    ordinal: int
    token: str
    leads: int
    replicates: int
    damaged: int
    lag_max: int
    disk_used_bytes: int
    disk_bytes: int
    direct_io: bool
    durable_write_ms: float | None
    incarnation: str
    started_at: str
    up_seconds: float


@dataclass(frozen=True, slots=True)
class RingStatus:
    """The ring's `length` brokers by name, and the state of those that were heard of.

    `now_us`: the clock of the broker that answered.
    """

    length: int
    names: tuple[str, ...]
    producer_port: int
    producer_binary_port: int
    consumer_port: int
    ring: Ring
    now_us: int
    brokers: tuple[BrokerStatus, ...]


@dataclass(frozen=True, slots=True)
class Produced:
    """Records that are stored: offsets [`offset`, `offset + count`) of `partition`."""

    partition: int
    offset: int
    count: int
    durability: str
    copies: int


class ReadParameters(TypedDict, total=False):
    """What every read of a partition takes.

    `timestamp_us`: in place of an offset: from the first record that is not older, or the end.
    `wait_ms`: when there is nothing yet, how long the first records may take.
    `isolation`: "uncommitted" reads up to the log's end, outside of the promise of order.
    """

    timestamp_us: int | None
    wait_ms: int | None
    isolation: Literal["committed", "uncommitted"] | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A read's body as sent; `next_offset` continues it, `high_watermark` is the readable end.

    `is_sealed`: this is the end of a partition that takes no more; its `children` continue it.
    """

    body: bytes
    next_offset: int
    high_watermark: int
    log_start: int
    epoch: int | None = None  # of the leader; None from a broker that does not tell
    is_sealed: bool = False
    children: tuple[int, ...] = ()


def to_document(value: "DataclassInstance") -> dict[str, Any]:
    """One of the values above in JSON's terms, named as in the broker's answers."""
    return {_wire_name(each.name): _plain(getattr(value, each.name)) for each in fields(value)}


# --- topics, offsets, brokers ---------------------------------------------------------------------


def topics_request() -> Request:
    """All topics."""
    return Request("GET", "/v1/topics")


def parse_topics(answer: Answer) -> list[TopicInfo]:
    """Sorted by name."""
    return _parse_json(
        answer, lambda document: [_value(TopicInfo, each) for each in document["topics"]]
    )


def create_topic_request(
    name: str, *, partitions_per_range: int | None = None, json_check: bool | None = None
) -> Request:
    """Settings left at None take the broker's defaults."""
    wanted = {"name": name, "partitionsPerRange": partitions_per_range, "jsonCheck": json_check}
    return _json_request("POST", "/v1/topics", wanted)


def alter_topic_request(name: str, *, json_check: bool | None = None) -> Request:
    """Settings left at None stay as they are."""
    return _json_request("PATCH", _topic_target(name), {"jsonCheck": json_check})


def delete_topic_request(name: str) -> Request:
    """The topic with all its records."""
    return Request("DELETE", _topic_target(name))


def parse_deleted(answer: Answer) -> None:
    """Nothing is told but that it is done."""
    _check_status(answer)


def topic_request(name: str) -> Request:
    """One topic, with its partitions."""
    return Request("GET", _topic_target(name))


def parse_topic(answer: Answer) -> TopicInfo:
    """The topic as created or altered, or as it exists with the same settings."""
    return _parse_json(answer, lambda document: _value(TopicInfo, document))


def parse_topic_details(answer: Answer) -> TopicDetails:
    """Partitions in the broker's order."""
    return _parse_json(
        answer,
        lambda document: TopicDetails(
            _value(TopicInfo, document),
            tuple(_value(PartitionDetails, each) for each in document["partitionDetails"]),
        ),
    )


def offsets_request(topics: Iterable[str] = (), timestamp_us: int | None = None) -> Request:
    """No topic: all of them."""
    times = [] if timestamp_us is None else [("timestamp", str(timestamp_us))]
    query = urlencode([("topic", topic) for topic in topics] + times)
    return Request("GET", "/v1/offsets" + (f"?{query}" if query else ""))


def parse_offsets(answer: Answer) -> list[PartitionOffsets]:
    """One element a partition, topics and partitions in the broker's order."""
    return _parse_json(
        answer,
        lambda document: [
            _value(PartitionOffsets, partition, topic=topic["topic"])
            for topic in document["topics"]
            for partition in topic["partitions"]
        ],
    )


def brokers_request() -> Request:
    """The ring and its brokers."""
    return Request("GET", "/v1/brokers")


def parse_brokers(answer: Answer) -> RingStatus:
    """Brokers in the order of their ordinals."""
    return _parse_json(
        answer,
        lambda document: _value(
            RingStatus,
            document,
            ring=_value(Ring, document["ring"]),
            brokers=tuple(_value(BrokerStatus, each) for each in document["brokers"]),
        ),
    )


def ready_request() -> Request:
    """Whether the broker serves; 503 says not yet."""
    return Request("GET", "/ready")


# --- produce --------------------------------------------------------------------------------------


def produce_request(
    topic: str, body: bytes, *, content_type: str, key: bytes | str | None = None
) -> Request:
    """The key goes for the whole body; None lets the broker pick the partition."""
    target = f"/v1/topic/{quote(topic, safe='')}/messages"
    if key is not None:
        target += f"?partitionKey={quote(key, safe='')}"
    return Request("POST", target, {"Content-Type": content_type}, body)


def produce_records_request(topic: str, body: bytes) -> Request:
    """For a body of `encode_records`."""
    return produce_request(topic, body, content_type=RECORDS_CONTENT_TYPE)


def parse_produced(answer: Answer) -> list[Produced]:
    """What was stored, by partition. A partition that failed raises its problem for all:
    `write_attempted` then also says that other partitions did store their records.
    """
    return _parse_json(answer, _produced_elements)


def encode_records(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps_us: Sequence[int] | None = None,
) -> bytes:
    """A records+binary body (layout: `tailrace.wire`); None is a null key or value.

    ValueError when the sequences differ in length. O(bytes), one copy of the data.
    """
    if not len(keys) == len(values) == len(values if timestamps_us is None else timestamps_us):
        raise ValueError("keys, values and timestamps_us must have one element a record")
    key_bytes = b"".join(filter(None, keys))
    value_bytes = b"".join(filter(None, values))
    flags = 0 if timestamps_us is None else RecordsFlag.TIMESTAMPS
    sizes = (len(values), len(key_bytes), len(value_bytes), 0, 0, 0)
    columns = [
        RECORDS_HEADER.pack(RECORDS_MAGIC, FORMAT_VERSION, flags, *sizes),
        _lengths_column(keys),
        _lengths_column(values),
        *([] if timestamps_us is None else [_little_endian(array("q", timestamps_us))]),
        key_bytes,
    ]
    parts = [part for column in columns for part in (column, _fill(column))]
    return b"".join([*parts, value_bytes])


# --- read -----------------------------------------------------------------------------------------


def batches_request(
    topic: str,
    partition: int,
    offset: int | str | None = None,
    *,
    max_bytes: int | None = None,
    **parameters: Unpack[ReadParameters],
) -> Request:
    """Whole batches, the first covers the start: see `Client.read_batches`."""
    wanted = {"offset": offset, "max_bytes": max_bytes, **parameters}
    return _read_request(topic, partition, BATCH_CONTENT_TYPE, wanted)


def lines_request(
    topic: str,
    partition: int,
    offset: int | str | None = None,
    *,
    max_records: int | None = None,
    **parameters: Unpack[ReadParameters],
) -> Request:
    """NDJSON: exactly min(`max_records`, available) records: see `Client.read_lines`."""
    wanted = {"offset": offset, "max_records": max_records, **parameters}
    return _read_request(topic, partition, NDJSON_CONTENT_TYPE, wanted)


def parse_fetched(answer: Answer) -> Fetched:
    """The body unread, with the offsets of the answer's headers."""
    _check_status(answer)
    return _read(answer, lambda: _fetched(answer))


def last_lines_request(topic: str, count: int) -> Request:
    """NDJSON: the newest `count` records of all partitions."""
    target = f"/v1/topic/{quote(topic, safe='')}/records?last={count}"
    return Request("GET", target, {"Accept": NDJSON_CONTENT_TYPE})


def parse_last_lines(answer: Answer) -> bytes:
    """The body unread."""
    _check_status(answer)
    return answer.body


# --- helpers --------------------------------------------------------------------------------------


def _topic_target(name: str) -> str:
    return f"/v1/topics/{quote(name, safe='')}"


def _json_request(method: str, target: str, wanted: Mapping[str, object]) -> Request:
    """A body of those members that are given."""
    given = {name: value for name, value in wanted.items() if value is not None}
    return Request(method, target, {"Content-Type": JSON_CONTENT_TYPE}, json.dumps(given).encode())


def _read_request(topic: str, partition: int, accept: str, wanted: Mapping[str, object]) -> Request:
    """A read with those parameters that are given."""
    given = {_wire_name(name): value for name, value in wanted.items() if value is not None}
    target = f"/v1/topic/{quote(topic, safe='')}/partitions/{partition}/records"
    return Request("GET", f"{target}?{urlencode(given)}" if given else target, {"Accept": accept})


def _fetched(answer: Answer) -> Fetched:
    """Of the headers only epoch and end are newer than the first version of the protocol."""
    headers = answer.headers
    children = headers.get("tailrace-children", "")
    return Fetched(
        answer.body,
        int(headers["tailrace-next-offset"]),
        int(headers["tailrace-high-watermark"]),
        int(headers["tailrace-log-start"]),
        int(headers["tailrace-epoch"]) if "tailrace-epoch" in headers else None,
        headers.get("tailrace-sealed") == "true",
        tuple(map(int, children.split(","))) if children else (),
    )


def _check_status(answer: Answer) -> None:
    """Raise what the broker refused with; a proxy's error page counts as a problem without type."""
    if 200 <= answer.status < 300:
        return
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    problem = problem_error(answer.status, document if isinstance(document, dict) else {})
    if answer.status == 404 and problem.type in _NO_SUCH_PATH:
        raise _not_public(answer) from problem
    raise problem


def _parse_json(answer: Answer, parse: Callable[[Any], Parsed]) -> Parsed:
    """A success's document, read by `parse`."""
    _check_status(answer)
    return _read(answer, lambda: parse(json.loads(answer.body)))


def _read(answer: Answer, read: Callable[[], Parsed]) -> Parsed:
    """The border to what the peer sent: whatever does not fit becomes one error."""
    try:
        return read()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _not_public(answer) from error


def _not_public(answer: Answer) -> UnexpectedAnswerError:
    """Another server's port, or one of a broker's other doors."""
    return UnexpectedAnswerError(
        f"the answer (HTTP {answer.status}) is not that of a broker's public port: "
        "name one, like http://127.0.0.1:9250, with --url or TAILRACE_URL"
    )


def _value(kind: type[Value], document: Any, **known: object) -> Value:
    """A value out of its document; members that an older broker leaves out get their defaults.

    `known`: fields that stand elsewhere, or are no plain members.
    """
    found = dict(known)
    for each in fields(kind):
        name = _wire_name(each.name)
        if each.name not in known and (name in document or each.default is MISSING):
            member = document[name]
            found[each.name] = tuple(member) if isinstance(member, list) else member
    return kind(**found)


def _plain(value: Any) -> Any:
    """A field's value in JSON's terms."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_document(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _wire_name(name: str) -> str:
    """ "log_start" -> "logStart"."""
    head, *rest = name.split("_")
    return _WIRE_NAMES.get(name) or head + "".join(map(str.capitalize, rest))


def _produced_elements(document: Any) -> list[Produced]:
    """Of one partition's answer or a list of them; the first problem is raised."""
    elements = document if isinstance(document, list) else [document]
    if not elements:
        raise ValueError("a produce is answered for one partition at least")
    failed = [element for element in elements if "problem" in element]
    if failed:
        raise _partition_problem(failed[0], others_stored=len(failed) < len(elements))
    return [_value(Produced, element) for element in elements]


def _partition_problem(element: Any, *, others_stored: bool) -> ProblemError:
    """A partition's problem; `partition` joins its members."""
    problem = element["problem"]
    error = problem_error(problem["status"], {"partition": element["partition"], **problem})
    error.write_attempted = error.write_attempted or others_stored
    return error


def _lengths_column(values: Sequence[bytes | None]) -> bytes:
    lengths = [NULL_LENGTH if value is None else len(value) for value in values]
    return _little_endian(array("i", lengths))


def _little_endian(column: "array[int]") -> bytes:
    """The wire's byte order, whatever the machine's."""
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _fill(column: bytes) -> bytes:
    """Zeros up to the next column."""
    return bytes(-len(column) % COLUMN_ALIGNMENT_BYTES)
