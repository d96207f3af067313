"""Each problem of docs/protocol.md, once, the same at every listener that can have it.

The documents are in tests/golden/problems.json; `--rewrite` writes it again.
"""

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import Answer
from tailrace.sync import Client
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_JSON_CONTENT_TYPE,
)
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.app.runtime import open_listeners
from tailrace_broker.app.settings import Settings
from tailrace_broker.net.http.problems import PROBLEMS
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.io_threads import IoThreads
from tests.support.broker.fixtures import (
    READY_S_MAX,
    RunningBroker,
    free_port_base,
    start_broker,
)
from tests.support.broker.metrics import wait_for_metric
from tests.support.broker.stored import produce_large, split
from tests.support.groups.consumers import ask, poll, register
from tests.support.http.http11 import (
    METRICS,
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    chunked,
    document,
    get,
    messages,
    new_topic,
    request,
    settle,
)
from tests.support.http.http11 import records as records_target
from tests.support.http.slow_readers import trickling_readers
from tests.support.ring.local_ring import SECRET, LocalRing, founded_ring
from tests.support.storage.batches import Event, batch_of

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[2] / "golden" / "problems.json"
PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"
PROBLEM_CONTENT_TYPE = "application/problem+json"
MEBIBYTE = 1024 * 1024
ADMITTED_S_MAX = 30.0
# From here on an append goes to its segment at once, not to the journal.
LARGE_APPEND_BYTES = 64 * 1024
BODY_BYTES_MAX = 2048
# What a partition remembers: appends of a producer, and producers.
WINDOW_ROWS = 1_000
WINDOW_PRODUCERS = 10_000
PIPELINED = 100
# Parts of details that differ from run to run.
VARYING = {
    re.compile(r"port \d+ lists"): "port PORT lists",
    re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"): "TOPIC-ID",
    re.compile(r"clock \(\d+\)"): "clock (NOW)",
    re.compile(r"http://127\.0\.0\.1:\d+"): "URL",
}

PRODUCES = (PUBLIC, PRODUCE)
READS = (PUBLIC, READ)
EVERYWHERE = (PUBLIC, PRODUCE, READ, METRICS)
# What every problem has (RFC 9457, and Tailrace's two); the others are its own members.
COMMON_MEMBERS = {"type", "title", "status", "detail", "retriable", "writeAttempted"}
TABLE_START, TABLE_END = "<!-- problems: start -->\n", "<!-- problems: end -->\n"
Golden = Callable[[str, Answer], None]


@pytest.fixture
def golden(pytestconfig: pytest.Config, tmp_path: Path) -> Golden:
    """Compare an answer with the problem of this name, or write it there."""

    def compare(name: str, answer: Answer) -> None:
        said = stable(document(answer), tmp_path)
        documents = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        if pytestconfig.getoption("rewrite"):
            documents[name] = said
            text = json.dumps(documents, indent=1, sort_keys=True, ensure_ascii=False)
            GOLDEN.write_text(text + "\n")
        assert said == documents[name]
        is_worth_a_retry = answer.status in {429, 503} and said["retriable"]
        assert answer.status == said["status"]
        assert answer.headers["content-type"] == PROBLEM_CONTENT_TYPE
        assert answer.headers.get("retry-after") == ("1" if is_worth_a_retry else None)

    return compare


