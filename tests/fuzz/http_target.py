"""A listener of a broker without sockets, threads or waiting: bytes in, cut at any place."""

import asyncio
import random
import shutil
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.app.settings import Settings
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.net.api.routes import ROUTES
from tailrace_broker.net.http.connection import Connections, HttpConnection
from tailrace_broker.net.http.router import matcher
from tailrace_broker.storage.data_directory import DataDirectory
from tests.simulation.world import SimulatedIo, VirtualLoop

PIECES_MAX = 6
# After so many inputs the broker starts again, so that what they stored does not add up.
INPUTS_PER_BROKER = 200
# Where there is a file system in memory, what only has to be written is written there.
FAST_DIRECTORY = next((path for path in ("/dev/shm",) if Path(path).is_dir()), None)
# Of the loop's own time, which passes at once: longer than any wait that a request can ask for.
SECONDS_MAX = 3600.0


class Peer(asyncio.Transport):
    """The other end of a connection: takes all answers, and keeps their beginning."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self.first_bytes = b""
        self.closed = asyncio.Event()
        self._connection = connection

    def write(self, data: Any) -> None:
        self.first_bytes = self.first_bytes or bytes(data[:16])

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    abort = close


@contextmanager
def http_listener() -> Iterator[Callable[[bytes], None]]:
    """A broker with a topic of two partitions; all routes through one listener."""
    with TemporaryDirectory(dir=FAST_DIRECTORY) as directory:
        root = Path(directory) / "broker"
        listeners = [Listener(root)]

        def check(data: bytes) -> None:
            if listeners[0].input_count == INPUTS_PER_BROKER:
                listeners[0].close()
                shutil.rmtree(root)
                listeners[0] = Listener(root)
            listeners[0].check(data)

        yield check
        listeners[0].close()


class Listener:
    """One broker for some inputs."""

    def __init__(self, root: Path) -> None:
        self.input_count = 0
        self._root = root
        self._errors: list[object] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._runner = asyncio.Runner(loop_factory=lambda: VirtualLoop(inf))
        self._runner.get_loop().set_exception_handler(
            lambda _, context: self._errors.append(context.get("exception") or context)
        )
        self._connections = Connections(10, 20, 75, 60, count_max=10)
        self._broker = self._runner.run(self._start())

    def check(self, data: bytes) -> None:
        """Every byte is taken, every answer is HTTP, and in the end nothing is held."""
        self.input_count += 1
        self._runner.run(self._exchange(data))
        if self._errors:
            error, self._errors = self._errors[0], []
            raise error if isinstance(error, BaseException) else AssertionError(error)

    def close(self) -> None:
        """Stop the broker."""
        self._runner.run(self._stop())
        self._runner.close()

    async def _start(self) -> LocalBroker:
        self._io = SimulatedIo(random.Random(1))
        self._directory = DataDirectory(self._root)
        settings = Settings(data_dir=self._root, auto_create_topics=False, cache_bytes=1 << 20)
        broker = LocalBroker(settings, self._directory, self._io, self._io, self._spawn)
        await broker.start()
        await broker.create_topic("kept", TopicSettings(partitions_per_range=2))
        return broker

    async def _stop(self) -> None:
        await self._broker.stop()
        self._directory.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _serve(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._spawn(work)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task

    async def _exchange(self, data: bytes) -> None:
        connection = HttpConnection(self._broker, matcher(ROUTES), self._connections, self._serve)
        peer = Peer(connection)
        connection.connection_made(peer)
        for piece in _pieces(data):
            await self._receive(connection, peer, piece)
            await asyncio.sleep(0)
        if not peer.closed.is_set() and not connection.eof_received():
            peer.close()
        async with asyncio.timeout(SECONDS_MAX):
            await peer.closed.wait()
            await asyncio.sleep(0)  # then the connection knows
            while serving := list(self._serving):
                await asyncio.wait(serving)
        assert not self._connections.open
        assert self._broker.produce_memory_used_bytes == 0
        assert peer.first_bytes[:9] in (b"", b"HTTP/1.1 "), peer.first_bytes

    async def _receive(self, connection: HttpConnection, peer: Peer, piece: bytes) -> None:
        """As an event loop does; what comes after the connection was closed is lost."""
        rest = memoryview(piece)
        while rest and not peer.closed.is_set():
            buffer = connection.get_buffer(-1)
            taken_bytes = min(len(buffer), len(rest))
            buffer[:taken_bytes] = rest[:taken_bytes]
            connection.buffer_updated(taken_bytes)
            rest = rest[taken_bytes:]


def _pieces(data: bytes) -> Iterator[bytes]:
    """The input, cut at places that follow from it: so it is always cut the same."""
    generator = random.Random(zlib.crc32(data))
    count = generator.randint(0, PIECES_MAX)
    cuts = sorted(generator.randint(0, len(data)) for _ in range(count))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        yield data[start:end]
