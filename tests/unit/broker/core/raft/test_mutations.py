"""Mutations of the consensus machine, one at a time: random walks find each."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.raft import election as raft_election
from tailrace_broker.core.raft import raft
from tailrace_broker.core.raft import state as raft_state
from tailrace_broker.core.raft.events import Woken
from tailrace_broker.core.raft.leading import Leading
from tailrace_broker.core.raft.state import RaftState
from tailrace_broker.model.agreement import (
    VOTERS,
    Configuration,
    DiskId,
)
from tailrace_broker.model.messages import AppendAnswered, RaftMessage, VoteAsked
from tests.support.raft.raft_walk import Walk
from tests.support.raft.raft_world import TIMING, World

SEED_COUNT = 400
STEP_COUNT = 800

Mutation = Callable[[pytest.MonkeyPatch], None]


def promise_reported_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    """A vote above all: it is given twice in a term."""

    def promise(self: RaftState, ordinal: int, message: RaftMessage) -> None:
        self.send(ordinal, message)

    patch.setattr(RaftState, "promise", promise)


def block_acknowledged_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    def promise_reply(self: RaftState, ordinal: int, round: int) -> None:
        head, applied = self.chain.head, self.applied
        self.send(ordinal, AppendAnswered(self.term, self.me, True, head, applied, round))

    patch.setattr(RaftState, "promise_reply", promise_reply)


def vote_given_whatever_the_head(patch: pytest.MonkeyPatch) -> None:
    def as_new(message: VoteAsked, state: RaftState) -> VoteAsked:
        return replace(message, head=max(message.head, state.chain.head))

    vote, pre_vote = raft_election.answer_vote, raft_election.answer_pre_vote
    patch.setattr(raft, "answer_vote", lambda state, asked: vote(state, as_new(asked, state)))
    patch.setattr(
        raft,
        "answer_pre_vote",
        lambda state, asked, *, is_standing: pre_vote(
            state, as_new(asked, state), is_standing=is_standing
        ),
    )


def open_tail_forgotten_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    recover = raft_state._recover
    patch.setattr(raft_state, "_recover", lambda kept: recover(replace(kept, head=kept.commit)))


def acknowledged_by_height(patch: pytest.MonkeyPatch) -> None:
    """Whatever block the other disk has there."""
    appended = Leading.appended

    def by_height(self: Leading, message: AppendAnswered) -> None:
        chain = self._state.chain
        height = max(chain.base.height, min(message.head.height, chain.head.height))
        appended(self, replace(message, head=chain.at(height)))

    patch.setattr(Leading, "appended", by_height)


def own_block_counted_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    height_of = Leading._height_of

    def any_height_of(self: Leading, disk: DiskId) -> int:
        state = self._state
        return state.chain.head.height if disk == state.me else height_of(self, disk)

    patch.setattr(Leading, "_height_of", any_height_of)


def read_answered_by_an_older_round(patch: pytest.MonkeyPatch) -> None:
    """As if who has once heard the leader always would."""

    def round_of(self: Leading, disk: DiskId) -> int:
        return self._feeding.round + 1

    patch.setattr(Leading, "_round_of", round_of)


def voters_changed_at_once(patch: pytest.MonkeyPatch) -> None:
    def change_voters(self: Leading, voters: tuple[DiskId, ...]) -> None:
        if all(map(self._is_caught_up, voters)):
            self._add(VOTERS, encode_configuration(Configuration(voters)))
            self._feeding.feed_all()

    patch.setattr(Leading, "change_voters", change_voters)


MUTATIONS: list[Mutation] = [
    promise_reported_before_it_is_on_disk,
    block_acknowledged_before_it_is_on_disk,
    vote_given_whatever_the_head,
    open_tail_forgotten_at_a_restart,
    own_block_counted_before_it_is_on_disk,
    read_answered_by_an_older_round,
    voters_changed_at_once,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "mutation", [pytest.param(mutation, id=mutation.__name__) for mutation in MUTATIONS]
)
def test_a_mutation_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)

    assert any(map(_goes_wrong, range(SEED_COUNT)))


@pytest.mark.parametrize("is_mutated", [False, True])
def test_a_bug_that_walks_seldom_meet_is_found(
    is_mutated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_mutated:
        acknowledged_by_height(monkeypatch)

    with pytest.raises(AssertionError) if is_mutated else nullcontext():
        _come_back_with_a_dead_branch()


def _come_back_with_a_dead_branch() -> None:
    """What it has at a height differs from the leader's, which only the leader has."""
    world = World()
    world.elect(0)
    world.settle()
    world.cut |= {(0, 1), (0, 2)}
    world.propose(0, b"of the dead branch")
    world.settle_node(0)
    world.nodes[0].stop()
    world.now_ms += 2 * TIMING.election_ms
    world.nodes[1].step(Woken())
    while world[1].role != "leader":
        world.deliver()
        world.nodes[1].write()
        world.nodes[2].write()
    world.cut = {(1, 2)}
    world.settle()
    world.nodes[0].start()
    world.now_ms = world[1].wake_at_ms
    world.nodes[1].step(Woken())
    world.deliver()
    world.nodes[0].write(9)  # then it refuses what it cannot put on its chain
    world.deliver()
    world.nodes[1].write(9)
    world.nodes[1].stop()
    world.mail.clear()
    world.elect(0)
    world.settle()
    assert world[0].commit.term == world[0].term


def _goes_wrong(seed: int) -> bool:
    walk = Walk(seed)
    try:
        walk.go_wrong(STEP_COUNT)
    except AssertionError:
        return True
    return False