def stable(said: dict[str, Any], root: Path) -> dict[str, Any]:
    """The document with placeholders for what differs from run to run."""
    text = said["detail"].replace(str(root), "ROOT")
    for pattern, placeholder in VARYING.items():
        text = pattern.sub(placeholder, text)
    return {**said, "detail": text, **({"leaderUrl": "URL"} if "leaderUrl" in said else {})}


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Takes small bodies, creates no topic automatically; has topic `t` of two partitions."""
    settings: dict[str, str | float] = {
        "max_request_bytes": BODY_BYTES_MAX,
        "auto_create_topics": False,
        "ring_secret": SECRET,
    }
    with start_broker(tmp_path_factory.mktemp("small"), **settings) as running:
        with Client(running.url) as client:
            client.create_topic("t", partitions_per_range=2)
        yield running


def lines(body: bytes) -> bytes:
    return request("/v1/topic/t/messages", body, content_type=NDJSON_CONTENT_TYPE)


def records(body: bytes, query: str = "") -> bytes:
    return request(f"/v1/topic/t/messages{query}", body, content_type=RECORDS_CONTENT_TYPE)


def by_hand(path: str, body: bytes, *, secret: str | None = SECRET) -> bytes:
    """A request that changes the ring."""
    authorization = None if secret is None else f"Bearer {secret}"
    return request(f"/v1/ring/{path}", body, authorization=authorization)


def batch(body: bytes, query: str = "?partition=0") -> bytes:
    return request(f"/v1/topic/t/messages{query}", body, content_type=BATCH_CONTENT_TYPE)


def numbered(producer: str | None, sequence: int | None, body: bytes = b"1") -> bytes:
    return request(
        messages("t", partitionKey="k"),
        body,
        content_type=NDJSON_CONTENT_TYPE,
        tailrace_producer_id=producer,
        tailrace_sequence=sequence,
    )


BATCH = batch_of([Event(b"1")])
RECORDS = encode_records([b"k"], [b"1"])
FAR_AHEAD_US = 9_000_000_000_000_000

TOPICS = (PUBLIC,)

# name -> (listeners, request)
REFUSED: dict[str, tuple[tuple[int, ...], bytes]] = {
    "invalid-request": (EVERYWHERE, b"\0\r\n\r\n"),
    "invalid-request without host": (EVERYWHERE, get("/status", host=None)),
    "invalid-request of two codings": (
        EVERYWHERE,
        request("/status", transfer_encoding="gzip, chunked", content_length=None),
    ),
    "invalid-request of another version": (EVERYWHERE, get("/").replace(b"1.1", b"2.0", 1)),
    "invalid-request with a fragment": (EVERYWHERE, get("/status#a")),
    "invalid-request of chunks with an offer": (
        EVERYWHERE,
        chunked("/status", b"1", connection="upgrade", upgrade="h2c"),
    ),
    "invalid-topic-name": (PRODUCES, request(messages("__t"), b"1")),
    "invalid-topic-name of a new topic": (TOPICS, request("/v1/topics", b'{"name":"a b"}')),
    "invalid-topic-name of a read": (READS, get(records_target("a%20b"))),
    "invalid-record": (PRODUCES, request(messages("t"), b'{"a":}')),
    "invalid-record in a line": (PRODUCES, lines(b'{"a":1}\n{"a":}\n')),
    "invalid-record of no UTF-8": (PRODUCES, lines(b'1\n2\n"\xff"\n')),
    "invalid-body without bytes": (PRODUCES, request(messages("t"))),
    "invalid-body without lines": (PRODUCES, lines(b"\n\r\n")),
    "invalid-body of records": (PRODUCES, records(RECORDS[:-1])),
    "invalid-body without records": (PRODUCES, records(b"\0" * 32)),
    "invalid-body of a batch": (PRODUCES, batch(BATCH + b"\0")),
    "invalid-body of a new topic": (TOPICS, request("/v1/topics", b"{")),
    "invalid-body of no object": (TOPICS, request("/v1/topics", b"[]")),
    "invalid-body of a line without its key": (
        PRODUCES,
        request(messages("t", key=".k"), b'{"k":1}\n{}', content_type=NDJSON_CONTENT_TYPE),
    ),
    "invalid-body of a record": (
        PRODUCES,
        request(
            messages("t"),
            b'{"records":[{"value":1},{"key":2}]}',
            content_type=RECORDS_JSON_CONTENT_TYPE,
        ),
    ),
    "invalid-body of no text": (TOPICS, request("/v1/topics", b'{"name":"\xff"}')),
    "invalid-parameter": (PRODUCES, request(messages("t", keys="k"), b"1")),
    "invalid-parameter given twice": (
        PRODUCES,
        request(messages("t") + "?partitionKey=a&partitionKey=a", b"1"),
    ),
    "invalid-parameter timestamp": (PRODUCES, request(messages("t", timestamp=-1), b"1")),
    "invalid-parameter timestamp ahead": (
        PRODUCES,
        request(messages("t", timestamp=FAR_AHEAD_US), b"1"),
    ),
    "invalid-parameter key of records": (PRODUCES, records(RECORDS, "?partitionKey=k")),
    "invalid-parameter timestamp of records": (PRODUCES, records(RECORDS, "?timestamp=1")),
    "invalid-parameter partition of an event": (
        PRODUCES,
        request(messages("t", partition=0), b"1"),
    ),
    "invalid-parameter no partition of a batch": (PRODUCES, batch(BATCH, "")),
    "invalid-parameter no sequence": (PRODUCES, numbered("till-7", None)),
    "invalid-parameter no producer": (PRODUCES, numbered(None, 0)),
    "invalid-parameter sequence": (PRODUCES, numbered("till-7", -1)),
    "invalid-parameter producer": (PRODUCES, numbered("till 7", 0)),
    "invalid-parameter unknown field": (
        TOPICS,
        request("/v1/topics", b'{"name":"n","owner":"me"}'),
    ),
    "invalid-parameter setting out of bounds": (
        TOPICS,
        request("/v1/topics", b'{"name":"n","retentionMs":-1}'),
    ),
    "invalid-parameter setting of other words": (
        TOPICS,
        request("/v1/topics/t", b'{"durability":"none"}', method="PATCH"),
    ),
    "invalid-parameter missing field": (TOPICS, request("/v1/topics", b"{}")),
    "invalid-parameter field of another type": (
        TOPICS,
        request("/v1/topics", b'{"name":"n","partitionsPerRange":"4"}'),
    ),
    "invalid-parameter too many partitions": (
        TOPICS,
        request("/v1/topics", b'{"name":"n","partitionsPerRange":257}'),
    ),
    "invalid-parameter unknown change": (
        TOPICS,
        request("/v1/topics/t", b'{"owner":"me"}', method="PATCH"),
    ),
    "invalid-parameter of a read": (READS, get(records_target("t", last=1))),
    "invalid-parameter offset": (READS, get(records_target("t", offset="newest"))),
    "invalid-parameter offset and timestamp": (
        READS,
        get(records_target("t", offset=0, timestamp=0)),
    ),
    "invalid-parameter maxRecords": (READS, get(records_target("t", maxRecords=100_001))),
    "invalid-parameter maxBytes": (READS, get(records_target("t", maxBytes=0))),
    "invalid-parameter waitMs": (READS, get(records_target("t", waitMs=60_001))),
    "invalid-parameter isolation": (READS, get(records_target("t", isolation="none"))),
    "invalid-parameter last": (READS, get("/v1/topic/t/records?last=0")),
    "invalid-parameter partition": (READS, get("/v1/topic/t/partitions/x/records")),
    "invalid-parameter consumerId": (READS, request("/v1/consumer/register?topic=t")),
    "topic-not-found": (PRODUCES, request(messages("none"), b"1")),
    "consumer-not-registered": (READS, poll("c")),
    "group-not-found": (TOPICS, get("/v1/groups/nobody")),
    "topic-not-found of a read": (READS, get(records_target("none"))),
    "topic-not-found of offsets": (READS, get("/v1/offsets?topic=t&topic=none")),
    "topic-not-found to delete": (TOPICS, request("/v1/topics/none", method="DELETE")),
    "not-in-trash": (TOPICS, request("/v1/trash/none/restore")),
    "partition-not-found": (READS, get(records_target("t", 2))),
    "partition-not-found of a batch": (PRODUCES, batch(BATCH, "?partition=2")),
    "not-found": (PRODUCES, request("/v1/nowhere?a=1", b"1")),
    "not-found of a read": (EVERYWHERE, get("/v1/nowhere")),
    "not-found problem type": (TOPICS, get("/v1/problems/nothing")),
    "method-not-allowed": (PRODUCES, get(messages("t", partitionKey="k"))),
    "method-not-allowed of topics": (TOPICS, request("/v1/topics", method="DELETE")),
    "not-acceptable": (READS, get(records_target("t"), accept="text/html")),
    "topic-exists": (TOPICS, new_topic("t", partitions=3)),
    "body-too-large": (PRODUCES, request(messages("t"), b"1" * (BODY_BYTES_MAX + 1))),
    "body-too-large of a line": (
        PRODUCES,
        request(
            messages("t"),
            b"1\n" + b"2" * (BODY_BYTES_MAX + 1),
            content_type=NDJSON_CONTENT_TYPE,
        ),
    ),
    "body-too-large of chunks": (PRODUCES, chunked(messages("t"), *[b"1" * 1000] * 3)),
    "unsupported-media-type": (
        PRODUCES,
        request(messages("t"), b"a=1", content_type="application/x-www-form-urlencoded"),
    ),
    "unsupported-media-type of no UTF-8": (
        PRODUCES,
        request(messages("t"), b"1", content_type="t/x").replace(b"t/x", b"t/\xff"),
    ),
    "unsupported-media-type of a topic": (
        TOPICS,
        request("/v1/topics", b"{}", content_type="text/plain"),
    ),
    "unsupported-media-type without one": (
        TOPICS,
        request(messages("t"), b"1", content_type=None),
    ),
    "unsupported-media-type of a coding": (
        PRODUCES,
        request(messages("t"), b"1", content_encoding="gzip"),
    ),
    "secret-required": (TOPICS, by_hand("found", b'{"brokers":1}', secret=None)),
    "secret-required of another": (TOPICS, by_hand("found", b'{"brokers":1}', secret="guessed")),
    "foreign-host": (EVERYWHERE, get("/status", host="evil.example:9250")),
    "foreign-origin": (EVERYWHERE, request("/status", b"1", origin="http://evil.example")),
    "foreign-origin without a name": (EVERYWHERE, request("/", sec_fetch_site="cross-site")),
    "ring-exists": (TOPICS, by_hand("found", b'{"brokers":3}')),
    "ring-refused": (TOPICS, by_hand("ranges/9/accept-loss", b'{"broker":0}')),
    "ring-refused of no broker": (TOPICS, by_hand("ranges/0/accept-loss", b'{"broker":7}')),
    "ring-refused of what is led": (TOPICS, by_hand("ranges/0/accept-loss", b'{"broker":0}')),
    "ring-refused of what is well": (TOPICS, by_hand("metadata/recover", b'{"acceptLoss":true}')),
    "ring-refused of another size": (
        TOPICS,
        by_hand("steps", b'{"kind":"grow","brokersBefore":7}'),
    ),
    "step-not-taken": (TOPICS, by_hand("steps", b'{"kind":"grow","brokersBefore":1}')),
    "invalid-parameter no loss": (TOPICS, by_hand("metadata/recover", b'{"acceptLoss":false}')),
    "invalid-parameter no brokers": (TOPICS, by_hand("found", b'{"brokers":0}')),
    "invalid-parameter consistent": (TOPICS, get("/v1/ring?consistent=yes")),
    "offset-out-of-range": (READS, get(records_target("t", offset=1))),
    "expectation-failed": ((PUBLIC, PRODUCE, READ), get("/status", expect="a miracle")),
    "header-too-large": (EVERYWHERE, get("/status", x="v" * 17_000)),
    "header-too-large of a key": (
        PRODUCES,
        request(messages("t", partitionKey="k" * 64 * 1024), b"1"),
    ),
}
# By a broker of their own, below.
PROVOKED = {
    "produce-memory-full",
    "read-memory-full",
    "request-timeout",
    "corrupt-partition",
    "nothing-lost",
    "not-ready",
    "not-leader",
    "no-leader",
    "too-many-forwarded",
    "outcome-unknown",
    "not-enough-replicas",
    "not-agreed",
    "too-many-groups",
    "too-many-consumers",
    "broker-unreachable",
    "consumer-exists",
    "stale-assignment",
    "stale-delivery",
    "group-not-idle",
    "group-kind",
    "sequence-unknown",
    "sequence-reused",
    "too-many-producers",
    "disk-full",
    "read-failed",
    "storage-failed",
    "too-many-connections",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_gets_its_problem_at_every_listener(
    small_broker: RunningBroker, golden: Golden, name: str
) -> None:
    listeners, refused = REFUSED[name]
    for listener in listeners:
        with Connection(small_broker.port + listener) as connection:
            golden(name, connection.exchange(refused))
    with Client(small_broker.url) as client:
        assert [topic.name for topic in client.topics()] == ["t"]
        assert [row.high_watermark for row in client.offsets(["t"])] == [0, 0]


def test_a_ring_says_who_leads_and_what_is_away(tmp_path: Path, golden: Golden) -> None:
    with founded_ring(tmp_path, copies=1, forward_seconds=0.5) as ring:
        first = ring.brokers[0].port
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        event = request(messages("t", partitionKey="SFO"), b"1")
        with Connection(first) as connection:
            redirected = get(records_target("t", 1), tailrace_redirect=1)
            golden("not-leader of another", connection.exchange(redirected))
            target = messages("t", partitionKey="SFO")
            redirected = request(target, b"1", tailrace_redirect=1)
            golden("not-leader of another", connection.exchange(redirected))
        ring.kill(1)
        ring.wipe(1)
        ring.brokers[1].start()
        ring.until(lambda: ring.ring(0)["ranges"][1]["leader"] is None, ADMITTED_S_MAX)
        with Connection(first) as connection:
            golden("no-leader", connection.exchange(get(records_target("t", 1))))
            golden("no-leader", connection.exchange(event))
        ring.kill(1)
        ring.kill(2)
        with Connection(first) as connection:
            golden("not-agreed", connection.exchange(new_topic("u")))


def test_a_leader_that_is_lost_leaves_an_outcome_open(tmp_path: Path, golden: Golden) -> None:
    with founded_ring(tmp_path, copies=1, forwarded_max=1) as ring:
        first = ring.brokers[0].port
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        event = request(messages("t", partitionKey="SFO"), b"1")
        with Connection(first) as waiting, Connection(first) as other:
            assert waiting.exchange(event).status == 200
            ring.pause(1)
            waiting.send(event)
            settle(first)
            golden("too-many-forwarded", other.exchange(event))
            ring.kill(1)
            golden("outcome-unknown", waiting.receive())


def test_too_few_replicas_take_no_events(tmp_path: Path, golden: Golden) -> None:
    with founded_ring(tmp_path) as ring:
        leader = ring.brokers[0]
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        with Client(leader.url) as client:
            keys = (f"k{number}" for number in range(1_000))
            key = next(key for key in keys if client.produce("t", b"0", key=key).partition == 0)
        ring.kill(2)
        ring.until(lambda: in_sync(ring) == [0, 1], ADMITTED_S_MAX)
        ring.kill(1)
        event = request(messages("t", partitionKey=key), b"1")

        def is_refused() -> bool:
            with Connection(leader.port) as connection:
                return b"not-enough-replicas" in connection.exchange(event).body

        ring.until(is_refused, ADMITTED_S_MAX)
        with Connection(leader.port) as connection:
            golden("not-enough-replicas", connection.exchange(event))


def in_sync(ring: LocalRing) -> list[int]:
    return sorted(each["ordinal"] for each in ring.ring(0)["ranges"][0]["isr"])


def test_a_ring_is_not_founded_without_all_its_brokers(tmp_path: Path, golden: Golden) -> None:
    ring = LocalRing(tmp_path)
    try:
        ring.brokers[0].start()
        ring.until(lambda: ring.is_answered(0, "GET", "/live"), READY_S_MAX)
        found = request("/v1/ring/found", b'{"brokers":3}', authorization=f"Bearer {SECRET}")
        with Connection(ring.brokers[0].port) as connection:
            answer = connection.exchange(found)
            while document(answer)["detail"] == "the broker is starting, or stopping":
                answer = connection.exchange(found)
            golden("broker-unreachable", answer)
            golden("not-ready of a broker in no ring", connection.exchange(get("/ready")))
    finally:
        ring.end_all()


def test_every_problem_type_is_provoked_and_documented(pytestconfig: pytest.Config) -> None:
    """The table of docs/protocol.md is made from the broker's own and the documents of the other
    tests; after a `--rewrite` of those, `--rewrite` this.
    """
    golden = json.loads(GOLDEN.read_text())
    for name, said in golden.items():
        assert said["type"] == f"/v1/problems/{name.split()[0]}"

    provoked = {name.split()[0] for name in REFUSED} | PROVOKED
    assert provoked == {name.split()[0] for name in golden}
    assert provoked == {known.slug for known in PROBLEMS.values()}
    page = PROTOCOL.read_text()
    before, _, rest = page.partition(TABLE_START)
    _, _, after = rest.partition(TABLE_END)
    expected = before + TABLE_START + problem_table(golden) + TABLE_END + after
    if pytestconfig.getoption("rewrite"):
        PROTOCOL.write_text(expected)
    assert PROTOCOL.read_text() == expected


def problem_table(golden: dict[str, dict[str, Any]]) -> str:
    """A row a type; its own members are those of the documents that were provoked."""
    rows = ["| type | status | when | own members |", "|---|---|---|---|"]
    for known in PROBLEMS.values():
        said = [members for name, members in golden.items() if name.split()[0] == known.slug]
        own = sorted(set().union(*said) - COMMON_MEMBERS)
        rows.append(f"| {known.slug} | {known.status} | {known.when} | {', '.join(own)} |")
    return "\n".join([*rows, ""])


@pytest.mark.parametrize("listener", PRODUCES)
def test_sequence_unknown(broker: RunningBroker, golden: Golden, listener: int) -> None:
    with Connection(broker.port + listener) as connection:
        for sequence in range(WINDOW_ROWS + 1):
            connection.send(numbered("till-7", sequence))
        for _ in range(WINDOW_ROWS + 1):
            assert connection.receive().status == 200
        golden("sequence-unknown", connection.exchange(numbered("till-7", 0)))


@pytest.mark.parametrize("listener", PRODUCES)
def test_sequence_reused(broker: RunningBroker, golden: Golden, listener: int) -> None:
    with Connection(broker.port + listener) as connection:
        assert connection.exchange(numbered("till-7", 5, b"1\n2")).status == 200
        golden("sequence-reused", connection.exchange(numbered("till-7", 5)))


@pytest.mark.parametrize("listener", READS)
def test_problems_of_consumers_that_are_registered(
    broker: RunningBroker, golden: Golden, listener: int
) -> None:
    other = {"tailrace_delivery": 7}
    with Connection(broker.port) as public, Connection(broker.port + listener) as connection:
        old = register(connection, "c", "t", group="g")["assignmentEpoch"]
        for name, body in (
            ("group-not-idle", b'{"to":"earliest"}'),
            ("invalid-parameter offset above the end", b'{"offsets":{"t":{"0":1}},"dryRun":true}'),
        ):
            golden(name, public.exchange(request("/v1/groups/g/reset", body)))
        golden("consumer-exists", connection.exchange(ask("register", "c", topic="t", group="h")))
        of_spark = ask("register", "d", topic="t", group="spark:archive")
        golden("group-kind", connection.exchange(of_spark))
        golden("stale-delivery", connection.exchange(ask("commit", "c", headers=other)))
        assert connection.exchange(ask("goodbye", "c")).status == 200
        register(connection, "c", "t", group="g")
        golden("stale-assignment", connection.exchange(poll("c", epoch=old)))


def test_too_many_groups_and_consumers(tmp_path: Path, golden: Golden) -> None:
    with (
        start_broker(tmp_path, groups_max=1, group_consumers_max=1) as broker,
        Connection(broker.port) as connection,
    ):
        with Client(broker.url) as client:
            client.create_topic("t")
        register(connection, "c", "t", group="g")
        second = ask("register", "d", topic="t", group="g")
        golden("too-many-consumers", connection.exchange(second))
        golden("too-many-groups", connection.exchange(ask("register", "d", topic="t", group="h")))
        assert connection.exchange(ask("goodbye", "c")).status == 200
        assert connection.exchange(second).status == 200


@pytest.mark.parametrize("listener", PRODUCES)
@pytest.mark.timeout(120)
def test_too_many_producers(broker: RunningBroker, golden: Golden, listener: int) -> None:
    with Connection(broker.port + listener) as connection:
        for start in range(0, WINDOW_PRODUCERS, PIPELINED):
            names = range(start, start + PIPELINED)
            connection.send(b"".join(numbered(f"till-{name}", 0) for name in names))
            assert {connection.receive().status for _ in names} == {200}
        golden("too-many-producers", connection.exchange(numbered("till-new", 0)))
        assert connection.exchange(numbered("till-7", 1)).status == 200


@pytest.mark.parametrize("listener", PRODUCES)
def test_produce_memory_full(tmp_path: Path, golden: Golden, listener: int) -> None:
    settings = {"produce_memory_bytes": MEBIBYTE, "max_request_bytes": MEBIBYTE}
    with (
        start_broker(tmp_path, **settings) as broker,
        Connection(broker.port + listener) as first,
        Connection(broker.port + listener) as second,
    ):
        first.send(request(messages("t"), b"1" * MEBIBYTE)[:-1])
        wait_for_metric(broker, "tailrace_produce_memory_bytes", MEBIBYTE)
        golden("produce-memory-full", second.exchange(request(messages("t"), b"1" * 1_000)))


@pytest.mark.parametrize("listener", READS)
def test_read_memory_full(tmp_path: Path, golden: Golden, listener: int) -> None:
    """Others hold it all, who take their answers just fast enough."""
    settings = {"read_memory_bytes": 40 * MEBIBYTE, "answer_seconds": 1.0, "cache_bytes": 0}
    with start_broker(tmp_path, **settings) as broker, Connection(broker.port + listener) as reader:
        produce_large(broker, "large", value_bytes=4 * MEBIBYTE)
        asked = get(records_target("large", maxBytes=16 * MEBIBYTE), accept=BATCH_CONTENT_TYPE)
        with trickling_readers(broker, asked, count=2):
            wait_for_metric(broker, "tailrace_read_memory_bytes", 40 * MEBIBYTE)
            golden("read-memory-full", reader.exchange(asked))


def test_body_too_large_for_what_it_holds(shared_broker: RunningBroker, golden: Golden) -> None:
    """Though its bytes are within the limit."""
    many = request(messages("t"), b"1\n" * 500_001, content_type=NDJSON_CONTENT_TYPE)
    long_key = messages("t", partitionKey="k" * 1_000)
    keys = request(long_key, b"1\n" * 40_000, content_type=NDJSON_CONTENT_TYPE)
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic("t")).status in (200, 201)
    for listener in PRODUCES:
        with Connection(shared_broker.port + listener) as connection:
            golden("body-too-large of events", connection.exchange(many))
            golden("body-too-large of events with their key", connection.exchange(keys))


def test_disk_full(broker: RunningBroker, golden: Golden) -> None:
    """The kernel lets no file of the broker grow (RLIMIT_FSIZE); then it does again."""
    value = b'"%s"' % os.urandom(100_000).hex().encode()
    produce = request(messages("t", partitionKey="k"), value)
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    with Connection(broker.port) as public:
        assert public.exchange(new_topic("t")).status == 201
    for listener in PRODUCES:
        with Connection(broker.port + listener) as connection:
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (32 * 1024, hard))
            golden("disk-full", connection.exchange(produce))

            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
            assert document(connection.exchange(produce))["offset"] == listener


def test_request_timeout(tmp_path: Path, golden: Golden) -> None:
    with start_broker(tmp_path, header_seconds=0.2, request_seconds=0.1) as broker:
        for listener in PRODUCES:
            with Connection(broker.port + listener) as stalled:
                golden("request-timeout", stalled.exchange(request(messages("t"), b"12")[:-1]))
        for listener in EVERYWHERE:
            with Connection(broker.port + listener) as stalled:
                golden("request-timeout of the head", stalled.exchange(get("/status")[:-1]))


def test_too_many_connections(tmp_path: Path, golden: Golden) -> None:
    with start_broker(tmp_path, connections_max=1) as broker, Connection(broker.port) as first:
        assert first.exchange(get("/live")).status == 200
        for listener in (PUBLIC, PRODUCE, READ):
            with Connection(broker.port + listener) as other:
                golden("too-many-connections", other.receive())


def test_not_leader(broker: RunningBroker, golden: Golden) -> None:
    """A sealed partition takes no more records."""
    split(broker, "t")
    for listener in PRODUCES:
        with Connection(broker.port + listener) as connection:
            golden("not-leader", connection.exchange(batch(BATCH)))


def test_read_failed(broker: RunningBroker, golden: Golden) -> None:
    """The segment's file has gone since the start, and what it held is in no memory."""
    produce = request(messages("t", partitionKey="k"), b"1")
    with Connection(broker.port) as connection:
        partition = document(connection.exchange(produce))["partition"]
    broker.restart()
    (segment,) = broker.data_dir.rglob("*.log")
    segment.unlink()
    for listener in READS:
        with Connection(broker.port + listener) as connection:
            golden("read-failed", connection.exchange(get(records_target("t", partition))))


