"""The two produce doors on the wire: framing, pipelining, limits, peers that misbehave."""

import contextlib
import json
import random
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.requests import Answer, encode_records
from tailrace.sync import Client
from tailrace.wire import NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE
from tailrace_broker.net.produce_http import DIRECT_BODY_BYTES_MIN, RECEIVE_BUFFER_BYTES
from tests.fixtures import RunningBroker, start_broker
from tests.http11 import Connection, chunked, document, request
from tests.metrics import wait_for_metric

pytestmark = pytest.mark.integration

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
HEADER_BYTES_MAX = 16 * KIBIBYTE
MAX_REQUEST_BYTES = 64 * KIBIBYTE
RESET_ON_CLOSE = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
# More than the kernel's buffers of both ends hold.
UNREAD_BYTES_MAX = 64 * MEBIBYTE
STALLED_S = 1.0


@pytest.fixture(params=[0, 1], ids=["public", "fast"])
def door(request: pytest.FixtureRequest) -> int:
    """Which of the doors that take produces: added to the base port."""
    number = request.param
    assert isinstance(number, int)
    return number


@pytest.fixture
def connection(shared_broker: RunningBroker, door: int) -> Iterator[Connection]:
    """To each door in turn."""
    with Connection(shared_broker.port + door) as opened:
        yield opened


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that only this test has."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


def messages(topic: str, *, key: str | None = "k", timestamp: str | None = None) -> str:
    """The target of a produce."""
    query = {"partitionKey": key, "timestamp": timestamp}
    pairs = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
    return f"/v1/topic/{topic}/messages" + (f"?{pairs}" if pairs else "")


def values_of(broker: RunningBroker, topic: str) -> list[bytes]:
    """The stored values' JSON texts, in order of partition and offset."""
    values = []
    with Client(broker.url) as client:
        for each in client.offsets([topic]):
            lines = client.read_lines(topic, each.partition, "earliest", max_records=100_000).body
            values += [
                line.partition(b'"value":')[2].removesuffix(b"}") for line in lines.splitlines()
            ]
    return values


def flush(port: int) -> None:
    """Until the broker has read what other connections sent before."""
    with Connection(port) as other:
        assert other.exchange(request("/nowhere")).status == 404


# --- framing --------------------------------------------------------------------------------------


def test_a_connection_is_kept_for_the_next_request(connection: Connection, topic: str) -> None:
    answers = [connection.exchange(request(messages(topic), b"%d" % number)) for number in range(5)]
    assert [answer.status for answer in answers] == [200] * 5
    assert [document(answer)["offset"] for answer in answers] == [0, 1, 2, 3, 4]


def test_a_connection_is_closed_when_the_peer_asks_for_it(
    connection: Connection, topic: str
) -> None:
    closing = request(messages(topic), b"1", connection="close")
    assert connection.exchange(closing).status == 200
    assert connection.is_closed()


def test_an_http_1_0_peer_gets_its_answer_and_the_end(connection: Connection, topic: str) -> None:
    old = request(messages(topic), b"1").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert connection.exchange(old).status == 200
    assert connection.is_closed()


def mixed_requests(topic: str, count: int) -> tuple[bytes, list[tuple[int, object]]]:
    """Requests good and bad in one row of bytes; of each its status and what tells it apart."""
    sent: list[bytes] = []
    expected: list[tuple[int, object]] = []
    for number in range(count):
        name = f"{topic}-{number % 3}"
        kind = number % 7
        match kind:
            case 0:
                sent.append(request(messages(name), b"%d" % number))
                expected.append((200, (name, 1)))
            case 1:
                body = b"1\n" * (number % 5 + 1)
                sent.append(request(messages(name), body, content_type=NDJSON_CONTENT_TYPE))
                expected.append((200, (name, number % 5 + 1)))
            case 2:
                body = encode_records([b"k"] * 3, [b"1", b"2", None])
                target = messages(name, key=None)
                sent.append(request(target, body, content_type=RECORDS_CONTENT_TYPE))
                expected.append((200, (name, 3)))
            case 3:
                sent.append(request(messages(name), b"{" + b"x" * number))
                expected.append((400, "/v1/problems/invalid-record"))
            case 4:
                sent.append(request(f"/v1/nowhere/{number}", b"1"))
                expected.append((404, "/v1/problems/not-found"))
            case 5:
                sent.append(chunked(messages(name), b"[", b"%d" % number, b"]"))
                expected.append((200, (name, 1)))
            case _:
                sent.append(request(messages(name), b"1", content_type="text/csv"))
                expected.append((415, "/v1/problems/unsupported-media-type"))
    return b"".join(sent), expected


