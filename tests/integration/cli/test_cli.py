"""The command line as a user runs it: real processes against a real broker."""

import gzip
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.local.broker import HOST
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.cli.commands import (
    TAILRACE,
    TIMEOUT_S,
    assert_fails,
    environment,
    ndjson,
    records_of,
    reported,
    run,
    run_bare,
    started,
    values_of,
)
from tests.support.http.http11 import Connection

pytestmark = pytest.mark.integration

# What `--help` and a verb that asks a broker may not import: it would cost what a start may cost.
HEAVY = {"asyncio", "crc32c", "importlib.metadata", "numpy", "pyarrow", "pyspark", "subprocess"}
HEAVY_FOR_HELP = HEAVY | {"dataclasses", "difflib", "email", "http", "json", "socket", "ssl"}
REPORT_HEAVY = (
    "import atexit; "
    "atexit.register(lambda: print(*sorted({heavy} & set(sys.modules)), file=sys.stderr))"
)


@contextmanager
def producing_halfway(url: str, topic: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`tailrace produce` that has stored its first request, of 900 lines, and waits for more."""
    with started("produce", topic, url=url) as process, Client(url) as client:
        client.create_topic(topic)
        assert process.stdin is not None
        process.stdin.write(ndjson(["x" * 1_000] * 900))
        process.stdin.flush()
        while not any(offsets.readable() for offsets in client.offsets([topic])):
            assert process.poll() is None
        yield process


def refuse(server: socket.socket) -> None:
    """Answer a request as nobody answers who could take it another time."""
    connection, _ = server.accept()
    with connection:
        assert connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


Spoil = Callable[[bytes], bytes]


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A name of this test alone."""
    return tmp_path.name


# --- start ----------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    result = run_bare("--help", prelude=REPORT_HEAVY.format(heavy=HEAVY_FOR_HELP))

    assert "tailrace dev" in reported(result)
    assert result.stderr == b"\n"


def test_a_verb_needs_the_standard_library_alone_and_imports_little_of_it(
    shared_broker: RunningBroker,
) -> None:
    for verb in ("status", "topic list"):
        result = run_bare(
            *verb.split(),
            prelude=REPORT_HEAVY.format(heavy=HEAVY),
            env={"TAILRACE_URL": shared_broker.url},
        )

        assert reported(result)
        assert result.stderr == b"\n"


def test_what_cannot_be_written_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run([TAILRACE, "--help"], stdout=full, stderr=subprocess.PIPE)

    assert result.returncode == 1
    assert result.stderr == b"error: input or output: No space left on device\n"


def test_an_output_that_is_closed_or_has_other_letters_is_no_failure(
    shared_broker: RunningBroker,
) -> None:
    command = f"{shlex.quote(TAILRACE)} status --url {shared_broker.url}"
    closed = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True)
    other = subprocess.run(
        [TAILRACE, "topic", "create", "ascii", "--url", shared_broker.url],
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )

    assert (closed.returncode, closed.stderr) == (0, b"")
    assert reported(other).startswith("\\u2713 ascii: 4 partitions")


# --- topics ---------------------------------------------------------------------------------------


def test_topics_are_created_and_listed(shared_broker: RunningBroker) -> None:
    url = shared_broker.url
    created = run("topic", "create", "orders", "--partitions-per-range", "8", url=url)
    again = run("topic", "create", "orders", "--partitions-per-range", "8", url=url)
    unchecked = run("topic", "create", "logs", "--no-json-check", url=url)
    table = run("topic", "list", url=url).stdout.decode().splitlines()
    documents = json.loads(run("topic", "list", "-o", "json", url=url).stdout)

    assert re.fullmatch(r"✓ orders: 8 partitions, ready in \d+ ms\n", created.stdout.decode())
    assert again.returncode == 0
    assert re.fullmatch(r"✓ logs: 4 partitions, ready in \d+ ms\n", unchecked.stdout.decode())
    assert re.split("  +", table[0]) == [
        "TOPIC",
        "PARTITIONS",
        "COPIES",
        "RETENTION",
        "DURABILITY",
        "COMPRESSION",
        "JSON CHECK",
    ]
    assert ["logs", "4", "1", "7d", "fsync", "lz4", "no"] in [line.split() for line in table]
    assert ["orders", "8", "1", "7d", "fsync", "lz4", "yes"] in [line.split() for line in table]
    sizes = {document["name"]: document["partitionsPerRange"] for document in documents}
    assert (sizes["orders"], sizes["logs"]) == (8, 4)


# --- produce and consume --------------------------------------------------------------------------


