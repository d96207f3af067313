"""Fixtures that tests of the consensus machine share."""

import pytest

from tests.support.raft.raft_world import World


@pytest.fixture
def world() -> World:
    """Led by A in term 1; all have its first block."""
    world = World()
    world.elect(0)
    world.settle()
    return world
