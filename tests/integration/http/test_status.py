"""What a broker says of itself and its API: health, brokers, metrics, problems, documentation."""

import json
import re
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib.metadata import version
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tailrace.local.broker import HOST
from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import Answer
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    HEADER_BYTES,
    JOURNAL_BLOCK_BYTES,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
)
from tailrace_broker.net.api.openapi import openapi
from tailrace_broker.net.api.routes import ROUTES
from tailrace_broker.net.http.problems import PROBLEMS
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.groups.consumers import FORMS, ask, poll
from tests.support.http.http11 import (
    METRICS,
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    records,
    request,
    through,
)

pytestmark = pytest.mark.integration


# --- health ---------------------------------------------------------------------------------------


def test_a_running_broker_is_live_and_ready(public: Connection) -> None:
    assert document(public.exchange(get("/live"))) == {"live": True}
    assert document(public.exchange(get("/ready"))) == {"ready": True}


@through(PUBLIC, PRODUCE, READ)
def test_the_listeners_of_clients_report_whether_the_broker_serves(connection: Connection) -> None:
    answer = connection.exchange(get("/status"))

    assert (answer.status, document(answer)) == (200, {"status": "ready"})


def test_the_ring_has_one_broker(broker: RunningBroker) -> None:
    before = datetime.now(UTC)
    with Connection(broker.port) as public:
        assert public.exchange(new_topic("t", partitions=3)).status == 201
        said = document(public.exchange(get("/v1/brokers")))
        again = document(public.exchange(get("/v1/brokers")))
    now = datetime.fromtimestamp(said["now"] / 1e6, UTC)
    ring, (only,) = said["ring"], said["brokers"]

    assert before - timedelta(seconds=1) <= now <= datetime.now(UTC) + timedelta(seconds=1)
    assert said == {
        "length": 1,
        "names": [HOST],
        "ports": [broker.port],
        "producerPort": broker.port + PRODUCE,
        "producerBinaryPort": 0,
        "consumerPort": broker.port + READ,
        "now": said["now"],
        "ring": {
            "name": "local",
            "clusterId": str(UUID(ring["clusterId"])),
            "version": version("tailrace"),
            "ranges": 1,
            "underReplicated": 0,
            "copies": 1,
            "metadataLeader": 0,
            "metadataTerm": 1,
        },
        "brokers": [
            {
                "ordinal": 0,
                "token": "-9223372036854775808",
                "leads": 3,
                "replicates": 3,
                "damaged": 0,
                "quarantined": 0,
                "lagMax": 0,
                "dataBytes": only["dataBytes"],
                "diskUsedBytes": only["diskUsedBytes"],
                "diskBytes": only["diskBytes"],
                "directIo": only["directIo"],
                "durableWriteMs": only["durableWriteMs"],
                "incarnation": str(UUID(only["incarnation"])),
                "restart": "disk",
                "startedAt": only["startedAt"],
                "upSeconds": only["upSeconds"],
                "alive": True,
            }
        ],
    }
    assert 0 < only["dataBytes"] <= only["diskBytes"]
    assert 0 < only["diskUsedBytes"] <= only["diskBytes"]
    assert only["durableWriteMs"] > 0
    assert only["upSeconds"] >= 0
    assert datetime.fromisoformat(only["startedAt"]) <= now
    assert (again["ring"], again["now"] >= said["now"]) == (ring, True)