def test_events_with_keys_come_back_in_order_per_key(
    shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    url = shared_broker.url
    events = [{"customer": {"id": f"c{n % 7}"}, "n": n, "pad": "x" * 500} for n in range(5_000)]
    file = tmp_path / "orders.ndjson"
    file.write_bytes(ndjson(events))

    produced = run("produce", topic, "-f", str(file), "--key", ".customer.id", url=url)
    records = records_of(run("consume", topic, url=url))

    assert re.fullmatch(r"✓ 5,000 events, 2\.\d MiB, \d+\.\d s\n", produced.stdout.decode())
    assert len(records) == len(events)
    for n in range(7):
        stored = [record["value"] for record in records if record["key"] == f"c{n}"]
        assert stored == events[n::7]


def test_events_without_keys_come_from_standard_input(
    shared_broker: RunningBroker, topic: str
) -> None:
    produced = run("produce", topic, url=shared_broker.url, stdin=b'{"a":1}\r\n\n{"a":2}')
    records = records_of(run("consume", topic, url=shared_broker.url))

    assert produced.stdout.decode().startswith("✓ 2 events, 17 bytes, ")
    assert [record["value"] for record in records] == [{"a": 1}, {"a": 2}]
    assert {record["key"] for record in records} == {None}


def test_consume_ends_at_exactly_the_wanted_count(shared_broker: RunningBroker, topic: str) -> None:
    url = shared_broker.url
    events = [{"k": str(n), "n": n} for n in range(2_500)]
    run("produce", topic, "--key", ".k", url=url, stdin=ndjson(events))
    everything = run("consume", topic, url=url).stdout.splitlines()

    assert len(everything) == len(events)
    for count in (0, 1_001, 9_999):
        some = run("consume", topic, "--max", str(count), url=url)
        assert some.stdout.splitlines() == everything[:count], some.stderr.decode()


def test_consume_starts_where_it_is_reported(shared_broker: RunningBroker, topic: str) -> None:
    url = shared_broker.url
    with Client(url) as client:
        partition = client.produce_lines(topic, ndjson(range(10)), key="k").partition
    one = ["--partition", str(partition)]

    assert values_of(run("consume", topic, "--from", "7", *one, url=url)) == [7, 8, 9]
    assert values_of(run("consume", topic, "--from", "latest", url=url)) == []
    assert values_of(run("consume", topic, "--from", "0", url=url)) == [*range(10)]
    outside = run("consume", topic, "--from", "11", *one, url=url)
    assert_fails(outside, 1, f"offset 11 is outside partition {partition}, which has 0 to 10")
    assert_fails(run("consume", topic, "--partition", "4", url=url), 1, "no partition 4")


def test_consume_names_a_damaged_partition_and_reads_the_others(broker: RunningBroker) -> None:
    with Client(broker.url) as client:
        damaged, _ = [client.produce("t", b"1", key="k").partition for _ in range(2)]
        other = (damaged + 1) % client.create_topic("t").partitions
        while client.produce("t", b"1").partition != other:  # keyless ones go to all in turn
            pass
    broker.stop()
    damage(broker.data_dir, damaged)
    broker.restart()

    everything = run("consume", "t", url=broker.url)
    rest = run("consume", "t", "--partition", str(other), url=broker.url)

    assert (everything.returncode, everything.stdout) == (1, rest.stdout)
    assert f'not read: partition {damaged} of topic "t": its data is damaged'.encode() in (
        everything.stderr
    )
    assert values_of(rest) == [1]


def damage(data_dir: Path, partition: int) -> None:
    """Lose the segment of a partition of the only topic, after a clean stop.

    The journal goes too: it may still have what was brought to the segment.
    """
    shutil.rmtree(data_dir / "data" / "journal")
    (segment,) = (data_dir / "data").rglob(f"{partition}/*.log")
    segment.write_bytes(b"")


def test_the_reader_of_a_pipe_may_leave_early(shared_broker: RunningBroker, topic: str) -> None:
    with Client(shared_broker.url) as client:
        client.produce_lines(topic, ndjson(["x" * 1_000] * 2_000))
    command = f"{shlex.quote(TAILRACE)} consume {topic} --url {shared_broker.url} | head -n 1"
    result = subprocess.run(["sh", "-c", command], capture_output=True, timeout=TIMEOUT_S)

    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == b""


@pytest.mark.parametrize("key", [[], ["--key", ".k"]], ids=["without_key", "with_key"])
def test_a_bad_line_is_named_and_all_before_it_is_stored(
    shared_broker: RunningBroker, topic: str, key: list[str]
) -> None:
    good = [{"k": "a", "n": n, "pad": "x" * 1_000} for n in range(2_500)]
    content = ndjson(good[:2_000]) + b"\n" + b'{"k":}\n' + ndjson(good[2_000:])
    result = run("produce", topic, *key, url=shared_broker.url, stdin=content)
    stored = values_of(run("consume", topic, url=shared_broker.url))

    assert result.returncode == 1
    assert re.search(
        r"(?m)^error: line 2002 is not JSON \(expecting value at character 6\)\. "
        r"2,000 events are stored \(partition .*\); the first line that is not is line 2002\. "
        r"Correct it, and store the rest of the same input, each line once:$",
        result.stderr.decode(),
    )
    assert sorted(map(json.dumps, stored)) == sorted(map(json.dumps, good[:2_000]))


def test_a_missing_topic_comes_with_its_remedy(tmp_path: Path) -> None:
    with start_broker(tmp_path, auto_create_topics=False) as broker:
        produced = run("produce", "nosuch", url=broker.url, stdin=b"1\n")
        consumed = run("consume", "nosuch", url=broker.url)

    reported = (
        b'error: topic "nosuch" does not exist (autoCreateTopics is off). '
        b"Create it: tailrace topic create nosuch\n"
    )
    assert (produced.returncode, produced.stderr) == (1, reported)
    assert_fails(consumed, 1, 'topic "nosuch" does not exist. .*tailrace topic list')


def test_producing_nothing_is_no_failure(shared_broker: RunningBroker, topic: str) -> None:
    run("topic", "create", topic, url=shared_broker.url)
    result = run("produce", topic, url=shared_broker.url)

    assert result.returncode == 0
    assert result.stdout.decode().startswith("✓ 0 events, 0 bytes, ")


@pytest.mark.parametrize("stdin", [b"", b"\n"], ids=["empty", "blank"])
def test_producing_nothing_creates_no_topic(
    shared_broker: RunningBroker, topic: str, stdin: bytes
) -> None:
    result = run("produce", topic, url=shared_broker.url, stdin=stdin)
    with Client(shared_broker.url) as client:
        topics = [each.name for each in client.topics()]

    assert_fails(
        result, 1, f'there are no events, and topic "{topic}" does not exist: nothing was created'
    )
    assert topic not in topics


def test_a_compressed_file_is_sent_as_what_it_holds(
    shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    events = [{"n": n, "pad": "x" * 100} for n in range(20_000)]
    file = tmp_path / "events.ndjson.gz"
    file.write_bytes(gzip.compress(ndjson(events)))

    produced = run("produce", topic, "-f", str(file), url=shared_broker.url)

    assert reported(produced).startswith("✓ 20,000 events, 2.4 MiB, ")
    stored = values_of(run("consume", topic, url=shared_broker.url))
    assert sorted(each["n"] for each in stored if isinstance(each, dict)) == list(range(20_000))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda stored: stored[:-20_000], "ended before"),
        (lambda stored: stored[:-8] + b"x" * 8, "CRC check failed"),
        (lambda stored: b"no gzip", "Not a gzipped file"),
    ],
    ids=["cut", "damaged", "other"],
)
def test_a_compressed_file_that_is_not_whole_reports_what_was_stored(
    shared_broker: RunningBroker, topic: str, tmp_path: Path, spoil: Spoil, reason: str
) -> None:
    values = [os.urandom(500).hex() for _ in range(2_000)]
    file = tmp_path / "events.ndjson.gz"
    file.write_bytes(spoil(gzip.compress(ndjson(values))))

    result = run("produce", topic, "-f", str(file), url=shared_broker.url)
    with Client(shared_broker.url) as client:
        topics = [each.name for each in client.topics()]
        stored = (
            sum(len(row.readable()) for row in client.offsets([topic])) if (topic in topics) else 0
        )

    summary = f"{stored:,} events are stored" if stored else ""
    assert result.returncode == 1
    assert re.search(f"is not a whole gzip file .*({reason}).*{summary}", result.stderr.decode())


