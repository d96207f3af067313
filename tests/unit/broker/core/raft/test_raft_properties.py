"""Consensus machines through random losses, crashes and changes of voters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.raft.raft_walk import Walk


@given(st.integers(0, 2**32), st.integers(50, 1500))
def test_all_agree_on_one_chain_and_go_on_when_all_is_well(seed: int, steps: int) -> None:
    walk = Walk(seed)

    walk.go_wrong(steps)
    walk.heal()

    assert walk.world.rules["leader.elected"] > 0


@pytest.mark.timeout(20)
def test_the_walks_reach_the_rules() -> None:
    walks = [Walk(seed) for seed in range(60)]
    for walk in walks:
        walk.go_wrong(1000)
        walk.heal()

    rules = sum((walk.world.rules for walk in walks[1:]), walks[0].world.rules)
    assert {
        "append.refused",
        "branch.collected",
        "commit.own_term_only",
        "compaction.done",
        "head.switched",
        "joint.done",
        "learner.found",
        "prevote.refused",
        "promise.dropped",
        "quorum.lost",
        "snapshot.installed",
        "stale.refused",
        "vote.refused",
    } <= rules.keys()
