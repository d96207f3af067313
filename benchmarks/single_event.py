"""How much does a single-event produce cost, and how many a second does one broker take?

64 or 1,000 connections with one request outstanding each, JSON events with a key, over 4
partitions; durability `fsync`, and `written`: answered once the kernel has the bytes. And over 256
partitions: nearly each event is then a batch of its own, and costs 15 µs more. A ring of three has
4 partitions a broker; each event goes to the leader of its partition. And to any broker, the next
one each time, so that two of three are forwarded.

Sketch of a request of 1 KiB over 64 connections at `fsync` on one 2.5 GHz core, CPU µs:

| step                                                                     | µs   |
|--------------------------------------------------------------------------|------|
| kernel: 1 recv, 1 send over loopback, a share of one epoll_wait          |  7.0 |
| uvloop: callbacks, one bytes object in, one buffer out                   |  2.5 |
| httptools: request line, 4 headers, body                                 |  3.5 |
| route, key, Murmur3, JSON check (0.7), answer text (0.5)                 |  4.0 |
| a share of the write: 64 connections over 4 partitions are batches of up |      |
| to 16 events, all four in one journal write: columns, LZ4 (1.7), CRC and |      |
| header a batch (40), one durable write of 48 KiB (90): 250 µs / 64       |  4.0 |
| later, a share of 64 KiB from memory to the segment                      |  1.0 |
| sum                                                                      | 22.0 |

At `written` the wait is gone and the batches are smaller: 2 µs more of batches, 1 less of writes.
1,000 connections share a write sixteen times as widely, and miss the caches more: the same sum.
Bytes: 1,024 in, copied socket -> request -> payload -> compressed -> aligned buffer; 120 out.
Bound: the event loop's core; then the disk, 5,000 synced writes a second x 64 events.
The echo server of the same run is the first two lines alone. Two followers add, for a group of 5
events of one partition: a frame each, an append through the journal, a report: 15 µs an event. A
forwarded event is parsed where it arrived; events of a few connections for one partition cross in
one frame, and their answers come back in one: 10 µs an event.
"""

from collections.abc import Iterator
from itertools import product

from benchmarks.brokers import brokers_on_disk
from benchmarks.echo import echo_server
from benchmarks.events import Event, orders, readings
from benchmarks.load import Load, Target, run_in_own_process
from benchmarks.parts import parts_of_single_events
from benchmarks.report import GIB, Row, costs
from benchmarks.requests import keyed_events

EVENT_COUNT = 4096
REQUEST_COUNT = 60_000
WARM_UP_COUNT = 5_000
PARTITION_COUNT = 4
RSS_MAX_MIB = {1: 170, 3: 500}
# By number of brokers and durability: the aims of requests a second and of CPU, which are those of
# 64 connections.
AIMS = {
    1: {"fsync": (28_000, 35), "written": (28_000, 30)},
    3: {"fsync": (20_000, 70), "written": (25_000, 60)},
}
# The same for requests to any broker of three.
AIMS_AT_ANY = {"fsync": (12_000, 110), "written": (15_000, 100)}
CONNECTION_COUNTS = {1: (64, 1_000), 3: (64,)}


def run(broker_count: int = 1) -> Iterator[Row]:
    """Ask with both sizes, numbers of connections and durabilities."""
    sizes = {"100b": readings(EVENT_COUNT, 100), "1kib": orders(EVENT_COUNT, 1024)}
    durabilities = AIMS[broker_count]
    for connection_count, size, durability in product(
        CONNECTION_COUNTS[broker_count], sizes, durabilities
    ):
        name = f"single_event_{size}"
        if connection_count != 64:
            name += f"_{connection_count}_connections"
        if durability != "fsync":
            name += f"_{durability}"
        yield _ask(name, sizes[size], connection_count, durability, broker_count)
        if broker_count > 1:
            name += "_any_broker"
            yield _ask(name, sizes[size], connection_count, durability, broker_count, at_any=True)
    if broker_count == 1:
        name = "single_event_100b_256_partitions"
        yield _ask(name, sizes["100b"], 64, "fsync", broker_count, 256)


def _ask(
    question: str,
    events: list[Event],
    connection_count: int,
    durability: str,
    broker_count: int,
    partitions_per_range: int = PARTITION_COUNT,
    *,
    at_any: bool = False,
) -> Row:
    event_bytes = len(events[0].value)
    partition_count = partitions_per_range * broker_count
    parts = parts_of_single_events(events, max(1, connection_count // partition_count))
    keyed = keyed_events(events)
    with echo_server() as echo:
        target = Target(echo.port, [request for _, request in keyed])
        floor = run_in_own_process(Load([target], REQUEST_COUNT, connection_count, [echo.pid]))
    with brokers_on_disk(broker_count) as brokers:
        brokers.create_topic(partitions_per_range, durability=durability)
        requests = brokers.by_key(keyed)
        brokers.produce(requests, WARM_UP_COUNT, connection_count, at_any=at_any)
        result = brokers.produce(requests, REQUEST_COUNT, connection_count, at_any=at_any)
        rss_loaded_mib = brokers.rss_max_mib()
        events_per_write = (WARM_UP_COUNT + REQUEST_COUNT) / brokers.write_count()
        prefix, described = brokers.name_prefix, brokers.described
    figures = costs(result, event_count=REQUEST_COUNT, event_bytes=event_bytes)
    broker_us = figures["broker_cpu_us_per_event"]
    us_per_s_per_gib = event_bytes / GIB * 1e6
    codec_us = parts.codec_s_per_gib * us_per_s_per_gib
    json_check_us = parts.json_check_s_per_gib * us_per_s_per_gib
    figures |= {
        "codec_us_per_event": codec_us,
        "json_check_us_per_event": json_check_us,
        "rest_us_per_event": broker_us - codec_us - json_check_us,
        "echo_cpu_us_per_event": floor.server_cpu_s / REQUEST_COUNT * 1e6,
        "echo_p50_ms": floor.p50_ms,
        "echo_p99_ms": floor.p99_ms,
        "events_per_write": events_per_write,
        "codec_ratio": parts.codec_ratio,
        "rss_max_mib": rss_loaded_mib,
    }
    requests_per_s, cpu_us = AIMS_AT_ANY[durability] if at_any else AIMS[broker_count][durability]
    aims = {
        "requests_per_s": requests_per_s,
        "broker_cpu_us_per_event": cpu_us,
        "rss_max_mib": RSS_MAX_MIB[broker_count],
    }
    asked = (
        f"one JSON event of {event_bytes:,} B a request, {connection_count:,} connections, "
        f"{partition_count} partitions, `{durability}`{described}"
        + (", at any of them" if at_any else "")
    )
    return Row(prefix + question, asked, figures, aims)
