"""Steps of a ring of processes: asked for until they are taken, and what they leave behind."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError

from tailrace.errors import ProblemError
from tailrace.sync import Client
from tailrace.values import Fetched
from tests.support.broker.history import Read, RecordPosition
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing
from tests.support.ring.ring_producers import event_value
from tests.support.ring.stored_replicas import stored_batches

TOPIC = "t"
EVENT_BYTES = 500
# Of a request: above 64 KiB a batch goes to the segment at once.
REQUEST_EVENTS = 250
READ_EVENTS = 10_000


def until_taken(ring: LocalRing, ask: Callable[[], Any]) -> Any:
    """Repeat what is refused for now, as clients and the command line do."""
    answers: list[Any] = []

    def is_taken() -> bool:
        try:
            answers.append(ask())
        except HTTPError as error:
            problem = json.loads(error.read())
            assert problem["retriable"], problem
            return False
        except ProblemError as error:
            if not error.retriable:
                raise
            return False
        return True

    ring.until(is_taken, WHOLE_S_MAX)
    return answers[-1]


def read_lines(ring: LocalRing, client: Client, topic: str, partition: int, offset: int) -> Fetched:
    """As soon as the broker does: it may be opening the topic, or its range be led by none yet."""
    read = partial(client.read_lines, topic, partition, offset, max_records=READ_EVENTS)
    fetched: Fetched = until_taken(ring, read)
    return fetched


def read_back(
    ring: LocalRing, ordinal: int, topic: str, bounds: Mapping[int, tuple[int, int]]
) -> list[Read]:
    """Return all events of partitions from one offset to another, through this broker."""
    read = []
    with Client(ring.brokers[ordinal].url) as client:
        for partition, (offset, end) in bounds.items():
            while offset < end:
                fetched = read_lines(ring, client, topic, partition, offset)
                for record in map(json.loads, fetched.body.splitlines()):
                    event_id = record["value"]["id"]
                    assert record["value"] == json.loads(event_value(event_id))
                    position = RecordPosition(record["partition"], record["offset"])
                    read.append(Read(event_id, position))
                assert fetched.next_offset > offset
                offset = fetched.next_offset
    return read


def step_to(ring: LocalRing, brokers: int, *, at: int = 0) -> list[dict[str, Any]]:
    """Have the ring come to so many brokers; what each step has changed."""
    steps = []
    while (now := ring.ring(at)["brokers"]) != brokers:
        kind = "grow" if now < brokers else "shrink"
        body = {"kind": kind, "brokersBefore": now}
        steps.append(until_taken(ring, partial(ring.call, at, "POST", "/v1/ring/steps", body)))
    return steps


def reslice_to(ring: LocalRing, count: int, *, topic: str = TOPIC, at: int = 0) -> None:
    """Have the topic come to so many partitions in each range."""
    path = f"/v1/topics/{topic}"
    ring.call(at, "PATCH", path, {"partitionsPerRange": count})
    ring.until(lambda: ring.call(at, "GET", path)["rangesToSlice"] == 0, WHOLE_S_MAX)


def retire(ring: LocalRing, ordinal: int, *, at: int = 0) -> None:
    """Let a broker go that has left the ring, when others have what it holds."""
    path = f"/v1/ring/brokers/{ordinal}/retire"
    until_taken(ring, lambda: ring.call(at, "POST", path, {}))


def sealed_ranges(ring: LocalRing, *, at: int = 0) -> list[dict[str, Any]]:
    """The ranges that take no more events, as a broker knows them."""
    return [each for each in ring.ring(at)["ranges"] if each["state"] == "sealed"]


def wait_copied(ring: LocalRing, *, at: int = 0) -> None:
    """Until all that is to be held is, by those that are to, and nobody else."""

    def is_so() -> bool:
        count = ring.ring(at)["brokers"]
        return all(
            set(each["replicas"]) == set(each["complete"]) <= {*range(count)}
            for each in sealed_ranges(ring, at=at)
        )

    ring.until(is_so, WHOLE_S_MAX)


def produce_many(ring: LocalRing, count: int, *, at: int = 0, first: int = 0) -> list[str]:
    """Store events with keys, in requests of some; their values."""
    numbers = range(first, first + count)
    values = [
        json.dumps({"id": each, "pad": Random(each).randbytes(EVENT_BYTES).hex()})
        for each in numbers
    ]
    with Client(ring.brokers[at].url) as client:
        for start in range(0, count, REQUEST_EVENTS):
            lines = "\n".join(values[start : start + REQUEST_EVENTS]).encode()
            client.produce_lines(TOPIC, lines, key=f"k{first + start}")
    return values


def read_all(ring: LocalRing, *, at: int = 0) -> list[str]:
    """The values of all partitions of the topic, sealed ones too, as that broker answers."""
    found = []
    with Client(ring.brokers[at].url) as client:
        for partition in client.topic(TOPIC).partition_details:
            offset = partition.log_start or 0
            while offset < (partition.high_watermark or 0):
                fetched = read_lines(ring, client, TOPIC, partition.partition, offset)
                found += [
                    json.dumps(json.loads(each)["value"]) for each in fetched.body.splitlines()
                ]
                offset = fetched.next_offset
    return found


def assert_copies_are_equal(ring: LocalRing, disks: dict[int, Path]) -> None:
    """Of stopped brokers: sealed partitions have the same batches wherever they are whole."""
    ranges = {each["id"]: each["complete"] for each in sealed_ranges(ring)}
    topic = ring.call(0, "GET", f"/v1/topics/{TOPIC}")
    sealed = {
        each["partition"]: ranges[each["range"]]
        for each in topic["partitionDetails"]
        if each["range"] in ranges
    }
    for broker in ring.brokers:
        if broker.is_running():
            broker.stop()
    stored = {ordinal: stored_batches(path, TOPIC) for ordinal, path in disks.items()}
    assert sealed
    for partition, holders in sealed.items():
        first, *others = (stored[each].get(partition, []) for each in holders if each in stored)
        assert all(each == first for each in others), f"partition {partition} of {holders}"
