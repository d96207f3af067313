"""Waits for conditions that have no event."""

import asyncio
import time
from collections.abc import Callable

from tailrace.local.broker import POLL_INTERVAL_S

LOOP_WAIT_S = 15.0  # on a busy machine
WAIT_S = 60.0  # a slow machine must not fail a test


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until it holds."""
    async with asyncio.timeout(LOOP_WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def wait_until(
    condition: Callable[[], object], otherwise: Callable[[], str] = lambda: "it took too long"
) -> None:
    """Poll with pauses: a broker that is always asked does nothing else.

    `otherwise` says what was there instead.
    """
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, otherwise()
        time.sleep(POLL_INTERVAL_S)
