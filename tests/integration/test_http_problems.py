"""Each problem of docs/protocol.md, once, the same at every door that can have it.

The documents are in tests/golden/problems.json; `--rewrite` writes it anew.
"""

import asyncio
import json
import os
import re
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.requests import Answer, encode_records
from tailrace.sync import Client
from tailrace.wire import NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.app.runtime import open_doors
from tailrace_broker.app.settings import Settings
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.io_threads import IoThreads
from tests.fixtures import RunningBroker, free_port_base, start_broker
from tests.http11 import Connection, chunked, document, request
from tests.metrics import wait_for_metric

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[1] / "golden" / "problems.json"
PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
PROBLEM_CONTENT_TYPE = "application/problem+json"
MEBIBYTE = 1024 * 1024
BODY_BYTES_MAX = 2048
# Parts of details that differ from run to run.
VARYING = {
    re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"): "TOPIC-ID",
    re.compile(r"clock \(\d+\)"): "clock (NOW)",
}

PUBLIC, FAST, READ, METRICS = range(4)
PRODUCE = (PUBLIC, FAST)
READS = (PUBLIC, READ)
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
    return {**said, "detail": text}


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Takes small bodies, creates no topic by itself; has topic `t` of two partitions."""
    settings = {"max_request_bytes": BODY_BYTES_MAX, "auto_create_topics": False}
    with start_broker(tmp_path_factory.mktemp("small"), **settings) as running:
        with Client(running.url) as client:
            client.create_topic("t", partitions_per_range=2)
        yield running


def get(target: str) -> bytes:
    return request(target, method="GET", content_length=None)


def lines(body: bytes) -> bytes:
    return request("/v1/topic/t/messages", body, content_type=NDJSON_CONTENT_TYPE)


def records(body: bytes, query: str = "") -> bytes:
    return request(f"/v1/topic/t/messages{query}", body, content_type=RECORDS_CONTENT_TYPE)


RECORDS = encode_records([b"k"], [b"1"])
FAR_AHEAD_US = 9_000_000_000_000_000

# name -> (doors, request)
REFUSED: dict[str, tuple[tuple[int, ...], bytes]] = {
    "invalid-request": (PRODUCE, b"\0\r\n\r\n"),
    "invalid-topic-name": (PRODUCE, request("/v1/topic/__t/messages", b"1")),
    "invalid-topic-name of a new topic": ((PUBLIC,), request("/v1/topics", b'{"name":"a b"}')),
    "invalid-topic-name of a read": (READS, get("/v1/topic/a%20b/partitions/0/records")),
    "invalid-record": (PRODUCE, request("/v1/topic/t/messages", b'{"a":}')),
    "invalid-record in a line": (PRODUCE, lines(b'{"a":1}\n{"a":}\n')),
    "invalid-record of no UTF-8": (PRODUCE, lines(b'1\n2\n"\xff"\n')),
    "invalid-body without bytes": (PRODUCE, request("/v1/topic/t/messages")),
    "invalid-body without lines": (PRODUCE, lines(b"\n\r\n")),
    "invalid-body of records": (PRODUCE, records(RECORDS[:-1])),
    "invalid-body without records": (PRODUCE, records(b"\0" * 32)),
    "invalid-body of a new topic": ((PUBLIC,), request("/v1/topics", b"{")),
    "invalid-body of no object": ((PUBLIC,), request("/v1/topics", b"[]")),
    "invalid-body of no text": ((PUBLIC,), request("/v1/topics", b'{"name":"\xff"}')),
    "invalid-parameter": (PRODUCE, request("/v1/topic/t/messages?key=k", b"1")),
    "invalid-parameter timestamp": (PRODUCE, request("/v1/topic/t/messages?timestamp=-1", b"1")),
    "invalid-parameter timestamp ahead": (
        PRODUCE,
        request(f"/v1/topic/t/messages?timestamp={FAR_AHEAD_US}", b"1"),
    ),
    "invalid-parameter key of records": (PRODUCE, records(RECORDS, "?partitionKey=k")),
    "invalid-parameter timestamp of records": (PRODUCE, records(RECORDS, "?timestamp=1")),
    "invalid-parameter unknown field": (
        (PUBLIC,),
        request("/v1/topics", b'{"name":"n","retentionMs":1}'),
    ),
    "invalid-parameter missing field": ((PUBLIC,), request("/v1/topics", b"{}")),
    "invalid-parameter field of another type": (
        (PUBLIC,),
        request("/v1/topics", b'{"name":"n","partitionsPerRange":"4"}'),
    ),
    "invalid-parameter too many partitions": (
        (PUBLIC,),
        request("/v1/topics", b'{"name":"n","partitionsPerRange":257}'),
    ),
    "invalid-parameter of a read": (READS, get("/v1/topic/t/partitions/0/records?last=1")),
    "invalid-parameter offset": (READS, get("/v1/topic/t/partitions/0/records?offset=-1")),
    "invalid-parameter maxRecords": (
        READS,
        get("/v1/topic/t/partitions/0/records?maxRecords=100001"),
    ),
    "invalid-parameter maxBytes": (READS, get("/v1/topic/t/partitions/0/records?maxBytes=0")),
    "invalid-parameter partition": (READS, get("/v1/topic/t/partitions/x/records")),
    "topic-not-found": (PRODUCE, request("/v1/topic/none/messages", b"1")),
    "topic-not-found of a read": (READS, get("/v1/topic/none/partitions/0/records")),
    "topic-not-found of offsets": (READS, get("/v1/offsets?topic=t&topic=none")),
    "partition-not-found": (READS, get("/v1/topic/t/partitions/2/records")),
    "not-found": (PRODUCE, request("/v1/nowhere?a=1", b"1")),
    "not-found of a read": ((PUBLIC, FAST, READ, METRICS), get("/v1/nowhere")),
    "method-not-allowed": (PRODUCE, get("/v1/topic/t/messages?partitionKey=k")),
    "method-not-allowed of topics": ((PUBLIC,), request("/v1/topics", method="DELETE")),
    "topic-exists": ((PUBLIC,), request("/v1/topics", b'{"name":"t","partitionsPerRange":3}')),
    "body-too-large": (PRODUCE, request("/v1/topic/t/messages", b"1" * (BODY_BYTES_MAX + 1))),
    "body-too-large of chunks": (
        PRODUCE,
        chunked("/v1/topic/t/messages", *[b"1" * 1000] * 3),
    ),
    "unsupported-media-type": (
        PRODUCE,
        request("/v1/topic/t/messages", b"a=1", content_type="application/x-www-form-urlencoded"),
    ),
    "unsupported-media-type of no UTF-8": (
        (PUBLIC,),
        request("/v1/topic/t/messages", b"1", content_type="t/x").replace(b"t/x", b"t/\xff"),
    ),
    "offset-out-of-range": (READS, get("/v1/topic/t/partitions/0/records?offset=1")),
    "header-too-large": (PRODUCE, request("/v1/topic/t/messages", b"1", x="v" * 17_000)),
}
PROVOKED = {
    "produce-memory-full",
    "request-timeout",
    "corrupt-partition",
    "not-ready",
    "disk-full",
    "read-failed",
    "storage-failed",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_gets_its_problem_at_every_door(
    small_broker: RunningBroker, golden: Golden, name: str
) -> None:
    doors, refused = REFUSED[name]
    for door in doors:
        with Connection(small_broker.port + door) as connection:
            golden(name, connection.exchange(refused))
    with Client(small_broker.url) as client:
        assert [each.name for each in client.topics()] == ["t"]
        assert [each.high_watermark for each in client.offsets(["t"])] == [0, 0]


def test_every_problem_of_the_protocol_is_produced_here() -> None:
    table = PROTOCOL.read_text().partition("| type | status | when |")[2]
    documented = dict(re.findall(r"^\| ([a-z-]+) \| (\d+) \|", table, re.MULTILINE))
    produced = {name.split()[0] for name in REFUSED} | PROVOKED
    golden = json.loads(GOLDEN.read_text())

    assert produced == documented.keys()
    assert {name.split()[0] for name in golden} == produced
    for name, said in golden.items():
        slug = name.split()[0]
        assert said["type"] == f"/v1/problems/{slug}"
        assert str(said["status"]) == documented[slug]


@pytest.mark.parametrize("door", PRODUCE)
def test_produce_memory_full(tmp_path: Path, golden: Golden, door: int) -> None:
    settings = {"produce_memory_bytes": MEBIBYTE, "max_request_bytes": MEBIBYTE}
    with (
        start_broker(tmp_path, **settings) as broker,
        Connection(broker.port + door) as first,
        Connection(broker.port + door) as second,
    ):
        first.send(request("/v1/topic/t/messages", b"1" * MEBIBYTE)[:-1])
        wait_for_metric(broker, "tailrace_produce_memory_bytes", MEBIBYTE)
        golden(
            "produce-memory-full", second.exchange(request("/v1/topic/t/messages", b"1" * 1_000))
        )


def test_disk_full(broker: RunningBroker, golden: Golden) -> None:
    """The kernel lets no file of the broker grow (RLIMIT_FSIZE); then it does again."""
    produce = request(
        "/v1/topic/t/messages?partitionKey=k", b'"%s"' % os.urandom(100_000).hex().encode()
    )
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    for door in PRODUCE:
        with Connection(broker.port + door) as connection:
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (32 * 1024, hard))
            golden("disk-full", connection.exchange(produce))

            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
            assert document(connection.exchange(produce))["offset"] == door


@pytest.mark.parametrize("door", PRODUCE)
def test_request_timeout(tmp_path: Path, golden: Golden, door: int) -> None:
    with (
        start_broker(tmp_path, request_seconds=0.1) as broker,
        Connection(broker.port + door) as stalled,
    ):
        golden("request-timeout", stalled.exchange(request("/v1/topic/t/messages", b"12")[:-1]))


def test_read_failed(tmp_path: Path, golden: Golden) -> None:
    """The segment's file is gone, and what it held is in no cache."""
    with start_broker(tmp_path, cache_bytes=0) as broker, Connection(broker.port) as connection:
        produce = request("/v1/topic/t/messages?partitionKey=k", b"1")
        partition = document(connection.exchange(produce))["partition"]
        (segment,) = broker.data_dir.rglob("*.log")
        segment.unlink()
        target = f"/v1/topic/t/partitions/{partition}/records"

        golden("read-failed", connection.exchange(request(target, method="GET")))