def told_apart(answer: Answer) -> tuple[int, object]:
    """An answer as `mixed_requests` expects it."""
    said = document(answer)
    if answer.status != 200:
        return answer.status, said["type"]
    elements = said if isinstance(said, list) else [said]
    return 200, (elements[0]["topic"], sum(element["count"] for element in elements))


def test_100_mixed_requests_in_one_send_are_answered_in_order(
    connection: Connection, topic: str
) -> None:
    sent, expected = mixed_requests(topic, 100)
    connection.send(sent)
    assert [told_apart(connection.receive()) for _ in expected] == expected


def test_pipelined_requests_that_pass_the_receive_buffer_are_all_answered(
    connection: Connection, topic: str
) -> None:
    """The buffer's end cuts a request anywhere, in its head too."""
    sent, expected = mixed_requests(topic, 3_000)
    assert len(sent) > RECEIVE_BUFFER_BYTES
    answers: list[tuple[int, object]] = []
    rest = memoryview(sent)
    while len(answers) < len(expected):
        writable = select.select([], [connection.socket], [], 0)[1]
        if rest and writable:
            rest = rest[connection.socket.send(rest) :]
        else:
            answers.append(told_apart(connection.receive()))
    assert answers == expected


def test_a_request_cut_at_any_byte_is_one_request(
    shared_broker: RunningBroker, connection: Connection, door: int, topic: str
) -> None:
    whole = request(messages(topic), b"1\n2\n", content_type=NDJSON_CONTENT_TYPE)
    for position in range(1, len(whole)):
        connection.send(whole[:position])
        flush(shared_broker.port + door)
        answer = connection.exchange(whole[position:])
        assert (answer.status, document(answer)["offset"]) == (200, 2 * position - 2)


def test_a_chunked_request_cut_at_any_byte_is_one_request(
    shared_broker: RunningBroker, connection: Connection, door: int, topic: str
) -> None:
    whole = chunked(messages(topic), b"1", b"\n2", b"\n3", content_type=NDJSON_CONTENT_TYPE)
    for position in range(1, len(whole)):
        connection.send(whole[:position])
        flush(shared_broker.port + door)
        answer = connection.exchange(whole[position:])
        assert (answer.status, document(answer)["offset"]) == (200, 3 * position - 3)


def test_a_large_head_may_come_in_pieces(
    shared_broker: RunningBroker, connection: Connection, door: int, topic: str
) -> None:
    headers = {f"x-{number}": "v" * 1000 for number in range(14)}
    whole = request(messages(topic), b"1", **headers)
    for position in range(100, len(whole), 2_999):
        connection.send(whole[:position])
        flush(shared_broker.port + door)
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


