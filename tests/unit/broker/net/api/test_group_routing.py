"""Which requests of consumers are repeated when nobody knows whether they were executed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace_broker.model.errors import (
    ConsumerNotRegisteredError,
    NoLeaderError,
    OutcomeUnknownError,
    TailraceError,
)
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.net.api import group_routing
from tailrace_broker.net.api.consumers import ConsumerParameters
from tailrace_broker.net.broker import Broker, LeaderAnswer
from tailrace_broker.net.http.router import Call, Response

DONE = LeaderAnswer((), "", 204, {})
UNKNOWN = OutcomeUnknownError("it does not answer")


class OtherBroker:
    """Coordinates the group; its answers come one after the other."""

    def __init__(self, *answers: LeaderAnswer | TailraceError) -> None:
        self.asked: list[ForwardedCall] = []
        self._answers = list(answers)

    async def forward_call(self, _: int, request: ForwardedCall, __: int) -> LeaderAnswer:
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, TailraceError):
            raise answer
        return answer


async def not_here(_: Broker, call: Call) -> Response:
    raise ConsumerNotRegisteredError("not here", consumerId=call.parameters.consumer_id)


def asked_with(
    monkeypatch: pytest.MonkeyPatch, other: OtherBroker, **headers: bytes
) -> Response | TailraceError:
    """What a poll with these headers comes to at a broker that does not know the consumer."""
    monkeypatch.setattr(group_routing, "RETRY_SECONDS", 0)
    monkeypatch.setattr(group_routing, "_leaders_of_groups", lambda _: [1])
    monkeypatch.setattr(group_routing, "other_coordinators", lambda _: [1])
    known: dict[str, int] = {}
    groups = SimpleNamespace(coordinator_of=known.get, note_coordinator=known.__setitem__)
    broker = cast(
        "Broker",
        SimpleNamespace(groups=groups, check_ready=lambda: None, forward_call=other.forward_call),
    )
    own_headers = {b"tailrace-" + name.encode(): value for name, value in headers.items()}
    call = Call(ConsumerParameters(consumer_id="c"), "", "", b"", own_headers, b"/poll")

    async def scenario() -> Any:
        try:
            return await group_routing.of_consumer(not_here)(broker, call)
        except TailraceError as error:
            return error

    return cast("Response | TailraceError", asyncio.run(scenario()))


def test_what_names_its_delivery_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherBroker(UNKNOWN, NoLeaderError("changes"), DONE)

    assert asked_with(monkeypatch, other, delivery=b"7") == Response(*DONE)
    assert len(other.asked) == 3


def test_what_names_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would confirm what the first one was given, and nobody got."""
    other = OtherBroker(UNKNOWN, DONE)

    assert asked_with(monkeypatch, other) is UNKNOWN
    assert UNKNOWN.write_attempted
    assert len(other.asked) == 1


def test_what_was_not_executed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherBroker(NoLeaderError("changes"), DONE)

    assert asked_with(monkeypatch, other) == Response(*DONE)


def test_a_consumer_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherBroker(ConsumerNotRegisteredError("not here either", consumerId="c"))

    assert isinstance(asked_with(monkeypatch, other), ConsumerNotRegisteredError)
