"""Whom a coordinator asks for records that it does not have."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.groups.remote_log import Fetched, Wanted
from tailrace_broker.groups.remote_reads import fetch
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NoLeaderError,
    NotLeaderError,
    TailraceError,
)
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tailrace_broker.net.broker import Broker, LeaderAnswer
from tests.support.ring.states import led

HEADERS = {"tailrace-log-start": "2", "tailrace-high-watermark": "9"}
ANSWER = LeaderAnswer((b"stored",), "", 200, HEADERS)
SEALED_ANSWER = ANSWER._replace(headers={**HEADERS, "tailrace-sealed": "true"})
AWAY = NoLeaderError("it does not answer")


def asked(
    state: RingState | None, *answers: LeaderAnswer | TailraceError, is_here: bool = False
) -> tuple[list[tuple[int, bytes]], Fetched | TailraceError]:
    """Whom broker 0 asks for partition 0, whose range is 0; each gives the next answer."""
    requests: list[tuple[int, bytes]] = []
    left = list(answers)

    async def forward_call(
        ordinal: int, request: ForwardedCall, wait_ms: int, **_: object
    ) -> LeaderAnswer:
        requests.append((ordinal, request.target))
        answer = left.pop(0)
        if isinstance(answer, TailraceError):
            raise answer
        return answer

    def log_of(partition: int) -> Any:
        if is_here:
            return SimpleNamespace(log_start=1, high_watermark=4)
        raise NotLeaderError("elsewhere", leader=1)

    topic = Topic("a b", UUID(int=1), TopicSettings(), (Partition(0, 0, 1, 0, 1),))
    hosted = SimpleNamespace(log_of=log_of, topic=topic)
    broker = SimpleNamespace(
        hosted_for_brokers=lambda name: hosted,
        ring=SimpleNamespace(state=state),
        ordinal=0,
        forward_call=forward_call,
    )
    try:
        wanted = Wanted("a b", 0, 5, 100, 7)
        return requests, asyncio.run(fetch(cast("Broker", broker), wanted))
    except TailraceError as error:
        return requests, error


def sealed(*complete: int) -> RingState:
    state = led(3, 3)
    owner = replace(state.ranges[0], leader=None, isr=(), sealed_epoch=1, complete=complete)
    return replace(state, ranges={**state.ranges, 0: owner})


def test_an_open_partition_is_read_at_its_leader_alone() -> None:
    requests, fetched = asked(led(3, 3), ANSWER)

    target = b"/v1/topic/a%20b/partitions/0/records?offset=5&maxBytes=100&waitMs=7"
    assert requests == [(1, target)]
    assert fetched == Fetched(2, 9, memoryview(b"stored"))
    assert asked(led(3, 3), AWAY)[1] is AWAY
    assert asked(None, AWAY)[1] is AWAY


def test_a_sealed_partition_is_read_at_another_whole_copy_when_one_is_away() -> None:
    requests, fetched = asked(sealed(0, 1, 2), AWAY, SEALED_ANSWER)

    assert [ordinal for ordinal, _ in requests] == [1, 2]
    assert fetched == Fetched(2, 9, memoryview(b"stored"), is_sealed=True)


def test_a_sealed_partition_of_which_no_copy_answers_is_not_read() -> None:
    last = NoLeaderError("nor does this one")

    assert asked(sealed(1, 2), AWAY, last)[1] is last


def test_damage_is_no_reason_to_ask_another() -> None:
    damage = CorruptPartitionError("damaged")
    requests, problem = asked(sealed(1, 2), damage)

    assert problem is damage
    assert len(requests) == 1


@pytest.mark.parametrize("state", [sealed(0, 1), led(3, 3)])
def test_what_is_here_is_not_asked_for(state: RingState) -> None:
    requests, fetched = asked(state, is_here=True)

    assert requests == []
    assert fetched == Fetched(1, 4, memoryview(b""), is_here=True)
