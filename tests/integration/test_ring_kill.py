"""Brokers are killed, paused and restarted while topics come and go: nothing agreed is lost.

`RING_FAULTS=50` makes it longer. What brokers acknowledged is compared with what they list when all
is well again, and what their disks hold with each other, block by block.
"""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.codec.ring_snapshot import decode_state
from tailrace_broker.core.metadata_log import MetadataLog
from tailrace_broker.core.ring_commands import carry_out
from tailrace_broker.model.agreement import COMMAND, Block, BlockId, Kept
from tailrace_broker.model.ring_state import RingState
from tests.fixtures import free_ring_port
from tests.local_ring import LocalRing, founded_ring

pytestmark = pytest.mark.integration

FAULTS = int(os.environ.get("RING_FAULTS", "10"))
CLIENTS = 3


class TopicClient(threading.Thread):
    """Creates and deletes topics of its own names at random brokers, until it is told to stop."""

    def __init__(self, ring: LocalRing, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.kept: set[str] = set()  # created, and never to be deleted
        self.deleted: set[str] = set()
        self.unknown_count = 0
        self._ring = ring
        self._number = number
        self._stop_asked = stop
        self._random = random.Random(number)

    def run(self) -> None:
        """One change after the other."""
        for number in count():
            if self._stop_asked.is_set():
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
        except (URLError, TimeoutError, ConnectionError, OSError):
            pass
        else:
            return True
        self.unknown_count += 1
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
        broker.stop()
    else:
        ring.kill(ordinal)
    threading.Event().wait(generator.choice([0.0, 0.3, 2.0]))
    broker.start()
    if generator.random() < 0.7:  # else the next fault comes while it starts
        ring.wait_ready(ordinal)


def topics_at(ring: LocalRing, ordinal: int) -> set[str]:
    """Of a broker that has applied all that was agreed when it was asked."""
    ring.call(ordinal, "GET", "/v1/ring?consistent=true")
    return {each["name"] for each in ring.call(ordinal, "GET", "/v1/topics")["topics"]}


@pytest.mark.timeout(120 + 15 * FAULTS)
def test_kills_and_pauses_lose_nothing_that_was_agreed(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    generator = random.Random(seed)
    with founded_ring(tmp_path, port=free_ring_port()) as ring:
        with topic_clients(ring) as clients:
            for _ in range(FAULTS):
                one_fault(ring, generator)
                ring.wait_ready()
        listed: list[set[str]] = []

        def lists_are_equal() -> bool:
            """What got no answer may still be carried out; a topic is listed when it is open."""
            listed[:] = [topics_at(ring, ordinal) for ordinal in range(3)]
            return listed[0] == listed[1] == listed[2]

        ring.until(lists_are_equal, timeout_s=60)
        for broker in ring.brokers:
            broker.stop()

    kept = set().union(*(client.kept for client in clients))
    deleted = set().union(*(client.deleted for client in clients))
    print(f"{FAULTS} faults, {len(kept)} kept, {len(deleted)} deleted topics, seed {seed}")
    assert kept, ring.last_lines()
    assert kept <= listed[0]
    assert not deleted & listed[0]
    disks = [kept_on(broker.data_dir) for broker in ring.brokers]
    assert_same_chain(disks)
    states = dict(map(agreed_state, disks))
    assert max(states) >= len(kept) + len(deleted)
    for height, state in map(agreed_state, disks):
        assert state == states[height]


def kept_on(data_dir: Path) -> Kept:
    """What a stopped broker's disk says."""
    files = {each.name: each.read_bytes() for each in (data_dir / "data/metadata").iterdir()}
    kept, _ = MetadataLog.recover(files)
    return kept


def agreed_blocks(kept: Kept) -> list[Block]:
    """Above the snapshot, in the order of their heights."""
    assert kept.snapshot is not None
    by_id = {block.id: block for block in kept.blocks}
    chain: list[Block] = []
    block_id: BlockId = kept.commit
    while block_id != kept.snapshot.id:
        chain.append(by_id[block_id])
        block_id = by_id[block_id].parent
    return chain[::-1]


def agreed_state(kept: Kept) -> tuple[int, RingState]:
    """With its height."""
    assert kept.snapshot is not None
    state = decode_state(kept.snapshot.state)
    for block in agreed_blocks(kept):
        if block.kind == COMMAND:
            state = carry_out(state, decode_command(block.payload))
    return kept.commit.height, state


def assert_same_chain(disks: list[Kept]) -> None:
    """No height has two agreed blocks."""
    by_height: dict[int, Block] = {}
    for kept in disks:
        for block in agreed_blocks(kept):
            assert by_height.setdefault(block.id.height, block) == block
