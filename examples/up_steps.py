"""The steps of the main job: produce, and read back. Each measures and checks what it says."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from examples.up_events import Events, OrderCheck, UpError
from tailrace.arrow.batches import decode_batches
from tailrace.errors import PartitionDamagedError, PartitionUnavailableError, TailraceError
from tailrace.sync import Client
from tailrace.values import TopicInfo

REQUEST_EVENTS = 1000
REQUEST_BYTES = 4 * 1024 * 1024  # a quarter of the broker's default maxRequestBytes
READ_BYTES = 4 * 1024 * 1024
LEADER_SECONDS_MAX = 10.0
POLL_SECONDS = 0.02


class Produced(NamedTuple):
    """What producing took; latencies are of requests, ascending."""

    event_count: int
    seconds: float
    latencies_ms: list[float]
    errors: list[TailraceError]

    def latency_ms(self, share: float) -> float:
        """The latency that this share of the requests kept; nearest rank."""
        return self.latencies_ms[math.ceil(share * len(self.latencies_ms)) - 1]


def find_or_create(client: Client, name: str) -> TopicInfo:
    """The topic as it is, or a new one with the broker's defaults."""
    for topic in client.topics():
        if topic.name == name:
            return topic
    return client.create_topic(name)


def ends_of(client: Client, topic: str) -> dict[int, int]:
    """The high watermark of each partition; UpError when one has none, since it is damaged.

    For a partition whose leader has just begun it waits.
    """
    deadline_s = time.monotonic() + LEADER_SECONDS_MAX
    while True:
        try:
            return {row.partition: row.readable().stop for row in client.offsets([topic])}
        except PartitionDamagedError as error:
            raise UpError(f"{error}; or make up FRESH=1 starts from no data") from error
        except PartitionUnavailableError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(POLL_SECONDS)


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
