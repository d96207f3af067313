"""What does agreeing cost a ring of three: idle, per change, and when its leader is gone?

Changes alter one topic's settings, which nothing but the agreement has to do with. The leader of
the metadata is killed (SIGKILL), and the next change asked of another broker until it is done.

Sketch, CPU a second of an idle ring, three brokers:

| what                                                                | a second | µs each | ms   |
|---------------------------------------------------------------------|----------|---------|------|
| digests: 5 a second from each broker to both others, sent and taken | 60       | 60      | 3.6  |
| heartbeats: 4 a second from the leader to two, answered          | 32       | 60      | 1.9  |
| duties: 4 a second each                                             | 12       | 30      | 0.4  |
| the loop waking up                                                  | 100      | 15      | 1.5  |

A change: a synced write of 4 KiB at the leader and one at a follower, one after the other (2 x
0.2 ms), then the commit's on each disk (0.2 ms), and 20 messages. A leader that is killed is missed
when its connections are reset: up to 125 ms until somebody is a candidate, and two rounds of
messages and writes. Bound: the disk; then the moments that are drawn so that not all are candidates
at once.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread

from benchmarks.broker import DATA_DIR, PORT
from benchmarks.load import cpu_seconds
from benchmarks.report import Row
from tests.support.ring.local_ring import LocalRing, founded_ring

IDLE_S = 10.0
KILLS = int(os.environ.get("KILLS", "20"))
CHANGES = int(os.environ.get("CHANGES", "5000"))
CLIENTS = 8
TOPIC = "bench"
MIB = 1 << 20


def run() -> Iterator[Row]:
    """One ring answers all."""
    shutil.rmtree(DATA_DIR, ignore_errors=True)
    DATA_DIR.mkdir()
    try:
        with founded_ring(DATA_DIR, port=PORT) as ring:
            ring.call(0, "POST", "/v1/topics", {"name": TOPIC})
            figures = _idle(ring)
            figures |= _changes(ring)
            figures |= _takeovers(ring)
    finally:
        shutil.rmtree(DATA_DIR, ignore_errors=True)
    aims = {"idle_cpu_percent": 1.5, "next_change_p50_ms": 300, "next_change_p99_ms": 1500}
    yield Row("ring_agreement", "a ring of three agrees", figures, aims)


def _idle(ring: LocalRing) -> dict[str, float]:
    """Of one core, all brokers together."""
    before_s, began_s = _cpu_s(ring), time.monotonic()
    time.sleep(IDLE_S)
    spent_s = _cpu_s(ring) - before_s
    return {"idle_cpu_percent": 100 * spent_s / (time.monotonic() - began_s)}


def _changes(ring: LocalRing) -> dict[str, float]:
    """From a client each at random brokers, in turn, then from several at once."""
    alone_ms = sorted(_timed_ms(partial(_change, ring, n % 3, n)) for n in range(200))
    before_s = _cpu_s(ring)
    threads = [Thread(target=_many, args=(ring, number)) for number in range(CLIENTS)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began_s
    return {
        "change_p50_ms": alone_ms[100],
        "change_p99_ms": alone_ms[198],
        "changes_per_s": CHANGES / seconds,
        "cpu_us_per_change": (_cpu_s(ring) - before_s) / CHANGES * 1e6,
        "metadata_mib": max(_metadata_bytes(broker.data_dir) for broker in ring.brokers) / MIB,
    }


def _many(ring: LocalRing, number: int) -> None:
    for change in range(number, CHANGES, CLIENTS):
        _change(ring, change % 3, change)


def _takeovers(ring: LocalRing) -> dict[str, float]:
    """The killed broker comes back before the next is killed."""
    gaps_ms = []
    for number in range(KILLS):
        leader = ring.metadata_leader()
        other = (leader + 1 + number % 2) % 3
        ring.kill(leader)
        gaps_ms.append(_timed_ms(partial(_change, ring, other, number)))
        ring.brokers[leader].start()
        ring.wait_ready()
    gaps_ms.sort()
    return {
        "next_change_p50_ms": gaps_ms[len(gaps_ms) // 2],
        "next_change_p99_ms": gaps_ms[len(gaps_ms) * 99 // 100],
    }


def _change(ring: LocalRing, ordinal: int, number: int) -> None:
    changes = {"retentionMs": 3_600_000 + number}
    ring.until(lambda: ring.is_answered(ordinal, "PATCH", f"/v1/topics/{TOPIC}", changes), 30)


def _timed_ms(action: Callable[[], None]) -> float:
    began_s = time.monotonic()
    action()
    return (time.monotonic() - began_s) * 1000


def _cpu_s(ring: LocalRing) -> float:
    return sum(cpu_seconds(broker.pid) for broker in ring.brokers)


def _metadata_bytes(data_dir: Path) -> int:
    return sum(path.stat().st_size for path in (data_dir / "data/metadata").iterdir())
