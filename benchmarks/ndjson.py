"""How much does batched produce cost, per GiB of event bytes?

NDJSON requests of 1,000 events of 1 KiB, keyed, over 4 connections with one outstanding each,
durability `fsync`; with each codec, and with LZ4 and durability `written`; and of 100 bytes. A ring
of three is asked with LZ4, over 6 connections: each request goes to the leader of its partition.

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

Each of two followers adds, of 0.6 GiB: sent and received (0.25), two checksums (0.06), the copy to
aligned memory (0.12), 1,049 direct writes (0.10), frames and reports (0.12): 0.65 s.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.broker import TOPIC
from benchmarks.brokers import brokers_on_disk
from benchmarks.events import Event, orders, readings
from benchmarks.load import request_bytes
from benchmarks.parts import groups_of, ndjson_body, parts_of_ndjson
from benchmarks.report import GIB, Row, costs
from tailrace.protocol.requests import produce_request
from tailrace.wire import NDJSON_CONTENT_TYPE, Codec

REQUEST_EVENT_COUNT = 1_000
BODY_COUNT = 12  # each of three brokers leads a partition of some
REQUEST_COUNT = 1_000
WARM_UP_COUNT = 100


class Variant(NamedTuple):
    """Name of the row, size of an event, compression and durability; its aims."""

    question: str
    event_bytes: int
    compression: str
    durability: str
    mib_per_s: float = 0  # 0: no aim
    rest_s_per_gib: float = 0
    rest_us_per_event: float = 0


VARIANTS = {
    1: (
        Variant("ndjson", 1024, "lz4", "fsync", 450, 0.8),
        Variant("ndjson_zstd", 1024, "zstd", "fsync", 450, 0.8),
        Variant("ndjson_none", 1024, "none", "fsync", 450, 0.8),
        Variant("ndjson_written", 1024, "lz4", "written", 450, 0.8),
        Variant("ndjson_100b", 100, "lz4", "fsync", rest_us_per_event=0.2),
    ),
    3: (
        Variant("ring_ndjson", 1024, "lz4", "fsync", 300, 2.3),
        Variant("ring_ndjson_written", 1024, "lz4", "written", 350, 2.0),
        Variant("ring_ndjson_100b", 100, "lz4", "fsync", rest_us_per_event=0.5),
        Variant("ring_ndjson_100b_written", 100, "lz4", "written", rest_us_per_event=0.4),
    ),
}
CONNECTION_COUNTS = {1: 4, 3: 6}
RSS_MAX_MIB = {1: 170, 3: 500}


def run(broker_count: int = 1) -> Iterator[Row]:
    """Ask one broker, or a ring of three."""
    for variant in VARIANTS[broker_count]:
        yield _ask(variant, broker_count)


def _ask(variant: Variant, broker_count: int) -> Row:
    count = BODY_COUNT * REQUEST_EVENT_COUNT
    event_bytes = variant.event_bytes
    events = orders(count, event_bytes) if event_bytes >= 1024 else readings(count, event_bytes)
    parts = parts_of_ndjson(events, REQUEST_EVENT_COUNT, Codec[variant.compression.upper()])
    connection_count = CONNECTION_COUNTS[broker_count]
    with brokers_on_disk(broker_count) as brokers:
        brokers.create_topic(compression=variant.compression, durability=variant.durability)
        requests = brokers.by_key(_requests(events))
        brokers.produce(requests, WARM_UP_COUNT, connection_count)
        result = brokers.produce(requests, REQUEST_COUNT, connection_count)
        rss_loaded_mib = brokers.rss_max_mib()
        described = brokers.described
    event_count = REQUEST_COUNT * REQUEST_EVENT_COUNT
    figures = costs(result, event_count=event_count, event_bytes=event_bytes)
    parts_s_per_gib = parts.codec_s_per_gib + parts.json_check_s_per_gib
    rest_s_per_gib = figures["broker_cpu_s_per_gib"] - parts_s_per_gib
    figures |= {
        "codec_s_per_gib": parts.codec_s_per_gib,
        "json_check_s_per_gib": parts.json_check_s_per_gib,
        "rest_s_per_gib": rest_s_per_gib,
        "rest_us_per_event": rest_s_per_gib * event_bytes / GIB * 1e6,
        "codec_ratio": parts.codec_ratio,
        "rss_max_mib": rss_loaded_mib,
    }
    names = ("mib_per_s", "rest_s_per_gib", "rest_us_per_event")
    aims = {name: aim for name in names if (aim := getattr(variant, name))}
    size = "1 KiB" if event_bytes == 1024 else f"{event_bytes} B"
    asked = (
        f"NDJSON, {REQUEST_EVENT_COUNT:,} events of {size} a request, {connection_count} "
        f"connections, {variant.compression}, `{variant.durability}`{described}"
    )
    return Row(variant.question, asked, figures, aims | {"rss_max_mib": RSS_MAX_MIB[broker_count]})


def _requests(events: Sequence[Event]) -> Iterator[tuple[str, bytes]]:
    for group in groups_of(events, REQUEST_EVENT_COUNT):
        key = group[0].key
        body = ndjson_body(group)
        request = produce_request(TOPIC, body, content_type=NDJSON_CONTENT_TYPE, key=key)
        yield key, request_bytes(request)
