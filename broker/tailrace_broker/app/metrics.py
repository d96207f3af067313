"""`/metrics`: the counters and sizes of the broker in Prometheus' text format."""

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.model.counters import Counters

_COUNTER_HELP = {
    "produce_requests": "Produce requests answered, errors included",
    "produce_errors": "Produce requests answered with a problem",
    "produced_events": "Events accepted for an append",
    "produced_bytes": "Body bytes of produce requests",
    "read_requests": "Reads answered",
    "read_errors": "Reads answered with a problem",
    "read_bytes": "Body bytes of read answers",
    "log_writes": "Durable writes to partition logs",
    "log_written_bytes": "Batch bytes written to partition logs",
}
assert set(_COUNTER_HELP) == {field.name for field in fields(Counters)}


class BrokerCollector(Collector):
    """Reads plain integers when it is asked; the hot paths know nothing of metrics."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        for name, text in _COUNTER_HELP.items():
            value = getattr(self._broker.counters, name)
            yield CounterMetricFamily(f"tailrace_{name}", text, value)
        for name, text, gauge in (
            ("ready", "1 when recovered and not stopping", int(self._broker.is_ready)),
            ("direct_io", "1 when data files bypass the page cache", int(self._broker.is_direct)),
            ("topics", "Topics", self._broker.topic_count),
            ("partitions", "Partitions on this broker", self._broker.partition_count),
            ("damaged_partitions", "Partitions that stand still", self._broker.damaged_count),
            (
                "produce_memory_bytes",
                "Bodies in flight",
                self._broker.produce_memory_used_bytes,
            ),
            ("cache_bytes", "Recent batches in memory", self._broker.cached_bytes),
        ):
            yield GaugeMetricFamily(f"tailrace_{name}", text, gauge)


def metrics_text(broker: LocalBroker) -> bytes:
    """All metrics of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(broker))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
