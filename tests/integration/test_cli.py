"""The command line as a user runs it: real processes against a real broker."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.local_broker import plain_environment
from tailrace.sync import Client
from tests.fixtures import RunningBroker, free_port_base, start_broker

pytestmark = pytest.mark.integration

TAILRACE = str(Path(sys.executable).with_name("tailrace"))
TIMEOUT_S = 30.0


@contextmanager
def producing_halfway(url: str, topic: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`tailrace produce` that has stored its first request and waits for more input."""
    process = subprocess.Popen(
        [TAILRACE, "produce", topic, "--url", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process, Client(url) as client:
        client.create_topic(topic)
        assert process.stdin is not None
        process.stdin.write(ndjson(["x" * 1_000] * 1_500))
        process.stdin.flush()
        while not any(offsets.readable() for offsets in client.offsets([topic])):
            assert process.poll() is None
        yield process


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A name of this test alone."""
    return tmp_path.name


def run(
    *arguments: str, url: str | None = None, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """One `tailrace` command, to its end."""
    environment = plain_environment() | ({"TAILRACE_URL": url} if url else {})
    return subprocess.run(
        [TAILRACE, *arguments],
        input=stdin,
        capture_output=True,
        env=environment,
        cwd=cwd,
        timeout=TIMEOUT_S,
        check=False,
    )


def assert_fails(result: subprocess.CompletedProcess[bytes], exit_code: int, error: str) -> None:
    """One sentence on stderr that matches, nothing on stdout."""
    told = result.stderr.decode()
    assert (result.returncode, result.stdout) == (exit_code, b""), told
    assert re.fullmatch(f"error: .*{error}.*\n", told), told


def ndjson(events: Sequence[object]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def records_of(result: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    assert result.returncode == 0, result.stderr.decode()
    return [json.loads(line) for line in result.stdout.splitlines()]


def values_of(result: subprocess.CompletedProcess[bytes]) -> list[object]:
    return [record["value"] for record in records_of(result)]


def test_help_starts_fast() -> None:
    before = os.times()
    result = run("--help")
    after = os.times()
    cpu_s = sum(after[2:4]) - sum(before[2:4])  # of ended children, user and system

    assert result.returncode == 0
    assert b"tailrace dev" in result.stdout
    assert cpu_s < 0.3, "twice the goal of 150 ms: leaves room for a slow machine"


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
    assert table[0].split() == ["TOPIC", "PARTITIONS", "COPIES", "DURABILITY", "JSON", "CHECK"]
    assert ["logs", "4", "1", "fsync", "no"] in [line.split() for line in table]
    assert ["orders", "8", "1", "fsync", "yes"] in [line.split() for line in table]
    sizes = {document["name"]: document["partitionsPerRange"] for document in documents}
    assert (sizes["orders"], sizes["logs"]) == (8, 4)


def test_a_topic_that_cannot_be_created_says_why(shared_broker: RunningBroker, topic: str) -> None:
    url = shared_broker.url
    run("topic", "create", topic, url=url)
    other = run("topic", "create", topic, "--partitions-per-range", "2", url=url)

    assert_fails(other, 1, topic)
    assert_fails(run("topic", "create", "a b", url=url), 1, "topic name")


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


def test_consume_starts_where_it_is_told(shared_broker: RunningBroker, topic: str) -> None:
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

    assert_fails(everything, 1, f'partition {damaged} of topic "t" is damaged and cannot be read')
    assert everything.stdout == b""
    assert values_of(rest) == [1]


def damage(data_dir: Path, partition: int) -> None:
    """Spoil the first batch of a partition of the only topic; the second proves it damage."""
    (segment,) = (data_dir / "data").rglob(f"{partition}/*.log")
    contents = bytearray(segment.read_bytes())
    contents[140] ^= 1
    segment.write_bytes(contents)


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

    assert_fails(result, 1, "line 2002 is not JSON; stored before it: 2,000 events")
    assert sorted(map(json.dumps, stored)) == sorted(map(json.dumps, good[:2_000]))


def test_a_line_without_the_key_is_named(shared_broker: RunningBroker, topic: str) -> None:
    content = b'{"k":"a"}\n{"x":1}\n'
    result = run("produce", topic, "--key", ".k", url=shared_broker.url, stdin=content)

    assert_fails(result, 1, "line 2 has no .k; stored before it: 1 event")


def test_a_missing_topic_comes_with_its_remedy(tmp_path: Path) -> None:
    with start_broker(tmp_path, auto_create_topics=False) as broker:
        produced = [
            run("produce", "nosuch", url=broker.url, stdin=stdin) for stdin in (b"", b"\n", b"1\n")
        ]
        consumed = run("consume", "nosuch", url=broker.url)

    told = (
        b'error: topic "nosuch" does not exist (autoCreateTopics is off). '
        b"Create it: tailrace topic create nosuch\n"
    )
    assert [(result.returncode, result.stderr) for result in produced] == [(1, told)] * 3
    assert_fails(consumed, 1, 'topic "nosuch" does not exist. .*tailrace topic list')


def test_producing_nothing_creates_nothing(shared_broker: RunningBroker, topic: str) -> None:
    result = run("produce", topic, url=shared_broker.url, stdin=b"")

    assert result.returncode == 1
    told = f'error: topic "{topic}" does not exist. Create it: tailrace topic create {topic}\n'
    assert result.stderr == told.encode()


def test_producing_nothing_is_no_failure(shared_broker: RunningBroker, topic: str) -> None:
    run("topic", "create", topic, url=shared_broker.url)
    result = run("produce", topic, url=shared_broker.url)

    assert result.returncode == 0
    assert result.stdout.decode().startswith("✓ 0 events, 0 bytes, ")


def test_producing_nothing_creates_no_topic(shared_broker: RunningBroker, topic: str) -> None:
    result = run("produce", topic, url=shared_broker.url, stdin=b"\n")
    with Client(shared_broker.url) as client:
        topics = [each.name for each in client.topics()]

    assert_fails(result, 1, f'topic "{topic}" does not exist')
    assert topic not in topics


def test_an_event_over_the_limit_is_refused_with_the_limit(
    shared_broker: RunningBroker, topic: str
) -> None:
    result = run("produce", topic, url=shared_broker.url, stdin=ndjson(["x" * 17 * 1024 * 1024]))

    assert_fails(result, 1, str(16 * 1024 * 1024))


def test_ctrl_c_is_quiet(shared_broker: RunningBroker, topic: str) -> None:
    with producing_halfway(shared_broker.url, topic) as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, output, errors) == (130, b"", b"")


def test_a_broker_that_ends_halfway_leaves_the_count_of_what_is_stored(
    broker: RunningBroker,
) -> None:
    with producing_halfway(broker.url, "t") as process:
        broker.kill()
        _, errors = process.communicate(timeout=TIMEOUT_S)
    broker.restart()
    with Client(broker.url) as client:
        stored_count = sum(len(offsets.readable()) for offsets in client.offsets(["t"]))

    assert process.returncode == 1
    assert f"Stored before: {stored_count:,} events and perhaps" in errors.decode()


# --- dev ------------------------------------------------------------------------------------------


@contextmanager
def running_dev(folder: Path, *arguments: str, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """`tailrace dev` in a folder of its own; killed at the end."""
    process = subprocess.Popen(
        [TAILRACE, "dev", "--port", str(port), *arguments],
        cwd=folder,
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_welcome(process: "subprocess.Popen[bytes]") -> list[str]:
    """The lines up to the last, which say that the broker is ready."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.decode().strip())
        if lines[-1].startswith("Ctrl-C"):
            return lines
    assert process.stderr is not None
    raise AssertionError(process.stderr.read().decode())


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(process: int) -> bool:
    """Waits for a process that may be another's child; `process` is of `os.pidfd_open`."""
    return bool(select.select([process], [], [], TIMEOUT_S)[0])


def paste(line: str) -> object:
    """What a shell's user gets for it."""
    result = subprocess.run(["sh", "-c", line], capture_output=True, timeout=TIMEOUT_S, check=True)
    return json.loads(result.stdout)


def test_the_lines_of_dev_work_when_pasted_and_data_stays(tmp_path: Path) -> None:
    port = free_port_base()
    with running_dev(tmp_path, port=port) as dev:
        welcome = read_welcome(dev)
        produce_line, read_line = [line for line in welcome if line.startswith("curl")]
        produced = paste(produce_line)
        read = paste(read_line)
        dev.send_signal(signal.SIGINT)
        _, errors = dev.communicate(timeout=TIMEOUT_S)
        exit_code = dev.returncode
    with running_dev(tmp_path, port=port) as dev:
        read_welcome(dev)
        read_later = paste(read_line)

    assert (exit_code, errors) == (130, b"")
    assert isinstance(produced, dict)
    assert isinstance(read, dict)
    assert produced["offset"] == 0
    assert read["value"] == {"origin": "SFO"}
    assert read_later == read
    for door in range(4):
        assert any(f"http://127.0.0.1:{port + door}" in line for line in welcome)
    assert (tmp_path / ".tailrace" / "0").is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_dev_and_its_broker(tmp_path: Path, number: signal.Signals) -> None:
    with running_dev(tmp_path, "--data", "events", port=free_port_base()) as dev:
        read_welcome(dev)
        [broker_pid] = children_of(dev.pid)
        dev.send_signal(number)
        _, errors = dev.communicate(timeout=TIMEOUT_S)

    assert (dev.returncode, errors) == (0, b"")
    assert not Path(f"/proc/{broker_pid}").exists()
    assert (tmp_path / "events" / "0").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_killed_dev_leaves_no_broker(tmp_path: Path) -> None:
    with running_dev(tmp_path, port=free_port_base()) as dev:
        read_welcome(dev)
        [broker_pid] = children_of(dev.pid)
        broker = os.pidfd_open(broker_pid)
        dev.kill()

        assert has_ended(broker)
        os.close(broker)


def test_a_broker_that_ends_by_itself_ends_dev(tmp_path: Path) -> None:
    with running_dev(tmp_path, port=free_port_base()) as dev:
        read_welcome(dev)
        [broker_pid] = children_of(dev.pid)
        os.kill(broker_pid, signal.SIGKILL)
        _, errors = dev.communicate(timeout=TIMEOUT_S)

    assert dev.returncode == 1
    assert b"error: the broker ended by itself" in errors


def test_a_taken_port_is_told_with_the_remedy(shared_broker: RunningBroker, tmp_path: Path) -> None:
    taken = shared_broker.port
    for base in (taken, taken - 3):  # the broker's first port as our first and as our last
        result = run("dev", "--port", str(base), cwd=tmp_path)

        assert_fails(result, 1, f"port {taken} cannot be used .*tailrace dev --port {base + 10}")


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "0").touch()
    result = run("dev", "--data", "events", "--port", str(free_port_base()), cwd=tmp_path)

    assert_fails(result, 1, "events/0")
