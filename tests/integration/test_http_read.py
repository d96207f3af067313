"""Topics, reads, offsets, health and metrics at the doors of a running broker."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from tailrace.local_broker import HOST
from tailrace.requests import Answer, encode_records
from tailrace.sync import Client
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    HEADER,
    HEADER_BYTES,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_HEADER,
    RECORDS_MAGIC,
    BatchHeader,
    RecordsFlag,
)
from tests.fixtures import RunningBroker
from tests.http11 import Connection, document, request

pytestmark = pytest.mark.integration

TIME_US = 1_764_000_000_123_456
TIME_TEXT = "2025-11-24T16:00:00.123456Z"


@pytest.fixture(params=[0, 2], ids=["public", "read"])
def reader(shared_broker: RunningBroker, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """To each door that takes reads."""
    with Connection(shared_broker.port + request.param) as opened:
        yield opened


@pytest.fixture
def public(shared_broker: RunningBroker) -> Iterator[Connection]:
    """To the public door."""
    with Connection(shared_broker.port) as opened:
        yield opened


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that only this test has."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


def post(connection: Connection, target: str, body: bytes, **headers: str) -> Any:
    """A POST that succeeds."""
    answer = connection.exchange(request(target, body, **headers))
    assert answer.status in {200, 201}, answer
    return document(answer)


def get(connection: Connection, target: str, **headers: str) -> Answer:
    return connection.exchange(request(target, method="GET", content_length=None, **headers))


def records_target(topic: str, partition: int = 0, **query: int | str) -> str:
    pairs = "&".join(f"{name}={value}" for name, value in query.items())
    return f"/v1/topic/{topic}/partitions/{partition}/records" + (f"?{pairs}" if pairs else "")


def records_of(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


def one_partition(public: Connection, topic: str, **settings: int | bool) -> None:
    """Create a topic that has one partition."""
    wanted = {"name": topic, "partitionsPerRange": 1, **settings}
    post(public, "/v1/topics", json.dumps(wanted).encode(), content_type=JSON_CONTENT_TYPE)


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_created_once_and_found_again(public: Connection, topic: str) -> None:
    body = json.dumps({"name": topic, "partitionsPerRange": 3, "jsonCheck": False}).encode()
    created = public.exchange(request("/v1/topics", body))
    found = public.exchange(request("/v1/topics", body))

    said = document(created)
    assert created.status == 201
    assert said == {
        "name": topic,
        "id": said["id"],
        "partitionsPerRange": 3,
        "jsonCheck": False,
        "durability": "fsync",
        "partitions": 3,
        "copies": 1,
    }
    assert (found.status, document(found)) == (200, said)
    assert said in document(get(public, "/v1/topics"))["topics"]


def test_topics_are_listed_by_name(public: Connection, topic: str) -> None:
    for name in ("b", "A", "a.1", "a-0"):
        post(public, "/v1/topics", json.dumps({"name": f"{topic}{name}"}).encode())
    names = [each["name"] for each in document(get(public, "/v1/topics"))["topics"]]
    assert names == sorted(names)
    assert len(names) >= 4


def test_a_first_produce_creates_the_topic_with_the_defaults(
    public: Connection, topic: str
) -> None:
    post(public, f"/v1/topic/{topic}/messages", b"1")
    (said,) = (
        each for each in document(get(public, "/v1/topics"))["topics"] if each["name"] == topic
    )
    assert (said["partitions"], said["jsonCheck"]) == (4, True)


def test_first_produces_at_the_same_time_make_one_topic(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Connection(shared_broker.port) as slow, Connection(shared_broker.port + 1) as fast:
        produce = request(f"/v1/topic/{topic}/messages?partitionKey=k", b"1")
        create = request("/v1/topics", json.dumps({"name": topic}).encode())
        fast.send(produce * 20)
        slow.send(create + produce + create + produce)
        assert [fast.receive().status for _ in range(20)] == [200] * 20
        assert {slow.receive().status for _ in range(4)} <= {200, 201}
    with Client(shared_broker.url) as client:
        assert sum(len(each.readable()) for each in client.offsets([topic])) == 22


# --- records as JSON ------------------------------------------------------------------------------


def records_with_headers(topic_values: list[tuple[bytes | None, bytes | None]]) -> bytes:
    """A records+binary body in which each record has one header, `trace: \\xff`."""
    count = len(topic_values)
    keys = b"".join(key or b"" for key, _ in topic_values)
    values = b"".join(value or b"" for _, value in topic_values)
    lengths = [
        b"".join(
            (-1 if each is None else len(each)).to_bytes(4, "little", signed=True)
            for each in column
        )
        for column in zip(*topic_values, strict=True)
    ]
    columns = [
        RECORDS_HEADER.pack(
            *(RECORDS_MAGIC, 1, RecordsFlag.HEADERS, count, len(keys), len(values)),
            *(count, count * len(b"trace"), count),
        ),
        *lengths,
        np.full(count, 1, "<i4").tobytes(),
        np.full(count, len(b"trace"), "<i4").tobytes(),
        np.full(count, 1, "<i4").tobytes(),
        keys,
        values,
        b"trace" * count,
    ]
    return b"".join(column + bytes(-len(column) % 8) for column in columns) + b"\xff" * count


KEYS_AND_TEXTS: list[tuple[bytes | None, Any]] = [
    (None, None),
    (b"", ""),
    (b"SFO", "SFO"),
    ("Zürich \U0001f6eb".encode(), "Zürich \U0001f6eb"),
    (b'quote " back \\ line \n', 'quote " back \\ line \n'),
    (b"\xff\x00", {"base64": "/wA="}),
]
VALUES_AND_TEXTS: list[tuple[bytes | None, Any]] = [
    (None, None),
    (b'{"a": [1, 2.5, "x"]}', {"a": [1, 2.5, "x"]}),
    (b"null", None),
    (b'"text"', "text"),
    (b'{\n"a":\r\n1}', {"a": 1}),
    (b"not JSON", {"base64": "bm90IEpTT04="}),
    (b"", {"base64": ""}),
    (b"\xfe", {"base64": "/g=="}),
    (b'"\xff"', {"base64": "Iv8i"}),
    (b"1 2", {"base64": "MSAy"}),
]


def test_keys_and_values_of_any_bytes_are_shown_in_json(
    public: Connection, reader: Connection, topic: str
) -> None:
    one_partition(public, topic)
    pairs = [
        (key, value, key_text, value_text)
        for key, key_text in KEYS_AND_TEXTS
        for value, value_text in VALUES_AND_TEXTS
    ]
    body = encode_records([key for key, *_ in pairs], [value for _, value, *_ in pairs])
    post(public, f"/v1/topic/{topic}/messages", body, content_type=RECORDS_CONTENT_TYPE)
    read = records_of(get(reader, records_target(topic)))

    assert [(each["key"], each["value"]) for each in read] == [
        (key_text, value_text) for *_, key_text, value_text in pairs
    ]
    assert [each["offset"] for each in read] == list(range(len(pairs)))
    assert {each["partition"] for each in read} == {0}
    assert not any("headers" in each for each in read)


def test_headers_are_shown_when_there_are_some(
    public: Connection, reader: Connection, topic: str
) -> None:
    one_partition(public, topic)
    body = records_with_headers([(b"k", b"1"), (None, None)])
    post(public, f"/v1/topic/{topic}/messages", body, content_type=RECORDS_CONTENT_TYPE)
    read = records_of(get(reader, records_target(topic)))

    header = {"key": "trace", "value": {"base64": "/w=="}}
    assert [each["headers"] for each in read] == [[header], [header]]


@pytest.mark.parametrize("content_type", [JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE])
def test_without_the_json_check_any_line_is_a_value(
    public: Connection, reader: Connection, topic: str, content_type: str
) -> None:
    one_partition(public, topic, jsonCheck=False)
    for body in (b"not JSON", b'{"a":1}'):
        post(public, f"/v1/topic/{topic}/messages", body, content_type=content_type)
    read = records_of(get(reader, records_target(topic)))
    assert [each["value"] for each in read] == [{"base64": "bm90IEpTT04="}, {"a": 1}]


def test_a_given_timestamp_is_kept(public: Connection, reader: Connection, topic: str) -> None:
    one_partition(public, topic)
    post(public, f"/v1/topic/{topic}/messages?timestamp={TIME_US}", b"1")
    (record,) = records_of(get(reader, records_target(topic)))
    assert record["timestamp"] == TIME_TEXT


def test_an_array_holds_the_same_records_as_the_lines(
    public: Connection, reader: Connection, topic: str
) -> None:
    one_partition(public, topic)
    assert get(reader, records_target(topic), accept=JSON_CONTENT_TYPE).body == b"[]"
    body = b"1\n\n2\r\n[3]"
    post(public, f"/v1/topic/{topic}/messages", body, content_type=NDJSON_CONTENT_TYPE)
    array = get(reader, records_target(topic), accept=JSON_CONTENT_TYPE)
    lines = get(reader, records_target(topic), accept=NDJSON_CONTENT_TYPE)

    assert document(array) == records_of(lines)
    assert [each["value"] for each in document(array)] == [1, 2, [3]]
    assert array.headers["content-type"] == JSON_CONTENT_TYPE
    assert lines.headers["content-type"] == NDJSON_CONTENT_TYPE


# --- where reads begin and end --------------------------------------------------------------------

BATCH_COUNTS = [1, 3, 5, 1, 7, 2]


def produce_batches(public: Connection, topic: str) -> int:
    """Batches of these sizes in one partition; how many records."""
    one_partition(public, topic)
    numbers = iter(range(sum(BATCH_COUNTS)))
    for count in BATCH_COUNTS:
        body = b"".join(b"%d\n" % next(numbers) for _ in range(count))
        post(public, f"/v1/topic/{topic}/messages", body, content_type=NDJSON_CONTENT_TYPE)
    return sum(BATCH_COUNTS)


def test_exactly_as_many_records_as_wanted_are_read(
    public: Connection, reader: Connection, topic: str
) -> None:
    """Wherever batches begin and end."""
    end = produce_batches(public, topic)
    for offset in range(end + 1):
        for count in range(1, end - offset + 3):
            answer = get(reader, records_target(topic, offset=offset, maxRecords=count))
            last = min(offset + count, end)
            assert [each["value"] for each in records_of(answer)] == list(range(offset, last))
            assert answer.headers["tailrace-next-offset"] == str(last)
            assert answer.headers["tailrace-high-watermark"] == str(end)
            assert answer.headers["tailrace-log-start"] == "0"


def test_1000_records_are_read_unless_told_otherwise(
    public: Connection, reader: Connection, topic: str
) -> None:
    one_partition(public, topic)
    body = b"1\n" * 1_500
    post(public, f"/v1/topic/{topic}/messages", body, content_type=NDJSON_CONTENT_TYPE)
    assert len(records_of(get(reader, records_target(topic)))) == 1_000
    assert len(records_of(get(reader, records_target(topic, maxRecords=100_000)))) == 1_500


def test_earliest_and_latest_are_offsets(
    public: Connection, reader: Connection, topic: str
) -> None:
    end = produce_batches(public, topic)
    earliest = get(reader, records_target(topic, offset="earliest", maxRecords=1))
    latest = get(reader, records_target(topic, offset="latest"))
    assert [each["offset"] for each in records_of(earliest)] == [0]
    assert (latest.status, latest.body) == (200, b"")
    assert latest.headers["tailrace-next-offset"] == str(end)


def headers_of(batches: bytes) -> list[BatchHeader]:
    """The headers of whole batches back to back."""
    headers = []
    while batches:
        header = BatchHeader._make(HEADER.unpack(batches[:HEADER_BYTES]))
        assert header.batch_bytes <= len(batches)
        headers.append(header)
        batches = batches[header.batch_bytes :]
    return headers


def test_binary_reads_give_whole_batches_from_the_one_that_covers_the_offset(
    public: Connection, reader: Connection, topic: str
) -> None:
    end = produce_batches(public, topic)
    everything = get(reader, records_target(topic), accept=BATCH_CONTENT_TYPE)
    assert everything.headers["content-type"] == BATCH_CONTENT_TYPE
    batches = headers_of(everything.body)
    assert [header.record_count for header in batches] == BATCH_COUNTS
    for offset in range(end):
        for max_bytes in (1, 400, 1_000_000):
            target = records_target(topic, offset=offset, maxBytes=max_bytes)
            answer = get(reader, target, accept=BATCH_CONTENT_TYPE)
            read = headers_of(answer.body)
            assert read[0].base_offset <= offset < read[0].end_offset
            assert len(answer.body) <= max_bytes or len(read) == 1
            assert answer.headers["tailrace-next-offset"] == str(read[-1].end_offset)
    at_end = get(reader, records_target(topic, offset=end), accept=BATCH_CONTENT_TYPE)
    assert (at_end.body, at_end.headers["tailrace-next-offset"]) == (b"", str(end))


def test_reads_are_the_same_after_a_restart(broker: RunningBroker, topic: str) -> None:
    """Then they come from the disk."""
    targets = [
        (records_target(topic, offset=offset, maxRecords=4), accept)
        for offset in range(sum(BATCH_COUNTS))
        for accept in (NDJSON_CONTENT_TYPE, BATCH_CONTENT_TYPE)
    ]
    with Connection(broker.port) as public:
        produce_batches(public, topic)
        before = [get(public, target, accept=accept).body for target, accept in targets]
    broker.restart()
    with Connection(broker.port) as public:
        assert [get(public, target, accept=accept).body for target, accept in targets] == before


def test_offsets_tell_where_each_partition_starts_and_ends(
    public: Connection, reader: Connection, topic: str
) -> None:
    end = produce_batches(public, topic)
    second = f"{topic}-2"
    post(public, "/v1/topics", json.dumps({"name": second, "partitionsPerRange": 2}).encode())
    said = document(get(reader, f"/v1/offsets?topic={second}&topic={topic}"))

    row = {
        "partition": 0,
        "range": 0,
        "epoch": 1,
        "firstOffset": 0,
        "logStart": 0,
        "highWatermark": end,
        "logEnd": end,
        "state": "open",
        "parents": [],
    }
    empty = row | {"highWatermark": 0, "logEnd": 0}
    assert said == {
        "topics": [
            {"topic": second, "partitions": [empty, empty | {"partition": 1}]},
            {"topic": topic, "partitions": [row]},
        ]
    }
    everything = document(get(reader, "/v1/offsets"))["topics"]
    assert [each for each in everything if each["topic"] in {topic, second}] == said["topics"][::-1]


# --- keys -----------------------------------------------------------------------------------------


def test_a_key_stays_in_its_partition_and_events_without_one_take_turns(
    public: Connection, topic: str
) -> None:
    keyed = {
        key: {
            post(public, f"/v1/topic/{topic}/messages?partitionKey={quote(key)}", b"1")["partition"]
            for _ in range(3)
        }
        for key in ("a", "b", "", "Zürich", "x y&z")
    }
    assert all(len(partitions) == 1 for partitions in keyed.values())
    keyless = [post(public, f"/v1/topic/{topic}/messages", b"1")["partition"] for _ in range(8)]
    assert sorted(keyless) == [0, 0, 1, 1, 2, 2, 3, 3]

    with Client(f"http://{HOST}:{public.socket.getpeername()[1]}") as client:
        read = [
            json.loads(line)["key"]
            for each in client.offsets([topic])
            for line in client.read_lines(topic, each.partition, 0).body.splitlines()
        ]
    assert {key: read.count(key) for key in keyed} == dict.fromkeys(keyed, 3)
    assert read.count(None) == 8


@pytest.mark.parametrize("door", [0, 1], ids=["public", "fast"])
def test_records_go_to_the_partitions_of_their_keys_in_their_order(
    shared_broker: RunningBroker, door: int, topic: str
) -> None:
    keys = [b"a", b"b", b"a", b"c", b"b", b"a"]
    values = [b"%d" % number for number in range(len(keys))]
    with Connection(shared_broker.port + door) as connection:
        body = encode_records(list(keys), list(values))
        target = f"/v1/topic/{topic}/messages"
        said = post(connection, target, body, content_type=RECORDS_CONTENT_TYPE)
    assert [each["partition"] for each in said] == sorted({each["partition"] for each in said})
    assert sum(each["count"] for each in said) == len(keys)
    with Client(shared_broker.url) as client:
        for each in said:
            lines = client.read_lines(topic, each["partition"], each["offset"]).body.splitlines()
            records = [json.loads(line) for line in lines]
            chosen = [
                (key.decode(), int(value))
                for key, value in zip(keys, values, strict=True)
                if key.decode() in {record["key"] for record in records}
            ]
            assert [(record["key"], record["value"]) for record in records] == chosen


# --- health and metrics ---------------------------------------------------------------------------


def test_a_running_broker_is_live_and_ready(public: Connection) -> None:
    assert document(get(public, "/live")) == {"live": True}
    assert document(get(public, "/ready")) == {"ready": True}


def test_every_metric_moves(broker: RunningBroker, topic: str) -> None:
    before = broker.metrics()
    with Connection(broker.port) as public, Connection(broker.port + 1) as fast:
        for connection in (public, fast):
            target = f"/v1/topic/{topic}/messages"
            post(connection, target, b"1\n2\n", content_type=NDJSON_CONTENT_TYPE)
            assert connection.exchange(request(target, b"{")).status == 400
            assert connection.exchange(request(target, b"1", content_type="x")).status == 415
            assert connection.exchange(request("/v1/topic/a/messages?x=1", b"1")).status == 400
        body = get(public, records_target(topic)).body
        assert get(public, records_target(topic, 99)).status == 404
        assert get(public, records_target(topic, offset="x")).status == 400
    after = broker.metrics()
    moved = {name: after[name] - before[name] for name in after if name.startswith("tailrace_")}

    batch_bytes = moved.pop("tailrace_log_written_bytes_total")
    assert moved.pop("tailrace_cache_bytes") >= batch_bytes > 2 * HEADER_BYTES
    assert moved == {
        "tailrace_produce_requests_total": 8,
        "tailrace_produce_errors_total": 6,
        "tailrace_produced_events_total": 4,
        "tailrace_produced_bytes_total": 2 * (4 + 1 + 1),
        "tailrace_read_requests_total": 3,
        "tailrace_read_errors_total": 2,
        "tailrace_read_bytes_total": len(body),
        "tailrace_log_writes_total": 2,
        "tailrace_ready": 0,
        "tailrace_direct_io": 0,
        "tailrace_topics": 1,
        "tailrace_partitions": 4,
        "tailrace_damaged_partitions": 0,
        "tailrace_produce_memory_bytes": 0,
    }
    assert after["tailrace_ready"] == 1
    assert after["process_resident_memory_bytes"] > 0
    with urllib.request.urlopen(f"http://{HOST}:{broker.port + 3}/metrics") as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize("name", ["maxRecords", "maxBytes", "offset"])
def test_a_number_of_many_digits_is_refused_and_harms_nobody(
    reader: Connection, public: Connection, topic: str, name: str
) -> None:
    post(public, f"/v1/topic/{topic}/messages", b"1")
    for digits in ("0" * 18 + "1" + "9" * 5000, "0" * 18 + "1999999999999"):
        assert get(reader, f"{records_target(topic)}?{name}={digits}").status == 400
    assert get(reader, f"/v1/topic/{topic}/partitions/{'0' * 19}2/records").status == 400
    assert get(public, "/ready").status == 200


def test_a_large_json_read_is_sent_in_pieces_and_is_whole(
    shared_broker: RunningBroker, public: Connection, topic: str
) -> None:
    values = [b'"%d%s"' % (index, b"x" * 400_000) for index in range(12)]
    for value in values:
        partition = post(public, f"/v1/topic/{topic}/messages?partitionKey=k", value)["partition"]

    for accept in (JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE):
        url = f"{shared_broker.url}/v1/topic/{topic}/partitions/{partition}/records"
        asked = urllib.request.Request(url, headers={"accept": accept})
        with urllib.request.urlopen(asked) as answer:
            assert answer.headers["transfer-encoding"] == "chunked"
            assert answer.headers["Tailrace-Next-Offset"] == "12"
            body = answer.read()
        is_array = accept == JSON_CONTENT_TYPE
        records = json.loads(body) if is_array else [json.loads(line) for line in body.splitlines()]
        assert [json.dumps(record["value"]).encode() for record in records] == values
