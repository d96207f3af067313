"""How long from a produce to a waiting consumer of a group, and does a group that stopped matter?

1,000 events a second of 100 bytes with one key, so one partition, over 8 connections, durability
`fsync` and `written`; one consumer of a group, a process of its own, polls as NDJSON and waits.
Times count from the moment in which an event was due. Once more beside a group that took a delivery
and never came back.

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
"""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter_ns
from typing import BinaryIO, NamedTuple

import numpy as np

from benchmarks.broker import (
    PRODUCE_DOOR,
    READ_DOOR,
    TOPIC,
    broker_on_disk,
    create_topic,
    produce,
    rss_max_mib,
)
from benchmarks.echo import echo_server
from benchmarks.load import HOST, Load, LoadResult, request_bytes, run_in_own_process
from benchmarks.report import Row, costs
from tailrace.protocol.group_requests import poll_request
from tailrace.protocol.requests import produce_request
from tailrace.sync import Client
from tailrace.wire import JSON_CONTENT_TYPE

EVENTS_PER_S = 1_000
EVENT_COUNT = 10_000
WARM_UP_COUNT = 1_000
EVENT_BYTES = 100
PRODUCER_COUNT = 8
WAIT_MS = 10_000
SILENCE_S_MAX = 30.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
RECEIVER, STOPPED = "receiver", "stopped"
AIMS = {"received_p50_ms": 1, "received_p99_ms": 5}
STOPPED_AIMS = AIMS | {"p99_ratio": 2}


class _Run(NamedTuple):
    """One load."""

    produced: LoadResult
    received_ms: "np.ndarray"
    rss_max_mib: float

    def received(self, share: float) -> float:
        return float(np.quantile(self.received_ms, share))


def run() -> Iterator[Row]:
    """Ask the echo server, then a broker for each durability, then beside a group that stopped."""
    values = [json.dumps({"i": index}).ljust(EVENT_BYTES).encode() for index in range(EVENT_COUNT)]
    requests = [
        request_bytes(produce_request(TOPIC, value, content_type=JSON_CONTENT_TYPE, key="one"))
        for value in values
    ]
    with echo_server() as echo:
        floor = run_in_own_process(_load(echo.port, echo.pid, requests))
    asked = f"{EVENTS_PER_S:,} events a second to a waiting consumer of a group"
    durable = _ask(requests, "fsync", has_stopped=False)
    yield Row("produce_to_received", f"{asked}, `fsync`", _figures(durable, floor), AIMS)
    alone = _ask(requests, "written", has_stopped=False)
    yield Row("produce_to_received_written", f"{asked}, `written`", _figures(alone, floor), AIMS)
    beside = _ask(requests, "written", has_stopped=True)
    figures = _figures(beside, floor) | {
        "alone_p99_ms": alone.received(0.99),
        "p99_ratio": beside.received(0.99) / alone.received(0.99),
    }
    asked += ", `written`, beside a group that stopped"
    yield Row("produce_to_received_beside_stopped", asked, figures, STOPPED_AIMS)


def _ask(requests: list[bytes], durability: str, *, has_stopped: bool) -> _Run:
    with (
        broker_on_disk() as broker,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        Client(broker.url) as client,
    ):
        create_topic(broker, partitionsPerRange=1, durability=durability)
        client.register(RECEIVER, RECEIVER, [TOPIC])
        if has_stopped:
            client.register(STOPPED, STOPPED, [TOPIC], on_new_group="startFromEarliest")
        produce(broker, requests, WARM_UP_COUNT, PRODUCER_COUNT)
        if has_stopped:
            assert client.poll(STOPPED, delivery=0).body
        _read_warm_up(client)
        pool.submit(_is_ready).result()  # the process has started, and knows this module
        receiving = pool.submit(_receive, broker.port + READ_DOOR, len(requests))
        produced = run_in_own_process(_load(broker.port + PRODUCE_DOOR, broker.pid, requests))
        due_ns = produced.start_ns + np.arange(EVENT_COUNT) / EVENTS_PER_S * 1e9
        received_ms = (np.array(receiving.result()) - due_ns) / 1e6
        return _Run(produced, received_ms, rss_max_mib(broker))


def _figures(asked: _Run, floor: LoadResult) -> dict[str, float]:
    return {
        **costs(asked.produced, event_count=EVENT_COUNT, event_bytes=EVENT_BYTES),
        **{f"received_{name}_ms": asked.received(share) for name, share in QUANTILES.items()},
        "echo_p50_ms": floor.p50_ms,
        "echo_p99_ms": floor.p99_ms,
        "echo_p999_ms": floor.p999_ms,
        "rss_max_mib": asked.rss_max_mib,
    }


def _load(port: int, server_pid: int, requests: list[bytes]) -> Load:
    return Load(port, requests, EVENT_COUNT, PRODUCER_COUNT, server_pid, EVENTS_PER_S)


def _read_warm_up(client: Client) -> None:
    """So that the group stands at the end."""
    record_count = 0
    while record_count < WARM_UP_COUNT:
        polled = client.poll(RECEIVER, form="ndjson")
        record_count += len(polled.body.splitlines())
    client.commit(RECEIVER)


def _is_ready() -> bool:
    return True


def _receive(port: int, event_count: int) -> list[int]:
    """When each event arrived, by the machine's monotonic clock; runs in a process of its own."""
    received_ns = [0] * event_count
    with socket.create_connection((HOST, port), SILENCE_S_MAX) as connection:
        answers = connection.makefile("rb")
        received_count = delivery = 0
        while received_count < event_count:
            poll = poll_request(RECEIVER, delivery=delivery, form="ndjson", wait_ms=WAIT_MS)
            connection.sendall(request_bytes(poll))
            delivery, body = _answer(answers)
            now_ns = perf_counter_ns()
            for line in body.splitlines():
                received_ns[json.loads(line)["value"]["i"]] = now_ns
                received_count += 1
    return received_ns


def _answer(answers: BinaryIO) -> tuple[int, bytes]:
    """Number and body of the next delivery; a body has a length or comes in chunks."""
    status = answers.readline()
    assert status.startswith(b"HTTP/1.1 200 "), status
    headers = {}
    while (line := answers.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    delivery = int(headers[b"tailrace-delivery"])
    if b"content-length" in headers:
        return delivery, answers.read(int(headers[b"content-length"]))
    body = b""
    while chunk_bytes := int(answers.readline(), 16):
        body += answers.read(chunk_bytes + 2)[:-2]
    answers.readline()
    return delivery, body
