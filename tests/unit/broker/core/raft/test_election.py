import pytest

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.raft.events import (
    Apply,
    Durable,
    Keep,
    RaftEffect,
    Received,
    Unreachable,
    Woken,
)
from tailrace_broker.core.raft.state import NEVER_MS
from tailrace_broker.model.agreement import (
    EMPTY,
    INITIAL_ID,
    NOTHING,
    VOTERS,
    Block,
    BlockId,
    Commit,
    Configuration,
    Head,
    Kept,
    Stored,
    Term,
)
from tailrace_broker.model.messages import Append, AppendAnswered, VoteAnswered, VoteAsked
from tests.support.raft.raft_world import TIMING, MemoryDisk, World, disk_id, sent

A, B, C = map(disk_id, range(3))
FIRST = BlockId(1, 1)


def kept(effects: list[RaftEffect]) -> list[object]:
    return [record for effect in effects if isinstance(effect, Keep) for record in effect.records]


def append(
    term: int, *blocks: Block, parent: BlockId = INITIAL_ID, commit: BlockId = INITIAL_ID
) -> Append:
    return Append(term, A, parent, blocks, commit, round=1)


def block(term: int, height: int, parent: BlockId) -> Block:
    return Block(BlockId(term, height), parent)


def test_who_votes_alone_leads_at_once() -> None:
    world = World(1)
    node = world.nodes[0]

    first = node.step(Woken())

    empty = Block(BlockId(1, 1), INITIAL_ID, EMPTY)
    assert first == [Keep(1, (Term(1, A), Stored(empty), Head(BlockId(1, 1))))]
    assert (world[0].role, world[0].leader, world[0].is_established) == ("leader", A, False)

    second = node.write()
    third = node.write()

    assert second == [Keep(2, (Commit(BlockId(1, 1)),))]
    assert third == [Apply((empty,))]
    assert world[0].is_established


def test_who_votes_alone_by_what_is_not_committed_leads_when_its_vote_is_on_disk() -> None:
    """Others may count votes in the old way, in the very same term."""
    world = World()
    alone = Block(FIRST, INITIAL_ID, VOTERS, encode_configuration(Configuration((C,))))
    world.nodes[2].step(Received(append(1, alone)))
    world.nodes[2].write()
    world.now_ms = world[2].wake_at_ms

    world.nodes[2].step(Woken())

    assert (world[2].role, world[2].term) == ("candidate", 2)
    world.nodes[2].write()
    assert world[2].role == "leader"


def test_it_asks_whether_it_would_win_before_any_term_changes() -> None:
    world = World()
    world.now_ms = world[0].wake_at_ms
    assert 1000 + TIMING.election_ms <= world.now_ms <= 1000 + 2 * TIMING.election_ms

    effects = world.nodes[0].step(Woken())

    assert sent(effects) == [VoteAsked(1, A, INITIAL_ID, is_pre=True)] * 2
    assert world[0].role == "candidate"
    world.deliver()
    assert [message for _, _, message in world.mail] == [
        VoteAnswered(1, disk, True, is_pre=True) for disk in (B, C)
    ]
    assert {world[ordinal].term for ordinal in range(3)} == {0}


def test_votes_are_asked_for_and_given_when_that_is_on_disk() -> None:
    world = World()
    world.now_ms = world[0].wake_at_ms
    world.nodes[0].step(Woken())
    world.deliver()
    world.deliver()

    assert world.mail == []
    assert world[0].term == 1
    assert sent(world.nodes[0].write()) == [VoteAsked(1, A, INITIAL_ID)] * 2
    world.deliver()
    assert world.mail == []
    assert sent(world.nodes[1].write()) == [VoteAnswered(1, B, True)]
    world.deliver()
    assert world[0].role == "leader"


def test_a_disk_votes_once_in_a_term_over_a_restart_too() -> None:
    world = World()
    node = world.nodes[2]
    node.step(Received(VoteAsked(1, A, INITIAL_ID)))
    node.write()
    node.stop()
    node.start()

    other = node.step(Received(VoteAsked(1, B, INITIAL_ID)))
    same = node.step(Received(VoteAsked(1, A, INITIAL_ID)))

    assert sent(other) == [VoteAnswered(1, C, False)]
    assert sent(same) == [VoteAnswered(1, C, True)]


