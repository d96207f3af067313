"""A TLS listener before a broker, in the test's own process, as an ingress would be."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden" / "tls"  # made by its make.sh
CA_FILE = str(FOLDER / "ca.pem")
START_TIMEOUT_S = 10.0


@dataclass(slots=True)
class TlsListener:
    """Passes on what comes; `requests` is what clients sent, after decryption."""

    port: int
    requests: bytearray = field(default_factory=bytearray)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@contextmanager
def tls_listener(broker_port: int, certificate: str = "server.pem") -> Iterator[TlsListener]:
    """Open while the block runs."""
    listener = TlsListener(0)
    opened = threading.Event()
    loop = asyncio.new_event_loop()
    closing = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))

    async def serve() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(FOLDER / certificate)
        async with asyncio.TaskGroup() as connections:

            async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = connections.create_task(_pass_on(listener, broker_port, reader, writer))
                open_tasks.add(task)

            open_tasks: set[asyncio.Task[None]] = set()
            server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
            listener.port = server.sockets[0].getsockname()[1]
            opened.set()
            await closing.wait()
            server.close()
            for task in open_tasks:
                task.cancel()

    thread.start()
    try:
        assert opened.wait(START_TIMEOUT_S), "the listener does not open"
        yield listener
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join()
        loop.close()


async def _pass_on(
    listener: TlsListener, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Both ways until one side ends."""
    broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_pump(reader, broker_writer, listener.requests))
            ways.create_task(_pump(broker_reader, writer, None))
    finally:
        for each in (writer, broker_writer):
            each.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray | None
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            if seen is not None:
                seen += data
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
