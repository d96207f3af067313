"""An HTTP load from a process of its own: one request outstanding per connection.

Each connection sends as soon as it is answered (a closed loop), or all together send at a steady
rate; then a request's time counts from when it was due, so what waits behind a late one is late.
Or each repeats requests of its own until they are answered with nothing (204), as consumers poll.

The generator must never be the bottleneck, so a request costs it two system calls, one share of an
`epoll_wait` and some 3 µs of Python: requests are ready-made bytes, an answer is counted by its
status line and content-length or last chunk, and bodies are dropped in the buffer that received
them. What it cost is part of every result.
"""

import gc
import os
import select
import socket
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tailrace.protocol.requests import Request

HOST = "127.0.0.1"
SILENCE_S_MAX = 10.0
RECEIVE_BUFFER_BYTES = 1 << 20
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The end of an answer in chunks; JSON and NDJSON have no \r of their own.
LAST_CHUNK = b"\r\n0\r\n\r\n"
# Of `_awaited_bytes`: until the last chunk.
UNKNOWN = -1


class LoadError(Exception):
    """The server answered with an error, hung up or fell silent: there is nothing to measure."""


class Target(NamedTuple):
    """A port, and the requests that go there."""

    port: int
    requests: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: a target's requests in turn, from whichever of its connections is free, again.

    Connection i goes to target i modulo their number. With `request_count` None each request is
    sent until it is answered with 204, then the next: there is one target, and connection i of n
    has the requests i, i + n, i + 2n …
    """

    targets: Sequence[Target]
    request_count: int | None
    connection_count: int
    server_pids: Sequence[int]
    requests_per_s: float | None = None  # None: a closed loop


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What it took. CPU times are user and system time of all threads of the processes."""

    request_count: int
    start_ns: int  # of the monotonic clock: request i of a steady rate was due i intervals later
    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    server_cpu_s: float
    server_kernel_share: float
    generator_cpu_s: float
    other_cores: float  # what all other processes took meanwhile: the noise


def run_in_own_process(load: Load) -> LoadResult:
    """Send everything, once; LoadError when an answer is not 200, or 204."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_run, load).result()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its threads, ended ones included, in steps of a nanosecond.

    The clock of clock_getcpuclockid(3). /proc/PID/stat counts in ticks of 10 ms, and
    /proc/PID/task/*/schedstat forgets threads that have ended.
    """
    return time.clock_gettime((~pid << 3) | 2)


def request_bytes(request: Request) -> bytes:
    """A request as it goes on the wire."""
    headers = {"Host": HOST, **request.headers, "Content-Length": str(len(request.body))}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"{request.method} {request.target} HTTP/1.1\r\n{''.join(lines)}\r\n"
    return head.encode() + request.body