def test_storage_failed(broker: RunningBroker, golden: Golden) -> None:
    """A file is where the topic's directory belongs; then it has gone."""
    produce = request(messages("t", partitionKey="k"), b"1" * LARGE_APPEND_BYTES)
    with Client(broker.url) as client:
        topic = client.create_topic("t")
    obstacle = broker.data_dir / "data" / topic.id
    obstacle.write_text("")
    for listener in PRODUCES:
        with Connection(broker.port + listener) as connection:
            golden("storage-failed", connection.exchange(produce))
    obstacle.unlink()
    with Connection(broker.port) as connection:
        assert connection.exchange(produce).status == 200


def damage_first_write(broker: RunningBroker) -> None:
    """Flip a bit of the first record."""
    (segment,) = (broker.data_dir / "data").rglob("*.log")
    stored = bytearray(segment.read_bytes())
    stored[140] ^= 1
    segment.write_bytes(stored)


def test_corrupt_partition(broker: RunningBroker, golden: Golden) -> None:
    """A clean stop proves that two were acknowledged; the journal, which has them too, is lost."""
    produce = request(messages("t", partitionKey="k"), b"1")
    with Connection(broker.port) as connection:
        partitions = [document(connection.exchange(produce))["partition"] for _ in range(2)]
    broker.stop()
    (segment,) = (broker.data_dir / "data").rglob("*.log")
    segment.write_bytes(b"")
    shutil.rmtree(broker.data_dir / "data" / "journal")
    broker.restart()

    read = get(records_target("t", partitions[0]))
    for listener, refused in ((PUBLIC, produce), (PRODUCE, produce), (PUBLIC, read), (READ, read)):
        with Connection(broker.port + listener) as connection:
            golden("corrupt-partition", connection.exchange(refused))


