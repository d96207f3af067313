"""Brokers lose power under load, one or all: what was not synced is gone from their disks.

Every acknowledged event is there once, at its offset, in order. `RING_RUNS=10` repeats each test
with other seeds. Needs root, else it is skipped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ring.replicated_ring import REQUESTS_MAX, ReplicatedRing, replicated_ring
from tests.support.ring.seeds import RUNS, seed_of
from tests.support.storage.mounted import MEBIBYTE, mounted_disks
from tests.support.storage.power import Power, own_power

DISK_BYTES = 256 * MEBIBYTE
LOSSES = 2

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("run", range(RUNS)),
]


@contextmanager
def ring_on_disks(
    root: Path, run: int, durability: str | None = None
) -> Iterator[tuple[ReplicatedRing, Power]]:
    """A ring whose brokers have a file system each."""
    with (
        own_power(root) as power,
        mounted_disks(root, 3, DISK_BYTES),
        replicated_ring(root, seed_of(run), durability=durability) as subject,
    ):
        yield subject, power


def test_a_broker_that_loses_power_loses_nothing(tmp_path: Path, run: int) -> None:
    """What its disk forgets two others have."""
    with ring_on_disks(tmp_path, run) as (subject, power):
        for _ in range(LOSSES):
            subject.wait_for_requests(REQUESTS_MAX)
            ordinal = subject.leader_of_some_range()
            power.lose(subject.ring, [ordinal])
            subject.wait_for_requests(REQUESTS_MAX)
            subject.ring.brokers[ordinal].start()
            subject.ring.wait_whole()
            assert losses(subject)[ordinal] == "power"


def test_all_brokers_that_lose_power_lose_nothing_that_was_synced(tmp_path: Path, run: int) -> None:
    with ring_on_disks(tmp_path, run, durability="fsync") as (subject, power):
        for _ in range(LOSSES):
            subject.wait_for_requests(REQUESTS_MAX)
            power.lose(subject.ring, range(3))
            for ordinal in subject.random.sample(range(3), 3):
                subject.ring.brokers[ordinal].start()
            subject.ring.wait_whole()
            assert losses(subject) == ["power"] * 3


def losses(subject: ReplicatedRing) -> list[str]:
    """By broker, what its disk may have lost before its last start, as the ring knows."""
    return [each["loss"] for each in subject.ring.ring(0)["registrations"]]
