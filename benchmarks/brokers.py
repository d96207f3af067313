"""What a question loads: one broker, or a ring of three that keeps three copies.

Each request goes to the leader of its partition, or to any broker, the next one each time. CPU and
memory are those of all brokers together.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

from benchmarks.broker import (
    DATA_DIR,
    PORT,
    PRODUCE_LISTENER,
    TOPIC,
    broker_on_disk,
    create_topic,
    rss_max_mib,
    rss_mib,
    write_count,
)
from benchmarks.load import Load, LoadResult, Target, run_in_own_process
from tailrace.local.broker import LocalBroker
from tailrace_broker.core.ring.arithmetic import TOKEN_MIN, UNITS, find_slice, slice_bounds, token
from tests.support.ring.local_ring import LocalRing, founded_ring

LED_S_MAX = 30.0
FACTOR = 3  # of the ring, as it is founded


class Addressed(NamedTuple):
    """A request, and the partition that it is for."""

    partition: int
    request: bytes


@dataclass(slots=True)
class Brokers:
    """Ready brokers with nothing stored yet; of three, each leads a third of the topic."""

    members: Sequence[LocalBroker]
    ring: LocalRing | None = None
    partitions_per_range: int = 0  # of the topic

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""
        return [member.pid for member in self.members if member.is_running()]

    @property
    def name_prefix(self) -> str:
        """With which the rows' names begin."""
        return "ring_" if self.ring else ""

    @property
    def described(self) -> str:
        """What ends the rows' sentences."""
        return f", {len(self.members)} brokers" if self.ring else ""

    def create_topic(self, partitions_per_range: int = 4, **settings: str | int) -> None:
        """Create it, and wait until its ranges are led by their natural leaders, with full ISRs."""
        self.partitions_per_range = partitions_per_range
        create_topic(self.members[0], TOPIC, partitionsPerRange=partitions_per_range, **settings)
        if self.ring is not None:
            self.ring.until(self.is_balanced, LED_S_MAX)

    def by_key(self, requests: Iterable[tuple[str, bytes]]) -> list[Addressed]:
        """Return requests, given with their keys, with their partitions."""
        count = self.partitions_per_range * len(self.members)
        starts = [start for start, _ in slice_bounds(TOKEN_MIN, UNITS, count)]
        return [
            Addressed(find_slice(starts, token(key.encode())), request) for key, request in requests
        ]

    def leader_of(self, partition: int) -> LocalBroker:
        """Return the natural leader: ranges are numbered as brokers are."""
        return self.members[partition // self.partitions_per_range]

    def load(
        self,
        requests: Sequence[Addressed],
        request_count: int,
        connection_count: int,
        requests_per_s: float | None = None,
        *,
        at_any: bool = False,
    ) -> Load:
        """A load on the produce listeners of all leaders; or of all brokers, whoever leads."""
        by_port: dict[int, list[bytes]] = {}
        for (partition, request), member in zip(requests, cycle(self.members)):
            broker = member if at_any else self.leader_of(partition)
            by_port.setdefault(broker.port + PRODUCE_LISTENER, []).append(request)
        targets = [Target(port, of_port) for port, of_port in sorted(by_port.items())]
        return Load(targets, request_count, connection_count, self.pids, requests_per_s)

    def produce(
        self,
        requests: Sequence[Addressed],
        request_count: int,
        connection_count: int,
        *,
        at_any: bool = False,
    ) -> LoadResult:
        """Send requests in turn, one outstanding a connection, from a process of its own."""
        load = self.load(requests, request_count, connection_count, at_any=at_any)
        assert len(load.targets) == len(self.members), "a broker leads none of the partitions"
        return run_in_own_process(load)

    def write_count(self) -> float:
        """Of all disks."""
        return sum(map(write_count, self.members))

    def rss_mib(self) -> float:
        """Resident memory now."""
        return sum(map(rss_mib, self.members))

    def rss_max_mib(self) -> float:
        """The sum of the most that was resident of each."""
        return sum(map(rss_max_mib, self.members))

    def is_balanced(self) -> bool:
        """Whether each broker of the ring serves the topic, leads its range and is in sync."""
        assert self.ring is not None
        return self.is_whole() and all(
            self.ring.is_answered(ordinal, "GET", f"/v1/topics/{TOPIC}")
            and all(
                found["leader"] == found["replicas"][0]
                for found in self.ring.ring(ordinal)["ranges"]
            )
            for ordinal in range(len(self.members))
        )

    def is_whole(self) -> bool:
        """Whether broker 0 of the ring knows all replicas in sync."""
        assert self.ring is not None
        return all(
            len(found["isr"]) == min(FACTOR, len(self.members))
            and not any(member["ghost"] for member in found["isr"])
            for found in self.ring.ring(0)["ranges"]
        )


@contextmanager
def brokers_on_disk(count: int, **settings: Any) -> Iterator[Brokers]:
    """As many brokers, gone with their data when the block ends; OSError without direct I/O."""
    if count == 1:
        with broker_on_disk() as broker:
            yield Brokers([broker])
        return
    shutil.rmtree(DATA_DIR, ignore_errors=True)
    DATA_DIR.mkdir()
    try:
        with founded_ring(DATA_DIR, port=PORT, count=count, **settings) as ring:
            if not all(member.metrics()["tailrace_direct_io"] for member in ring.brokers):
                raise OSError(f"{DATA_DIR.absolute()} has no direct I/O: run this on a disk")
            yield Brokers(ring.brokers, ring)
    finally:
        shutil.rmtree(DATA_DIR, ignore_errors=True)
