"""What consensus machines do, as text: a line for each event and, indented, each effect.

Brokers are named by their ordinals, `2b` is broker 2 with its second disk; blocks by term.height.
"""

from tailrace_broker.codec.configuration import decode_configuration
from tailrace_broker.core.raft.events import (
    Apply,
    ChangeVoters,
    Compact,
    Compacted,
    Durable,
    Install,
    Keep,
    Propose,
    RaftEffect,
    RaftEvent,
    ReadReady,
    Received,
    Replace,
    Send,
    Unreachable,
)
from tailrace_broker.model.agreement import (
    COMMAND,
    NOTHING,
    VOTERS,
    Block,
    BlockId,
    Commit,
    Configuration,
    DiskId,
    Head,
    Record,
    Stored,
    Term,
)
from tailrace_broker.model.messages import (
    Append,
    AppendAnswered,
    Follow,
    SliceTaken,
    SnapshotSlice,
    VoteAnswered,
    VoteAsked,
)
from tests.support.raft.raft_world import Node, World, disk_id


class Trace:
    """The trace of a world. `say` puts a sentence between."""

    def __init__(self, world: World) -> None:
        self.lines: list[str] = []
        self._world = world
        self.resume()

    def pause(self) -> None:
        """Forget the events up to now."""
        self._world.watch = None

    def resume(self) -> None:
        self._rules = self._world.rules.copy()
        self._world.watch = self._watch

    def say(self, sentence: str) -> None:
        self.lines += ["", f"# {sentence}"]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip() + "\n"

    def _watch(self, node: Node, event: RaftEvent, effects: list[RaftEffect]) -> None:
        now = node.world.rules
        fired = sorted(rule for rule in now if now[rule] != self._rules[rule])
        self._rules = now.copy()
        if not effects and not fired:
            return
        rules = f"  [{', '.join(fired)}]" if fired else ""
        self.lines.append(f"{disk_name(node.disk.id)} {_event(event)}{rules}")
        self.lines += [f"    {line}" for effect in effects for line in _effect(effect)]


def disk_name(disk: DiskId) -> str:
    first = disk_id(disk.ordinal)
    return f"{disk.ordinal}{'' if disk == first else 'b'}"


def _names(disks: tuple[DiskId, ...]) -> str:
    return " ".join(map(disk_name, disks))


def _id(block_id: BlockId) -> str:
    return "nothing" if block_id == NOTHING else f"{block_id.term}.{block_id.height}"


def _voters(configuration: Configuration) -> str:
    names = _names(configuration.voters)
    return f"{names}, then {_names(configuration.next_voters)}" if configuration.is_joint else names


def _block(block: Block) -> str:
    if block.kind == VOTERS:
        return f"{_id(block.id)} (voters {_voters(decode_configuration(block.payload))})"
    if block.kind == COMMAND:
        return f"{_id(block.id)} ({block.payload.decode()})"
    return f"{_id(block.id)} (empty)"


def _record(record: Record) -> str:
    match record:
        case Term(term, None):
            return f"term {term}"
        case Term(term, DiskId() as vote):
            return f"term {term} with its vote for {disk_name(vote)}"
        case Stored(block):
            return f"block {_block(block)} on {_id(block.parent)}"
        case Head(block_id):
            return f"head {_id(block_id)}"
        case Commit(block_id):
            return f"committed up to {_id(block_id)}"
        case _:
            return repr(record)


def _message(message: object) -> str:
    match message:
        case VoteAsked(term, _, head, is_pre):
            what = "would you vote for me" if is_pre else "vote for me"
            return f"{what} in term {term}? my head is {_id(head)}"
        case VoteAnswered(term, _, is_granted, is_pre):
            yes = "I would, in term" if is_pre else "you have my vote in term"
            return f"{yes if is_granted else 'no; it is term'} {term}"
        case Append(term, _, parent, blocks, commit, _):
            what = ", ".join(map(_block, blocks)) or "nothing new"
            return f"term {term}: behind {_id(parent)}: {what}; committed up to {_id(commit)}"
        case AppendAnswered(term, _, is_accepted, head, commit, _):
            what = "I have" if is_accepted else "that I cannot take; I have"
            return f"term {term}: {what} {_id(head)}, and have applied {_id(commit)}"
        case SnapshotSlice(term, _, block_id, _, position, size_bytes, contents, _):
            end = position + len(contents)
            return (
                f"term {term}: snapshot {_id(block_id)}, {position} to {end} of {size_bytes} bytes"
            )
        case SliceTaken(term, _, block_id, position, _):
            return f"term {term}: I have {position} bytes of snapshot {_id(block_id)}"
        case Follow(_, _, commit):
            return f"send me what comes after {_id(commit)}"
        case _:
            return repr(message)


def _event(event: RaftEvent) -> str:
    match event:
        case Received(message):
            return f"hears {disk_name(message.sender)}: {_message(message)}"
        case Durable(number):
            return f"has all up to write {number} on disk"
        case Propose(payload):
            return f"is asked for {payload.decode()}"
        case ChangeVoters(voters):
            return f"is asked for the voters {_names(voters)}"
        case Unreachable(ordinal):
            return f"cannot reach {ordinal}"
        case Compacted(snapshot):
            return f"has snapshot {_id(snapshot.id)} on disk"
        case _:
            return "wakes"


def _effect(effect: RaftEffect) -> list[str]:
    match effect:
        case Keep(number, records):
            return [f"write {number}: {_record(record)}" for record in records]
        case Replace(number, snapshot, _):
            return [f"write {number}: snapshot {_id(snapshot.id)} in place of all"]
        case Compact(number, block_id, _, _):
            return [f"write {number}: a snapshot of {_id(block_id)}, please"]
        case Send(ordinal, message):
            return [f"to {ordinal}: {_message(message)}"]
        case Apply(blocks):
            return [f"applies {_block(block)}" for block in blocks]
        case Install(snapshot):
            return [
                f"has the state of {_id(snapshot.id)}, voters {_voters(snapshot.configuration)}"
            ]
        case ReadReady(request, height):
            return [f"read {request} may see height {height}"]
