"""A ring that takes steps under load, and what its topic is then: partitions, lineage, records."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.support.broker.history import Acknowledged, History, Read, violations
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.ring_producers import (
    Producing,
    RingProducer,
    producing,
)
from tests.support.ring.ring_readers import reading
from tests.support.ring.ring_steps import read_back
from tests.support.ring.step_load import KeyedProducer, LineageReader, PlainProducer

TOPIC = "stepped"
STEP_S_MAX = 60.0  # with a participant down for a while
PARTITIONS_PER_RANGE = 2
LARGE_COUNT = 800  # events, which go straight to the segment
Rows = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Settled:
    """The topic when all is committed."""

    rows: Rows
    read: Sequence[Read]


class SteppedRing:
    """Brokers of which the first are founded as a ring; `running`: the load."""

    def __init__(self, ring: LocalRing, seed: int, size: int) -> None:
        self.ring = ring
        self.size = size
        self.random = random.Random(seed)
        self.running: Producing | None = None
        self.last_step: Mapping[str, Any] = {}
        ports = [broker.port for broker in ring.brokers[:size]]

        def named(name: str, sizes: Sequence[int] = (1,), *, wanders: bool = False) -> RingProducer:
            return RingProducer(name, TOPIC, ports, seed, sizes, wanders=wanders, copies_min=1)

        self.named = [
            *(named(f"single-{number}") for number in range(3)),
            named("wandering", wanders=True),
            named("lines", [10], wanders=True),
            named("many-lines", [*[40] * 9, LARGE_COUNT]),
        ]
        self.keyed = [KeyedProducer(f"keyed-{number}", TOPIC, ports, seed) for number in range(2)]
        self.plain = [PlainProducer(f"plain-{number}", TOPIC, ports, seed) for number in range(2)]
        self.readers = [LineageReader(TOPIC, ports, f"{seed} {number}") for number in range(2)]

    def producers(self) -> list[RingProducer | KeyedProducer | PlainProducer]:
        """All of them."""
        return [*self.named, *self.keyed, *self.plain]

    def wait_for_requests(self, most: int) -> None:
        """Wait until a random number of further requests is acknowledged."""
        assert self.running is not None
        self.running.progress.wait_for_more(self.random.randint(1, most))

    # --- steps ---

    def ask(self, kind: str, *, at: int | None = None) -> bool:
        """Ask for a step; whether it was taken. What is not taken is retriable."""
        ordinal = self._someone() if at is None else at
        body = {"kind": kind, "brokersBefore": self.size}
        try:
            self.last_step = self.ring.call(ordinal, "POST", "/v1/ring/steps", body)
        except HTTPError as error:
            with error:
                problem = json.loads(error.read())
            assert problem["retriable"] or problem["type"].endswith("ring-refused"), problem
        except (OSError, HTTPException):  # it was killed
            pass
        return self._is_of(self.size + (1 if kind == "grow" else -1))

    def step(self, kind: str) -> None:
        """Take a step, asked for until the ring has taken it."""
        after = self.size + (1 if kind == "grow" else -1)
        self.ring.until(lambda: self._is_of(after) or self.ask(kind), STEP_S_MAX)
        self.size = after

    def _is_of(self, size: int) -> bool:
        with suppress(OSError, HTTPException):
            ring = self.ring.call(self._someone(), "GET", "/v1/ring?consistent=true", timeout_s=5)
            return bool(ring["brokers"] == size)
        return False

    def _someone(self) -> int:
        return next(
            ordinal
            for ordinal, broker in enumerate(self.ring.brokers)
            if broker.is_running() and self.ring.is_answered(ordinal, "GET", "/live")
        )

    def wait_whole(self) -> None:
        """Until all open ranges have their replicas in sync."""
        self.ring.until(self._is_whole, WHOLE_S_MAX)

    def _is_whole(self) -> bool:
        ranges = [each for each in self.ring.ranges() if each["state"] != "sealed"]
        return bool(ranges) and all(
            each["leader"] is not None
            and {member["ordinal"] for member in each["isr"]} == set(each["replicas"])
            for each in ranges
        )

    # --- what is there ---

    def settled(self) -> Settled:
        """The topic, once all that is in its logs is committed; read from the last broker."""
        rows: Rows = {}

        def is_committed() -> bool:
            nonlocal rows
            offsets = self.ring.call(self.size - 1, "GET", f"/v1/offsets?topic={TOPIC}")
            rows = {each["partition"]: each for each in offsets["topics"][0]["partitions"]}
            return all(
                each["logEnd"] is not None and each["highWatermark"] == each["logEnd"]
                for each in rows.values()
            )

        self.ring.until(is_committed, WHOLE_S_MAX)
        bounds = {
            partition: (row["firstOffset"], row["highWatermark"]) for partition, row in rows.items()
        }
        return Settled(rows, read_back(self.ring, self.size - 1, TOPIC, bounds))

    def check(self, settled: Settled) -> None:
        """Assert that all is there once, in order over the lineage, and that readers saw it so."""
        producers = self.producers()
        acknowledged = [event for each in producers for event in each.acknowledged]
        history = History(
            set().union(*(each.sent_ids for each in producers)),
            acknowledged,
            settled.read,
            {partition: row["highWatermark"] for partition, row in settled.rows.items()},
            {partition: row["firstOffset"] for partition, row in settled.rows.items()},
            {partition: row["parents"] for partition, row in settled.rows.items()},
        )
        print(
            f"{len(history.sent_ids)} sent, {len(acknowledged)} acknowledged, "
            f"{len(settled.read)} read, {sum(each.duplicate_count for each in self.named)} "
            f"duplicates; retries { {each.name: each.retries for each in producers} }; "
            f"longest { {each.name: round(each.longest_s, 2) for each in producers} }"
        )
        found = violations(history)
        assert found == [], found[:20]
        read_ids = {each.event_id for each in settled.read}
        doubtful: set[str] = set().union(*(each.doubtful_ids for each in self.plain))
        assert history.sent_ids - read_ids <= doubtful
        for reader in self.readers:
            _check_reader(reader, acknowledged, settled)


def _check_reader(
    reader: LineageReader, acknowledged: Sequence[Acknowledged], settled: Settled
) -> None:
    """What it saw is still there, in the order of each producer and key."""
    where = {each.event_id: each.position for each in settled.read}
    assert reader.seen, "a reader has seen nothing"
    place = {event_id: number for number, (_, event_id) in enumerate(reader.seen)}
    assert len(place) == len(reader.seen), "a reader has seen an event twice"
    assert all(where[event_id] == position for position, event_id in reader.seen)
    last: dict[tuple[str, str | None], int] = {}
    for event in acknowledged:
        if event.event_id in place:
            stream = event.producer, event.key
            assert place[event.event_id] > last.get(stream, -1), event
            last[stream] = place[event.event_id]


@contextmanager
def stepped_ring(
    root: Path, seed: int, *, first: int, most: int, **settings: Any
) -> Iterator[SteppedRing]:
    """Let producers write and readers read while the block lasts; then all is compared."""
    print(f"seed {seed}")
    with founded_ring(root, count=most, founders=first, copies=3, **settings) as ring:
        subject = SteppedRing(ring, seed, first)
        wanted = {"name": TOPIC, "partitionsPerRange": PARTITIONS_PER_RANGE}
        ring.call(0, "POST", "/v1/topics", wanted)
        with reading(subject.readers), producing(subject.producers()) as subject.running:
            subject.wait_for_requests(100)
            yield subject
            subject.wait_for_requests(100)
            subject.wait_whole()
        subject.check(subject.settled())


def segments_of(subject: SteppedRing, root: Path) -> dict[Path, bytes]:
    """The segments of the topic on all disks."""
    topic_id = subject.ring.call(0, "GET", f"/v1/topics/{TOPIC}")["id"]
    return {path: path.read_bytes() for path in root.glob(f"*/data/{topic_id}/*/*.log")}
