"""Requests to the ring: asked again, answered by the state, given up at last."""

import random
from collections import Counter
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.core.node.events import Answer
from tailrace_broker.core.node.requests import Requests, Settled
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.commands import AbortStep
from tailrace_broker.model.messages import CommandForwarded, ReadAsked
from tailrace_broker.model.ring_state import Refusal, RingState

ME = DiskId(0, UUID(int=1))
STATE = RingState(UUID(int=2), 1, 1)
COMMAND = AbortStep(7)


def requests() -> Requests:
    return Requests(ME, random.Random(1), Counter(), ask_again_ms=300, give_up_ms=1000)


def test_a_command_is_asked_for_again_until_it_is_settled() -> None:
    asked = requests()
    message = asked.command(COMMAND, 1, 0)

    assert asked.due(299, everything=False) == []
    assert asked.due(300, everything=False) == [message]
    assert asked.due(301, everything=False) == []
    assert asked.due(301, everything=True) == [message]
    assert decode_command(message.command).command == COMMAND


def test_the_outcome_is_in_the_state() -> None:
    asked = requests()
    refusal = Refusal("step-not-open", "there is none")
    done, refused = asked.command(COMMAND, 1, 0), asked.command(COMMAND, None, 0)
    outcomes = {id_of(done): None, id_of(refused): refusal}

    assert list(asked.settled(STATE, 5)) == []
    settled = list(asked.settled(replace(STATE, recent=outcomes), 5))
    assert [(each.number, each.refusal) for each in settled] == [(1, None), (None, refusal)]
    assert list(asked.settled(replace(STATE, recent=outcomes), 5)) == []


def test_a_read_is_done_when_its_height_is_applied() -> None:
    asked = requests()
    message = asked.read(1, 0)

    assert isinstance(message, ReadAsked)
    assert list(asked.settled(STATE, 9)) == []
    asked.read_answered(message.request, 10)
    asked.read_answered(message.request, 99)
    asked.read_answered(12345, 0)
    assert list(asked.settled(STATE, 9)) == []
    assert asked.due(500, everything=True) == []
    assert list(asked.settled(STATE, 10)) == [Settled(1, None, None)]


def test_what_takes_too_long_is_given_up() -> None:
    asked = requests()
    asked.command(COMMAND, 1, 0)
    asked.command(COMMAND, None, 0)
    asked.read(2, 1)

    [answer] = asked.given_up(1000)

    assert isinstance(answer, Answer)
    assert answer.request == 1
    assert answer.refusal is not None
    assert answer.refusal.reason == "not-agreed"
    assert "it may still come to be" in answer.refusal.detail
    [answer] = asked.given_up(1001)
    assert answer.request == 2
    assert answer.refusal is not None
    assert "may still" not in answer.refusal.detail
    assert list(asked.given_up(9999)) == []


def test_a_duty_that_is_under_way_is_known() -> None:
    asked = requests()

    assert not asked.is_under_way(COMMAND)
    asked.command(COMMAND, 1, 0)
    assert not asked.is_under_way(COMMAND)
    asked.command(COMMAND, None, 0)
    assert asked.is_under_way(COMMAND)
    assert not asked.is_under_way(AbortStep(8))


def id_of(message: CommandForwarded) -> int:
    return decode_command(message.command).id
