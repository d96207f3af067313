"""What web pages of others, and names of others, are refused: every route at every port."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.protocol.requests import Answer
from tailrace_broker.net.api.routes import ROUTES
from tailrace_broker.net.http.router import Listeners
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.groups.consumers import register
from tests.support.http.http11 import (
    METRICS,
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    document,
    every_listener,
    get,
    messages,
    problem,
    request,
)

pytestmark = pytest.mark.integration

PORTS = {
    Listeners.PUBLIC: PUBLIC,
    Listeners.PRODUCE: PRODUCE,
    Listeners.READ: READ,
    Listeners.METRICS: METRICS,
}
IN_PATH = {
    "topic": "t",
    "partition": "0",
    "group": "g",
    "range": "0",
    "broker": "0",
    "type": "not-found",
}
NEEDED_QUERY = {"/v1/ring/plan": "?brokers=2"}
# Method, path and port of all requests that the broker knows.
REQUESTS = [
    (
        route.method,
        re.sub(r"\{(\w+)\}", lambda found: IN_PATH[found[1]], route.path)
        + NEEDED_QUERY.get(route.path, ""),
        PORTS[listener],
    )
    for route in ROUTES
    for listener in Listeners
    if route.listeners & listener
] + [("GET", "/metrics", METRICS)]
CHANGES = [each for each in REQUESTS if each[0] != "GET"]
READS = [each for each in REQUESTS if each[0] == "GET"]
ALLOWED_ORIGIN, ALLOWED_HOST = "https://console.example", "events.example"
CORS = ("access-control-allow-origin", "access-control-expose-headers", "vary")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A topic with an event, a group with a consumer; a page and a host are allowed."""
    settings = {
        "allowed_origins": f"http://localhost:3000, {ALLOWED_ORIGIN}",
        "allowed_hosts": ALLOWED_HOST,
    }
    with start_broker(tmp_path_factory.mktemp("filled"), **settings) as running:
        with Connection(running.port) as connection:
            assert connection.exchange(produced("t")).status == 200
            register(connection, "c", "t", group="g")
        yield running


def produced(topic: str, **headers: str) -> bytes:
    return request(messages(topic), b"1", content_type="application/json", **headers)


def state(broker: RunningBroker) -> list[object]:
    """Topics, offsets, trash, groups and ring, but for what time changes."""
    paths = ("/v1/topics", "/v1/offsets", "/v1/trash", "/v1/groups", "/v1/groups/g", "/v1/ring")
    with Connection(broker.port) as connection:
        documents = [document(connection.exchange(get(path))) for path in paths]
    for consumer in documents[4]["consumers"]:
        del consumer["idleMs"]
    return documents


def ask(broker: RunningBroker, method: str, path: str, listener: int, **headers: object) -> Answer:
    """A whole request that is not refused for its body."""
    body = b"" if method == "GET" else b'{"name":"new"}'
    given = {"content_type": "application/json", **headers}
    with Connection(broker.port + listener) as connection:
        return connection.exchange(request(path, body, method=method, **given))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://127.0.0.1", "sec_fetch_site": "same-site"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)
def test_a_page_of_another_origin_changes_nothing_by_any_route(
    filled: RunningBroker, headers: dict[str, str]
) -> None:
    before = state(filled)
    for method, path, listener in CHANGES:
        answer = ask(filled, method, path, listener, **headers)

        assert problem(answer) == (403, "foreign-origin"), (method, path, listener)
        assert not document(answer)["writeAttempted"]
        assert not any(name in answer.headers for name in CORS)
    assert state(filled) == before


def test_a_page_of_another_origin_gets_answers_that_it_may_not_read(filled: RunningBroker) -> None:
    """The browser keeps them from it; in tabs, links and images they go on working."""
    for method, path, listener in READS:
        answer = ask(filled, method, path, listener, origin="http://evil.example")

        assert answer.status in {200, 302}, path
        assert not any(name in answer.headers for name in CORS)


def test_a_page_of_an_allowed_origin_may_send_and_read(filled: RunningBroker) -> None:
    page = {"origin": ALLOWED_ORIGIN, "sec_fetch_site": "cross-site"}
    with Connection(filled.port) as connection:
        answers = [
            connection.exchange(produced("allowed", **page)),
            connection.exchange(get("/v1/topics", **page)),
            connection.exchange(get("/v1/topics/none", **page)),
            connection.exchange(get("/v1/topic/t/records?last=1", **page)),
        ]

    assert [each.status for each in answers] == [200, 200, 404, 200]
    for answer in answers:
        assert [answer.headers[name] for name in CORS] == [ALLOWED_ORIGIN, "*", "origin"]


@every_listener
def test_a_browser_is_reported_before_a_request_whether_its_page_may_send_it(
    filled: RunningBroker, listener: int
) -> None:
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "x"}
    preflight: dict[str, Any] = {"method": "OPTIONS", "content_length": None, **asked}
    target = messages("t")
    with Connection(filled.port + listener) as connection:
        allowed = connection.exchange(request(target, origin=ALLOWED_ORIGIN, **preflight))
        refused = connection.exchange(request(target, origin="http://evil.example", **preflight))

    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, ALLOWED_ORIGIN)
    methods = allowed.headers["access-control-allow-methods"].split(", ")
    assert {route.method for route in ROUTES} <= {*methods}
    assert allowed.headers["access-control-allow-headers"] == "authorization, *"
    assert refused.status in {404, 405}
    assert not any(name.startswith("access-control") for name in refused.headers)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9250", "192.0.2.1"])
def test_a_name_that_others_have_pointed_to_loopback_is_refused_by_every_route(
    filled: RunningBroker, host: str
) -> None:
    before = state(filled)
    for method, path, listener in REQUESTS:
        origin = f"http://{host}"
        answer = ask(
            filled, method, path, listener, host=host, origin=origin, sec_fetch_site="same-origin"
        )

        assert problem(answer) == (403, "foreign-host"), (method, path, listener)
    assert state(filled) == before


@every_listener
def test_the_host_in_a_target_counts_in_place_of_the_header(
    filled: RunningBroker, listener: int
) -> None:
    """A proxy, or a page by it, may name one host there and another in `Host` (RFC 9112, 3.2.2)."""
    plain = "/metrics" if listener == METRICS else "/status"
    with Connection(filled.port + listener) as connection:
        foreign = connection.exchange(get(f"http://evil.example{plain}"))
        own = connection.exchange(get(f"http://{ALLOWED_HOST}{plain}", host="evil.example"))

    assert (problem(foreign), own.status) == ((403, "foreign-host"), 200)


@pytest.mark.parametrize("host", ["localhost", "a.localhost:1", "[::1]:9250", ALLOWED_HOST])
def test_a_name_of_loopback_or_of_the_settings_is_served_by_every_route(
    filled: RunningBroker, host: str
) -> None:
    for method, path, listener in READS:
        assert ask(filled, method, path, listener, host=host).status in {200, 302}


@every_listener
def test_a_connection_goes_on_behind_a_refused_request(
    filled: RunningBroker, listener: int
) -> None:
    plain = "/metrics" if listener == METRICS else "/status"
    with Connection(filled.port + listener) as connection:
        refused = request(plain, b"x" * 100_000, origin="null")
        connection.send(refused + get(plain, host="evil.example") + get(plain))

        assert [connection.receive().status for _ in range(3)] == [403, 403, 200]
