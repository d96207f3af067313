"""A scenario to read: a line for everything that happens, the machines' steps included."""

from typing import TYPE_CHECKING

from tailrace_broker.core.node.events import (
    Answer,
    Applied,
    CompactState,
    ControlEffect,
    ControlEvent,
    Heard,
)
from tailrace_broker.core.raft.events import Compacted, Durable, Keep, Replace, Send, Woken
from tailrace_broker.model.agreement import Block, BlockId, DiskId, Record, Snapshot, Stored
from tailrace_broker.model.messages import Append, AppendAnswered, Digest, Message

if TYPE_CHECKING:
    from tests.simulation.ring.process import Process


class Trace:
    """Lines, if it is on."""

    def __init__(self, *, is_on: bool = False, has_gossip: bool = False) -> None:
        self.is_on = is_on
        self.lines: list[str] = []
        self._has_gossip = has_gossip

    def line(self, now_us: int, text: str) -> None:
        """Something happened."""
        if self.is_on:
            self.lines.append(f"{now_us / 1e6:10.4f} {text}")

    def read(self, now_us: int, process: "Process") -> None:
        """A process found this on its disk."""
        if self.is_on and process.control is not None:
            raft = process.control.raft
            self.line(
                now_us,
                f"{process.name} reads: term {raft.term}, head {_id(raft.head)}, "
                f"applied {_id(raft.applied)}",
            )

    def step(
        self, now_us: int, process: "Process", event: ControlEvent, effects: list[ControlEffect]
    ) -> None:
        """An event, and what follows from it."""
        reported = [_effect(each) for each in effects if self._is_reported(each)]
        if isinstance(event, Woken | Durable) and not reported:
            return
        if isinstance(event, Heard) and isinstance(event.message, Digest):
            return
        follows = f" -> {'; '.join(reported)}" if reported else ""
        self.line(now_us, f"{process.name} {_event(event)}{follows}")

    def _is_reported(self, effect: ControlEffect) -> bool:
        is_gossip = isinstance(effect, Send) and isinstance(effect.message, Digest)
        return self._has_gossip or not is_gossip


def _event(event: ControlEvent) -> str:
    match event:
        case Heard(message):
            return f"hears {message.sender.ordinal}: {_message(message)}"
        case Durable(number):
            return f"durable {number}"
        case Compacted(snapshot):
            return f"compacted {_id(snapshot.id)}"
        case Woken():
            return "wakes"
        case _:
            return f"{event}"


def _effect(effect: ControlEffect) -> str:
    match effect:
        case Send(ordinal, message):
            return f"to {ordinal}: {_message(message)}"
        case Keep(number, records):
            return f"keep {number}: {_records(records)}"
        case Replace(number, snapshot, records):
            return f"replace {number}: snapshot {_id(snapshot.id)}, {_records(records)}"
        case CompactState(number, block_id, _, _, records):
            return f"compact {number}: at {_id(block_id)}, {_records(records)}"
        case Applied():
            return "applied"
        case Answer(request, refusal):
            return f"answer {request}: {'done' if refusal is None else refusal.reason}"
        case _:
            return f"{effect}"


def _message(message: Message) -> str:
    match message:
        case Append(term, _, parent, blocks, commit, number):
            what = f" + {_blocks(blocks)}" if blocks else ""
            return f"append term {term} {_id(parent)}{what}, commit {_id(commit)}, round {number}"
        case AppendAnswered(term, _, is_accepted, head, commit, number):
            word = "appended" if is_accepted else "refused"
            return f"{word} term {term} head {_id(head)}, commit {_id(commit)}, round {number}"
        case _:
            fields = [
                f"{name} {_value(getattr(message, name))}"
                for name in message.__struct_fields__
                if name != "sender"
            ]
            return f"{type(message).__name__} {', '.join(fields)}"


def _records(records: tuple[Record, ...]) -> str:
    return ", ".join(
        f"block {_id(each.block.id)}"
        if isinstance(each, Stored)
        else f"{type(each).__name__.lower()} "
        + " ".join(str(_value(getattr(each, name))) for name in each.__struct_fields__)
        for each in records
    )


def _blocks(blocks: tuple[Block, ...]) -> str:
    return ", ".join(f"{_id(each.id)}{('', ' voters', '')[each.kind]}" for each in blocks)


def _value(value: object) -> object:
    if isinstance(value, BlockId):
        return _id(value)
    if isinstance(value, DiskId):
        return f"{value.ordinal}:{str(value.incarnation)[:4]}"
    if isinstance(value, Snapshot):
        return f"snapshot {_id(value.id)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value


def _id(block_id: BlockId) -> str:
    return f"{block_id.term}.{block_id.height}"
