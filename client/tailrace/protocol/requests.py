"""Sans-IO: builds the requests of docs/protocol.md and reads their answers; opens no socket.

A `parse_*` reads each answer but that to `ready_request`, whose status says all: problems are
raised as `ProblemError`, a success that does not read as the protocol says as
`UnexpectedAnswerError`. Shells (`sync`) move the bytes.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast
from urllib.parse import quote, urlencode

from tailrace.errors import ProblemError, UnexpectedAnswerError, problem_error
from tailrace.produced import Produced
from tailrace.values import (
    BrokerStatus,
    DeletedTopic,
    Fetched,
    PartitionDetails,
    PartitionLoss,
    PartitionOffsets,
    QuarantinedBatch,
    Ring,
    RingStatus,
    TopicDetails,
    TopicInfo,
    from_document,
    wire_name,
)
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    INTEGER_US_MIN,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
)

Parsed = TypeVar("Parsed")
# A 404 that is about the path, and not about a topic or a partition.
_NO_SUCH_PATH = ("not-found", "about:blank")
_WAIT_MS = re.compile(r"[?&]waitMs=([0-9]+)")
PRODUCER_ID_HEADER = "Tailrace-Producer-Id"
REDIRECT_HEADER = "Tailrace-Redirect"
DELIVERY_HEADER = "Tailrace-Delivery"
_OTHER_UNITS = range(978_307_200, 4_102_444_800_000)  # 2001 to 2100, in s or ms
_HEADERS = {"producer_id": PRODUCER_ID_HEADER, "sequence": "Tailrace-Sequence"}


@dataclass(frozen=True, slots=True)
class Request:
    """What to send; the shell adds `Host` and `Content-Length`."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def wait_ms(self) -> int:
        """How long the broker may wait for records before it answers."""
        match_ = _WAIT_MS.search(self.target)
        return int(match_[1]) if match_ else 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; header names in lower case.

    `topic_created`: by a broker that did not lead and was asked before. `write_attempted`: such a
    broker may have done what was asked.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    topic_created: bool = False
    write_attempted: bool = False


class ReadParameters(TypedDict, total=False):
    """What every read of a partition takes.

    `timestamp_us`: in place of an offset: from the first record that is not older, or the end.
    `wait_ms`: when there is nothing yet, how long the first records may take.
    `isolation`: "uncommitted" reads up to the log's end, outside of the promise of order.
    """

    timestamp_us: int | None
    wait_ms: int | None
    isolation: Literal["committed", "uncommitted"] | None


class Numbered(TypedDict, total=False):
    """Makes a produce request one that can be sent again and is stored once: both, or none.

    `producer_id`: the sender's own name, 1 to 128 visible ASCII characters; decides the partition
    of events without a key. `sequence`: of the request among the sender's; a retry has the same.
    """

    producer_id: str
    sequence: int


class TopicSettings(TypedDict, total=False):
    """What a topic's creator chooses and can alter; what is left out is left to the broker.

    What each means and can be: docs/protocol.md, "Topics". Retention None: for ever.
    """

    partitions_per_range: int
    json_check: bool
    compression: Literal["lz4", "zstd", "none"]
    durability: Literal["fsync", "written"]
    flush_ms: int
    flush_bytes: int
    linger_ms: int
    linger_bytes: int
    retention_ms: int | None
    retention_bytes: int | None
    min_in_sync_replicas: int


# --- topics, offsets, brokers ---------------------------------------------------------------------


def topics_request() -> Request:
    """All topics."""
    return Request("GET", "/v1/topics")


def parse_topics(answer: Answer) -> list[TopicInfo]:
    """Sorted by name."""
    return parse_json(
        answer, lambda document: [from_document(TopicInfo, topic) for topic in document["topics"]]
    )


def create_topic_request(name: str, **settings: Unpack[TopicSettings]) -> Request:
    """Settings that are not given are those of any new topic."""
    return json_request("POST", "/v1/topics", {"name": name, **settings})


def alter_topic_request(name: str, **settings: Unpack[TopicSettings]) -> Request:
    """Settings that are not given stay as they are."""
    return json_request("PATCH", _topic_target(name), settings)


def delete_topic_request(name: str) -> Request:
    """The topic with all its records."""
    return Request("DELETE", _topic_target(name))


def parse_deleted(answer: Answer) -> None:
    """Has no members: the status says that it is done."""
    check_status(answer)


