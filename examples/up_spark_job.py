"""The process of the main job's Spark part, which is `examples.up_spark`."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple, Self

from examples.up_brokers import DATA_DIR
from examples.up_events import Events, UpError
from examples.up_report import Row

LOG_PATH = DATA_DIR / "spark.log"
TOP_GROUPS = 5
MICRO_BATCHES = 4
SPARK_SECONDS_MAX = 600.0
# For seconds of work on a few MiB: less compiling (17 against 29 s of CPU).
SUBMIT_ARGUMENTS = (
    "--master local[*] --conf spark.driver.host=127.0.0.1 "
    '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" pyspark-shell'
)


class SparkResult(NamedTuple):
    """What Spark read: all rows, distinct (partition, offset), and the largest groups."""

    micro_batches: int
    rows: int
    distinct: int
    groups: list[list[str | float | None]]


class SparkJob:
    """Spark in a process: it streams, counts and groups what the topic holds.

    For a block, at whose end it is killed if it has not ended. What it logs goes to LOG_PATH.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = [sys.executable, "-m", "examples.up_spark", *words]
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = stack.enter_context(
                TemporaryDirectory(dir=DATA_DIR, prefix="spark-", ignore_cleanup_errors=True)
            )
            log = stack.enter_context(LOG_PATH.open("wb"))
            self._process = stack.enter_context(
                subprocess.Popen(
                    [*self._words, "--dir", folder],
                    env=os.environ | {"PYSPARK_SUBMIT_ARGS": SUBMIT_ARGUMENTS},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            )
            stack.callback(self._process.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def wait_streaming(self) -> None:
        """Of a job that follows the topic: until its first micro-batch is written."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise self._failure("it has ended")

    def result(self) -> SparkResult:
        """Wait for its end; one that follows the topic first reads all that it holds by now."""
        assert self._process is not None
        try:
            said, _ = self._process.communicate(timeout=SPARK_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise self._failure(str(error)) from error
        if self._process.returncode:
            raise self._failure(f"exit code {self._process.returncode}")
        return SparkResult(**json.loads(said))

    def _failure(self, reason: str) -> UpError:
        return UpError(f"the Spark job failed: {reason}; what it said is in {LOG_PATH}")


def spark_words(
    urls: Sequence[str],
    events: Events,
    *,
    held_count: int,
    averages: Sequence[str],
    follows: bool = False,
) -> list[str]:
    """The job's arguments. A micro-batch is a quarter of what the topic holds now; for a job that
    follows it, all of that.
    """
    batch_records = max(1, held_count if follows else math.ceil(held_count / MICRO_BATCHES))
    words = ["--url", ",".join(urls), "--topic", events.topic, "--group-by", events.key]
    words += ["--batch-records", str(batch_records), "--top", str(TOP_GROUPS)]
    words += [word for average in averages for word in ("--avg", average)]
    return [*words, *(["--follow"] if follows else [])]


def spark_result(line: Row, job: SparkJob, *, held_count: int) -> SparkResult:
    """UpError unless Spark has read each event once."""
    result = job.result()
    line.text = (
        f"{result.rows:,} rows in {result.micro_batches} micro-batches; "
        f"{result.distinct:,} distinct (partition, offset)"
    )
    if not result.rows == result.distinct == held_count:
        raise UpError(
            f"the topic holds {held_count:,} events; Spark has read {result.rows:,}, of which "
            f"{result.distinct:,} are distinct"
        )
    return result
