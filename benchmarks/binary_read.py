"""How much does it cost to read batches that are in memory, per GiB of event bytes?

Binary batches of data just produced (24 MiB stored, less than the cache), in answers of at most
1 MiB, over 4 connections with one request outstanding each, from the read door.

Sketch of a GiB of event bytes (ratio 1.65: 620 MiB stored, 700 answers), CPU s:

| step                                                                          | s    |
|-------------------------------------------------------------------------------|------|
| kernel: 620 MiB copied to the sockets, 4.7 GiB/s over loopback                | 0.13 |
| 700 requests, a task each, 60 µs                                              | 0.04 |
| finding the batches by bisection; buffers handed to one writev an answer      | 0.15 |
| wake-ups while a socket is full: 4 a MiB, 20 µs each                          | 0.05 |
| sum                                                                           | 0.37 |

No byte is decompressed, checked or changed: what the leader wrote is what readers get.
Bound: the event loop's core, by the kernel's copy.
"""

from dataclasses import dataclass

from benchmarks.broker import broker_on_disk, rss_max_mib, rss_mib
from benchmarks.events import orders
from benchmarks.load import Load, request_bytes, run_in_own_process
from benchmarks.parts import GIB, groups_of, ndjson_body
from benchmarks.report import report
from tailrace.requests import batches_request
from tailrace.sync import Client

TOPIC = "bench"
EVENT_BYTES = 1024
REQUEST_EVENT_COUNT = 1_000
EVENT_COUNT = 40_000
ANSWER_BYTES = 1 << 20
CONNECTION_COUNT = 4
READ_BYTES = 4 * GIB
MIB = 1 << 20
AIMS = {"broker_cpu_s_per_gib": 0.7, "rss_idle_mib": 90, "rss_max_mib": 170}


@dataclass(frozen=True, slots=True)
class _Read:
    """One request of the walk over a topic, and what its answer held."""

    request: bytes
    record_count: int
    stored_bytes: int


def run() -> None:
    """Produce once, then read all of it again and again."""
    events = orders(EVENT_COUNT, EVENT_BYTES)
    with broker_on_disk() as broker:
        rss_idle_mib = rss_mib(broker)
        with Client(broker.url) as client:
            for group in groups_of(events, REQUEST_EVENT_COUNT):
                client.produce_lines(TOPIC, ndjson_body(group), key=group[0].key)
            reads = _walk(client)
        walk_bytes = EVENT_COUNT * EVENT_BYTES
        walk_count = READ_BYTES // walk_bytes
        result = run_in_own_process(
            Load(
                port=broker.port + 2,
                requests=[read.request for read in reads],
                request_count=walk_count * len(reads),
                connection_count=CONNECTION_COUNT,
                server_pid=broker.pid,
            )
        )
        rss_loaded_mib = rss_max_mib(broker)
    read_bytes = walk_count * walk_bytes
    figures = {
        "mib_per_s": read_bytes / MIB / result.seconds,
        "p50_ms": result.p50_ms,
        "p99_ms": result.p99_ms,
        "p999_ms": result.p999_ms,
        "broker_cpu_s_per_gib": result.server_cpu_s / read_bytes * GIB,
        "broker_cpu_us_per_event": result.server_cpu_s / read_bytes * EVENT_BYTES * 1e6,
        "broker_kernel_share": result.server_kernel_share,
        "generator_cpu_s_per_gib": result.generator_cpu_s / read_bytes * GIB,
        "codec_ratio": walk_bytes / sum(read.stored_bytes for read in reads),
        "other_cores": result.other_cores,
        "rss_idle_mib": rss_idle_mib,
        "rss_max_mib": rss_loaded_mib,
    }
    report("binary_read", figures, AIMS)


def _walk(client: Client) -> list[_Read]:
    """The requests that together read every record of the topic once."""
    reads = []
    for partition in client.offsets([TOPIC]):
        offset, end = partition.readable().start, partition.readable().stop
        while offset < end:
            request = batches_request(TOPIC, partition.partition, offset, max_bytes=ANSWER_BYTES)
            fetched = client.read_batches(
                TOPIC, partition.partition, offset, max_bytes=ANSWER_BYTES
            )
            record_count = fetched.next_offset - offset
            reads.append(_Read(request_bytes(request), record_count, len(fetched.body)))
            offset = fetched.next_offset
    assert sum(read.record_count for read in reads) == EVENT_COUNT
    return reads
