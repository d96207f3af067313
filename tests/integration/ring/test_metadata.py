"""A ring's committed state takes bounded space, on disk and in memory, after any changes.

`RING_CHANGES=100000` makes it a long run. Topics are created, altered and deleted by clients at all
brokers; one broker is killed half-way and misses a tenth of the changes.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import pytest

from tailrace.wire import METADATA_LOGS
from tailrace_broker.core.raft.metadata_log import LOG_BYTES
from tests.support.broker.processes import rss_bytes
from tests.support.http.http11 import Connection, new_topic, request
from tests.support.ring.kept_metadata import (
    assert_same_chain,
    assert_same_state,
    kept_on,
    metadata_directory,
)
from tests.support.ring.local_ring import LocalRing, founded_ring
from tests.support.variables import whole_number

pytestmark = pytest.mark.integration

CHANGES = whole_number(
    "RING_CHANGES", 600, least=100, meaning="how many changes to make, as in RING_CHANGES=100000"
)
CLIENTS = 24
BROKERS = 3
# A client creates a topic, alters it so often, and deletes it.
ALTERATIONS = 18
KILL_TENTH, START_TENTH = 5, 6
CHANGE_S_MAX = 120.0  # on a busy machine
# Two snapshots while one takes the other's place, each of some topics and 1,000 changes' ids.
SNAPSHOTS_BYTES_MAX = 512 * 1024
DIRECTORY_BYTES_MAX = len(METADATA_LOGS) * LOG_BYTES + SNAPSHOTS_BYTES_MAX
# From a tenth of the changes to their end: 100 bytes that each of 100,000 leaves would be more.
GROWTH_BYTES_MAX = 8 * 1024 * 1024


class Progress:
    """Changes that were acknowledged, by all clients together."""

    def __init__(self) -> None:
        self.count = 0
        self.is_over = False
        self._changed = threading.Condition()

    def note(self) -> None:
        with self._changed:
            self.count += 1
            self.is_over = self.is_over or self.count >= CHANGES
            self._changed.notify_all()

    def end(self) -> None:
        """No more are wanted, or can be made."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Until there are so many."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or self.count >= count)
        assert self.count >= count


class TopicClient:
    """Changes topics of its own names, one at a time, each at a random broker."""

    def __init__(self, ring: LocalRing, number: int, progress: Progress) -> None:
        self._ring = ring
        self._number = number
        self._progress = progress
        self._random = random.Random(number)
        self._connections: dict[int, Connection] = {}

    def run(self) -> None:
        """Until all clients together have made enough."""
        with ExitStack() as on_failure:
            on_failure.callback(self._progress.end)
            try:
                for kind, whole in self._requests():
                    if self._progress.is_over:
                        break
                    self._change(kind, whole)
            finally:
                for connection in self._connections.values():
                    connection.close()
            on_failure.pop_all()

    def _requests(self) -> Iterator[tuple[str, bytes]]:
        for number in range(CHANGES):
            name = f"t-{self._number}-{number}"
            yield "created", new_topic(name)
            for linger_ms in range(ALTERATIONS):
                body = b'{"lingerMs": %d}' % linger_ms
                yield "altered", request(f"/v1/topics/{name}", body, method="PATCH")
            yield "deleted", request(f"/v1/topics/{name}", method="DELETE")

    def _change(self, kind: str, whole: bytes) -> None:
        """Ask until it is done; one that got no answer may have been done."""
        until_s = monotonic() + CHANGE_S_MAX
        while True:
            status = self._asked(whole)
            if status in {200, 201, 204} or (kind, status) == ("deleted", 404):
                self._progress.note()
                return
            assert status in {None, 421, 503}, (kind, status)
            assert monotonic() < until_s, f"{kind}: {status}; {self._ring.last_lines()}"

    def _asked(self, whole: bytes) -> int | None:
        """The answer's status; None: there was none."""
        ordinal = self._random.randrange(BROKERS)
        connection = self._connections.pop(ordinal, None)
        try:
            if connection is None:
                connection = Connection(self._ring.brokers[ordinal].port)
            answer = connection.exchange(whole)
        except OSError:
            if connection is not None:
                connection.close()
            return None
        self._connections[ordinal] = connection
        return answer.status


