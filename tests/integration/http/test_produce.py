"""Producing at the two listeners that take it: what is sent comes back, wherever it was cut."""

import json
import random
from base64 import b64encode

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.sync import Client
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    HEADER,
    HEADER_BYTES,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_JSON_CONTENT_TYPE,
    BatchHeader,
    Codec,
    Flag,
)
from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.net.http.connection import DIRECT_BODY_BYTES_MIN, RECEIVE_BUFFER_BYTES
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.stored import SPLIT_END, split, values_of
from tests.support.http.http11 import (
    Connection,
    chunked,
    document,
    get,
    messages,
    problem,
    produce_listeners,
    records,
    request,
    settle,
)
from tests.support.storage.batches import (
    TIME_US,
    Event,
    body_of,
    place_of,
    read_by_broker,
    records_of,
)

pytestmark = pytest.mark.integration

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
FRAMES = pytest.mark.parametrize("frame", [request, chunked], ids=["length", "chunked"])


# --- wherever a receive ends ----------------------------------------------------------------------


@produce_listeners
@FRAMES
def test_a_request_cut_at_any_byte_is_one_request(
    shared_broker: RunningBroker, connection: Connection, listener: int, topic: str, frame: type
) -> None:
    """Between the two bytes of a line's end too."""
    lines = [b'"a"', b"[1]", b"{}", b"2"]
    body = b'"a"\r\n[1]\n\n{}\r\n\r\n2'
    whole = frame(messages(topic, partitionKey="k"), body, content_type=NDJSON_CONTENT_TYPE)
    with Connection(shared_broker.port + listener) as other:
        for position in range(1, len(whole)):
            connection.send(whole[:position])
            assert other.exchange(get("/nowhere")).status == 404
            answer = connection.exchange(whole[position:])
            assert (answer.status, document(answer)["offset"]) == (200, 4 * (position - 1))

    assert values_of(shared_broker, topic) == lines * (len(whole) - 1)


@produce_listeners
def test_a_long_head_cut_anywhere_is_one_head(
    shared_broker: RunningBroker, connection: Connection, listener: int, topic: str
) -> None:
    headers = {f"x-{number}": "v" * 1000 for number in range(14)}
    whole = request(messages(topic), b"1", **headers)
    for position in range(100, len(whole), 2_999):
        connection.send(whole[:position])
        settle(shared_broker.port + listener)
        assert connection.exchange(whole[position:]).status == 200


def json_lines(size_bytes: int, generator: random.Random) -> bytes:
    """NDJSON of exactly this size, lines of many lengths; the last has no line end."""
    lines = []
    rest = size_bytes
    while rest > 6_000:
        value = json.dumps(
            {"n": rest, "text": generator.randbytes(generator.randint(0, 2_000)).hex()}
        )
        lines.append(value.encode())
        rest -= len(value) + 1
    lines.append(b'"%s"' % (b"x" * (rest - 2)) if rest > 1 else b"7")
    body = b"\n".join(lines)
    assert len(body) == size_bytes
    return body


EDGES = [DIRECT_BODY_BYTES_MIN, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFER_BYTES + DIRECT_BODY_BYTES_MIN]
SIZES = [
    *(1, 2, 100, 4 * KIBIBYTE, 100 * KIBIBYTE, 700 * KIBIBYTE, MEBIBYTE),
    *(edge + difference for edge in EDGES for difference in (-1, 0, 1)),
]