def accept_partition_loss_request(topic: str, partition: int, *, dry_run: bool) -> Request:
    """Asked of the broker that leads the partition."""
    target = f"{_topic_target(topic)}/partitions/{partition}/accept-loss"
    return Request("POST", f"{target}?dryRun=true" if dry_run else target)


def parse_partition_loss(answer: Answer) -> PartitionLoss:
    """What is lost."""
    return parse_json(answer, lambda document: from_document(PartitionLoss, document))


def deleted_topics_request() -> Request:
    """What lies in the trash."""
    return Request("GET", "/v1/trash")


def parse_deleted_topics(answer: Answer) -> list[DeletedTopic]:
    """The latest deletion first."""
    return parse_json(
        answer,
        lambda document: [from_document(DeletedTopic, topic) for topic in document["topics"]],
    )


def restore_topic_request(name_or_id: str, *, new_name: str | None = None) -> Request:
    """The answer is that to `topic_request`."""
    query = "" if new_name is None else f"?{urlencode({'as': new_name})}"
    return Request("POST", f"/v1/trash/{quote(name_or_id, safe='')}/restore{query}")


def topic_request(name: str) -> Request:
    """One topic, with its partitions."""
    return Request("GET", _topic_target(name))


def parse_topic(answer: Answer) -> TopicInfo:
    """The topic as created or altered, or as it exists with the same settings."""
    return parse_json(answer, lambda document: from_document(TopicInfo, document))


def parse_topic_details(answer: Answer) -> TopicDetails:
    """Partitions in the broker's order."""
    return parse_json(
        answer,
        lambda document: TopicDetails(
            from_document(TopicInfo, document),
            tuple(map(_partition_details, document["partitionDetails"])),
        ),
    )


def _partition_details(document: Any) -> PartitionDetails:
    quarantined = document.get("quarantined", ())
    return from_document(
        PartitionDetails,
        document,
        quarantined=tuple(from_document(QuarantinedBatch, each) for each in quarantined),
    )


def offsets_request(topics: Iterable[str] = (), timestamp_us: int | None = None) -> Request:
    """No topic: all of them."""
    times = [] if timestamp_us is None else [("timestamp", str(time_on_wire(timestamp_us)))]
    query = urlencode([("topic", topic) for topic in topics] + times)
    return Request("GET", "/v1/offsets" + (f"?{query}" if query else ""))


def parse_offsets(answer: Answer) -> list[PartitionOffsets]:
    """One element a partition, topics and partitions in the broker's order."""
    return parse_json(
        answer,
        lambda document: [
            from_document(PartitionOffsets, partition, topic=topic["topic"])
            for topic in document["topics"]
            for partition in topic["partitions"]
        ],
    )


def brokers_request() -> Request:
    """The ring and its brokers."""
    return Request("GET", "/v1/brokers")


def parse_brokers(answer: Answer) -> RingStatus:
    """Brokers in the order of their ordinals."""
    return parse_json(
        answer,
        lambda document: from_document(
            RingStatus,
            document,
            ring=from_document(Ring, document["ring"]),
            brokers=tuple(from_document(BrokerStatus, broker) for broker in document["brokers"]),
        ),
    )


def ready_request() -> Request:
    """Whether the broker serves; 503 says not yet."""
    return Request("GET", "/ready")


# --- produce --------------------------------------------------------------------------------------


def produce_request(
    topic: str,
    body: bytes,
    *,
    content_type: str,
    key: bytes | str | None = None,
    **numbered: Unpack[Numbered],
) -> Request:
    """The key goes for the whole body; None lets the broker pick the partition. TypeError."""
    if not isinstance(body, bytes):
        raise TypeError(f"what is produced is {type(body).__name__}; give bytes of JSON")
    if key is not None and not isinstance(key, bytes | str):
        raise TypeError(f"key is {type(key).__name__}; give bytes or str")
    target = f"/v1/topic/{quote(topic, safe='')}/messages"
    if key is not None:
        target += f"?partitionKey={quote(key, safe='')}"
    headers = {_header_of(name): str(value) for name, value in numbered.items()}
    return Request("POST", target, {"Content-Type": content_type, **headers}, body)


def _header_of(name: str) -> str:
    if name not in _HEADERS:
        raise TypeError(f"unknown argument {name}; it takes key, producer_id and sequence")
    return _HEADERS[name]


def produce_records_request(topic: str, body: bytes, **numbered: Unpack[Numbered]) -> Request:
    """For a body of `tailrace.protocol.records_binary`."""
    return produce_request(topic, body, content_type=RECORDS_CONTENT_TYPE, **numbered)


