"""The broker as a process: how it refuses to start, stops, and lives with damaged data."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tailrace.local.broker import HOST
from tailrace.protocol.records_binary import encode_records
from tailrace.sync import Client
from tailrace.wire import NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tests.support.broker.fixtures import RunningBroker, free_port_base, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.broker.refused_start import refusal_to_start, run_server
from tests.support.broker.stored import LARGE_BYTES, produce_large
from tests.support.http.http11 import (
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
    settle,
)
from tests.support.storage.batches import TIME_US

pytestmark = pytest.mark.integration

MEBIBYTE = 1024 * 1024


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes the connections that are made with it."""
    with ExitStack() as stack:
        yield stack


def contents_of(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def produce(connection: Connection, target: str, body: bytes = b"1", **headers: str) -> Any:
    """A produce that succeeds; what is said of it."""
    answer = connection.exchange(request(target, body, **headers))
    assert answer.status == 200, answer
    return document(answer)


# --- it does not start ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PRODUCE_MEMORY_BYTES", "1048576"),
        ("HOST", "192.0.2.1"),
    ],
)
def test_a_setting_that_cannot_be_is_named(tmp_path: Path, name: str, value: str) -> None:
    settings = {"data_dir": tmp_path / "data", "port": free_port_base(), name.lower(): value}
    assert f"TAILRACE_{name}" in refusal_to_start(**settings)


@pytest.mark.parametrize("settings", [{}, {"data_dir": ""}], ids=["missing", "empty"])
def test_a_data_directory_must_be_named(settings: dict[str, str]) -> None:
    assert "TAILRACE_DATA_DIR" in refusal_to_start(port=free_port_base(), **settings)


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    line = refusal_to_start(data_dir=tmp_path / "file", port=free_port_base())
    assert str(tmp_path / "file") in line


@pytest.mark.parametrize("listener", [0, 1, 2, 3])
def test_a_port_that_is_taken_is_named(tmp_path: Path, listener: int) -> None:
    port = free_port_base()
    with socket.create_server((HOST, port + listener)):
        line = refusal_to_start(data_dir=tmp_path / "data", port=port)
    assert f"port {port + listener} on {HOST} is in use" in line


def test_a_data_directory_in_use_is_named(broker: RunningBroker) -> None:
    line = refusal_to_start(data_dir=broker.data_dir, port=free_port_base())
    assert f"{broker.data_dir} is in use by another broker" in line
    with Client(broker.url) as client:
        assert client.produce("t", b"1").offset == 0


@pytest.mark.parametrize("file", ["meta.json", "metadata/0-0.snapshot"])
@pytest.mark.parametrize(
    "contents",
    [b"{", b'{"version": 2, "topics": []}', b"\xff\xfe"],
    ids=["cut short", "foreign version", "not UTF-8"],
)
def test_metadata_that_is_unreadable_is_named_and_kept(
    tmp_path: Path, file: str, contents: bytes
) -> None:
    with start_broker(tmp_path) as broker:
        with Client(broker.url) as client:
            client.produce("t", b"1")
        broker.stop()
        (broker.data_dir / "data" / file).write_bytes(contents)
        before = contents_of(broker.data_dir)

        assert file in refusal_to_start(data_dir=broker.data_dir, port=broker.port)
        assert contents_of(broker.data_dir) == before


def test_an_old_copy_of_its_identity_ends_it(tmp_path: Path) -> None:
    """The ring knows of later starts: what they wrote may not be there."""
    with start_broker(tmp_path) as broker:
        meta = broker.data_dir / "data" / "meta.json"
        kept = meta.read_bytes()
        for _ in range(2):
            broker.restart()
        broker.stop()
        meta.write_bytes(kept)
        ended = run_server(
            "tailrace_broker",
            {
                "TAILRACE_DATA_DIR": str(broker.data_dir),
                "TAILRACE_PORT": str(broker.port),
            },
        )

    assert ended.returncode == 1
    *_, line = ended.stderr.splitlines()
    assert line == "error: broker 0 has been started again since: boot 3", ended.stderr


