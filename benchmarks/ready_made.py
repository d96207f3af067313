"""How much does produce of ready-made batches cost, per GiB of event bytes?

Batches of 1,000 events of 1 KiB, compressed by the client beforehand, to 4 partitions over 4
connections with one outstanding each, durability `fsync`; with each codec.

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
Bound: the two cores.
"""

from collections.abc import Iterator

from benchmarks.batches import BATCH_EVENT_COUNT, EVENT_BYTES, batch_requests
from benchmarks.broker import broker_on_disk, create_topic, produce, rss_max_mib
from benchmarks.report import Row, costs
from tailrace.wire import Codec

CONNECTION_COUNT = 4
PARTITION_COUNT = 4
REQUEST_COUNT = 2_000
WARM_UP_COUNT = 100
VARIANTS = {
    "ready_made": Codec.LZ4,
    "ready_made_zstd": Codec.ZSTD,
    "ready_made_none": Codec.NONE,
}
AIMS = {"broker_cpu_s_per_gib": 0.5, "rss_max_mib": 170}


def run() -> Iterator[Row]:
    """Ask with each codec."""
    for question, codec in VARIANTS.items():
        requests = batch_requests(codec, PARTITION_COUNT)
        with broker_on_disk() as broker:
            create_topic(broker, partitionsPerRange=PARTITION_COUNT)
            produce(broker, requests, WARM_UP_COUNT, CONNECTION_COUNT)
            result = produce(broker, requests, REQUEST_COUNT, CONNECTION_COUNT)
            rss_loaded_mib = rss_max_mib(broker)
        event_count = REQUEST_COUNT * BATCH_EVENT_COUNT
        figures = costs(result, event_count=event_count, event_bytes=EVENT_BYTES)
        figures["rss_max_mib"] = rss_loaded_mib
        asked = (
            f"ready-made batches of {BATCH_EVENT_COUNT:,} events of 1 KiB, {CONNECTION_COUNT} "
            f"connections, {codec.name.lower()}, `fsync`"
        )
        yield Row(question, asked, figures, AIMS)
