"""How much does it cost to read stored batches, per GiB of event bytes?

Binary batches in answers of at most 1 MiB, over 4 connections with one request outstanding each,
from the read listener. Once 40 MiB of data just produced, read again and again: less than the cache
holds. Once 1 GiB, read in the order of the log: every batch has left the cache (least recently
used) when its turn comes again, and the kernel keeps nothing of files that are read directly.

Sketch of a GiB of event bytes (ratio 1.65: 620 MiB stored, 700 answers), CPU s:

| step                                                                 | memory | disk |
|----------------------------------------------------------------------|--------|------|
| kernel: 620 MiB copied to the sockets, 4.7 GiB/s over loopback       |   0.13 | 0.13 |
| 700 requests, a task each, 60 µs                                     |   0.04 | 0.04 |
| finding the batches by bisection; buffers handed to one writev an    |        |      |
| answer                                                               |   0.15 | 0.15 |
| wake-ups while a socket is full: 4 a MiB, 20 µs each                 |   0.05 | 0.05 |
| 700 direct reads of 1 MiB: the call, and its way to a thread and     |        |      |
| back, 120 µs; no copy                                                |        | 0.08 |
| checksums of what was read, 20 GiB/s                                 |        | 0.03 |
| sum                                                                  |   0.37 | 0.48 |

No byte is decompressed or changed: what the leader wrote is what readers get.
Bound: the event loop's core, by the kernel's copy; from disk 2.6 GiB/s of stored bytes.
"""

from collections.abc import Iterator

from benchmarks.batches import BATCH_EVENT_COUNT, EVENT_BYTES, batch_requests
from benchmarks.broker import (
    READ_LISTENER,
    broker_on_disk,
    create_topic,
    produce,
    rss_max_mib,
)
from benchmarks.load import Load, Target, run_in_own_process
from benchmarks.report import GIB, Row, costs
from benchmarks.requests import batch_reads
from tailrace.wire import Codec

PARTITION_COUNT = 4
ANSWER_BYTES = 1 << 20
CONNECTION_COUNT = 4
RSS_MAX_MIB = 170
# Name of the row: batches stored, event bytes read, aim of CPU s a GiB, and from where.
VARIANTS = {
    "binary_read": (40, 4 * GIB, 0.6, "memory"),
    "binary_read_disk": (1_000, 2 * GIB, 0.8, "disk"),
}


def run() -> Iterator[Row]:
    """Produce once, then read all of it again and again."""
    for question, (batch_count, read_bytes, aim_s_per_gib, source) in VARIANTS.items():
        with broker_on_disk() as broker:
            create_topic(broker, partitionsPerRange=PARTITION_COUNT)
            requests = batch_requests(Codec.LZ4, PARTITION_COUNT)
            produce(broker, requests, batch_count, CONNECTION_COUNT)
            reads = batch_reads(broker, ANSWER_BYTES)
            record_count = sum(read.record_count for read in reads)
            assert record_count == batch_count * BATCH_EVENT_COUNT
            walk_count = read_bytes // (record_count * EVENT_BYTES)
            load = Load(
                targets=[Target(broker.port + READ_LISTENER, [read.request for read in reads])],
                request_count=walk_count * len(reads),
                connection_count=CONNECTION_COUNT,
                server_pids=[broker.pid],
            )
            result = run_in_own_process(load)
            rss_loaded_mib = rss_max_mib(broker)
        event_count = walk_count * record_count
        figures = costs(result, event_count=event_count, event_bytes=EVENT_BYTES)
        figures |= {
            "stored_ratio": record_count * EVENT_BYTES / sum(read.stored_bytes for read in reads),
            "rss_max_mib": rss_loaded_mib,
        }
        asked = f"binary read of events of 1 KiB from {source}, {CONNECTION_COUNT} connections"
        aims = {"broker_cpu_s_per_gib": aim_s_per_gib, "rss_max_mib": RSS_MAX_MIB}
        yield Row(question, asked, figures, aims)
