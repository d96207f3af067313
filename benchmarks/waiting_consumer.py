"""1,000 events a second to one partition, and a process of its own that waits for each of them.

The events have 100 bytes and one key; 8 connections send them. Times count from the moment in which
an event was due: what waits behind a late answer is late, too.
"""

import json
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from time import perf_counter_ns
from typing import BinaryIO, NamedTuple

import numpy as np

from benchmarks.broker import READ_LISTENER, keys_of_partitions
from benchmarks.brokers import Addressed, Brokers
from benchmarks.echo import echo_server
from benchmarks.events import Event
from benchmarks.load import HOST, Load, LoadResult, Target, request_bytes, run_in_own_process
from benchmarks.report import costs
from benchmarks.requests import single_events
from tailrace.local.broker import LocalBroker
from tailrace.protocol.requests import Request

EVENTS_PER_S = 1_000
EVENT_COUNT = 10_000
WARM_UP_COUNT = 1_000
EVENT_BYTES = 100
PRODUCER_COUNT = 8
# Of partition 0, also where a ring of three has a partition a range.
PARTITION = 0
(KEY, *_) = keys_of_partitions(3)
SILENCE_S_MAX = 30.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
AIMS = {"received_p50_ms": 1, "received_p99_ms": 5}

# The next request for NDJSON: from how many events have come, and the number of the last delivery.
NextRead = Callable[[int, int], Request]


class Run(NamedTuple):
    """One load."""

    produced: LoadResult
    received_ms: "np.ndarray"
    rss_max_mib: float

    def received(self, share: float) -> float:
        """A quantile, in milliseconds."""
        return float(np.quantile(self.received_ms, share))

    def figures(self, floor: LoadResult) -> dict[str, float]:
        """Those of the broker beside those of the echo server."""
        return {
            **costs(self.produced, event_count=EVENT_COUNT, event_bytes=EVENT_BYTES),
            **{f"received_{name}_ms": self.received(share) for name, share in QUANTILES.items()},
            "echo_p50_ms": floor.p50_ms,
            "echo_p99_ms": floor.p99_ms,
            "rss_max_mib": self.rss_max_mib,
        }


def echo_floor() -> LoadResult:
    """The same load without a broker."""
    with echo_server() as echo:
        target = Target(echo.port, [request for _, request in _requests()])
        load = Load([target], EVENT_COUNT, PRODUCER_COUNT, [echo.pid], EVENTS_PER_S)
        return run_in_own_process(load)


def warm_up(brokers: Brokers) -> None:
    """Produce the first events, in a closed loop."""
    run_in_own_process(brokers.load(_requests(), WARM_UP_COUNT, PRODUCER_COUNT))


def run_load(brokers: Brokers, next_read: NextRead, reader: LocalBroker | None = None) -> Run:
    """Produce and receive all events; `next_read` is a function of a module.

    `reader`: the broker that is asked for them; None: the leader.
    """
    reader_port = (reader or brokers.leader_of(PARTITION)).port + READ_LISTENER
    load = brokers.load(_requests(), EVENT_COUNT, PRODUCER_COUNT, EVENTS_PER_S)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_is_ready, next_read).result()  # the process has started, and its imports
        receiving = pool.submit(_receive, reader_port, next_read)
        produced = run_in_own_process(load)
        due_ns = produced.start_ns + np.arange(EVENT_COUNT) / EVENTS_PER_S * 1e9
        received_ms = (np.array(receiving.result()) - due_ns) / 1e6
    return Run(produced, received_ms, brokers.rss_max_mib())


@cache
def _requests() -> list[Addressed]:
    values = (json.dumps({"i": index}).ljust(EVENT_BYTES).encode() for index in range(EVENT_COUNT))
    requests = single_events([Event(KEY, value) for value in values])
    return [Addressed(PARTITION, request) for request in requests]


def _is_ready(_: NextRead) -> bool:
    return True


def _receive(port: int, next_read: NextRead) -> list[int]:
    """When each event arrived, by the machine's monotonic clock; runs in a process of its own."""
    received_ns = [0] * EVENT_COUNT
    with socket.create_connection((HOST, port), SILENCE_S_MAX) as connection:
        answers = connection.makefile("rb")
        received_count = delivery = 0
        while received_count < EVENT_COUNT:
            connection.sendall(request_bytes(next_read(received_count, delivery)))
            headers, body = _answer(answers)
            now_ns = perf_counter_ns()
            delivery = int(headers.get(b"tailrace-delivery", 0))
            for line in body.splitlines():
                received_ns[json.loads(line)["value"]["i"]] = now_ns
                received_count += 1
    return received_ns


def _answer(answers: BinaryIO) -> tuple[Mapping[bytes, bytes], bytes]:
    """Headers and body of the next answer; a body has a length or comes in chunks."""
    status = answers.readline()
    assert status.startswith(b"HTTP/1.1 200 "), status
    headers = {}
    while (line := answers.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if b"content-length" in headers:
        return headers, answers.read(int(headers[b"content-length"]))
    body = b""
    while chunk_bytes := int(answers.readline(), 16):
        body += answers.read(chunk_bytes + 2)[:-2]
    answers.readline()
    return headers, body
