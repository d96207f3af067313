"""Consumers of groups, at random brokers: they register, poll, commit, go away, die, come back."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec

from tailrace_broker.codec.batch import read_header
from tailrace_broker.model.errors import (
    ConsumerExistsError,
    ConsumerNotRegisteredError,
    OutcomeUnknownError,
    StaleAssignmentError,
    StaleDeliveryError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.group import OnNewGroup, TopicPartition
from tests.simulation.ring.groups.broker import Answer
from tests.simulation.ring.groups.truth import Delivered

if TYPE_CHECKING:
    from tests.simulation.ring.groups.broker import GroupBroker
    from tests.simulation.ring.groups.ring import GroupsOfRing

TRAVEL_SECONDS_MAX = 0.003
PAUSE_SECONDS_MAX = 0.4
AGAIN_SECONDS = 0.4
TIMEOUTS_SECONDS = (0.3, 1.5, 4.0)
WAIT_MS = 500
# Of an answer: a few records, and at last many.
POLL_BYTES = 2000
CALM_BYTES = 100_000


class Habits(NamedTuple):
    """`names`: it says which delivery it has dealt with. The rest are probabilities, of a poll."""

    names: bool
    commits: float = 0.2
    moves: float = 0.2  # to another broker
    loses: float = 0.0  # the answer
    leaves: float = 0.0
    dies: float = 0.0
    sleeps: float = 0.0  # longer than its session, while another process takes its id
    session_ms: int = 1500


class Unanswered(Exception):
    """Nobody knows whether the request was executed."""


class Consumer:
    """One process of a consumer, until it goes or dies."""

    def __init__(
        self,
        ring: "GroupsOfRing",
        name: str,
        group: str,
        topics: tuple[str, ...],
        start: OnNewGroup,
        habits: Habits,
    ) -> None:
        self.name, self.group, self.topics, self.start = name, group, topics, start
        self._wanted = topics
        self._habits = habits
        self._ring = ring
        self._random = ring.replicas.generator
        self._ordinal = self._random.randrange(ring.world.broker_count)
        self._epoch = 0  # of the assignment that it knows of
        self._got: Delivered | None = None  # and has not said to have dealt with
        self._number = 0  # of the delivery that it has dealt with

    async def live(self) -> None:
        """Until it goes, dies, or another process has its id."""
        while True:
            if not await self._register():
                return
            try:
                while True:
                    if not await self._turn():
                        return
            except ConsumerNotRegisteredError:
                self._got, self._number = None, 0
            except StaleAssignmentError:
                self._ring.rules["groups.stale_assignment"] += 1
                return

    async def _register(self) -> bool:
        """Until it is; False: it cannot be."""
        while True:
            try:
                answer = await self._ask(self._registration(), {})
            except ConsumerExistsError:
                # It may be itself, with a topic that has been deleted: until that has expired.
                if not self._ring.is_calm:
                    return False
            except TopicNotFoundError:  # or the broker does not know it yet
                living = self._ring.living(self._wanted)
                if self._ring.is_calm and living:
                    self.topics = living
                    continue
            except (Unanswered, TailraceError):
                pass
            else:
                self._epoch = _epoch_in(answer.body)
                self._ring.truth.registered(self.name, self._epoch)
                return True
            self._move()
            await asyncio.sleep(AGAIN_SECONDS * self._random.random())

    def _registration(self) -> str:
        topics = "".join(f"&topic={each}" for each in self.topics)
        return (
            f"/v1/consumer/register?consumerId={self.name}&group={self.group}{topics}"
            f"&onNewGroup={self.start}&sessionMs={self._habits.session_ms}"
        )

    async def _turn(self) -> bool:
        """Poll, and deal with what comes; False: it goes, or dies."""
        habits, chance = self._habits, self._random.random
        is_calm = self._ring.is_calm
        if is_calm and {*self._ring.living(self._wanted)} - {*self.topics}:
            self.topics = self._ring.living(self._wanted)
            await self._leave()
            raise ConsumerNotRegisteredError("it registers again, with what has come since")
        if not is_calm and chance() < habits.leaves:
            await self._leave()
            return False
        if not is_calm and chance() < habits.dies:
            return False
        if not is_calm and chance() < habits.sleeps:
            await self._sleep()
        try:
            if self._got is not None and chance() < habits.commits:
                await self._commit(self._got)
            await self._poll()
        except (Unanswered, OutcomeUnknownError):
            self._ring.rules["groups.unknown"] += 1
            if not habits.names:  # its next poll would confirm what it may not have got
                return False
            self._move()
        except (ConsumerNotRegisteredError, StaleAssignmentError):
            raise
        except TailraceError as error:
            if error.write_attempted and not habits.names:
                return False
            self._move()
            await asyncio.sleep(AGAIN_SECONDS * chance())
        if chance() < habits.moves:
            self._move()
        await asyncio.sleep(PAUSE_SECONDS_MAX * chance())
        return True

    async def _sleep(self) -> None:
        """As a process that is paused: another one takes its id meanwhile, and its session ends."""
        self._ring.counts["consumer slept"] += 1
        await asyncio.sleep(self._habits.session_ms / 1000 + 1)
        habits = self._habits._replace(sleeps=0.0, dies=0.0)
        self._ring.consume(self.name, self.group, self.topics, self.start, habits)
        await asyncio.sleep(self._random.random())

    async def _poll(self) -> None:
        confirms, self._got = self._got, None
        if confirms is not None:
            self._ring.truth.confirms(confirms)
            self._number = confirms.number
        joined_epoch, known_epoch = self._ring.truth.joined_epoch(self.name), self._epoch
        size_bytes = CALM_BYTES if self._ring.is_calm else POLL_BYTES
        target = f"/v1/consumer/poll?consumerId={self.name}&maxBytes={size_bytes}&waitMs={WAIT_MS}"
        answer = await self._ask(target, self._headers(self._number))
        if self._habits.names:
            self._ring.truth.answered(self.name, known_epoch, joined_epoch)
            self._epoch = int(answer.headers["tailrace-assignment-epoch"])
        if answer.body:
            self._take(answer)

    def _take(self, answer: Answer) -> None:
        number = int(answer.headers["tailrace-delivery"])
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        values: dict[TopicPartition, list[int]] = {}
        stored = memoryview(answer.body)
        while stored:
            header = read_header(stored)
            tp = TopicPartition(UUID(bytes=header.topic_id), header.partition)
            start, end = ranges.get(tp, (header.base_offset, header.base_offset))
            assert end == header.base_offset, (tp, ranges, header)
            ranges[tp] = start, header.end_offset
            values.setdefault(tp, []).append(header.append_time_us)
            stored = stored[header.batch_bytes :]
        self._got = Delivered(self.group, self.name, number, ranges)
        self._say(f"has delivery {number}: {_shown(ranges)}")
        self._ring.truth.received(self._got, values)

    async def _commit(self, got: Delivered) -> None:
        self._ring.truth.confirms(got)
        joined_epoch, known_epoch = self._ring.truth.joined_epoch(self.name), self._epoch
        target = f"/v1/consumer/commit?consumerId={self.name}"
        try:
            await self._ask(target, self._headers(got.number))
        except StaleDeliveryError:
            self._ring.rules["groups.stale_delivery"] += 1
            return
        if self._habits.names:
            self._ring.truth.answered(self.name, known_epoch, joined_epoch)
            self._ring.truth.committed(got)

    async def _leave(self) -> None:
        """What it got last it has dealt with, or not."""
        commits = self._random.random() < 0.5
        if self._got is not None and commits:
            self._ring.truth.confirms(self._got)
            self._number = self._got.number
        target = f"/v1/consumer/goodbye?consumerId={self.name}&commit={str(commits).lower()}"
        try:
            await self._ask(target, self._headers(self._number))
        except (TailraceError, Unanswered):
            self._ring.counts["goodbye failed"] += 1

    def _headers(self, number: int) -> Mapping[bytes, bytes]:
        if not self._habits.names:
            return {}
        return {
            b"tailrace-delivery": b"%d" % number,
            b"tailrace-assignment-epoch": b"%d" % self._epoch,
        }

    def _move(self) -> None:
        self._ordinal = self._random.randrange(self._ring.world.broker_count)

    def _say(self, what: str) -> None:
        if self._ring.world.is_traced:
            self._ring.world.say(f"{self.name} {what}")

    # --- requests ---

    async def _ask(self, target: str, headers: Mapping[bytes, bytes]) -> Answer:
        """TailraceError of the broker; Unanswered."""
        self._say(f"asks broker {self._ordinal}: {target} {dict(headers)}")
        await asyncio.sleep(TRAVEL_SECONDS_MAX * self._random.random())
        broker = self._ring.broker_at(self._ordinal)
        if broker is None:
            raise _NotThere("no broker is there")
        outcome: asyncio.Future[Answer | TailraceError] = self._ring.loop.create_future()
        broker.process_does(self._serve(broker, target, headers, outcome))
        try:
            async with asyncio.timeout(self._random.choice(TIMEOUTS_SECONDS)):
                answer = await outcome
        except TimeoutError:
            self._say("hears nothing")
            raise Unanswered from None
        if isinstance(answer, TailraceError):
            self._say(f"hears {type(answer).__name__}: {answer}")
            raise answer.with_traceback(None)
        return answer

    async def _serve(
        self,
        broker: "GroupBroker",
        target: str,
        headers: Mapping[bytes, bytes],
        outcome: "asyncio.Future[Answer | TailraceError]",
    ) -> None:
        """On the broker's loop."""
        answer: Answer | TailraceError
        try:
            answer = await broker.serve("POST", target.encode(), headers)
        except TailraceError as error:
            answer = error
        is_lost = not self._ring.is_calm and self._random.random() < self._habits.loses
        await asyncio.sleep(TRAVEL_SECONDS_MAX * self._random.random())
        if (is_lost or outcome.done()) and isinstance(answer, Answer):
            self._ring.counts["answer lost"] += 1
            if answer.on_lost is not None and self._random.random() < 0.5:
                answer.on_lost()
        elif not outcome.done():
            outcome.set_result(answer)


class _NotThere(TailraceError):
    """Nothing was sent."""


def _shown(ranges: Mapping[TopicPartition, tuple[int, int]]) -> str:
    """For people."""
    parts = [f"{tp.topic_id.int}/{tp.partition} {ranges[tp]}" for tp in ranges]
    return ", ".join(parts)


def _epoch_in(body: bytes) -> int:
    """Of a registration's answer."""
    return int(msgspec.json.decode(body)["assignmentEpoch"])
