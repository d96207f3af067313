"""The jobs as their users run them: what they print, how they end."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.extras import install_command
from tests.support.broker.fixtures import RunningBroker
from tests.support.spark.spark import (
    FLIGHT_COUNT,
    FLIGHTS,
    FLIGHTS_TOPIC,
    SPARK_MARKS,
    job_command,
    job_environment,
    run_job,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK_MARKS

WAIT_S_MAX = 60
AGGREGATE = ("--topic", FLIGHTS_TOPIC, "--group-by", ".origin")
MEASURES = ("--count", "--avg", ".times.delayMinutes", "--top", "3")


@pytest.mark.parametrize("mode", [[], ["--streaming"]], ids=["batch", "streaming"])
def test_aggregate_prints_its_largest_groups(
    spark: "SparkSession",
    flights_broker: RunningBroker,
    capsys: pytest.CaptureFixture[str],
    mode: list[str],
) -> None:
    from tailrace.spark.jobs import aggregate

    called = aggregate.parse_arguments(
        ["--url", flights_broker.url, *AGGREGATE, *MEASURES, "-o", "json", *mode]
    )

    assert aggregate.run(spark, called) == 0
    assert_three_groups(capsys.readouterr().out)


def test_aggregate_prints_a_table(
    spark: "SparkSession", flights_broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    from tailrace.spark.jobs import aggregate

    called = aggregate.parse_arguments(["--url", flights_broker.url, *AGGREGATE, *MEASURES])

    assert aggregate.run(spark, called) == 0
    title, first, *others = capsys.readouterr().out.splitlines()
    assert title.split() == ["origin", "count", "avg_times_delayMinutes"]
    assert first.split()[:2] == ["JFK", "750"]
    assert len(others) == 2


def assert_three_groups(printed: str) -> None:
    delays_by_origin = defaultdict(list)
    for flight in FLIGHTS:
        event = json.loads(flight.value) if flight.value else {"origin": None}
        delays_by_origin[event["origin"]].append(flight.delay_minutes if flight.value else None)
    expected = [
        (origin, len(delays), pytest.approx(mean_of(delays)))
        for origin, delays in delays_by_origin.items()
    ]
    # The job before this one may have reported of its last micro-batch only now.
    groups = [tuple(group.values()) for group in json.loads(printed.splitlines()[-1])]
    assert len(groups) == 3
    assert all(group in expected for group in groups)


def mean_of(values: list[int | None]) -> float:
    present = [value for value in values if value is not None]
    return sum(present) / len(present)


@pytest.mark.parametrize(
    ("job", "arguments", "exit_code", "said"),
    [
        ("aggregate", AGGREGATE, 2, "give --count, or --avg with a field"),
        ("aggregate", ("--topic", "t", "--group-by", "origin"), 2, '"origin" is no path like'),
        ("audit", (), 2, "nothing to audit: give --topic"),
        ("audit", ("--parquet", "x"), 2, "--parquet and --checkpoint go together"),
        ("audit", ("--topic", "t", "--url", "ftp://localhost"), 2, "is not a broker's URL"),
        ("audit", ("--topic", "nosuch"), 1, 'error: No such topic: topic "nosuch" does not exist'),
        ("archive", ("--topic", "nosuch", "--path", "x", "--checkpoint", "y"), 1, '"nosuch"'),
        ("archive", ("--topic", "t", "--path", "x"), 2, "required: --checkpoint"),
    ],
)
def test_a_wrong_call_is_refused_in_a_sentence_before_spark_starts(
    flights_broker: RunningBroker,
    job: str,
    arguments: tuple[str, ...],
    exit_code: int,
    said: str,
) -> None:
    finished = run_job(job, "--url", flights_broker.url, *arguments)

    assert finished.returncode == exit_code
    assert said in finished.stderr.splitlines()[-1]
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("java_home", ["nosuch", "old"])
def test_without_a_java_that_spark_runs_on_there_is_a_sentence(
    flights_broker: RunningBroker, tmp_path: Path, java_home: str
) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)

    finished = subprocess.run(
        job_command("audit", "--url", flights_broker.url, "--topic", FLIGHTS_TOPIC),
        env=job_environment() | {"JAVA_HOME": str(tmp_path / java_home)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 1
    found = "11.0.2" if java_home == "old" else "none"
    assert finished.stderr == (
        f"error: Spark needs Java 17 or newer (found: {found}): install it, or set JAVA_HOME to "
        "where it is\n"
    )


def test_without_pyspark_there_is_a_sentence() -> None:
    """-S leaves out the packages that are installed; ours is reached by its folder."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "client")}

    finished = subprocess.run(
        [sys.executable, "-S", *job_command("audit", "--topic", "t")[1:]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 1
    assert finished.stderr == (f"error: Spark is not installed here: {install_command('spark')}\n")


def test_an_archive_goes_on_until_it_is_interrupted(
    flights_broker: RunningBroker, tmp_path: Path
) -> None:
    folders = ("--path", str(tmp_path / "files"), "--checkpoint", str(tmp_path / "checkpoint"))
    command = job_command(
        "archive", "--url", flights_broker.url, "--topic", FLIGHTS_TOPIC, *folders
    )

    with subprocess.Popen(
        command, env=job_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        first_line = job.stdout.readline()
        job.send_signal(signal.SIGINT)
        _, said = job.communicate(timeout=WAIT_S_MAX)

    assert first_line.startswith("flights: batch 0, ")
    assert job.returncode == 130
    assert "Traceback" not in said


class Archive:
    """A topic's archive, made by a job, and audits of it in the tests' own Spark."""

    def __init__(self, spark: "SparkSession", broker: RunningBroker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.files = folder / "files"
        self.checkpoint = folder / "checkpoint"

    def audit(self, *arguments: str, files: Path | None = None) -> int:
        from tailrace.spark.jobs import audit

        archived = ("--parquet", str(files or self.files), "--checkpoint", str(self.checkpoint))
        called = audit.parse_arguments(["--url", self.broker.url, *archived, *arguments])
        return audit.audit(self.spark, called)

    def parquet_files(self) -> list[Path]:
        return sorted(self.files.glob("*.parquet"))


@pytest.fixture
def archive(spark: "SparkSession", flights_broker: RunningBroker, tmp_path: Path) -> Archive:
    """Of the flights."""
    from tailrace.spark.jobs import archive as job

    made = Archive(spark, flights_broker, tmp_path)
    arguments = ("--path", str(made.files), "--checkpoint", str(made.checkpoint), "--once")
    called = job.parse_arguments(
        ["--url", flights_broker.url, "--topic", FLIGHTS_TOPIC, *arguments]
    )
    assert job.archive(spark, called) == 0
    return made


def test_an_archive_is_whole(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    assert archive.audit() == 0
    assert archive.audit("--topic", FLIGHTS_TOPIC) == 0

    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("audit")]
    line = f"audit: {FLIGHT_COUNT:,} records, 4 partitions, gaps=0 duplicates=0 unordered_keys=0"
    assert said == [line, line]
    assert "headers" in archive.spark.read.parquet(str(archive.files)).columns


def test_a_topic_is_whole(
    spark: "SparkSession", flights_broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    from tailrace.spark.jobs import audit

    called = audit.parse_arguments(["--url", flights_broker.url, "--topic", FLIGHTS_TOPIC])

    assert audit.audit(spark, called) == 0
    assert "3,000 records, 4 partitions, gaps=0 duplicates=0" in capsys.readouterr().out


def test_a_file_that_is_missing_fails_the_audit(archive: Archive) -> None:
    archive.parquet_files()[0].unlink()

    finished = run_job(
        "audit", "--parquet", str(archive.files), "--checkpoint", str(archive.checkpoint)
    )

    assert finished.returncode == 1
    assert "Traceback" not in finished.stderr
    last_line = finished.stderr.splitlines()[-1]
    assert last_line.startswith("error: [FAILED_READ_FILE")
    assert archive.parquet_files()[0].parent.name in last_line


def test_a_file_that_is_missing_and_forgotten_is_a_gap(
    archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(archive.files / "_spark_metadata")
    lost = archive.parquet_files()[0]
    count = archive.spark.read.parquet(str(lost)).count()
    lost.unlink()

    assert archive.audit("--topic", FLIGHTS_TOPIC) == 1
    assert f"gaps={count} duplicates=0" in capsys.readouterr().out


def test_a_file_that_is_there_twice_is_found(
    archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(archive.files / "_spark_metadata")
    original = archive.parquet_files()[0]
    count = archive.spark.read.parquet(str(original)).count()
    shutil.copy(original, archive.files / "again.parquet")

    assert archive.audit() == 1
    assert f"gaps=0 duplicates={count}" in capsys.readouterr().out


def test_a_key_in_two_partitions_at_once_is_found(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = archive.spark.read.parquet(str(archive.files))
    mixed = rows.selectExpr(
        "topic", "partition", "offset", "if(key = 'JFK', X'53464F', key) AS key"
    )
    mixed.write.parquet(str(tmp_path / "mixed"))

    assert archive.audit(files=tmp_path / "mixed") == 1
    assert "gaps=0 duplicates=0 unordered_keys=1" in capsys.readouterr().out


def test_without_keys_their_order_cannot_be_reported(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = archive.spark.read.parquet(str(archive.files))
    rows.select("topic", "partition", "offset").write.parquet(str(tmp_path / "bare"))

    assert archive.audit(files=tmp_path / "bare") == 0
    assert capsys.readouterr().out.endswith("gaps=0 duplicates=0\n")


def test_an_archive_without_offsets_cannot_be_audited(archive: Archive, tmp_path: Path) -> None:
    rows = archive.spark.read.parquet(str(archive.files))
    rows.select("key", "value").write.parquet(str(tmp_path / "bare"))

    with pytest.raises(
        Exception, match="cannot be audited without column offset, partition, topic"
    ):
        archive.audit(files=tmp_path / "bare")
