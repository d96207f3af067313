"""Replicas under many seeds: every promise is kept, and every rule was needed."""

import multiprocessing
import os
from collections import Counter

import pytest

from tests.simulation.replication.walk import Outcome, run

# So many at least: fewer do not need every rule.
SEEDS_MIN = 30
SEEDS = max(SEEDS_MIN, int(os.environ.get("SEEDS", "200" if os.environ.get("CI") else "0")))
FIRST = int(os.environ.get("FIRST", "0"))
# Of a seed, on a slow and busy machine.
SECONDS_MAX = 6
RULES = (
    "follower.cut",
    "follower.gap",
    "follower.ignored_session",
    "follower.known_batch",
    "follower.link_lost",
    "follower.log_start",
    "follower.refused_epoch",
    "follower.waits_for_own_writes",
    "follower.write_failed",
    "leader.admitted",
    "leader.catch_up",
    "leader.counts_candidate",
    "leader.cut_follower",
    "leader.gave_up",
    "leader.proposed_join",
    "leader.proposed_shrink",
    "leader.refused_sender",
    "leader.reset_follower",
    "leader.stood_still",
    "leader.suspects",
    "leader.waits_for_member",
)


@pytest.mark.timeout(300 + SECONDS_MAX * SEEDS)
def test_every_promise_is_kept_and_every_rule_needed() -> None:
    with multiprocessing.get_context("fork").Pool() as pool:
        outcomes: list[Outcome] = pool.map(run, range(FIRST, FIRST + SEEDS), chunksize=1)
    rules: Counter[str] = sum((each.rules for each in outcomes), Counter())

    assert [(each.seed, each.failure) for each in outcomes if each.failure] == []
    assert [each for each in RULES if not rules[each]] == []


@pytest.mark.timeout(300)
def test_a_seed_walks_the_same_way_again() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run(3, trace)

    assert len(traces[0]) > 1000
    assert traces[0] == traces[1]
