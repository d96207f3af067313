"""HTTP/1.1 (RFC 9110, 9112) as every listener speaks it: one suite through all of them."""

import json
import select
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import Answer
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
)
from tailrace_broker.net.http.answers import PIPELINED_MAX, SEND_BYTES
from tailrace_broker.net.http.connection import RECEIVE_BUFFER_BYTES
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.stored import LARGE_BYTES, LARGE_COUNT, produce_large
from tests.support.http.http11 import (
    METRICS,
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    chunked,
    document,
    every_listener,
    get,
    messages,
    new_topic,
    old,
    problem,
    produce_listeners,
    read_listeners,
    records,
    request,
    settle,
)

pytestmark = pytest.mark.integration

# --- connections ----------------------------------------------------------------------------------


@every_listener
def test_a_connection_is_kept_for_the_next_request(connection: Connection, plain: bytes) -> None:
    for _ in range(5):
        answer = connection.exchange(plain)

        assert answer.status == 200
        assert "connection" not in answer.headers


@every_listener
def test_a_connection_is_closed_when_the_peer_asks_for_it(
    connection: Connection, plain: bytes
) -> None:
    closing = plain.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    connection.send(closing + plain)

    assert connection.receive().headers["connection"] == "close"
    assert connection.is_closed(), "what follows is answered too"


@every_listener
@pytest.mark.parametrize("host", [b"host: 127.0.0.1\r\n", b""], ids=["with host", "without"])
def test_an_http_1_0_peer_gets_its_answer_and_the_end(
    connection: Connection, plain: bytes, host: bytes
) -> None:
    answer = connection.exchange(old(plain).replace(b"host: 127.0.0.1\r\n", host))

    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert connection.is_closed()


@every_listener
def test_an_http_1_0_peer_may_keep_its_connection(connection: Connection, plain: bytes) -> None:
    for _ in range(3):
        answer = connection.exchange(old(plain, b"connection: keep-alive\r\n"))

        assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")


@every_listener
def test_a_peer_that_ends_its_side_still_gets_its_answers(
    connection: Connection, plain: bytes
) -> None:
    connection.send(plain * 3)
    connection.end_sending()

    assert [connection.receive().status for _ in range(3)] == [200] * 3
    assert connection.is_closed()


@produce_listeners
def test_a_peer_that_ends_its_side_gets_answers_that_take_a_while(
    connection: Connection, topic: str
) -> None:
    """The topic is created and the disk written to, after the end was seen."""
    connection.send(request(messages(topic), b"1") * 3)
    connection.end_sending()

    assert [connection.receive().status for _ in range(3)] == [200] * 3
    assert connection.is_closed()


