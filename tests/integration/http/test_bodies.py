"""Request bodies at every listener: chunks, Expect, Upgrade, and bodies that are refused."""

import pytest

from tailrace.wire import JSON_CONTENT_TYPE
from tailrace_broker.net.http.connection import (
    DIRECT_BODY_BYTES_MIN,
    DISCARD_BYTES_MAX,
    RECEIVE_BUFFER_BYTES,
)
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.stored import values_of
from tests.support.http.http11 import (
    Connection,
    chunked,
    every_listener,
    get,
    messages,
    old,
    problem,
    produce_listeners,
    request,
    settle,
)

pytestmark = pytest.mark.integration

UPGRADE = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "HTTP2_Settings": "AAMAAAB"}


@produce_listeners
def test_chunks_may_have_extensions_and_trailers(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    head = request(
        messages(topic, partitionKey="k"), transfer_encoding="chunked", content_length=None
    )
    bodies = [
        b'1;a\r\n[\r\n00000f;a=b;c="d e"\r\n"0123456789abc"\r\n1\r\n]\r\n0\r\n\r\n',
        b"3\r\n[1]\r\n0;last\r\n\r\n",
        b"3\r\n[2]\r\n0\r\nchecksum: abc\r\nempty:\r\n\r\n",
        b"3\r\n[3]\r\n000\r\nhost: other\r\nexpect: nothing\r\n\r\n",
    ]
    connection.send(b"".join(head + body for body in bodies))

    assert [connection.receive().status for _ in bodies] == [200] * 4
    assert values_of(shared_broker, topic) == [b'["0123456789abc"]', b"[1]", b"[2]", b"[3]"]


@produce_listeners
def test_a_trailer_is_not_taken_for_a_header(connection: Connection, topic: str) -> None:
    whole = chunked(messages(topic), b"1\n2", content_type=JSON_CONTENT_TYPE)
    trailer = b"content-type: application/x-ndjson\r\n\r\n"
    answer = connection.exchange(whole.removesuffix(b"\r\n") + trailer)

    assert problem(answer) == (400, "invalid-record")


@every_listener
def test_a_body_that_nobody_asked_for_is_read_and_dropped(
    connection: Connection, plain: bytes
) -> None:
    for size_bytes in (1, DIRECT_BODY_BYTES_MIN, 2 * RECEIVE_BUFFER_BYTES):
        head = plain.replace(b"\r\n\r\n", b"\r\ncontent-length: %d\r\n\r\n" % size_bytes)
        connection.send(head + b"G" * size_bytes + plain)

        assert [connection.receive().status for _ in range(2)] == [200, 200]


# --- Expect ---------------------------------------------------------------------------------------


@produce_listeners
@pytest.mark.parametrize("size_bytes", [1, DIRECT_BODY_BYTES_MIN + 1, 3 * RECEIVE_BUFFER_BYTES])
@pytest.mark.parametrize("frame", [request, chunked], ids=["length", "chunked"])
def test_a_peer_that_asks_before_it_sends_its_body_is_asked_to_go_on(
    connection: Connection, topic: str, size_bytes: int, frame: type
) -> None:
    """As curl does from 1 MiB on; it waits a second in vain else."""
    whole = frame(messages(topic), b'"%s"' % (b"x" * size_bytes), expect="100-Continue")
    head, _, body = whole.partition(b"\r\n\r\n")

    assert connection.exchange(head + b"\r\n\r\n").status == 100
    assert connection.exchange(body).status == 200
    assert connection.exchange(request(messages(topic), b"1")).status == 200


@produce_listeners
@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (request("/v1/nowhere", content_length=2), 404),
        (request("/v1/topic/t/messages", content_length=2, method="PUT"), 405),
        (request("/v1/topic/t/messages?partition=x", content_length=2), 400),
        (request("/v1/topic/t/messages", content_length=99_999_999_999), 413),
        (request("/v1/topic/t/messages", content_length=2, content_type="text/csv"), 415),
        (
            request(
                "/v1/topic/t/messages", content_length=None, transfer_encoding="chunked"
            ).replace(b"/messages", b"/no"),
            404,
        ),
    ],
    ids=["path", "method", "parameter", "size", "type", "chunked"],
)
@pytest.mark.parametrize("upgrade", [b"", b"connection: Upgrade\r\nupgrade: h2c\r\n"])
def test_a_peer_that_asks_with_a_request_that_is_refused_is_reported_so_at_once(
    connection: Connection, refused: bytes, status: int, upgrade: bytes
) -> None:
    """Its body may come or not, so that the connection is of no more use."""
    asking = refused.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n" + upgrade + b"\r\n")
    answer = connection.exchange(asking)

    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert connection.is_closed()


