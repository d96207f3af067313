"""A broker on a simulated disk, with its own time and its own I/O: everything follows from a seed.

The shipped code runs unchanged but for three edges: the event loop's clock jumps to the next timer,
what the I/O threads would do is done on the loop in an order that the seed tells, and the wall
clock is the loop's.
"""

import asyncio
import os
import random
import selectors
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

import pytest

from tailrace_broker.app import broker
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.app.settings import Settings
from tailrace_broker.core.log import replica_tail
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.topic import BOUNDS
from tailrace_broker.node import ring
from tailrace_broker.storage import data_directory
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files import spare_files
from tailrace_broker.storage.files.io_threads import Done, IoThreads
from tailrace_broker.storage.files.kernel_aio import KernelAio
from tailrace_broker.storage.journal import journal
from tailrace_broker.storage.metadata.files import MetadataFiles
from tailrace_broker.topics import topics
from tests.support.storage.simulated_disk import Killed, SimulatedDisk

T = TypeVar("T")

FIRST_DAY_US = 1_764_000_000_000_000
KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
# Small, so that segments roll and the journal's files are used again within a few appends.
SETTINGS: dict[str, Any] = {
    "segment_bytes": 128 * KIBIBYTE,
    "journal_bytes": 4 * 108 * KIBIBYTE,
    "cache_bytes": MEBIBYTE,
}
FRAME_BYTES_MAX = 16 * KIBIBYTE
SPILL_BYTES = 64 * KIBIBYTE
SPARE_BYTES = 8 * KIBIBYTE
METADATA_BYTES = 128 * KIBIBYTE
# Of a broker's life.
LIFE_SECONDS_MAX = 600.0
# How long the disk takes for a call, in seconds.
DELAYS_S = [0.0, 0.0, 0.0002, 0.005]
# Two I/O threads: no more than two calls are under way.
UNDER_WAY_MAX = 2


class Violation(AssertionError):
    """A promise is broken."""


