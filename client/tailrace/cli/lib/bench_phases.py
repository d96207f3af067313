"""What `tailrace bench` measures: phases of requests by some threads, a connection each.

The requests go through `tailrace.sync.Client`, since that is what a user's program has: TLS,
tokens, and the leaders of a ring. It takes some 250 µs of CPU a request; the generator of
`benchmarks/` takes 12 and can do none of this, so neither can serve the other.
"""

import base64
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import TypeVar

from tailrace.errors import TailraceError
from tailrace.sync import Client
from tailrace.values import PartitionOffsets
from tailrace.wire import HEADER, BatchHeader

READ_BYTES = 4 * 1024 * 1024  # of one answer
WAIT_MS = 100
LAST_EVENTS_S_MAX = 5.0  # until they are received, once the sender has ended

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Phase:
    """One line of the result. `value_bytes`: of events as sent, in reads too.

    `expected`: how many events it would have had, had its time sufficed; latencies in order.
    """

    name: str
    events: int
    expected: int
    seconds: float
    value_bytes: int
    latencies_ms: tuple[float, ...]

    def percentile(self, percent: int) -> float | None:
        """Nearest rank; None: it has no latencies."""
        if not self.latencies_ms:
            return None
        return self.latencies_ms[-(-len(self.latencies_ms) * percent // 100) - 1]


class Limit:
    """When a phase, which begins now, ends at the latest; `end` ends it now.

    `taken_s`: how long it was.
    """

    def __init__(self, seconds: float) -> None:
        self._start_s = time.perf_counter()
        self._deadline_s = self._start_s + seconds
        self._ended = Event()
        self.taken_s = 0.0

    def is_over(self) -> bool:
        """Asked after each request: every phase has one at least."""
        return self._ended.is_set() or time.perf_counter() >= self._deadline_s

    def end(self) -> None:
        """For all threads."""
        self.taken_s = time.perf_counter() - self._start_s
        self._ended.set()


class Quota:
    """A count of events that threads share; None: no bound."""

    def __init__(self, count: int | None) -> None:
        self._left = count
        self._lock = Lock()

    def take(self, count: int) -> int:
        """As many of `count` as are left."""
        with self._lock:
            if self._left is None:
                return count
            taken = min(count, self._left)
            self._left -= taken
            return taken

    @property
    def is_used_up(self) -> bool:
        """Whether none is left."""
        return self._left == 0


def event(number: int, size_bytes: int) -> bytes:
    """JSON of exactly `size_bytes`, as little compressible as text can be."""
    start, end = b'{"n":%d,"fill":"' % number, b'"}'
    fill_bytes = size_bytes - len(start) - len(end)
    assert fill_bytes >= 0, size_bytes
    return start + base64.b64encode(os.urandom(fill_bytes))[:fill_bytes] + end


def record_count(batches: bytes, starts: Mapping[int, int]) -> int:
    """Of whole batches; in a partition that has a start, from there on."""
    count = position = 0
    while position < len(batches):
        header = BatchHeader._make(HEADER.unpack_from(batches, position))
        count += header.end_offset - max(header.base_offset, starts.get(header.partition, 0))
        position += header.batch_bytes
    return count


def in_threads(works: Sequence[Callable[[], T]], limit: Limit) -> list[T]:
    """All at once. An error, or Ctrl-C, ends the others too."""
    with ThreadPoolExecutor(len(works)) as pool:
        try:
            futures = [pool.submit(work) for work in works]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            limit.end()
        failed = [future for future in done if future.exception()]
        return [future.result() for future in failed or futures]


# --- one event at a time --------------------------------------------------------------------------


def one_by_one(
    client: Client,
    *,
    topic: str,
    group: str,
    size_bytes: int,
    event_count: int | None,
    seconds: float,
) -> tuple[Phase, Phase]:
    """How long an event takes to be stored, and to a consumer that waits for it."""
    quota = Quota(event_count)
    sent_s: dict[int, float] = {}
    received_s: dict[int, float] = {}
    is_sent = Event()
    took_ms: list[float] = []

    def send() -> None:
        try:
            while quota.take(1):
                number = len(sent_s)
                value = event(number, size_bytes)
                sent_s[number] = time.perf_counter()
                client.produce(topic, value)
                took_ms.append((time.perf_counter() - sent_s[number]) * 1000)
                if limit.is_over():
                    break
        finally:
            is_sent.set()

    with client.twin() as receiver:
        consumer = receiver.register(
            group, group, [topic], on_new_group="startFromEarliest"
        ).consumer_id
        limit = Limit(seconds)
        in_threads([send, lambda: _receive(receiver, consumer, received_s, sent_s, is_sent)], limit)
    way_ms = [(received_s[number] - sent_s[number]) * 1000 for number in received_s]
    count = len(took_ms)
    return (
        _phase("produceSingle", count, count, limit, size_bytes, took_ms),
        _phase("produceToReceive", len(way_ms), count, limit, size_bytes, way_ms),
    )


def _receive(
    client: Client,
    consumer_id: str,
    received_s: dict[int, float],
    sent_s: dict[int, float],
    is_sent: Event,
) -> None:
    """Until all that is sent has come."""
    delivery = 0
    ended_s: float | None = None
    while not is_sent.is_set() or len(received_s) < len(sent_s):
        polled = client.poll(consumer_id, delivery=delivery, form="ndjson", wait_ms=WAIT_MS)
        now_s = time.perf_counter()
        delivery = polled.delivery
        for line in polled.body.splitlines():
            received_s.setdefault(json.loads(line)["value"]["n"], now_s)
        if is_sent.is_set():
            ended_s = ended_s or now_s
            if now_s - ended_s > LAST_EVENTS_S_MAX:
                break
    client.goodbye(consumer_id)


# --- as fast as it goes ---------------------------------------------------------------------------


def produce(
    clients: Sequence[Client],
    *,
    topic: str,
    lines: Sequence[bytes],
    event_count: int | None,
    seconds: float,
) -> Phase:
    """Each connection sends requests of `lines` one after the other."""
    quota = Quota(event_count)

    def send(client: Client) -> tuple[int, list[float]]:
        sent_count = 0
        took_ms: list[float] = []
        whole = b"".join(lines)
        while count := quota.take(len(lines)):
            body = whole if count == len(lines) else b"".join(lines[:count])
            start_s = time.perf_counter()
            client.produce_lines(topic, body)
            took_ms.append((time.perf_counter() - start_s) * 1000)
            sent_count += count
            if limit.is_over():
                break
        return sent_count, took_ms

    limit = Limit(seconds)
    results = in_threads([partial(send, each) for each in clients], limit)
    count = sum(sent for sent, _ in results)
    took_ms = [each for _, some in results for each in some]
    return _phase("produce", count, count, limit, len(lines[0]) - 1, took_ms)


def read_by_group(
    clients: Sequence[Client],
    *,
    topic: str,
    group: str,
    expected: int,
    size_bytes: int,
    seconds: float,
) -> Phase:
    """A consumer a connection; together they read on from the group's position."""
    quota = Quota(expected)
    consumers = [f"{group}-{index}" for index in range(len(clients))]
    for client, consumer in zip(clients, consumers, strict=True):
        client.register(consumer, group, [topic], on_new_group="startFromEarliest")

    def read(client: Client, consumer: str) -> int:
        read_count = delivery = 0
        while not quota.is_used_up:
            polled = client.poll(consumer, delivery=delivery, max_bytes=READ_BYTES, wait_ms=WAIT_MS)
            starts = {partition: start for (_, partition), start in polled.start_offsets.items()}
            count = record_count(polled.body, starts)
            delivery = polled.delivery
            read_count += count
            quota.take(count)
            if limit.is_over():
                break
        return read_count

    limit = Limit(seconds)
    try:
        works = [
            partial(read, client, consumer)
            for client, consumer in zip(clients, consumers, strict=True)
        ]
        count = sum(in_threads(works, limit))
    finally:
        for client, consumer in zip(clients, consumers, strict=True):
            with suppress(TailraceError):
                client.goodbye(consumer)
    return _phase("groupRead", count, expected, limit, size_bytes)


def read_partitions(
    clients: Sequence[Client],
    *,
    partitions: Sequence[PartitionOffsets],
    size_bytes: int,
    seconds: float,
) -> Phase:
    """Each partition from its start to its end, by one connection at a time."""
    waiting: SimpleQueue[PartitionOffsets] = SimpleQueue()
    for partition in partitions:
        waiting.put(partition)

    def read(client: Client) -> int:
        read_count = 0
        with suppress(Empty):
            while True:
                each = waiting.get_nowait()
                offset, end = each.readable().start, each.readable().stop
                while offset < end:
                    fetched = client.read_batches(
                        each.topic, each.partition, offset, max_bytes=READ_BYTES
                    )
                    read_count += record_count(fetched.body, {each.partition: offset})
                    offset = fetched.next_offset
                    if limit.is_over():
                        return read_count
        return read_count

    limit = Limit(seconds)
    count = sum(in_threads([partial(read, each) for each in clients], limit))
    expected = sum(len(partition.readable()) for partition in partitions)
    return _phase("partitionRead", count, expected, limit, size_bytes)


def _phase(
    name: str,
    events: int,
    expected: int,
    limit: Limit,
    size_bytes: int,
    latencies_ms: Sequence[float] = (),
) -> Phase:
    return Phase(
        name, events, expected, limit.taken_s, events * size_bytes, tuple(sorted(latencies_ms))
    )
