"""What a request says of its body, its type and coding; where keys travel; how answers end."""

import gzip
import json

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.sync import Client
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
)
from tailrace_broker.net.api.routes import ROUTES
from tailrace_broker.net.http.router import Listeners, Route
from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import (
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    chunked,
    document,
    get,
    messages,
    new_topic,
    problem,
    produce_listeners,
    records,
    request,
)

pytestmark = pytest.mark.integration

PORTS = {Listeners.PUBLIC: PUBLIC, Listeners.PRODUCE: PRODUCE, Listeners.READ: READ}
# All requests that take a body, with their ports.
WITH_BODY = [
    (route, PORTS[listener])
    for route in ROUTES
    for listener in PORTS
    if route.bodies and route.listeners & listener
]
UNTYPED = [(route, port) for route, port in WITH_BODY if port != PRODUCE]


def named(known: tuple[Route, int]) -> str:
    return f"{known[0].method} {known[0].path} {known[1]}"


def target_of(route: Route) -> str:
    return route.path.format(topic="stored", group="g", range=0, broker=0)


def check_nothing_is_stored(broker: RunningBroker) -> None:
    with Client(broker.url) as client:
        assert "stored" not in [topic.name for topic in client.topics()]


@pytest.mark.parametrize("known", UNTYPED, ids=named)
@pytest.mark.parametrize("frame", [request, chunked], ids=["length", "chunked"])
def test_a_body_without_a_content_type_is_refused(
    shared_broker: RunningBroker, known: tuple[Route, int], frame: type
) -> None:
    """A web page can send such a body without permission; nobody knows what it is."""
    route, port = known
    with Connection(shared_broker.port + port) as connection:
        sent = frame(target_of(route), b'{"name":"stored"}', method=route.method, content_type=None)
        answer = connection.exchange(sent)

    assert problem(answer) == (415, "unsupported-media-type")
    for form in route.bodies:
        assert form.content_type in document(answer)["detail"]
    check_nothing_is_stored(shared_broker)


@pytest.mark.parametrize("content_type", ["", ";charset=utf-8"])
def test_an_empty_content_type_is_none(shared_broker: RunningBroker, content_type: str) -> None:
    with Connection(shared_broker.port) as connection:
        sent = request(messages("stored"), b"1", content_type=content_type)
        assert problem(connection.exchange(sent)) == (415, "unsupported-media-type")
    check_nothing_is_stored(shared_broker)


def test_at_the_producers_port_a_body_without_a_content_type_is_json(
    shared_broker: RunningBroker, topic: str
) -> None:
    """As PolarStreams has it."""
    with Connection(shared_broker.port + PRODUCE) as connection:
        stored = connection.exchange(request(messages(topic), b"1", content_type=None))
        refused = connection.exchange(request(messages(topic), b"{", content_type=None))

    assert document(stored)["count"] == 1
    assert problem(refused) == (400, "invalid-record")


@pytest.mark.parametrize("known", WITH_BODY, ids=named)
@pytest.mark.parametrize("coding", ["gzip", "ZSTD", "br", "gzip, identity", "deflate"])
def test_a_coded_body_is_refused(
    shared_broker: RunningBroker, known: tuple[Route, int], coding: str
) -> None:
    route, port = known
    with Connection(shared_broker.port + port) as connection:
        for form in route.bodies:
            answer = connection.exchange(
                request(
                    target_of(route),
                    gzip.compress(b'{"name":"stored"}'),
                    method=route.method,
                    content_type=form.content_type,
                    content_encoding=coding,
                )
            )

            assert problem(answer) == (415, "unsupported-media-type")
            assert document(answer)["contentEncoding"] == coding
            assert "send the body uncompressed" in document(answer)["detail"]
            assert answer.headers["accept-encoding"] == "identity"
    check_nothing_is_stored(shared_broker)


@produce_listeners
@pytest.mark.parametrize(
    "content_type",
    [JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE, BATCH_CONTENT_TYPE],
)
def test_a_coded_body_is_refused_though_values_may_be_any_bytes(
    shared_broker: RunningBroker, listener: int, topic: str, content_type: str
) -> None:
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic(topic, jsonCheck=False)).status == 201
    body = gzip.compress(json.dumps({"a": 1}).encode())
    with Connection(shared_broker.port + listener) as connection:
        sent = request(messages(topic), body, content_type=content_type, content_encoding="gzip")
        assert problem(connection.exchange(sent)) == (415, "unsupported-media-type")
    with Client(shared_broker.url) as client:
        assert [row.high_watermark for row in client.offsets([topic])] == [0]


