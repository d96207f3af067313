"""`/metrics`: the counters and sizes of the broker in Prometheus' text format.

Named by Prometheus' rules: prefix, base units (bytes, seconds) last, counters end in `_total`.
Labels are the version's, the names of groups and topics and the ordinals of followers: partitions
are reported by `GET /v1/topics/{topic}`. docs/metrics.md is the list.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from itertools import accumulate
from math import isnan, nan
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.core.replication.progress import FollowerLag
from tailrace_broker.model.counters import BUCKETS_S, Counters, Histogram
from tailrace_broker.model.errors import NotReadyError
from tailrace_broker.net.api.groups import totals_of
from tailrace_broker.net.api.ring import is_alive
from tailrace_broker.net.api.status import is_under_replicated, partition_counts
from tailrace_broker.net.broker import RingView
from tailrace_broker.topics.hosted_topic import HostedTopic

# Groups whose lag is computed in one turn of the event loop.
_GROUPS_A_TURN = 100


class GroupScrape(NamedTuple):
    """What one scrape sees of a group."""

    name: str
    lag: float
    lost: int
    lags: Mapping[str, int | None]  # by topic


class Scrape(NamedTuple):
    """What one scrape sees."""

    broker: LocalBroker
    view: RingView
    connection_count: int
    disk_used_bytes: float
    disk_bytes: float
    groups: Sequence[GroupScrape]
    member_count: int
    broker_count: int
    under_replicated: Sequence[int]  # the partitions of each led range that lacks a replica


COUNTERS = {
    "produce_requests": "Produce requests answered, errors included",
    "produce_errors": "Produce requests answered with a problem",
    "produce_duplicates": "Retries of producers with an id that were stored already",
    "produced_events": "Events accepted for an append",
    "produced_bytes": "Body bytes of produce requests, those of refused ones included",
    "forwarded_requests": "Appends sent to other brokers that lead their partitions",
    "forwards_repeated": "Appends sent again, which is safe",
    "forwards_unknown": "Appends answered 503 of which it is not known whether they are stored",
    "forwards_refused": "Appends refused since TAILRACE_FORWARDED_MAX others waited",
    "read_requests": "Reads answered, errors included",
    "read_errors": "Reads answered with a problem",
    "read_bytes": "Body bytes of read answers",
    "slow_readers_dropped": "Connections cut off because their peers took their answers too slowly",
    "group_polls": "Polls of registered consumers, those that wait or get nothing included",
    "group_delivered_records": "Records in answers to polls, those that come again included",
    "group_commits": "Commits; confirmations by polls are none",
    "log_writes": "Writes to segments, each of one or more batches",
    "log_write_errors": "Writes to the journal or to segments that failed",
    "log_write_seconds": "Time from the start of a segment write to its end",
    "log_appended_batches": "Batches appended to partition logs",
    "log_appended_bytes": "Bytes of batches appended to partition logs",
    "journal_writes": "Writes to the journal, each of the small appends of many partitions",
    "journal_write_seconds": "Time from the start of a journal write to its end",
    "journal_written_bytes": "Bytes written to the journal, whole blocks",
    "log_disk_reads": "Reads and finds by time that the recent batches in memory did not cover",
    "trimmed_segments": "Segments that retention removed",
    "trimmed_bytes": "Bytes of the segments that retention removed",
    "purged_topics": "Deleted topics whose data was removed from the trash",
    "purged_early_topics": "Of these, those removed before their time, since the disk was full",
    "purged_bytes": "Disk space of the deleted topics whose data was removed",
    "scrubbed_bytes": "Segment bytes that the scrub has read again and checked",
}
HISTOGRAMS = {
    "produce_seconds": "From a whole produce request to its answer",
    "fetch_seconds": "Of reads and polls: from when there are records until they are in memory",
}
TOPIC_COUNTERS: dict[str, tuple[str, Callable[[HostedTopic], float]]] = {
    "produced_events": (
        "Events of the topic that this broker took, for whichever leader",
        lambda hosted: hosted.counts.produced_events,
    ),
    "produced_bytes": (
        "Bodies of the requests that brought them",
        lambda hosted: hosted.counts.produced_bytes,
    ),
    "read_records": (
        "Records of the topic in answers to reads and polls",
        lambda hosted: hosted.counts.read_records,
    ),
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
        "Partitions that take no events because their last records are lost: restore their files",
        lambda scrape: scrape.broker.damaged_count,
    ),
    "quarantined_batches": (
        "Damaged batches that a start, the scrub or a read has met: restore their files",
        lambda scrape: scrape.broker.quarantined_count,
    ),
    "stored_bytes": (
        "Segments of all undamaged partitions, without the trash",
        lambda scrape: scrape.broker.stored_bytes,
    ),
    "pending_bytes": (
        "Batches in the journal and in memory that are not in their segments yet",
        lambda scrape: scrape.broker.pending_bytes,
    ),
    "open_segments": (
        "Segment files that are open",
        lambda scrape: scrape.broker.open_segment_count,
    ),
    "disk_used_bytes": (
        "Used of the file system that holds the data, as df does; NaN when it does not answer",
        lambda scrape: scrape.disk_used_bytes,
    ),
    "disk_bytes": (
        "Size of the file system that holds the data; NaN when it does not answer",
        lambda scrape: scrape.disk_bytes,
    ),
    "metadata_term": (
        "Term of the ring's agreement, as this broker knows it",
        lambda scrape: scrape.view.term,
    ),
    "metadata_height": (
        "Blocks of the agreement that make up this broker's state of the ring",
        lambda scrape: scrape.view.applied,
    ),
    "metadata_leader": (
        "1 when this broker leads the agreement",
        lambda scrape: scrape.view.is_established,
    ),
    "brokers": (
        "Brokers of the ring, those that are away too",
        lambda scrape: scrape.broker_count,
    ),
    "metadata_voters": ("Brokers that vote", lambda scrape: len(scrape.view.voters)),
    "metadata_log_bytes": (
        "What the agreement takes on this broker's disk",
        lambda scrape: scrape.view.log_bytes,
    ),
    "led_ranges": (
        "Ranges that this broker leads",
        lambda scrape: len(scrape.broker.led_ranges()),
    ),
    "under_replicated_ranges": (
        "Ranges that this broker leads and whose ISR lacks a replica, or has a ghost",
        lambda scrape: len(scrape.under_replicated),
    ),
    "under_replicated_partitions": (
        "Partitions of these ranges",
        lambda scrape: sum(scrape.under_replicated),
    ),
    "leaderless_ranges": (
        "Ranges of the ring that no broker leads, or whose leader seems dead to this broker",
        lambda scrape: scrape.broker.ring_watch.leaderless_count,
    ),
    "isolated": (
        "1 while no broker that is alive answers this one on the port of replication",
        lambda scrape: scrape.broker.ring.is_isolated,
    ),
    "live_peers": (
        "Other brokers that were heard of a moment ago",
        lambda scrape: sum(
            is_alive
            for ordinal, is_alive in scrape.view.alive.items()
            if ordinal != scrape.broker.ordinal
        ),
    ),
    "produce_memory_bytes": (
        "Bodies of produce requests in flight",
        lambda scrape: scrape.broker.produce_memory_used_bytes,
    ),
    "produce_memory_limit_bytes": (
        "Where producers get 429 (TAILRACE_PRODUCE_MEMORY_BYTES)",
        lambda scrape: scrape.broker.produce_memory_bytes,
    ),
    "forwarded_waiting": (
        "Appends that wait for the leaders to which they are forwarded",
        lambda scrape: scrape.broker.forwarded_count,
    ),
    "forwarded_limit": (
        "Where they are refused (TAILRACE_FORWARDED_MAX)",
        lambda scrape: scrape.broker.forwarded_max,
    ),
    "read_memory_bytes": (
        "What answers hold until they are sent",
        lambda scrape: scrape.broker.read_memory.used_bytes,
    ),
    "read_memory_limit_bytes": (
        "Where readers wait, then get 503 (TAILRACE_READ_MEMORY_BYTES)",
        lambda scrape: scrape.broker.read_memory.capacity_bytes,
    ),
    "receive_memory_bytes": (
        "Batches of leaders that are not written yet: at most 4 MiB of a leader, or one batch",
        lambda scrape: scrape.broker.received_bytes,
    ),
    "catch_up_memory_bytes": (
        "What was read from the disk for replicas, until it is sent",
        lambda scrape: scrape.broker.catch_up_memory.used_bytes,
    ),
    "catch_up_memory_limit_bytes": (
        "Where reads for replicas wait; readers and producers do not",
        lambda scrape: scrape.broker.catch_up_memory.capacity_bytes,
    ),
    "cache_bytes": ("Recent batches in memory", lambda scrape: scrape.broker.cached_bytes),
    "connections": (
        "Open connections of all listeners but metrics",
        lambda scrape: scrape.connection_count,
    ),
    "waiting_reads": (
        "Reads that wait for records (waitMs)",
        lambda scrape: scrape.broker.waiting_read_count,
    ),
    "groups": ("Consumer groups, those without consumers too", lambda scrape: len(scrape.groups)),
    "group_members": (
        "Consumers that are registered, of all groups",
        lambda scrape: scrape.member_count,
    ),
}
RING_COUNTERS: dict[str, tuple[str, Callable[[LocalBroker], float]]] = {
    "isr_shrinks": (
        "Replicas that left the ISR of a range that this broker leads",
        lambda broker: broker.ring_watch.counts["left"],
    ),
    "isr_expansions": (
        "Replicas that joined the ISR of a range that this broker leads",
        lambda broker: broker.ring_watch.counts["joined"],
    ),
    "leader_changes": (
        "Times that this broker began to lead a range",
        lambda broker: broker.ring_watch.counts["leads"],
    ),
    "leaderless_seconds": (
        "How long ranges of the ring had no leader, all ranges together, as this broker saw it",
        lambda broker: broker.ring_watch.leaderless_seconds,
    ),
    "catch_up_bytes": (
        "Bytes of batches that this broker, as a leader, sent to replicas that were far behind",
        lambda broker: broker.catch_up_bytes,
    ),
    "gossip_suspicions": (
        "Brokers taken for dead, since they took no connection",
        lambda broker: broker.ring.rules["gossip.reset"],
    ),
    "gossip_stand_stills": (
        "Times that this broker itself was suspended, so that nobody was taken for dead",
        lambda broker: broker.ring.rules["gossip.stood_still"],
    ),
    "dropped_peer_messages": (
        "Messages to brokers that are not there, or too slow; what matters is sent again",
        lambda broker: 0 if broker.ring.peers is None else broker.ring.peers.counters.dropped,
    ),
}
assert {*COUNTERS, *HISTOGRAMS} == {field.name for field in fields(Counters)}


class ScrapeCollector(Collector):
    """Reads plain numbers when it is asked; the hot paths know nothing of metrics."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        build = GaugeMetricFamily(
            "tailrace_build_info", "1; the label says which version", labels=["version"]
        )
        build.add_metric([version("tailrace")], 1)
        yield build
        for name, text in COUNTERS.items():
            value = getattr(self._scrape.broker.counters, name)
            yield CounterMetricFamily(f"tailrace_{name}", text, value)
        for name, (text, count) in RING_COUNTERS.items():
            yield CounterMetricFamily(f"tailrace_{name}", text, count(self._scrape.broker))
        for name, (text, gauge) in GAUGES.items():
            yield GaugeMetricFamily(f"tailrace_{name}", text, gauge(self._scrape))
        for name, text in HISTOGRAMS.items():
            yield _histogram(name, text, getattr(self._scrape.broker.counters, name))
        yield from self._follower_lags()
        yield from self._group_lags()
        yield from self._topics()

    def _topics(self) -> Iterator[Metric]:
        hosted_topics = self._scrape.broker.measured_topics()
        for name, (text, count) in TOPIC_COUNTERS.items():
            counter = CounterMetricFamily(f"tailrace_topic_{name}", text, labels=["topic"])
            for hosted in hosted_topics:
                counter.add_metric([hosted.topic.name], count(hosted))
            yield counter
        size = GaugeMetricFamily(
            "tailrace_topic_stored_bytes",
            "Segments of the topic's undamaged partitions on this broker, all copies",
            labels=["topic"],
        )
        lag = GaugeMetricFamily(
            "tailrace_topic_lag_records",
            "The largest lag of a group in the topic, of groups that this broker coordinates; NaN"
            " when a partition is damaged",
            labels=["topic"],
        )
        for hosted in hosted_topics:
            name = hosted.topic.name
            size.add_metric([name], sum(log.size_bytes for log in hosted.all_logs()))
            lags = [group.lags[name] for group in self._scrape.groups if name in group.lags]
            if lags:
                lag.add_metric([name], max(map(_or_nan, lags), key=_nan_first))
        yield size
        yield lag

    def _follower_lags(self) -> Iterator[Metric]:
        records = GaugeMetricFamily(
            "tailrace_follower_lag_records",
            "Records that a follower lacks of the ranges that this broker leads; NaN: not known",
            labels=["follower"],
        )
        seconds = GaugeMetricFamily(
            "tailrace_follower_lag_seconds",
            "How long the oldest write waits that a follower must acknowledge; NaN: not known",
            labels=["follower"],
        )
        by_ordinal: dict[int, list[FollowerLag]] = {}
        for lags in self._scrape.broker.replication_lags().values():
            for lag in lags:
                by_ordinal.setdefault(lag.ordinal, []).append(lag)
        for ordinal, of_ranges in sorted(by_ordinal.items()):
            lacking = [nan if each.records is None else each.records for each in of_ranges]
            is_known = all(each.ms is not None for each in of_ranges)
            longest_ms = max(each.ms or 0 for each in of_ranges)
            records.add_metric([str(ordinal)], sum(lacking))
            seconds.add_metric([str(ordinal)], longest_ms / 1e3 if is_known else nan)
        yield records
        yield seconds

    def _group_lags(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "tailrace_group_lag_records",
            "Records that a group has not dealt with; NaN when a partition is damaged",
            labels=["group"],
        )
        lost = CounterMetricFamily(
            "tailrace_group_lost_records",
            "Records that a group never got, by retention or a loss; over restarts too",
            labels=["group"],
        )
        for group in self._scrape.groups:
            lag.add_metric([group.name], group.lag)
            lost.add_metric([group.name], group.lost)
        yield lag
        yield lost


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    """Return it as Prometheus has it: each bucket counts those below it too."""
    counts = accumulate(histogram.counts)
    bounds = (*map(str, BUCKETS_S), "+Inf")
    return HistogramMetricFamily(
        f"tailrace_{name}",
        text,
        buckets=list(zip(bounds, counts, strict=True)),
        sum_value=histogram.sum_s,
    )