def test_the_ring_has_the_name_and_the_host_that_are_set(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    names = {"ring_name": "flights", "advertised_host": "tailrace-0.example"}
    with start_broker(tmp_path_factory.mktemp("named"), **names) as broker:
        with Connection(broker.port) as public:
            said = document(public.exchange(get("/v1/brokers")))
        broker.restart()
        with Connection(broker.port) as public:
            after = document(public.exchange(get("/v1/brokers")))

    assert (said["ring"]["name"], said["names"]) == ("flights", ["tailrace-0.example"])
    assert after["ring"]["clusterId"] == said["ring"]["clusterId"]
    assert after["brokers"][0]["incarnation"] == said["brokers"][0]["incarnation"]
    assert after["brokers"][0]["restart"] == "clean"
    assert after["brokers"][0]["startedAt"] > said["brokers"][0]["startedAt"]


# --- metrics --------------------------------------------------------------------------------------


def test_requests_are_counted_through_every_listener(broker: RunningBroker, topic: str) -> None:
    before = broker.metrics()
    bodies = 0
    for listener in (PUBLIC, PRODUCE):
        with Connection(broker.port + listener) as connection:
            lines = request(messages(topic), b"1\n2\n", content_type=NDJSON_CONTENT_TYPE)
            assert connection.exchange(lines).status == 200
            for refused, status in [
                (request(messages(topic), b"{"), 400),
                (request(messages(topic), b"1", content_type="x"), 415),
                (request("/v1/topic/a/messages?x=1", b"1"), 400),
            ]:
                assert connection.exchange(refused).status == status
    for listener in (PUBLIC, READ):
        with Connection(broker.port + listener) as connection:
            bodies += len(connection.exchange(get(records(topic))).body)
            for target in (records(topic, 99), records(topic, offset="x")):
                assert connection.exchange(get(target)).status in {400, 404}
    after = broker.metrics()
    moved = {name: after[name] - before[name] for name in before if name.startswith("tailrace_")}

    assert {
        "tailrace_produce_requests_total": 8,
        "tailrace_produce_errors_total": 6,
        "tailrace_produced_events_total": 4,
        "tailrace_produced_bytes_total": 2 * (4 + 1 + 1 + 1),
        "tailrace_read_requests_total": 6,
        "tailrace_read_errors_total": 4,
        "tailrace_read_bytes_total": bodies,
        "tailrace_produce_seconds_count": 4,
        "tailrace_fetch_seconds_count": 2,
        "tailrace_log_appended_batches_total": 2,
        "tailrace_journal_writes_total": 2,
        "tailrace_log_writes_total": 0,
        "tailrace_topics": 1,
        "tailrace_partitions": 4,
        "tailrace_produce_memory_bytes": 0,
    }.items() <= moved.items()
    with Connection(broker.port + METRICS) as connection:
        text = connection.exchange(get("/metrics")).body.decode()
    assert dict(
        re.findall(rf'^tailrace_topic_(\w+)_total{{topic="{topic}"}} (\S+)$', text, re.M)
    ) == {
        "produced_events": "4.0",
        "produced_bytes": "8.0",
        "read_records": "4.0",
    }
    appended_bytes = moved["tailrace_log_appended_bytes_total"]
    assert moved["tailrace_cache_bytes"] >= appended_bytes > 2 * HEADER_BYTES
    assert moved["tailrace_journal_written_bytes_total"] == 2 * JOURNAL_BLOCK_BYTES


@through(METRICS)
def test_metrics_are_in_the_text_format_of_prometheus(connection: Connection) -> None:
    answer = connection.exchange(get("/metrics"))

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


# --- the API as a document ------------------------------------------------------------------------


@pytest.mark.parametrize("known", PROBLEMS.values(), ids=lambda known: known.slug)
def test_a_problem_type_reports_what_it_means(public: Connection, known: Any) -> None:
    answer = public.exchange(get(f"/v1/problems/{known.slug}"))
    said = document(answer)

    assert answer.status == 200
    assert said == {
        "type": f"/v1/problems/{known.slug}",
        "title": re.sub(r"\{\w+\}", "…", known.title),
        "status": known.status,
        "when": known.when,
    }


def test_a_problem_type_that_there_is_not_is_not_found(public: Connection) -> None:
    for slug in ("nothing", "", "not-found/", "%00"):
        assert problem(public.exchange(get(f"/v1/problems/{slug}"))) == (404, "not-found")


def test_the_description_is_that_of_the_routes(public: Connection) -> None:
    """What is in it: tests/unit/broker/net/api/test_openapi.py."""
    answer = public.exchange(get("/v1/openapi.json"))

    assert answer.headers["content-type"] == JSON_CONTENT_TYPE
    assert document(answer) == json.loads(msgspec.json.encode(openapi(ROUTES)))


def test_the_root_leads_to_the_page(public: Connection) -> None:
    answer = public.exchange(get("/"))

    assert (answer.status, answer.headers["location"], answer.body) == (302, "/docs", b"")
    page = public.exchange(get(answer.headers["location"]))
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_page_asks_for_nothing_but_the_description(public: Connection) -> None:
    page = public.exchange(get("/docs"))
    html = page.body.decode()

    assert html.startswith("<!doctype html>")
    assert "/v1/openapi.json" in html
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", html)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "connect-src 'self'" in policy


# A request that each answer form of each route is provoked by, in this order.
PROVOKED: list[tuple[str, str, int, bytes]] = [
    ("POST", "/v1/topics", 201, new_topic("t", partitions=4)),
    ("POST", "/v1/topics", 200, new_topic("t", partitions=4)),
    ("GET", "/v1/topics", 200, get("/v1/topics")),
    ("GET", "/v1/topics/{topic}", 200, get("/v1/topics/t")),
    (
        "PATCH",
        "/v1/topics/{topic}",
        200,
        request("/v1/topics/t", b'{"jsonCheck":false}', method="PATCH"),
    ),
    ("POST", "/v1/topic/{topic}/messages", 200, request(messages("t", partitionKey="k"), b"1")),
    (
        "POST",
        "/v1/topic/{topic}/messages",
        200,
        request(
            messages("t"),
            encode_records([b"a", b"b", b"c"], [b"1", None, b"\xff"]),
            content_type=RECORDS_CONTENT_TYPE,
        ),
    ),
    *(
        (
            "GET",
            "/v1/topic/{topic}/partitions/{partition}/records",
            200,
            get(records("t", partition), accept=accept),
        )
        for partition in range(4)
        for accept in (NDJSON_CONTENT_TYPE, JSON_CONTENT_TYPE, BATCH_CONTENT_TYPE)
    ),
    *(
        ("GET", "/v1/topic/{topic}/records", 200, get("/v1/topic/t/records?last=9", accept=accept))
        for accept in (NDJSON_CONTENT_TYPE, JSON_CONTENT_TYPE)
    ),
    ("GET", "/v1/offsets", 200, get("/v1/offsets")),
    ("GET", "/v1/offsets", 200, get("/v1/offsets?topic=t&timestamp=1970-01-01T00:00Z")),
    ("GET", "/v1/brokers", 200, get("/v1/brokers")),
    ("GET", "/v1/ring", 200, get("/v1/ring")),
    ("GET", "/v1/ring", 200, get("/v1/ring?consistent=true")),
    ("GET", "/v1/ring/plan", 200, get("/v1/ring/plan?brokers=2")),
    ("GET", "/v1/ring/history", 200, get("/v1/ring/history")),
    ("POST", "/v1/ring/found", 200, request("/v1/ring/found", b'{"brokers":1}')),
    ("GET", "/status", 200, get("/status")),
    ("GET", "/ready", 200, get("/ready")),
    ("GET", "/live", 200, get("/live")),
    ("GET", "/v1/problems/{type}", 200, get("/v1/problems/not-ready")),
    ("GET", "/v1/openapi.json", 200, get("/v1/openapi.json")),
    ("GET", "/docs", 200, get("/docs")),
    ("GET", "/", 302, get("/")),
    *(
        (
            method,
            "/v1/consumer/register",
            200,
            request("/v1/consumer/register?consumerId=c&topic=t", method=method),
        )
        for method in ("POST", "PUT")
    ),
    (
        "POST",
        "/v1/consumer/register",
        200,
        ask("register", "d", topic="t", group="g", onNewGroup="startFromEarliest"),
    ),
    ("POST", "/v1/consumer/poll", 204, poll("c")),
    *(("POST", "/v1/consumer/poll", 200, poll("d", delivery=0, accept=form)) for form in FORMS),
    ("POST", "/v1/consumer/commit", 204, ask("commit", "d")),
    ("GET", "/v1/groups", 200, get("/v1/groups")),
    ("GET", "/v1/groups/{group}", 200, get("/v1/groups/g")),
    ("POST", "/v1/consumer/goodbye", 200, ask("goodbye", "d")),
    (
        "POST",
        "/v1/groups/{group}/reset",
        200,
        request("/v1/groups/g/reset", b'{"to":"earliest"}'),
    ),
    ("GET", "/v1/groups/{group}", 200, get("/v1/groups/g")),
    (
        "PUT",
        "/v1/groups/{group}/offsets",
        204,
        request("/v1/groups/s/offsets", b'{"source":"s","offsets":{}}', method="PUT"),
    ),
    ("DELETE", "/v1/groups/{group}", 204, request("/v1/groups/s", method="DELETE")),
    ("DELETE", "/v1/topics/{topic}", 204, request("/v1/topics/t", method="DELETE")),
    ("GET", "/v1/trash", 200, get("/v1/trash")),
    ("POST", "/v1/trash/{topic}/restore", 200, request("/v1/trash/t/restore?as=u")),
]
# Some partitions of a request fail alone (process/test_process.py), brokers are lost
# (ring/test_listeners.py), a partition has lost its end (storage/test_damage_at_a_start.py).
ELSEWHERE = {
    ("POST", "/v1/topic/{topic}/messages", 207),
    ("POST", "/v1/ring/ranges/{range}/accept-loss", 200),
    ("POST", "/v1/ring/metadata/recover", 200),
    ("POST", "/v1/ring/steps", 200),
    ("POST", "/v1/ring/brokers/{broker}/retire", 200),
    ("POST", "/v1/topics/{topic}/partitions/{partition}/accept-loss", 200),
}


def test_every_answer_is_one_that_its_route_declares(broker: RunningBroker) -> None:
    """With no member that the description does not know."""
    routes = {(route.method, route.path): route for route in ROUTES}
    with Connection(broker.port) as public:
        answers = [(each[:3], public.exchange(each[3])) for each in PROVOKED]
    for (method, path, status), answer in answers:
        assert answer.status == status, (method, path, answer)
        (form,) = (f for f in routes[method, path].answers if f.status == status)
        if not form.content:
            assert answer.body == b""
            continue
        content_type = answer.headers["content-type"].partition(";")[0]
        check_declared(answer, content_type, form.content[content_type])

    declared = {
        (route.method, route.path, form.status) for route in ROUTES for form in route.answers
    }
    assert declared == {key for key, _ in answers} | ELSEWHERE


def check_declared(answer: Answer, content_type: str, schema: Any) -> None:
    """The body is what the schema says and has no other members."""
    if schema is None:
        return
    texts = answer.body.splitlines() if content_type == NDJSON_CONTENT_TYPE else [answer.body]
    for text in texts:
        known = msgspec.json.decode(text, type=schema)
        assert json.loads(msgspec.json.encode(known)) == json.loads(text)


def test_the_routes_are_in_order_by_path() -> None:
    """Methods of one path follow each other, as the page shows them."""
    paths = [route.path for route in ROUTES]
    beginnings = [path for before, path in pairwise(["", *paths]) if before != path]

    assert len(beginnings) == len(set(beginnings))
    assert {form.status for route in ROUTES for form in route.answers} <= {*HTTPStatus}