@contextmanager
def changing(ring: LocalRing) -> Iterator[Progress]:
    """Clients make changes in the block; at its end all that were wanted are made."""
    progress = Progress()
    clients = [TopicClient(ring, number, progress) for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client.run) for client in clients]
        try:
            with ExitStack() as on_failure:
                on_failure.callback(progress.end)
                yield progress
                on_failure.pop_all()
        finally:
            for each in running:
                each.result()


@contextmanager
def watched(directory: Path, note: Callable[[int], None]) -> Iterator[None]:
    """`note` is reported again and again what the files of a directory take together."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            note(size_bytes(directory))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def size_bytes(directory: Path) -> int:
    """A file that goes meanwhile takes nothing."""
    total_bytes = 0
    for path in directory.iterdir():
        try:
            total_bytes += path.stat().st_size
        except FileNotFoundError:
            continue
    return total_bytes


def applied(ring: LocalRing) -> list[int]:
    """How far each broker's state of the ring has come."""
    return [ring.ring(ordinal)["metadata"]["applied"] for ordinal in range(BROKERS)]


def wait_equal(ring: LocalRing) -> int:
    """Until all have come equally far; how far."""
    ring.until(lambda: len(set(applied(ring))) == 1, CHANGE_S_MAX)
    return applied(ring)[0]


def change_with_a_kill(ring: LocalRing) -> list[list[int]]:
    """All the changes; for each broker what its process takes of memory, from each tenth of the
    changes on in which it ran all the time.
    """
    memory: list[list[int]] = [[] for _ in ring.brokers]
    killed: int | None = None
    with changing(ring) as progress:
        for tenth in range(1, 10):
            progress.wait(CHANGES * tenth // 10)
            if tenth == KILL_TENTH:
                killed = ring.metadata_leader()
                ring.kill(killed)
                memory[killed].clear()
            elif tenth == START_TENTH and killed is not None:
                ring.brokers[killed].start()
                ring.wait_ready(killed, timeout_s=CHANGE_S_MAX)
            for ordinal, broker in enumerate(ring.brokers):
                if ordinal != killed or tenth > START_TENTH:
                    memory[ordinal].append(rss_bytes(broker.pid))
    for ordinal, broker in enumerate(ring.brokers):
        memory[ordinal].append(rss_bytes(broker.pid))
    return memory


@pytest.mark.timeout(180 + CHANGES // 20)
def test_metadata_stays_small_however_often_it_changes(tmp_path: Path) -> None:
    largest_bytes = [0] * BROKERS
    with founded_ring(tmp_path, delete_retention_ms=0) as ring, ExitStack() as watchers:
        for ordinal, broker in enumerate(ring.brokers):

            def note(size: int, ordinal: int = ordinal) -> None:
                largest_bytes[ordinal] = max(largest_bytes[ordinal], size)

            watchers.enter_context(watched(metadata_directory(broker.data_dir), note))
        began_s = monotonic()
        memory = change_with_a_kill(ring)
        seconds = monotonic() - began_s
        height = wait_equal(ring)
    print(f"{CHANGES} changes in {seconds:.0f} s, {largest_bytes=}, {height=}")
    for ordinal, sizes_bytes in enumerate(memory):
        print(f"broker {ordinal}: MiB in RAM: {[each >> 20 for each in sizes_bytes]}")
    disks = [kept_on(broker.data_dir) for broker in ring.brokers]

    assert height >= CHANGES
    assert max(largest_bytes) <= DIRECTORY_BYTES_MAX
    assert_same_chain(disks)
    state = assert_same_state(disks)
    assert len(state.topics) <= CLIENTS
    for sizes_bytes in memory:
        assert sizes_bytes[-1] - sizes_bytes[0] <= GROWTH_BYTES_MAX
