"""Sans-IO: builds the requests of docs/protocol.md and reads their answers; opens no socket.

Each `*_request` has a `parse_*`: problems are raised as `ProblemError`, a success that does not
read as the protocol says as `UnexpectedAnswerError`. Shells (`sync`) move the bytes.
"""

import json
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
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

Parsed = TypeVar("Parsed")
NULL_LENGTH = -1  # of a null key or value in a records+binary body


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
    """Where a partition begins and ends; all three ends are None unless `state` is "open"."""

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

    def readable(self) -> range:
        """The offsets [`log_start`, `high_watermark`); PartitionDamagedError when it has none."""
        if self.state != "open" or self.log_start is None or self.high_watermark is None:
            raise PartitionDamagedError(self.topic, self.partition, self.state)
        return range(self.log_start, self.high_watermark)


@dataclass(frozen=True, slots=True)
class Produced:
    """Records that are stored: offsets [`offset`, `offset + count`) of `partition`."""

    partition: int
    offset: int
    count: int
    durability: str
    copies: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A read's body as sent; `next_offset` continues it, `high_watermark` is the readable end."""

    body: bytes
    next_offset: int
    high_watermark: int
    log_start: int


# --- topics and offsets ---------------------------------------------------------------------------


def topics_request() -> Request:
    """All topics."""
    return Request("GET", "/v1/topics")


def parse_topics(answer: Answer) -> list[TopicInfo]:
    """Sorted by name."""
    return _parse_json(answer, lambda document: [_topic_info(each) for each in document["topics"]])


def create_topic_request(
    name: str, *, partitions_per_range: int | None = None, json_check: bool | None = None
) -> Request:
    """Settings left at None take the broker's defaults."""
    wanted = {"name": name, "partitionsPerRange": partitions_per_range, "jsonCheck": json_check}
    given = {key: value for key, value in wanted.items() if value is not None}
    headers = {"Content-Type": JSON_CONTENT_TYPE}
    return Request("POST", "/v1/topics", headers, json.dumps(given).encode())


def parse_topic(answer: Answer) -> TopicInfo:
    """The topic as created, or as it exists with the same settings."""
    return _parse_json(answer, _topic_info)


def offsets_request(topics: Iterable[str] = ()) -> Request:
    """No topic: all of them."""
    query = urlencode([("topic", topic) for topic in topics])
    return Request("GET", "/v1/offsets" + (f"?{query}" if query else ""))


def parse_offsets(answer: Answer) -> list[PartitionOffsets]:
    """One element a partition, topics and partitions in the broker's order."""
    return _parse_json(answer, _partition_offsets)


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
    topic: str, partition: int, offset: int | str, *, max_bytes: int | None = None
) -> Request:
    """Whole batches, the first covers `offset`; also "earliest" and "latest"."""
    return _read_request(topic, partition, offset, BATCH_CONTENT_TYPE, maxBytes=max_bytes)


def lines_request(
    topic: str, partition: int, offset: int | str, *, max_records: int | None = None
) -> Request:
    """NDJSON: exactly min(`max_records`, available) records from `offset`."""
    return _read_request(topic, partition, offset, NDJSON_CONTENT_TYPE, maxRecords=max_records)


def parse_fetched(answer: Answer) -> Fetched:
    """The body unread, with the offsets of the answer's headers."""
    _check_status(answer)
    return _read(
        answer,
        lambda: Fetched(
            answer.body,
            int(answer.headers["tailrace-next-offset"]),
            int(answer.headers["tailrace-high-watermark"]),
            int(answer.headers["tailrace-log-start"]),
        ),
    )


# --- helpers --------------------------------------------------------------------------------------


def _read_request(
    topic: str, partition: int, offset: int | str, accept: str, **limits: int | None
) -> Request:
    """A read with those limits that are given."""
    given = {name: limit for name, limit in limits.items() if limit is not None}
    query = urlencode({"offset": offset, **given})
    target = f"/v1/topic/{quote(topic, safe='')}/partitions/{partition}/records?{query}"
    return Request("GET", target, {"Accept": accept})


def _check_status(answer: Answer) -> None:
    """Raise what the broker refused with; a proxy's error page counts as a problem without type."""
    if 200 <= answer.status < 300:
        return
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    raise problem_error(answer.status, document if isinstance(document, dict) else {})


def _parse_json(answer: Answer, parse: Callable[[Any], Parsed]) -> Parsed:
    """A success's document, read by `parse`."""
    _check_status(answer)
    return _read(answer, lambda: parse(json.loads(answer.body)))


def _read(answer: Answer, read: Callable[[], Parsed]) -> Parsed:
    """The border to what the peer sent: whatever does not fit becomes one error."""
    try:
        return read()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnexpectedAnswerError(
            f"the answer (HTTP {answer.status}) is not Tailrace's; is this a broker's URL?"
        ) from error


def _topic_info(document: Any) -> TopicInfo:
    return TopicInfo(
        name=document["name"],
        id=document["id"],
        partitions_per_range=document["partitionsPerRange"],
        json_check=document["jsonCheck"],
        durability=document["durability"],
        partitions=document["partitions"],
        copies=document["copies"],
    )


def _partition_offsets(document: Any) -> list[PartitionOffsets]:
    return [
        PartitionOffsets(
            topic=topic["topic"],
            partition=partition["partition"],
            range_id=partition["range"],
            epoch=partition["epoch"],
            first_offset=partition["firstOffset"],
            log_start=partition["logStart"],
            high_watermark=partition["highWatermark"],
            log_end=partition["logEnd"],
            state=partition["state"],
            parents=tuple(partition["parents"]),
        )
        for topic in document["topics"]
        for partition in topic["partitions"]
    ]


def _produced_elements(document: Any) -> list[Produced]:
    """Of one partition's answer or a list of them; the first problem is raised."""
    elements = document if isinstance(document, list) else [document]
    if not elements:
        raise ValueError("a produce is answered for one partition at least")
    failed = [element for element in elements if "problem" in element]
    if failed:
        raise _partition_problem(failed[0], others_stored=len(failed) < len(elements))
    return [
        Produced(
            partition=element["partition"],
            offset=element["offset"],
            count=element["count"],
            durability=element["durability"],
            copies=element["copies"],
        )
        for element in elements
    ]


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
