"""What goes wrong with a ring under load, from the kill of a broker to a frozen disk.

A fault has its grounds, where the ring must run for it (root may be needed, else it is skipped),
and a stroke, after which all brokers serve again.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from tailrace.local.broker import PEER_LISTENERS
from tests.support.ring.local_ring import LocalRing
from tests.support.ring.network import Network, own_network, peer_host
from tests.support.storage.mounted import MEBIBYTE, fill_up, frozen, mounted_disks

# Longer than it takes to be suspected.
PAUSE_S = 3.0
CUT_S = 3.0
# From 10 s on a broker whose disk is frozen is fenced, and others lead its ranges.
FROZEN_S = 11.0
FULL_S = 3.0
DISK_BYTES = 256 * MEBIBYTE

Grounds = Callable[[Path], AbstractContextManager[dict[str, Any]]]
Stroke = Callable[[LocalRing, random.Random], None]


class Fault(NamedTuple):
    """`grounds` gives the ring's settings, below a directory; `strokes`: how many in a test."""

    grounds: Grounds
    strike: Stroke
    strokes: int = 4


# --- grounds ---


@contextmanager
def anywhere(_: Path) -> Iterator[dict[str, Any]]:
    yield {}


@contextmanager
def on_own_network(_: Path) -> Iterator[dict[str, Any]]:
    with own_network():
        yield {"peer_host_of": peer_host}


@contextmanager
def on_own_disks(root: Path) -> Iterator[dict[str, Any]]:
    """A file system for each broker."""
    with mounted_disks(root, 3, DISK_BYTES):
        yield {}


# --- strokes ---


def kill(ring: LocalRing, choices: random.Random) -> None:
    ordinal = choices.randrange(3)
    ring.kill(ordinal)
    _start(ring, ordinal)


def kill_all(ring: LocalRing, _: random.Random) -> None:
    ring.end_all()
    _start(ring, 0, 1, 2)


def stop(ring: LocalRing, choices: random.Random) -> None:
    """SIGTERM: others lead first."""
    ordinal = choices.randrange(3)
    ring.brokers[ordinal].stop()
    _start(ring, ordinal)


def pause(ring: LocalRing, choices: random.Random) -> None:
    ordinal = choices.randrange(3)
    ring.pause(ordinal)
    Event().wait(PAUSE_S)
    ring.resume(ordinal)
    ring.wait_ready(ordinal)


def wipe(ring: LocalRing, choices: random.Random) -> None:
    """Until its copies are there again: a second disk is not lost meanwhile."""
    ordinal = choices.randrange(3)
    ring.kill(ordinal)
    ring.wipe(ordinal)
    _start(ring, ordinal)
    ring.wait_whole()


def cut_off(ring: LocalRing, choices: random.Random) -> None:
    """From both others, both ways; clients still reach it."""
    network, alone = Network(ring.brokers[0].port), choices.randrange(3)
    for other in {0, 1, 2} - {alone}:
        network.cut(alone, other)
        network.cut(other, alone)
    _heal_later(ring, network)


def cut_one_way(ring: LocalRing, choices: random.Random) -> None:
    """On one port or both a broker is not heard by another."""
    network, (source, target) = Network(ring.brokers[0].port), choices.sample(range(3), 2)
    network.cut(
        source, target, choices.choice([PEER_LISTENERS, *([each] for each in PEER_LISTENERS)])
    )
    _heal_later(ring, network)


def fill(ring: LocalRing, choices: random.Random) -> None:
    """A disk. A leader notices at once, a follower when it needs another file."""
    ordinal = choices.randrange(3)
    ballast = ring.brokers[ordinal].data_dir / "ballast"
    fill_up(ballast)
    Event().wait(FULL_S)
    ballast.unlink()
    ring.wait_ready(ordinal)


def freeze(ring: LocalRing, choices: random.Random) -> None:
    with frozen(ring.brokers[choices.randrange(3)].data_dir):
        Event().wait(FROZEN_S)
    ring.wait_whole()


FAULTS = {
    "killed": Fault(anywhere, kill),
    "killed-all-at-once": Fault(anywhere, kill_all, 2),
    "stopped": Fault(anywhere, stop),
    "paused": Fault(anywhere, pause),
    "wiped": Fault(anywhere, wipe, 3),
    "cut-off": Fault(on_own_network, cut_off, 3),
    "cut-one-way": Fault(on_own_network, cut_one_way, 3),
    "disk-full": Fault(on_own_disks, fill, 3),
    "disk-frozen": Fault(on_own_disks, freeze, 1),
}


def _start(ring: LocalRing, *ordinals: int) -> None:
    for ordinal in ordinals:
        ring.brokers[ordinal].start()
    ring.wait_ready(*ordinals)


def _heal_later(ring: LocalRing, network: Network) -> None:
    Event().wait(CUT_S)
    network.heal()
    ring.wait_whole()