def _or_nan(lag: int | None) -> float:
    return nan if lag is None else lag


def _nan_first(lag: float) -> tuple[bool, float]:
    """Order what is not known above all numbers."""
    return isnan(lag), lag


async def metrics_text(broker: LocalBroker, *, connection_count: int) -> bytes:
    """All metrics of the process; on Linux with those of the kernel."""
    used_bytes, disk_bytes = await broker.disk_bytes() or (nan, nan)
    groups: list[GroupScrape] = []
    member_count = 0
    with suppress(NotReadyError):
        for number, view in enumerate(broker.groups.views(), start=1):
            totals = totals_of(view)
            lag = _or_nan(totals.lag)
            groups.append(GroupScrape(view.group.name, lag, totals.lost, totals.lags))
            member_count += len(view.group.members)
            if number % _GROUPS_A_TURN == 0:
                await asyncio.sleep(0)
    ring_view, state = broker.ring.view(), broker.ring.state
    under_replicated = []
    if state is not None:
        counts = partition_counts(state)
        away = [each for each in state.brokers if not is_alive(broker.ring, ring_view, each)]
        lacking = (each for each in broker.led_ranges() if is_under_replicated(state, each, away))
        under_replicated = [counts.get(each.id, 0) for each in lacking]
    scrape = Scrape(
        broker,
        ring_view,
        connection_count,
        used_bytes,
        disk_bytes,
        groups,
        member_count,
        0 if state is None else len(state.brokers),
        under_replicated,
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ScrapeCollector(scrape))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