class _Connection:
    """One keep-alive connection with at most one request outstanding."""

    __slots__ = (
        "_awaited_bytes", "_buffer", "_end", "_head", "_unsent", "due_ns", "is_empty", "requests",
        "socket",
    )  # fmt: skip

    def __init__(
        self, port: int, buffer: memoryview, requests: Iterator[bytes] | None = None
    ) -> None:
        self.requests = requests or iter(())  # shared by the connections to a target
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._buffer = buffer  # shared: nothing in it is needed after `receive`
        self._unsent: bytes | memoryview = b""
        self._head = b""
        self._awaited_bytes = 0  # of the answer's body; 0 while its head is not complete
        self._end = b""  # of what has come of an answer in chunks
        self.is_empty = False  # the last answer was
        self.due_ns = 0

    def send(self, request: bytes, due_ns: int) -> None:
        self.due_ns = due_ns
        self._unsent = request
        self.send_rest()

    def send_rest(self) -> None:
        """Go on with a request that the socket's buffer did not take whole."""
        while self._unsent:
            try:
                sent_bytes = self.socket.send(self._unsent)
            except BlockingIOError:
                return
            whole = sent_bytes == len(self._unsent)
            self._unsent = b"" if whole else memoryview(self._unsent)[sent_bytes:]

    def receive(self) -> bool:
        """Take what has come; whether that completes the answer."""
        while True:
            try:
                received_bytes = self.socket.recv_into(self._buffer)
            except BlockingIOError:
                return False
            if not received_bytes:
                raise LoadError("the server closed the connection")
            if self._awaited_bytes == UNKNOWN:
                self._take_chunks(0, received_bytes)
            elif self._awaited_bytes:
                self._awaited_bytes -= received_bytes
                assert self._awaited_bytes >= 0, "more bytes than content-length said"
            elif not self._read_head(received_bytes):
                continue
            if self._awaited_bytes == 0:
                return True

    def _read_head(self, received_bytes: int) -> bool:
        """Whether the head is complete; then `_awaited_bytes` says what is missing of the body."""
        head = self._head + bytes(self._buffer[: min(received_bytes, 4096)])
        head_end = head.find(b"\r\n\r\n")
        if head_end < 0:
            self._head = head
            return False
        self.is_empty = head.startswith(b"HTTP/1.1 204 ")
        if not self.is_empty and not head.startswith(b"HTTP/1.1 200 "):
            raise LoadError(head.decode(errors="replace"))
        body_start = head_end + 4 - len(self._head)
        self._head = b""
        names = head[:head_end].lower()  # header names may be in any case
        if self.is_empty:
            assert body_start == received_bytes, "an answer without a body has one"
        elif b"transfer-encoding:" in names:
            self._end = b"\r\n"  # of the head
            self._take_chunks(body_start, received_bytes)
        else:
            # The digits end where the line does.
            value = names.partition(b"content-length:")[2].partition(b"\r")[0]
            self._awaited_bytes = int(value) - (received_bytes - body_start)
        return True

    def _take_chunks(self, start: int, end: int) -> None:
        """Whether the last one is among what has come."""
        new = bytes(self._buffer[max(start, end - len(LAST_CHUNK)) : end])
        self._end = (self._end + new)[-len(LAST_CHUNK) :]
        if self._end == LAST_CHUNK:
            self._awaited_bytes, self._end = 0, b""
        else:
            self._awaited_bytes = UNKNOWN