# --- it stops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(broker: RunningBroker, number: signal.Signals) -> None:
    with Client(broker.url) as client:
        client.produce("t", b"1")
        os.kill(broker.pid, number)
        broker.stop()
    broker.restart()
    with Client(broker.url) as client:
        assert sum(len(row.readable()) for row in client.offsets(["t"])) == 1


@produce_listeners
def test_a_stop_answers_the_appends_under_way(
    broker: RunningBroker, opened: ExitStack, listener: int
) -> None:
    values = [os.urandom(4 * MEBIBYTE).hex() for _ in range(3)]
    connections = [opened.enter_context(Connection(broker.port + listener)) for _ in values]
    for connection, value in zip(connections, values, strict=True):
        connection.send(request("/v1/topic/t/messages?partitionKey=k", f'"{value}"'.encode()))
    wait_for_metric(broker, "tailrace_produced_events_total", len(values))
    with ThreadPoolExecutor(1) as thread:
        stopped = thread.submit(broker.stop)
        answers = [connection.receive() for connection in connections]
        stopped.result()
    assert [answer.status for answer in answers] == [200] * len(values)
    assert sorted(document(answer)["offset"] for answer in answers) == [0, 1, 2]


def test_a_stop_answers_every_request_that_it_takes(
    broker: RunningBroker, opened: ExitStack
) -> None:
    """Stored or refused; and what was stored is there after a restart, at its offset."""
    connections = [opened.enter_context(Connection(broker.port + 1)) for _ in range(8)]
    topics = [f"t{number % 3}" for number in range(len(connections))]
    for number, (connection, topic) in enumerate(zip(connections, topics, strict=True)):
        value = b'"%d"' % number
        connection.send(request(f"/v1/topic/{topic}/messages?partitionKey=k", value) * 50)
    with ThreadPoolExecutor(1) as thread:
        stopped = thread.submit(broker.stop)
        stored: dict[tuple[str, int, int], str] = {}
        for number, connection in enumerate(connections):
            for said in answers_until_closed(connection):
                if "offset" in said:
                    stored[said["topic"], said["partition"], said["offset"]] = str(number)
                else:
                    assert said["type"] == "/v1/problems/not-ready"
        stopped.result()
    broker.restart()
    with Client(broker.url) as client:
        read = {
            (row.topic, record["partition"], record["offset"]): record["value"]
            for row in client.offsets()
            for line in client.read_lines(row.topic, row.partition, 0).body.splitlines()
            for record in [json.loads(line)]
        }
    assert stored.items() <= read.items()


def test_a_stop_waits_for_nobody_who_is_slow(tmp_path: Path, opened: ExitStack) -> None:
    """Nor for one who is silent: no limit of theirs ends before the stop has to."""
    limits = dict.fromkeys(("header_seconds", "request_seconds", "idle_seconds"), 3600.0)
    body = b"x" * 100_000
    poll = get(records("empty", waitMs=60_000))
    slow = {
        "silent": b"",
        "within a head": get("/status")[:-1],
        "within a body": request(messages("t"), body)[:-1],
        "within chunks": chunked(messages("t"), body)[:-1],
        "within a refused body": request("/nowhere", body)[:-1],
        "asking": request(messages("t"), content_length=9, expect="100-continue"),
        "waiting": poll,
        "behind one that waits": poll + request(messages("t"), b"1") + request("/nowhere"),
        "takes nothing": get(records("large")) * 9,
    }
    with start_broker(tmp_path, **limits) as broker:
        with Connection(broker.port) as public:
            assert public.exchange(new_topic("empty")).status == 201
        produce_large(broker, "large", value_bytes=3 * LARGE_BYTES)
        silent = [opened.enter_context(Connection(broker.port + listener)) for listener in range(4)]
        waiting = {}
        for name, sent in slow.items():
            connection = Connection(broker.port, receive_buffer_bytes=4096)
            waiting[name] = opened.enter_context(connection)
            waiting[name].send(sent)
        settle(broker.port)
        broker.stop()

        assert all(connection.is_closed() for connection in silent)
        for name in ("waiting", "behind one that waits"):
            answer = waiting[name].receive()
            assert (answer.status, answer.body) == (200, b"")
        behind = [waiting["behind one that waits"].receive() for _ in range(2)]
        assert [answer.status for answer in behind] == [503, 404]
        assert waiting["waiting"].is_closed()
        assert waiting["within a body"].is_closed()


