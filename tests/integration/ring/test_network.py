"""Packets between brokers are dropped under load, silently: both ways, one way, or of one port.

Every acknowledged event is there once, at its offset, in order. `RING_RUNS=10` repeats each test
with other seeds, `RING_CUT_S=30` cuts for longer. Needs root and iptables, else it is skipped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from tailrace.local.broker import PEER_LISTENERS
from tests.support.ring.network import Network, own_network, peer_host
from tests.support.ring.replicated_ring import REQUESTS_MAX, ReplicatedRing, replicated_ring
from tests.support.ring.seeds import RUNS, seed_of
from tests.support.variables import whole_number

CUT_S = whole_number("RING_CUT_S", 5, least=1, meaning="for how long, as in RING_CUT_S=30")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120 + 2 * CUT_S),
    pytest.mark.parametrize("run", range(RUNS)),
]


@contextmanager
def cut_ring(root: Path, run: int) -> Iterator[tuple[ReplicatedRing, Network]]:
    """A ring whose brokers reach each other by a network that the test cuts."""
    with (
        own_network(),
        replicated_ring(root, seed_of(run), peer_host_of=peer_host) as subject,
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


@pytest.mark.parametrize("listener", PEER_LISTENERS, ids=["metadata", "replication"])
def test_a_cut_of_one_port_loses_nothing(tmp_path: Path, run: int, listener: int) -> None:
    """The ring's metadata passes and replication does not, or the other way round.

    Without replication a leader is alive to all others, so its range takes no events meanwhile.
    """
    with cut_ring(tmp_path, run) as (subject, network):
        cut_off = subject.leader_of_some_range()
        for other in {0, 1, 2} - {cut_off}:
            network.cut(cut_off, other, [listener])
            if subject.random.random() < 0.7:  # else in one direction
                network.cut(other, cut_off, [listener])
        Event().wait(CUT_S)
