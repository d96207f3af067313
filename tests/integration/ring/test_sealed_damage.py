"""Damage to a copy of a sealed range that a running broker finds is reported, and healed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tailrace.errors import TailraceError
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing
from tests.support.ring.ring_steps import (
    TOPIC,
    assert_copies_are_equal,
    produce_many,
    read_all,
    sealed_ranges,
    step_to,
    wait_copied,
)
from tests.support.storage.damaged import flip, stored_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BROKERS = 3
EVENTS = 8_000
SEGMENT_BYTES = 1 << 20


@pytest.fixture
def ring(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalRing]:
    """Processes, none of which runs yet; `param`: the copies of a range."""
    made = LocalRing(
        tmp_path,
        count=BROKERS,
        segment_bytes=SEGMENT_BYTES,
        journal_bytes=8 << 20,
        cache_bytes=1 << 20,
        log_level="info",
        copies=getattr(request, "param", 3),
    )
    try:
        yield made
    finally:
        made.end_all()


def begin(ring: LocalRing, founders: int) -> list[str]:
    """Have sealed ranges of several segments, of which the disks alone have all; the values."""
    ring.start_all()
    ring.found(founders)
    ring.wait_ready()
    ring.call(0, "POST", "/v1/topics", {"name": TOPIC, "partitionsPerRange": 1})
    values = produce_many(ring, EVENTS)
    step_to(ring, founders + 1)
    return values


def first_segments(ring: LocalRing, ordinal: int) -> list[Path]:
    """Return the first segments of sealed partitions that have several."""
    sealed = {each["id"] for each in sealed_ranges(ring)}
    topic = ring.call(0, "GET", f"/v1/topics/{TOPIC}")
    numbers = [each["partition"] for each in topic["partitionDetails"] if each["range"] in sealed]
    data_dir = ring.brokers[ordinal].data_dir
    found = [sorted(data_dir.glob(f"data/*-*/{number}/*.log")) for number in numbers]
    return [each[0] for each in found if len(each) > 1]


def flip_a_byte(segment: Path, batch: int = 1) -> None:
    """In the payload of a batch."""
    position, _ = stored_batches(segment)[batch]
    flip(segment, position + 200, 0)


@pytest.mark.parametrize("damage", [flip_a_byte, Path.unlink])
def test_damage_that_a_reader_of_a_sealed_copy_finds_heals(
    ring: LocalRing, damage: Callable[[Path], None]
) -> None:
    values = begin(ring, 2)
    ring.brokers[1].stop()  # and forget what it has in memory
    ring.brokers[1].start()
    ring.wait_ready(1)
    damage(first_segments(ring, 1)[0])

    def is_healed() -> bool:
        with suppress(TailraceError):
            read_all(ring, at=1)
        return "partition.healed" in (ring.root / "1.log").read_text()

    ring.until(is_healed, WHOLE_S_MAX)
    wait_copied(ring)
    assert sorted(read_all(ring, at=1)) == sorted(values)
    assert_copies_are_equal(ring, {each: ring.brokers[each].data_dir for each in range(BROKERS)})


@pytest.mark.parametrize("ring", [2], indirect=True)
def test_two_copies_that_are_damaged_at_different_places_heal_each_other(ring: LocalRing) -> None:
    values = begin(ring, 2)
    for ordinal in (0, 1):
        ring.brokers[ordinal].stop()
        ring.brokers[ordinal].start()
        ring.wait_ready(ordinal)
    number = first_segments(ring, 0)[0].parent.name
    for ordinal, batch in ((0, 1), (1, 3)):
        found = first_segments(ring, ordinal)
        flip_a_byte(next(each for each in found if each.parent.name == number), batch)

    def is_healed() -> bool:
        for at in (0, 1):
            with suppress(TailraceError):
                read_all(ring, at=at)
        logs = [(ring.root / f"{each}.log").read_text() for each in (0, 1)]
        return all("partition.healed" in each for each in logs)

    ring.until(is_healed, WHOLE_S_MAX)
    wait_copied(ring)
    assert sorted(read_all(ring)) == sorted(values)
    assert_copies_are_equal(ring, {each: ring.brokers[each].data_dir for each in range(BROKERS)})
