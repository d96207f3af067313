"""How long from a produce to a waiting consumer of a group, and does a group that stopped matter?

1,000 events a second of 100 bytes with one key, so one partition, over 8 connections, durability
`fsync` and `written`; one consumer of a group, a process of its own, polls as NDJSON and waits.
Times count from the moment in which an event was due. Once more beside a group that took a
delivery and never came back. In a ring of three the consumer polls a broker that does not lead.

Sketch of an event that finds everything idle, µs:

| step                                                                     | fsync | written |
|--------------------------------------------------------------------------|-------|---------|
| generator -> broker: send, loopback, wake-up of the event loop           |    60 |      60 |
| parse, hash, check, append                                               |    80 |      80 |
| the write to the journal: durable, or to the kernel                      |   170 |      40 |
| the poll that waits is woken, reads from memory, one line of text        |   150 |     150 |
| broker -> consumer                                                       |    60 |      60 |
| sum                                                                      |   520 |     390 |

The consumer's next poll confirms, and stores positions: an append of its own in the next journal
write. Bound: the disk's write, and the wake-ups of two cores that four processes share. The echo
server's figures are the same load without a broker: what generator and machine add.

In a ring an event waits for two followers (a frame, a write, a report: 400 µs), the follower that
is polled learns within 2 ms that it is committed, and asks the group's coordinator, which may be
another broker, for the delivery: two hops of 150 µs.
"""

from collections.abc import Iterator

from benchmarks.broker import TOPIC
from benchmarks.brokers import brokers_on_disk
from benchmarks.load import LoadResult
from benchmarks.report import Row
from benchmarks.waiting_consumer import (
    AIMS,
    EVENTS_PER_S,
    WARM_UP_COUNT,
    Run,
    echo_floor,
    run_load,
    warm_up,
)
from tailrace.protocol.group_requests import poll_request
from tailrace.protocol.requests import Request
from tailrace.sync import Client

WAIT_MS = 10_000
RECEIVER, STOPPED = "receiver", "stopped"
STOPPED_AIMS = AIMS | {"p99_ratio": 2}
RING_AIMS: dict[str, dict[str, float]] = {
    "fsync": {"received_p50_ms": 3, "received_p99_ms": 12},
    "written": {"received_p50_ms": 1.5, "received_p99_ms": 6},
}


def run(broker_count: int = 1) -> Iterator[Row]:
    """Ask the echo server, then a broker for each durability, then beside a group that stopped."""
    floor = echo_floor()
    asked = f"{EVENTS_PER_S:,} events a second to a waiting consumer of a group"
    if broker_count > 1:
        asked += f" at another of {broker_count} brokers"
        for durability, aims in RING_AIMS.items():
            figures = _figures(_ask(durability, broker_count=broker_count), floor)
            yield Row(
                f"ring_produce_to_received_{durability}", f"{asked}, `{durability}`", figures, aims
            )
        return
    durable = _ask("fsync")
    yield Row("produce_to_received", f"{asked}, `fsync`", _figures(durable, floor), AIMS)
    alone = _ask("written")
    yield Row("produce_to_received_written", f"{asked}, `written`", _figures(alone, floor), AIMS)
    beside = _ask("written", has_stopped=True)
    figures = _figures(beside, floor) | {
        "alone_p99_ms": alone.received(0.99),
        "p99_ratio": beside.received(0.99) / alone.received(0.99),
    }
    asked += ", `written`, beside a group that stopped"
    yield Row("produce_to_received_beside_stopped", asked, figures, STOPPED_AIMS)


def _ask(durability: str, *, has_stopped: bool = False, broker_count: int = 1) -> Run:
    """`has_stopped`: another group has taken a delivery."""
    with brokers_on_disk(broker_count) as brokers, Client(brokers.members[-1].url) as client:
        brokers.create_topic(1, durability=durability)
        client.register(RECEIVER, RECEIVER, [TOPIC])
        if has_stopped:
            client.register(STOPPED, STOPPED, [TOPIC], on_new_group="startFromEarliest")
        warm_up(brokers)
        if has_stopped:
            assert client.poll(STOPPED, delivery=0).body
        _read_warm_up(client)
        return run_load(brokers, _next_read, brokers.members[-1])


def _figures(asked: Run, floor: LoadResult) -> dict[str, float]:
    return asked.figures(floor) | {"echo_p999_ms": floor.p999_ms}


def _read_warm_up(client: Client) -> None:
    """Bring the group to the end of the topic."""
    record_count = 0
    while record_count < WARM_UP_COUNT:
        polled = client.poll(RECEIVER, form="ndjson")
        record_count += len(polled.body.splitlines())
    client.commit(RECEIVER)


def _next_read(_: int, delivery: int) -> Request:
    return poll_request(RECEIVER, delivery=delivery, form="ndjson", wait_ms=WAIT_MS)
