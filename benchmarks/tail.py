"""How long from a produce to its acknowledgement, and to a consumer that waits for it?

1,000 events a second of 100 bytes with one key, so one partition, over 8 connections, durability
`fsync` and `written`; one consumer, a process of its own, reads the partition by long poll. Times
count from the moment in which an event was due: what waits behind a late answer is late, too.

Sketch of an event that finds everything idle, µs:

| step                                                                     | µs  |
|--------------------------------------------------------------------------|-----|
| generator -> broker: send, loopback, wake-up of the event loop           |  60 |
| parse, hash, check, hand to an I/O thread                                |  80 |
| one durable 4 KiB write to zero-written space                            | 170 |
| back to the loop, answer and the waiting reader's answer written         |  80 |
| broker -> generator                                                      |  60 |
| sum, to the acknowledgement and, from the same turn of the loop, to both | 450 |

Bound: the disk's write, and the wake-ups of two cores that four processes share. The echo
server's figures are the same load without a broker: what generator and machine add.
"""

from collections.abc import Iterator

from benchmarks.broker import TOPIC, broker_on_disk, create_topic
from benchmarks.report import Row
from benchmarks.waiting_consumer import (
    AIMS,
    EVENTS_PER_S,
    WARM_UP_COUNT,
    echo_floor,
    run_load,
    warm_up,
)
from tailrace.protocol.requests import Request
from tailrace.wire import NDJSON_CONTENT_TYPE

WAIT_MS = 10_000
ALL_AIMS = {"p50_ms": 0.7, "p99_ms": 3, **AIMS}


def run() -> Iterator[Row]:
    """Ask the echo server, then a broker for each durability."""
    floor = echo_floor()
    for question, durability in (("tail", "fsync"), ("tail_written", "written")):
        with broker_on_disk() as broker:
            create_topic(broker, partitionsPerRange=1, durability=durability)
            warm_up(broker)
            figures = run_load(broker, _next_read).figures(floor)
        asked = (
            f"{EVENTS_PER_S:,} events a second on 1 partition, a waiting consumer, `{durability}`"
        )
        yield Row(question, asked, figures, ALL_AIMS)


def _next_read(received_count: int, _: int) -> Request:
    offset = WARM_UP_COUNT + received_count
    target = f"/v1/topic/{TOPIC}/partitions/0/records?offset={offset}&waitMs={WAIT_MS}"
    return Request("GET", target, {"Accept": NDJSON_CONTENT_TYPE})
