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

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter_ns
from typing import BinaryIO

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
from benchmarks.load import HOST, Load, request_bytes, run_in_own_process
from benchmarks.report import Row, costs
from tailrace.protocol.requests import Request, produce_request
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE

EVENTS_PER_S = 1_000
EVENT_COUNT = 10_000
WARM_UP_COUNT = 1_000
EVENT_BYTES = 100
PRODUCER_COUNT = 8
WAIT_MS = 10_000
SILENCE_S_MAX = 30.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
AIMS = {"p50_ms": 0.7, "p99_ms": 3, "received_p50_ms": 1, "received_p99_ms": 5}


def run() -> Iterator[Row]:
    """Ask the echo server, then a broker for each durability."""
    values = [json.dumps({"i": index}).ljust(EVENT_BYTES).encode() for index in range(EVENT_COUNT)]
    requests = [
        request_bytes(produce_request(TOPIC, value, content_type=JSON_CONTENT_TYPE, key="one"))
        for value in values
    ]
    with echo_server() as echo:
        floor = run_in_own_process(_load(echo.port, echo.pid, requests))
    for question, durability in (("tail", "fsync"), ("tail_written", "written")):
        with (
            broker_on_disk() as broker,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        ):
            create_topic(broker, partitionsPerRange=1, durability=durability)
            produce(broker, requests, WARM_UP_COUNT, PRODUCER_COUNT)
            receiving = pool.submit(_receive, broker.port + READ_DOOR)
            load = _load(broker.port + PRODUCE_DOOR, broker.pid, requests)
            result = run_in_own_process(load)
            received_ns = np.array(receiving.result())
            rss_loaded_mib = rss_max_mib(broker)
        due_ns = result.start_ns + np.arange(EVENT_COUNT) / EVENTS_PER_S * 1e9
        received_ms = (received_ns - due_ns) / 1e6
        figures = {
            **costs(result, event_count=EVENT_COUNT, event_bytes=EVENT_BYTES),
            **{
                f"received_{name}_ms": float(np.quantile(received_ms, share))
                for name, share in QUANTILES.items()
            },
            "echo_p50_ms": floor.p50_ms,
            "echo_p99_ms": floor.p99_ms,
            "rss_max_mib": rss_loaded_mib,
        }
        asked = (
            f"{EVENTS_PER_S:,} events a second on 1 partition, a waiting consumer, `{durability}`"
        )
        yield Row(question, asked, figures, AIMS)


def _load(port: int, server_pid: int, requests: list[bytes]) -> Load:
    return Load(port, requests, EVENT_COUNT, PRODUCER_COUNT, server_pid, EVENTS_PER_S)


def _receive(port: int) -> list[int]:
    """When each event arrived, by the machine's monotonic clock; runs in a process of its own."""
    received_ns = [0] * EVENT_COUNT
    with socket.create_connection((HOST, port), SILENCE_S_MAX) as connection:
        answers = connection.makefile("rb")
        received_count = 0
        while received_count < EVENT_COUNT:
            offset = WARM_UP_COUNT + received_count
            target = f"/v1/topic/{TOPIC}/partitions/0/records?offset={offset}&waitMs={WAIT_MS}"
            request = Request("GET", target, {"Accept": NDJSON_CONTENT_TYPE})
            connection.sendall(request_bytes(request))
            lines = _answer(answers).splitlines()
            now_ns = perf_counter_ns()
            for line in lines:
                received_ns[json.loads(line)["value"]["i"]] = now_ns
            received_count += len(lines)
    return received_ns


def _answer(answers: BinaryIO) -> bytes:
    """The body of the next answer, which has a Content-Length."""
    status = answers.readline()
    assert status.startswith(b"HTTP/1.1 200 "), status
    body_bytes = 0
    while (line := answers.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            body_bytes = int(value)
    return answers.read(body_bytes)
