"""What a leader makes of requests that other brokers forward."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.forwarding.forwarded import ForwardedRequests
from tailrace_broker.model.append_outcome import Appended, AppendFailed, OnAppended
from tailrace_broker.model.errors import (
    CorruptFrameError,
    DiskFullError,
    NotLeaderError,
    ProduceMemoryFullError,
    TailraceError,
)
from tailrace_broker.model.forwarding import (
    AppendAnswers,
    FailedRequest,
    ForwardedBatch,
    ForwardedEvent,
    ForwardedEvents,
    StoredAppend,
    TurnOf,
)
from tailrace_broker.model.replication import LogKey

KEY = LogKey(UUID(int=1), 0)
UNKNOWN = LogKey(UUID(int=2), 0)
PLACE = TurnOf(KEY, 1)
MEMORY_BYTES = 100


class FakeLink:
    def __init__(self) -> None:
        self.sent: list[AppendAnswers] = []
        self.consumed_bytes = 0

    def send(self, message: AppendAnswers) -> None:
        self.sent.append(message)

    def consumed(self, size_bytes: int) -> None:
        self.consumed_bytes += size_bytes


class FakeLog:
    """Appends wait until `end`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[OnAppended, Producer | None]] = []

    def append_event(
        self, _key: object, _value: object, _time: object, _flags: object, done: OnAppended,
        producer: Producer | None = None,
    ) -> None:  # fmt: skip
        self.waiting.append((done, producer))

    def append_records(
        self, _body: object, done: OnAppended, producer: Producer | None = None
    ) -> None:
        self.waiting.append((done, producer))


