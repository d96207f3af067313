import pytest

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.raft.events import (
    Woken,
)
from tailrace_broker.core.raft.feeding import LEARNER_SILENT_MS
from tailrace_broker.model.agreement import (
    INITIAL_ID,
    VOTERS,
    Block,
    BlockId,
    Configuration,
)
from tailrace_broker.model.messages import (
    Append,
    VoteAsked,
)
from tests.support.raft.raft_world import TIMING, MemoryDisk, World, disk_id, hear

A, B, C, D = map(disk_id, range(4))
FIRST = BlockId(1, 1)


def test_voters_change_by_way_of_both_majorities(world: World) -> None:
    world.add(MemoryDisk(D))
    world.run(2000)

    world.change_voters(0, A, B, D)

    assert world[0].configuration == Configuration((A, B, C), (A, B, D))
    assert world.change_voters(0, A, B, C) == []  # one at a time
    world.settle()
    assert {node.raft and node.raft.configuration for node in world.nodes.values()} == {
        Configuration((A, B, D))
    }
    assert (world.rules["joint.begun"], world.rules["joint.done"]) == (1, 1)
    assert world[3].is_voter
    assert not world[2].is_voter


def test_a_block_before_a_change_of_voters_is_committed_before_it(world: World) -> None:
    world.propose(0, b"one")
    world.deliver(2)
    world.change_voters(0, A, B)
    world.mail.clear()  # B and C have the block before the change only
    for node in world.nodes.values():
        node.write(len(node.disk.writes))
    world.deliver(2)

    assert world[0].commit == BlockId(1, 2)
    assert world[0].configuration.is_joint


@pytest.mark.parametrize("voters", [(), (A, A), (A, disk_id(0, 2)), (A, B, C), (A, B, D)])
def test_voters_do_not_change_to_these(world: World, voters: tuple[object, ...]) -> None:
    world.change_voters(0, *voters)  # type: ignore[arg-type]

    assert world[0].configuration == Configuration((A, B, C))
    assert world.rules["voters.refused"] + world.rules["voters.not_caught_up"] == 1


def test_a_voter_that_is_down_may_stay_one_while_another_is_replaced() -> None:
    world = World(5)
    world.elect(0)
    world.settle()
    world.nodes[4].stop()
    world.add(MemoryDisk(disk_id(3, 2)))
    world.run(2000)

    world.change_voters(0, A, B, C, disk_id(3, 2), disk_id(4))
    world.settle()

    assert world[0].configuration == Configuration((A, B, C, disk_id(3, 2), disk_id(4)))


def test_a_leader_that_votes_no_more_leads_until_that_is_committed(world: World) -> None:
    world.change_voters(0, B, C)
    world.settle()

    assert world[0].role == "follower"
    assert world.rules["leader.stepped_down"] == 1
    assert world.elect() is not world.nodes[0]


def test_who_alone_knows_that_it_votes_no_more_may_still_be_elected() -> None:
    """A and B vote, then B alone; A has the last block of that, B has not."""
    world = World(2)
    world.elect(0)
    world.settle()
    world.change_voters(0, B)
    while world[0].configuration.is_joint:
        world.deliver()
        for node in world.nodes.values():
            node.write()
    world.nodes[0].write(9)
    world.mail.clear()
    assert world[1].configuration.is_joint
    for node in world.nodes.values():
        node.stop()
        node.start()
    assert not world[0].is_voter

    world.run(8 * TIMING.election_ms)

    assert world.leader is world.nodes[1]
    assert world[0].configuration == world[1].configuration == Configuration((B,))


def test_a_change_that_its_leader_left_half_done_is_finished_by_the_next(world: World) -> None:
    """B knows that the joint voters are committed, and got nothing of what the leader did then."""
    voters = encode_configuration(Configuration((A, B, C), (A, B)))
    joint = Block(BlockId(1, 2), FIRST, VOTERS, voters)
    for ordinal in (1, 2):
        hear(world, ordinal, Append(1, A, FIRST, (joint,), joint.id, 9))
        world.settle_node(ordinal)
    assert world[1].commit == joint.id
    world.nodes[0].stop()
    world.nodes[0].start()

    world.run(4 * TIMING.election_ms)

    assert {node.raft and node.raft.configuration for node in world.nodes.values()} == {
        Configuration((A, B))
    }


def test_who_does_not_know_that_it_votes_no_more_is_reported(world: World) -> None:
    world.cut |= {(0, 2), (1, 2)}
    world.change_voters(0, A, B)
    world.run(LEARNER_SILENT_MS + 2000)
    assert world[2].is_voter
    world.cut.clear()

    world.run(3 * TIMING.election_ms)

    assert not world[2].is_voter


def test_a_learner_that_falls_silent_is_forgotten(world: World) -> None:
    world.add(MemoryDisk(D))
    world.run(2000)
    assert world[0].matched[D] == FIRST
    world.nodes[3].stop()

    world.run(LEARNER_SILENT_MS + 1000)

    assert D not in world[0].matched
    assert world.rules["learner.forgotten"] == 1


def test_a_wiped_disk_is_a_new_voter(world: World) -> None:
    """Its broker is fed by what speaks for it now; the old one still counts against majorities."""
    wiped = disk_id(2, 2)
    world.add(MemoryDisk(wiped))
    world.run(1000)

    matched = world[0].matched
    assert (matched[wiped], matched[C]) == (FIRST, FIRST)
    assert world[0].configuration == Configuration((A, B, C))
    world.mail.clear()
    world.propose(0, b"one")
    assert [ordinal for _, ordinal, _ in world.mail] == [1, 2]
    world.settle()

    world.change_voters(0, A, B, wiped)
    world.settle()
    assert world[2].configuration == Configuration((A, B, wiped))


def test_a_wiped_broker_leads_though_its_old_disk_still_votes() -> None:
    world = World(1)
    world.elect()
    world.add(MemoryDisk(B))
    world.run(1000)
    world.change_voters(0, A, B)
    world.settle()
    world.add(MemoryDisk(disk_id(1, 2)))
    world.run(1000)
    joint = Block(
        BlockId(3, world[0].head.height + 1),
        world[0].head,
        VOTERS,
        encode_configuration(Configuration((A, B), (disk_id(1, 2),))),
    )
    hear(world, 1, Append(3, A, joint.parent, (joint,), INITIAL_ID, 1))
    world.nodes[0].stop()
    world.now_ms += 3 * TIMING.election_ms

    world.nodes[1].step(Woken())

    assert {ordinal for _, ordinal, message in world.mail if isinstance(message, VoteAsked)} == {0}
