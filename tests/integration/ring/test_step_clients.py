"""Clients while a ring grows or is re-sliced: no call fails, and every key keeps its order."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tailrace.consumer import Consumer
from tailrace.producer import Producer
from tailrace.sync import Client
from tests.support.cli.commands import TAILRACE
from tests.support.ring.local_ring import LocalRing, founded_ring
from tests.support.ring.ring_steps import reslice_to, step_to

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

FIRST, LAST = 3, 5
COUNTS = (4, 8, 2)  # of partitions in each range
TOPIC = "t"
KEYS = [b"k%d" % number for number in range(24)]
ROUNDS_BETWEEN = 15
READ_S_MAX = 60.0

# The numbers of each key, in the order in which they came.
Numbers = dict[str, list[int]]


@contextmanager
def founded(root: Path) -> Iterator[LocalRing]:
    """A ring of the first brokers; the others are there."""
    with founded_ring(root, count=LAST, founders=FIRST, copies=3) as ring:
        with Client(ring.brokers[0].url) as client:
            client.create_topic(TOPIC, partitions_per_range=2)
        yield ring


class Work:
    """What clients do in threads of their own, until it is over."""

    def __init__(self) -> None:
        self.rounds = 0  # that were stored
        self.is_over = threading.Event()
        self.is_stored = threading.Event()  # all that will be
        self.read: Numbers = {}

    def produce(self, url: str) -> None:
        """NotStoredError: a record was not, although the producer tries again for a while."""
        with Client(url) as client, Producer(client) as producer:
            while not self.is_over.wait(0.01):
                for key in KEYS:
                    producer.send(TOPIC, b"%d" % self.rounds, key=key)
                producer.flush()
                self.rounds += 1
        self.is_stored.set()

    def consume(self, url: str, consumer_id: str) -> None:
        """Any error ends it."""
        with (
            Client(url) as client,
            Consumer(client, "g", TOPIC, consumer_id=consumer_id) as consumer,
        ):
            while not self.has_all():
                for record in consumer.poll():
                    self.note((record.key or b"").decode(), int(record.value or b""))
                consumer.commit()

    def note(self, key: str, number: int) -> None:
        self.read.setdefault(key, []).append(number)

    def has_all(self) -> bool:
        is_read = len(self.read) == len(KEYS) and all(
            numbers[-1] == self.rounds - 1 for numbers in self.read.values()
        )
        return self.is_stored.is_set() and is_read


def grow(ring: LocalRing) -> Iterator[Callable[[], object]]:
    for brokers_before in range(FIRST, LAST):
        yield partial(step_to, ring, brokers_before + 1)


def reslice(ring: LocalRing) -> Iterator[Callable[[], object]]:
    for count in COUNTS:
        yield partial(reslice_to, ring, count, topic=TOPIC)


Changes = Callable[[LocalRing], Iterator[Callable[[], object]]]


def change_under(ring: LocalRing, work: Work, changes: Changes) -> None:
    for change in changes(ring):
        wanted = work.rounds + ROUNDS_BETWEEN
        ring.until(lambda wanted=wanted: work.rounds >= wanted, READ_S_MAX)  # type: ignore[misc]
        change()
    wanted = work.rounds + ROUNDS_BETWEEN
    ring.until(lambda: work.rounds >= wanted, READ_S_MAX)


def running(stack: ExitStack, work: Work, *calls: Callable[[], None]) -> list[Future[None]]:
    threads = stack.enter_context(ThreadPoolExecutor(len(calls)))
    stack.callback(work.is_over.set)  # before the threads are waited for
    return [threads.submit(call) for call in calls]


@pytest.mark.parametrize("changes", [grow, reslice])
def test_a_producer_and_consumers_of_a_group_see_no_error(tmp_path: Path, changes: Changes) -> None:
    work = Work()
    with founded(tmp_path) as ring, ExitStack() as stack:
        urls = [broker.url for broker in ring.brokers]
        runs = running(
            stack,
            work,
            partial(work.produce, urls[0]),
            partial(work.consume, urls[1], "one"),
            partial(work.consume, urls[2], "other"),
        )
        change_under(ring, work, changes)
        work.is_over.set()
        for run in runs:
            run.result(READ_S_MAX)

    for key, numbers in work.read.items():
        firsts = list(dict.fromkeys(numbers))  # what came again does so after a new coordinator
        assert firsts == list(range(work.rounds)), key


@pytest.mark.parametrize("changes", [grow, reslice])
def test_who_follows_a_topic_reads_children_after_all_their_parents(
    tmp_path: Path, changes: Changes
) -> None:
    work = Work()
    with founded(tmp_path) as ring, ExitStack() as stack:
        urls = [broker.url for broker in ring.brokers]
        command = [TAILRACE, "consume", TOPIC, "--from", "earliest", "-f", "--url", urls[1]]
        errors = stack.enter_context((tmp_path / "errors").open("wb"))
        follower = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        )

        def follow() -> None:
            assert follower.stdout is not None
            for line in follower.stdout:
                record = json.loads(line)
                work.note(record["key"], int(record["value"]))
                if work.has_all():
                    return

        runs = running(stack, work, partial(work.produce, urls[0]), follow)
        stack.callback(follower.kill)  # which ends the thread that reads
        change_under(ring, work, changes)
        work.is_over.set()
        runs[0].result(READ_S_MAX)
        ring.until(lambda: runs[1].done() or work.has_all(), READ_S_MAX)

    assert len(work.read) == len(KEYS)
    for key, numbers in work.read.items():
        assert numbers == list(range(work.rounds)), key
    notes = (tmp_path / "errors").read_text().splitlines()  # of what is asked again
    assert [each for each in notes if not each.startswith("note: ")] == []
