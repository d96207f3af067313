"""The life of the process: start, doors, signals, a clean stop."""

import asyncio
import errno
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiohttp import web

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.app.metrics import metrics_text
from tailrace_broker.app.settings import Settings
from tailrace_broker.model.errors import PortInUseError
from tailrace_broker.net.produce_http import ProduceProtocol
from tailrace_broker.net.public_http import PublicDoor
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.io_threads import IoThreads

# Long enough that answers under way are sent.
STOP_SECONDS = 5.0
# Many clients connect at once after a restart; the kernel caps it (listen(2)).
BACKLOG = 4096

_log = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Run a broker until SIGTERM or SIGINT; raises what else ended it (in an ExceptionGroup)."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end(error: BaseException | None = None) -> None:
        if not ended.done():
            ended.set_result(None) if error is None else ended.set_exception(error)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    # An error that nobody handled is our bug: the process ends, and is started again.
    loop.set_exception_handler(lambda _, context: end(_error_of(context)))

    directory = DataDirectory(settings.data_dir)
    io = IoThreads(settings.io_threads, on_bug=end)
    io.start()
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.create_task(work)

        broker = LocalBroker(settings, directory, io, spawn)
        async with open_doors(settings, broker, on_bug=end):
            await broker.start()
            gc.collect()
            gc.freeze()  # what is alive now lives as long as the process
            _log.info(
                "broker.ready",
                data_dir=str(settings.data_dir),
                is_direct=broker.is_direct,
                topics=len(broker.topics()),
                partitions=broker.partition_count,
                port=settings.port,
            )
            await ended
            await broker.stop()
    io.stop()
    directory.close()
    _log.info("broker.stopped")


@asynccontextmanager
async def open_doors(
    settings: Settings, broker: LocalBroker, on_bug: Callable[[BaseException], None]
) -> AsyncIterator[None]:
    """Listen on the four ports; on leaving, end the requests under way. PortInUseError."""
    door = PublicDoor(broker, on_bug)
    apps = {
        settings.port: door.public_app(),
        settings.port + 2: door.read_app(),
        settings.port + 3: door.metrics_app(lambda: metrics_text(broker)),
    }
    loop = asyncio.get_running_loop()
    runners: list[web.AppRunner] = []
    produce_port = settings.port + 1
    with_port = settings.port
    try:
        for with_port, app in apps.items():
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_SECONDS)
            runners.append(runner)
            await runner.setup()
            await web.TCPSite(runner, settings.host, with_port, backlog=BACKLOG).start()
        with_port = produce_port
        server = await loop.create_server(
            lambda: ProduceProtocol(broker), settings.host, produce_port, backlog=BACKLOG
        )
        async with server:
            yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortInUseError(
            f"port {with_port} on {settings.host} is in use; stop what listens there, or choose "
            "another base port (TAILRACE_PORT)"
        ) from error
    finally:
        for runner in runners:
            await runner.cleanup()


def _error_of(context: dict[str, Any]) -> BaseException:
    error = context.get("exception")
    return error if isinstance(error, BaseException) else RuntimeError(str(context["message"]))
