"""The examples that a user copies, run as their first lines say."""

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, free_port_base
from tests.support.cli.commands import environment
from tests.support.spark.spark import HAS_SPARK, job_environment

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[3] / "examples"
FLIGHTS = gzip.decompress((EXAMPLES / "data" / "flights.ndjson.gz").read_bytes())


def run(url: str, *words: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """An example with these arguments and this input; Spark as small as tests want it."""
    variables = job_environment() | environment(url)
    return subprocess.run(words, input=given, capture_output=True, env=variables)


def python(url: str, name: str, *words: str | Path, given: bytes = b"") -> str:
    """What a Python example prints."""
    result = run(url, "python", EXAMPLES / name, *words, given=given)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def values_of(broker: RunningBroker, topic: str, key: str | None) -> list[object]:
    """The values of one key, in the order of their offsets."""
    with Client(broker.url) as client:
        lines = [
            line
            for row in client.offsets([topic])
            for line in client.read_lines(
                topic, row.partition, max_records=100_000
            ).body.splitlines()
        ]
    records = [json.loads(line) for line in lines]
    return [record["value"] for record in records if record["key"] == key]


def test_the_shell_producer_stores_lines_under_a_key(broker: RunningBroker) -> None:
    lines = b'{"n":1}\n{"n":2}\n'
    script = EXAMPLES / "producer.sh"

    keyed = run(broker.url, "sh", script, "orders", "a b&c", given=lines)
    keyless = run(broker.url, "sh", script, "orders", given=b'{"n":3}\n')

    assert json.loads(keyed.stdout)["count"] == 2
    assert json.loads(keyless.stdout)["count"] == 1
    assert values_of(broker, "orders", "a b&c") == [{"n": 1}, {"n": 2}]
    assert values_of(broker, "orders", None) == [{"n": 3}]


def test_the_shell_producer_fails_when_the_broker_refuses(broker: RunningBroker) -> None:
    result = run(broker.url, "sh", EXAMPLES / "producer.sh", "orders", given=b"no JSON\n")

    assert result.returncode == 22
    assert json.loads(result.stdout)["title"] == "Line 1 is not JSON"


def test_the_shell_producer_says_how_it_is_used(broker: RunningBroker) -> None:
    result = run(broker.url, "sh", EXAMPLES / "producer.sh")

    assert result.returncode != 0
    assert b"usage: producer.sh TOPIC [KEY] < events.ndjson" in result.stderr


def test_the_producer_keeps_the_order_of_each_key(broker: RunningBroker) -> None:
    printed = python(broker.url, "producer.py", "flights", "--key", "origin", given=FLIGHTS)

    flights = [json.loads(line) for line in FLIGHTS.splitlines()]
    assert printed == "20,000 events stored\n"
    assert values_of(broker, "flights", "SFO") == [
        flight for flight in flights if flight["origin"] == "SFO"
    ]


def test_the_producer_says_what_it_could_not_store() -> None:
    url = f"http://127.0.0.1:{free_port_base()}"
    words = ["flights", "--key", "origin"]

    result = run(url, "python", EXAMPLES / "producer.py", *words, given=b'{"origin":"SFO"}\n')

    assert result.returncode == 1
    assert result.stderr.decode().startswith("error: after 0 events: no broker answers at ")


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (b"{", "line 2 is no JSON: "),
        (b'"\xff"', "line 2 is no JSON: "),
        (b"{}", 'line 2 has no field "origin" with a text'),
        (b'{"origin":5}', 'line 2 has no field "origin" with a text'),
        (b"7", 'line 2 has no field "origin" with a text'),
    ],
)
def test_the_producer_names_a_line_that_it_cannot_send(
    shared_broker: RunningBroker, topic: str, line: bytes, reported: str
) -> None:
    given = b'{"origin":"SFO"}\n' + line + b"\n"
    words = (EXAMPLES / "producer.py", topic, "--key", "origin")
    result = run(shared_broker.url, "python", *words, given=given)

    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.decode().startswith(f"error: after 1 events: {reported}")
    assert result.stderr.count(b"\n") == 1