def _run(load: Load) -> LoadResult:
    latencies_ns: array[int] = array("q")
    with ExitStack() as stack:
        poller = stack.enter_context(select.epoll())
        connections: dict[int, _Connection] = {}
        buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        targets = [(target.port, cycle(target.requests)) for target in load.targets]
        for index in range(load.connection_count):
            port, requests = targets[index % len(targets)]
            connection = _Connection(port, buffer, requests)
            stack.callback(connection.socket.close)
            connections[connection.socket.fileno()] = connection
            # Edge-triggered: one registration for both directions, no call per request.
            poller.register(connection.socket, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        gc.freeze()
        gc.disable()
        before = _Clocks.read(load.server_pids)
        start_ns = time.perf_counter_ns()
        if load.request_count is None:
            exchange = _exchange_until_empty
        else:
            exchange = _exchange_steadily if load.requests_per_s else _exchange
        exchange(load, connections, poller, latencies_ns)
        after = _Clocks.read(load.server_pids)
    seconds = after.wall_s - before.wall_s
    server_cpu_s = after.server_cpu_s - before.server_cpu_s
    generator_cpu_s = after.generator_cpu_s - before.generator_cpu_s
    busy_s = after.busy_s - before.busy_s
    p50, p99, p999 = np.percentile(np.array(latencies_ns) / 1e6, [50, 99, 99.9])
    return LoadResult(
        request_count=len(latencies_ns),
        start_ns=start_ns,
        seconds=seconds,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        server_cpu_s=server_cpu_s,
        server_kernel_share=(after.server_kernel_s - before.server_kernel_s) / server_cpu_s,
        generator_cpu_s=generator_cpu_s,
        other_cores=(busy_s - server_cpu_s - generator_cpu_s) / seconds,
    )


def _exchange(
    load: Load,
    connections: dict[int, _Connection],
    poller: select.epoll,
    latencies_ns: "array[int]",
) -> None:
    """The loop that is timed: send, receive, note the latency, until all is answered."""
    assert load.request_count is not None
    unsent_count = load.request_count
    for connection in list(connections.values())[: load.request_count]:
        connection.send(next(connection.requests), time.perf_counter_ns())
        unsent_count -= 1
    while len(latencies_ns) < load.request_count:
        for connection in _answered(connections, poller, latencies_ns):
            if unsent_count:
                connection.send(next(connection.requests), time.perf_counter_ns())
                unsent_count -= 1


def _exchange_until_empty(
    load: Load,
    connections: dict[int, _Connection],
    poller: select.epoll,
    latencies_ns: "array[int]",
) -> None:
    """The same by requests of each connection's own, until all of them are answered with 204."""
    (target,) = load.targets
    own = {
        connection: list(target.requests[index :: len(connections)])
        for index, connection in enumerate(connections.values())
    }
    for connection, requests in own.items():
        connection.send(requests[0], time.perf_counter_ns())
    while any(own.values()):
        for connection in _answered(connections, poller, latencies_ns):
            requests = own[connection]
            if connection.is_empty:
                del requests[0]
            if requests:
                connection.send(requests[0], time.perf_counter_ns())


def _exchange_steadily(
    load: Load,
    connections: dict[int, _Connection],
    poller: select.epoll,
    latencies_ns: "array[int]",
) -> None:
    """The same at a steady rate, by whichever connections are free."""
    assert load.requests_per_s is not None
    assert load.request_count is not None
    interval_ns = 1e9 / load.requests_per_s
    free = list(connections.values())
    start_ns = time.perf_counter_ns()
    sent_count = 0
    while len(latencies_ns) < load.request_count:
        due_ns = start_ns + int(sent_count * interval_ns)
        wait_ns = due_ns - time.perf_counter_ns()
        if sent_count == load.request_count or not free:
            free += _answered(connections, poller, latencies_ns)
        elif wait_ns <= 0:
            connection = free.pop()
            connection.send(next(connection.requests), due_ns)
            sent_count += 1
        # epoll_wait counts in milliseconds, which is coarser than what is measured here.
        elif select.select([poller], [], [], wait_ns / 1e9)[0]:
            free += _answered(connections, poller, latencies_ns)


def _answered(
    connections: dict[int, _Connection], poller: select.epoll, latencies_ns: "array[int]"
) -> Iterator[_Connection]:
    """Wait for answers; the connections that have theirs whole, each as it comes."""
    ready = poller.poll(SILENCE_S_MAX)
    if not ready:
        raise LoadError(f"no answer for {SILENCE_S_MAX:g} s")
    for descriptor, events in ready:
        connection = connections[descriptor]
        if events & select.EPOLLOUT:
            connection.send_rest()
        if events & select.EPOLLIN and connection.receive():
            latencies_ns.append(time.perf_counter_ns() - connection.due_ns)
            yield connection


@dataclass(frozen=True, slots=True)
class _Clocks:
    wall_s: float
    server_cpu_s: float
    server_kernel_s: float
    generator_cpu_s: float
    busy_s: float  # of all cores

    @staticmethod
    def read(server_pids: Sequence[int]) -> "_Clocks":
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in server_pids]
        # stime, field 15; counted behind the name, which may hold spaces: proc(5).
        kernel_ticks = sum(int(stat.rpartition(")")[2].split()[12]) for stat in stats)
        # user, nice, system, idle, iowait, irq, softirq, steal: proc(5).
        all_ticks = list(map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]))
        busy_ticks = sum(all_ticks) - sum(all_ticks[3:5])
        return _Clocks(
            wall_s=time.perf_counter(),
            server_cpu_s=sum(map(cpu_seconds, server_pids)),
            server_kernel_s=kernel_ticks / CLOCK_TICKS_PER_S,
            generator_cpu_s=time.process_time(),
            busy_s=busy_ticks / CLOCK_TICKS_PER_S,
        )
