"""How much does batched produce cost, per GiB of event bytes?

NDJSON requests of 1,000 events of 1 KiB, keyed, over 4 connections with one outstanding each,
durability `fsync`.

Sketch of a GiB (1,049 requests) on one 2.5 GHz core, CPU s:

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

Bound: the two cores, by LZ4; the disk takes 0.6 GiB at 2.6 GiB/s meanwhile.
"""

from benchmarks.broker import broker_on_disk, rss_max_mib, rss_mib
from benchmarks.events import orders
from benchmarks.load import Load, request_bytes, run_in_own_process
from benchmarks.parts import GIB, groups_of, ndjson_body, parts_of_ndjson
from benchmarks.report import report
from tailrace.requests import produce_request
from tailrace.wire import NDJSON_CONTENT_TYPE

EVENT_BYTES = 1024
REQUEST_EVENT_COUNT = 1_000
BODY_COUNT = 8
CONNECTION_COUNT = 4
REQUEST_COUNT = 1_500
WARM_UP_COUNT = 100
MIB = 1 << 20
AIMS = {
    "mib_per_s": 450,
    "rest_s_per_gib": 0.8,
    "rss_idle_mib": 90,
    "rss_max_mib": 170,
}


def run() -> None:
    """Ask with one size of request."""
    events = orders(BODY_COUNT * REQUEST_EVENT_COUNT, EVENT_BYTES)
    parts = parts_of_ndjson(events, REQUEST_EVENT_COUNT)
    requests = [
        request_bytes(
            produce_request(
                "bench", ndjson_body(group), content_type=NDJSON_CONTENT_TYPE, key=group[0].key
            )
        )
        for group in groups_of(events, REQUEST_EVENT_COUNT)
    ]
    with broker_on_disk() as broker:
        rss_idle_mib = rss_mib(broker)
        warm_up, load = (
            Load(
                port=broker.port + 1,
                requests=requests,
                request_count=request_count,
                connection_count=CONNECTION_COUNT,
                server_pid=broker.pid,
            )
            for request_count in (WARM_UP_COUNT, REQUEST_COUNT)
        )
        run_in_own_process(warm_up)
        result = run_in_own_process(load)
        rss_loaded_mib = rss_max_mib(broker)
    produced_bytes = REQUEST_COUNT * REQUEST_EVENT_COUNT * EVENT_BYTES
    broker_s_per_gib = result.server_cpu_s / produced_bytes * GIB
    figures = {
        "mib_per_s": produced_bytes / MIB / result.seconds,
        "p50_ms": result.p50_ms,
        "p99_ms": result.p99_ms,
        "p999_ms": result.p999_ms,
        "broker_cpu_us_per_event": result.server_cpu_s / produced_bytes * EVENT_BYTES * 1e6,
        "broker_kernel_share": result.server_kernel_share,
        "generator_cpu_us_per_request": result.generator_cpu_s / REQUEST_COUNT * 1e6,
        "broker_cpu_s_per_gib": broker_s_per_gib,
        "codec_s_per_gib": parts.codec_s_per_gib,
        "json_check_s_per_gib": parts.json_check_s_per_gib,
        "rest_s_per_gib": broker_s_per_gib - parts.codec_s_per_gib - parts.json_check_s_per_gib,
        "codec_ratio": parts.codec_ratio,
        "other_cores": result.other_cores,
        "rss_idle_mib": rss_idle_mib,
        "rss_max_mib": rss_loaded_mib,
    }
    report("ndjson", figures, AIMS)