def parse_produced(answer: Answer) -> list[Produced]:
    """What was stored, by partition. A partition that failed raises its problem for all:
    `write_attempted` then also says that other partitions did store their records.
    """
    try:
        produced = parse_json(answer, _produced_elements)
    except ProblemError as error:
        error.topic_created = error.topic_created or answer.topic_created
        for each in (error, *error.parts):
            if isinstance(each, ProblemError):
                each.write_attempted = each.write_attempted or answer.write_attempted
        raise
    if answer.topic_created:
        return [replace(part, topic_created=True) for part in produced]
    return produced


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
    check_status(answer)
    return read_answer(answer, lambda: _fetched(answer))


def last_lines_request(topic: str, count: int) -> Request:
    """NDJSON: see `Client.last_lines`."""
    target = f"/v1/topic/{quote(topic, safe='')}/records?last={count}"
    return Request("GET", target, {"Accept": NDJSON_CONTENT_TYPE})


def parse_last_lines(answer: Answer) -> bytes:
    """The body unread."""
    check_status(answer)
    return answer.body


# --- helpers --------------------------------------------------------------------------------------


def _topic_target(name: str) -> str:
    return f"/v1/topics/{quote(name, safe='')}"


def json_request(method: str, target: str, members: Mapping[str, object]) -> Request:
    """A body of these members, under their names in JSON."""
    body = json.dumps({wire_name(name): value for name, value in members.items()}).encode()
    return Request(method, target, {"Content-Type": JSON_CONTENT_TYPE}, body)


def time_on_wire(timestamp_us: int) -> int | str:
    """A time as requests name it: before 2001 as text, since an integer would be refused.

    One that is most likely of another unit is left to the broker to refuse.
    """
    if timestamp_us >= INTEGER_US_MIN or timestamp_us in _OTHER_UNITS:
        return timestamp_us
    from datetime import UTC, datetime, timedelta

    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=timestamp_us)).isoformat()


def _read_request(topic: str, partition: int, accept: str, wanted: Mapping[str, object]) -> Request:
    """A read with those parameters that are given."""
    given = {wire_name(name): value for name, value in wanted.items() if value is not None}
    if "timestamp" in given:
        given["timestamp"] = time_on_wire(cast(int, given["timestamp"]))
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


def check_status(answer: Answer) -> None:
    """Raise what the broker refused with; a proxy's error page counts as a problem without type."""
    if 200 <= answer.status < 300:
        return
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    problem = problem_error(answer.status, document if isinstance(document, dict) else {})
    problem.write_attempted = problem.write_attempted or answer.write_attempted
    if answer.status == 404 and problem.type in _NO_SUCH_PATH:
        raise _not_public(answer) from problem
    raise problem


def parse_json(answer: Answer, parse: Callable[[Any], Parsed]) -> Parsed:
    """A success's document, read by `parse`."""
    check_status(answer)
    return read_answer(answer, lambda: parse(json.loads(answer.body)))


def read_answer(answer: Answer, read: Callable[[], Parsed]) -> Parsed:
    """The border to what the peer sent: whatever does not fit becomes one error."""
    try:
        return read()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _not_public(answer) from error


def _not_public(answer: Answer) -> UnexpectedAnswerError:
    """Another server's port, or one of a broker's other listeners."""
    return UnexpectedAnswerError(
        f"the answer (HTTP {answer.status}) is not that of a broker's public port: "
        "name one, like http://127.0.0.1:9250, with --url or TAILRACE_URL"
    )


def _produced_elements(document: Any) -> list[Produced]:
    """Of one partition's answer or a list of them; the first problem is raised."""
    elements = document if isinstance(document, list) else [document]
    if not elements:
        raise ValueError("a produce is answered for one partition at least")
    parts = [
        _partition_problem(element) if "problem" in element else from_document(Produced, element)
        for element in elements
    ]
    produced = [part for part in parts if isinstance(part, Produced)]
    if len(produced) < len(parts):
        # An error of its own for all of the request, so that each part's says what it is.
        error = _partition_problem(next(element for element in elements if "problem" in element))
        error.write_attempted = bool(produced) or any(
            isinstance(part, ProblemError) and part.write_attempted for part in parts
        )
        error.parts = parts
        raise error
    return produced


def _partition_problem(element: Any) -> ProblemError:
    """A partition's problem; `partition` and `topicCreated` join its members."""
    problem = element["problem"]
    beside = {name: element[name] for name in ("partition", "topicCreated") if name in element}
    return problem_error(problem["status"], {**beside, **problem})
