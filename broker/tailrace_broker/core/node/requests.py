"""The requests of this broker to the ring, until the state has their outcomes.

A command or read goes to whoever leads, and again now and then: the way there and back may fail,
and the leader change. A command carries an id, and its outcome is in the state that every broker
applies; so nobody answers commands. A read is answered with a height, and is done when that is
applied here.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tailrace_broker.codec.commands import encode_command
from tailrace_broker.core.node.events import Answer
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.commands import Command, Stamped
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import CommandForwarded, ReadAsked
from tailrace_broker.model.ring_state import Refusal, RingState

ID_BITS = 63


class Settled(NamedTuple):
    """`number`: whom to answer; None: a duty of the broker's own. `command` None: it was a read."""

    number: int | None
    command: Command | None
    refusal: Refusal | None


@dataclass(slots=True)
class _Request:
    """`number` and `command` as in `Settled`. `height`: known of a read."""

    number: int | None
    command: Command | None
    message: CommandForwarded | ReadAsked
    ask_again_ms: int
    give_up_ms: int
    height: int | None = None


class Requests:
    """Bounded by time: what is not committed within `give_up_ms` is forgotten, and said to be."""

    def __init__(
        self,
        me: DiskId,
        generator: Generator,
        rules: Counter[str],
        *,
        ask_again_ms: int,
        give_up_ms: int,
    ) -> None:
        self._me = me
        self._generator = generator
        self._rules = rules
        self._ask_again_ms = ask_again_ms
        self._give_up_ms = give_up_ms
        self._requests: dict[int, _Request] = {}  # by the id of the command or read

    def command(self, command: Command, number: int | None, now_ms: int) -> CommandForwarded:
        """What to send to the leader now."""
        command_id = self._generator.getrandbits(ID_BITS)
        message = CommandForwarded(self._me, encode_command(Stamped(command_id, command)))
        self._add(command_id, number, command, message, now_ms)
        return message

    def read(self, number: int | None, now_ms: int) -> ReadAsked:
        """What to send to the leader now."""
        read_id = self._generator.getrandbits(ID_BITS)
        message = ReadAsked(self._me, read_id)
        self._add(read_id, number, None, message, now_ms)
        return message

    def is_under_way(self, command: Command | None) -> bool:
        """A duty's command that is the same; None: a duty's read."""
        return any(
            each.number is None and each.command == command for each in self._requests.values()
        )

    def due(self, now_ms: int, *, everything: bool) -> list[CommandForwarded | ReadAsked]:
        """What to send again; `everything`: there is a new leader."""
        messages = []
        for each in self._requests.values():
            if each.height is None and (everything or now_ms >= each.ask_again_ms):
                each.ask_again_ms = now_ms + self._ask_again_ms
                messages.append(each.message)
        self._rules["request.asked_again"] += len(messages)
        return messages

    def given_up(self, now_ms: int) -> Iterator[Answer]:
        """To requests whose time is over."""
        for request_id, each in list(self._requests.items()):
            if now_ms >= each.give_up_ms:
                del self._requests[request_id]
                if each.number is not None:
                    detail = "the brokers have not agreed on it in time"
                    if each.command is not None:
                        detail += "; it may still come to be"
                    yield Answer(each.number, Refusal("not-agreed", detail))

    def read_answered(self, read_id: int, height: int) -> None:
        """A read is done as soon as so much is applied. The first answer counts."""
        found = self._requests.get(read_id)
        if found is not None and found.height is None:
            found.height = height

    def settled(self, state: RingState, applied_height: int) -> Iterator[Settled]:
        """Requests that are done, or refused."""
        for request_id, each in list(self._requests.items()):
            if each.command is not None and request_id in state.recent:
                del self._requests[request_id]
                yield Settled(each.number, each.command, state.recent[request_id])
            elif each.height is not None and applied_height >= each.height:
                del self._requests[request_id]
                yield Settled(each.number, None, None)

    def _add(
        self,
        request_id: int,
        number: int | None,
        command: Command | None,
        message: CommandForwarded | ReadAsked,
        now_ms: int,
    ) -> None:
        again_ms, end_ms = now_ms + self._ask_again_ms, now_ms + self._give_up_ms
        self._requests[request_id] = _Request(number, command, message, again_ms, end_ms)
