"""How long does a broker take from its start to ready, after SIGKILL?

With nothing stored; with 1,000 MiB in 4 partitions, each just short of a whole segment, so that all
of it has to be read, and 20,000 single events behind them; and with 2,000 partitions of one event
each. Each start follows a SIGKILL; the median of several. Nothing of it is in the page cache.

Sketch, CPU s (and of the clock, where it waits for the disk):

| step                                                  | 1,000 MiB   | 2,000 partitions |
|-------------------------------------------------------|-------------|------------------|
| Python and its imports, the listeners: all with nothing   | 0.35        | 0.35             |
| direct reads, 2.6 GiB/s                               | 0.05 (0.40) |                  |
| checksums, 20 GiB/s; 1,650 headers, 10 µs each        | 0.07        |                  |
| journal: what no segment has yet, read and checked    | 0.02        | 0.05             |
| a partition: its directory listed, its log made ready |             | 2,000 x 150 µs   |
| sum                                                   | 0.49 (0.84) | 0.70             |

Bound: the disk; then the partitions, one after the other.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.batches import batch_requests
from benchmarks.broker import (
    TOPIC,
    broker_on_disk,
    create_topic,
    keys_of_partitions,
    produce,
    rss_max_mib,
)
from benchmarks.events import readings
from benchmarks.load import cpu_seconds, request_bytes
from benchmarks.report import MIB, Row
from tailrace.local.broker import LocalBroker
from tailrace.protocol.requests import produce_request
from tailrace.wire import JSON_CONTENT_TYPE, Codec

PARTITION_COUNT = 4
STORED_BYTES = 1_000 * MIB
CONNECTION_COUNT = 4
SINGLE_EVENT_COUNT = 20_000
SINGLE_CONNECTION_COUNT = 64
TOPIC_COUNT = 8
TOPIC_PARTITION_COUNT = 250
START_COUNT = 5


def run() -> Iterator[Row]:
    """Ask with nothing, with much data and with many partitions."""
    yield _ask("start", "nothing stored", 0.7, lambda _: None)
    yield _ask("recovery", "1,000 MiB in 4 partitions", 2, _fill_segments)
    yield _ask("recovery_2000_partitions", "2,000 partitions", 2, fill_partitions)


def fill_partitions(broker: LocalBroker) -> None:
    """One event in each of 2,000 partitions."""
    topics = [f"topic-{number}" for number in range(TOPIC_COUNT)]
    for topic in topics:
        create_topic(broker, topic, partitionsPerRange=TOPIC_PARTITION_COUNT)
    keys = keys_of_partitions(TOPIC_PARTITION_COUNT)
    requests = [_event_request(topic, key, b"1") for topic in topics for key in keys]
    produce(broker, requests, len(requests), CONNECTION_COUNT)


def _fill_segments(broker: LocalBroker) -> None:
    create_topic(broker, partitionsPerRange=PARTITION_COUNT)
    requests = batch_requests(Codec.LZ4, PARTITION_COUNT)
    mean_bytes = sum(map(len, requests)) // len(requests)
    produce(broker, requests, STORED_BYTES // mean_bytes, CONNECTION_COUNT)
    events = readings(SINGLE_EVENT_COUNT, 100)
    requests = [_event_request(TOPIC, event.key, event.value) for event in events]
    produce(broker, requests, SINGLE_EVENT_COUNT, SINGLE_CONNECTION_COUNT)


def _event_request(topic: str, key: str, value: bytes) -> bytes:
    return request_bytes(produce_request(topic, value, content_type=JSON_CONTENT_TYPE, key=key))


def _ask(question: str, stored: str, aim_s: float, fill: Callable[[LocalBroker], None]) -> Row:
    """Fill, then kill and start several times."""
    ready_s, cpu_s = [], []
    with broker_on_disk() as broker:
        fill(broker)
        for _ in range(START_COUNT):
            broker.kill()
            start_s = time.perf_counter()
            broker.start()
            broker.wait_ready()
            ready_s.append(time.perf_counter() - start_s)
            cpu_s.append(cpu_seconds(broker.pid))
        rss_loaded_mib = rss_max_mib(broker)
    figures = {
        "ready_s": median(ready_s),
        "ready_max_s": max(ready_s),
        "broker_cpu_s": median(cpu_s),
        "rss_max_mib": rss_loaded_mib,
    }
    return Row(question, f"start to ready after SIGKILL, {stored}", figures, {"ready_s": aim_s})