@produce_listeners
@FRAMES
@pytest.mark.parametrize("size_bytes", SIZES)
def test_lines_come_back_exactly_as_they_were_sent(
    shared_broker: RunningBroker,
    connection: Connection,
    listener: int,
    topic: str,
    size_bytes: int,
    frame: type,
) -> None:
    """However the body is cut: behind its head, within it, and around the buffers' edges."""
    body = json_lines(size_bytes, random.Random(size_bytes))
    target = messages(topic, partitionKey="k")
    whole = frame(target, body, content_type=NDJSON_CONTENT_TYPE)
    head_bytes = whole.index(b"\r\n\r\n") + 4
    following = request(target, b'"following"')
    cuts = {head_bytes, head_bytes + size_bytes // 2, RECEIVE_BUFFER_BYTES, len(whole) - 1}
    cuts |= {len(whole) - DIRECT_BODY_BYTES_MIN + difference for difference in (-1, 0, 1)}
    positions = [0, *sorted(cut for cut in cuts if head_bytes <= cut < len(whole))]
    for position in positions:
        connection.send(whole[:position])
        if position:
            settle(shared_broker.port + listener)
        connection.send(whole[position:] + following)
        assert connection.receive().status == 200
        assert connection.receive().status == 200

    assert values_of(shared_broker, topic) == [*body.split(b"\n"), b'"following"'] * len(positions)


@produce_listeners
@pytest.mark.parametrize("chunk_bytes", [1, 2, 70_001])
def test_a_body_may_come_in_chunks_of_any_size(
    connection: Connection, shared_broker: RunningBroker, topic: str, chunk_bytes: int
) -> None:
    body = json_lines(300 * KIBIBYTE, random.Random(1))
    pieces = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)]
    target = messages(topic, partitionKey="k")
    connection.send(chunked(target, *pieces, content_type=NDJSON_CONTENT_TYPE))
    connection.send(chunked(target, b'"last"'))

    assert [connection.receive().status for _ in range(2)] == [200, 200]
    assert values_of(shared_broker, topic) == [*body.split(b"\n"), b'"last"']


# --- to which partition ---------------------------------------------------------------------------


