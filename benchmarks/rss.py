"""How much memory does a broker hold: idle, with many partitions or connections, after load?

Resident memory as the kernel counts it, of a broker each; and of a ring of three, all together.

Sketch, MiB:

| what                                                                        | MiB   |
|-----------------------------------------------------------------------------|-------|
| Python with its modules: NumPy 18, pydantic 12, msgspec, uvloop, structlog  |    60 |
| 2,000 partitions: 6 KiB of objects each, 2 KiB of directory and file state  |    16 |
| 5,000 idle connections: transport 2 KiB, parser and connection 4 KiB        |    30 |
| after load: 32 of cache, 32 of buffers and bodies in flight, what the       |       |
| allocator keeps                                                             |    90 |

Bound: nothing; the aims are what a small node has to spare.
"""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

from benchmarks.batches import batch_requests, batches_to
from benchmarks.broker import broker_on_disk, create_topic, produce, rss_max_mib, rss_mib
from benchmarks.brokers import brokers_on_disk
from benchmarks.load import HOST, request_bytes
from benchmarks.recovery import fill_partitions
from benchmarks.report import Row
from tailrace.local.broker import LocalBroker
from tailrace.protocol.requests import ready_request
from tailrace.wire import Codec

CONNECTION_COUNT = 5_000
PRODUCER_COUNT = 16
REQUEST_COUNT = 4_000
PARTITION_COUNT = 4
ANSWER_BYTES_MAX = 4096
AIMS = {
    "rss_idle_mib": 90,
    "rss_2000_partitions_mib": 128,
    "rss_5000_connections_mib": 170,
    "rss_max_mib": 170,
}
RING_AIMS = {"rss_idle_mib": 270, "rss_max_mib": 500}


def run(broker_count: int = 1) -> Iterator[Row]:
    """Ask three brokers, or a ring of three."""
    if broker_count > 1:
        yield _of_ring(broker_count)
        return
    figures = {}
    with broker_on_disk() as broker:
        figures["rss_idle_mib"] = rss_mib(broker)
        with ExitStack() as connections:
            _connect(broker, connections)
            figures["rss_5000_connections_mib"] = rss_mib(broker)
    with broker_on_disk() as broker:
        fill_partitions(broker)
        figures["rss_2000_partitions_mib"] = rss_mib(broker)
    with broker_on_disk() as broker:
        create_topic(broker, partitionsPerRange=PARTITION_COUNT)
        requests = batch_requests(Codec.LZ4, PARTITION_COUNT)
        produce(broker, requests, REQUEST_COUNT, PRODUCER_COUNT)
        figures["rss_after_load_mib"] = rss_mib(broker)
        figures["rss_max_mib"] = rss_max_mib(broker)
    yield Row("rss", "resident memory of a broker", figures, AIMS)


def _of_ring(broker_count: int) -> Row:
    partitions = range(PARTITION_COUNT * broker_count)
    with brokers_on_disk(broker_count) as brokers:
        figures = {"rss_idle_mib": brokers.rss_mib()}
        brokers.create_topic(PARTITION_COUNT)
        requests = batches_to(Codec.LZ4, partitions, len(partitions))
        brokers.produce(requests, REQUEST_COUNT, PRODUCER_COUNT)
        figures["rss_after_load_mib"] = brokers.rss_mib()
        figures["rss_max_mib"] = brokers.rss_max_mib()
    asked = f"resident memory of {broker_count} brokers together"
    return Row("ring_rss", asked, figures, RING_AIMS)


def _connect(broker: LocalBroker, connections: ExitStack) -> None:
    """Each has had an answer, so that what a connection needs is there."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    request = request_bytes(ready_request())
    for _ in range(CONNECTION_COUNT):
        connection = socket.create_connection((HOST, broker.port))
        connections.enter_context(closing(connection))
        connection.sendall(request)
        answer = connection.recv(ANSWER_BYTES_MAX)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
