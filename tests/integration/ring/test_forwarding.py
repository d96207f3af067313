"""Any broker of a ring takes requests for any partition, while the leaders of it come and go.

`RING_RUNS=10` repeats each test with other seeds.
"""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker.history import Acknowledged, History, Read, violations
from tests.support.ring.local_ring import LocalRing, founded_ring
from tests.support.ring.pipelining import PipeliningProducer
from tests.support.ring.replicated_ring import TOPIC, ReplicatedRing, readable, replicated_ring
from tests.support.ring.ring_producers import Progress
from tests.support.ring.ring_steps import read_back
from tests.support.ring.seeds import RUNS, seed_of

PRODUCERS = 4
KILLS = 3
STOPS = 3
WINDOWS_MAX = 60  # between two faults
# What brokers log that could not end what was under way in their time.
TOO_BUSY = {"replicas.needed", "replicas.behind", "forwards.unanswered", "forwards.unheard"}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("run", range(RUNS)),
]


class PipelinedRing:
    """A ring, and producers without ids that pipeline to random brokers of it."""

    def __init__(self, ring: LocalRing, seed: int) -> None:
        self.ring = ring
        self.random = random.Random(seed)
        self.whole = ReplicatedRing(ring, seed)
        ports = [broker.port for broker in ring.brokers]
        self.producers = [
            PipeliningProducer(f"pipelining-{number}", TOPIC, ports, seed)
            for number in range(PRODUCERS)
        ]
        self.progress = Progress()

    def logged(self) -> set[str]:
        """Return the names of all events that brokers have logged."""
        lines = [log.read_text().splitlines() for log in self.ring.root.glob("*.log")]
        return {json.loads(line)["event"] for of_broker in lines for line in of_broker}

    def wait_for_windows(self) -> None:
        """Wait until some windows of requests are all answered."""
        self.progress.wait_for_more(self.random.randint(1, WINDOWS_MAX))


@contextmanager
def pipelined_ring(root: Path, seed: int, **settings: Any) -> Iterator[PipelinedRing]:
    """Producers send while the block lasts; then their answers are compared with the logs."""
    print(f"seed {seed}")
    with founded_ring(root, copies=3, **settings) as ring:
        subject = PipelinedRing(ring, seed)
        partition_count = subject.whole.create_topic()
        threads = [
            threading.Thread(target=each.run, args=(subject.progress,), daemon=True)
            for each in subject.producers
        ]
        for thread in threads:
            thread.start()
        try:
            subject.wait_for_windows()
            yield subject
            subject.ring.wait_whole()
        finally:
            subject.progress.stop_asked.set()
            for thread in threads:
                thread.join()
        subject.ring.wait_whole()
        ends = subject.whole.wait_committed(partition_count)
        check(
            subject.producers,
            read_back(ring, 0, TOPIC, readable(ends)),
            {key: end for key, (_, end, _) in ends.items()},
        )


def check(producers: list[PipeliningProducer], read: list[Read], ends: dict[int, int]) -> None:
    """Assert that each answer was true, and that no event passed another of its key."""
    acknowledged: list[Acknowledged] = [event for each in producers for event in each.acknowledged]
    not_attempted = set[str]().union(*(each.not_attempted for each in producers))
    sent = set[str]().union(*(each.sent_ids for each in producers))
    unknown = set[str]().union(*(each.unknown for each in producers))
    problems = [each.problems for each in producers]
    print(f"{len(sent)} sent, {len(acknowledged)} stored, {len(unknown)} unknown; {problems}")
    assert violations(History(sent, acknowledged, read, ends)) == []
    stored = {record.event_id: record.position for record in read}
    assert not not_attempted & stored.keys()
    for producer in producers:
        for ids in producer.order.values():
            offsets = [stored[each].offset for each in ids if each in stored]
            assert offsets == sorted(offsets)
    assert len(acknowledged) + len(not_attempted) + len(unknown) == len(sent)


def test_answers_to_pipelining_producers_are_true_when_leaders_die(
    tmp_path: Path, run: int
) -> None:
    with pipelined_ring(tmp_path, seed_of(run)) as subject:
        for _ in range(KILLS):
            victim = subject.whole.leader_of_some_range()
            subject.ring.kill(victim)
            subject.wait_for_windows()
            subject.ring.brokers[victim].start()
            subject.ring.wait_whole()
            subject.wait_for_windows()


def test_leaders_that_stop_cost_no_event_at_other_brokers(tmp_path: Path, run: int) -> None:
    """Nothing that the others took is unknown: they repeat what a stopping leader gives back."""
    with pipelined_ring(tmp_path, seed_of(run), failback_ms=500, log_level="info") as subject:
        for ordinal in subject.random.sample(range(3), STOPS):
            subject.ring.wait_whole()
            subject.wait_for_windows()
            subject.ring.brokers[ordinal].stop()
            subject.wait_for_windows()
            subject.ring.brokers[ordinal].start()
            subject.ring.wait_whole()
        kinds = [json.loads(kind) for each in subject.producers for kind in each.problems]
        late = TOO_BUSY & subject.logged()
        print(f"too busy: {late}")
        if not late:
            assert all(kind == ["/v1/problems/not-ready", False] for kind in kinds), kinds


def test_producers_at_random_brokers_lose_and_double_nothing_when_leaders_die(
    tmp_path: Path, run: int
) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        for producer in subject.producers:
            producer.wanders = True
        victim = None
        for _ in range(KILLS):
            victim = subject.leader_of_some_range(but=victim)
            subject.ring.kill(victim)
            subject.wait_for_requests(150)
            subject.ring.brokers[victim].start()
            subject.ring.wait_whole()
            subject.wait_for_requests(150)