def test_corrupt_partition_found_by_a_read(broker: RunningBroker, golden: Golden) -> None:
    """The memory of recent batches has gone with the restart; the end of the log is sound."""
    produce = request(messages("t", partitionKey="k"), b"1")
    with Connection(broker.port) as connection:
        partition = document(connection.exchange(produce))["partition"]
    broker.restart()
    damage_first_write(broker)
    for listener in READS:
        with Connection(broker.port + listener) as connection:
            read = get(records_target("t", partition))
            golden("corrupt-partition found by a read", connection.exchange(read))
    accept_loss = request(f"/v1/topics/t/partitions/{partition}/accept-loss", b"")
    with Connection(broker.port) as connection:
        golden("nothing-lost", connection.exchange(accept_loss))


@contextmanager
def recovering_broker(data_dir: Path) -> Iterator[int]:
    """A broker whose listeners are open, not yet its logs; its base port."""
    settings = Settings(data_dir=data_dir, port=free_port_base())
    directory = DataDirectory(data_dir)
    is_open, may_close = threading.Event(), threading.Event()
    bugs: list[BaseException] = []

    async def serve() -> None:
        io = IoThreads(1, bugs.append)
        io.start()
        async with asyncio.TaskGroup() as tasks:
            broker = LocalBroker(settings, directory, io, io, tasks.create_task)
            async with open_listeners(settings, broker, tasks.create_task):
                is_open.set()
                await asyncio.to_thread(may_close.wait)
        io.stop()

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(uvloop.run, serve())
        assert is_open.wait(10)
        try:
            yield settings.port
        finally:
            may_close.set()
            served.result()
    directory.close()
    assert bugs == []


