"""How much does batched produce cost, per GiB of event bytes?

NDJSON requests of 1,000 events of 1 KiB, keyed, over 4 connections with one outstanding each,
durability `fsync`; with each codec, and with LZ4 and durability `written`.

Sketch of a GiB with LZ4 (1,049 requests) on one 2.5 GHz core, CPU s:

| step                                                                         | s    |
|------------------------------------------------------------------------------|------|
| codec: LZ4 of 1 GiB in blocks of 1 MiB, ratio 1.65                           | 2.30 |
| JSON check: one msgspec call a request, lengths compared                     | 0.70 |
| kernel: 1 GiB copied from the sockets in reads of 256 KiB                    | 0.20 |
| body put together, line ends found (0.2) and deleted (0.05), columns joined  | 0.40 |
| CRC-32C and the copy to aligned memory of 0.6 GiB each                       | 0.09 |
| 1,049 pwritev2 of 620 KiB with RWF_DSYNC, 60 µs each                         | 0.06 |
| parsing, answers, hand-over to the I/O threads: 50 µs a request              | 0.05 |
| rest, without codec and check                                                | 0.80 |

Other codecs change their own line (zstd 2.9, ratio 2.28) and the bytes of the two lines below
the columns. Bound: the two cores, by LZ4; the disk takes 0.6 GiB at 2.6 GiB/s meanwhile.
"""

from collections.abc import Iterator

from benchmarks.broker import TOPIC, broker_on_disk, create_topic, produce, rss_max_mib
from benchmarks.events import orders
from benchmarks.load import request_bytes
from benchmarks.parts import groups_of, ndjson_body, parts_of_ndjson
from benchmarks.report import Row, costs
from tailrace.protocol.requests import produce_request
from tailrace.wire import NDJSON_CONTENT_TYPE, Codec

EVENT_BYTES = 1024
REQUEST_EVENT_COUNT = 1_000
BODY_COUNT = 8
CONNECTION_COUNT = 4
REQUEST_COUNT = 1_000
WARM_UP_COUNT = 100
# Name of the row: compression and durability.
VARIANTS = {
    "ndjson": ("lz4", "fsync"),
    "ndjson_zstd": ("zstd", "fsync"),
    "ndjson_none": ("none", "fsync"),
    "ndjson_written": ("lz4", "written"),
}
AIMS = {"mib_per_s": 450, "rest_s_per_gib": 0.8, "rss_max_mib": 170}


def run() -> Iterator[Row]:
    """Ask with one size of request."""
    events = orders(BODY_COUNT * REQUEST_EVENT_COUNT, EVENT_BYTES)
    requests = [
        request_bytes(
            produce_request(
                TOPIC, ndjson_body(group), content_type=NDJSON_CONTENT_TYPE, key=group[0].key
            )
        )
        for group in groups_of(events, REQUEST_EVENT_COUNT)
    ]
    for question, (compression, durability) in VARIANTS.items():
        parts = parts_of_ndjson(events, REQUEST_EVENT_COUNT, Codec[compression.upper()])
        with broker_on_disk() as broker:
            create_topic(broker, compression=compression, durability=durability)
            produce(broker, requests, WARM_UP_COUNT, CONNECTION_COUNT)
            result = produce(broker, requests, REQUEST_COUNT, CONNECTION_COUNT)
            rss_loaded_mib = rss_max_mib(broker)
        event_count = REQUEST_COUNT * REQUEST_EVENT_COUNT
        figures = costs(result, event_count=event_count, event_bytes=EVENT_BYTES)
        parts_s_per_gib = parts.codec_s_per_gib + parts.json_check_s_per_gib
        figures |= {
            "codec_s_per_gib": parts.codec_s_per_gib,
            "json_check_s_per_gib": parts.json_check_s_per_gib,
            "rest_s_per_gib": figures["broker_cpu_s_per_gib"] - parts_s_per_gib,
            "codec_ratio": parts.codec_ratio,
            "rss_max_mib": rss_loaded_mib,
        }
        asked = (
            f"NDJSON, {REQUEST_EVENT_COUNT:,} events of 1 KiB a request, {CONNECTION_COUNT} "
            f"connections, {compression}, `{durability}`"
        )
        yield Row(question, asked, figures, AIMS)
