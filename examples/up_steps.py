"""The steps of the main job: produce, read back, Spark. Each measures and checks what it says."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from examples.up_events import Events, OrderCheck, UpError
from tailrace.arrow.batches import decode_batches
from tailrace.errors import PartitionDamagedError, TailraceError
from tailrace.sync import Client
from tailrace.values import TopicInfo

REQUEST_EVENTS = 1000
REQUEST_BYTES = 4 * 1024 * 1024  # a quarter of the broker's default maxRequestBytes
READ_BYTES = 4 * 1024 * 1024
TOP_GROUPS = 5
MICRO_BATCHES = 4
SPARK_SECONDS_MAX = 600.0
# For seconds of work on a few MiB: less compiling (17 against 29 s of CPU).
SUBMIT_ARGUMENTS = (
    "--master local[*] --conf spark.driver.host=127.0.0.1 "
    '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" pyspark-shell'
)


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

    micro_batches: int
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
        return {row.partition: row.readable().stop for row in client.offsets([topic])}
    except PartitionDamagedError as error:
        raise UpError(f"{error}; or make up FRESH=1 starts from no data") from error


def stored_bytes(client: Client) -> int:
    """Of all topics, what waits in the journal included."""
    return sum(
        partition_detail.size_bytes or 0
        for topic in client.topics()
        for partition_detail in client.topic(topic.name).partition_details
    )


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


def run_spark(
    url: str,
    topic: str,
    *,
    held_count: int,
    key: str,
    averages: Sequence[str],
    log_path: Path,
) -> SparkResult:
    """Stream, count and group all that the topic holds. What Spark logs goes to `log_path`."""
    batch_records = max(1, math.ceil(held_count / MICRO_BATCHES))
    with TemporaryDirectory(dir=log_path.parent, prefix="spark-") as directory:
        command = [sys.executable, "-m", "examples.up_spark", "--url", url, "--topic", topic]
        command += ["--dir", directory, "--batch-records", str(batch_records)]
        command += ["--group-by", key, "--top", str(TOP_GROUPS)]
        command += [argument for average in averages for argument in ("--avg", average)]
        try:
            with log_path.open("wb") as log:
                job = subprocess.run(
                    command,
                    env=os.environ | {"PYSPARK_SUBMIT_ARGS": SUBMIT_ARGUMENTS},
                    stdout=subprocess.PIPE,
                    stderr=log,
                    timeout=SPARK_SECONDS_MAX,
                    check=True,
                )
        except subprocess.SubprocessError as error:
            raise UpError(
                f"the Spark job failed: {error}; what it said is in {log_path}"
            ) from error
        return SparkResult(**json.loads(job.stdout))