def test_storage_failed(broker: RunningBroker, golden: Golden) -> None:
    """A file stands where the topic's directory belongs; then it has gone."""
    produce = request("/v1/topic/t/messages?partitionKey=k", b"1")
    with Client(broker.url) as client:
        topic = client.create_topic("t")
    obstacle = broker.data_dir / "data" / topic.id
    obstacle.write_text("")
    for door in PRODUCE:
        with Connection(broker.port + door) as connection:
            golden("storage-failed", connection.exchange(produce))
    obstacle.unlink()
    with Connection(broker.port) as connection:
        assert connection.exchange(produce).status == 200


def damage_first_write(broker: RunningBroker) -> None:
    """Flip a bit of a record that a later write proves acknowledged."""
    (segment,) = (broker.data_dir / "data").rglob("*.log")
    stored = bytearray(segment.read_bytes())
    stored[140] ^= 1
    segment.write_bytes(stored)


def test_corrupt_partition(broker: RunningBroker, golden: Golden) -> None:
    produce = request("/v1/topic/t/messages?partitionKey=k", b"1")
    with Connection(broker.port) as connection:
        partitions = [document(connection.exchange(produce))["partition"] for _ in range(2)]
    broker.stop()
    damage_first_write(broker)
    broker.restart()

    read = get(f"/v1/topic/t/partitions/{partitions[0]}/records")
    for door, refused in ((PUBLIC, produce), (FAST, produce), (PUBLIC, read), (READ, read)):
        with Connection(broker.port + door) as connection:
            golden("corrupt-partition", connection.exchange(refused))