@pytest.mark.parametrize("size_bytes", SIZES)
def test_lines_come_back_exactly_as_they_were_sent(
    shared_broker: RunningBroker, connection: Connection, door: int, topic: str, size_bytes: int
) -> None:
    """However the body is cut: behind its head, within it, and around the buffers' edges."""
    body = json_lines(size_bytes, random.Random(size_bytes))
    whole = request(messages(topic), body, content_type=NDJSON_CONTENT_TYPE)
    head_bytes = len(whole) - size_bytes
    following = request(messages(topic), b'"following"')
    cuts = {head_bytes, head_bytes + size_bytes // 2, RECEIVE_BUFFER_BYTES, len(whole) - 1}
    cuts |= {len(whole) - DIRECT_BODY_BYTES_MIN + difference for difference in (-1, 0, 1)}
    positions = [0, *sorted(cut for cut in cuts if head_bytes <= cut < len(whole))]
    for position in positions:
        connection.send(whole[:position])
        if position:
            flush(shared_broker.port + door)
        connection.send(whole[position:] + following)
        assert connection.receive().status == 200
        assert connection.receive().status == 200

    assert values_of(shared_broker, topic) == [*body.split(b"\n"), b'"following"'] * len(positions)


def test_a_body_may_come_in_chunks(
    connection: Connection, shared_broker: RunningBroker, topic: str
) -> None:
    body = json_lines(300 * KIBIBYTE, random.Random(1))
    pieces = [body[start : start + 70_001] for start in range(0, len(body), 70_001)]
    sent = chunked(messages(topic), *pieces, content_type=NDJSON_CONTENT_TYPE)
    connection.send(sent + chunked(messages(topic), b'"last"'))
    assert [connection.receive().status for _ in range(2)] == [200, 200]
    assert values_of(shared_broker, topic) == [*body.split(b"\n"), b'"last"']


def test_a_peer_that_asks_before_it_sends_its_body_is_told_to_go_on(
    connection: Connection, topic: str
) -> None:
    """As curl does from 1 MiB on; it waits a second in vain else."""
    whole = request(messages(topic), b"1", expect="100-continue")
    assert connection.exchange(whole[:-1]).status == 100
    assert connection.exchange(whole[-1:]).status == 200


# --- limits ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One that takes small bodies only."""
    root = tmp_path_factory.mktemp("small")
    with start_broker(root, max_request_bytes=MAX_REQUEST_BYTES) as running:
        yield running


@pytest.mark.parametrize("frame", [request, chunked], ids=["length", "chunked"])
def test_a_body_over_the_limit_is_refused_and_the_next_request_served(
    small_broker: RunningBroker, door: int, topic: str, frame: type
) -> None:
    with Connection(small_broker.port + door) as connection:
        for body_bytes, status in [
            (MAX_REQUEST_BYTES, 200),
            (MAX_REQUEST_BYTES + 1, 413),
            (2, 200),
            (20 * MAX_REQUEST_BYTES, 413),
            (2, 200),
        ]:
            body = b'"%s"' % (b"x" * (body_bytes - 2))
            assert connection.exchange(frame(messages(topic), body)).status == status
    assert len(values_of(small_broker, topic)) == 3


def test_a_body_over_the_limit_is_refused_before_it_is_sent(
    small_broker: RunningBroker, topic: str
) -> None:
    """Else a client sends gigabytes in vain. The fast door reads on: see the test above."""
    with Connection(small_broker.port) as connection:
        head = request(messages(topic), content_length=10**15)
        assert connection.exchange(head).status == 413


def test_a_head_over_16_kib_is_refused_and_the_connection_closed(
    connection: Connection, topic: str
) -> None:
    answer = connection.exchange(request(messages(topic), b"1", x="v" * (HEADER_BYTES_MAX - 500)))
    assert answer.status == 200
    answer = connection.exchange(request(messages(topic), b"1", x="v" * (HEADER_BYTES_MAX + 1)))
    assert (answer.status, document(answer)["type"]) == (431, "/v1/problems/header-too-large")
    assert connection.is_closed()


def test_a_head_that_does_not_end_is_refused(
    shared_broker: RunningBroker, connection: Connection, door: int, topic: str
) -> None:
    connection.send(request(messages(topic))[:-2] + b"x: ")
    for _ in range(5):
        flush(shared_broker.port + door)
        connection.send(b"v" * 4 * KIBIBYTE)
    assert connection.receive().status == 431
    assert connection.is_closed()


def test_produce_memory_is_bounded_and_comes_back(tmp_path: Path, door: int, topic: str) -> None:
    limits = {"produce_memory_bytes": MEBIBYTE, "max_request_bytes": MEBIBYTE}
    large = request(messages(topic), b'"%s"' % (b"x" * (MEBIBYTE - 2)))
    with (
        start_broker(tmp_path, **limits) as broker,
        Connection(broker.port + door) as first,
        Connection(broker.port + door) as second,
    ):
        first.send(large[:-1])
        wait_for_metric(broker, "tailrace_produce_memory_bytes", MEBIBYTE)

        refused = second.exchange(request(messages(topic), b"1"))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert second.exchange(chunked(messages(topic), b"1")).status == 429

        assert first.exchange(large[-1:]).status == 200
        wait_for_metric(broker, "tailrace_produce_memory_bytes", 0)
        assert second.exchange(request(messages(topic), b"1")).status == 200


# --- peers that misbehave -------------------------------------------------------------------------


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "another protocol": b"POST / SPDY/3\r\n\r\n",
    "a length that is no number": request("/v1/topic/t/messages", content_length="x"),
    "two lengths": request("/v1/topic/t/messages", b"1", Content_Length="2"),
    "length and chunks": request("/v1/topic/t/messages", b"1", transfer_encoding="chunked"),
    "a chunk without size": chunked("/v1/topic/t/messages", b"1").replace(b"1\r\n1", b"zz\r\n1"),
    "a name with a space": request("/v1/topic/t/messages", **{"a b": "c"}),
    "bytes in the target": request("/v1/topic/t/messages?partitionKey=K").replace(b"=K", b"=\xff"),
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_http_is_refused_and_the_connection_closed(
    shared_broker: RunningBroker, connection: Connection, door: int, topic: str, sent: bytes
) -> None:
    assert connection.exchange(request(messages(topic), b"1")).status == 200
    refused = connection.exchange(sent)
    assert (refused.status, document(refused)["type"]) == (400, "/v1/problems/invalid-request")
    assert connection.is_closed()

    with Connection(shared_broker.port + door) as other:
        assert other.exchange(request(messages(topic), b"2")).status == 200


@pytest.mark.parametrize("frame", [request, chunked], ids=["length", "chunked"])
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_a_peer_that_goes_in_the_middle_of_a_request_harms_nobody(
    shared_broker: RunningBroker, door: int, topic: str, frame: type, is_reset: bool
) -> None:
    whole = frame(messages(topic), b'"%s"' % (b"x" * 100_000))
    for position in [10, 60, 150, 1_000, 70_000, len(whole) - 1, len(whole)]:
        with Connection(shared_broker.port + door) as connection:
            connection.send(whole[:position])
            flush(shared_broker.port + door)
            if is_reset:
                connection.socket.setsockopt(*RESET_ON_CLOSE)
    wait_for_metric(shared_broker, "tailrace_produce_memory_bytes", 0)
    with Connection(shared_broker.port + door) as connection:
        assert connection.exchange(request(messages(topic), b"2")).status == 200


def test_a_body_that_breaks_off_in_a_bad_chunk_is_refused(
    shared_broker: RunningBroker, topic: str
) -> None:
    """At the public door aiohttp waits until the peer goes."""
    with Connection(shared_broker.port + 1) as connection:
        connection.send(chunked(messages(topic), b"1").removesuffix(b"0\r\n\r\n"))
        flush(shared_broker.port + 1)
        assert connection.exchange(b"zz\r\n").status == 400
        assert connection.is_closed()


def test_nothing_is_taken_from_behind_a_request_that_closes(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Connection(shared_broker.port + 1) as connection:
        closing = request(messages(topic), b"1", connection="close")
        connection.send(closing + request(messages(topic), b"2"))
        assert connection.receive().status == 200
        assert connection.is_closed()
    assert values_of(shared_broker, topic) == [b"1"]


def test_good_requests_before_a_malformed_one_are_answered_first(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Connection(shared_broker.port + 1) as connection:
        connection.send(request(messages(topic), b"1") * 3 + b"hello\r\n\r\n")
        assert [connection.receive().status for _ in range(4)] == [200, 200, 200, 400]
        assert connection.is_closed()


def test_a_peer_that_does_not_read_its_answers_is_not_read_from(
    shared_broker: RunningBroker, door: int, topic: str
) -> None:
    """Else its answers would fill the broker's memory. Later it gets all of them."""
    wrong = request(f"/nowhere/{topic}", x="v" * 500)
    sent = 0
    with Connection(shared_broker.port + door, receive_buffer_bytes=4 * KIBIBYTE) as connection:
        while select.select([], [connection.socket], [], STALLED_S)[1]:
            sent += connection.socket.send((wrong * 200)[sent % len(wrong) :])
            assert sent < UNREAD_BYTES_MAX, "the broker takes requests without end"
        for _ in range(sent // len(wrong)):
            assert connection.receive().status == 404


def test_a_refused_body_is_not_asked_for(shared_broker: RunningBroker) -> None:
    with Connection(shared_broker.port + 1) as fast:
        asking = request(messages("any"), content_length=99_999_999_999, expect="100-continue")

        assert fast.exchange(asking).status == 413
        with pytest.raises(ConnectionResetError):
            fast.receive()


def test_a_refused_body_without_end_is_not_waited_for(connection: Connection) -> None:
    assert (
        connection.exchange(request(messages("any"), content_length=99_999_999_999)).status == 413
    )


def test_a_trailer_is_not_taken_for_a_header(connection: Connection, topic: str) -> None:
    whole = chunked(messages(topic), b"1\n2", content_type="application/json")
    trailer = b"content-type: application/x-ndjson\r\n\r\n"
    answer = connection.exchange(whole.removesuffix(b"\r\n") + trailer)

    assert document(answer)["type"] == "/v1/problems/invalid-record"


def test_trailers_without_end_are_refused(shared_broker: RunningBroker, topic: str) -> None:
    with Connection(shared_broker.port + 1) as fast:
        fast.send(chunked(messages(topic), b"1").removesuffix(b"\r\n"))
        with contextlib.suppress(OSError):
            fast.send(*[b"x: " + b"y" * 4096 + b"\r\n"] * 64)

        assert fast.receive().status == 431


@pytest.mark.parametrize("size_bytes", [1, DIRECT_BODY_BYTES_MIN + 1, 2 * RECEIVE_BUFFER_BYTES])
def test_an_offer_of_another_protocol_is_not_taken_up(
    shared_broker: RunningBroker, topic: str, size_bytes: int
) -> None:
    value = b'"%s"' % (b"x" * size_bytes)
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "HTTP2_Settings": "AAMAAAB"}
    with Connection(shared_broker.port + 1) as fast:
        fast.send(request(messages(topic), value, **offer) + request(messages(topic), b"2"))

        assert [fast.receive().status for _ in range(2)] == [200, 200]
    assert values_of(shared_broker, topic) == [value, b"2"]


@pytest.mark.parametrize("sent", [b"", b"x", b"x" * 100_000], ids=["head", "some", "more"])
def test_a_request_that_does_not_arrive_holds_its_memory_only_for_a_time(
    tmp_path: Path, door: int, sent: bytes
) -> None:
    settings = {
        "request_seconds": 0.2,
        "max_request_bytes": MEBIBYTE,
        "produce_memory_bytes": MEBIBYTE,
    }
    with start_broker(tmp_path, **settings) as broker, Connection(broker.port + door) as stalled:
        stalled.send(request(messages("t"), content_length=MEBIBYTE) + sent)

        assert stalled.receive().status == 408
        with pytest.raises(ConnectionResetError):
            stalled.receive()
        with Connection(broker.port + door) as other:
            assert other.exchange(request(messages("t"), b"1")).status == 200


def test_a_parameter_given_twice_is_refused(connection: Connection, topic: str) -> None:
    answer = connection.exchange(request(f"{messages(topic)}&partitionKey=other", b"1"))

    assert document(answer)["detail"] == "partitionKey is given twice"


@pytest.mark.parametrize(
    "refused",
    [
        request("/nope", b"1"),
        request("/v1/topic/t/messages", b"1", method="GET"),
        request("/v1/topic/t/messages?timestamp=x", b"1"),
        request("/v1/topic/t/messages", content_length=99_999_999_999),
        request("x:1", method="CONNECT"),
    ],
    ids=["path", "method", "parameter", "size", "connect"],
)
def test_what_is_refused_by_its_head_is_refused_once_whatever_it_offers(
    shared_broker: RunningBroker, refused: bytes
) -> None:
    offers = b"expect: 100-continue\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n"
    with Connection(shared_broker.port + 1) as fast:
        head, _, body = refused.partition(b"\r\n\r\n")

        assert fast.exchange(head + b"\r\n" + offers + body).status in {400, 404, 405, 413}
        with pytest.raises(ConnectionResetError):
            fast.receive()
    flush(shared_broker.port)