def test_a_vote_that_is_asked_for_late_leaves_the_leader_of_its_term() -> None:
    world = World()
    world.nodes[1].step(Received(append(1)))
    world.nodes[1].step(Received(VoteAsked(1, C, FIRST)))

    assert (world.rules["vote.granted"], world[1].leader) == (1, A)


def test_a_vote_that_did_not_reach_the_disk_was_never_reported() -> None:
    world = World()
    node = world.nodes[2]

    first = node.step(Received(VoteAsked(1, A, INITIAL_ID)))
    node.stop()
    node.start()
    node.step(Received(VoteAsked(1, B, INITIAL_ID)))

    assert sent(first) == []
    assert sent(node.write()) == [VoteAnswered(1, C, True)]


def test_a_promise_of_a_term_that_is_over_is_not_sent() -> None:
    world = World()
    node = world.nodes[2]
    node.step(Received(VoteAsked(1, A, INITIAL_ID)))
    node.step(Received(VoteAsked(2, B, INITIAL_ID)))

    assert sent(node.write(2)) == [VoteAnswered(2, C, True)]
    assert world.rules["promise.dropped"] == 1


def test_an_answer_of_a_term_that_is_over_is_not_sent() -> None:
    world = World()
    node = world.nodes[2]
    node.step(Received(append(1, block(1, 1, INITIAL_ID))))
    node.step(Received(VoteAsked(2, B, BlockId(1, 1))))

    assert sent(node.write(2)) == [VoteAnswered(2, C, True)]


@pytest.mark.parametrize(
    ("head", "is_granted"),
    [((1, 2), True), ((2, 1), True), ((1, 3), True), ((1, 1), False), ((0, 9), False)],
)
def test_a_vote_needs_a_head_as_new_by_term_then_height(
    head: tuple[int, int], is_granted: bool
) -> None:
    world = World()
    node = world.nodes[2]
    first = block(1, 1, INITIAL_ID)
    node.step(Received(append(1, first, block(1, 2, first.id))))
    node.write()

    node.step(Received(VoteAsked(5, B, BlockId(*head))))

    assert sent(node.write()) == [VoteAnswered(5, C, is_granted)]
    assert world[2].term == 5


def test_who_hears_a_leader_says_nothing_to_who_would_be_one() -> None:
    world = World()
    leader = world.elect(0)
    world.settle()
    asked = VoteAsked(9, B, BlockId(8, 8), is_pre=True)

    assert world.nodes[2].step(Received(asked)) == []
    assert sent(leader.step(Received(asked)))[0] == Append(
        1, A, BlockId(1, 1), (), BlockId(1, 1), round=0
    )
    assert world.rules["prevote.refused"] == 2
    assert world[2].term == world[0].term == 1

    world.now_ms += TIMING.election_ms
    assert sent(world.nodes[2].step(Received(asked))) == [VoteAnswered(9, C, True, is_pre=True)]


def test_an_older_head_calls_the_newer_one_to_the_election() -> None:
    world = World()
    node = world.nodes[2]
    node.step(Received(append(1, block(1, 1, INITIAL_ID))))
    node.write()
    world.now_ms += TIMING.election_ms

    assert node.step(Received(VoteAsked(2, B, INITIAL_ID, is_pre=True))) == []
    assert world[2].wake_at_ms <= world.now_ms + TIMING.heartbeat_ms // 2
    assert world.rules["prevote.old_head"] == 1


def test_of_two_that_stand_at_once_one_gives_way() -> None:
    world = World()
    world.now_ms += 2 * TIMING.election_ms
    for ordinal in (1, 2):
        world.nodes[ordinal].step(Woken())
    world.nodes[0].stop()

    world.settle()

    assert world.rules["prevote.tie"] == 1
    assert [world[ordinal].role for ordinal in (1, 2)] == ["follower", "leader"]


def test_who_would_lead_asks_again_soon_those_who_still_hear_a_leader() -> None:
    world = World()
    world.elect(0)
    world.settle()
    world.nodes[0].stop()
    world.lose_connection(2, 0)
    world.now_ms = world[2].wake_at_ms
    world.nodes[2].step(Woken())
    world.settle()
    assert (world[2].role, world.rules["prevote.refused"]) == ("candidate", 1)
    assert world[2].wake_at_ms <= world.now_ms + TIMING.heartbeat_ms

    world.lose_connection(1, 0)
    world.now_ms = world[1].wake_at_ms
    world.nodes[1].step(Woken())
    world.settle()
    assert world.rules["prevote.tie"] == 1  # the other one is to lead, and has asked in vain
    world.now_ms = world[2].wake_at_ms
    world.nodes[2].step(Woken())
    world.settle()

    assert world[2].role == "leader"


