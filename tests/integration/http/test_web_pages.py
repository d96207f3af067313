"""Pages that a real browser has open, and what they can do to a broker on the same machine."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.groups.consumers import register
from tests.support.http.browser import (
    REBOUND_HOST,
    Browser,
    needs_browser,
    serve_page,
    start_browser,
)
from tests.support.http.http11 import METRICS, PRODUCE, READ, Connection, document, get

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.timeout(180)]

# What a page gets of each request: its status; "opaque" of an answer that it may not read; or
# "failed" when the browser has not sent it, or gives no answer.
FETCHES = """
Promise.all(REQUESTS.map(async ({type, body, ...request}) => {
    if (body !== undefined) request.body = new Blob([body], {type: type ?? ''});
    try {
        const answer = await fetch(request.url, request);
        return answer.type === 'opaque' ? 'opaque' : answer.status;
    } catch { return 'failed'; }
}))
"""
JSON_HEADERS = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with start_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def page_port() -> Iterator[int]:
    with serve_page() as port:
        yield port


def fetches(*requests: dict[str, Any]) -> str:
    return FETCHES.replace("REQUESTS", json.dumps(requests))


def post(url: str, body: str | None = None, **options: Any) -> dict[str, Any]:
    given = {"url": url, "method": "POST", **options}
    return given if body is None else {**given, "body": body}


def writes(host: str, port: int) -> list[dict[str, Any]]:
    """What changes something at a broker, as a page sends it that asks for no permission."""
    event, options = '{"pwn":1}', {"mode": "no-cors"}
    public, produce, read = (
        f"http://{host}:{port + listener}/v1" for listener in (0, PRODUCE, READ)
    )
    return [
        post(f"{public}/topic/t/messages", event, **options),
        post(f"{public}/topic/t/messages", event, type="text/plain", **options),
        post(f"{produce}/topic/t/messages", event, **options),
        post(f"{public}/topics", '{"name":"pwn"}', **options),
        post(f"{public}/consumer/goodbye?consumerId=c", **options),
        post(f"{read}/consumer/goodbye?consumerId=c", **options),
        post(f"{read}/consumer/register?consumerId=d&topic=t", **options),
    ]


def kept(broker: RunningBroker) -> tuple[list[str], int, list[str]]:
    """Topics, the events of topic `t`, and the consumers of group `g`."""
    with Client(broker.url) as client, Connection(broker.port) as connection:
        topics = [topic.name for topic in client.topics()]
        stored = sum(row.high_watermark or 0 for row in client.offsets(["t"]))
        group = document(connection.exchange(get("/v1/groups/g")))
        return topics, stored, [consumer["consumerId"] for consumer in group["consumers"]]


def fill(broker: RunningBroker) -> None:
    """A topic with an event, and a group with a consumer."""
    with Client(broker.url) as client, Connection(broker.port) as connection:
        client.produce("t", b"1")
        register(connection, "c", "t", group="g")


def test_a_page_of_another_port_changes_nothing(
    broker: RunningBroker, browser: Browser, page_port: int
) -> None:
    fill(broker)
    before = kept(broker)
    for page_host, broker_host in product(("127.0.0.1", "localhost"), repeat=2):
        simple = writes(broker_host, broker.port)
        asking = [{**each, "mode": "cors", "headers": JSON_HEADERS} for each in simple]
        page = f"http://{page_host}:{page_port}"

        assert set(browser.run(page, fetches(*simple, *asking))) == {"opaque", "failed"}
        assert kept(broker) == before


def test_a_page_of_a_rebound_name_reads_and_changes_nothing(
    broker: RunningBroker, browser: Browser
) -> None:
    """For the browser it is of the broker's own origin."""
    fill(broker)
    before = kept(broker)
    for port in (broker.port, broker.port + READ, broker.port + METRICS):
        page = f"http://{REBOUND_HOST}:{port}"
        own = [
            {**write, "mode": "cors", "type": "application/json"}
            for write in writes(REBOUND_HOST, broker.port)
            if write["url"].startswith(page)
        ]
        reads = [{"url": f"{page}{path}"} for path in ("/status", "/v1/topics", "/metrics")]

        assert set(browser.run(page, fetches(*own, *reads))) == {403}
        assert kept(broker) == before


def test_a_page_of_the_broker_itself_is_not_refused(
    broker: RunningBroker, browser: Browser
) -> None:
    fill(broker)
    for host in ("127.0.0.1", "localhost"):
        page = f"http://{host}:{broker.port}/docs"
        sent = [
            post("/v1/topic/t/messages", "2", headers=JSON_HEADERS),
            post("/v1/consumer/poll?consumerId=c"),
            {"url": "/v1/openapi.json"},
        ]

        produced, polled, described = browser.run(page, fetches(*sent))
        assert (produced, described) == (200, 200)
        assert polled in (200, 204)  # at the same time as the produce: it may find nothing
    _, stored, consumers = kept(broker)
    assert (stored, consumers) == (3, ["c"])


def test_a_page_of_an_allowed_origin_is_not_refused(
    tmp_path: Path, browser: Browser, page_port: int
) -> None:
    """It may read the answers, too."""
    page = f"http://localhost:{page_port}"
    with start_broker(tmp_path, allowed_origins=f"https://console.example, {page}") as broker:
        fill(broker)
        sent = [
            post(f"{broker.url}/v1/topic/t/messages", "2", headers=JSON_HEADERS),
            post(f"{broker.url}/v1/topic/none/messages", "2", headers={"content-type": "a/b"}),
            post(f"{broker.url}/v1/consumer/poll?consumerId=c"),
            {"url": f"{broker.url}/v1/topics"},
            {"url": f"{broker.url}/v1/groups/g", "method": "DELETE"},
        ]
        assert browser.run(page, fetches(*sent)) == [200, 415, 200, 200, 409]

        another = f"http://127.0.0.1:{page_port}"
        assert browser.run(another, fetches(*sent)) == ["failed"] * 5
        _, stored, consumers = kept(broker)
        assert (stored, consumers) == (2, ["c"])