@produce_listeners
@pytest.mark.parametrize("coding", ["identity", "Identity", " "])
def test_a_body_that_is_not_coded_may_say_so(
    shared_broker: RunningBroker, listener: int, topic: str, coding: str
) -> None:
    with Connection(shared_broker.port + listener) as connection:
        sent = request(messages(topic), b"1", content_encoding=coding)
        assert connection.exchange(sent).status == 200


def test_two_codings_are_both_seen(shared_broker: RunningBroker) -> None:
    sent = request(messages("stored"), b"1", content_encoding="identity")
    with Connection(shared_broker.port) as connection:
        answer = connection.exchange(
            sent.replace(b"identity\r\n", b"identity\r\ncontent-encoding: gzip\r\n")
        )

    assert document(answer)["contentEncoding"] == "identity, gzip"
    check_nothing_is_stored(shared_broker)


@pytest.mark.parametrize("form", ["success", "problem"])
def test_an_answer_of_one_json_object_ends_with_a_line_feed(
    shared_broker: RunningBroker, topic: str, form: str
) -> None:
    """A shell's next prompt begins a line of its own."""
    key = "?partitionKey=k"
    sent = {
        "success": [
            new_topic(topic),
            request(messages(topic), b"1"),
            request(messages(topic) + key, b"1\n2", content_type=NDJSON_CONTENT_TYPE),
            request(f"/v1/topics/{topic}", b"{}", method="PATCH"),
            request(f"/v1/consumer/register?consumerId=c&group={topic}&topic={topic}"),
            request("/v1/consumer/goodbye?consumerId=c"),
            *map(get, ("/status", "/live", "/ready", "/v1/topics", f"/v1/topics/{topic}")),
            *map(get, ("/v1/offsets", "/v1/trash", "/v1/brokers", "/v1/ring", "/v1/groups")),
            *map(get, (f"/v1/groups/{topic}", "/v1/problems/not-found", "/v1/openapi.json")),
        ],
        "problem": [
            request(messages(topic), b"{"),
            request(messages(topic), b"1", content_type="text/csv"),
            request(f"/v1/topics/{topic}", b"[]", method="PATCH"),
            get("/v1/nowhere"),
            get("/v1/topics/none"),
            get("/status", host="evil.example"),
            get("/status", host=None),
        ],
    }
    with Connection(shared_broker.port) as connection:
        for each in sent[form]:
            answer = connection.exchange(each)

            assert (answer.status < 300) == (form == "success"), answer
            assert answer.body.startswith(b"{")
            assert answer.body.endswith(b"}\n")


def test_the_head_of_an_answer_counts_its_line_feed(shared_broker: RunningBroker) -> None:
    with Connection(shared_broker.port) as connection:
        whole = connection.exchange(get("/live"))
        connection.send(request("/live", method="HEAD", content_length=None))
        head = connection.receive(is_head_only=True)

    assert whole.body == b'{"live":true}\n'
    assert head.headers["content-length"] == str(len(whole.body))


@produce_listeners
def test_a_key_that_is_too_long_for_the_url_is_stored_from_the_body(
    shared_broker: RunningBroker, listener: int, topic: str
) -> None:
    """As the problem of the first attempt says."""
    key = "k" * 64 * 1024
    with Connection(shared_broker.port + listener) as connection:
        refused = connection.exchange(request(messages(topic, partitionKey=key), b"1"))
    assert problem(refused) == (431, "header-too-large")
    assert (
        "a longer key goes in the body, as application/vnd.tailrace.records+json or "
        "application/vnd.tailrace.records+binary" in document(refused)["detail"]
    )
    assert RECORDS_CONTENT_TYPE in document(refused)["detail"]

    body = encode_records([key.encode()], [b"1"])
    with Connection(shared_broker.port + listener) as connection:
        sent = request(messages(topic), body, content_type=RECORDS_CONTENT_TYPE)
        (stored,) = document(connection.exchange(sent))
    with Connection(shared_broker.port) as connection:
        read = connection.exchange(get(records(topic, stored["partition"])))
    assert document(read)["key"] == key


def test_a_head_that_is_too_large_without_a_key_says_so(shared_broker: RunningBroker) -> None:
    with Connection(shared_broker.port) as connection:
        sent = request(messages("t", partitionKey="k"), b"1", x="v" * 64 * 1024)
        refused = connection.exchange(sent)

    assert problem(refused) == (431, "header-too-large")
    assert "send fewer or shorter headers" in document(refused)["detail"]
