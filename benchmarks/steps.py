"""What do producers notice of a ring that grows from three brokers to six?

Once with nothing stored and once with `STEPS_MIB` (1,024 by default) of events in the ranges that
are split. The new brokers are started, registered and ready before anything is measured: a process
that starts takes a core for more than a second, and in a cluster that is a core of another node.

The ring grows twice. First three threads send events of one key of the range that a step splits,
each to one broker, a new one as soon as the last is answered: the longest time between two
acknowledgements around the step is how long a produce has waited. Then, in a new ring, 1,000 events
a second of 100 bytes go to any broker, before the growth and during all of it.

Sketch of a step, ms:

| what                                                          | ms      |
|---------------------------------------------------------------|---------|
| `begin`: two disks of the metadata's voters, then applied     | 5       |
| appends held: what is under way is written and acknowledged   | 2 to 10 |
| `sealed`: the same two disks, then applied everywhere         | 5 to 15 |
| children: logs open, followers say where they stand, first ack | 5 to 10 |

No byte of a log is read or written, so what is stored does not matter. Bound: the disks' syncs, and
the turns of the event loops that all brokers share on two cores.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

from benchmarks.batches import BATCH_EVENT_COUNT, EVENT_BYTES, batches_to
from benchmarks.broker import keys_of_partitions
from benchmarks.brokers import Brokers, brokers_on_disk
from benchmarks.events import readings
from benchmarks.load import LoadResult, run_in_own_process
from benchmarks.report import MIB, Row
from benchmarks.requests import keyed_events
from benchmarks.ring_gap import acknowledgements
from tailrace.wire import Codec
from tests.support.ring.ring_steps import step_to

STEPS_MIB = int(os.environ.get("STEPS_MIB", "1024"))
PARTITIONS_PER_RANGE = 4
FIRST_COUNT, LAST_COUNT = 3, 6
EVENTS_PER_S = 1_000
LOAD_COUNT = 2_000
BEFORE_COUNT = 5  # of loads
CONNECTION_COUNT = 8
WRITER_COUNT = 4
STEADY_S = 0.5
AIMS = {"longest_wait_ms": 250, "p99_ratio": 3}


def run() -> Iterator[Row]:
    """Ask with nothing stored, then with a lot."""
    for stored_mib in (0, STEPS_MIB):
        yield _row(stored_mib)


def _row(stored_mib: int) -> Row:
    with _stored(stored_mib) as brokers:
        waits_ms = [_wait_ms(brokers, count) for count in range(FIRST_COUNT, LAST_COUNT)]
    with _stored(stored_mib) as brokers:
        before = [load(brokers) for _ in range(BEFORE_COUNT)]
        during: list[LoadResult] = []
        with ThreadPoolExecutor(1) as others:
            growing = others.submit(_grow, brokers)
            while not growing.done():
                during.append(load(brokers))
        step_ms = growing.result()
    p99_ms, p99_before_ms = (median(each.p99_ms for each in loads) for loads in (during, before))
    figures = {
        "longest_wait_ms": max(waits_ms),
        "median_wait_ms": median(waits_ms),
        "step_median_ms": median(step_ms),
        "step_max_ms": max(step_ms),
        "p99_ms": p99_ms,
        "p99_max_ms": max(each.p99_ms for each in during),
        "p99_before_ms": p99_before_ms,
        "p99_ratio": p99_ms / p99_before_ms,
        "other_cores": median(each.other_cores for each in during),
    }
    asked = f"a ring grows from {FIRST_COUNT} to {LAST_COUNT} brokers, {stored_mib:,} MiB stored"
    return Row(f"steps_{stored_mib}_mib", asked, figures, AIMS)


@contextmanager
def _stored(stored_mib: int) -> Iterator[Brokers]:
    """Three brokers with so much of the topic, and those by which the ring is to grow."""
    with brokers_on_disk(FIRST_COUNT) as brokers:
        assert brokers.ring is not None
        brokers.create_topic(PARTITIONS_PER_RANGE)
        brokers.members = brokers.members[:]  # the loads are of these, not of those that come
        write(brokers, stored_mib)
        for _ in range(FIRST_COUNT, LAST_COUNT):
            brokers.ring.start_next()
        yield brokers


def _wait_ms(brokers: Brokers, count: int) -> float:
    """How long a produce waits at the most while a ring of so many brokers grows by one."""
    key = keys_of_partitions(FIRST_COUNT)[count - FIRST_COUNT]  # of the range that is halved
    with acknowledgements(brokers, key) as acknowledged_s:
        time.sleep(STEADY_S)
        began_s = time.monotonic()
        _step_ms(brokers, count + 1)
        time.sleep(STEADY_S)
    times_s = sorted(each for each in acknowledged_s if each > began_s - STEADY_S / 2)
    return max(later - earlier for earlier, later in pairwise(times_s)) * 1000


def _grow(brokers: Brokers) -> list[float]:
    """How long each step took; as long as a load between two of them."""
    step_ms = []
    for count in range(FIRST_COUNT, LAST_COUNT):
        step_ms.append(_step_ms(brokers, count + 1))
        time.sleep(LOAD_COUNT / EVENTS_PER_S)
    return step_ms


def _step_ms(brokers: Brokers, count: int) -> float:
    assert brokers.ring is not None
    began_s = time.monotonic()
    step_to(brokers.ring, count)
    return (time.monotonic() - began_s) * 1000


def load(brokers: Brokers) -> LoadResult:
    """Single events to any of the members, at a steady rate."""
    requests = brokers.by_key(keyed_events(readings(LOAD_COUNT, 100)))
    return run_in_own_process(
        brokers.load(
            requests, LOAD_COUNT, CONNECTION_COUNT, requests_per_s=EVENTS_PER_S, at_any=True
        )
    )


def write(brokers: Brokers, stored_mib: int) -> None:
    """Have so much in the topic, in all partitions alike."""
    count = stored_mib * MIB // (BATCH_EVENT_COUNT * EVENT_BYTES)
    if count:
        partitions = range(PARTITIONS_PER_RANGE * len(brokers.members))
        requests = batches_to(Codec.LZ4, partitions)
        run_in_own_process(brokers.load(requests, count, WRITER_COUNT))