def test_a_candidate_in_its_term_is_not_ended_by_who_asks_for_the_next() -> None:
    world = World()
    world.now_ms += 2 * TIMING.election_ms
    node = world.nodes[1]
    node.step(Woken())
    node.step(Received(VoteAnswered(1, A, True, is_pre=True)))

    answer = node.step(Received(VoteAsked(2, C, INITIAL_ID, is_pre=True)))

    assert sent(answer) == [VoteAnswered(2, B, True, is_pre=True)]
    assert (world[1].role, world[1].term) == ("candidate", 1)


def test_who_is_refused_a_vote_stands_again_soon() -> None:
    """Votes are split, perhaps; one that is being written takes about as long as its own has."""
    world = World()
    world.now_ms += 2 * TIMING.election_ms
    node = world.nodes[1]
    node.step(Woken())
    node.step(Received(VoteAnswered(1, A, True, is_pre=True)))
    assert world[1].wake_at_ms >= world.now_ms + TIMING.election_ms

    world.now_ms += 50
    node.step(Received(VoteAnswered(1, C, False)))

    assert (world[1].role, world[1].term) == ("candidate", 1)
    soon_ms = world[1].wake_at_ms - world.now_ms
    assert 50 + TIMING.heartbeat_ms // 2 <= soon_ms <= 50 + TIMING.heartbeat_ms


def test_who_has_a_vote_may_die_before_it_says_that_it_leads() -> None:
    world = World()
    world.nodes[1].step(Received(VoteAsked(1, C, INITIAL_ID)))
    assert world[1].wake_at_ms >= world.now_ms + TIMING.election_ms

    world.lose_connection(1, 0)  # somebody else: no matter
    assert world[1].wake_at_ms >= world.now_ms + TIMING.election_ms
    world.lose_connection(1, 2)

    assert world[1].wake_at_ms <= world.now_ms + TIMING.heartbeat_ms // 2


def test_a_candidate_of_an_older_term_learns_the_newer_and_tries_again_soon() -> None:
    world = World()
    world.nodes[1].step(Received(VoteAsked(4, C, INITIAL_ID)))
    world.now_ms += 2 * TIMING.election_ms
    world.nodes[0].step(Woken())

    world.settle()

    assert world[0].role == "follower"
    assert world[0].term == 4
    assert world[0].wake_at_ms <= world.now_ms + TIMING.heartbeat_ms // 2
    assert world.elect(0).raft is world[0]
    assert world[0].term == 5


def test_a_candidate_of_an_older_term_is_refused_with_the_newer() -> None:
    world = World()
    node = world.nodes[2]
    node.step(Received(VoteAsked(4, A, INITIAL_ID)))
    node.write()

    refused = node.step(Received(VoteAsked(3, B, INITIAL_ID)))

    assert sent(refused) == [VoteAnswered(4, C, False)]
    assert world.rules["stale.refused"] == 1


def test_a_leader_of_an_older_term_learns_the_newer_and_steps_down() -> None:
    world = World()
    leader = world.elect(0)
    world.settle()
    world.nodes[2].step(Received(VoteAsked(2, B, BlockId(1, 1))))
    stale = world.nodes[2].step(Received(append(1, parent=BlockId(1, 1))))

    assert sent(stale) == []  # the term is not on its disk yet
    reported = sent(world.nodes[2].write())
    # Not the round that was asked in the older term: who leads term 2 may be who asked.
    assert reported == [
        VoteAnswered(2, C, True),
        AppendAnswered(2, C, False, BlockId(1, 1), BlockId(1, 1), 0),
    ]

    leader.step(Received(reported[1]))

    assert (world[0].role, world[0].term, world[0].leader) == ("follower", 2, None)


def test_who_only_asks_whether_it_would_win_votes_for_another() -> None:
    world = World()
    world.now_ms = world[2].wake_at_ms
    node = world.nodes[2]
    node.step(Received(VoteAsked(1, B, BlockId(-1, -1))))  # a term without a vote
    node.step(Woken())
    assert world[2].role == "candidate"

    node.step(Received(VoteAsked(1, A, INITIAL_ID)))

    assert world[2].role == "follower"
    assert VoteAnswered(1, C, True) in sent(node.write(9))


