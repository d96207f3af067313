"""A ring with three copies of each range, under load: health, what it holds, and the comparison."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.broker.history import History, Read, violations
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.ring_producers import (
    Producing,
    RingProducer,
    producing,
)
from tests.support.ring.ring_readers import RingReader, reading
from tests.support.ring.ring_steps import read_back
from tests.support.ring.stored_replicas import assert_replicas_are_prefixes, bad_findings

TOPIC = "replicated"
READERS = 2
REQUESTS_MAX = 150  # between two faults
# The least that is allowed: segments roll during a test, and the journal's files are used again.
SEGMENT_BYTES = 1 << 20
JOURNAL_BYTES = 8 << 20
LARGE_COUNT = 800  # events, which go straight to the segment


class ReplicatedRing:
    """A ring of three with a topic, the producers that write to it, and seeded choices."""

    def __init__(self, ring: LocalRing, seed: int) -> None:
        self.ring = ring
        self.random = random.Random(seed)
        self.running: Producing | None = None
        ports = [broker.port for broker in ring.brokers]

        def producer(
            name: str,
            sizes: Sequence[int] = (1,),
            answer_s_max: float = 1.5,
            *,
            wanders: bool = False,
        ) -> RingProducer:
            return RingProducer(name, TOPIC, ports, seed, sizes, answer_s_max, wanders)

        self.producers = [
            *(producer(f"single-{number}") for number in range(5)),
            producer("patient", answer_s_max=15.0),  # until a paused broker goes on
            producer("wandering", wanders=True),
            producer("lines", [10], wanders=True),
            producer("many-lines", [*[40] * 19, LARGE_COUNT]),
        ]
        self._ports = ports

    def create_topic(self, durability: str | None = None) -> int:
        """Return how many partitions it has.

        `durability` None: either, since `written` loses nothing while a kernel goes on.
        """
        durability = durability or self.random.choice(["fsync", "written"])
        print(f"durability {durability}")
        wanted = {"name": TOPIC, "durability": durability, "flushMs": 50}
        created: dict[str, int] = self.ring.call(0, "POST", "/v1/topics", wanted)
        return created["partitions"]

    def readers(self, partition_count: int) -> list[RingReader]:
        """Return readers of the topic."""
        return [
            RingReader(TOPIC, partition_count, self._ports, str(self.random.random()))
            for _ in range(READERS)
        ]

    def wait_for_requests(self, most: int) -> None:
        """Wait until a random number of further requests is acknowledged."""
        assert self.running is not None
        self.running.progress.wait_for_more(self.random.randint(1, most))

    def leader_of_some_range(self, *, but: int | None = None) -> int:
        """Return a broker that leads a range, if possible a different one than `but`."""
        found: list[int] = []

        def is_known() -> bool:
            found[:] = sorted({each["leader"] for each in self.ring.ranges() if self.is_led(each)})
            return bool(found)

        self.ring.until(is_known, WHOLE_S_MAX)
        return self.random.choice([each for each in found if each != but] or found)

    def is_led(self, range_: dict[str, Any]) -> bool:
        """Whether its leader runs, and is not paused."""
        leader: int | None = range_["leader"]
        if leader is None or leader in self.ring.paused:
            return False
        return self.ring.brokers[leader].is_running()

    def ends(self) -> dict[int, tuple[int, int, int]]:
        """Return log start, high watermark and log end by partition, as their leaders know them."""
        ends = {}
        for ordinal in range(len(self.ring.brokers)):
            topic = self.ring.call(ordinal, "GET", f"/v1/topics/{TOPIC}")
            for each in topic["partitionDetails"]:
                if each["leader"] == ordinal and each["logEnd"] is not None:
                    ends[each["partition"]] = (
                        each["logStart"],
                        each["highWatermark"],
                        each["logEnd"],
                    )
        return ends

    def wait_committed(self, partition_count: int) -> dict[int, tuple[int, int, int]]:
        """Wait until all that is in the logs is committed; then return where they are."""
        found: list[dict[int, tuple[int, int, int]]] = []

        def is_so() -> bool:
            found[:] = [self.ends()]
            is_all = len(found[0]) == partition_count
            return is_all and all(committed == end for _, committed, end in found[0].values())

        self.ring.until(is_so, WHOLE_S_MAX)
        return found[0]


@contextmanager
def replicated_ring(
    root: Path, seed: int, *, durability: str | None = None, **settings: Any
) -> Iterator[ReplicatedRing]:
    """Let producers write while the block lasts; then all is healed, read back and compared."""
    print(f"seed {seed}")
    with founded_ring(
        root,
        copies=3,
        segment_bytes=SEGMENT_BYTES,
        journal_bytes=JOURNAL_BYTES,
        **settings,
    ) as ring:
        subject = ReplicatedRing(ring, seed)
        partition_count = subject.create_topic(durability)
        readers = subject.readers(partition_count)
        with reading(readers), producing(subject.producers) as subject.running:
            subject.wait_for_requests(100)
            yield subject
            ring.wait_whole()
        ring.wait_whole()
        ends = subject.wait_committed(partition_count)
        read = read_back(ring, 0, TOPIC, readable(ends))
        ring.wait_whole()
        for broker in ring.brokers:
            broker.stop()
        check_history(subject.producers, read, ends)
        check_readers(readers, read)
        disks = {number: broker.data_dir for number, broker in enumerate(ring.brokers)}
        assert {number: bad_findings(path) for number, path in disks.items()} == {
            0: [],
            1: [],
            2: [],
        }
        assert_replicas_are_prefixes(disks, TOPIC)


def readable(ends: Mapping[int, tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """Return where what can be read begins and ends in each partition."""
    return {partition: ends_[:2] for partition, ends_ in ends.items()}


def check_readers(readers: Sequence[RingReader], read: list[Read]) -> None:
    """Assert that all that was read meanwhile is still where it was."""
    ids = {each.position: each.event_id for each in read}
    print(f"read meanwhile: {[len(reader.seen) for reader in readers]}")
    for reader in readers:
        assert reader.seen, "a reader has seen nothing"
        wrong = {
            position: (event_id, ids.get(position))
            for position, event_id in reader.seen.items()
            if ids.get(position) != event_id
        }
        assert wrong == {}


def check_history(
    producers: Sequence[RingProducer], read: list[Read], ends: dict[int, tuple[int, int, int]]
) -> None:
    """Assert that all that was sent is there once, where it was acknowledged to be."""
    assert {start for start, _, _ in ends.values()} == {0}
    history = History(
        sent_ids=set().union(*(each.sent_ids for each in producers)),
        acknowledged=[event for each in producers for event in each.acknowledged],
        read=read,
        high_watermarks={partition: end for partition, (_, end, _) in ends.items()},
    )
    retries = {each.name: each.retries for each in producers}
    print(
        f"{len(history.sent_ids)} sent, {len(history.acknowledged)} acknowledged, {len(read)} read,"
        f" {sum(each.duplicate_count for each in producers)} duplicates; retries: {retries}"
    )
    assert violations(history) == []
    assert len(history.sent_ids) == len(history.acknowledged) == len(read)
