"""How far another disk has got: what is in flight counts until it is answered or lost."""

from tailrace_broker.core.raft.progress import VoterProgress
from tailrace_broker.model.agreement import INITIAL_ID, BlockId
from tests.support.raft.raft_world import disk_id


def test_what_was_lost_is_in_flight_no_more_whatever_is_answered_later() -> None:
    progress = VoterProgress(disk_id(1), INITIAL_ID, 0)
    progress.send(BlockId(1, 1), 100)
    progress.go_back(INITIAL_ID)
    progress.send(BlockId(1, 1), 30)
    progress.send(BlockId(1, 2), 20)
    assert progress.in_flight_bytes == 50

    progress.match(BlockId(1, 1))
    assert progress.in_flight_bytes == 20