def test_not_ready_while_it_recovers(tmp_path: Path, golden: Golden) -> None:
    """A topic that were created then would hide those that are not known yet."""
    produce = request(messages("t"), b"1")
    read, newest = get(records_target("t")), get("/v1/topic/t/records")
    offsets, status = get("/v1/offsets"), get("/status")
    of_consumers = [ask("register", "c", topic="t"), poll("c"), ask("commit", "c")]
    of_groups = [*of_consumers, get("/v1/groups"), get("/v1/groups/g")]
    of_topics = [
        new_topic("t"),
        get("/v1/topics"),
        get("/v1/topics/t"),
        request("/v1/topics/t", b"{}", method="PATCH"),
        request("/v1/topics/t", method="DELETE"),
    ]
    asked = {
        PUBLIC: [produce, read, *of_topics, *of_groups, get("/v1/brokers"), get("/ready"), status],
        PRODUCE: [produce, status],
        READ: [read, newest, offsets, get("/v1/offsets?topic=t"), status, *of_consumers],
    }
    with recovering_broker(tmp_path) as port:
        for listener, requests in asked.items():
            for each in requests:
                with Connection(port + listener) as connection:
                    golden("not-ready", connection.exchange(each))
        with Connection(port) as connection:
            for target in ("/live", "/v1/openapi.json", "/docs"):
                assert connection.exchange(get(target)).status == 200
        with Connection(port + METRICS) as connection:
            assert b"tailrace_ready 0.0" in connection.exchange(get("/metrics")).body
    assert not any((tmp_path / "data" / "metadata").iterdir())


def test_not_ready_while_it_stops(broker: RunningBroker, golden: Golden) -> None:
    """It has many logs to close before the listeners close."""
    produce = request(messages("t0", partitionKey="k"), b"1")
    with Connection(broker.port) as public, Connection(broker.port + PRODUCE) as producer:
        for number in range(4):
            assert public.exchange(new_topic(f"t{number}", partitions=256)).status == 201
        answer = producer.exchange(produce)
        os.kill(broker.pid, signal.SIGTERM)
        while answer.status == 200:
            answer = producer.exchange(produce)
        golden("not-ready", answer)
    broker.stop()
