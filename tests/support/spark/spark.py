"""Spark for tests, the records that they read, and the project's jobs as processes."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.local.broker import plain_environment
from tailrace.spark.java import can_run_spark, java_version
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JAVA = java_version()
HAS_SPARK = (
    importlib.util.find_spec("pyspark") is not None and _JAVA is not None and can_run_spark(_JAVA)
)
# Skipped only where Java or pyspark is missing, and never in CI.
SPARK_MARKS = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.skipif(not HAS_SPARK and "CI" not in os.environ, reason="no Java or no pyspark"),
]
MASTER = "local[2]"
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
JOB_S_MAX = 120.0

FLIGHTS_TOPIC = "flights"
FLIGHT_COUNT = 3000
AIRPORTS = [b"SFO", b"JFK", b"PHX", None]
_REQUEST_RECORD_COUNT = 100


class Flight:
    """Record `number` of a topic: its key and value by rules that a test can repeat."""

    def __init__(self, number: int) -> None:
        self.key = AIRPORTS[number % len(AIRPORTS)]
        self.delay_minutes = number % 50
        self.value = None if number % 100 == 99 else self._event().encode()

    def _event(self) -> str:
        origin = None if self.key is None else self.key.decode()
        return json.dumps({"origin": origin, "times": {"delayMinutes": self.delay_minutes}})


FLIGHTS = [Flight(number) for number in range(FLIGHT_COUNT)]


def produce_flights(broker: RunningBroker, topic: str, flights: list[Flight] = FLIGHTS) -> None:
    """Store them in many batches."""
    with Client(broker.url) as client:
        for start in range(0, len(flights), _REQUEST_RECORD_COUNT):
            part = flights[start : start + _REQUEST_RECORD_COUNT]
            client.produce_records(
                topic, [each.key for each in part], [each.value for each in part]
            )


def ends_of(broker: RunningBroker, topic: str = FLIGHTS_TOPIC) -> dict[int, int]:
    """The end of each partition; all begin at 0."""
    with Client(broker.url) as client:
        return {row.partition: row.readable().stop for row in client.offsets([topic])}


def read(spark: "SparkSession", broker: RunningBroker, **options: str | int) -> "DataFrame":
    """A batch read, of the flights unless the options say what else."""
    options = options or {"subscribe": FLIGHTS_TOPIC}
    return spark.read.format("tailrace").options(url=broker.url, **options).load()


def stream(spark: "SparkSession", broker: RunningBroker, **options: str | int) -> "DataFrame":
    """A streaming read."""
    return spark.readStream.format("tailrace").options(url=broker.url, **options).load()


def bytes_of(value: bytearray | bytes | None) -> bytes | None:
    """What Spark has in a column of bytes."""
    return None if value is None else bytes(value)


def places_of(rows: list[Any]) -> list[tuple[int, int]]:
    """Partition and offset of each row, sorted."""
    return sorted((row.partition, row.offset) for row in rows)


def all_places(ends: dict[int, int]) -> list[tuple[int, int]]:
    """What a whole topic's rows have."""
    return [(partition, offset) for partition in sorted(ends) for offset in range(ends[partition])]


def job_command(job: str, *arguments: str) -> list[str]:
    """One of the project's jobs."""
    return [sys.executable, "-m", f"tailrace.spark.jobs.{job}", *arguments]


def job_environment() -> dict[str, str]:
    """For a job's process: Spark is set up by the job, but for what tests want of it."""
    conf = [f"--conf '{name}={value}'" for name, value in SPARK_CONF.items()]
    environment = plain_environment()
    for name in ("PYSPARK_PYTHON", "SPARK_HOME"):
        environment.pop(name, None)
    environment["PYSPARK_SUBMIT_ARGS"] = " ".join(["--master", MASTER, *conf, "pyspark-shell"])
    return environment


def run_job(job: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    return subprocess.run(
        job_command(job, *arguments),
        env=job_environment(),
        capture_output=True,
        text=True,
        timeout=JOB_S_MAX,
        check=False,
    )