def answers_until_closed(connection: Connection) -> list[Any]:
    """What a stopping broker still says on a connection."""
    said = []
    try:
        while True:
            said.append(document(connection.receive()))
    except ConnectionResetError:
        return said


# --- it lives with a disk that fails --------------------------------------------------------------


def test_a_disk_that_does_not_answer_is_reported_as_nothing(broker: RunningBroker) -> None:
    (broker.data_dir / "data").rename(broker.data_dir / "elsewhere")
    with Connection(broker.port) as public, Connection(broker.port + 3) as metrics:
        text = metrics.exchange(get("/metrics")).body.decode()
        (row,) = document(public.exchange(get("/v1/brokers")))["brokers"]

        assert "tailrace_disk_bytes NaN" in text
        assert "tailrace_disk_used_bytes NaN" in text
        sizes = [row[name] for name in ("dataBytes", "diskUsedBytes", "diskBytes")]
        assert sizes == [None] * 3
        assert public.exchange(get("/ready")).status == 200


def test_a_trash_that_cannot_be_listed_ends_nothing(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        broker.stop()
        (broker.data_dir / "data" / "trash").write_bytes(b"")
        broker.restart()
        with Connection(broker.port) as public:
            assert public.exchange(new_topic("t")).status == 201
            deleted = public.exchange(request("/v1/topics/t", method="DELETE"))
            assert deleted.status == 204
            assert public.exchange(get("/ready")).status == 200
        assert '"trash.failed"' in broker.log_path.read_text()
        broker.stop()


# --- it lives with damage -------------------------------------------------------------------------


def flip_a_bit(segment: Path, position: int = 140) -> None:
    stored = bytearray(segment.read_bytes())
    stored[position] ^= 1
    segment.write_bytes(stored)


def damaged_broker(broker: RunningBroker) -> int:
    """Restart it with topic `t` of 4 partitions, each of 2 records, which one has lost: it."""
    with Connection(broker.port) as connection:
        for _ in range(8):
            produce(connection, "/v1/topic/t/messages")
        damaged = produce(connection, "/v1/topic/t/messages?partitionKey=k")["partition"]
    broker.stop()
    (segment,) = (broker.data_dir / "data").rglob(f"{damaged}/*.log")
    segment.write_bytes(b"")
    forget_journal(broker)
    broker.restart()
    return int(damaged)


def forget_journal(broker: RunningBroker) -> None:
    """After a clean stop all is in the segments; what the journal still has would repair them."""
    shutil.rmtree(broker.data_dir / "data" / "journal")


def test_a_damaged_partition_takes_no_writes_and_the_others_go_on(broker: RunningBroker) -> None:
    damaged = damaged_broker(broker)
    segments = contents_of(broker.data_dir / "data")
    with Connection(broker.port) as public, Connection(broker.port + 1) as fast:
        for connection in (public, fast):
            refused = connection.exchange(request("/v1/topic/t/messages?partitionKey=k", b"1"))
            assert document(refused)["type"] == "/v1/problems/corrupt-partition"
            assert {produce(connection, "/v1/topic/t/messages")["partition"] for _ in range(9)} == {
                0,
                1,
                2,
                3,
            } - {damaged}
        for partition in range(4):
            target = f"/v1/topic/t/partitions/{partition}/records"
            answer = public.exchange(request(target, method="GET"))
            assert answer.status == (503 if partition == damaged else 200)
    assert broker.metrics()["tailrace_damaged_partitions"] == 1
    log = broker.log_path.read_text()
    (line,) = [json.loads(line) for line in log.splitlines() if "partition.damaged" in line]
    assert (line["topic"], line["partition"], line["level"]) == ("t", damaged, "error")

    broker.stop()
    (name,) = (name for name in segments if name.endswith(f"/{damaged}/{0:020d}.log"))
    assert contents_of(broker.data_dir / "data")[name] == segments[name]


def test_whatever_meets_damage_names_the_partition(tmp_path: Path) -> None:
    # A read in text ends before damage that a scrub has found.
    settings = {"cache_bytes": 0, "scrub_bytes_per_second": 0}
    with start_broker(tmp_path, **settings) as broker, ExitStack() as opened:
        for timestamp in (TIME_US, TIME_US + 1):
            with Connection(broker.port) as connection:
                assert connection.exchange(new_topic("t")).status in (200, 201)
                produce(connection, messages("t", timestamp=timestamp))
            broker.restart()  # so that each is a write of its own to the segment
        connection = opened.enter_context(Connection(broker.port))
        (segment,) = (broker.data_dir / "data").rglob("*.log")
        flip_a_bit(segment, BLOCK_BYTES + 140)  # of the second batch
        for target in (
            records("t", offset=0),  # a later batch than the first, met for the first time
            records("t", offset=1),
            records("t", timestamp=TIME_US + 1),
            "/v1/topic/t/records?last=2",
            f"/v1/offsets?topic=t&timestamp={TIME_US + 1}",
        ):
            refused = connection.exchange(get(target))
            assert problem(refused) == (503, "corrupt-partition"), target
            assert (document(refused)["topic"], document(refused)["partition"]) == ("t", 0)
        earlier = get(f"/v1/offsets?topic=t&timestamp={TIME_US}")
        assert connection.exchange(earlier).status == 200


def test_offsets_say_which_partition_is_damaged(broker: RunningBroker) -> None:
    damaged = damaged_broker(broker)
    with Connection(broker.port) as public:
        said = document(public.exchange(request("/v1/offsets", method="GET")))
    rows = said["topics"][0]["partitions"]
    assert [row["state"] for row in rows] == [
        "damaged" if partition == damaged else "open" for partition in range(4)
    ]
    row = rows[damaged]
    assert (row["logStart"], row["highWatermark"], row["logEnd"]) == (0, 0, 0)
    assert (row["firstOffset"], row["epoch"], row["range"]) == (0, 2, 0)


def test_records_for_a_damaged_partition_fail_alone(broker: RunningBroker) -> None:
    damaged = damaged_broker(broker)
    keys = [b"%d" % number for number in range(40)]
    body = encode_records(list(keys), [b"1"] * len(keys))
    for listener in (0, 1):
        with Connection(broker.port + listener) as connection:
            sent = request("/v1/topic/t/messages", body, content_type=RECORDS_CONTENT_TYPE)
            answer = connection.exchange(sent)
            elements = document(answer)

            assert answer.status == 207
            assert [element["partition"] for element in elements] == [0, 1, 2, 3]
            for element in elements:
                if element["partition"] == damaged:
                    assert element["problem"]["type"] == "/v1/problems/corrupt-partition"
                    assert "offset" not in element
                else:
                    assert element["offset"] >= 2
            assert sum(element["count"] for element in elements) == len(keys)

            only = encode_records([b"k"], [b"1"])
            sent = request("/v1/topic/t/messages", only, content_type=RECORDS_CONTENT_TYPE)
            assert connection.exchange(sent).status == 503


def test_the_lines_of_one_request_are_stored_together_or_not_at_all(broker: RunningBroker) -> None:
    with Connection(broker.port) as connection:
        assert connection.exchange(new_topic("t")).status == 201
        bad = request("/v1/topic/t/messages", b"1\n2\n{", content_type=NDJSON_CONTENT_TYPE)
        assert connection.exchange(bad).status == 400
    with Client(broker.url) as client:
        assert sum(len(row.readable()) for row in client.offsets(["t"])) == 0
