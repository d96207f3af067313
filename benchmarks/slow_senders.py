"""Do slow senders slow a normal producer down?

500 connections send one byte a second for 30 s, half of them within a head, half within a body;
who is answered 408 connects again. Meanwhile a producer sends events of 100 bytes over 4
connections, one request outstanding each; before and after, it does so alone.

Sketch of what the slow ones cost the broker:

| step                                                           | CPU             |
|----------------------------------------------------------------|-----------------|
| 500 bytes a second: recv, callbacks, parser, 12 µs each        | 6 ms a second   |
| a refusal each 10 s (head) or 20 s (body), connect and close   |                 |
| with it: 38 a second, 150 µs each                              | 6 ms a second   |
| 500 timers: a heap's push and pop each 10 to 20 s              | nothing         |

1.2 % of a core: nothing of a normal producer's time at the median, and at the 99th percentile one
turn of the loop with a byte or a refusal in it, 0.2 ms. Held: 1 KiB a connection, and the bodies
that they announce, 250 x 1,000 bytes of produce memory.
"""

import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median

from benchmarks.broker import PRODUCE_LISTENER, broker_on_disk, produce, rss_max_mib
from benchmarks.events import readings
from benchmarks.load import HOST, LoadResult, request_bytes
from benchmarks.report import Row
from benchmarks.requests import single_events
from tailrace.protocol.requests import Request

SENDER_COUNT = 500
SECONDS = 30
BODY_BYTES = 1_000
# In which the senders take turns, so that their bytes are spread over the second.
TURNS_PER_S = 50
CONNECTION_COUNT = 4
EVENT_COUNT = 4096
# Of a load of a second or two; medians of several are compared, since the machine is not still.
REQUEST_COUNT = 5_000
ALONE_COUNT = 5  # loads before, and as many after
RECEIVED_BYTES_MAX = 4096
AIMS = {"p99_ratio": 2}


@dataclass(frozen=True, slots=True)
class SlowResult:
    """What the slow senders sent and got."""

    sent_bytes: int
    refused_408: int
    refused_otherwise: int
    seconds: float


def run() -> Iterator[Row]:
    """Ask with and without them, of one broker."""
    requests = single_events(readings(EVENT_COUNT, 100))
    with broker_on_disk() as broker:

        def load() -> LoadResult:
            return produce(broker, requests, REQUEST_COUNT, CONNECTION_COUNT)

        load()  # to warm up
        alone = [load() for _ in range(ALONE_COUNT)]
        beside = []
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            sending = pool.submit(_send_slowly, broker.port + PRODUCE_LISTENER)
            while not sending.done():
                beside.append(load())
            slow = sending.result()
        beside.pop()  # its end was alone
        alone += [load() for _ in range(ALONE_COUNT)]
        rss_mib = rss_max_mib(broker)
    p99_ms, alone_p99_ms = (median(load.p99_ms for load in loads) for loads in (beside, alone))
    figures = {
        "p99_ratio": p99_ms / alone_p99_ms,
        "p50_ms": median(each.p50_ms for each in beside),
        "p99_ms": p99_ms,
        "p99_max_ms": max(each.p99_ms for each in beside),
        "alone_p50_ms": median(each.p50_ms for each in alone),
        "alone_p99_ms": alone_p99_ms,
        "alone_p99_max_ms": max(each.p99_ms for each in alone),
        "slow_bytes_per_s": slow.sent_bytes / slow.seconds,
        "refused_408": slow.refused_408,
        "refused_otherwise": slow.refused_otherwise,
        "other_cores": median(each.other_cores for each in beside),
        "rss_max_mib": rss_mib,
    }
    asked = f"p99 of a producer beside {SENDER_COUNT} slow senders, to that alone"
    yield Row("slow_senders", asked, figures, AIMS)


class _Sender:
    """One slow connection after the other; byte by byte."""

    def __init__(self, port: int, *, is_slow_from_the_head_on: bool) -> None:
        whole = request_bytes(Request("POST", "/v1/topic/slow/messages", {}, b"1" * BODY_BYTES))
        self._at_once = whole[:1] if is_slow_from_the_head_on else whole[:-BODY_BYTES]
        self._then = whole[len(self._at_once) :]
        self._port = port
        self.connect()

    def connect(self) -> None:
        self._position = 0
        self.socket = socket.create_connection((HOST, self._port))
        self.socket.sendall(self._at_once)

    def send_one(self) -> None:
        self.socket.sendall(self._then[self._position : self._position + 1])
        self._position += 1


def _send_slowly(port: int) -> SlowResult:
    """A byte a second from each, for the time; in a process of its own."""
    senders = [
        _Sender(port, is_slow_from_the_head_on=bool(number % 2)) for number in range(SENDER_COUNT)
    ]
    sent_bytes = refused_408 = refused_otherwise = 0
    start_s = time.perf_counter()
    for turn in range(SECONDS * TURNS_PER_S):
        time.sleep(max(0, start_s + turn / TURNS_PER_S - time.perf_counter()))
        for sender in senders[turn % TURNS_PER_S :: TURNS_PER_S]:
            if select.select([sender.socket], [], [], 0)[0]:
                is_408 = sender.socket.recv(RECEIVED_BYTES_MAX).startswith(b"HTTP/1.1 408 ")
                refused_408 += is_408
                refused_otherwise += not is_408
                sender.socket.close()
                sender.connect()
            else:
                sender.send_one()
                sent_bytes += 1
    seconds = time.perf_counter() - start_s
    for sender in senders:
        sender.socket.close()
    return SlowResult(sent_bytes, refused_408, refused_otherwise, seconds)
