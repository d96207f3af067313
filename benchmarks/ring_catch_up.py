"""What do producers notice of a follower that returns and fetches what was written meanwhile?

One of three brokers is killed; `CATCH_UP_MIB` (1,024 by default) of event bytes are written, as
ready-made batches, to a range that it follows; then it starts. Beside that 1,000 events a second of
100 bytes go to the leader of that range, before the kill and during the catch-up. RSS is of each
broker: the most while the follower catches up, over what it was before.

Sketch of a GiB (620 MiB stored), CPU s: read from the leader's disk (0.10), sent and received
(0.25), checksums (0.06), written (0.15). At a share of the disk and of the link of one half: 2 s.
Bound: that share; on two cores, the two event loops that producers wait for as well.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.batches import BATCH_EVENT_COUNT, EVENT_BYTES, batches_to
from benchmarks.broker import keys_of_partitions, rss_max_mib, rss_mib
from benchmarks.brokers import Brokers, brokers_on_disk
from benchmarks.events import Event, readings
from benchmarks.load import LoadResult, cpu_seconds, run_in_own_process
from benchmarks.report import MIB, Row
from benchmarks.requests import keyed_events
from tailrace.wire import Codec

CATCH_UP_MIB = int(os.environ.get("CATCH_UP_MIB", "1024"))
PARTITIONS_PER_RANGE = 4
LEADER, FOLLOWER = 0, 2
EVENTS_PER_S = 1_000
LOAD_COUNT = 2_000  # of events, in each load of some seconds
BEFORE_COUNT = 5  # of loads
CONNECTION_COUNT = 8
WRITER_COUNT = 4
WHOLE_S_MAX = 600.0
AIMS = {"p99_ratio": 2, "rss_growth_max_mib": 64}


def run() -> Iterator[Row]:
    """Ask once."""
    with brokers_on_disk(3) as brokers:
        brokers.create_topic(PARTITIONS_PER_RANGE)
        before = [_load(brokers) for _ in range(BEFORE_COUNT)]
        ring = brokers.ring
        assert ring is not None
        ring.kill(FOLLOWER)
        _write(brokers)
        ring.brokers[FOLLOWER].start()
        ring.wait_live(FOLLOWER)
        rss_before_mib = [rss_mib(broker) for broker in brokers.members]
        for pid in brokers.pids:
            _forget_peak(pid)
        cpu_before_s = sum(map(cpu_seconds, brokers.pids))
        began_s = time.monotonic()
        during = []
        while not brokers.is_whole():
            assert time.monotonic() - began_s < WHOLE_S_MAX, ring.last_lines()
            during.append(_load(brokers))
        seconds = time.monotonic() - began_s
        cpu_s = sum(map(cpu_seconds, brokers.pids)) - cpu_before_s
        growth_mib = [
            rss_max_mib(broker) - rss_before
            for broker, rss_before in zip(brokers.members, rss_before_mib, strict=True)
        ]
    p99_ms, p99_before_ms = (median(load.p99_ms for load in loads) for loads in (during, before))
    figures = {
        "catch_up_s": seconds,
        "catch_up_mib_per_s": CATCH_UP_MIB / seconds,
        "cpu_s_per_gib": cpu_s / CATCH_UP_MIB * 1024,
        "p50_ms": median(load.p50_ms for load in during),
        "p50_before_ms": median(load.p50_ms for load in before),
        "p99_ms": p99_ms,
        "p99_max_ms": max(load.p99_ms for load in during),
        "p99_before_ms": p99_before_ms,
        "p99_ratio": p99_ms / p99_before_ms,
        "rss_max_mib": sum(rss_before_mib) + sum(growth_mib),
        "rss_growth_max_mib": max(growth_mib[:FOLLOWER]),
        "rss_follower_mib": rss_before_mib[FOLLOWER] + growth_mib[FOLLOWER],
        "other_cores": median(load.other_cores for load in during),
    }
    asked = f"{EVENTS_PER_S:,} events a second beside a catch-up of {CATCH_UP_MIB:,} MiB, 3 brokers"
    yield Row("ring_catch_up", asked, figures, AIMS)


def _load(brokers: Brokers) -> LoadResult:
    key = keys_of_partitions(PARTITIONS_PER_RANGE * 3)[LEADER * PARTITIONS_PER_RANGE]
    events = [Event(key, event.value) for event in readings(LOAD_COUNT, 100)]
    requests = brokers.by_key(keyed_events(events))
    return run_in_own_process(
        brokers.load(requests, LOAD_COUNT, CONNECTION_COUNT, requests_per_s=EVENTS_PER_S)
    )


def _write(brokers: Brokers) -> None:
    """As much as the follower lacks then, to the range of the leader."""
    first = LEADER * PARTITIONS_PER_RANGE
    requests = batches_to(Codec.LZ4, range(first, first + PARTITIONS_PER_RANGE))
    count = CATCH_UP_MIB * MIB // (BATCH_EVENT_COUNT * EVENT_BYTES)
    run_in_own_process(brokers.load(requests, count, WRITER_COUNT))


def _forget_peak(pid: int) -> None:
    """The most that was resident counts from now on (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
