"""Disks of brokers run full or freeze under load, each a file system of its own.

Every acknowledged event is there once, at its offset, in order. `RING_RUNS=10` repeats each test
with other seeds. Needs root, else it is skipped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from tests.support.ring.local_ring import TEST_S_MAX, WHOLE_S_MAX
from tests.support.ring.replicated_ring import (
    REQUESTS_MAX,
    ReplicatedRing,
    replicated_ring,
)
from tests.support.ring.seeds import RUNS, seed_of
from tests.support.storage.mounted import MEBIBYTE, fill_up, frozen, mounted_disks
from tests.support.variables import whole_number

DISK_BYTES = 256 * MEBIBYTE
# From 10 s on a broker whose disk is frozen is fenced, and others lead its ranges.
STALL_S = whole_number("RING_STALL_S", 11, least=1, meaning="for how long, as in RING_STALL_S=3")
FULL_S = 3  # after the first is full

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(TEST_S_MAX),
    pytest.mark.parametrize("run", range(RUNS)),
]


@contextmanager
def ring_on_disks(root: Path, run: int) -> Iterator[ReplicatedRing]:
    """A ring whose brokers have a file system each."""
    with mounted_disks(root, 3, DISK_BYTES), replicated_ring(root, seed_of(run)) as subject:
        yield subject


def is_full(subject: ReplicatedRing, ordinal: int) -> bool:
    """Whether the broker has noticed: it asks to lead nothing that others can lead."""
    return '"full": true' in (subject.ring.root / f"{ordinal}.log").read_text()


def test_a_full_disk_of_a_leader_loses_nothing(tmp_path: Path, run: int) -> None:
    """Others lead, and go on."""
    with ring_on_disks(tmp_path, run) as subject:
        leader = subject.leader_of_some_range()
        ballast = subject.ring.brokers[leader].data_dir / "ballast"
        fill_up(ballast)
        subject.ring.until(lambda: is_full(subject, leader), WHOLE_S_MAX)
        subject.ring.until(lambda: not is_led_by(subject, leader), WHOLE_S_MAX)
        subject.wait_for_requests(REQUESTS_MAX)
        ballast.unlink()
        subject.wait_for_requests(REQUESTS_MAX)


def test_full_disks_of_all_lose_nothing(tmp_path: Path, run: int) -> None:
    """Producers wait until there is room again."""
    with ring_on_disks(tmp_path, run) as subject:
        ballasts = [broker.data_dir / "ballast" for broker in subject.ring.brokers]
        for ballast in ballasts:
            fill_up(ballast)
        subject.ring.until(lambda: any(is_full(subject, each) for each in range(3)), WHOLE_S_MAX)
        Event().wait(FULL_S)
        for ballast in subject.random.sample(ballasts, 3):
            ballast.unlink()
        subject.wait_for_requests(REQUESTS_MAX)


def test_a_frozen_disk_loses_nothing(tmp_path: Path, run: int) -> None:
    with ring_on_disks(tmp_path, run) as subject:
        leader = subject.leader_of_some_range()
        with frozen(subject.ring.brokers[leader].data_dir):
            Event().wait(STALL_S)
            subject.wait_for_requests(REQUESTS_MAX)
            assert not is_led_by(subject, leader)
        subject.wait_for_requests(REQUESTS_MAX)


def is_led_by(subject: ReplicatedRing, ordinal: int) -> bool:
    """Whether the broker leads a range, as the others know."""
    (other, *_) = [each for each in range(3) if each != ordinal]
    return any(each["leader"] == ordinal for each in subject.ring.ring(other)["ranges"])
