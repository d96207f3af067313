"""Ports for tests: what one has chosen no other gets, in this process or beside it."""

import socket

from tailrace.local.broker import HOST, PEER_DOOR
from tests.support.broker import fixtures
from tests.support.broker.fixtures import free_port_base, free_ring_port


def test_ports_that_were_chosen_are_not_chosen_again() -> None:
    ring = free_ring_port(3)

    for base in (free_port_base(), ring, ring + 10, ring + 20):
        assert not fixtures._is_mine(base)


def test_ports_that_somebody_listens_on_are_not_chosen() -> None:
    base = free_port_base()
    fixtures._claims.pop().close()

    with socket.create_server((HOST, base + PEER_DOOR)):
        assert not fixtures._is_mine(base)
    assert fixtures._is_mine(base)