def test_a_candidate_follows_who_leads_its_term() -> None:
    world = World()
    world.now_ms += 2 * TIMING.election_ms
    node = world.nodes[2]
    node.step(Woken())
    node.step(Received(VoteAnswered(1, B, True, is_pre=True)))
    assert (world[2].role, world[2].term) == ("candidate", 1)

    node.step(Received(append(1)))
    late = node.step(Received(VoteAnswered(1, B, True)))

    assert (world[2].role, world[2].leader, late) == ("follower", A, [])


def test_the_own_vote_counts_when_it_is_on_disk_and_not_before() -> None:
    world = World(2)
    node = world.nodes[1]
    node.step(Received(append(1, block(1, 1, INITIAL_ID))))
    world.now_ms += 2 * TIMING.election_ms
    node.step(Woken())
    node.step(Received(VoteAnswered(2, A, True, is_pre=True)))

    node.step(Received(VoteAnswered(2, A, True)))
    assert sent(node.write()) == []
    assert world[1].role == "candidate"
    assert Append(2, B, FIRST, (block(2, 2, FIRST),), INITIAL_ID, 0) in sent(node.write())


def test_votes_of_another_question_are_not_counted() -> None:
    world = World()
    world.now_ms += 2 * TIMING.election_ms
    node = world.nodes[2]
    node.step(Woken())

    node.step(Received(VoteAnswered(7, B, True, is_pre=True)))
    node.step(Received(VoteAnswered(0, B, True)))
    node.step(Received(VoteAnswered(0, B, False)))

    assert world[2].term == 0


def test_a_restarted_voter_never_leads_in_the_term_that_it_finds() -> None:
    world = World(1)
    world.elect()
    world.nodes[0].stop()
    world.nodes[0].start()

    world.nodes[0].step(Woken())

    assert world[0].role == "leader"
    assert world[0].term == 2


def test_a_killed_leader_is_followed_by_another_within_moments() -> None:
    world = World()
    leader = world.elect()
    world.run(500)
    dead = leader.disk.id.ordinal
    leader.stop()
    killed_ms = world.now_ms

    for ordinal in {0, 1, 2} - {dead}:
        world.lose_connection(ordinal, 5)  # somebody else: no matter
        assert world[ordinal].leader == leader.disk.id
        world.lose_connection(ordinal, dead)
        assert world[ordinal].leader is None
    while world.leader is None:
        world.wake()
        world.settle()

    assert world.now_ms - killed_ms <= TIMING.heartbeat_ms


def test_a_leader_whose_disk_hangs_gives_way() -> None:
    """The others agree on what it proposes, but it applies nothing."""
    world = World()
    world.elect(0)
    world.settle()
    stalled_ms = world.now_ms
    world.propose(0, b"one")

    while world.leader is None or world.leader is world.nodes[0]:
        world.wake()
        while world.mail:
            world.deliver(len(world.mail))
            for ordinal in (1, 2):
                world.nodes[ordinal].write(9)

    assert world.rules["disk.stalled"] == 1
    assert TIMING.disk_stall_ms < world.now_ms - stalled_ms < 2 * TIMING.disk_stall_ms
    assert world.leader.state == b"one\n"
    world.run(1000)
    assert world[0].leader == world.leader.disk.id


def test_a_follower_whose_disk_hangs_is_silent_and_does_not_stand() -> None:
    world = World()
    world.elect(0)
    world.settle()
    node = world.nodes[2]
    first = world[0].head
    node.step(Received(append(1, block(1, 2, first), parent=first, commit=first)))
    heartbeat = append(1, parent=first, commit=first)
    world.now_ms += TIMING.disk_stall_ms
    assert len(sent(node.step(Received(heartbeat)))) == 1

    world.now_ms += 1
    assert sent(node.step(Received(heartbeat))) == []
    assert world.rules["disk.silent"] == 1
    world.now_ms = world[2].wake_at_ms
    assert sent(node.step(Woken())) == []
    assert (world[2].role, world[2].leader) == ("follower", None)
    assert world[2].wake_at_ms > world.now_ms
    assert sent(node.step(Received(VoteAsked(2, B, first, is_pre=True)))) == []
    assert world.rules["disk.silent"] == 2

    node.write()
    world.now_ms = world[2].wake_at_ms
    node.step(Woken())
    assert world[2].role == "candidate"


