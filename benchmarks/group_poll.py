"""What does it cost to read as a consumer of a group, beside stateless reads of the same data?

40 MiB of events of 1 KiB in 4 partitions, ready-made batches of 1,000, from memory: less than the
cache holds. Stateless: answers of at most 1 MiB (binary) or 1,000 records (JSON) over 4
connections, again and again. By groups: each new group has 4 consumers with a partition each, on
a connection each, that poll for as much an answer until nothing is left. Both in turn, thrice.

Sketch of what a poll of 1 MiB costs beyond a stateless read, CPU µs on one 2.5 GHz core:

| step                                                                     | µs  |
|--------------------------------------------------------------------------|-----|
| POST with two headers more; the consumer found, its delivery confirmed   |  15 |
| what it may read: its partitions out of 4, a piece for each              |  10 |
| positions as an event: JSON, an append to the groups' log; a share of the  |     |
| journal write of 90 µs that four consumers' events have in common         |  60 |
| the delivery made, headers with its number and epoch                     |  10 |
| sum                                                                      |  95 |

A binary answer of 1 MiB holds 1.6 batches, 1.6 MiB of events, and costs 600 µs without it: 16 %
more. A JSON answer of 1,000 records takes 4 ms of text: 2 %. Nothing is copied or decoded for the
group. Bound: as stateless, the event loop's core.
"""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.batches import BATCH_EVENT_COUNT, EVENT_BYTES, batch_requests
from benchmarks.broker import broker_on_disk, create_topic, produce, rss_max_mib
from benchmarks.groups import read_by_groups
from benchmarks.load import Load, LoadResult, Target, request_bytes, run_in_own_process
from benchmarks.report import GIB, MIB, Row
from benchmarks.requests import batch_reads, line_reads
from tailrace.local.broker import LocalBroker
from tailrace.protocol.group_requests import Form
from tailrace.protocol.requests import Request
from tailrace.wire import JSON_CONTENT_TYPE, Codec

PARTITION_COUNT = 4
BATCH_COUNT = 40
ANSWER_BYTES = 1 << 20
ANSWER_RECORDS = 1_000
ROUND_COUNT = 3
# Name of the row: form, and how often the data is read a round.
VARIANTS: dict[str, tuple[Form, int]] = {
    "group_poll_binary": ("batch", 40),
    "group_poll_json": ("json", 5),
}
# 1.25: 80 % of the stateless read's speed.
AIMS = {"time_to_stateless": 1.25, "cpu_to_stateless": 1.25, "rss_max_mib": 170}


class _Sum(NamedTuple):
    """Of the rounds."""

    seconds: float
    broker_cpu_s: float

    def plus(self, result: LoadResult) -> "_Sum":
        return _Sum(self.seconds + result.seconds, self.broker_cpu_s + result.server_cpu_s)


def run() -> Iterator[Row]:
    """Produce once, then read all of it again and again, both ways."""
    for question, (form, repeat_count) in VARIANTS.items():
        with broker_on_disk() as broker:
            create_topic(broker, partitionsPerRange=PARTITION_COUNT)
            requests = batch_requests(Codec.LZ4, PARTITION_COUNT)
            produce(broker, requests, BATCH_COUNT, PARTITION_COUNT)
            reads = _stateless_requests(broker, form)
            stateless = by_groups = _Sum(0, 0)
            for round_number in range(ROUND_COUNT):
                load = Load(
                    targets=[Target(broker.port, reads)],
                    request_count=repeat_count * len(reads),
                    connection_count=PARTITION_COUNT,
                    server_pids=[broker.pid],
                )
                stateless = stateless.plus(run_in_own_process(load))
                read = read_by_groups(
                    broker,
                    f"round-{round_number}",
                    group_count=repeat_count,
                    consumer_count=PARTITION_COUNT,
                    form=form,
                    max_records=None if form == "batch" else ANSWER_RECORDS,
                    max_bytes=ANSWER_BYTES,
                )
                by_groups = by_groups.plus(read)
            rss_loaded_mib = rss_max_mib(broker)
        record_count = ROUND_COUNT * repeat_count * BATCH_COUNT * BATCH_EVENT_COUNT
        figures = {
            **_figures("", by_groups, record_count),
            **_figures("stateless_", stateless, record_count),
            "time_to_stateless": by_groups.seconds / stateless.seconds,
            "cpu_to_stateless": by_groups.broker_cpu_s / stateless.broker_cpu_s,
            "rss_max_mib": rss_loaded_mib,
        }
        asked = (
            f"events of 1 KiB to {PARTITION_COUNT} consumers of a group, {form}, beside stateless "
            "reads"
        )
        yield Row(question, asked, figures, AIMS)


def _figures(prefix: str, total: _Sum, record_count: int) -> dict[str, float]:
    read_bytes = record_count * EVENT_BYTES
    return {
        f"{prefix}records_per_s": record_count / total.seconds,
        f"{prefix}mib_per_s": read_bytes / MIB / total.seconds,
        f"{prefix}broker_cpu_us_per_event": total.broker_cpu_s / record_count * 1e6,
        f"{prefix}broker_cpu_s_per_gib": total.broker_cpu_s / read_bytes * GIB,
    }


def _stateless_requests(broker: LocalBroker, form: Form) -> list[bytes]:
    """Those that together read every record of the topic once."""
    if form == "batch":
        return [read.request for read in batch_reads(broker, ANSWER_BYTES)]
    return [request_bytes(_as_json(read)) for read in line_reads(broker, ANSWER_RECORDS)]


def _as_json(request: Request) -> Request:
    return Request(request.method, request.target, {"Accept": JSON_CONTENT_TYPE})
