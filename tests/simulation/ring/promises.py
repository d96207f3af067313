"""A process must know after a crash what it reported to others, as long as its disk is there."""

from tailrace_broker.core.raft.events import Send
from tailrace_broker.model.messages import AppendAnswered, Digest, Follow, SliceTaken, VoteAnswered
from tests.simulation.ring.process import Process
from tests.simulation.ring.violation import check


def note_reported(process: Process, send: Send) -> None:
    """A message leaves the process: what it tells of the disk."""
    message, disk = send.message, process.disk
    if type(message) is Digest:
        mine = next((h for h in message.hints if h.ordinal == process.ordinal), None)
        if mine is not None and mine.incarnation == disk.identity.incarnation:
            disk.reported_height = max(disk.reported_height, mine.height)
    elif type(message) is AppendAnswered:
        disk.reported_term = max(disk.reported_term, message.term)
        disk.reported_height = max(disk.reported_height, message.commit.height)
    elif type(message) is Follow:
        disk.reported_height = max(disk.reported_height, message.commit.height)
    elif type(message) is VoteAnswered and message.is_granted and not message.is_pre:
        disk.reported_term = max(disk.reported_term, message.term)


# By these others take a broker for alive, or count on its disk.
HEARTBEATS = (AppendAnswered, Digest, Follow, SliceTaken)


def check_silent(process: Process, send: Send) -> None:
    """While a write of its data does not end it sends no heartbeat, unless it votes alone.

    It does until the change to other voters is committed.
    """
    is_alone = process.control is not None and len(process.control.raft.configuration.voters) == 1
    check(
        not process.health.is_stalled or is_alone or not isinstance(send.message, HEARTBEATS),
        f"{process.name} has stalled, and sends {type(send.message).__name__}",
    )


def check_kept(process: Process) -> None:
    """What the disk says at a start."""
    assert process.control is not None
    raft, disk = process.control.raft, process.disk
    check(raft.term >= disk.reported_term, f"{process.name} forgot term {disk.reported_term}")
    check(
        raft.applied.height >= disk.reported_height,
        f"{process.name} forgot that it had applied height {disk.reported_height}",
    )
