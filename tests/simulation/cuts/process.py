"""A replica under its scripted leader in a process of its own, on the real disk, to be killed.

It reports through a pipe: each note before it asks for anything, and once it was answered. What a
killed process has written to a pipe can still be read.
"""

import asyncio
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import structlog
from msgspec.structs import replace

from tailrace_broker.storage.files.direct_file import has_direct_io
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.kernel_aio import KernelAio
from tests.simulation.cuts.leader import Script, ScriptedLeader
from tests.simulation.cuts.model import ModelLog
from tests.simulation.cuts.mutations import Mutation
from tests.simulation.cuts.replica import DURABILITIES, FSYNC, Change, Disk, Replica, make_small
from tests.support.storage.storage import DISK_CALLS

# Flushes of the `written` topic come often, and pauses are for real. One batch in a hundred is cut.
SETTINGS = (FSYNC, replace(FSYNC, durability="written", flush_ms=20))
SCRIPT = Script(
    append=300,
    append_large=50,
    cut=11,
    reset=1,
    commit=60,
    pause=20,
    settle=20,
    spill=10,
    trim=4,
    pauses_s=(0, 0, 0, 0.001, 0.03),
)
EPOCHS_PER_LIFE = SEQUENCES_PER_LIFE = 1_000_000
IO_THREADS = 2

assert len(SETTINGS) == len(DURABILITIES)


class Note(NamedTuple):
    """Something was asked for or reported."""

    partition: int
    change: Change


class Found(NamedTuple):
    """What the start has recovered."""

    logs: list[ModelLog]


class Stopped(NamedTuple):
    """It ends as a broker that is stopped."""


Message = Note | Found | Stopped


@dataclass(frozen=True, slots=True)
class Life:
    """Of one process. `number` from 1 on.

    `call`: it kills itself before that call of the disk, counted from its cut `cut` on (0: from
    its start).
    """

    number: int
    data: Path
    seed: str
    action_count: int
    cut: int = 0
    call: int | None = None
    mutation: Mutation | None = None


def run_life(connection: "Connection[Any, Any]", life: Life) -> None:
    """Live, in this process, which ends with another exit code than 0 when something is wrong."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the notes say enough
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(_live(connection, life, patch))
    connection.send(Stopped())


async def _live(connection: "Connection[Any, Any]", life: Life, patch: pytest.MonkeyPatch) -> None:
    make_small(patch)
    if life.mutation is not None:
        life.mutation(patch)

    def fail(error: BaseException) -> NoReturn:
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        fail(context.get("exception") or AssertionError(context["message"]))

    asyncio.get_running_loop().set_exception_handler(on_error)
    fuse = Fuse(patch, life.cut, life.call)
    io = IoThreads(IO_THREADS, fail)
    io.start()
    disk = Disk(life.data, io, has_direct_io(life.data.parent), KernelAio.open)
    notes = SentNotes(connection, fuse)
    replica = Replica(disk, notes, SETTINGS)
    resources = await replica.open(lost_power=False)
    notes.now = await replica.found()
    connection.send(Found(notes.now))

    leader = ScriptedLeader(
        replica,
        random.Random(life.seed),
        life.number * EPOCHS_PER_LIFE,
        life.number * SEQUENCES_PER_LIFE,
        SCRIPT,
    )
    await leader.use(life.action_count)
    for log in replica.logs:
        await log.close()
    await resources.flusher.flush_all()
    await asyncio.to_thread(io.stop)
    resources.close()


class SentNotes:
    """Notes that also go through the pipe."""

    def __init__(self, connection: "Connection[Any, Any]", fuse: "Fuse") -> None:
        self._connection = connection
        self._fuse = fuse
        self.now = [ModelLog() for _ in SETTINGS]

    def note(self, partition: int, change: Change) -> None:
        """Send it, then apply it here."""
        self._connection.send(Note(partition, change))
        model = self.now[partition]
        count = len(model.under_way)
        change(model)
        if len(model.under_way) > count and model.under_way[-1].batches is None:
            self._fuse.on_cut()


class Fuse:
    """Kills this process before one of its calls of the disk."""

    def __init__(self, patch: pytest.MonkeyPatch, cut: int, call: int | None) -> None:
        self._cuts_left, self._calls_left = cut, call
        if call is not None:
            for name in DISK_CALLS:
                patch.setattr(os, name, partial(self._call, getattr(os, name)))

    def on_cut(self) -> None:
        """One was asked for."""
        self._cuts_left -= 1

    def _call(self, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._cuts_left <= 0 and self._calls_left is not None:
            if self._calls_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._calls_left -= 1
        return real(*args, **options)
