"""A range with one copy is sealed for a step: of a ring of one that grows, on a real log."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any, cast

from tailrace_broker.core.replication.events import PeerView, ReplicationTiming
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.commands import (
    AbortStep,
    BeginStep,
    Command,
    CreateTopic,
    Lead,
    Sealed,
    Stamped,
)
from tailrace_broker.model.damage import LostEnd
from tailrace_broker.model.errors import NotReadyError, RingRefusedError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Refusal, Registration, RingState
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.lone_sealing import NOT_HELD, NOT_STORED, LoneSealing
from tests.support.ring.states import done, led
from tests.support.storage.batches import TOPIC_ID
from tests.support.storage.storage import Appends, LogFiles, open_engine_on
from tests.support.waits import until

WRITTEN = TopicSettings(partitions_per_range=1, durability="written", flush_ms=3_600_000)
GROWING = done(led(1, registered=1), CreateTopic("t", TOPIC_ID, WRITTEN))
TIMING = ReplicationTiming(step_ms=100, step_wait_ms=100)
HEARD = PeerView(frozenset({1}))
REFUSAL = Refusal("not-prepared", "as of the test")
LOST = LostEnd(0, 1, 1)
_ids = count(2 * 10**6)


class Ring:
    """Commits what it is asked for, where it is not refused, and shows it at once."""

    def __init__(self, log: PartitionLog, heard: PeerView = HEARD) -> None:
        self.state = GROWING
        self.heard = heard
        self.asked: list[Command] = []
        self.refuses: Callable[[Command], Exception | None] = lambda _: None
        self.log = log
        self.tasks: list[asyncio.Task[None]] = []
        self.role = log.role
        self.sealing = LoneSealing(
            cast(RingNode, self),
            lambda _: self.role,
            lambda key: self.log if key == LogKey(TOPIC_ID, log.place.partition) else None,
            self._spawn,
            TIMING,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> object:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    @property
    def registration(self) -> Registration:
        return self.state.brokers[0]

    def peer_view(self) -> PeerView:
        return self.heard

    async def change(self, command: Command) -> None:
        self.asked.append(command)
        error = self.refuses(command)
        if error is not None:
            raise error
        stamped = Stamped(next(_ids), command)
        after = apply_command(self.state, stamped)
        refusal = after.recent[stamped.id]
        if refusal is not None:
            raise RingRefusedError(refusal)
        self.show(after)

    def show(self, after: RingState) -> None:
        self.state = after
        owner = after.ranges[0]
        self.role.take_step(is_open=owner.step is not None)
        epoch = None if owner.is_sealed else owner.epoch
        if epoch != self.role.epoch:
            self.role.change(epoch)
        self.sealing.apply(after)
        self.sealing.apply(after)  # states come often

    async def ended(self) -> None:
        await asyncio.gather(*self.tasks)


def scenario(
    tmp_path: Path, play: Callable[[Ring], Awaitable[None]], heard: PeerView = HEARD
) -> None:
    async def run() -> None:
        async with open_engine_on(LogFiles(tmp_path), partitions=[0], settings=WRITTEN) as engine:
            [log] = engine.logs
            await play(Ring(log, heard))

    asyncio.run(run())


def test_the_end_is_reported_when_it_is_durable_and_nothing_is_appended_after(
    tmp_path: Path,
) -> None:
    async def play(ring: Ring) -> None:
        await Appends(ring.log).event(b"0")
        assert ring.log.durable_end == 0

        await ring.change(BeginStep("grow", 1))
        await ring.ended()

        (proposed,) = [each for each in ring.asked if isinstance(each, Sealed)]
        assert proposed.ends == {TOPIC_ID: (1,)}
        assert [each.ordinal for each in proposed.prepared] == [0, 1]
        assert ring.log.durable_end == 1
        assert ring.state.broker_count == 2
        assert ring.state.ranges[0].is_sealed

    scenario(tmp_path, play)


def test_a_step_that_is_refused_for_long_is_aborted_and_the_next_epoch_goes_on(
    tmp_path: Path,
) -> None:
    async def play(ring: Ring) -> None:
        def refuses(command: Command) -> Exception | None:
            is_sealed = isinstance(command, Sealed)
            return RingRefusedError(REFUSAL) if is_sealed else None

        ring.refuses = refuses
        await ring.change(BeginStep("grow", 1))
        await until(lambda: ring.role.is_held)
        waiting = Appends(ring.log).event(b"waits")

        await ring.ended()

        kinds = [type(each) for each in ring.asked]
        assert kinds[0] is BeginStep
        assert kinds[-2:] == [AbortStep, Lead]
        assert ring.asked[-2] == AbortStep(0, 0, NOT_STORED)
        assert Sealed in kinds
        assert await waiting == 0
        assert ring.role.epoch == 2

    scenario(tmp_path, play)


def test_appends_are_not_held_for_an_heir_that_nobody_hears(tmp_path: Path) -> None:
    async def play(ring: Ring) -> None:
        await ring.change(BeginStep("grow", 1))
        await ring.ended()

        assert ring.asked[1:] == [AbortStep(0, 0, NOT_HELD)]
        assert ring.role.epoch == 1
        assert not ring.role.is_held

    scenario(tmp_path, play, PeerView())


def test_a_broker_that_stops_proposes_nothing_more(tmp_path: Path) -> None:
    async def play(ring: Ring) -> None:
        ring.refuses = lambda command: (
            NotReadyError("stopping") if isinstance(command, Sealed) else None
        )
        await ring.change(BeginStep("grow", 1))

        await ring.ended()

        assert [type(each) for each in ring.asked] == [BeginStep, Sealed]

    scenario(tmp_path, play)


def test_a_log_that_has_lost_its_end_is_not_sealed(tmp_path: Path) -> None:
    async def play(ring: Ring) -> None:
        ring.log.lost_end = LOST
        await ring.change(BeginStep("grow", 1))
        await ring.ended()

        assert [type(each) for each in ring.asked] == [BeginStep, AbortStep]

    scenario(tmp_path, play)


def test_a_new_epoch_ends_it(tmp_path: Path) -> None:
    async def play(ring: Ring) -> None:
        ring.heard = PeerView()
        await ring.change(BeginStep("grow", 1))
        await ring.change(Lead(0, 1, 0, 1))

        await ring.ended()

        assert [type(each) for each in ring.asked] == [BeginStep, Lead]

    scenario(tmp_path, play)


def test_a_step_that_begins_before_the_end_of_another_is_known_is_taken(tmp_path: Path) -> None:
    """Both are in what this broker takes in at once."""

    async def play(ring: Ring) -> None:
        show = ring.show

        def show_both(after: RingState) -> None:
            show(after)
            if ring.role.epoch == 2 and after.step is None:
                show(done(after, BeginStep("grow", 1)))

        def refuses(command: Command) -> Exception | None:
            is_first = isinstance(command, Sealed) and command.epoch == 1
            return RingRefusedError(REFUSAL) if is_first else None

        ring.refuses = refuses
        setattr(ring, "show", show_both)  # noqa: B010  of what mypy takes for a method
        await ring.change(BeginStep("grow", 1))
        await until(lambda: ring.state.broker_count == 2)

    scenario(tmp_path, play)
