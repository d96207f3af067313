"""What a broker makes of the answers to what it has forwarded."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from tailrace.wire import Codec
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.core.forwarding.partition_queue import EventContents
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.forwarding.forwarder import Forwarder
from tailrace_broker.forwarding.waiting_requests import WaitingRequests
from tailrace_broker.model.append_outcome import AppendFailed, AppendOutcome
from tailrace_broker.model.commands import AlterTopic, Lead, Reslice
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import NotReadyError, OutcomeUnknownError
from tailrace_broker.model.forwarding import (
    AppendAnswers,
    FailedRequest,
    ForwardedBatch,
    ForwardedEvents,
    StoredAppend,
)
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.topics.hosted_topic import HostedTopic
from tests.support.ring.states import done, led, sealed, with_topic
from tests.support.waits import until

OLD, NEW = 1, 2  # leaders of range 1


class FakeLink:
    def __init__(self) -> None:
        self.handed_over = 0
        self.sent: list[ForwardedEvents | ForwardedBatch] = []

    def send(
        self, message: ForwardedEvents | ForwardedBatch, _: object = (), *, number: int
    ) -> None:
        self.sent.append(message)
        self.handed_over = number

    def values(self) -> list[bytes]:
        events = (each.events for each in self.sent if isinstance(each, ForwardedEvents))
        return [event.value for each in events for event in each]


def members(**given: object) -> Any:
    return SimpleNamespace(**given)


class Router:
    """Broker 0, with links to brokers 1 and 2."""

    def __init__(self, state: RingState) -> None:
        self.links = {OLD: FakeLink(), NEW: FakeLink()}
        self.outcomes: dict[bytes, AppendOutcome] = {}
        self.ring = members(state=state, on_applied=[])
        topic = topic_of(state, state.topics["orders"])
        nothing = [NotReadyError("no log is here")] * len(topic.partitions)
        roles: Any = None
        self.hosted = HostedTopic(topic, nothing, roles, ordinal=0)
        unused: Any = None  # small events need no threads, and no memory for reads
        self.forwarder = Forwarder(
            0,
            self.ring,
            lambda _: self.hosted,
            unused,
            unused,
            Counters(),
            WaitingRequests(Counters(), 100),
            unused,
            seconds=60,
        )
        links: Any = self
        self.forwarder.begin(links)
        for ordinal in self.links:
            self.forwarder.on_link_changed(ordinal)

    def forward_to(self, others: object) -> None:
        pass

    def forwarding_link(self, ordinal: int) -> FakeLink:
        return self.links[ordinal]

    def follow(self, state: RingState, *, is_applied: bool = True) -> None:
        """A state with other partitions."""
        topic = topic_of(state, state.topics["orders"])
        self.hosted.alter(topic, [NotReadyError("no log is here")] * len(topic.partitions))
        if is_applied:
            self.apply(state)

    def apply(self, state: RingState) -> None:
        self.ring.state = state
        for call in self.ring.on_applied:
            call(None, state)

    async def append(self, partition: int, *values: bytes) -> None:
        """Events that name a producer, until they are sent or wait."""
        for value in values:
            producer = Producer(b"p" * 16, len(self.outcomes))
            contents = EventContents(None, value, 0, 0)
            self.forwarder.append(self.hosted, partition, contents, self._ended(value), producer)
        await turns()

    def _ended(self, value: bytes) -> Callable[[AppendOutcome], None]:
        def ended(outcome: AppendOutcome) -> None:
            self.outcomes[value] = outcome

        return ended

    async def stored(self, ordinal: int, *numbers: int) -> None:
        """That broker says that it has stored these requests."""
        stored = tuple(StoredAppend(each, each, False, 2) for each in numbers)
        await self.answered(ordinal, AppendAnswers(stored))

    async def answered(self, ordinal: int, answers: AppendAnswers) -> None:
        link: Any = self.links[ordinal]
        self.forwarder.on_leader(link, ordinal, LinkFrame(answers, memoryview(b"")))
        await turns()


async def turns() -> None:
    """What is due at the end of this turn, and of the one that follows from it."""
    for _ in range(3):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_a_batch_that_may_be_stored_is_not_said_to_be_refused_when_its_partition_is_sealed() -> (
    None
):
    """Nobody can have it go on in the children by its keys; who sent it must know of the doubt."""

    async def scenario() -> None:
        state = with_topic(led())
        router = Router(state)
        partition = next(
            each.partition for each in router.hosted.topic.partitions if each.range_id == OLD
        )
        body = BatchBody(1, 0, Codec.NONE, b"{}", 2, crc32c(b"{}"), 0, 0, b"")
        outcomes: list[AppendOutcome] = []
        router.forwarder.append(
            router.hosted, partition, body, outcomes.append, Producer(b"p" * 16, 1)
        )
        ended = FailedRequest(1, "NoLeaderError", "the epoch has ended", {}, write_attempted=True)
        await router.answered(OLD, AppendAnswers((), (ended,)))
        state = done(state, AlterTopic("orders", {"partitionsPerRange": 3}), Reslice(OLD))
        state = done(state, sealed(state, OLD))
        topic = topic_of(state, state.topics["orders"])
        router.hosted.alter(topic, [NotReadyError("no log is here")] * len(topic.partitions))
        router.apply(state)
        refused = FailedRequest(2, "NotReadyError", "it is sealed", {}, write_attempted=False)
        await router.answered(OLD, AppendAnswers((), (refused,)))

        [outcome] = outcomes
        assert isinstance(outcome, AppendFailed)
        assert isinstance(outcome.error, OutcomeUnknownError)
        assert outcome.error.write_attempted

    run(scenario)


def test_an_answer_of_the_leader_before_is_none_to_what_its_successor_was_sent() -> None:
    """Requests are numbered by link. The answer of one that a leader has stored may come when the
    partition is led elsewhere, and its number may be that of another request on the way there.
    """

    async def scenario() -> None:
        state = with_topic(led())
        router = Router(state)
        [first, other] = [
            each.partition for each in router.hosted.topic.partitions if each.range_id == OLD
        ]
        await router.append(other, b"0")
        await router.stored(OLD, 1)
        await router.append(first, b"a", b"b")
        router.apply(done(state, Lead(OLD, 1, NEW, 1)))
        await turns()
        await router.append(first, b"c")
        assert router.links[NEW].values() == [b"a", b"b", b"c"]

        await router.stored(OLD, 2, 3)  # its requests a and b
        assert b"c" not in router.outcomes
        await router.stored(NEW, 1, 2, 3)
        assert router.outcomes.keys() == {b"0", b"a", b"b", b"c"}

    run(scenario)


@pytest.mark.parametrize("is_one_turn", [False, True])
def test_what_waits_for_a_partition_goes_before_events_of_its_childrens_children(
    is_one_turn: bool,
) -> None:
    """Two steps end while a request to the first partition is not answered."""

    async def scenario() -> None:
        state = with_topic(led(), partitions=1)
        router = Router(state)
        await router.append(open_partition(router), b"first")
        state = resliced_in(state, OLD, 2)
        router.follow(state, is_applied=not is_one_turn)
        child = router.hosted.topic.at(open_partition(router))
        router.follow(resliced_in(state, child.range_id, 1))
        await turns()
        await router.append(open_partition(router), b"second")
        assert router.links[OLD].values() == [b"first"]

        refused = FailedRequest(1, "NotReadyError", "it is sealed", {}, write_attempted=False)
        await router.answered(OLD, AppendAnswers((), (refused,)))
        await until(lambda: len(router.links[OLD].values()) > 1)  # queues that are empty are gone
        assert isinstance(router.outcomes[b"first"], AppendFailed)
        assert router.links[OLD].values() == [b"first", b"second"]

    run(scenario)


def open_partition(router: Router) -> int:
    """Of the tokens of range 1 the last one that is not sealed."""
    start = led().ranges[OLD].start
    found = [
        each.partition
        for each in router.hosted.topic.partitions
        if not each.is_sealed and each.token_start <= start < each.token_end
    ]
    return found[-1]


def resliced_in(state: RingState, range_id: int, slices: int) -> RingState:
    state = done(state, AlterTopic("orders", {"partitionsPerRange": slices}), Reslice(range_id))
    return done(state, sealed(state, range_id))
