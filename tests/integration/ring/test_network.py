"""Packets between brokers are dropped under load, silently: both ways, one way, or of one port.

Every acknowledged event is there once, at its offset, in order. `RING_RUNS=10` repeats each test
with other seeds, `RING_CUT_S=30` cuts for longer. Needs root and iptables, else it is skipped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from tailrace.local.broker import PEER_LISTENERS
from tests.support.ring.local_ring import TEST_S_MAX, WHOLE_S_MAX
from tests.support.ring.network import Network, own_network, peer_host
from tests.support.ring.replicated_ring import (
    REQUESTS_MAX,
    ReplicatedRing,
    replicated_ring,
)
from tests.support.ring.seeds import RUNS, seed_of
from tests.support.variables import whole_number

METADATA, REPLICATION = PEER_LISTENERS
# A leader is isolated by then, and all know whether the others are.
ISOLATED_S = 5
# Who finds out a little before the others may leave one range to them.
MOVES_MAX = 3
CUT_S = whole_number("RING_CUT_S", 5, least=1, meaning="for how long, as in RING_CUT_S=30")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(TEST_S_MAX),
    pytest.mark.parametrize("run", range(RUNS)),
]


@contextmanager
def cut_ring(root: Path, run: int, **settings: Any) -> Iterator[tuple[ReplicatedRing, Network]]:
    """A ring whose brokers reach each other by a network that the test cuts."""
    with (
        own_network(),
        replicated_ring(root, seed_of(run), peer_host_of=peer_host, **settings) as subject,
    ):
        network = Network(subject.ring.brokers[0].port)
        yield subject, network
        network.heal()
        subject.wait_for_requests(REQUESTS_MAX)


def test_a_broker_that_is_cut_off_loses_nothing(tmp_path: Path, run: int) -> None:
    """From both others, both ways; clients still reach it."""
    with cut_ring(tmp_path, run) as (subject, network):
        alone = subject.leader_of_some_range()
        for other in {0, 1, 2} - {alone}:
            network.cut(alone, other)
            network.cut(other, alone)
        subject.wait_for_requests(REQUESTS_MAX)
        Event().wait(CUT_S)


def test_a_cut_between_two_brokers_loses_nothing(tmp_path: Path, run: int) -> None:
    """Both ways; each still reaches the third."""
    with cut_ring(tmp_path, run) as (subject, network):
        one, other = subject.random.sample(range(3), 2)
        network.cut(one, other)
        network.cut(other, one)
        Event().wait(CUT_S)
        subject.wait_for_requests(REQUESTS_MAX)


def test_a_cut_in_one_direction_loses_nothing(tmp_path: Path, run: int) -> None:
    """A broker hears others and is not heard, or the other way round."""
    with cut_ring(tmp_path, run) as (subject, network):
        leader = subject.leader_of_some_range()
        is_heard = subject.random.random() < 0.5
        others = sorted({0, 1, 2} - {leader})
        for other in subject.random.choice([others, others[:1], others[1:]]):
            source, target = (other, leader) if is_heard else (leader, other)
            print(f"nothing passes from {source} to {target}")
            network.cut(source, target)
        Event().wait(CUT_S)
        subject.wait_for_requests(REQUESTS_MAX)


def test_a_cut_of_the_metadata_alone_loses_nothing(tmp_path: Path, run: int) -> None:
    """Replication passes. To the others the broker is silent, so they lead what it led."""
    with cut_ring(tmp_path, run) as (subject, network):
        cut_off = subject.leader_of_some_range()
        for other in {0, 1, 2} - {cut_off}:
            network.cut(cut_off, other, [METADATA])
            if subject.random.random() < 0.7:  # else in one direction
                network.cut(other, cut_off, [METADATA])
        Event().wait(CUT_S)


@pytest.mark.parametrize("direction", ["both", "out", "in", "dialled"])
def test_others_lead_when_replication_alone_does_not_reach_a_leader(
    tmp_path: Path, run: int, direction: str
) -> None:
    """The ring's metadata passes, so that nobody takes it for dead. `dialled`: by its followers.

    Events go on meanwhile; when the cut is over it leads again what is its own.
    """
    with cut_ring(tmp_path, run, failback_ms=1000) as (subject, network):
        alone = subject.leader_of_some_range()
        for other in {0, 1, 2} - {alone}:
            if direction in {"both", "out"}:
                network.cut(alone, other, [REPLICATION])
            if direction in {"both", "in"}:
                network.cut(other, alone, [REPLICATION])
            if direction == "dialled":
                network.cut_dialled(other, alone, [REPLICATION])
        began_s = monotonic()

        def others_lead() -> bool:
            leaders = leaders_of(subject)
            return bool(leaders) and alone not in leaders

        subject.ring.until(others_lead, WHOLE_S_MAX)
        print(f"others lead what broker {alone} led after {monotonic() - began_s:.1f} s")
        subject.wait_for_requests(REQUESTS_MAX)
        network.heal()
        subject.ring.until(lambda: leaders_of(subject) == [0, 1, 2], WHOLE_S_MAX)


def test_no_range_moves_when_replication_alone_is_cut_between_all(tmp_path: Path, run: int) -> None:
    """Nobody could do better. Nothing is acknowledged meanwhile, and nothing is lost."""
    with cut_ring(tmp_path, run) as (subject, network):
        subject.ring.until(lambda: leaders_of(subject) == [0, 1, 2], WHOLE_S_MAX)
        before = {each["id"]: each["epoch"] for each in subject.ring.ranges()}
        for one, other in permutations(range(3), 2):
            network.cut(one, other, [REPLICATION])
        Event().wait(max(CUT_S, ISOLATED_S))
        after: dict[int, int] = {each["id"]: each["epoch"] for each in subject.ring.ranges()}
        print(f"epochs {before}, then {after}")
        moves = sum(after.values()) - sum(before.values())
        assert moves <= MOVES_MAX


def leaders_of(subject: ReplicatedRing) -> list[int]:
    """Return who leads the ranges, as a majority knows; nothing when one has no leader."""
    leaders = [each["leader"] for each in subject.ring.ranges()]
    return [] if None in leaders else sorted(leaders)
