"""Damage to what one of three brokers has stored heals without a command, under load.

It is found at a start, or while the broker runs and leads. What was acknowledged is there once, at
its offset; in the end all replicas are the same. `RING_RUNS=10` repeats each test.
"""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tailrace.errors import TailraceError
from tailrace.sync import Client
from tailrace.wire import DAMAGED_SUFFIX, BatchHeader
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tests.support.ring.local_ring import WHOLE_S_MAX
from tests.support.ring.replicated_ring import (
    REQUESTS_MAX,
    TOPIC,
    ReplicatedRing,
    replicated_ring,
)
from tests.support.ring.seeds import RUNS, seed_of
from tests.support.storage.damaged import flip, stored_batches

CACHE_BYTES = 1 << 20  # the least: what is read is most likely read from the disk

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(420),
    pytest.mark.parametrize("run", range(RUNS)),
]


def segments_of(data_dir: Path) -> dict[Path, list[Path]]:
    """Return the segments with batches, in order, of each partition that has several."""
    found: dict[Path, list[Path]] = {}
    for segment in sorted(data_dir.glob("data/*-*/*/*.log")):
        if stored_batches(segment):
            found.setdefault(segment.parent, []).append(segment)
    return {partition: segments for partition, segments in found.items() if len(segments) > 1}


def committed_batches(segment: Path) -> list[tuple[int, BatchHeader]]:
    """Return those that a later write in the segment says are committed: a start misses them."""
    batches = stored_batches(segment)
    writes = [header for position, header in batches if position % BLOCK_BYTES == 0]
    committed = max((header.high_watermark for header in writes), default=0)
    return [each for each in batches if each[1].end_offset <= committed]


def damageable(data_dir: Path) -> list[Path]:
    """Return the last segments in which a start would miss something."""
    last = (each[-1] for each in segments_of(data_dir).values())
    return [*filter(committed_batches, last)]


def flip_a_byte(subject: ReplicatedRing, segment: Path) -> int:
    """Damage the payload of a batch that is known to be committed; return its first offset."""
    position, header = subject.random.choice(committed_batches(segment))
    byte = subject.random.randrange(header.batch_bytes - header.payload_bytes, header.batch_bytes)
    flip(segment, position + byte, subject.random.randrange(8))
    return header.base_offset


def damage_the_last_segment(subject: ReplicatedRing, data_dir: Path) -> None:
    """Flip a bit where a start reads."""
    flip_a_byte(subject, subject.random.choice(damageable(data_dir)))


def remove_the_last_segment(subject: ReplicatedRing, data_dir: Path) -> None:
    """Take away what the inventory says must be there."""
    subject.random.choice([*segments_of(data_dir).values()])[-1].unlink()


def remove_a_partition(subject: ReplicatedRing, data_dir: Path) -> None:
    """Take all files of a log away."""
    shutil.rmtree(subject.random.choice([*segments_of(data_dir)]))


def has_logged(subject: ReplicatedRing, ordinal: int, event: str) -> bool:
    """Whether the broker has logged this."""
    return event in (subject.ring.root / f"{ordinal}.log").read_text()


def is_all_fetched(subject: ReplicatedRing) -> bool:
    """Whether no broker keeps what it has set aside."""
    return not any(subject.ring.root.glob(f"*/data/*/*{DAMAGED_SUFFIX}"))


def test_damage_that_a_start_finds_heals(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        ordinal = subject.random.randrange(3)
        broker = subject.ring.brokers[ordinal]
        while not damageable(broker.data_dir):
            subject.wait_for_requests(REQUESTS_MAX)
        subject.ring.kill(ordinal)
        damage = subject.random.choice(
            [damage_the_last_segment, remove_the_last_segment, remove_a_partition]
        )
        print(damage.__name__)
        damage(subject, broker.data_dir)
        broker.start()
        if subject.random.random() < 0.5:  # it may die again before it has all
            subject.wait_for_requests(20)
            subject.ring.kill(ordinal)
            broker.start()
        subject.wait_for_requests(REQUESTS_MAX)
        subject.ring.wait_whole()
        # Of what is damaged in the last segment the journal may still have all.
        is_in_journal = has_logged(subject, ordinal, "log.cut")
        assert is_in_journal or has_logged(subject, ordinal, "partition.replaced")
        subject.ring.until(lambda: is_all_fetched(subject), WHOLE_S_MAX)


def test_damage_that_a_leader_finds_moves_its_range_and_heals(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run), cache_bytes=CACHE_BYTES) as subject:
        ordinal = subject.leader_of_some_range()
        broker = subject.ring.brokers[ordinal]

        def finished() -> list[Path]:
            """The first segments of partitions that it leads."""
            mine = {each["id"] for each in subject.ring.ranges() if each["leader"] == ordinal}
            details = subject.ring.call(ordinal, "GET", f"/v1/topics/{TOPIC}")["partitionDetails"]
            led = {str(each["partition"]) for each in details if each["range"] in mine}
            found = segments_of(broker.data_dir)
            firsts = [each[0] for partition, each in found.items() if partition.name in led]
            return [*filter(committed_batches, firsts)]

        while not finished():
            subject.wait_for_requests(REQUESTS_MAX)
        segment = subject.random.choice(finished())
        offset = flip_a_byte(subject, segment)

        def is_found() -> bool:
            with suppress(TailraceError), Client(broker.url) as client:
                client.read_lines(TOPIC, int(segment.parent.name), offset, max_records=1)
            return has_logged(subject, ordinal, "partition.replaced")

        subject.ring.until(is_found, WHOLE_S_MAX)
        subject.wait_for_requests(REQUESTS_MAX)
        subject.ring.wait_whole()
        subject.ring.until(lambda: is_all_fetched(subject), WHOLE_S_MAX)
