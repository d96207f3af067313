"""Brokers are killed, paused and restarted while topics come and go: nothing committed is lost.

`RING_FAULTS=50` makes it longer. What brokers acknowledged is compared with what they list when all
is well again, and what their disks hold with each other, block by block.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from itertools import count
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.support.ring.kept_metadata import assert_same_chain, assert_same_state, kept_on
from tests.support.ring.local_ring import LocalRing, founded_ring
from tests.support.variables import whole_number

pytestmark = pytest.mark.integration

FAULTS = whole_number("RING_FAULTS", 6, least=1, meaning="how many faults, as in RING_FAULTS=50")
CLIENTS = 3
READY_S_MAX = 120.0  # on a busy machine


class TopicClient(threading.Thread):
    """Creates and deletes topics of its own names at random brokers, until it is asked to stop."""

    def __init__(self, ring: LocalRing, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.kept: set[str] = set()  # created, and never to be deleted
        self.deleted: set[str] = set()
        self._ring = ring
        self._number = number
        self._stop_asked = stop
        self._random = random.Random(number)

    def run(self) -> None:
        """One change after the other; on, when it is asked to stop, until one topic is kept."""
        for number in count():
            if self._stop_asked.is_set() and self.kept:
                return
            name = f"t-{self._number}-{number}"
            if not self._is_done("POST", "/v1/topics", {"name": name}):
                continue
            if self._random.random() < 0.6:
                if self._is_done("DELETE", f"/v1/topics/{name}"):
                    self.deleted.add(name)
            else:
                self.kept.add(name)

    def _is_done(self, method: str, path: str, body: object = None) -> bool:
        ordinal = self._random.randrange(len(self._ring.brokers))
        try:
            self._ring.call(ordinal, method, path, body, timeout_s=5)
        except HTTPError as error:
            error.close()
        except (OSError, HTTPException):  # it was killed, perhaps within its answer
            pass
        else:
            return True
        return False


@contextmanager
def topic_clients(ring: LocalRing) -> Iterator[list[TopicClient]]:
    """They change topics while the block lasts."""
    stop = threading.Event()
    clients = [TopicClient(ring, number, stop) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        stop.set()
        for client in clients:
            client.join()


def one_fault(ring: LocalRing, generator: random.Random) -> None:
    """Something happens to one broker, which is well again, or about to be, on return."""
    ordinal = generator.randrange(len(ring.brokers))
    kind = generator.choice(["kill", "kill", "kill leader", "pause", "restart"])
    if kind == "kill leader":
        ordinal = ring.metadata_leader()
    broker = ring.brokers[ordinal]
    if kind == "pause":
        ring.pause(ordinal)
        threading.Event().wait(generator.choice([0.1, 1.0, 4.0]))
        ring.resume(ordinal)
        return
    if kind == "restart":
        ring.wait_ready(ordinal, timeout_s=READY_S_MAX)  # SIGTERM ends it cleanly only then
        broker.stop()
    else:
        ring.kill(ordinal)
    threading.Event().wait(generator.choice([0.0, 0.3, 2.0]))
    broker.start()
    if generator.random() < 0.7:  # else the next fault comes while it starts
        ring.wait_ready(ordinal, timeout_s=READY_S_MAX)


def topics_at(ring: LocalRing, ordinal: int) -> set[str] | None:
    """The state when all that was committed before is applied; None: no broker can say."""
    if not ring.is_answered(ordinal, "GET", "/v1/ring?consistent=true"):
        return None
    return {topic["name"] for topic in ring.call(ordinal, "GET", "/v1/topics")["topics"]}


@pytest.mark.timeout(300 + 30 * FAULTS)
def test_kills_and_pauses_lose_nothing_that_was_committed(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    generator = random.Random(seed)
    with founded_ring(tmp_path) as ring:
        with topic_clients(ring) as clients:
            for _ in range(FAULTS):
                one_fault(ring, generator)
            ring.wait_ready(timeout_s=READY_S_MAX)
        listed: list[set[str] | None] = []

        def lists_are_equal() -> bool:
            """What got no answer may still be applied; a topic is listed when it is open."""
            listed[:] = [topics_at(ring, ordinal) for ordinal in range(3)]
            return listed[0] == listed[1] == listed[2] and None not in listed

        ring.until(lists_are_equal, timeout_s=READY_S_MAX)
        for broker in ring.brokers:
            broker.stop()

    kept = set().union(*(client.kept for client in clients))
    deleted = set().union(*(client.deleted for client in clients))
    print(f"{FAULTS} faults, {len(kept)} kept, {len(deleted)} deleted topics, seed {seed}")
    names = listed[0] or set()
    assert kept <= names
    assert not deleted & names
    disks = [kept_on(broker.data_dir) for broker in ring.brokers]
    assert_same_chain(disks)
    assert kept <= {topic.name for topic in assert_same_state(disks).topics.values()}
    assert max(disk.commit.height for disk in disks) >= len(kept) + len(deleted)
