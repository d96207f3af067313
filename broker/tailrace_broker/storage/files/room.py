"""A start that needs room on a full disk waits for it.

The broker votes meanwhile, and is not registered: it leads nothing, and nobody hears of ends that
it has yet to make true.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from tailrace_broker.model.errors import DiskFullError

# Until it is tried again.
RETRY_SECONDS = 1.0

_log = structlog.get_logger()


async def when_there_is_room(work: Callable[[], Awaitable[None]]) -> None:
    """Do it, and again while the disk is full. Raises what else it raises."""
    is_logged = False
    while True:
        try:
            return await work()
        except DiskFullError as error:
            if not is_logged:
                _log.warning("start.waits", detail=error.detail)
            is_logged = True
        await asyncio.sleep(RETRY_SECONDS)