def test_more_of_the_shortest_events_than_a_request_takes_are_sent_in_several(
    shared_broker: RunningBroker, topic: str
) -> None:
    produced = run("produce", topic, url=shared_broker.url, stdin=b"1\n" * 600_000)

    assert reported(produced).startswith("✓ 600,000 events, 1.1 MiB, ")


def test_long_work_shows_a_bar_on_a_terminal(
    shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """The events come by a pipe, for as long as no bar is seen."""
    run("topic", "create", topic, url=shared_broker.url)
    pipe = tmp_path / "events"
    os.mkfifo(pipe)
    terminal, process_end = pty.openpty()
    process = subprocess.Popen(
        [TAILRACE, "produce", topic, "-f", str(pipe)],
        env=environment(shared_broker.url),
        stdout=subprocess.PIPE,
        stderr=process_end,
    )
    os.close(process_end)
    with process, pipe.open("wb") as events:
        while not select.select([terminal], [], [], 0)[0]:
            events.write(ndjson(["x" * 1_000] * 1_000))
        shown = os.read(terminal, 1_000).decode()
        events.close()
        assert process.stdout is not None
        output = process.stdout.read().decode()
    os.close(terminal)

    assert re.match(r"\r\x1b\[K[\d,]+ events, [\d.]+ MiB", shown)
    assert output.startswith("✓ ")
    assert process.returncode == 0


def test_a_pipe_may_be_slower_than_the_brokers_timeout_with_idle_connections(
    tmp_path: Path,
) -> None:
    with (
        start_broker(tmp_path, idle_seconds=0.2) as broker,
        producing_halfway(broker.url, "t") as process,
    ):
        for _ in range(2):  # the second is opened when the command's is due
            with Connection(broker.port) as idle:
                assert idle.is_closed()
        output, errors = process.communicate(ndjson(["y"]), timeout=TIMEOUT_S)

    assert (process.returncode, errors) == (0, b"")
    assert output.decode().startswith("✓ 901 events, ")


def test_an_event_over_the_limit_is_refused_with_the_limit(
    shared_broker: RunningBroker, topic: str
) -> None:
    result = run("produce", topic, url=shared_broker.url, stdin=ndjson(["x" * 17 * 1024 * 1024]))

    assert_fails(
        result,
        1,
        r"line 1 has 17,825,795 bytes, and a request has at most 16,777,216 \(.*\): split it",
    )


def test_ctrl_c_reports_what_is_stored(shared_broker: RunningBroker, topic: str) -> None:
    with (
        producing_halfway(shared_broker.url, topic) as process,
        Client(shared_broker.url) as client,
    ):
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        stored_count = sum(len(offsets.readable()) for offsets in client.offsets([topic]))

    assert (process.returncode, output) == (130, b"")
    assert stored_count == 900
    assert re.match(
        r"interrupted: 900 events are stored \(partition \d: 900\); "
        r"the first line that is not is line 901\. Store the rest of the same input:\n",
        errors.decode(),
    )


def test_ctrl_c_while_a_verb_is_imported_is_quiet() -> None:
    hook = (
        "import os; sys.addaudithook(lambda event, details: "
        "event == 'import' and details[0] == 'tailrace.sync' and os.kill(os.getpid(), 2))"
    )
    result = run_bare("status", prelude=hook)

    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


def test_a_request_that_is_refused_halfway_leaves_the_count_of_what_is_stored(
    broker: RunningBroker,
) -> None:
    with producing_halfway(broker.url, "t") as process:
        broker.kill()
        with ThreadPoolExecutor(1) as thread, socket.create_server((HOST, broker.port)) as server:
            ended = thread.submit(process.communicate, ndjson(["y"]), TIMEOUT_S)
            server.settimeout(TIMEOUT_S)
            refuse(server)
            _, errors = ended.result()
    broker.restart()
    with Client(broker.url) as client:
        stored_count = sum(len(offsets.readable()) for offsets in client.offsets(["t"]))

    assert process.returncode == 1
    assert f" {stored_count:,} events are stored" in errors.decode()


def test_a_broker_that_is_started_again_halfway_is_waited_for(broker: RunningBroker) -> None:
    """What it did not answer is sent again, and is stored once."""
    events = ndjson([[number, "x" * 1_000] for number in range(20_000)])
    with started("produce", "t", url=broker.url) as process, Client(broker.url) as client:
        assert process.stdin is not None
        process.stdin.write(events[: len(events) // 2])
        process.stdin.flush()
        while not any(row.high_watermark for row in client.offsets()):
            pass
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(process.communicate, events[len(events) // 2 :], TIMEOUT_S)
            broker.kill()
            broker.restart()
            output, errors = ended.result()
        [partition] = [row for row in client.offsets(["t"]) if row.high_watermark]

    assert (process.returncode, partition.high_watermark) == (0, 20_000)
    assert errors == b"created topic t (4 partitions)\n"
    assert output.decode().startswith("✓ 20,000 events, ")


def test_a_request_that_nobody_answered_is_distinguished_from_what_is_stored() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        started("produce", "t", url=f"http://127.0.0.1:{server.getsockname()[1]}") as process,
    ):
        assert process.stdin is not None
        process.stdin.write(b"1\n")
        process.stdin.close()
        server.settimeout(TIMEOUT_S)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1000)
        refuse(server)
        assert process.stderr is not None
        errors = process.stderr.read().decode()

    assert (
        ". 0 events are stored, and perhaps more of lines 1 to 1; "
        "the first line that is not known to be stored is line 1. " in errors
    )