@every_listener
def test_another_expectation_fails(connection: Connection, plain: bytes) -> None:
    answer = connection.exchange(plain.replace(b"\r\n\r\n", b"\r\nexpect: a miracle\r\n\r\n"))

    assert problem(answer) == (417, "expectation-failed")
    assert connection.exchange(plain).status == 200


@every_listener
def test_without_a_body_there_is_nothing_to_go_on_with(
    connection: Connection, plain: bytes
) -> None:
    asking = plain.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")

    assert connection.exchange(asking).status == 200
    assert connection.exchange(asking.replace(b"GET /", b"GET /nowhere/", 1)).status == 404
    assert connection.exchange(plain).status == 200


@produce_listeners
def test_an_http_1_0_peer_is_not_asked_to_go_on(connection: Connection, topic: str) -> None:
    """It would take it for the answer (RFC 9110, 10.1.1)."""
    asking = request(messages(topic), b"1", expect="100-continue")

    assert connection.exchange(old(asking)).status == 200


# --- Upgrade --------------------------------------------------------------------------------------


@every_listener
def test_an_offer_of_another_protocol_is_not_taken_up(connection: Connection, plain: bytes) -> None:
    offer = plain.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    connection.send(offer + plain + offer * 2)

    assert [connection.receive().status for _ in range(4)] == [200] * 4


@every_listener
def test_any_number_of_offers_may_come_at_once(connection: Connection) -> None:
    """They fill the receive buffer, and the parser stops at each."""
    offer = b"GET / HTTP/1.1\r\nhost:[::1]\r\nupgrade:x\r\nconnection:upgrade\r\n\r\n"
    count = 2 * RECEIVE_BUFFER_BYTES // len(offer)
    connection.send(offer * count)
    statuses = {connection.receive().status for _ in range(count)}

    assert statuses <= {302, 404}
    assert len(statuses) == 1


@produce_listeners
@pytest.mark.parametrize("size_bytes", [1, DIRECT_BODY_BYTES_MIN + 1, 2 * RECEIVE_BUFFER_BYTES])
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_an_offer_may_have_a_body(
    shared_broker: RunningBroker,
    connection: Connection,
    topic: str,
    size_bytes: int,
    is_cut: bool,
) -> None:
    value = b'"%s"' % (b"x" * size_bytes)
    sent = request(messages(topic, partitionKey="k"), value, **UPGRADE)
    following = request(messages(topic, partitionKey="k"), b"2")
    if is_cut:
        connection.send(sent[:-2])
        settle(shared_broker.port)
        sent = sent[-2:]
    connection.send(sent + following)

    assert [connection.receive().status for _ in range(2)] == [200, 200]
    assert values_of(shared_broker, topic) == [value, b"2"]


@produce_listeners
def test_an_offer_with_a_chunked_body_is_refused(connection: Connection, topic: str) -> None:
    """The parser leaves such a body unread, and where it ends is not known then."""
    answer = connection.exchange(chunked(messages(topic), b"1", **UPGRADE))

    assert problem(answer) == (400, "invalid-request")
    assert connection.is_closed()


@every_listener
def test_no_tunnel_is_made(connection: Connection) -> None:
    connection.send(b"CONNECT x:1 HTTP/1.1\r\nhost: localhost\r\n\r\n" + get("/nowhere"))

    assert [connection.receive().status for _ in range(2)] == [404, 404]


# --- refused while the body is on its way ---------------------------------------------------------


@every_listener
@pytest.mark.parametrize("frame", [request, chunked], ids=["length", "chunked"])
def test_a_refused_body_is_read_so_that_the_refusal_arrives(
    connection: Connection, plain: bytes, frame: type
) -> None:
    connection.send(frame("/v1/nowhere", bytes(8_000_000)) + plain)

    assert [connection.receive().status for _ in range(2)] == [404, 200]


@every_listener
def test_a_refused_body_that_is_too_large_to_be_read_is_not_waited_for(
    connection: Connection,
) -> None:
    head = request("/v1/nowhere", content_length=DISCARD_BYTES_MAX + 100_000)
    connection.send(head + bytes(50_000))

    assert connection.receive().headers["connection"] == "close"
    connection.send(bytes(50_000))
    assert connection.is_closed()


@every_listener
def test_an_unreadable_request_is_answered_though_more_is_on_its_way(
    connection: Connection,
) -> None:
    connection.send(b"hello\r\n\r\n" + bytes(2_000_000))

    assert problem(connection.receive()) == (400, "invalid-request")
    assert connection.is_closed()
