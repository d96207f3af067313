"""Spark reads what was produced: a real broker process, a real Spark with two local executor cores.

Skipped only where Java or pyspark is missing, and never in CI.
"""

import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from tailrace.local_broker import plain_environment
from tailrace.sync import Client
from tailrace.wire import RECORDS_CONTENT_TYPE, RECORDS_HEADER, RECORDS_MAGIC, RecordsFlag
from tests.fixtures import RunningBroker, start_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HAS_SPARK = importlib.util.find_spec("pyspark") is not None and (
    "JAVA_HOME" in os.environ or shutil.which("java") is not None
)
pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.skipif(not HAS_SPARK and "CI" not in os.environ, reason="no Java or no pyspark"),
]

# A test reads thousands of rows, not millions: less compiling, fewer threads, no web interface.
SPARK_CONF: dict[str, str | int | float | bool | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
MASTER = "local[2]"
TOPIC = "flights"
AIRPORTS = [b"SFO", b"JFK", b"PHX", None]
RECORD_COUNT = 3000
REQUEST_RECORD_COUNT = 100


class Flight:
    """Record `number` of the topic: its key and value by rules that a test can repeat."""

    def __init__(self, number: int) -> None:
        self.key = AIRPORTS[number % len(AIRPORTS)]
        self.delay_minutes = number % 50
        self.value = None if number % 100 == 99 else self._event().encode()

    def _event(self) -> str:
        origin = None if self.key is None else self.key.decode()
        return json.dumps({"origin": origin, "times": {"delayMinutes": self.delay_minutes}})


FLIGHTS = [Flight(number) for number in range(RECORD_COUNT)]


@pytest.fixture(scope="module")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pyspark's own without `python/`: its zip has no compiled code and costs each worker 1.4 s."""
    import pyspark

    home = tmp_path_factory.mktemp("spark_home")
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name in ("bin", "jars", "sbin"):
            (home / path.name).symlink_to(path)
    return home


@pytest.fixture(scope="module")
def spark(spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.chdir(tmp_path_factory.mktemp("spark"))
        builder = SparkSession.builder.master(MASTER).config(map=SPARK_CONF)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("FATAL")
        yield session
        session.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all tests; `flights` holds FLIGHTS, produced in many batches."""
    with start_broker(tmp_path_factory.mktemp("data")) as running:
        with Client(running.url) as client:
            client.create_topic(TOPIC)
            client.create_topic("empty")
            for start in range(0, RECORD_COUNT, REQUEST_RECORD_COUNT):
                flights = FLIGHTS[start : start + REQUEST_RECORD_COUNT]
                client.produce_records(
                    TOPIC, [each.key for each in flights], [each.value for each in flights]
                )
        yield running


def read(spark: "SparkSession", broker: RunningBroker, **options: str | int) -> "DataFrame":
    options = options or {"subscribe": TOPIC}
    return spark.read.format("tailrace").options(url=broker.url, **options).load()


def ends_of(broker: RunningBroker) -> dict[int, int]:
    with Client(broker.url) as client:
        return {each.partition: each.readable().stop for each in client.offsets([TOPIC])}


def task_count_of(frame: "DataFrame") -> int:
    from pyspark.sql import functions as F

    return frame.select(F.spark_partition_id()).distinct().count()


def test_rows_are_the_records_that_were_produced(
    spark: "SparkSession", broker: RunningBroker
) -> None:
    frame = read(spark, broker)
    rows = frame.collect()

    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    produced = Counter((each.key, each.value) for each in FLIGHTS)
    assert Counter((bytes_of(row.key), bytes_of(row.value)) for row in rows) == produced
    assert {(row.topic, row.timestampType) for row in rows} == {(TOPIC, 1)}
    now = datetime.now(UTC)
    assert all(now - timedelta(minutes=5) < row.timestamp.astimezone(UTC) <= now for row in rows)


def bytes_of(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_every_offset_is_read_once_and_in_the_order_of_its_key(
    spark: "SparkSession", broker: RunningBroker
) -> None:
    rows = read(spark, broker, subscribe=TOPIC, fetchMaxBytes=1, coalesceRows=7).collect()

    offsets = {(row.partition, row.offset) for row in rows}
    expected = {(part, offset) for part, end in ends_of(broker).items() for offset in range(end)}
    assert len(rows) == RECORD_COUNT
    assert offsets == expected
    values_by_key = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        values_by_key[bytes_of(row.key)].append(bytes_of(row.value))
    for key in filter(None, AIRPORTS):
        assert values_by_key[key] == [each.value for each in FLIGHTS if each.key == key]


def test_offsets_bound_what_is_read(spark: "SparkSession", broker: RunningBroker) -> None:
    partition = max(ends_of(broker), key=ends_of(broker).__getitem__)
    start, end = 150, 420

    rows = read(
        spark,
        broker,
        assign=json.dumps({TOPIC: [partition]}),
        startingOffsets=json.dumps({TOPIC: {partition: start}}),
        endingOffsets=json.dumps({TOPIC: {partition: end}}),
    ).collect()

    assert [(row.partition, row.offset) for row in rows] == [
        (partition, offset) for offset in range(start, end)
    ]


def test_ranges_are_split_into_as_many_tasks_as_asked_for(
    spark: "SparkSession", broker: RunningBroker
) -> None:
    by_count = read(spark, broker, subscribe=TOPIC, minPartitions=9)
    by_size = read(spark, broker, subscribePattern="fl.*", maxRecordsPerPartition=200)

    assert task_count_of(by_count) >= 9
    assert by_count.distinct().count() == RECORD_COUNT
    assert task_count_of(by_size) == sum(-(-end // 200) for end in ends_of(broker).values())


def test_an_empty_topic_reads_as_no_rows(spark: "SparkSession", broker: RunningBroker) -> None:
    assert read(spark, broker, subscribe="empty").collect() == []


def test_headers_are_read_when_asked_for(spark: "SparkSession", broker: RunningBroker) -> None:
    produce_with_header(broker, "traced", value=b"{}", header=("trace", b"\x01\xff"))
    with Client(broker.url) as client:
        client.produce("traced", b"{}")

    frame = read(spark, broker, subscribe="traced", includeHeaders="true")

    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    headers = [
        row.headers and [(header.key, bytes(header.value)) for header in row.headers]
        for row in frame.collect()
    ]
    assert sorted(headers, key=str) == [None, [("trace", b"\x01\xff")]]


def produce_with_header(
    broker: RunningBroker, topic: str, *, value: bytes, header: tuple[str, bytes]
) -> None:
    key, header_value = header[0].encode(), header[1]
    sizes = (1, 0, len(value), 1, len(key), len(header_value))
    columns = [
        RECORDS_HEADER.pack(RECORDS_MAGIC, 1, RecordsFlag.HEADERS, *sizes),
        *[struct.pack("<i", each) for each in (-1, len(value), 1, len(key), len(header_value))],
        value,
        key,
        header_value,
    ]
    body = b"".join(column + bytes(-len(column) % 8) for column in columns[:-1]) + columns[-1]
    url = f"{broker.url}/v1/topic/{topic}/messages"
    with urlopen(Request(url, body, {"Content-Type": RECORDS_CONTENT_TYPE})) as answer:
        assert answer.status == 200


def test_a_topic_that_is_not_there_fails_unless_loss_is_allowed(
    spark: "SparkSession", broker: RunningBroker
) -> None:
    allowed = read(spark, broker, subscribe="flights,nosuch", failOnDataLoss="false")

    assert allowed.count() == RECORD_COUNT
    with pytest.raises(Exception, match='topic "nosuch" does not exist'):
        read(spark, broker, subscribe="flights,nosuch").count()


def test_an_offset_that_is_not_there_fails_unless_loss_is_allowed(
    spark: "SparkSession", broker: RunningBroker
) -> None:
    beyond = {partition: end + 10 for partition, end in ends_of(broker).items()}
    options = {"subscribe": TOPIC, "endingOffsets": json.dumps({TOPIC: beyond})}

    assert read(spark, broker, **options, failOnDataLoss="false").count() == RECORD_COUNT
    with pytest.raises(Exception, match=r"DataLossError.*is asked for"):
        read(spark, broker, **options).count()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": TOPIC, "minPartition": "3"}, "did you mean minPartitions?"),
        ({"subscribe": TOPIC, "startingOffsets": "latest"}, "startingOffsets must be earliest"),
        ({}, "give exactly one of subscribe, assign, subscribePattern"),
    ],
)
def test_a_bad_option_is_refused_on_load(
    spark: "SparkSession", broker: RunningBroker, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=re.escape(reason)):
        spark.read.format("tailrace").options(url=broker.url, **options).load()


def test_a_schema_of_ones_own_is_refused(spark: "SparkSession", broker: RunningBroker) -> None:
    reader = spark.read.format("tailrace").schema("value string")

    with pytest.raises(Exception, match=re.escape("take .schema() away")):
        reader.options(url=broker.url, subscribe=TOPIC).load().count()


def test_a_stream_is_refused_with_what_to_use(spark: "SparkSession", broker: RunningBroker) -> None:
    reader = spark.readStream.format("tailrace").options(url=broker.url, subscribe=TOPIC)

    with pytest.raises(Exception, match=re.escape("use spark.read in place of spark.readStream")):
        reader.load().writeStream.format("noop").start().awaitTermination(60)


def run_aggregate(
    broker: RunningBroker, spark_home: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    conf = [f"--conf '{name}={value}'" for name, value in SPARK_CONF.items()]
    environment = plain_environment()
    environment.pop("PYSPARK_PYTHON", None)
    environment["SPARK_HOME"] = str(spark_home)
    environment["PYSPARK_SUBMIT_ARGS"] = " ".join(["--master", MASTER, *conf, "pyspark-shell"])
    return subprocess.run(
        [sys.executable, "-m", "tailrace.spark.jobs.aggregate", "--url", broker.url, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_aggregate_runs_as_a_command(broker: RunningBroker, spark_home: Path) -> None:
    finished = run_aggregate(
        broker,
        spark_home,
        *("--topic", TOPIC, "--group-by", ".origin", "--count"),
        *("--avg", ".times.delayMinutes", "--top", "3", "-o", "json"),
    )

    assert finished.returncode == 0, finished.stderr
    delays_by_origin = defaultdict(list)
    for flight in FLIGHTS:
        event = json.loads(flight.value) if flight.value else {"origin": None}
        delays_by_origin[event["origin"]].append(flight.delay_minutes if flight.value else None)
    expected = [
        (origin, len(delays), pytest.approx(mean_of(delays)))
        for origin, delays in delays_by_origin.items()
    ]
    groups = [tuple(group.values()) for group in json.loads(finished.stdout)]
    assert len(groups) == 3
    assert all(group in expected for group in groups)


def mean_of(values: list[int | None]) -> float:
    present = [value for value in values if value is not None]
    return sum(present) / len(present)


def test_aggregate_without_a_measure_says_what_to_give(
    broker: RunningBroker, spark_home: Path
) -> None:
    finished = run_aggregate(broker, spark_home, "--topic", TOPIC, "--group-by", ".origin")

    assert finished.returncode == 2
    assert "give --count, or --avg with a field" in finished.stderr


def test_aggregate_of_a_missing_topic_is_one_sentence(
    broker: RunningBroker, spark_home: Path
) -> None:
    arguments = ("--topic", "nosuch", "--group-by", ".origin", "--count")
    finished = run_aggregate(broker, spark_home, *arguments)

    assert finished.returncode == 1
    assert finished.stderr.count("\n") == 1
    assert 'topic "nosuch" does not exist' in finished.stderr