@read_listeners
def test_a_peer_that_ends_its_side_gets_a_large_answer_whole(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    values = produce_large(shared_broker, topic)
    connection.send(get(records(topic), accept=JSON_CONTENT_TYPE))
    connection.end_sending()

    assert [each["value"] for each in document(connection.receive())] == values
    assert connection.is_closed()


@every_listener
def test_a_peer_that_ends_in_the_middle_of_a_request_gets_no_answer(
    connection: Connection, plain: bytes
) -> None:
    connection.send(plain[:-1])
    connection.end_sending()

    assert connection.is_closed()


# --- pipelining -----------------------------------------------------------------------------------


def mixed_requests(topic: str, count: int) -> tuple[bytes, list[tuple[int, object]]]:
    """Requests good and bad in one row of bytes; of each its status and its difference."""
    sent: list[bytes] = []
    expected: list[tuple[int, object]] = []
    for number in range(count):
        name = f"{topic}-{number % 3}"
        match number % 8:
            case 0:
                sent.append(request(messages(name), b"%d" % number))
                expected.append((200, (name, 1)))
            case 1:
                body = b"1\n" * (number % 5 + 1)
                sent.append(request(messages(name), body, content_type=NDJSON_CONTENT_TYPE))
                expected.append((200, (name, number % 5 + 1)))
            case 2:
                body = encode_records([b"k"] * 3, [b"1", b"2", None])
                sent.append(request(messages(name), body, content_type=RECORDS_CONTENT_TYPE))
                expected.append((200, (name, 3)))
            case 3:
                sent.append(request(messages(name), b"{" + b"x" * number))
                expected.append((400, "invalid-record"))
            case 4:
                sent.append(request(f"/v1/nowhere/{number}", b"1"))
                expected.append((404, "not-found"))
            case 5:
                sent.append(chunked(messages(name), b"[", b"%d" % number, b"]"))
                expected.append((200, (name, 1)))
            case 6:
                sent.append(get("/status"))
                expected.append((200, "ready"))
            case _:
                sent.append(request(messages(name), b"1", content_type="text/csv"))
                expected.append((415, "unsupported-media-type"))
    return b"".join(sent), expected


def distinguished(answer: Answer) -> tuple[int, object]:
    """An answer as `mixed_requests` expects it."""
    said = document(answer)
    if answer.status != 200:
        return problem(answer)
    if "status" in said:
        return 200, said["status"]
    elements = said if isinstance(said, list) else [said]
    return 200, (elements[0]["topic"], sum(element["count"] for element in elements))


@produce_listeners
def test_100_mixed_requests_in_one_send_are_answered_in_order(
    connection: Connection, topic: str
) -> None:
    sent, expected = mixed_requests(topic, 100)
    connection.send(sent)

    assert [distinguished(connection.receive()) for _ in expected] == expected


@produce_listeners
def test_pipelined_requests_that_pass_the_receive_buffer_are_all_answered(
    connection: Connection, topic: str
) -> None:
    """The buffer's end cuts a request anywhere, in its head too."""
    sent, expected = mixed_requests(topic, 3_000)
    assert len(sent) > RECEIVE_BUFFER_BYTES

    answers: list[tuple[int, object]] = []
    rest = memoryview(sent)
    while len(answers) < len(expected):
        if rest and select.select([], [connection.socket], [], 0)[1]:
            rest = rest[connection.socket.send(rest) :]
        else:
            answers.append(distinguished(connection.receive()))
    assert answers == expected


@every_listener
def test_more_requests_than_may_wait_are_all_answered(connection: Connection, plain: bytes) -> None:
    count = 3 * PIPELINED_MAX
    connection.send(plain * count)

    assert [connection.receive().status for _ in range(count)] == [200] * count


def test_a_read_sees_what_was_produced_before_it_and_nothing_after(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Connection(shared_broker.port) as connection:
        create = request(
            "/v1/topics", json.dumps({"name": topic, "partitionsPerRange": 1}).encode()
        )
        pair = request(messages(topic), b"1") + get(records(topic, maxRecords=100_000))
        connection.send(create + pair * 200)

        assert connection.receive().status == 201
        for count in range(1, 201):
            assert document(connection.receive())["offset"] == count - 1
            assert len(connection.receive().body.splitlines()) == count


def test_answers_behind_a_long_poll_wait_for_it(shared_broker: RunningBroker, topic: str) -> None:
    with Connection(shared_broker.port) as waiting, Connection(shared_broker.port) as other:
        assert other.exchange(new_topic(topic)).status == 201
        behind = [request(messages(topic), b'"behind"'), get("/nowhere"), get("/status")]
        waiting.send(get(records(topic, waitMs=60_000)), *behind)
        settle(shared_broker.port)
        assert other.exchange(request(messages(topic), b'"first"')).status == 200

        assert json.loads(waiting.receive().body)["value"] == "first"
        assert document(waiting.receive())["offset"] == 1
        assert [waiting.receive().status for _ in range(2)] == [404, 200]


@every_listener
def test_good_requests_before_a_malformed_one_are_answered_first(
    connection: Connection, plain: bytes
) -> None:
    connection.send(plain * 3 + b"hello\r\n\r\n" + plain)

    assert [connection.receive().status for _ in range(4)] == [200, 200, 200, 400]
    assert connection.is_closed()


# --- requests -------------------------------------------------------------------------------------


@every_listener
def test_head_answers_as_get_does_but_without_a_body(connection: Connection, plain: bytes) -> None:
    by_get = connection.exchange(plain)
    connection.send(plain.replace(b"GET", b"HEAD", 1))
    by_head = connection.receive(is_head_only=True)

    assert by_head.status == 200
    assert by_head.headers.keys() == by_get.headers.keys()
    assert by_head.headers["content-type"] == by_get.headers["content-type"]
    assert connection.exchange(plain).status == 200


@read_listeners
def test_head_of_records_has_their_headers(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    produce_large(shared_broker, topic)
    connection.send(get(records(topic)).replace(b"GET", b"HEAD", 1))
    answer = connection.receive(is_head_only=True)

    assert (answer.status, answer.headers["tailrace-next-offset"]) == (200, "12")
    connection.send(get(records(topic, offset=99)).replace(b"GET", b"HEAD", 1))
    assert connection.receive(is_head_only=True).status == 416
    assert connection.exchange(get("/nowhere")).status == 404


@every_listener
def test_a_path_of_another_listener_is_not_found(connection: Connection, listener: int) -> None:
    targets = {
        messages("t"): (PUBLIC, PRODUCE),
        records("t"): (PUBLIC, READ),
        "/v1/offsets": (PUBLIC, READ),
        "/v1/topics": (PUBLIC,),
        "/metrics": (METRICS,),
    }
    for target, listeners in targets.items():
        status = connection.exchange(request(target, method="PUT")).status
        assert status == (405 if listener in listeners else 404), target


@every_listener
def test_another_method_is_answered_with_those_that_there_are(
    connection: Connection, plain: bytes
) -> None:
    for method in (b"DELETE", b"OPTIONS", b"TRACE"):
        answer = connection.exchange(plain.replace(b"GET", method, 1))

        assert problem(answer) == (405, "method-not-allowed")
        assert answer.headers["allow"] == "GET, HEAD"


@every_listener
def test_every_answer_says_when_it_was_made(connection: Connection, plain: bytes) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    answers = [connection.exchange(plain), connection.exchange(get("/nowhere"))]
    after = datetime.now(UTC)
    for answer in answers:
        made = parsedate_to_datetime(answer.headers["date"])
        assert before - timedelta(seconds=1) <= made <= after


@every_listener
def test_a_target_may_name_the_server(connection: Connection, plain: bytes, listener: int) -> None:
    """As a proxy leaves it (RFC 9112, 3.2.2)."""
    for server in (b"http://a.localhost", b"http://127.0.0.1:9250", b"HTTPS://LocalHost"):
        assert connection.exchange(plain.replace(b"GET ", b"GET " + server, 1)).status == 200
    expected = {b"http://localhost": 302, b"http://localhost?/status": 400}
    for target, status in expected.items():
        named = b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % target
        assert connection.exchange(named).status == (404 if listener else status)


@every_listener
def test_empty_lines_before_a_request_are_skipped(connection: Connection, plain: bytes) -> None:
    connection.send(b"\r\n\r\n" + plain + b"\r\n" + plain)

    assert [connection.receive().status for _ in range(2)] == [200, 200]


@every_listener
@pytest.mark.parametrize(
    "version", [b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.10", b"HTTP/1", b"http/1.1"]
)
def test_other_versions_are_refused(connection: Connection, plain: bytes, version: bytes) -> None:
    answer = connection.exchange(plain.replace(b"HTTP/1.1", version, 1))

    assert problem(answer) == (400, "invalid-request")
    assert connection.is_closed()


@every_listener
def test_the_preface_of_http_2_is_refused(connection: Connection) -> None:
    answer = connection.exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    assert problem(answer) == (400, "invalid-request")
    assert connection.is_closed()


@produce_listeners
@pytest.mark.parametrize(
    ("encoded", "key"),
    [
        ("a%20b", "a b"),
        ("a+b", "a b"),
        ("a%2Bb", "a+b"),
        ("Z%C3%BCrich", "Zürich"),
        ("%2F%3F%26%3D%23", "/?&=#"),
        ("a%", "a%"),
        ("%zz", "%zz"),
        ("a=b", "a=b"),
        ("", ""),
        ("%00", "\0"),
        ("%FF%00", {"base64": "/wA="}),
    ],
)
def test_a_key_is_any_bytes_percent_encoded(
    shared_broker: RunningBroker, connection: Connection, topic: str, encoded: str, key: object
) -> None:
    said = document(connection.exchange(request(f"{messages(topic)}?partitionKey={encoded}", b"1")))
    with Connection(shared_broker.port) as reader:
        record = json.loads(reader.exchange(get(records(topic, said["partition"]))).body)

    assert record["key"] == key


# --- large answers --------------------------------------------------------------------------------


@read_listeners
@pytest.mark.parametrize("accept", [JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE])
def test_a_large_read_comes_in_chunks_and_is_whole(
    shared_broker: RunningBroker, connection: Connection, topic: str, accept: str
) -> None:
    values = produce_large(shared_broker, topic)
    answer = connection.exchange(get(records(topic), accept=accept))
    is_array = accept == JSON_CONTENT_TYPE
    read = document(answer) if is_array else [json.loads(line) for line in answer.body.splitlines()]

    assert LARGE_COUNT * LARGE_BYTES > 3 * SEND_BYTES
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["tailrace-next-offset"] == str(len(values))
    assert [each["value"] for each in read] == values
    assert connection.exchange(get("/status")).status == 200


@read_listeners
@pytest.mark.parametrize("header", [b"", b"connection: keep-alive\r\n"], ids=["close", "keep"])
def test_a_large_read_by_http_1_0_ends_with_the_connection(
    shared_broker: RunningBroker, connection: Connection, topic: str, header: bytes
) -> None:
    values = produce_large(shared_broker, topic)
    answer = connection.exchange(old(get(records(topic)), header))

    assert "transfer-encoding" not in answer.headers
    assert [json.loads(line)["value"] for line in answer.body.splitlines()] == values
    assert connection.is_closed()


@read_listeners
def test_a_last_answer_is_whole_however_slowly_it_is_taken(
    shared_broker: RunningBroker, listener: int, topic: str
) -> None:
    """It waits in the broker for longer than a peer is waited for that has it."""
    large = json.dumps("x" * 8_000_000).encode()
    with Connection(shared_broker.port) as public:
        assert public.exchange(request(messages(topic, partitionKey="k"), large)).status == 200
        (read,) = [
            row["partition"]
            for row in document(public.exchange(get(f"/v1/offsets?topic={topic}")))["topics"][0][
                "partitions"
            ]
            if row["highWatermark"]
        ]
        with Connection(shared_broker.port + listener, receive_buffer_bytes=4096) as slow:
            slow.send(get(records(topic, read), connection="close"))
            public.exchange(get(records(topic, 3 - read, waitMs=4_000)))
            answer = slow.receive()

            assert json.loads(answer.body)["value"] == "x" * 8_000_000
            assert slow.is_closed()


@read_listeners
def test_a_binary_read_is_one_answer_of_a_known_length(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    produce_large(shared_broker, topic)
    answer = connection.exchange(get(records(topic), accept=BATCH_CONTENT_TYPE))

    assert int(answer.headers["content-length"]) == len(answer.body) > 0
