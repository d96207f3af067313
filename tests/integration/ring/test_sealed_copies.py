"""Sealed ranges are copied to whoever is to hold them, and dropped only when others do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing
from tests.support.ring.ring_steps import (
    TOPIC,
    assert_copies_are_equal,
    produce_many,
    read_all,
    retire,
    sealed_ranges,
    step_to,
    wait_copied,
)
from tests.support.ring.stored_replicas import bad_findings
from tests.support.storage.damaged import flip, stored_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BROKERS = 4
EVENTS = 2_000
# The least that is allowed: segments roll during a test.
SEGMENT_BYTES = 1 << 20


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[LocalRing]:
    """Processes, none of which runs yet."""
    made = LocalRing(
        tmp_path,
        count=BROKERS,
        segment_bytes=SEGMENT_BYTES,
        journal_bytes=8 << 20,
        log_level="info",
    )
    try:
        yield made
    finally:
        made.end_all()


def begin(ring: LocalRing, founders: int, *, durability: str = "fsync") -> None:
    ring.start_all()
    ring.found(founders)
    ring.wait_ready()
    wanted = {"name": TOPIC, "partitionsPerRange": 2, "durability": durability}
    ring.call(0, "POST", "/v1/topics", wanted)


@pytest.mark.parametrize("durability", ["fsync", "written"])
def test_a_broker_leaves_when_others_have_all_that_it_holds(
    ring: LocalRing, durability: str
) -> None:
    begin(ring, BROKERS, durability=durability)
    values = produce_many(ring, EVENTS)
    step_to(ring, BROKERS - 1)
    values += produce_many(ring, 100, first=EVENTS)
    retire(ring, BROKERS - 1)

    ring.until(lambda: not ring.brokers[-1].is_running(), WHOLE_S_MAX)
    assert "retired" in (ring.root / "3.log").read_text()
    wait_copied(ring)
    assert sorted(read_all(ring)) == sorted(values)
    for broker in ring.brokers[:-1]:
        assert bad_findings(broker.data_dir) == []
    disks = {each: ring.brokers[each].data_dir for each in range(BROKERS - 1)}
    assert_copies_are_equal(ring, disks)


def test_a_broker_that_has_left_comes_back_with_another_disk(ring: LocalRing) -> None:
    """Its supervisor starts it: it hears that it has left; started again it begins empty."""
    begin(ring, BROKERS)
    values = produce_many(ring, 100)
    step_to(ring, BROKERS - 1)
    retire(ring, BROKERS - 1)
    last = ring.brokers[-1]
    ring.until(lambda: not last.is_running(), WHOLE_S_MAX)

    last.start()
    ring.until(lambda: not last.is_running(), WHOLE_S_MAX)
    log = (ring.root / "3.log").read_text()
    assert "has left the ring with this disk; the next start sets its data aside" in log
    last.start()
    ring.wait_ready(BROKERS - 1)
    step_to(ring, BROKERS)

    assert (last.data_dir / "retired" / "meta.json").exists()
    assert sorted(read_all(ring)) == sorted(values)


def test_what_one_broker_had_is_on_three_when_the_ring_has_grown(ring: LocalRing) -> None:
    begin(ring, 1)
    values = produce_many(ring, EVENTS)
    step_to(ring, 3)
    wait_copied(ring)

    assert {len(each["complete"]) for each in sealed_ranges(ring)} == {3}
    ring.kill(0)
    ring.until(lambda: sorted(read_all(ring, at=1)) == sorted(values), WHOLE_S_MAX)


def test_a_copy_that_was_interrupted_goes_on(ring: LocalRing) -> None:
    """Both ends are killed again and again."""
    begin(ring, 1)
    values = produce_many(ring, 4 * EVENTS)
    step_to(ring, 2)
    for victim in (1, 0, 1):
        ring.kill(victim)
        ring.brokers[victim].start()
        ring.wait_ready(victim)
    wait_copied(ring)

    assert sorted(read_all(ring, at=1)) == sorted(values)
    assert_copies_are_equal(ring, {each: ring.brokers[each].data_dir for each in range(2)})


def test_a_new_disk_gets_the_sealed_ranges_too(ring: LocalRing) -> None:
    begin(ring, 3)
    values = produce_many(ring, EVENTS)
    step_to(ring, BROKERS)
    ring.kill(1)
    ring.wipe(1)
    ring.brokers[1].start()
    ring.wait_ready(1)
    wait_copied(ring)

    assert any(1 in each["complete"] for each in sealed_ranges(ring))
    assert sorted(read_all(ring, at=1)) == sorted(values)
    assert_copies_are_equal(ring, {each: ring.brokers[each].data_dir for each in range(BROKERS)})


def test_a_damaged_copy_is_fetched_again(ring: LocalRing) -> None:
    begin(ring, 3)
    values = produce_many(ring, EVENTS)
    step_to(ring, BROKERS)
    ring.brokers[1].stop()
    segment = next(
        path
        for path in sorted(ring.brokers[1].data_dir.glob("data/*/[01]/*.log"))
        if stored_batches(path)
    )
    position, _ = stored_batches(segment)[0]
    flip(segment, position + 200, 0)
    ring.brokers[1].start()
    ring.wait_ready(1)
    ring.until(lambda: sorted(read_all(ring, at=1)) == sorted(values), WHOLE_S_MAX)
    wait_copied(ring)

    log = ring.root / "1.log"
    ring.until(lambda: "partition.healed" in log.read_text(), WHOLE_S_MAX)
    assert_copies_are_equal(ring, {each: ring.brokers[each].data_dir for each in range(BROKERS)})
