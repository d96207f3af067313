"""The examples that a user copies, run as their first lines say."""

import gzip
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.commands import environment
from tests.fixtures import RunningBroker, free_port_base
from tests.spark import HAS_SPARK, job_environment

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
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
            for each in client.offsets([topic])
            for line in client.read_lines(
                topic, each.partition, max_records=100_000
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


def test_the_consumer_goes_on_where_it_stopped(broker: RunningBroker, tmp_path: Path) -> None:
    arguments = ("orders", "--offsets", tmp_path / "orders.json")
    with Client(broker.url) as client:
        client.produce("orders", b'{"n":1}', key="a")
        first = python(broker.url, "consumer.py", *arguments)
        client.produce("orders", b'{"n":2}', key="a")
        second = python(broker.url, "consumer.py", *arguments)
    third = python(broker.url, "consumer.py", *arguments)

    assert first.split(maxsplit=1)[1] == '0 a {"n": 1}\n'
    assert second.split(maxsplit=1)[1] == '1 a {"n": 2}\n'
    assert third == ""


def test_the_consumer_follows_until_it_is_interrupted(
    broker: RunningBroker, tmp_path: Path
) -> None:
    words = ["orders", "--follow", "--offsets", str(tmp_path / "orders.json")]
    with Client(broker.url) as client:
        client.create_topic("orders")
        with subprocess.Popen(
            ["python", "-u", EXAMPLES / "consumer.py", *words],
            stdout=subprocess.PIPE,
            env=environment(broker.url),
        ) as process:
            assert process.stdout
            try:
                for number in range(3):
                    client.produce("orders", b"%d" % number, key="a")
                    line = process.stdout.readline().split()
                    assert line[1:] == [b"%d" % number, b"a", b"%d" % number]
                process.send_signal(signal.SIGINT)
                assert process.wait() == 0
            finally:
                process.kill()


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
