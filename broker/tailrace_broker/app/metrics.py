"""`/metrics`: the counters and sizes of the broker in Prometheus' text format.

Named by Prometheus' rules: prefix, base units (bytes, seconds) last, counters end in `_total`.
There are no labels but the version's: partitions are told by `GET /v1/topics/{topic}`.
docs/metrics.md is the list.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.metadata import version
from math import nan
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.model.counters import Counters


class Scrape(NamedTuple):
    """What one scrape sees."""

    broker: LocalBroker
    connection_count: int
    disk_used_bytes: float
    disk_bytes: float


COUNTERS = {
    "produce_requests": "Produce requests answered, errors included",
    "produce_errors": "Produce requests answered with a problem",
    "produced_events": "Events accepted for an append",
    "produced_bytes": "Body bytes of produce requests, those of refused ones included",
    "read_requests": "Reads answered, errors included",
    "read_errors": "Reads answered with a problem",
    "read_bytes": "Body bytes of read answers",
    "log_writes": "Durable writes to partition logs, each of one or more batches",
    "log_write_errors": "Writes to partition logs that failed; nothing of them was acknowledged",
    "log_write_seconds": "Time from the start of a write, compression included, to its end",
    "log_written_batches": "Batches written to partition logs",
    "log_written_bytes": "Batch bytes written to partition logs, without pads",
    "log_disk_reads": "Reads and finds by time that the recent batches in memory did not cover",
}
GAUGES: dict[str, tuple[str, Callable[[Scrape], float]]] = {
    "ready": ("1 when recovered and not stopping", lambda scrape: scrape.broker.is_ready),
    "direct_io": (
        "1 when data files bypass the page cache",
        lambda scrape: scrape.broker.is_direct,
    ),
    "durable_write_seconds": (
        "Median of some durable 4 KiB writes at the start; NaN when they failed",
        lambda scrape: (
            nan if scrape.broker.durable_write_ms is None else scrape.broker.durable_write_ms / 1e3
        ),
    ),
    "topics": ("Topics", lambda scrape: scrape.broker.topic_count),
    "partitions": ("Partitions on this broker", lambda scrape: scrape.broker.partition_count),
    "sealed_partitions": (
        "Partitions that take no more events",
        lambda scrape: scrape.broker.sealed_count,
    ),
    "damaged_partitions": (
        "Partitions that stand still because their data is damaged: restore their files",
        lambda scrape: scrape.broker.damaged_count,
    ),
    "stored_bytes": (
        "Segments of all undamaged partitions, without the trash",
        lambda scrape: scrape.broker.stored_bytes,
    ),
    "disk_used_bytes": (
        "Used of the file system that holds the data, as df tells it; NaN when it does not answer",
        lambda scrape: scrape.disk_used_bytes,
    ),
    "disk_bytes": (
        "Size of the file system that holds the data; NaN when it does not answer",
        lambda scrape: scrape.disk_bytes,
    ),
    "produce_memory_bytes": (
        "Bodies of produce requests in flight",
        lambda scrape: scrape.broker.produce_memory_used_bytes,
    ),
    "produce_memory_limit_bytes": (
        "Where producers get 429 (TAILRACE_PRODUCE_MEMORY_BYTES)",
        lambda scrape: scrape.broker.produce_memory_bytes,
    ),
    "cache_bytes": ("Recent batches in memory", lambda scrape: scrape.broker.cached_bytes),
    "connections": ("Open connections of all doors", lambda scrape: scrape.connection_count),
    "waiting_reads": (
        "Reads that wait for records (waitMs)",
        lambda scrape: scrape.broker.waiting_read_count,
    ),
}
assert set(COUNTERS) == {field.name for field in fields(Counters)}


class ScrapeCollector(Collector):
    """Reads plain numbers when it is asked; the hot paths know nothing of metrics."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        build = GaugeMetricFamily(
            "tailrace_build_info", "1; the label says which version", labels=["version"]
        )
        build.add_metric([version("tailrace")], 1)
        yield build
        for name, text in COUNTERS.items():
            value = getattr(self._scrape.broker.counters, name)
            yield CounterMetricFamily(f"tailrace_{name}", text, value)
        for name, (text, gauge) in GAUGES.items():
            yield GaugeMetricFamily(f"tailrace_{name}", text, gauge(self._scrape))


async def metrics_text(broker: LocalBroker, *, connection_count: int) -> bytes:
    """All metrics of the process; on Linux with those of the kernel."""
    disk_bytes = await broker.disk_bytes() or (nan, nan)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ScrapeCollector(Scrape(broker, connection_count, *disk_bytes)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
