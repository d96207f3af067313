"""How long from a produce to its acknowledgement, and to a consumer that waits for it?

1,000 events a second of 100 bytes with one key, so one partition, over 8 connections, durability
`fsync`; one consumer reads the partition by long poll. Times are taken in the generator, from the
moment in which an event was due: what waits behind a late answer counts as late, too.

Sketch of an event that finds everything idle, µs:

| step                                                                     | µs  |
|--------------------------------------------------------------------------|-----|
| generator -> broker: send, loopback, wake-up of the event loop           |  60 |
| parse, hash, check, hand to an I/O thread                                |  80 |
| one durable 4 KiB write to zero-written space                            | 170 |
| back to the loop, answer and the waiting reader's answer written         |  80 |
| broker -> generator                                                      |  60 |
| sum, to the acknowledgement and, from the same turn of the loop, to both | 450 |

Bound: the disk's write, and the wake-ups of two cores that three processes share. The echo
server's figures are the same load without a broker: what generator and machine add.
"""

import asyncio
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import uvloop

from benchmarks.broker import broker_on_disk, rss_max_mib, rss_mib
from benchmarks.echo import echo_server
from benchmarks.load import HOST, cpu_seconds, request_bytes
from benchmarks.report import report
from tailrace.requests import Request, produce_request
from tailrace.sync import Client
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE

TOPIC = "bench"
KEY = "one"
EVENTS_PER_S = 1_000
EVENT_COUNT = 10_000
WARM_UP_COUNT = 1_000
EVENT_BYTES = 100
PRODUCER_COUNT = 8
WAIT_MS = 10_000
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
AIMS = {
    "acknowledged_p50_ms": 0.7,
    "acknowledged_p99_ms": 3,
    "received_p50_ms": 1,
    "received_p99_ms": 5,
}


class _Place(NamedTuple):
    """Where to produce, and where to read what was produced; no read port: an echo server."""

    produce_port: int
    read_port: int | None
    partition: int


def run() -> None:
    """Ask the echo server, then the broker."""
    with echo_server() as echo:
        floor = _in_own_process(_Place(echo.port, None, 0))
    with broker_on_disk() as broker:
        rss_idle_mib = rss_mib(broker)
        with Client(broker.url) as client:
            partition = client.produce(TOPIC, b"0", key=KEY).partition
        cpu_before_s = cpu_seconds(broker.pid)
        result = _in_own_process(_Place(broker.port + 1, broker.port + 2, partition))
        broker_cpu_s = cpu_seconds(broker.pid) - cpu_before_s
        rss_loaded_mib = rss_max_mib(broker)
    broker_us = broker_cpu_s / EVENT_COUNT * 1e6
    figures = {
        "events_per_s": EVENT_COUNT / result["seconds"],
        **{name: value for name, value in result.items() if name != "seconds"},
        "echo_p50_ms": floor["acknowledged_p50_ms"],
        "echo_p99_ms": floor["acknowledged_p99_ms"],
        "broker_cpu_us_per_event": broker_us,
        "broker_cpu_s_per_gib": broker_us / EVENT_BYTES * (1 << 30) / 1e6,
        "rss_idle_mib": rss_idle_mib,
        "rss_max_mib": rss_loaded_mib,
    }
    report("tail", figures, AIMS)


def _in_own_process(place: _Place) -> dict[str, float]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, place).result()


def _measure(place: _Place) -> dict[str, float]:
    return uvloop.run(_Generator(place).run())


class _Generator:
    """Sends event i at its time, and notes when its answer and the event itself come back."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._sent_s = np.zeros(EVENT_COUNT)
        self._acknowledged_s = np.zeros(EVENT_COUNT)
        self._received_s = np.zeros(EVENT_COUNT)

    async def run(self) -> dict[str, float]:
        """Quantiles of both latencies, without the first events, and the whole time."""
        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for index in range(PRODUCER_COUNT):
                tasks.create_task(self._produce(index, started_s))
            if self._place.read_port is not None:
                tasks.create_task(self._consume())
        figures = {"seconds": time.perf_counter() - started_s}
        for name, times_s in (
            ("acknowledged", self._acknowledged_s),
            ("received", self._received_s),
        ):
            latencies_ms = (times_s - self._sent_s)[WARM_UP_COUNT:] * 1e3
            for quantile, share in QUANTILES.items():
                figures[f"{name}_{quantile}_ms"] = float(np.quantile(latencies_ms, share))
        return figures

    async def _produce(self, first: int, started_s: float) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._place.produce_port)
        for index in range(first, EVENT_COUNT, PRODUCER_COUNT):
            value = json.dumps({"i": index}).ljust(EVENT_BYTES).encode()
            request = produce_request(TOPIC, value, content_type=JSON_CONTENT_TYPE, key=KEY)
            wait_s = started_s + index / EVENTS_PER_S - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._sent_s[index] = started_s + index / EVENTS_PER_S  # also when it had to wait
            writer.write(request_bytes(request))
            await _answer(reader)
            self._acknowledged_s[index] = time.perf_counter()
        writer.close()

    async def _consume(self) -> None:
        """From behind the one event that found the partition."""
        place = self._place
        assert place.read_port is not None
        reader, writer = await asyncio.open_connection(HOST, place.read_port)
        path = f"/v1/topic/{TOPIC}/partitions/{place.partition}/records"
        offset = 1
        while offset <= EVENT_COUNT:
            target = f"{path}?offset={offset}&waitMs={WAIT_MS}"
            request = Request("GET", target, {"Accept": NDJSON_CONTENT_TYPE})
            writer.write(request_bytes(request))
            lines = (await _answer(reader)).splitlines()
            now_s = time.perf_counter()
            for line in lines:
                self._received_s[json.loads(line)["value"]["i"]] = now_s
            offset += len(lines)
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer, which has a Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head
    size_bytes = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    return await reader.readexactly(size_bytes)
