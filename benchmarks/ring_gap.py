"""For how long is nothing acknowledged when a broker of a ring of three is gone?

A range's leader is killed (SIGKILL: its connections are reset), falls silent (SIGSTOP) or is
stopped cleanly (SIGTERM); or a follower falls silent. Three threads send events of one key, each
to one broker, a new one as soon as the last is answered, and again at once what was refused: so
the gap is the ring's, without what clients wait for. It is the longest time between two
acknowledgements from shortly before the fault on, of `KILLS` faults each (5 by default). Each is of
a new ring: who has been silent before is suspected later, by design.

Sketch, ms:

| what                                                   | kill | silence | stop | follower |
|--------------------------------------------------------|------|---------|------|----------|
| missed: redial refused; suspicion; the leader says so  |    1 |   1,000 |    0 |    3,000 |
| a command of the metadata's leader, on two disks       |   10 |      10 |   10 |       10 |
| followers dial the new leader, say where they stand    |    5 |       5 |    5 |        0 |
| its election, when it led the metadata, too (a third)  |  120 |     800 |   50 |        0 |

A silent follower is dropped from the ISR after `replicaLagMs` (3 s). Bound: waiting, and the disk.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import pairwise

from benchmarks.broker import PRODUCE_LISTENER, keys_of_partitions
from benchmarks.brokers import Brokers, brokers_on_disk
from benchmarks.report import Row
from tests.support.http.http11 import Connection, messages, request
from tests.support.ring.local_ring import LocalRing

KILLS = int(os.environ.get("KILLS", "5"))
TOPIC = "bench"
# From silence to the last of what follows from it.
SILENCE_S = 6.0
STEADY_S = 1.0
REFUSED_S = 0.002
ANSWER_S_MAX = 60.0
# p50 of the gap, seconds: GOALS; a follower: `replicaLagMs` and a second.
AIMS = {"kill": 0.3, "silence": 1.5, "stop": 0.1, "follower_silence": 4.0}


def run() -> Iterator[Row]:
    """Ask a new ring for each fault, of each broker in turn."""
    faults: dict[str, Callable[[LocalRing, int], None]] = {
        "kill": _kill,
        "silence": _silence,
        "stop": _stop,
        "follower_silence": _silence_of_follower,
    }
    figures: dict[str, float] = {}
    for name, fault in faults.items():
        gaps_s = sorted(_gap_s(number % 3, fault) for number in range(KILLS))
        figures[f"{name}_p50_s"] = gaps_s[len(gaps_s) // 2]
        figures[f"{name}_p99_s"] = gaps_s[len(gaps_s) * 99 // 100]
    aims = {f"{name}_p50_s": aim for name, aim in AIMS.items()}
    yield Row("ring_gap", f"longest time without an acknowledgement, {KILLS} faults", figures, aims)


def _kill(ring: LocalRing, ordinal: int) -> None:
    ring.kill(ordinal)
    time.sleep(SILENCE_S / 2)
    ring.brokers[ordinal].start()


def _silence(ring: LocalRing, ordinal: int) -> None:
    ring.pause(ordinal)
    time.sleep(SILENCE_S)
    ring.resume(ordinal)


def _stop(ring: LocalRing, ordinal: int) -> None:
    ring.brokers[ordinal].stop()
    time.sleep(SILENCE_S / 2)
    ring.brokers[ordinal].start()


def _silence_of_follower(ring: LocalRing, ordinal: int) -> None:
    _silence(ring, (ordinal + 1) % 3)


def _gap_s(led: int, fault: Callable[[LocalRing, int], None]) -> float:
    """Of the range that a broker leads, until the broker is about to return."""
    with brokers_on_disk(3) as brokers:
        brokers.create_topic(1)
        assert brokers.ring is not None
        with acknowledgements(brokers, keys_of_partitions(3)[led]) as acknowledged_s:
            time.sleep(STEADY_S)
            began_s = time.monotonic()
            fault(brokers.ring, led)
            ended_s = time.monotonic()
    times_s = sorted(each for each in acknowledged_s if began_s - STEADY_S / 2 < each < ended_s)
    gap_s = max(later - earlier for earlier, later in pairwise([*times_s, ended_s]))
    print(f"  {fault.__name__.strip('_')} of {led}: {gap_s:.3f} s", flush=True)
    return gap_s


@contextmanager
def acknowledgements(brokers: Brokers, key: str) -> Iterator[list[float]]:
    """When an event of the key was acknowledged, of whichever broker, while the block lasts."""
    times_s: list[float] = []
    senders = [_Sender(broker.port, key, times_s) for broker in brokers.members]
    for sender in senders:
        sender.thread.start()
    try:
        yield times_s
    finally:
        for sender in senders:
            sender.is_over = True
        for sender in senders:
            sender.thread.join()


@dataclass(slots=True)
class _Sender:
    port: int
    key: str
    times_s: list[float]
    is_over: bool = False
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        whole = request(messages(TOPIC, partitionKey=self.key), b'{"i":1}')
        connection: Connection | None = None
        while not self.is_over:
            try:
                connection = connection or Connection(self.port + PRODUCE_LISTENER)
                connection.socket.settimeout(ANSWER_S_MAX)
                is_stored = connection.exchange(whole).status == 200
            except (OSError, HTTPException):
                if connection is not None:
                    connection.close()
                connection, is_stored = None, False
            if is_stored:
                self.times_s.append(time.monotonic())
            else:
                time.sleep(REFUSED_S)
        if connection is not None:
            connection.close()
