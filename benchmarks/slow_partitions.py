"""What do many slow partitions cost?

Events of 100 bytes at a steady rate, durability `fsync`, over 8 connections. 200 partitions of one
topic get 10 a second each, as one event a request, and as one records+binary request a tenth of a
second that holds one of each; 2,000 partitions of 8 topics get one a second each, one a request.

Sketch of a second, CPU ms:

| step                                                       | 2,000 requests | 10 requests |
|------------------------------------------------------------|----------------|-------------|
| HTTP, key, check, answer: 18 µs an event; 2 in a batch     |             36 |           4 |
| a batch of one event: columns, checksum, header, 15 µs     |             30 |          30 |
| journal writes: one for what comes within 0.2 ms, 90 µs    |            150 |           1 |
| spilled to segments: 64 KiB a partition each six minutes   |              1 |           1 |
| sum                                                        |            220 |          36 |

Partitions that nothing comes for cost nothing, so 2,000 at 1 Hz cost what 200 at 10 Hz do.
Bound for single events: the durable write, which almost no two share at this rate.
"""

from collections.abc import Iterator

from benchmarks.broker import (
    PRODUCE_LISTENER,
    broker_on_disk,
    create_topic,
    keys_of_partitions,
    produce,
    rss_max_mib,
    write_count,
)
from benchmarks.events import readings
from benchmarks.load import Load, Target, request_bytes, run_in_own_process
from benchmarks.report import Row, costs
from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import produce_records_request, produce_request
from tailrace.wire import JSON_CONTENT_TYPE

EVENT_BYTES = 100
EVENTS_PER_S = 2_000
SECONDS = 12
CONNECTION_COUNT = 8
AIMS = {"cpu_percent_of_core": 5, "rss_max_mib": 128}


def run() -> Iterator[Row]:
    """Ask the same rate of few and of many partitions."""
    few = _keys(topic_count=1, partition_count=200)
    many = _keys(topic_count=8, partition_count=250)
    yield _ask("slow_partitions_200", "200 at 10 Hz, an event a request", few, 1)
    yield _ask("slow_partitions_200_together", "200 at 10 Hz, 200 events a request", few, 200)
    yield _ask("slow_partitions_2000", "2,000 at 1 Hz, an event a request", many, 1)


def _keys(topic_count: int, partition_count: int) -> list[tuple[str, str]]:
    """Topic and key of each partition; the topics in turn."""
    keys = keys_of_partitions(partition_count)
    return [(f"slow-{topic}", key) for key in keys for topic in range(topic_count)]


def _ask(question: str, asked: str, keys: list[tuple[str, str]], request_event_count: int) -> Row:
    values = [event.value for event in readings(len(keys), EVENT_BYTES)]
    if request_event_count == 1:
        requests = [
            request_bytes(produce_request(topic, value, content_type=JSON_CONTENT_TYPE, key=key))
            for (topic, key), value in zip(keys, values, strict=True)
        ]
    else:
        assert request_event_count == len(keys)
        body = encode_records([key.encode() for _, key in keys], values)
        requests = [request_bytes(produce_records_request(keys[0][0], body))]
    topics = {topic for topic, _ in keys}
    requests_per_s = EVENTS_PER_S / request_event_count
    with broker_on_disk() as broker:
        for topic in topics:
            create_topic(broker, topic, partitionsPerRange=len(keys) // len(topics))
        produce(broker, requests, len(requests), CONNECTION_COUNT)  # the first event of each
        load = Load(
            targets=[Target(broker.port + PRODUCE_LISTENER, requests)],
            request_count=int(SECONDS * requests_per_s),
            connection_count=CONNECTION_COUNT,
            server_pids=[broker.pid],
            requests_per_s=requests_per_s,
        )
        writes_before = write_count(broker)
        result = run_in_own_process(load)
        writes = write_count(broker) - writes_before
        rss_loaded_mib = rss_max_mib(broker)
    event_count = result.request_count * request_event_count
    figures = costs(result, event_count=event_count, event_bytes=EVENT_BYTES)
    figures |= {
        "cpu_percent_of_core": result.server_cpu_s / result.seconds * 100,
        "events_per_write": event_count / writes,
        "rss_max_mib": rss_loaded_mib,
    }
    return Row(question, f"slow partitions, {asked}, `fsync`", figures, AIMS)