class VirtualSelector(selectors.DefaultSelector):
    """Does not wait: its clock jumps."""

    def __init__(self, seconds_max: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self._seconds_max = seconds_max

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Violation when nothing will ever happen, or nothing but failed attempts."""
        if timeout is None or self.now_s > self._seconds_max:
            raise Violation("the broker is stuck: what was asked for does not come")
        self.now_s += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in its own time, from 0 on."""

    def __init__(self, seconds_max: float = LIFE_SECONDS_MAX) -> None:
        """`seconds_max`: longer than all that is waited for."""
        self._clock = VirtualSelector(seconds_max)
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


class SimulatedIo(IoThreads):
    """Does the work of the I/O threads on the loop, sooner or later."""

    def __init__(self, generator: random.Random) -> None:
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._generator = generator
        self._waiting: list[tuple[Callable[[], Any], Done]] = []
        self._threads = []  # no write is seen to stall
        self.full_at_s = None
        self.with_room = lambda work: work()  # unless a broker has a trash to empty

    @property
    def count(self) -> int:
        """So many jobs may pass each other."""
        return UNDER_WAY_MAX

    @property
    def is_busy(self) -> bool:
        """Something is under way."""
        return bool(self._waiting)

    def submit(
        self, work: Callable[[], T], done: Callable[[T, TailraceError | None], None]
    ) -> None:
        """Do it in a later turn of the loop."""
        self._waiting.append((work, done))
        self._loop.call_later(self._generator.choice(DELAYS_S), self._do_one)

    def _do_one(self) -> None:
        under_way = min(len(self._waiting), UNDER_WAY_MAX)
        work, done = self._waiting.pop(self._generator.randrange(under_way))
        if self.died.done():
            return
        result, failed = None, None
        try:
            result = work()
        except TailraceError as error:
            failed = error
        except Killed:
            self.died.set_result(None)
            return
        except Exception as error:  # noqa: BLE001  a supervisor: hands bugs to the test
            self.died.set_exception(error)
            return
        done(result, failed)


class SimulatedBroker(LocalBroker):
    """A broker whose clock is the world's."""

    world: "World"

    def now_us(self) -> int:
        return self.world.now_us()


@dataclass
class World:
    """A disk and its time, over several lives of a broker."""

    disk: SimulatedDisk
    generator: random.Random
    started_us: int = FIRST_DAY_US
    life: int = 0

    def now_us(self) -> int:
        """The wall clock."""
        return self.started_us + int(asyncio.get_running_loop().time() * 1e6)

    def run(
        self, live: Callable[[SimulatedBroker, SimulatedIo], Coroutine[Any, Any, None]]
    ) -> bool:
        """One life: start, `live`, stop. False when it was killed on the way."""
        return self._run(lambda: self._live(live))

    def run_life(self, whole_life: Callable[[SimulatedIo], Coroutine[Any, Any, None]]) -> bool:
        """One life of a process that is no whole broker. False when it was killed on the way."""
        return self._run(lambda: self.outlive(whole_life))

    def _run(self, live: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        self.life += 1
        with self.disk.recording(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
            ended = runner.run(live())
            self.started_us = runner.run(_now(self)) + 1
        return ended

    async def _live(
        self, live: Callable[[SimulatedBroker, SimulatedIo], Coroutine[Any, Any, None]]
    ) -> bool:
        tasks: set[asyncio.Future[Any]] = set()

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            task = asyncio.ensure_future(work)
            tasks.add(task)
            return task

        async def whole_life(io: SimulatedIo) -> None:
            directory = DataDirectory(self.disk.root)
            SimulatedBroker.world = self
            settings = Settings.model_construct(None, data_dir=self.disk.root, **SETTINGS)
            broker = SimulatedBroker(settings, directory, io, io, spawn)
            await broker.start()
            await live(broker, io)
            await broker.stop()
            directory.close()

        return await self.outlive(whole_life, tasks)

    async def outlive(
        self,
        whole_life: Callable[[SimulatedIo], Coroutine[Any, Any, None]],
        tasks: Collection[asyncio.Future[Any]] = (),
    ) -> bool:
        """Run a process to its end; False when it was killed on the way, with its tasks."""
        io = SimulatedIo(self.generator)
        asyncio.get_running_loop().set_exception_handler(partial(_on_loop_error, io))
        main = asyncio.ensure_future(whole_life(io))
        await asyncio.wait([main, io.died], return_when=asyncio.FIRST_COMPLETED)
        if self.disk.is_dead:
            main.cancel()
            await asyncio.wait([main])
            for task in tasks:
                task.cancel()
            self.disk.kill()
            if io.died.done():
                io.died.result()
            return False
        if io.died.done():
            io.died.result()
        main.result()
        return True


def make_small(patch: pytest.MonkeyPatch, generator: random.Random) -> None:
    """Ids that follow from the seed, small files, and no writes that the disk does not see."""
    for module in (topics, data_directory):
        patch.setattr(module, "uuid4", lambda: UUID(int=generator.getrandbits(128), version=4))
    patch.setattr(os, "urandom", generator.randbytes)
    patch.setitem(BOUNDS, "retention_bytes", BOUNDS["retention_bytes"]._replace(least=1))
    patch.setattr(broker, "passed_us", lambda: 0)
    patch.setattr(KernelAio, "open", lambda: None)
    patch.setattr(journal, "FRAME_BYTES_MAX", FRAME_BYTES_MAX)
    patch.setattr(replica_tail, "SPILL_BYTES", SPILL_BYTES)
    patch.setattr(spare_files, "SPARE_BYTES", SPARE_BYTES)
    patch.setattr(ring, "MetadataFiles", partial(MetadataFiles, log_bytes=METADATA_BYTES))
    drawn = SimpleNamespace(Random=lambda: random.Random(generator.getrandbits(64)))
    patch.setattr(ring, "random", drawn)


async def _now(world: World) -> int:
    return world.now_us()


def _on_loop_error(
    io: SimulatedIo, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Hand what a callback raises to the test: nobody else would see it."""
    error = context.get("exception")
    if isinstance(error, Killed):
        return
    if error is not None and "handle" in context and not io.died.done():
        io.died.set_exception(error)
    else:
        loop.default_exception_handler(context)
