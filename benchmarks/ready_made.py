"""How much does produce of ready-made batches cost, per GiB of event bytes?

Batches of 1,000 events of 1 KiB, compressed by the client beforehand, to 4 partitions over 4
connections with one outstanding each, durability `fsync`; with each codec. A ring of three is asked
with LZ4, to 4 partitions of each leader over 6 connections, with both durabilities.

Sketch of a GiB (1,049 requests, 620 MiB) with LZ4 on one 2.5 GHz core, CPU s:

| step                                                                         | s    |
|------------------------------------------------------------------------------|------|
| kernel: 620 MiB copied from the sockets in reads of 256 KiB                  | 0.12 |
| body put together, its checksum, the copy to aligned memory                  | 0.10 |
| inflated at 4 GiB/s, and its columns checked                                 | 0.27 |
| 1,049 durable writes of 620 KiB, 60 µs each                                  | 0.06 |
| parsing, answers, hand-over to the I/O threads: 50 µs a request              | 0.05 |
| sum                                                                          | 0.60 |

The aim of 0.5 takes inflating faster than 4 GiB/s, or a check of the columns without all of it.
Bound: the two cores. Two followers add what [ndjson](ndjson.py) says: 1.3 s.
"""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.batches import BATCH_COUNT, BATCH_EVENT_COUNT, EVENT_BYTES, batches_to
from benchmarks.brokers import brokers_on_disk
from benchmarks.report import Row, costs
from tailrace.wire import Codec

PARTITIONS_PER_RANGE = 4
REQUEST_COUNT = 2_000
WARM_UP_COUNT = 100
CONNECTION_COUNTS = {1: 4, 3: 6}
RSS_MAX_MIB = {1: 170, 3: 500}


class Variant(NamedTuple):
    """Name of the row, codec and durability; the aim."""

    question: str
    codec: Codec
    durability: str
    cpu_s_per_gib: float


VARIANTS = {
    1: (
        Variant("ready_made", Codec.LZ4, "fsync", 0.5),
        Variant("ready_made_zstd", Codec.ZSTD, "fsync", 0.5),
        Variant("ready_made_none", Codec.NONE, "fsync", 0.5),
    ),
    3: (
        Variant("ring_ready_made", Codec.LZ4, "fsync", 1.8),
        Variant("ring_ready_made_written", Codec.LZ4, "written", 1.5),
    ),
}


def run(broker_count: int = 1) -> Iterator[Row]:
    """Ask one broker with each codec, or a ring of three."""
    for variant in VARIANTS[broker_count]:
        yield _ask(variant, broker_count)


def _ask(variant: Variant, broker_count: int) -> Row:
    connection_count = CONNECTION_COUNTS[broker_count]
    partitions = range(PARTITIONS_PER_RANGE * broker_count)
    requests = batches_to(variant.codec, partitions, max(BATCH_COUNT, len(partitions)))
    with brokers_on_disk(broker_count) as brokers:
        brokers.create_topic(PARTITIONS_PER_RANGE, durability=variant.durability)
        brokers.produce(requests, WARM_UP_COUNT, connection_count)
        result = brokers.produce(requests, REQUEST_COUNT, connection_count)
        rss_loaded_mib = brokers.rss_max_mib()
        described = brokers.described
    event_count = REQUEST_COUNT * BATCH_EVENT_COUNT
    figures = costs(result, event_count=event_count, event_bytes=EVENT_BYTES)
    figures["rss_max_mib"] = rss_loaded_mib
    asked = (
        f"ready-made batches of {BATCH_EVENT_COUNT:,} events of 1 KiB, {connection_count} "
        f"connections, {variant.codec.name.lower()}, `{variant.durability}`{described}"
    )
    aims = {
        "broker_cpu_s_per_gib": variant.cpu_s_per_gib,
        "rss_max_mib": RSS_MAX_MIB[broker_count],
    }
    return Row(variant.question, asked, figures, aims)