def test_a_follower_whose_data_stalls_is_silent_and_gives_no_vote() -> None:
    """Its metadata has nothing to write."""
    world = World()
    world.elect(0)
    world.settle()
    node = world.nodes[2]
    head = world[0].head
    world[2].note_data(is_stalled=True)
    assert sent(node.step(Received(append(1, parent=head, commit=head)))) == []
    assert world[2].is_silent

    assert sent(node.step(Received(VoteAsked(2, B, head)))) == []
    node.write()
    assert world.rules["disk.silent"] == 2
    world[2].note_data(is_stalled=False)
    node.step(Received(VoteAsked(2, B, head)))
    assert [type(each) for each in sent(node.write())] == [VoteAnswered]


def test_a_broker_whose_data_stalls_answers_no_leader_of_an_older_term() -> None:
    world = World()
    world.elect(0)
    world.settle()
    node, head = world.nodes[2], world[0].head
    node.step(Received(append(2, parent=head, commit=head)))
    node.write()
    late = append(1, parent=head, commit=head)
    assert len(sent(node.step(Received(late)))) == 1

    world[2].note_data(is_stalled=True)
    assert sent(node.step(Received(late))) == []
    assert world.rules["disk.silent"] == 1


def test_who_votes_alone_waits_for_its_disk() -> None:
    world = World(1)
    world.elect()
    world.propose(0, b"one")

    while world.now_ms < 3 * TIMING.disk_stall_ms:
        world.wake()

    assert world[0].role == "leader"
    world.settle()
    assert world.nodes[0].state == b"one\n"


def test_a_leader_that_nobody_answers_steps_down() -> None:
    world = World()
    world.elect(0)
    world.run(500)
    world.cut |= {(1, 0), (2, 0)}

    world.run(2 * TIMING.election_ms)

    assert world.rules["quorum.lost"] == 1
    assert world[0].role == "follower"


def test_nobody_else_leads_in_a_term() -> None:
    world = World()
    world.elect(0)
    world.settle()
    second = Append(1, B, INITIAL_ID, (block(1, 1, INITIAL_ID),), INITIAL_ID, 1)

    assert world.nodes[0].step(Received(second)) == []
    assert world.nodes[2].step(Received(second)) == []
    assert world.rules["leader.second"] == 2


def test_what_a_broker_seems_to_hear_of_itself_is_of_a_disk_before() -> None:
    world = World()

    assert world.nodes[0].step(Received(VoteAsked(9, disk_id(0, 2), INITIAL_ID))) == []
    assert world[0].term == 0


def test_an_empty_disk_neither_votes_nor_wakes() -> None:
    world = World()
    node = world.add(MemoryDisk(disk_id(3)))

    assert node.step(Received(VoteAsked(9, A, INITIAL_ID))) == []
    assert world[3].wake_at_ms == NEVER_MS
    assert node.step(Woken()) == []
    assert (world[3].head, world[3].is_voter) == (NOTHING, False)


def test_a_learner_forgets_a_leader_that_it_does_not_hear() -> None:
    world = World(1)
    world.add(MemoryDisk(disk_id(1)))
    world.run(1000)
    assert (world[1].leader, world[1].is_voter) == (A, False)
    world.cut.add((0, 1))

    world.run(3 * TIMING.election_ms)

    assert world[1].leader is None
    assert world[1].wake_at_ms == NEVER_MS


def test_a_vote_of_a_disk_that_is_replaced_in_the_meantime_counts_for_the_old_one() -> None:
    world = World()
    world.now_ms += 2 * TIMING.election_ms
    node = world.nodes[0]
    node.step(Woken())

    node.step(Received(VoteAnswered(1, disk_id(1, 2), True, is_pre=True)))

    assert world[0].term == 0


def test_a_late_acknowledgement_of_the_disk_changes_nothing() -> None:
    world = World(1)
    world.elect()

    assert world.nodes[0].step(Durable(1)) == []
    assert world.nodes[0].step(Unreachable(3)) == []


def test_a_restart_finds_the_whole_chain() -> None:
    world = World()
    node = world.nodes[2]
    first = block(1, 1, INITIAL_ID)
    second = block(1, 2, first.id)
    node.step(Received(append(1, first, second, commit=first.id)))
    node.write()
    node.stop()

    raft = node.start()

    assert (raft.head, raft.commit, raft.applied) == (second.id, first.id, first.id)
    assert raft.applied_blocks_at_start() == (first,)
    assert node.disk.kept() == Kept(
        Term(1), node.disk.snapshot, (first, second), head=second.id, commit=first.id
    )
    assert (raft.heard_at_ms, raft.matched) == ({}, {})
