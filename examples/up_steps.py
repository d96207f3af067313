"""The steps of the main job: produce, read back, Spark. Each measures and checks what it says."""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from examples.up_events import Events, OrderCheck, UpError
from tailrace.arrow import decode_batches
from tailrace.errors import PartitionDamagedError, TailraceError
from tailrace.requests import TopicInfo
from tailrace.sync import Client

REQUEST_EVENTS = 1000
REQUEST_BYTES = 4 * 1024 * 1024  # a quarter of the broker's default maxRequestBytes
READ_BYTES = 4 * 1024 * 1024
TOP_GROUPS = 5
JAVA_MAJOR_MIN = 17
JAVA_SECONDS_MAX = 30.0
SPARK_SECONDS_MAX = 600.0


class Produced(NamedTuple):
    """What producing took; latencies are of requests, ascending."""

    event_count: int
    seconds: float
    latencies_ms: list[float]
    errors: list[TailraceError]

    def latency_ms(self, share: float) -> float:
        """The latency that this share of the requests kept; nearest rank."""
        return self.latencies_ms[math.ceil(share * len(self.latencies_ms)) - 1]


class SparkResult(NamedTuple):
    """What Spark read: all rows, distinct (partition, offset), and the largest groups."""

    rows: int
    distinct: int
    groups: list[list[str | float | None]]


def find_or_create(client: Client, name: str) -> TopicInfo:
    """The topic as it is, or a new one with the broker's defaults."""
    for topic in client.topics():
        if topic.name == name:
            return topic
    return client.create_topic(name)


def ends_of(client: Client, topic: str) -> dict[int, int]:
    """The high watermark of each partition; UpError when one has none, since it is damaged."""
    try:
        return {each.partition: each.readable().stop for each in client.offsets([topic])}
    except PartitionDamagedError as error:
        raise UpError(f"{error}; or make up FRESH=1 starts from no data") from error


def produce(client: Client, events: Events, *, repeat_count: int) -> Produced:
    """Send all events, `repeat_count` times, one request after the other."""
    latencies_ms: list[float] = []
    errors: list[TailraceError] = []
    started = time.perf_counter()
    for _ in range(repeat_count):
        for part in requests_of(events):
            request_started = time.perf_counter()
            try:
                client.produce_records(events.topic, events.keys[part], events.values[part])
            except TailraceError as error:
                errors.append(error)
            latencies_ms.append((time.perf_counter() - request_started) * 1000)
    seconds = time.perf_counter() - started
    return Produced(len(events.values) * repeat_count, seconds, sorted(latencies_ms), errors)


def requests_of(events: Events) -> Iterator[slice]:
    """Cut the events into requests of at most so many events and, but for a single one, bytes."""
    start = size_bytes = 0
    for index, (key, value) in enumerate(zip(events.keys, events.values, strict=True)):
        size_bytes += len(key) + len(value)
        if index > start and (size_bytes > REQUEST_BYTES or index - start == REQUEST_EVENTS):
            yield slice(start, index)
            start, size_bytes = index, len(key) + len(value)
    yield slice(start, len(events.values))


def read_back(
    client: Client, events: Events, starts: Mapping[int, int], *, repeat_count: int
) -> int:
    """Read every partition from `starts` on; how many events. UpError when they are not as sent."""
    check = OrderCheck(events, repeat_count=repeat_count)
    for partition, end in ends_of(client, events.topic).items():
        position = starts.get(partition, 0)
        while position < end:
            fetched = client.read_batches(events.topic, partition, position, max_bytes=READ_BYTES)
            for batch in decode_batches(fetched.body, topic=events.topic, start=position, end=end):
                keys, values = batch["key"].to_pylist(), batch["value"].to_pylist()
                check.feed(partition, zip(keys, values, strict=True))
            if fetched.next_offset <= position:
                raise UpError(f"partition {partition} ends at {position}, not at {end}")
            position = fetched.next_offset
    return check.finish()


def java_version() -> str | None:
    """Of the Java that Spark would start; None without one."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path("java")
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', said.stderr)
    return found[1] if found else None


def can_run_spark(java: str) -> bool:
    """Whether this version of Java is new enough; before 9 they are called 1.x."""
    return int(java.partition(".")[0]) >= JAVA_MAJOR_MIN


def run_spark(
    url: str, topic: str, *, key: str, averages: Sequence[str], log_path: Path
) -> SparkResult:
    """Count and group all that the topic holds. What Spark logs goes to `log_path`."""
    command = [sys.executable, "-m", "examples.up_spark", "--url", url, "--topic", topic]
    command += ["--group-by", key, "--top", str(TOP_GROUPS)]
    command += [argument for average in averages for argument in ("--avg", average)]
    try:
        with log_path.open("wb") as log:
            job = subprocess.run(
                command,
                # Spark's Python workers are else whatever `python3` is.
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=SPARK_SECONDS_MAX,
                check=True,
            )
    except subprocess.SubprocessError as error:
        raise UpError(f"the Spark job failed: {error}; what it said is in {log_path}") from error
    return SparkResult(**json.loads(job.stdout))
