"""A query that reads while broker and driver are killed writes every record once.

A job archives a topic that is being produced to. Its broker is killed once; its driver, with Java
and all, twice, in the middle of a batch: planned in Spark's log and not committed.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import TailraceError
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.spark.spark import SPARK_MARKS, ends_of, job_command, job_environment, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*SPARK_MARKS, pytest.mark.timeout(300)]

BATCHES = 2  # that are to be committed before the next thing dies
WAIT_S_MAX = 90
REQUEST_RECORD_COUNT = 500
PAUSE_S = 0.05  # between requests: some 10,000 records a second


class ArchiveJob:
    """The job's process, and what Spark's log says that it has done."""

    def __init__(self, broker: RunningBroker, topic: str, folder: Path) -> None:
        self.files, self.checkpoint = folder / "files", folder / "checkpoint"
        self.said = folder / "said"
        self.arguments = ["--url", broker.url, "--topic", topic]
        self.folders = ["--path", str(self.files), "--checkpoint", str(self.checkpoint)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """In a process group of its own, as long as it may."""
        command = job_command("archive", *self.arguments, *self.folders, "--every", "1")
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                command, env=job_environment(), stdout=said, stderr=said, start_new_session=True
            )

    def kill(self) -> None:
        """All of the group: the driver, and its Java before it can do anything about it."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def planned(self) -> int:
        """Batches that are in Spark's log."""
        return _largest(self.checkpoint / "offsets")

    def committed(self) -> int:
        """Those of them that are done."""
        return _largest(self.checkpoint / "commits")

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """As long as the process lives."""
        assert self.process is not None
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not holds():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline_s, self.said.read_text()
            time.sleep(0.002)

    def wait_for_batches(self) -> None:
        """Some more than there are now."""
        enough = self.committed() + BATCHES
        self.wait_until(lambda: self.committed() >= enough)

    def kill_within_a_batch(self) -> None:
        """Between Spark's note that it begins a batch and its note that the batch is done."""
        assert self.process is not None
        while True:
            self.wait_until(lambda: self.planned() > self.committed())
            os.killpg(self.process.pid, signal.SIGSTOP)
            if self.planned() > self.committed():
                return self.kill()
            os.killpg(self.process.pid, signal.SIGCONT)


def _largest(folder: Path) -> int:
    return max((int(path.name) + 1 for path in folder.glob("[0-9]*")), default=0)


@contextmanager
def produced_to(broker: RunningBroker, topic: str) -> Iterator[None]:
    """Records of a hundred keys as long as the block runs; again and again while no broker is."""
    is_over = threading.Event()

    def produce() -> None:
        keys = [b"%d" % (number % 100) for number in range(REQUEST_RECORD_COUNT)]
        with Client(broker.url) as client:
            while not is_over.wait(PAUSE_S):
                try:
                    client.produce_records(topic, keys, keys)
                except TailraceError as error:
                    if not error.retriable:
                        raise

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield
    finally:
        is_over.set()
        producer.join()


def test_killed_broker_and_killed_drivers_leave_no_gap_and_no_duplicate(
    spark: "SparkSession",
    broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Client(broker.url) as client:
        client.create_topic(topic)
    job = ArchiveJob(broker, topic, tmp_path)
    try:
        with produced_to(broker, topic):
            job.start()
            job.wait_for_batches()
            broker.kill()
            broker.restart()
            job.wait_for_batches()
            job.kill_within_a_batch()
            job.start()
            job.wait_for_batches()
            job.kill_within_a_batch()
        finished = run_job("archive", *job.arguments, *job.folders, "--once")
    finally:
        job.kill()
    assert finished.returncode == 0, finished.stderr
    audited = run_job(
        "audit", *job.arguments, "--parquet", str(job.files), "--checkpoint", str(job.checkpoint)
    )

    record_count = sum(ends_of(broker, topic).values())
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert audited.stdout == (
        f"audit: {record_count:,} records, 4 partitions, gaps=0 duplicates=0 unordered_keys=0\n"
    )
    check_that_audits_find_what_is_wrong(spark, job, tmp_path / "copy", capsys)


def check_that_audits_find_what_is_wrong(
    spark: "SparkSession", job: ArchiveJob, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a copy of the archive, which Spark's log in the folder does not protect."""
    from tailrace.spark.jobs import audit

    spark.read.parquet(str(job.files)).coalesce(4).write.parquet(str(copy))
    arguments = [*job.arguments, "--parquet", str(copy), "--checkpoint", str(job.checkpoint)]
    called = audit.parse_arguments(arguments)
    file = max(copy.glob("*.parquet"), key=lambda path: path.stat().st_size)

    assert audit.audit(spark, called) == 0
    shutil.copy(file, copy / "again.parquet")
    assert audit.audit(spark, called) == 1
    (copy / "again.parquet").unlink()
    file.unlink()
    assert audit.audit(spark, called) == 1

    whole, doubled, lost = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("audit: ")
    ]
    assert "gaps=0 duplicates=0" in whole
    assert "gaps=0 duplicates=0" not in doubled
    assert "gaps=0 " not in lost
    assert lost.endswith("duplicates=0 unordered_keys=0")
