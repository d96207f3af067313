"""The life of the process: start, listeners, signals, a clean stop."""

import asyncio
import errno
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import structlog

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.app.metrics import metrics_text
from tailrace_broker.app.open_files import connections_max, raise_limit
from tailrace_broker.app.settings import Settings
from tailrace_broker.model.errors import InvalidSettingError, PortInUseError
from tailrace_broker.net.api.routes import listener_matchers
from tailrace_broker.net.http.answers import Spawn
from tailrace_broker.net.http.connection import Connections, HttpConnection
from tailrace_broker.net.http.router import Listeners
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.io_threads import IoThreads

# By how much a listener's port is above the base port.
LISTENER_PORTS = {
    Listeners.PUBLIC: 0,
    Listeners.PRODUCE: 1,
    Listeners.READ: 2,
    Listeners.METRICS: 3,
}
# Of the metrics listener.
PROBE_CONNECTIONS_MAX = 64
# Of the metadata alone: one writes its log, the other a snapshot beside it.
METADATA_IO_THREADS = 2
# Many clients connect at once after a restart; the kernel caps it (listen(2)).
BACKLOG = 4096

_log = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Run a broker until SIGTERM or SIGINT; raises what else ended it (in an ExceptionGroup)."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # An error that nobody handled is our bug: the process ends, and is started again.
    bug: asyncio.Future[None] = loop.create_future()

    def on_bug(error: BaseException) -> None:
        if not bug.done():
            bug.set_exception(error)

    loop.set_exception_handler(lambda _, context: on_bug(_error_of(context)))

    directory = DataDirectory(settings.data_dir, ordinal=settings.ordinal)
    io = IoThreads(settings.io_threads, on_bug)
    metadata_io = IoThreads(METADATA_IO_THREADS, on_bug, name="metadata-io")
    io.start()
    metadata_io.start()
    async with asyncio.TaskGroup() as tasks:
        # Raises into the group, which cancels whatever waits below.
        watch = tasks.create_task(_wait_for(bug))

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            return tasks.create_task(work)

        broker = LocalBroker(settings, directory, io, metadata_io, spawn, on_bug)
        async with open_listeners(settings, broker, spawn):
            starting = tasks.create_task(broker.start())
            stop = tasks.create_task(stopping.wait())
            await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                _report_ready(settings, broker)
                await stop
            starting.cancel()
            await broker.stop()
        watch.cancel()
    io.stop()
    metadata_io.stop()
    directory.close()
    _log.info("broker.stopped")


def _report_ready(settings: Settings, broker: LocalBroker) -> None:
    gc.collect()
    gc.freeze()  # what is alive now lives as long as the process
    _log.info(
        "broker.ready",
        data_dir=str(settings.data_dir),
        is_direct=broker.is_direct,
        topics=broker.topic_count,
        partitions=broker.partition_count,
        port=settings.port,
    )
    if not broker.is_direct:
        _log.warning("storage.buffered", reason="no direct I/O here", path=str(settings.data_dir))


async def _wait_for(future: asyncio.Future[None]) -> None:
    await future


@asynccontextmanager
async def open_listeners(
    settings: Settings, broker: LocalBroker, spawn: Spawn
) -> AsyncIterator[None]:
    """Listen on the four ports; on leaving, end the requests under way.

    PortInUseError, InvalidSettingError.
    """
    bounded = partial(
        Connections,
        settings.header_seconds,
        settings.request_seconds,
        settings.idle_seconds,
        settings.answer_seconds,
        web_access=settings.web_access,
    )
    connections = bounded(connections_max(settings.connections_max, raise_limit()))
    # Its own, so that probes are answered when clients have taken all of the others.
    probes = bounded(PROBE_CONNECTIONS_MAX)
    matchers = listener_matchers(
        lambda: metrics_text(broker, connection_count=len(connections.open)),
        public_port=settings.port,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(connections.end)
        stack.push_async_callback(probes.end)
        for listener, match in matchers.items():
            port = settings.port + LISTENER_PORTS[listener]
            shared = probes if listener is Listeners.METRICS else connections
            connect = partial(HttpConnection, broker, match, shared, spawn)
            server = await _listen(settings.host, port, connect)
            stack.callback(server.close)
        yield


async def _listen(
    host: str, port: int, connection: Callable[[], asyncio.BaseProtocol]
) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(
            connection, host, port, backlog=BACKLOG
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is in use; stop what listens there, or choose "
                "another base port (TAILRACE_PORT)"
            ) from error
        raise InvalidSettingError(
            f"TAILRACE_HOST: cannot listen on {host}, port {port}: {error.strerror}"
        ) from error


def _error_of(context: dict[str, Any]) -> BaseException:
    error = context.get("exception")
    return error if isinstance(error, BaseException) else RuntimeError(str(context["message"]))