@produce_listeners
def test_a_key_stays_in_its_partition_and_events_without_one_take_turns(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    def partition_of(key: str | None) -> int:
        answer = connection.exchange(request(messages(topic, partitionKey=key), b"1"))
        return int(document(answer)["partition"])

    keyed = {
        key: {partition_of(key) for _ in range(3)} for key in ("a", "b", "", "Zürich", "x y&z")
    }
    keyless = [partition_of(None) for _ in range(8)]

    assert all(len(partitions) == 1 for partitions in keyed.values())
    assert sorted(keyless) == [0, 0, 1, 1, 2, 2, 3, 3]
    with Client(shared_broker.url) as client:
        read = [
            json.loads(line)["key"]
            for row in client.offsets([topic])
            for line in client.read_lines(topic, row.partition, 0).body.splitlines()
        ]
    assert {key: read.count(key) for key in keyed} == dict.fromkeys(keyed, 3)
    assert read.count(None) == 8


@produce_listeners
def test_records_go_to_the_partitions_of_their_keys_in_their_order(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    keys = [b"a", b"b", b"a", b"c", b"b", b"a"]
    values = [b"%d" % number for number in range(len(keys))]
    body = encode_records(list(keys), list(values))
    answer = connection.exchange(request(messages(topic), body, content_type=RECORDS_CONTENT_TYPE))
    said = document(answer)

    assert [each["partition"] for each in said] == sorted({each["partition"] for each in said})
    assert sum(each["count"] for each in said) == len(keys)
    with Client(shared_broker.url) as client:
        for each in said:
            lines = client.read_lines(topic, each["partition"], each["offset"]).body.splitlines()
            stored = [json.loads(line) for line in lines]
            chosen = [
                (key.decode(), int(value))
                for key, value in zip(keys, values, strict=True)
                if key.decode() in {record["key"] for record in stored}
            ]
            assert [(record["key"], record["value"]) for record in stored] == chosen


# --- ready-made batches ---------------------------------------------------------------------------

COMPRESSIBLE = [
    Event(b'{"a":1}', b"k", TIME_US, [(b"trace", b"\xff")]),
    Event(None, None, TIME_US - 5),
    Event(b"\xff" * 1_000, b"", TIME_US + 7),
]
INCOMPRESSIBLE = [Event(random.Random(1).randbytes(1_000))]


def ready_batch(events: list[Event], flags: int = 0, codec: Codec = Codec.LZ4) -> bytes:
    """As a client makes it: what only the leader may say is nonsense."""
    place = place_of(base_offset=999, epoch=77, append_time_us=1, range_id=8, high_watermark=5)
    return b"".join(stamp_batch(body_of(events, flags=flags, codec=codec), place).buffers)


def header_of(batch: bytes) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack(batch[:HEADER_BYTES]))


@produce_listeners
@pytest.mark.parametrize(
    ("events", "codec"),
    [(COMPRESSIBLE, Codec.LZ4), (COMPRESSIBLE, Codec.ZSTD), (INCOMPRESSIBLE, Codec.NONE)],
    ids=["lz4", "zstd", "plain"],
)
def test_a_ready_made_batch_is_stored_as_it_came(
    shared_broker: RunningBroker,
    connection: Connection,
    topic: str,
    events: list[Event],
    codec: Codec,
) -> None:
    """Under a header of the leader's: what only that may say is not taken over."""
    promises = int(Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS)
    body = ready_batch(events, promises, codec)
    assert connection.exchange(request(messages(topic), b"1")).status == 200
    sent = request(messages(topic, partition=2), body, content_type=BATCH_CONTENT_TYPE)
    said = [document(connection.exchange(sent)) for _ in range(2)]
    with Connection(shared_broker.port) as reader:
        stored = reader.exchange(get(records(topic, 2), accept=BATCH_CONTENT_TYPE)).body

    count = len(events)
    assert said == [
        {"topic": topic, "partition": 2, "offset": offset, "count": count}
        | {"durability": "fsync", "copies": 1}
        for offset in (0, count)
    ]
    second = stored[header_of(stored).batch_bytes :]
    header = header_of(second)
    assert read_by_broker(second) == records_of(events, count)
    assert second[HEADER_BYTES:] == body[HEADER_BYTES:]
    assert header_of(body).flags & promises
    assert not header.flags & promises
    assert (header.codec, header.base_offset, header.epoch, header.range_id) == (codec, count, 1, 0)
    assert (header.high_watermark, header.append_time_us > TIME_US) == (count, True)


@produce_listeners
def test_a_ready_made_batch_is_refused_as_a_whole(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    body = ready_batch(COMPRESSIBLE)
    damaged = bytearray(body)
    damaged[-20] ^= 1
    assert connection.exchange(request(messages(topic), b"1")).status == 200
    refused = {
        messages(topic): (400, "invalid-parameter"),
        messages(topic, partition=4): (404, "partition-not-found"),
        messages(topic, partition=0, partitionKey="k"): (400, "invalid-parameter"),
        messages(topic, partition=0, timestamp=1): (400, "invalid-parameter"),
    }
    for target, expected in refused.items():
        sent = request(target, body, content_type=BATCH_CONTENT_TYPE)
        assert problem(connection.exchange(sent)) == expected, target
    for bad in (bytes(damaged), body[:-1], body + b"\0", body * 2, b"1"):
        sent = request(messages(topic, partition=0), bad, content_type=BATCH_CONTENT_TYPE)
        assert problem(connection.exchange(sent)) == (400, "invalid-body")
    for content_type in (JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE):
        sent = request(messages(topic, partition=0), b"1", content_type=content_type)
        assert problem(connection.exchange(sent)) == (400, "invalid-parameter")

    assert values_of(shared_broker, topic) == [b"1"]


@produce_listeners
def test_a_sealed_partition_says_where_its_keys_go_on(
    broker: RunningBroker, listener: int, topic: str
) -> None:
    split(broker, topic)
    with Connection(broker.port + listener) as connection:
        body = ready_batch(COMPRESSIBLE)
        sealed, child = (
            connection.exchange(
                request(messages(topic, partition=partition), body, content_type=BATCH_CONTENT_TYPE)
            )
            for partition in (0, 1)
        )
        keyed = document(connection.exchange(request(messages(topic, partitionKey="k"), b"1")))

    assert problem(sealed) == (421, "not-leader")
    assert {"partition": 0, "leader": 0, "children": [1, 2]}.items() <= document(sealed).items()
    assert (child.status, document(child)["offset"]) == (200, SPLIT_END)
    assert keyed["partition"] in {1, 2}


# --- a key in each line ---------------------------------------------------------------------------


@produce_listeners
def test_each_line_goes_to_the_partition_of_the_key_that_is_in_it(
    shared_broker: RunningBroker, connection: Connection, listener: int, topic: str
) -> None:
    lines = [
        json.dumps({"n": n, "customer": {"id": n % 7 if n % 2 else f"c{n % 5}"}}).encode()
        for n in range(200)
    ]
    body = b"\r\n\n".join(lines)
    sent = request(messages(topic, key=".customer.id"), body, content_type=NDJSON_CONTENT_TYPE)
    answer = connection.exchange(sent)

    assert answer.status == 200, answer
    elements = document(answer)
    assert [element["partition"] for element in elements] == sorted(
        {element["partition"] for element in elements}
    )
    assert sum(element["count"] for element in elements) == len(lines)
    with Connection(shared_broker.port) as public:
        stored: dict[str, list[int]] = {}
        for element in elements:
            page = public.exchange(get(records(topic, partition=element["partition"])))
            for record in map(json.loads, page.body.splitlines()):
                assert record["key"] == str(record["value"]["customer"]["id"])
                stored.setdefault(record["key"], []).append(record["value"]["n"])
        for key, numbers in stored.items():
            assert numbers == sorted(numbers)
            one = request(messages(topic, partitionKey=key), b"{}")
            home = document(public.exchange(one))["partition"]
            page = public.exchange(get(records(topic, partition=home)))
            assert b'"key":"%s"' % key.encode() in page.body
    assert sorted(n for numbers in stored.values() for n in numbers) == list(range(200))


@produce_listeners
@pytest.mark.parametrize(
    ("body", "type", "detail"),
    [
        (b'{"k":1}\n\n{"a":1}\n', "invalid-body", "line 3 has no .k, its key; nothing was stored"),
        (
            b'{"k":1}\n{"k":}\n',
            "invalid-record",
            "invalid character at byte 13; nothing was stored",
        ),
    ],
)
def test_of_lines_of_which_one_has_no_key_nothing_is_stored(
    shared_broker: RunningBroker,
    connection: Connection,
    topic: str,
    body: bytes,
    type: str,
    detail: str,
) -> None:
    with Client(shared_broker.url) as client:
        client.create_topic(topic)
    answer = connection.exchange(
        request(messages(topic, key=".k"), body, content_type=NDJSON_CONTENT_TYPE)
    )

    assert problem(answer) == (400, type)
    assert document(answer)["detail"] == detail
    assert values_of(shared_broker, topic) == []


@produce_listeners
def test_lines_with_their_keys_are_stored_once_under_their_number(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    body = b"".join(b'{"k":%d}\n' % number for number in range(100))
    sent = request(
        messages(topic, key=".k"),
        body,
        content_type=NDJSON_CONTENT_TYPE,
        tailrace_producer_id="till-7",
        tailrace_sequence=1,
    )
    first, again = (document(connection.exchange(sent)) for _ in range(2))

    assert [each["offset"] for each in again] == [each["offset"] for each in first]
    assert all(each["duplicate"] for each in again)
    assert len(values_of(shared_broker, topic)) == 100


@produce_listeners
@pytest.mark.parametrize(
    ("parameters", "content_type", "detail"),
    [
        ({"key": "k"}, NDJSON_CONTENT_TYPE, "key is k; it is a field path of at most 16 names"),
        ({"key": ".k", "partitionKey": "a"}, NDJSON_CONTENT_TYPE, "give one"),
        ({"key": ".k"}, JSON_CONTENT_TYPE, "key says nothing for application/json; leave it out"),
        ({"key": ".k"}, RECORDS_CONTENT_TYPE, "leave it out"),
        ({"key": ".k"}, BATCH_CONTENT_TYPE, "leave it out"),
    ],
)
def test_a_key_that_cannot_be_is_refused_before_its_topic_is_created(
    shared_broker: RunningBroker,
    connection: Connection,
    topic: str,
    parameters: dict[str, str],
    content_type: str,
    detail: str,
) -> None:
    sent = request(messages(topic, **parameters), b'{"k":1}', content_type=content_type)
    answer = connection.exchange(sent)

    assert problem(answer) == (400, "invalid-parameter")
    assert detail in document(answer)["detail"]
    with Connection(shared_broker.port) as public:
        assert public.exchange(get(f"/v1/topics/{topic}")).status == 404


# --- records as JSON ------------------------------------------------------------------------------


@produce_listeners
def test_records_as_json_come_back_as_they_were_sent(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    sent = [
        {
            "key": f"k{n % 5}",
            "value": {"n": n},
            "headers": [{"key": "h", "value": {"base64": "/w=="}}, {"key": "h", "value": "wéb"}],
            "timestamp": f"2025-11-24T16:00:{n:02}.000000Z",
        }
        for n in range(20)
    ]
    sent[3] |= {"value": {"base64": "/w=="}, "valueEncoding": "base64"}
    body = json.dumps({"records": sent}).encode()
    answer = connection.exchange(
        request(messages(topic), body, content_type=RECORDS_JSON_CONTENT_TYPE)
    )

    assert answer.status == 200, answer
    with Connection(shared_broker.port) as public:
        pages = [
            public.exchange(get(records(topic, partition=each["partition"]))).body
            for each in document(answer)
        ]
    stored = [json.loads(line) for page in pages for line in page.splitlines()]
    for record in stored:
        del record["partition"], record["offset"]
    assert sorted(stored, key=lambda record: record["timestamp"]) == sent


@produce_listeners
@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (b'{"timestamp":1764000000000}', "did you mean 1764000000000000?"),
        (b'{"timestamp":"2125-11-24T16:00Z"}', "is more than an hour ahead"),
        (b'{"key":1}', "record 0: key is a number; give text"),
        (b'{"value":{"s":"\\ud800"}}', "record 0: \\ud800 is half of a surrogate pair at byte 27"),
    ],
)
def test_of_records_as_json_of_which_one_is_wrong_nothing_is_stored(
    shared_broker: RunningBroker, connection: Connection, topic: str, record: bytes, detail: str
) -> None:
    with Client(shared_broker.url) as client:
        client.create_topic(topic)
    body = b'{"records":[%s,{"timestamp":1764000000000000}]}' % record
    answer = connection.exchange(
        request(messages(topic), body, content_type=RECORDS_JSON_CONTENT_TYPE)
    )

    assert answer.status == 400
    assert detail in document(answer)["detail"]
    assert values_of(shared_broker, topic) == []


@produce_listeners
def test_a_line_of_spaces_is_refused_for_it_has_no_value(
    connection: Connection, topic: str
) -> None:
    sent = request(messages(topic), b'{"a":1}\n   \n', content_type=NDJSON_CONTENT_TYPE)
    answer = document(connection.exchange(sent))

    assert (answer["line"], answer["detail"]) == (2, "the line has no value; nothing was stored")


@produce_listeners
def test_text_as_consume_prints_it_is_taken_back(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    body = '{"records":[{"value":"said \\"é\\"","valueEncoding":"text"}]}'.encode()
    sent = request(messages(topic), body, content_type=RECORDS_JSON_CONTENT_TYPE)

    assert connection.exchange(sent).status == 200
    in_base64 = b64encode('said "é"'.encode())
    assert values_of(shared_broker, topic) == [
        b'{"base64":"%s"},"valueEncoding":"base64"' % in_base64
    ]


@produce_listeners
def test_an_event_that_looks_like_records_is_an_event(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    event = b'{"records":[{"key":"a","value":1}]}'
    sent = request(messages(topic), event, content_type=JSON_CONTENT_TYPE)

    assert connection.exchange(sent).status == 200
    assert values_of(shared_broker, topic) == [event]
