"""A broker without listeners, in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tailrace.local.broker import HOST
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.app.runtime import METADATA_IO_THREADS
from tailrace_broker.app.settings import Settings
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.io_threads import IoThreads
from tests.support.broker.fixtures import free_ring_port
from tests.support.waits import until

# The least that is allowed: a file of the journal is zero-written before its first append.
JOURNAL_BYTES = 8 * 1024 * 1024
PEERS: dict[str, Any] = {"peer_host": HOST, "port_stride": 10}


@asynccontextmanager
async def open_broker(
    root: Path, *, failures: list[BaseException] | None = None, **settings: Any
) -> AsyncIterator[LocalBroker]:
    """A broker that is not started yet; stopped, and all its tasks ended, when the block ends.

    Its I/O threads do all writes, so that a `FaultyDisk` sees them. `failures`: where to put what
    ends its process; there must be none without.
    """
    directory = DataDirectory(root, ordinal=settings.get("ordinal", 0))
    directory.is_direct = False
    bugs: list[BaseException] = []
    on_failed = (bugs if failures is None else failures).append
    known = Settings(data_dir=root, **{"journal_bytes": JOURNAL_BYTES, **settings})
    io = IoThreads(known.io_threads, bugs.append)
    metadata_io = IoThreads(METADATA_IO_THREADS, bugs.append)
    io.start()
    metadata_io.start()
    try:
        async with asyncio.TaskGroup() as tasks:

            def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
                return tasks.create_task(work)

            broker = LocalBroker(known, directory, io, metadata_io, spawn, on_failed)
            try:
                yield broker
            finally:
                await broker.stop()
    finally:
        io.stop()
        metadata_io.stop()
        directory.close()
        assert bugs == []


@asynccontextmanager
async def started_broker(root: Path, **settings: Any) -> AsyncIterator[LocalBroker]:
    """A broker that has recovered what lies below `root`."""
    async with open_broker(root, **settings) as broker:
        await broker.start()
        yield broker


async def start_ring(stack: AsyncExitStack, root: Path, count: int) -> list[LocalBroker]:
    """Brokers of a ring, which is founded if it was not before; stopped when the stack ends."""
    port = free_ring_port(count)
    brokers = [
        await stack.enter_async_context(
            open_broker(root / str(ordinal), ordinal=ordinal, port=port + 10 * ordinal, **PEERS)
        )
        for ordinal in range(count)
    ]
    starting = [asyncio.create_task(broker.start()) for broker in brokers]
    await until(lambda: all(broker.ring.peers is not None for broker in brokers))
    if brokers[0].ring.state is None:
        await brokers[0].ring.found(count)
    await asyncio.gather(*starting)
    return brokers


async def wait_until_gone(path: Path) -> None:
    """Until another thread has removed it."""
    async with asyncio.timeout(5):
        while await asyncio.to_thread(path.exists):
            pass
