"""What does it cost to read events back as NDJSON that came one by one?

64 connections with one request outstanding each produce events of 100 bytes, and of 1 KiB, over 4
partitions, `written`; their batches hold what gathered while a write was under way, some ten
events. Then 4 connections read all of it, 10,000 records a request, again and again; then the four
consumers of one group after the other do.

Sketch of an event of 1 KiB, CPU µs:

| step                                                                     | µs   |
|--------------------------------------------------------------------------|------|
| a batch of 10 found, its checksum, inflated, columns: 12 µs / 10         |  1.2 |
| the line: offset, key, timestamp, the value as it is; one join           |  1.5 |
| 1.1 KiB copied to the socket                                             |  0.3 |
| a share of the request                                                   |  0.1 |
| sum                                                                      |  3.1 |

The key and the value are not parsed again: they were checked when they came. Bound: the event
loop's core.
"""

from collections.abc import Iterator

from benchmarks.broker import (
    READ_LISTENER,
    broker_on_disk,
    create_topic,
    produce,
    rss_max_mib,
)
from benchmarks.events import Event, orders, readings
from benchmarks.groups import read_by_groups
from benchmarks.load import Load, Target, request_bytes, run_in_own_process
from benchmarks.report import Row, costs
from benchmarks.requests import line_reads, single_events

EVENT_COUNT = 4096
STORED_COUNT = 60_000
PRODUCER_COUNT = 64
PARTITION_COUNT = 4
REQUEST_RECORDS = 10_000
READ_BYTES_MAX = 16 << 20
REPEAT_COUNT = 10
AIMS = {"events_per_s": 150_000, "broker_cpu_us_per_event": 4, "rss_max_mib": 170}


def run() -> Iterator[Row]:
    """Ask with both sizes."""
    yield _ask("single_event_readback_100b", readings(EVENT_COUNT, 100))
    yield _ask("single_event_readback_1kib", orders(EVENT_COUNT, 1024))


def _ask(question: str, events: list[Event]) -> Row:
    event_bytes = len(events[0].value)
    with broker_on_disk() as broker:
        create_topic(broker, partitionsPerRange=PARTITION_COUNT, durability="written")
        produce(broker, single_events(events), STORED_COUNT, PRODUCER_COUNT)
        events_per_batch = STORED_COUNT / broker.metrics()["tailrace_log_appended_batches_total"]
        reads = [request_bytes(read) for read in line_reads(broker, REQUEST_RECORDS)]
        load = Load(
            targets=[Target(broker.port + READ_LISTENER, reads)],
            request_count=REPEAT_COUNT * len(reads),
            connection_count=PARTITION_COUNT,
            server_pids=[broker.pid],
        )
        result = run_in_own_process(load)
        by_groups = read_by_groups(
            broker,
            "readers",
            group_count=REPEAT_COUNT,
            consumer_count=PARTITION_COUNT,
            form="ndjson",
            max_records=REQUEST_RECORDS,
            max_bytes=READ_BYTES_MAX,
        )
        rss_loaded_mib = rss_max_mib(broker)
    event_count = REPEAT_COUNT * STORED_COUNT
    figures = costs(result, event_count=event_count, event_bytes=event_bytes)
    figures |= {
        "events_per_s": event_count / result.seconds,
        "group_events_per_s": event_count / by_groups.seconds,
        "group_broker_cpu_us_per_event": by_groups.server_cpu_s / event_count * 1e6,
        "events_per_batch": events_per_batch,
        "rss_max_mib": rss_loaded_mib,
    }
    asked = (
        f"events of {event_bytes:,} B that came one by one over {PRODUCER_COUNT} connections, read "
        "as NDJSON"
    )
    return Row(question, asked, figures, AIMS)
