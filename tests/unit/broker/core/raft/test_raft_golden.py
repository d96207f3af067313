"""Scenarios of consensus, line by line in tests/golden/agreement/; `--rewrite` writes them.

They are to be read: a change of a line is a change of what brokers say to each other, or keep.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace_broker.core.raft.events import Woken
from tests.support.raft.raft_trace import Trace
from tests.support.raft.raft_world import TIMING, MemoryDisk, World, disk_id

FOLDER = Path(__file__).parents[4] / "golden" / "agreement"
A, B, C = map(disk_id, range(3))
WIPED = disk_id(2, 2)


def election() -> str:
    world = World()
    trace = Trace(world)
    trace.say("Three empty disks that have been founded together. Broker 0 hears no leader.")
    world.elect(0)
    trace.say("Broker 0 is killed; the others are reported so by their connections.")
    world.nodes[0].stop()
    for ordinal in (1, 2):
        world.lose_connection(ordinal, 0)
    world.elect(1)
    trace.pause()
    world.nodes[0].start()
    world.cut.add((1, 0))
    while world[0].role != "candidate":
        world.mail.clear()
        world.wake()
        if world[0].role == "follower":
            world.settle()
    world.cut.clear()
    trace.resume()
    trace.say("It comes back, does not hear the leader, and would like to lead: nobody minds it.")
    world.settle()
    return trace.text


def dead_branch() -> str:
    world = World()
    world.elect(0)
    trace = Trace(world)
    trace.say(
        "Broker 0 leads in term 1. It keeps a command that it can send to nobody, and is killed."
    )
    world.cut |= {(0, 1), (0, 2)}
    world.propose(0, b"lost")
    world.settle()
    world.nodes[0].stop()
    world.cut.clear()
    trace.say("Broker 1 is elected, and another command goes where the first one was.")
    world.elect(1)
    world.propose(1, b"won")
    world.settle()
    trace.say("Broker 0 comes back with its branch, which ends where another block is committed.")
    world.nodes[0].start()
    world.now_ms = world[1].wake_at_ms
    world.nodes[1].step(Woken())
    world.settle()
    return trace.text


def joint_change() -> str:
    world = World(1)
    world.elect()
    world.add(MemoryDisk(B))
    trace = Trace(world)
    trace.say("Broker 0 votes alone. Broker 1 is empty and asks to be fed.")
    world.follow(world.nodes[1])
    world.settle()
    trace.say("It is caught up: both are to vote. Until that is committed both majorities count.")
    world.change_voters(0, A, B)
    world.settle()
    trace.say("Broker 0 is to vote no more: it leads until that is committed.")
    world.change_voters(0, B)
    world.settle()
    return trace.text


def wiped_voter() -> str:
    world = World()
    world.elect(0)
    trace = Trace(world)
    trace.say("Broker 2 has lost its disk: what speaks for it now is no voter, and knows nothing.")
    world.add(MemoryDisk(WIPED))
    world.now_ms += TIMING.heartbeat_ms
    world.nodes[0].step(Woken())
    world.settle()
    trace.say("It is caught up, and takes the place of the disk that it had.")
    world.change_voters(0, A, B, WIPED)
    world.settle()
    return trace.text


SCENARIOS: dict[str, Callable[[], str]] = {
    "election.txt": election,
    "dead_branch.txt": dead_branch,
    "joint_change.txt": joint_change,
    "wiped_voter.txt": wiped_voter,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenario_is_still_the_same(name: str, pytestconfig: pytest.Config) -> None:
    reported = SCENARIOS[name]()
    if pytestconfig.getoption("rewrite"):
        (FOLDER / name).write_text(reported)

    assert (FOLDER / name).read_text() == reported


def test_every_scenario_of_the_folder_is_tested() -> None:
    assert {path.name for path in FOLDER.iterdir()} >= SCENARIOS.keys()