def test_corrupt_partition_found_by_a_read(broker: RunningBroker, golden: Golden) -> None:
    """The memory of recent batches has gone with the restart; the end of the log is sound."""
    produce = request("/v1/topic/t/messages?partitionKey=k", b"1")
    with Connection(broker.port) as connection:
        partition = document(connection.exchange(produce))["partition"]
    broker.restart()
    damage_first_write(broker)
    for door in READS:
        with Connection(broker.port + door) as connection:
            read = get(f"/v1/topic/t/partitions/{partition}/records")
            golden("corrupt-partition found by a read", connection.exchange(read))


@contextmanager
def recovering_broker(data_dir: Path) -> Iterator[int]:
    """A broker whose doors are open, not yet its logs; its base port."""
    settings = Settings(data_dir=data_dir, port=free_port_base())
    directory = DataDirectory(data_dir)
    is_open, may_close = threading.Event(), threading.Event()
    bugs: list[BaseException] = []

    async def serve() -> None:
        io = IoThreads(1, bugs.append)
        io.start()
        broker = LocalBroker(settings, directory, io, spawn=lambda _: None)
        async with open_doors(settings, broker, bugs.append):
            is_open.set()
            await asyncio.to_thread(may_close.wait)
        io.stop()

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
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
    produce = request("/v1/topic/t/messages", b"1")
    read = get("/v1/topic/t/partitions/0/records")
    create = request("/v1/topics", b'{"name":"t"}')
    asked = {
        PUBLIC: [produce, read, create, get("/v1/topics"), get("/v1/offsets"), get("/ready")],
        FAST: [produce],
        READ: [read, get("/v1/offsets"), get("/v1/offsets?topic=t")],
    }
    with recovering_broker(tmp_path) as port:
        for door, requests in asked.items():
            for each in requests:
                with Connection(port + door) as connection:
                    golden("not-ready", connection.exchange(each))
        with Connection(port) as connection:
            assert connection.exchange(get("/live")).status == 200
        with Connection(port + METRICS) as connection:
            assert b"tailrace_ready 0.0" in connection.exchange(get("/metrics")).body
    assert not (tmp_path / "data" / "metadata" / "topics.json").exists()


def test_not_ready_while_it_stops(broker: RunningBroker, golden: Golden) -> None:
    """A request under way at the public door keeps the process until its peer goes."""
    produce = request("/v1/topic/t/messages?partitionKey=k", b"1")
    with Connection(broker.port + FAST) as fast, Connection(broker.port) as public:
        assert fast.exchange(produce).status == 200
        public.send(produce[:-1])
        wait_for_metric(broker, "tailrace_produce_memory_bytes", 1)
        os.kill(broker.pid, signal.SIGTERM)
        answer = fast.exchange(produce)
        while answer.status == 200:
            answer = fast.exchange(produce)
        golden("not-ready", answer)
    broker.stop()
