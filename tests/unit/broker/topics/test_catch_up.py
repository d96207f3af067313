"""In which order and at which pace followers that are far behind are fed, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from tailrace_broker.core.replication.events import Feed
from tailrace_broker.core.replication.range_events import OfRange
from tailrace_broker.model.replication import LogKey
from tailrace_broker.topics.catch_up import PAUSE_SECONDS_MAX, ROUND_BYTES, CatchUp, SentPiece
from tests.simulation.world import VirtualLoop

FOLLOWER, OTHER = 1, 2


class Followers:
    """Links that take what was sent when the test says so, and what was sent on them, and when."""

    def __init__(self) -> None:
        self.linked = {FOLLOWER, OTHER}
        self.sent: list[tuple[int, int, float]] = []  # follower, partition, second
        self.piece_bytes = ROUND_BYTES
        self.is_from_disk = True
        self._awaited: dict[int, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.catch_up = CatchUp(self, self._send_piece, self._spawn)

    def has_follower(self, ordinal: int) -> bool:
        return ordinal in self.linked

    def call_when_taken(self, ordinal: int, call: Callable[[], None]) -> None:
        self._awaited[ordinal] = call

    def feed(self, ordinal: int, *partitions: int, session: int = 1) -> None:
        """It is far behind in these logs."""
        for partition in partitions:
            feed = Feed(ordinal, session, LogKey(UUID(int=7), partition), 0, None, 0, 0)
            self.catch_up.feed(OfRange(0, 5, feed), feed)

    async def take(self, ordinal: int, after_s: float = 0.0) -> None:
        """That follower has taken what was sent, so long after."""
        while ordinal not in self._awaited:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.001)
        await asyncio.sleep(after_s)
        self._awaited.pop(ordinal)()

    async def sent_to(self, ordinal: int) -> list[int]:
        """Partitions of which it was sent a piece, a virtual hour later."""
        await asyncio.sleep(3600)
        return [partition for to, partition, _ in self.sent if to == ordinal]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_piece(self, of_range: OfRange, feed: Feed, max_bytes: int) -> SentPiece:
        assert 0 < max_bytes <= ROUND_BYTES
        self.sent.append((feed.ordinal, feed.log.partition, self._loop.time()))
        return SentPiece(self.piece_bytes, self.is_from_disk)


def run(scenario: Callable[[Followers], Coroutine[Any, Any, None]]) -> None:
    async def run_it() -> None:
        await scenario(Followers())

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(1e9)) as runner:
        runner.run(run_it())


def test_nothing_follows_a_round_before_it_is_taken() -> None:
    async def scenario(followers: Followers) -> None:
        followers.feed(FOLLOWER, 0, 1)
        assert await followers.sent_to(FOLLOWER) == [0]
        await followers.take(FOLLOWER)
        assert await followers.sent_to(FOLLOWER) == [0, 1]

    run(scenario)


@pytest.mark.parametrize(
    ("taken_s", "pause_s"), [(0.25, 0.25), (0.5, 0.5), (9.0, PAUSE_SECONDS_MAX)]
)
def test_a_pause_is_as_long_as_the_round_before_it(taken_s: float, pause_s: float) -> None:
    """So half of the time is for what else there is; a link that stood still is not let wait."""

    async def scenario(followers: Followers) -> None:
        followers.feed(FOLLOWER, 0, 1)
        await followers.take(FOLLOWER, taken_s)
        await followers.sent_to(FOLLOWER)
        (_, _, first_s), (_, _, second_s) = followers.sent
        assert second_s - first_s == pytest.approx(taken_s + pause_s, abs=0.01)

    run(scenario)


def test_a_round_of_what_memory_has_is_followed_by_the_next_at_once() -> None:
    async def scenario(followers: Followers) -> None:
        followers.is_from_disk = False
        followers.feed(FOLLOWER, 0, 1)
        await followers.take(FOLLOWER, 0.5)
        await followers.sent_to(FOLLOWER)
        (_, _, first_s), (_, _, second_s) = followers.sent
        assert second_s - first_s == pytest.approx(0.5, abs=0.01)

    run(scenario)


def test_small_pieces_of_many_logs_are_one_round() -> None:
    async def scenario(followers: Followers) -> None:
        followers.piece_bytes = ROUND_BYTES // 4
        followers.feed(FOLLOWER, *range(6))
        assert await followers.sent_to(FOLLOWER) == [0, 1, 2, 3]
        await followers.take(FOLLOWER)
        assert await followers.sent_to(FOLLOWER) == [0, 1, 2, 3, 4, 5]

    run(scenario)


def test_logs_have_their_turns() -> None:
    async def scenario(followers: Followers) -> None:
        followers.feed(FOLLOWER, 0, 1)
        await followers.take(FOLLOWER)
        followers.feed(FOLLOWER, 0)  # it lacks more of it
        for _ in range(2):
            await followers.take(FOLLOWER, 1.0)
        assert await followers.sent_to(FOLLOWER) == [0, 1, 0]

    run(scenario)


def test_a_follower_that_takes_nothing_keeps_no_other_waiting() -> None:
    async def scenario(followers: Followers) -> None:
        followers.feed(FOLLOWER, 0, 1)
        followers.feed(OTHER, 0, 1)
        await followers.take(OTHER)
        assert await followers.sent_to(OTHER) == [0, 1]
        assert await followers.sent_to(FOLLOWER) == [0]

    run(scenario)


def test_a_log_is_sent_once_for_the_last_session() -> None:
    async def scenario(followers: Followers) -> None:
        followers.feed(FOLLOWER, 0, 1, 2)
        followers.feed(FOLLOWER, 1, session=2)
        for _ in range(2):
            await followers.take(FOLLOWER)
            await asyncio.sleep(0)
        assert await followers.sent_to(FOLLOWER) == [0, 2, 1]

    run(scenario)


def test_what_waits_for_a_follower_without_a_link_is_not_read() -> None:
    async def scenario(followers: Followers) -> None:
        followers.feed(FOLLOWER, 0, 1, 2)
        await asyncio.sleep(0)
        followers.linked.discard(FOLLOWER)
        await followers.take(FOLLOWER)
        assert await followers.sent_to(FOLLOWER) == [0]

        followers.linked.add(FOLLOWER)
        await followers.take(FOLLOWER)
        followers.feed(FOLLOWER, 3)
        assert await followers.sent_to(FOLLOWER) == [0, 3]

    run(scenario)


def test_nothing_begins_after_the_stop() -> None:
    async def scenario(followers: Followers) -> None:
        followers.feed(FOLLOWER, 0, 1)
        await asyncio.sleep(0)
        followers.catch_up.stop()
        await followers.take(FOLLOWER)
        assert await followers.sent_to(FOLLOWER) == [0]

    run(scenario)