class Leader:
    def __init__(self) -> None:
        self.is_ready = True
        self.used_bytes = 0
        self.error: TailraceError | None = None
        self.log = FakeLog()
        self.logs = {KEY.partition: self.log}
        self.link = FakeLink()
        self.requests = ForwardedRequests(self, None, self.hosted)  # type: ignore[arg-type]

    def hosted(self, topic_id: UUID) -> Any:
        return self if topic_id == KEY.topic_id else None

    def open_log_of(self, _: int) -> FakeLog:
        if self.error is not None:
            raise self.error
        return self.log

    def take_produce_memory(self, size_bytes: int) -> None:
        if self.used_bytes + size_bytes > MEMORY_BYTES:
            raise ProduceMemoryFullError("full")
        self.used_bytes += size_bytes

    def return_produce_memory(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes

    def forward(self, message: ForwardedEvents | ForwardedBatch, payload: bytes = b"") -> None:
        """Receive it."""
        frame = LinkFrame(message, memoryview(payload))
        self.requests.on_forwarded(self.link, frame)  # type: ignore[arg-type]

    async def answers(self) -> tuple[list[StoredAppend], list[FailedRequest]]:
        """Of this turn of the loop; one message at most."""
        await asyncio.sleep(0)
        sent, self.link.sent = self.link.sent, []
        assert len(sent) <= 1
        return [*(sent[0].stored if sent else ())], [*(sent[0].failed if sent else ())]


def events(
    first: int, count: int = 1, *, place: TurnOf = PLACE, value: bytes = b"1"
) -> ForwardedEvents:
    event = ForwardedEvent(0, value, None, 0, 0, b"", 0)
    return ForwardedEvents(first, (place,), (event,) * count)


def batch(number: int, payload: bytes) -> ForwardedBatch:
    size_bytes, crc = len(payload), crc32c(payload)
    return ForwardedBatch(number, TurnOf(KEY, 1), b"p" * 16, 7, 1, 0, 0, size_bytes, crc, 0, 0)


def names(failed: Sequence[FailedRequest]) -> list[tuple[int, str]]:
    return [(each.number, each.error) for each in failed]


async def test_what_is_stored_in_one_turn_is_one_answer() -> None:
    leader = Leader()
    leader.forward(events(5, 2))
    leader.forward(batch(7, b"payload"), b"payload")
    assert leader.used_bytes == 2 + len(b"payload")
    assert [producer for _, producer in leader.log.waiting] == [
        None,
        None,
        Producer(b"p" * 16, 7),
    ]
    for offset, (done, _) in enumerate(leader.log.waiting):
        done(Appended(offset, copies=3))

    assert await leader.answers() == (
        [StoredAppend(5 + n, n, False, 3) for n in range(3)],
        [],
    )
    assert leader.used_bytes == 0
    assert leader.link.consumed_bytes == len(b"payload")


async def test_after_a_refusal_all_of_the_turn_is_refused() -> None:
    leader = Leader()
    leader.error = NotLeaderError("elsewhere")
    leader.forward(events(1))
    leader.error = None
    leader.forward(events(2))
    leader.forward(events(3, place=TurnOf(KEY, 2)))

    _, failed = await leader.answers()
    assert names(failed) == [(1, "NotLeaderError"), (2, "NotReadyError")]
    assert len(leader.log.waiting) == 1


async def test_a_refusal_that_comes_later_counts_as_well() -> None:
    leader = Leader()
    leader.forward(events(1))
    leader.log.waiting[0][0](AppendFailed(NotLeaderError("ended")))
    leader.forward(events(2))

    _, failed = await leader.answers()
    assert names(failed) == [(1, "NotLeaderError"), (2, "NotReadyError")]


async def test_a_late_refusal_of_an_earlier_turn_opens_no_later_one() -> None:
    """The sender has given up the first for its time, and begun again with what came behind it."""
    leader = Leader()
    later = TurnOf(KEY, 2)
    leader.forward(events(1))
    leader.forward(events(2, place=later))
    leader.log.waiting[1][0](AppendFailed(NotLeaderError("ended")))
    leader.log.waiting[0][0](AppendFailed(NotLeaderError("ended")))
    leader.forward(events(3, place=later))

    _, failed = await leader.answers()
    assert [each.number for each in failed] == [2, 1, 3]
    assert len(leader.log.waiting) == 2


async def test_another_error_refuses_nothing_else() -> None:
    leader = Leader()
    leader.forward(events(1))
    leader.log.waiting.pop()[0](AppendFailed(DiskFullError("full")))
    leader.forward(events(2))

    _, failed = await leader.answers()
    assert names(failed) == [(1, "DiskFullError")]
    assert len(leader.log.waiting) == 1


async def test_over_the_produce_memory_nothing_is_appended() -> None:
    leader = Leader()
    leader.forward(events(1, value=b"x" * (MEMORY_BYTES + 1)))
    large = b"x" * (MEMORY_BYTES + 1)
    leader.forward(batch(2, large), large)

    _, failed = await leader.answers()
    assert names(failed) == [(1, "ProduceMemoryFullError"), (2, "ProduceMemoryFullError")]
    assert leader.log.waiting == []
    assert leader.used_bytes == 0


async def test_what_the_leader_has_not_heard_of_is_to_be_tried_again() -> None:
    leader = Leader()
    leader.forward(events(1, place=TurnOf(UNKNOWN, 1)))
    leader.forward(events(2, place=TurnOf(LogKey(KEY.topic_id, 9), 1)))
    leader.is_ready = False
    leader.forward(events(3))

    _, failed = await leader.answers()
    assert [each.error for each in failed] == ["NotReadyError"] * 3


async def test_a_batch_that_was_damaged_on_the_way_ends_the_link() -> None:
    leader = Leader()
    with pytest.raises(CorruptFrameError):
        leader.forward(batch(1, b"payload"), b"paylo@d")
    assert leader.log.waiting == []


async def test_nobody_is_answered_who_has_gone() -> None:
    leader = Leader()

    class Reads:
        def lost(self, _: object) -> None:
            """None are under way."""

    leader.requests = ForwardedRequests(leader, Reads(), leader.hosted)  # type: ignore[arg-type]
    leader.forward(events(1))
    leader.requests.on_forwarder_lost(leader.link)  # type: ignore[arg-type]
    leader.requests.flush()

    assert await leader.answers() == ([], [])
    assert leader.used_bytes == 1  # the append goes on
