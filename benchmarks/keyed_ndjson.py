"""What does it cost more when each line of an NDJSON request has its own key (`?key=`)?

Requests of 1,000 events, over 4 connections with one outstanding each, durability `fsync`, LZ4. The
same events are sent with one key a request and with a key each, in turns on one broker, so that
what else the machine does falls on both. In a topic of one partition a request is one batch either
way; of 4 partitions it is one batch with one key, and 4 with a key each.

Measured steps of 1,000 events of 100 bytes with as many keys on one 2.5 GHz core, CPU us, beside
those of one key (with which check, cut and columns cost 165 to 180, LZ4 85):

| step                                                     | 1 partition | 4 partitions |
|----------------------------------------------------------|-------------|--------------|
| check with the keys taken out, over the check alone      | 20          | 20           |
| tokens of the keys                                       | 0           | 45           |
| order of the partitions                                  | 0           | 25           |
| values cut, put in order, joined                         | 10          | 60           |
| keys put in order, as a column                           | 25          | 35           |
| columns: parts, payloads                                 | 0           | 30           |
| LZ4 of keys that differ                                  | 10          | 15           |
| three more batches (as single events show, 20 each)      | 0           | 60           |

Bound: one core, the broker's loop.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.broker import TOPIC, broker_on_disk, create_topic, produce
from benchmarks.events import Event, orders, readings
from benchmarks.load import request_bytes
from benchmarks.parts import groups_of, ndjson_body
from benchmarks.report import Row
from tailrace.protocol.requests import Request
from tailrace.wire import NDJSON_CONTENT_TYPE

REQUEST_EVENT_COUNT = 1_000
BODY_COUNT = 8
CONNECTION_COUNT = 4
REQUEST_COUNT = 300
ROUND_COUNT = 6
WARM_UP_COUNT = 100
AIMS = {"keyed_to_one_key": 1.3}


def run() -> Iterator[Row]:
    """Ask with two sizes of event; nearly each has another key."""
    count = BODY_COUNT * REQUEST_EVENT_COUNT
    for partitions in (1, 4):
        yield _row(partitions, "100", readings(count, 100), ".device", "100 bytes")
        yield _row(partitions, "1024", orders(count, 1024), ".customer.id", "1 KiB")


def _row(partitions: int, name: str, events: list[Event], path: str, size: str) -> Row:
    groups = groups_of(events, REQUEST_EVENT_COUNT)
    loads = {
        "one_key": [_request(group, f"partitionKey={group[0].key}") for group in groups],
        "keyed": [_request(group, f"key={path}") for group in groups],
    }
    costs: dict[str, list[float]] = {name: [] for name in loads}
    with broker_on_disk() as broker:
        create_topic(broker, partitionsPerRange=partitions)
        for requests in loads.values():
            produce(broker, requests, WARM_UP_COUNT, CONNECTION_COUNT)
        for _ in range(ROUND_COUNT):
            for kind, requests in loads.items():
                result = produce(broker, requests, REQUEST_COUNT, CONNECTION_COUNT)
                event_count = REQUEST_COUNT * REQUEST_EVENT_COUNT
                costs[kind].append(result.server_cpu_s / event_count * 1e6)
    one_key_us, keyed_us = (median(costs[name]) for name in loads)
    figures = {
        "one_key_cpu_us_per_event": one_key_us,
        "keyed_cpu_us_per_event": keyed_us,
        "keyed_to_one_key": keyed_us / one_key_us,
    }
    asked = (
        f"NDJSON, {REQUEST_EVENT_COUNT:,} events of {size} a request, a key each by `?key=`, "
        f"topic of {partitions}"
    )
    return Row(f"keyed_ndjson_{name}_of_{partitions}", asked, figures, AIMS)


def _request(group: Sequence[Event], query: str) -> bytes:
    target = f"/v1/topic/{TOPIC}/messages?{query}"
    headers = {"Content-Type": NDJSON_CONTENT_TYPE}
    return request_bytes(Request("POST", target, headers, ndjson_body(group)))
