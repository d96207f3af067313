"""Which requests of consumers are repeated when nobody knows whether they were executed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace_broker.model.errors import (
    ConsumerNotRegisteredError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    TailraceError,
)
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.group import GROUPS_TOPIC
from tailrace_broker.net.api import group_routing
from tailrace_broker.net.api.consumers import ConsumerParameters
from tailrace_broker.net.broker import Broker, LeaderAnswer
from tailrace_broker.net.http.router import Call, Response

GENERATION = 4
DONE = LeaderAnswer((), "", 204, {})
UNKNOWN = OutcomeUnknownError("it does not answer")


class OtherBroker:
    """Coordinates the group; its answers come one after the other."""

    def __init__(self, *answers: LeaderAnswer | TailraceError) -> None:
        self.asked: list[ForwardedCall] = []
        self._answers = list(answers)
        self.asking = SimpleNamespace()
        self.grows = False  # the generation that the asking broker knows, meanwhile

    async def forward_call(self, _: int, request: ForwardedCall, __: int) -> LeaderAnswer:
        self.asked.append(request)
        self.asking.generation += self.grows
        self.grows = False
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
    groups = SimpleNamespace(
        coordinator_of=known.get, note_coordinator=known.__setitem__, generation=GENERATION
    )
    other.asking = groups
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


def test_what_may_have_been_executed_once_is_not_called_untried_by_a_later_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = NoLeaderError("changes")
    monkeypatch.setattr(group_routing, "RETRY_SECONDS_MAX", 0.02)
    other = OtherBroker(UNKNOWN, *[refused] * 100_000)

    error = asked_with(monkeypatch, other, delivery=b"7")

    assert isinstance(error, NoLeaderError)
    assert error.write_attempted
    assert not refused.write_attempted  # others share it


def test_what_was_not_executed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherBroker(NoLeaderError("changes"), DONE)

    assert asked_with(monkeypatch, other) == Response(*DONE)


def test_a_consumer_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherBroker(ConsumerNotRegisteredError("not here either", consumerId="c"))

    assert isinstance(asked_with(monkeypatch, other), ConsumerNotRegisteredError)


def test_a_consumer_that_may_be_in_a_partition_of_a_step_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who was asked had not applied the step; or this broker had not."""
    other = OtherBroker(ConsumerNotRegisteredError("not here any more", consumerId="c"), DONE)
    other.grows = True

    assert asked_with(monkeypatch, other) == Response(*DONE)
    assert [dict(each.headers)[b"tailrace-groups-generation"] for each in other.asked] == [
        b"4",
        b"5",
    ]


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({}, ConsumerNotRegisteredError),
        ({b"tailrace-groups-generation": b"4"}, ConsumerNotRegisteredError),
        ({b"tailrace-groups-generation": b"3"}, NotReadyError),
        ({b"tailrace-groups-generation": b"5"}, NotReadyError),
    ],
)
def test_a_broker_that_knows_of_other_partitions_does_not_say_that_nobody_knows_a_consumer(
    headers: dict[bytes, bytes], error: type[TailraceError]
) -> None:
    broker = cast("Broker", SimpleNamespace(groups=SimpleNamespace(generation=GENERATION)))
    call = Call(ConsumerParameters(consumer_id="c"), "", "", b"", headers, b"/poll", True)

    with pytest.raises(error):
        asyncio.run(group_routing.of_consumer(not_here)(broker, call))  # type: ignore[arg-type]


def test_a_partition_that_was_sealed_here_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log names this broker, which has all of it, and coordinates its groups no more."""
    monkeypatch.setattr(group_routing, "RETRY_SECONDS", 0)
    sealed = NotLeaderError("sealed", topic=GROUPS_TOPIC, partition=0, leader=3)
    answers: list[TailraceError | Response] = [sealed, Response()]

    async def here(_: Broker, __: Call) -> Response:
        answer = answers.pop(0)
        if isinstance(answer, TailraceError):
            raise answer
        return answer

    other = OtherBroker()
    broker = SimpleNamespace(ordinal=3, check_ready=lambda: None, forward_call=other.forward_call)
    call = Call(ConsumerParameters(consumer_id="c"), "", "", b"", {}, b"/v1/groups/g")

    routed = group_routing.of_group(here)(cast("Broker", broker), call)
    assert asyncio.run(cast("Any", routed)) == Response()
    assert other.asked == []
