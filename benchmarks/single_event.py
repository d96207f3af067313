"""How much does a single-event produce cost, and how many a second does one broker take?

64 connections with one request outstanding each, JSON events with a key, durability `fsync`.

Sketch of a request of 1 KiB on one 2.5 GHz core, CPU µs:

| step                                                                     | µs   |
|--------------------------------------------------------------------------|------|
| kernel: 1 recv, 1 send over loopback, a share of one epoll_wait          |  7.0 |
| uvloop: callbacks, one bytes object in, one buffer out                   |  2.5 |
| httptools: request line, 4 headers, body                                 |  3.5 |
| route, key, Murmur3, JSON check (0.7), answer text (0.5)                 |  4.0 |
| a share of the write: 64 connections over 4 partitions are batches of up |      |
| to 16 events: columns, LZ4 (1.7), CRC, header, handed to an I/O thread   |      |
| and back (40), one pwritev2 of 12 KiB with RWF_DSYNC (90): 130 µs / 16   |  8.0 |
| sum                                                                      | 25.0 |

Bytes: 1,024 in, copied socket -> request -> payload -> compressed -> aligned buffer; 120 out.
Bound: the event loop's core; then the disk, 5,000 synced writes a second x 16 events.
The echo server of the same run is the first two lines alone.
"""

from benchmarks.broker import broker_on_disk, rss_max_mib, rss_mib
from benchmarks.echo import echo_server
from benchmarks.events import Event, orders, readings
from benchmarks.load import Load, LoadResult, request_bytes, run_in_own_process
from benchmarks.parts import GIB, parts_of_single_events
from benchmarks.report import report
from tailrace.requests import produce_request
from tailrace.wire import JSON_CONTENT_TYPE

CONNECTION_COUNT = 64
EVENT_COUNT = 4096
REQUEST_COUNT = 100_000
WARM_UP_COUNT = 5_000
BATCH_EVENT_COUNT = 16  # 64 connections over 4 partitions
AIMS = {
    "requests_per_s": 28_000,
    "broker_cpu_us_per_event": 30,
    "rss_idle_mib": 90,
    "rss_max_mib": 170,
}


def run() -> None:
    """Ask with events of 100 bytes and of 1 KiB."""
    _ask("single_event_100b", readings(EVENT_COUNT, 100))
    _ask("single_event_1kib", orders(EVENT_COUNT, 1024))


def _ask(question: str, events: list[Event]) -> None:
    event_bytes = len(events[0].value)
    parts = parts_of_single_events(events, BATCH_EVENT_COUNT)
    requests = [
        request_bytes(
            produce_request("bench", event.value, content_type=JSON_CONTENT_TYPE, key=event.key)
        )
        for event in events
    ]
    with echo_server() as echo:
        floor = _load(echo.port, echo.pid, requests, REQUEST_COUNT)
    with broker_on_disk() as broker:
        rss_idle_mib = rss_mib(broker)
        _load(broker.port + 1, broker.pid, requests, WARM_UP_COUNT)
        result = _load(broker.port + 1, broker.pid, requests, REQUEST_COUNT)
        rss_loaded_mib = rss_max_mib(broker)
        write_count = broker.metrics()["tailrace_log_writes_total"]
    broker_us = result.server_cpu_s / REQUEST_COUNT * 1e6
    us_per_s_per_gib = event_bytes / GIB * 1e6
    codec_us = parts.codec_s_per_gib * us_per_s_per_gib
    json_check_us = parts.json_check_s_per_gib * us_per_s_per_gib
    figures = {
        "requests_per_s": REQUEST_COUNT / result.seconds,
        "p50_ms": result.p50_ms,
        "p99_ms": result.p99_ms,
        "p999_ms": result.p999_ms,
        "echo_p50_ms": floor.p50_ms,
        "echo_p99_ms": floor.p99_ms,
        "broker_cpu_us_per_event": broker_us,
        "codec_us_per_event": codec_us,
        "json_check_us_per_event": json_check_us,
        "rest_us_per_event": broker_us - codec_us - json_check_us,
        "broker_kernel_share": result.server_kernel_share,
        "echo_cpu_us_per_event": floor.server_cpu_s / REQUEST_COUNT * 1e6,
        "generator_cpu_us_per_event": result.generator_cpu_s / REQUEST_COUNT * 1e6,
        "broker_cpu_s_per_gib": broker_us / us_per_s_per_gib,
        "codec_s_per_gib": parts.codec_s_per_gib,
        "json_check_s_per_gib": parts.json_check_s_per_gib,
        "events_per_write": (WARM_UP_COUNT + REQUEST_COUNT) / write_count,
        "codec_ratio": parts.codec_ratio,
        "other_cores": result.other_cores,
        "rss_idle_mib": rss_idle_mib,
        "rss_max_mib": rss_loaded_mib,
    }
    report(question, figures, AIMS)


def _load(port: int, server_pid: int, requests: list[bytes], request_count: int) -> LoadResult:
    return run_in_own_process(
        Load(
            port=port,
            requests=requests,
            request_count=request_count,
            connection_count=CONNECTION_COUNT,
            server_pid=server_pid,
        )
    )