@contextmanager
def started(url: str, *words: str | Path) -> "Iterator[subprocess.Popen[bytes]]":
    """An example that goes on until it is ended."""
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(url), process_group=0
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[bytes]") -> str:
    """The next one that it prints."""
    assert process.stdout
    return process.stdout.readline().decode()


CONSUMERS = [
    pytest.param(["python", EXAMPLES / "consumer.py", "orders", "--group", "g"], id="python"),
    pytest.param(["sh", EXAMPLES / "consumer.sh", "orders", "g"], id="sh"),
]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", CONSUMERS)
def test_a_consumer_goes_on_where_the_one_before_has_stopped(
    broker: RunningBroker, words: list[str | Path], end: signal.Signals
) -> None:
    with Client(broker.url) as client:
        for number in ("1001", "1002"):
            client.produce("orders", number.encode(), key="a")
            with started(broker.url, *words) as consumer:
                line = line_of(consumer)
                consumer.send_signal(end)
                rest, errors = consumer.communicate()
            assert number in line
            assert (rest, errors) == (b"", b"")
        group = client.group("g")

    assert (group.info.members, group.info.lag) == (0, 0)


@pytest.mark.parametrize("words", CONSUMERS)
def test_a_consumer_gets_what_a_killed_one_had_not_confirmed(
    broker: RunningBroker, words: list[str | Path]
) -> None:
    with Client(broker.url) as client:
        client.create_topic("orders")
        client.register("dead", "g", ["orders"], session_ms=1000)
        client.produce("orders", b"1001", key="a")
        assert client.poll("dead", delivery=0, wait_ms=1000).body

    with started(broker.url, *words) as consumer:
        assert "1001" in line_of(consumer)


def test_the_shell_consumer_ends_when_another_has_taken_its_name(broker: RunningBroker) -> None:
    command = EXAMPLES / "consumer.sh"
    with Client(broker.url) as client:
        client.produce("orders", b"1001", key="a")
        with started(broker.url, "sh", command, "orders", "g", "c1") as consumer:
            assert "1001" in line_of(consumer)
            client.goodbye("c1")
            client.register("c1", "g", ["orders"], session_ms=60_000)
            _, errors = consumer.communicate()
        members = client.group("g").consumers

    assert b"/v1/problems/stale-assignment" in errors or b"/v1/problems/consumer-exists" in errors
    assert [member.consumer_id for member in members] == ["c1"]


def test_the_shell_consumer_says_why_it_cannot(broker: RunningBroker) -> None:
    usage = run(broker.url, "sh", EXAMPLES / "consumer.sh", "orders")
    refused = run(broker.url, "sh", EXAMPLES / "consumer.sh", "orders", "a/b")

    assert b"usage: consumer.sh TOPIC GROUP [CONSUMER]" in usage.stderr
    assert usage.returncode != 0
    assert b"/v1/problems/invalid-parameter" in refused.stderr
    assert refused.returncode != 0


@pytest.mark.spark
@pytest.mark.skipif(not HAS_SPARK and "CI" not in os.environ, reason="no Java or no pyspark")
def test_the_spark_job_writes_each_flight_once(broker: RunningBroker, tmp_path: Path) -> None:
    import pyarrow.parquet

    python(broker.url, "producer.py", "flights", "--key", "origin", given=FLIGHTS)
    arguments = ("--topic", "flights", "--to", tmp_path / "delays", "--once")

    python(broker.url, "spark_stream.py", *arguments)

    table = pyarrow.parquet.read_table(tmp_path / "delays" / "files")
    rows = table.select(["partition", "offset"]).to_pylist()
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows) == 20_000
    delays = [json.loads(line)["delayMinutes"] for line in FLIGHTS.splitlines()]
    assert sum(table["delayMinutes"].to_pylist()) == sum(delays)
