"""How long from a produce to its acknowledgement, and to a consumer that waits for it?

1,000 events a second of 100 bytes with one key, so one partition, over 8 connections, durability
`fsync` and `written`; one consumer, a process of its own, reads the partition by long poll. Times
count from the moment in which an event was due: what waits behind a late answer is late, too.
A ring of three is asked at the leader of that partition.

Sketch of an event that finds everything idle, µs:

| step                                                                     | µs  |
|--------------------------------------------------------------------------|-----|
| generator -> broker: send, loopback, wake-up of the event loop           |  60 |
| parse, hash, check, hand to an I/O thread                                |  80 |
| one durable 4 KiB write to zero-written space                            | 170 |
| back to the loop, answer and the waiting reader's answer written         |  80 |
| broker -> generator                                                      |  60 |
| sum, to the acknowledgement and, from the same turn of the loop, to both | 450 |

A ring adds a message to each follower and back (2 x 2 x 60), and their writes, side by side (170).

Bound: the disk's write, and the wake-ups of two cores that four processes share. The echo
server's figures are the same load without a broker: what generator and machine add.
"""

from collections.abc import Iterator

from benchmarks.broker import TOPIC
from benchmarks.brokers import brokers_on_disk
from benchmarks.report import Row
from benchmarks.waiting_consumer import (
    EVENTS_PER_S,
    PARTITION,
    WARM_UP_COUNT,
    echo_floor,
    run_load,
    warm_up,
)
from tailrace.protocol.requests import Request
from tailrace.wire import NDJSON_CONTENT_TYPE

WAIT_MS = 10_000
NAMES = ("p50_ms", "p99_ms", "received_p50_ms", "received_p99_ms")
# By number of brokers and durability.
AIMS: dict[int, dict[str, tuple[float, ...]]] = {
    1: {"fsync": (0.7, 3, 1, 5), "written": (0.7, 3, 1, 5)},
    3: {"fsync": (2, 10, 3, 12), "written": (1, 5, 1.5, 6)},
}


def run(broker_count: int = 1) -> Iterator[Row]:
    """Ask the echo server, then a broker, or a ring of three, for each durability."""
    floor = echo_floor()
    for question, durability in (("tail", "fsync"), ("tail_written", "written")):
        with brokers_on_disk(broker_count) as brokers:
            brokers.create_topic(1, durability=durability)
            warm_up(brokers)
            figures = run_load(brokers, _next_read).figures(floor)
            name, described = brokers.name_prefix + question, brokers.described
        asked = (
            f"{EVENTS_PER_S:,} events a second on 1 partition, a waiting consumer, "
            f"`{durability}`{described}"
        )
        aims = dict(zip(NAMES, AIMS[broker_count][durability], strict=True))
        yield Row(name, asked, figures, aims)


def _next_read(received_count: int, _: int) -> Request:
    offset = WARM_UP_COUNT + received_count
    target = f"/v1/topic/{TOPIC}/partitions/{PARTITION}/records?offset={offset}&waitMs={WAIT_MS}"
    return Request("GET", target, {"Accept": NDJSON_CONTENT_TYPE})
